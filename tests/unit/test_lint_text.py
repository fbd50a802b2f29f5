"""The text of a config.pbtxt: what Triton's parser refuses and Python's takes, and what somebody meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import schema
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.__main__ import main
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.text import flaws
from linting import GOOD, PYTHON, findings, of_config, write


@pytest.mark.parametrize(
    ("text", "line", "found", "do"),
    [
        ("\u3000count: 1", 1, "ideographic space (U+3000)", "an ordinary character"),
        ("count:\n\u00a01", 2, "no-break space (U+00A0)", "an ordinary character"),
        ("count: 1\u2028", 1, "line separator (U+2028)", "an ordinary character"),
        ("\ufeffname: 'm'", 1, "a byte order mark (BOM) (U+FEFF)", "take it out"),
        ("count = 1", 1, "equals sign (U+003D)", "an ordinary character"),
        ("\udcb0: 1", 1, "bytes that are no UTF-8", "take it out"),
        ("count: 1_000", 1, "1_000", "write 1000"),
        ("count: +4", 1, "+4", "write 4"),
        ("count: 0b100", 1, "0b100", "write 4"),
        ("count: 0o4", 1, "0o4", "write 4"),
        ("count: 08", 1, "08", "correct it"),
        (r"name: 'a\qb'", 1, r"\q in a string", r"write \\q for a backslash"),
        ("name: '\udcff'", 1, "bytes in a string that are no UTF-8", "save the file as UTF-8"),
        ("name: 'm\ncount: 1", 1, "a string without an end on its line", "close it"),
        ("// ours\ncount: 1", 1, "//, which starts no comment here", "write # instead"),
        ("dims: [ 1, # one\n 2,\n # none\n]", 4, "a comma after the last of a list", "take it out"),
    ],
)
def test_what_triton_s_parser_refuses(text: str, line: int, found: str, do: str) -> None:
    (flaw,) = flaws(text)
    assert (flaw.line, flaw.found) == (line, found)
    assert do in flaw.do


@pytest.mark.parametrize(
    "text",
    [
        "# \u3000 \u2028 +4 \\q ' \udcb0\udca1\n",
        'name: "\u3000\ubaa8\ub378" \'it\\\'s\' "\\n\\\\\\x41\\101\\u00e9"',
        "count: 010 dims: [ -1, 0x1F ] share: 1e-3f share: .5 share: 1. share: -inf",
        "a < b: 1; c: [ ], >\r\n\tx { y: [ { }, { } ] }",
    ],
)
def test_what_triton_s_parser_takes(text: str) -> None:
    assert flaws(text) == []


@pytest.mark.parametrize("coding", ["cp949", "latin-1"])
def test_a_comment_may_be_of_any_bytes(coding: str, tmp_path: Path) -> None:
    write(tmp_path, {"m/config.pbtxt": GOOD, "m/1/model.py": PYTHON})
    comment = {"cp949": "\ubaa8\ub378", "latin-1": "mod\u00e8le"}[coding].encode(coding)
    (tmp_path / "m/config.pbtxt").write_bytes(b"# " + comment + b"\n" + GOOD.encode())
    assert findings(tmp_path, {}) == []


def test_a_flaw_and_what_else_is_wrong(tmp_path: Path) -> None:
    told = of_config(tmp_path, GOOD.replace("[ 3 ]", "[ 3, ]", 1) + "dynamic_batching { preferred_batch_size: +9 }")
    assert [(line, field) for line, field, _found, _wanted in told] == [(3, ""), (5, "")]
    told = of_config(tmp_path, GOOD + "dynamic_batching { preferred_batch_size: 0x9 }\u3000")
    assert [(line, field) for line, field, _found, _wanted in told] == [(5, ""), (5, "dynamic_batching.preferred_batch_size")]


@pytest.mark.parametrize(
    ("text", "field", "meant"),
    [
        ("dynamic_batch { }", "dynamic_batch", "dynamic_batching"),
        ("Instance_Group { }", "Instance_Group", "instance_group"),
        ("instance_group { cuont: 1 }", "instance_group[0].cuont", "count"),
        ("instance_group { kind: KIND_NPU }", "instance_group[0].kind", "KIND_MODEL"),
        ("instance_group { kind: CPU }", "instance_group[0].kind", "KIND_CPU"),
        ('input { name: "C" data_type: FP32 dims: 1 }', "input[0].data_type", "TYPE_FP32"),
        ('input { name: "C" data_type: TYPE_BYTES dims: 1 }', "input[0].data_type", "TYPE_STRING"),
        ('input { name: "C" data_type: float16 dims: 1 }', "input[0].data_type", "TYPE_FP16"),
    ],
)
def test_did_you_mean(text: str, field: str, meant: str, tmp_path: Path) -> None:
    files = {"m/config.pbtxt": 'backend: "python"\n' + text, "m/1/model.py": PYTHON}
    (finding,) = findings(tmp_path, files)
    assert (finding.line, finding.field, finding.triton) == (2, field, "refuses the whole file")
    assert finding.do.startswith(f"did you mean {meant}? ")


def test_every_unknown_value_is_told(tmp_path: Path) -> None:
    told = of_config(tmp_path, GOOD.replace("TYPE_FP32", "FP32") + "instance_group { kind: KIND_NPU }\nstrange: 1")
    assert [(line, field, found) for line, field, found, _wanted in told] == [
        (3, "input[0].data_type", "FP32"),
        (4, "output[0].data_type", "FP32"),
        (5, "instance_group[0].kind", "KIND_NPU"),
        (6, "strange", "a field that no Triton knows"),
    ]


@pytest.mark.parametrize(
    ("text", "field", "found"),
    [
        (GOOD.replace("TYPE_FP32", "99", 1), "input[0].data_type", "99"),
        (GOOD + "instance_group { kind: 9 }", "instance_group[0].kind", "9"),
        (
            GOOD + 'sequence_batching { control_input { name: "S" control { kind: 9 int32_false_true: [ 0, 1 ] } } }',
            "sequence_batching.control_input[0].control[0].kind",
            "9",
        ),
    ],
)
def test_a_number_that_is_no_value(text: str, field: str, found: str, tmp_path: Path) -> None:
    assert (field, found) in [(at, words) for _line, at, words, _wanted in of_config(tmp_path, text)]
    assert of_config(tmp_path, GOOD + "instance_group { kind: 2 }") == []


def test_names_that_are_no_utf8_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (Path(str(tmp_path)) / "m\udcb0").mkdir()
    assert main([str(tmp_path)]) == 1
    assert "m\\udcb0: found a directory without a config.pbtxt" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "strange"),
    [
        ('input [{ name: "x" data_type: TYPE_FP32 dims: [ 1 ] }]', False),
        ('input [{ name: "x" data_type: 11 dims: [ 1 ] }]', False),
        ('input [{ name: "x" dims: [ 1 ] }, { name: "y" data_type: 99 dims: [ 1 ] }]', True),
        ("instance_group [{ kind: 0 }, { kind: 77 }]", True),
        ('model_warmup [{ name: "w" inputs { key: "x" value: { data_type: 99 } } }]', True),
        ('model_warmup [{ name: "w" inputs { key: "x" value: { data_type: 11 } } }]', False),
        ('parameters { key: "k" value: { string_value: "v" } } metric_tags { key: "a" value: "b" }', False),
        ("optimization { cuda { graphs: true } priority: 9 }", True),
    ],
)
def test_a_number_that_is_no_value_of_its_enum_is_told_with_its_line(text: str, strange: bool) -> None:
    config, findings = schema.parse(text, "m", "config.pbtxt")
    assert config is not None
    assert bool(list(schema._strange(schema.places(text)))) is strange
    assert [finding.line for finding in findings] == [1] * strange, findings
