"""The summary of a run: counts, one reason for each bad host, equal reasons on one line."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible import constants, context
from ansible.module_utils.common.collections import ImmutableDict
from ansible_collections.npufleet.triton.plugins.plugin_utils.report.summary import Summary, by_sentence, reason
from helpers import load_program

HOSTS = [f"npu-{number}" for number in range(1, 12)]
LOST = "Task failed: Failed to connect to the host via ssh: connect to host {} port 22: No route to host"


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"msg": "npu-1: 2 differences, the first: x"}, "2 differences, the first: x"),
        ({"msg": "npu-1 failed the gate. npu-1: x; npu-11: y"}, "failed the gate. x; npu-11: y"),
        ({"msg": LOST.format("npu-1")}, "Failed to connect to the host via ssh: connect to host <host> port 22: No route to host"),
        ({"msg": "Task failed: Module failed: a\n  b"}, "a b"),
        ({"msg": "All items completed", "results": [{"failed": False, "msg": "x"}, {"failed": True, "msg": "no"}]}, "no"),
        ({"msg": "/npu-1/x npu-1.example.com npu-10"}, "/<host>/x <host>.example.com npu-10"),
        ({}, "the task has no message, see above"),
        ({"msg": "x" * 400}, "x" * 297 + "..."),
        ({"msg": "\x1b[31mred"}, "\\x1b[31mred"),
    ],
)
def test_reasons_are_one_line_without_the_name_of_the_host(result: dict[str, Any], text: str) -> None:
    assert reason("npu-1", result) == text


def test_equal_sentences_share_a_line_with_their_hosts() -> None:
    assert by_sentence({"a": ["x", "y"], "b": [], "c": ["x"]}) == ["  - a, c: x", "  - a: y"]
    assert by_sentence({"a": ["x"], "b": ["x"]}) == ["  - every host: x"]
    assert by_sentence({"a": ["x"], "b": ["x"]}, 3) == ["  - a, b: x"]
    assert by_sentence({"a": ["x"]}) == ["  - a: x"]
    assert by_sentence({}) == []


def summary(**states: dict[str, Any]) -> Summary:
    found = Summary()
    for host, state in states.items():
        found.read(host.replace("_", "-"), state)
    return found


def test_each_bad_host_has_its_last_reason() -> None:
    found = summary(npu_4={"maintenance": {"reason": "swap"}, "plan": [{}]})
    found.failed("npu-1", {"msg": "rescued"})
    found.failed("npu-2", {"msg": "first"})
    for host in ("npu-2", "npu-3"):
        found.failed(host, {"msg": f"{host} failed the gate"})
    found.failed("npu-5", {"msg": LOST.format("npu-5")})
    lines = found.lines(HOSTS, {"npu-6": 1}, {"npu-2": 1, "npu-3": 1}, {"npu-5": 1}, plan=False)
    assert lines == [
        "11 hosts: 6 ok, 1 changed, 1 in maintenance, 2 failed, 1 unreachable",
        "  - npu-2, npu-3: failed the gate",
        "  - npu-5: unreachable: Failed to connect to the host via ssh: connect to host <host> port 22: No route to host",
    ]


def test_a_refused_run_names_the_hosts_with_reasons_and_no_other() -> None:
    card = "no card: see lspci"
    found = summary(npu_1={"plan": [{}]}, npu_2={"refusals": [card, "no driver"]}, npu_3={"refusals": [card]})
    # A task that runs once fails on the first host.
    found.failed("npu-1", {"msg": "2 of 3 hosts refused, 2 reasons, nothing was changed:\n  - x"}, for_all=True)
    assert found.lines(HOSTS[:3], {}, {"npu-1": 1}, {}, plan=False) == [
        "the run ended early: 2 of 3 hosts refused, 2 reasons, nothing was changed",
        "3 hosts: 1 ok, 2 refused",
        "  - npu-2: no card: see lspci (and 1 more)",
        "  - npu-3: no card: see lspci",
    ]


def test_check_mode_has_the_totals_of_the_plan() -> None:
    model = {"concern": "models", "action": "release"}
    states = {"npu_1": {"plan": [model, model, {"concern": "server", "action": "replace"}]}, "npu_2": {"plan": [model]}}
    found = summary(**states, npu_3={"plan": [model], "maintenance": {"reason": "swap"}}, npu_4={"plan": []})
    # The result of a later task is another plan.
    found.read("npu-2", {"plan": ["odd", 7, {"concern": "driver"}]})
    assert found.lines(HOSTS[:4], {"npu-1": 1}, {}, {}, plan=True) == [
        "4 hosts: 3 ok, 1 in maintenance",
        "plan: 4 differences on 2 hosts: models release 3, server replace 1",
    ]
    assert summary(npu_1={"plan": ["odd", 7, {}]}).lines(["npu-1"], {}, {}, {}, plan=True)[1] == (
        "plan: 1 difference on 1 host: nothing nothing 1"
    )
    assert summary(npu_1={"plan": []}).lines(["npu-1"], {}, {}, {}, plan=True) == ["1 host: 1 ok", "plan: no host would change"]


class Callback:
    """The callback in a run, and its output."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stdout: str = "ansible.builtin.default", **options: Any) -> None:
        self.output: list[tuple[str, bool]] = []
        monkeypatch.setattr(context, "CLIARGS", ImmutableDict(options))
        monkeypatch.setattr(constants, "DEFAULT_STDOUT_CALLBACK", stdout)
        display = SimpleNamespace(
            banner=lambda text: self.output.append((text, False)),
            display=lambda text, stderr=False: self.output.append((text, stderr)),
            verbosity=0,
        )
        self.plugin = load_program("playbooks/callback_plugins/npufleet_summary.py").CallbackModule(display=display)

    def result(self, host: str, result: dict[str, Any], action: str = "npufleet.triton.host_state", once: bool = False) -> Any:
        task = SimpleNamespace(action=action, run_once=once)
        return SimpleNamespace(_host=SimpleNamespace(get_name=lambda: host), _task=task, _result=result)

    def end(self, *hosts: str, **stats: dict[str, int]) -> list[tuple[str, bool]]:
        counts = {"processed": dict.fromkeys(hosts, 1), "changed": {}, "failures": {}, "dark": {}, **stats}
        self.plugin.v2_playbook_on_stats(SimpleNamespace(**counts))
        return self.output


def test_ignored_failures_and_other_results_are_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Callback(monkeypatch)
    run.plugin.v2_runner_on_ok(run.result("npu-1", {"refusals": ["x"]}, action="ansible.builtin.command"))
    run.plugin.v2_runner_on_failed(run.result("npu-2", {"msg": "real"}))
    run.plugin.v2_runner_on_failed(run.result("npu-2", {"msg": "ignored"}), ignore_errors=True)
    run.plugin.v2_runner_on_failed(run.result("npu-1", {"msg": "the run is refused"}, once=True))
    run.plugin.v2_runner_on_unreachable(run.result("npu-3", {"msg": "no route"}))
    assert run.end("npu-3", "npu-2", "npu-1", failures={"npu-1": 1, "npu-2": 1}, dark={"npu-3": 1}) == [
        ("SUMMARY", False),
        ("the run ended early: the run is refused", False),
        ("3 hosts: 1 ok, 1 failed, 1 unreachable", False),
        ("  - npu-2: real", False),
        ("  - npu-3: unreachable: no route", False),
    ]


@pytest.mark.parametrize(("options", "shown"), [({"check": True}, True), ({"check": True, "diff": True}, False), ({}, False)])
def test_the_plan_is_shown_in_check_mode_without_diff(monkeypatch: pytest.MonkeyPatch, options: Any, shown: bool) -> None:
    run = Callback(monkeypatch, **options)
    run.plugin.v2_runner_on_ok(run.result("npu-1", {"plan": [{"concern": "driver", "action": "load"}]}))
    assert (("plan: 1 difference on 1 host: driver load 1", False) in run.end("npu-1")) is shown


def test_json_output_stays_json(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Callback(monkeypatch, stdout="ansible.posix.json").end("npu-1") == [("1 host: 1 ok", True)]
    assert Callback(monkeypatch).end() == []
