"""What a host says becomes data: seen, bounded, one line where one is wanted, one file name, and no template."""

from __future__ import annotations

import os
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleConnectionFailure
from ansible.module_utils._internal import _messages
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, is_trusted_as_template
from ansible_collections.npufleet.triton.plugins.plugin_utils import action
from ansible_collections.npufleet.triton.plugins.plugin_utils.adopt import first_check
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text

TEMPLATES = [
    "{{ 7 * 7 }}",
    "{% if true %}x{% endif %}",
    "{# x #}",
    "#jinja2: variable_start_string:'<<', variable_end_string:'>>'\n<< 7 * 7 >>",
    "#jinja2:line_statement_prefix:'%'\n% if true",
    "a\nb: c",
    "- x",
    "!unsafe x",
    "&a",
    "*a",
    "yes",
    "1e3",
    "",
    " x ",
    "é",
]


def test_what_a_terminal_obeys_is_shown() -> None:
    assert host_text.sanitized("\x1b[2J\x9b0m\x07\x08\x7f\0\rx\r\ny\tz\u202e\u2028\ud800") == (
        "\\x1b[2J\\x9b0m\\x07\\x08\\x7f\\x00\\x0dx\ny\tz\\u202e\\u2028\\ud800"
    )
    assert host_text.sanitized("Größe 한국어 ✓") == "Größe 한국어 ✓"


def test_everything_in_an_answer_is_made_data() -> None:
    event = _messages.Event(msg="one\nfatal: [npu2]\x1b")
    found = {
        "\x1b": ["\x1b", ("\x1b",)],
        "n": 10**400,
        "m": -(2**63),
        "x": 1.5,
        "y": True,
        "z": None,
        "w": _messages.WarningSummary(event=event),
    }
    shown = host_text.sanitized(found)
    warning = shown.pop("w")
    assert shown == {"\\x1b": ["\\x1b", ("\\x1b",)], "n": "a number of 1329 bits", "m": -(2**63), "x": 1.5, "y": True, "z": None}
    assert warning.event.msg == "one\n  fatal: [npu2]\\x1b"


def test_an_answer_that_nests_without_end() -> None:
    deep: Any = []
    for _level in range(200):
        deep = [deep]
    with pytest.raises(host_text.InvalidText, match="is nested more than 64 levels deep"):
        host_text.sanitized(deep)


def test_no_line_of_it_begins_where_ansible_begins() -> None:
    assert host_text.indented(["a\nok: [x]\n\n  - b\n", 7]) == ["a\n  ok: [x]\n\n  - b\n", 7]
    assert host_text.line("a\r\n b\x85c\u2028d\t\x1b") == "a b\\x85c\\u2028d \\x1b"
    assert host_text.comment("a\nb: c") == "# a b: c\n"


def test_names_of_files() -> None:
    assert host_text.file_name("INPUT__0") == "INPUT__0"
    names = ["..", ".", "", "a/b", "/a", "a\0", "%2F", "/", "x" * 200, "x" * 201, "{{ x }}", "\ud800", "ä", "A" * 120]
    files = [host_text.file_name(name) for name in names]
    assert len(set(files)) == len(names)
    for file in files:
        assert file not in ("", ".", "..") and "/" not in file and len(file) <= 120 and file.isascii() and file.isprintable()


@pytest.mark.parametrize("path", ["/a", "../a", "a/../../b", "a//b", "a/", ".", "", "a\0b", "a\nb", "a/\x1b", "x" * 256, "./a"])
def test_paths_that_lead_elsewhere(path: str) -> None:
    with pytest.raises(host_text.InvalidText, match="expected a file below"):
        host_text.path_below("/srv/models", path)


def test_paths_below() -> None:
    assert host_text.path_below("/srv/models", "1/a b/..x/ä.rbln") == "/srv/models/1/a b/..x/ä.rbln"


@pytest.mark.parametrize("text", ["", "0" * 63, "A" * 64, "0" * 64 + "\n", "../" + "0" * 61, None, 7])
def test_what_is_no_digest(text: Any) -> None:
    with pytest.raises(host_text.InvalidText, match="expected a SHA-256 digest"):
        host_text.digest(text)


@pytest.mark.parametrize("text", TEMPLATES)
def test_variables_are_read_again_as_they_were(text: str, tmp_path: Any) -> None:
    """By Ansible itself, which evaluates what is trusted, and would evaluate more than is marked."""
    path = tmp_path / "vars.yml"
    path.write_text(
        "---\n"
        + host_text.variables({"theirs": text, "list": [{"x": text}], "keys": {text: 1}, "ours": host_text.Template("{{ 6 * 7 }}")})
    )
    loader = DataLoader()
    read = loader.load_from_file(str(path), trusted_as_template=True)
    templar = Templar(loader, variables={})
    assert templar.template(read) == {"theirs": text, "list": [{"x": text}], "keys": {text: 1}, "ours": 42}
    if "{" in text or text.startswith("#"):
        assert not is_trusted_as_template(read["theirs"])


def test_a_document_is_plain_yaml() -> None:
    found = {text: [text] for text in TEMPLATES}
    assert yaml.safe_load(host_text.document(found)) == found


def test_an_answer_of_another_shape_is_one_message() -> None:
    with (
        pytest.raises(
            host_text.InvalidAnswer, match=r"^npu1 gave an answer that cannot be used \(KeyError: 'x'\)\. The answer was not used"
        ),
        host_text.rejecting_invalid_answers("npu1"),
    ):
        {}["x"]


# The one place by which every action asks


class Asking(action.FleetAction):
    """An action whose host answers as it is told."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def act(self, host: str, task_vars: dict[str, Any]) -> dict[str, Any]:
        return self.call_module("host_state", {}, task_vars)

    def _execute_module(self, *_arguments: Any, **_more: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def asked(answer: Any) -> dict[str, Any]:
    return Asking(answer).act("npu1", {"inventory_hostname": "npu1"})


def test_an_answer_is_a_result_and_nothing_that_ansible_acts_upon() -> None:
    facts = {"npufleet_root": "/", "discovered_interpreter_python": "/usr/bin/python3"}
    found = asked({"ansible_facts": facts, "ansible_stats": {"data": {}}, "invocation": {}, "msg": "a\nb\x1b", "raw": "a\nb"})
    assert found == {"ansible_facts": {"discovered_interpreter_python": "/usr/bin/python3"}, "msg": "a\n  b\\x1b", "raw": "a\nb"}
    assert asked({"msg": "x"}) == {"msg": "x"}


def test_what_ssh_says_is_the_hosts_too() -> None:
    with pytest.raises(AnsibleConnectionFailure) as caught:
        asked(AnsibleConnectionFailure("unreachable: \x1b[2Jowned"))
    assert str(caught.value) == "unreachable: \\x1b[2Jowned"


def test_facts_of_another_shape() -> None:
    with pytest.raises(host_text.InvalidAnswer):
        asked({"ansible_facts": []})


# Tensors of a server, which decides how large they are


def test_a_first_check_is_bounded() -> None:
    config = {"input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1 << 20, 1 << 20]}]}
    with pytest.raises(first_check.NoRequest, match="more than"):
        first_check.request(config)


def test_answers_of_another_shape_than_they_say() -> None:
    arrays, _body = first_check.request({"input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}]})
    answer = 200, {"outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 1 << 40], "data": [1.0]}]}
    with pytest.raises(first_check.NoRequest, match="has 1 values for the shape"):
        first_check.check("m", arrays, [answer, answer], ["http"])


def test_tensors_are_no_paths(tmp_path: Any) -> None:
    name = "/../" * 9 + "etc/x"
    arrays, _body = first_check.request({"input": [{"name": name, "data_type": "TYPE_FP32", "dims": [1]}]})
    answer = 200, {"outputs": [{"name": name, "datatype": "FP32", "shape": [1], "data": [1.0]}]}
    document, files = first_check.check("m", arrays, [answer, answer], ["http"])
    assert len(files) == 2 and all(os.sep not in file for file in files)
    check = document["checks"][0]
    assert {check["inputs"][name]["npy"], check["expect"][name]["values"]["npy"]} == set(files)
