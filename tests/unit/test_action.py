"""What the action plugins share."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text


class Action(FleetAction):
    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any], dict[str, Any]]] = []

    def act(self, host: str, task_vars: Any) -> dict[str, Any]:
        raise NotImplementedError

    def _execute_module(self, module: str, module_args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        self.calls.append((module, module_args, task_vars))
        return {"changed": False, "invocation": {"module_args": module_args}}


def test_the_request_of_a_call_reaches_no_system_log_and_no_result() -> None:
    action = Action()
    variables = {"inventory_hostname": "npu1"}
    options, request = {"state": "forgotten", "models": ["m"]}, {"run": "1", "by": "kim", "host": "npu1"}
    assert action.call_module("model_store", options, variables, request) == {"changed": False}
    module, arguments, task_vars = action.calls[0]
    assert (module, arguments["module"]) == ("npufleet.triton.library_call", "model_store")
    assert arguments["parameters"]["models"] == ["m"]
    assert arguments["parameters"]["_request"] == request
    assert task_vars["ansible_no_target_syslog"] is True
    assert variables == {"inventory_hostname": "npu1"}


@pytest.mark.parametrize(
    ("error", "lines"),
    [(ValueError("one"), ["one"]), (KeyError("npufleet_npus"), ["KeyError: 'npufleet_npus'"])],
)
def test_a_refusal_names_the_host_and_each_reason(error: Exception, lines: list[str]) -> None:
    words = str(Action().refuse("npu1", error)).splitlines()
    assert words[0] == "npu1 is refused, nothing was changed:"
    assert [line.strip(" -") for line in words[1:]] == lines


def test_hosts_of_one_task_and_batch_meet_in_one_place_and_a_lone_one_nowhere() -> None:
    action = Action()
    action._task = SimpleNamespace(_uuid="task")

    def place(*hosts: str) -> str:
        return action._results_prefix({"ansible_play_batch": list(hosts)})

    assert place("npu1", "npu2") == place("npu1", "npu2") != place("npu1", "npu3")
    assert Path(place("npu1", "npu2")).name.startswith("task-")
    assert (place("npu1"), action._results_prefix({})) == ("", "")


@pytest.mark.parametrize("large", ["x" * (1 << 20), ["x"] * (1 << 17), {str(number): 1 for number in range(1 << 16)}])
def test_an_answer_that_is_too_large_is_refused(large: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_text, "MAX_CHARACTERS", 1 << 20)
    action = Action()
    action._execute_module = lambda *_given, **_more: {"data": large}  # type: ignore[method-assign]
    words = r"^npu1: the answer of model_store has more than 1 MiB, expected less\. The answer was not used\. Find out"
    with pytest.raises(host_text.InvalidAnswer, match=words):
        action.call_module("model_store", {"state": "forgotten"}, {"inventory_hostname": "npu1"})
