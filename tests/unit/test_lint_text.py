"""The text of a config.pbtxt: what Triton's parser refuses and Python's takes, and what somebody meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import schema
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.__main__ import main
from linting import GOOD, PYTHON, findings, of_config, write


@pytest.mark.parametrize(
    ("text", "line", "found", "do"),
    [
        (
            "\u3000max_batch_size: 1",
            1,
            "ideographic space (U+3000) (Interpreting non ascii codepoint 227.)",
            "an ASCII character",
        ),
        ("max_batch_size:\n\u00a01", 2, "no-break space (U+00A0) (Interpreting non ascii codepoint 194.)", "an ASCII character"),
        ("max_batch_size: 1\u2028", 1, "line separator (U+2028)", "an ASCII character"),
        ("\ufeffname: 'm'", 1, "a byte order mark (BOM) (U+FEFF) (Interpreting non ascii codepoint 239.)", "Remove it"),
        ("max_batch_size = 1", 1, 'Expected ":", found "=".', "Write : instead"),
        ("\udcb0 name: 'm'", 1, "bytes that are no UTF-8 (Interpreting non ascii codepoint 176.)", "Remove it"),
        ("\x01name: 'm'", 1, "Invalid control characters encountered in text.", "Remove them"),
        ("max_batch_size: 1_000", 1, "1_000 (Need space between number and identifier.)", "Write 1000"),
        ("max_batch_size: +4", 1, "Expected integer, got: +", "without +"),
        ("max_batch_size: 0b100", 1, "0b100 (Need space between number and identifier.)", "Write 4"),
        ("max_batch_size: 0o4", 1, "0o4 (Need space between number and identifier.)", "Write 4"),
        ("max_batch_size: 08", 1, "Numbers starting with leading zero must be in octal.", "Correct the line"),
        ("max_batch_size: 0x", 1, '"0x" must be followed by hex digits.', "Correct the line"),
        ("max_batch_size: 4.0", 1, "Expected integer, got: 4.0", "Correct the line"),
        ("max_batch_size: 2147483648", 1, "Integer out of range (2147483648)", "Correct the line"),
        (r"name: 'a\qb'", 1, r"\q in a string (Invalid escape sequence in string literal.)", r"Write \\q for a backslash"),
        (r"name: '\xg'", 1, r"\x in a string (Expected hex digits for escape sequence.)", r"Write \\x"),
        ("name: 'm\nmax_batch_size: 1", 1, "String literals cannot cross line boundaries.", "Close the string with '"),
        ('name: "m', 1, "Unexpected end of string.", 'Close the string with "'),
        ("// ours\nmax_batch_size: 1", 1, "// starts no comment here (Expected identifier, got: /)", "Write # instead"),
        ("/* ours */", 1, "Expected identifier, got: /", "Correct the line"),
        (
            "version_policy { specific { versions: [ 1, # one\n 2,\n # none\n] } }",
            4,
            "a comma after the last entry of a list (Expected integer, got: ])",
            "Remove it",
        ),
        ("dynamic_batching {\n\n", 3, "Expected identifier, got: ", "Correct the line"),
        ("dynamic_batching { >", 1, 'Expected "}", found ">".', "Correct the line"),
        ("input [ { dims: [ 1 2 ] } ]", 1, 'Expected ",", found "2".', "Correct the line"),
        ("{\n 'name': 'm' }", 1, "Expected identifier, got: {", "Correct the line"),
        ("name: 'm'\nname: 'm'", 2, 'Non-repeated field "name" is specified multiple times.', "Correct the line"),
        ("parameters { key: '' key: 'a' }", 1, 'Non-repeated field "key" is specified multiple times.', "Correct the line"),
        (
            "version_policy { all { }\n latest { } }",
            2,
            'Field "latest" is specified along with field "all", another member of oneof "policy_choice".',
            "Correct the line",
        ),
        (
            "model_transaction_policy { decoupled: yes }",
            1,
            'yes (Invalid value for boolean field "decoupled". Value: "yes".)',
            "Correct the name",
        ),
        ("[a.b]: 1", 1, 'Extension "a.b" is not defined or is not an extension of "inference.ModelConfig".', "Correct the line"),
    ],
)
def test_first_error_is_reported_in_the_words_of_protobuf(text: str, line: int, found: str, do: str) -> None:
    _config, _fields, (first, *_more) = schema.parse(text, "m", "config.pbtxt")
    assert (first.line, first.triton) == (line, "refuses the whole file")
    assert found in first.actual
    assert do in first.todo


@pytest.mark.parametrize(
    ("text", "line"),
    [
        # A step without a name of its own, JSON, and a template
        ("ensemble_scheduling {\n  step { model_name: 'a' }\n  { model_name: 'b' }\n}\nname: 'm'\n", 3),
        ('{\n  "name": "m",\n  "max_batch_size": 4\n}\n', 1),
        ("name: 'm'\nmax_batch_size: {{ batch }}\nbackend: 'python'\n", 2),
    ],
)
def test_the_first_error_has_its_own_line(text: str, line: int) -> None:
    config, _fields, findings = schema.parse(text, "m", "config.pbtxt")
    assert config is None
    assert findings[0].line == line


@pytest.mark.parametrize(
    "text",
    [
        "# \u3000 \u2028 +4 \\q ' \udcb0\udca1\n",
        'name: "\u3000\ubaa8\ub378" \'it\\\'s\' "\\n\\\\\\x41\\101\\u00e9\\?"',
        "max_batch_size: 010 input { dims: [ -1, 0x1F ] }",
        "sequence_batching { direct { minimum_slot_utilization: 1e-3f } }",
        "sequence_batching { direct { minimum_slot_utilization: -inf } }",
        "sequence_batching { direct { minimum_slot_utilization: nan } }",
        "input < name: 'a'; dims: [ ], >;\r\n\toutput [ { }, { } ]",
        "model_transaction_policy: { decoupled: 1 }",
        "instance_group { kind: 9 }",
        "instance_group { kind: -1 }",
        # A field without presence is not given by its default.
        "max_batch_size: 0 max_batch_size: 4",
        "name # ours\n: # and ours\n 'm'",
        "metric_tags { key: 'a' value: 'b' } metric_tags { key: 'a' value: 'c' }",
        "",
    ],
)
def test_what_triton_s_parser_takes(text: str) -> None:
    config, _fields, findings = schema.parse(text, "m", "config.pbtxt")
    assert config is not None
    assert findings == []


def test_values_are_read_as_triton_reads_them() -> None:
    text = "name: 'a' \"\\x62\\143\" 'd' max_batch_size: 0x10 input { dims: [ 010, -1 ] optional: t } instance_group { kind: 9 }"
    config, _fields, _findings = schema.parse(text, "m", "config.pbtxt")
    assert (config.name, config.max_batch_size, list(config.input[0].dims)) == ("abcd", 16, [8, -1])
    assert (config.input[0].optional, config.instance_group[0].kind) == (True, 9)


@pytest.mark.parametrize("coding", ["cp949", "latin-1"])
def test_a_comment_may_be_of_any_bytes(coding: str, tmp_path: Path) -> None:
    write(tmp_path, {"m/config.pbtxt": GOOD, "m/1/model.py": PYTHON})
    comment = {"cp949": "\ubaa8\ub378", "latin-1": "mod\u00e8le"}[coding].encode(coding)
    (tmp_path / "m/config.pbtxt").write_bytes(b"# " + comment + b"\n" + GOOD.encode())
    assert findings(tmp_path, {}) == []


def test_a_flaw_and_what_else_is_wrong(tmp_path: Path) -> None:
    told = of_config(tmp_path, GOOD.replace("[ 3 ]", "[ 3, ]", 1) + "dynamic_batching { preferred_batch_size: +9 }")
    assert [(line, field) for line, field, _found, _wanted in told] == [
        (3, ""),
        (5, ""),
        (5, "dynamic_batching.preferred_batch_size"),
    ]
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
    assert finding.todo.startswith(f"Did you mean {meant}? ")


def test_every_unknown_value_is_told(tmp_path: Path) -> None:
    told = of_config(tmp_path, GOOD.replace("TYPE_FP32", "FP32") + "instance_group { kind: KIND_NPU }\nstrange: 1")
    assert [(line, field, found.partition(" (")[0]) for line, field, found, _wanted in told] == [
        (3, "input[0].data_type", "FP32"),
        (4, "output[0].data_type", "FP32"),
        (5, "instance_group[0].kind", "KIND_NPU"),
        (6, "strange", "a field that no Triton knows"),
    ]


def test_a_number_that_is_no_value_of_its_enum(tmp_path: Path) -> None:
    """Triton reads it; what it makes of it depends on the field."""
    assert of_config(tmp_path, GOOD + "instance_group { kind: 2 }") == []
    assert of_config(tmp_path, GOOD + "optimization { priority: 9 }") == []
    assert [field for _line, field, _found, _wanted in of_config(tmp_path, GOOD + "instance_group { kind: 9 }")] == [
        "instance_group[0].kind"
    ]


def test_names_that_are_no_utf8_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (Path(str(tmp_path)) / "m\udcb0").mkdir()
    assert main([str(tmp_path)]) == 1
    assert "m\\udcb0 is a directory without a config.pbtxt" in capsys.readouterr().out
