"""What the action plugins share."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction


class Action(FleetAction):
    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any], dict[str, Any]]] = []

    def act(self, host: str, task_vars: Any) -> dict[str, Any]:
        raise NotImplementedError

    def _by_library(self, *_arguments: Any) -> None:
        return None

    def _execute_module(self, module: str, module_args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        self.calls.append((module, module_args, task_vars))
        return {"changed": False, "invocation": {"module_args": module_args}}


def test_files_in_arguments_reach_neither_the_hosts_log_nor_the_screen() -> None:
    action = Action()
    variables = {"inventory_hostname": "npu1"}
    assert action.ask("model_store", {"models": ["m"]}, variables, {"releases": {"m": "content"}}) == {"changed": False}
    module, arguments, task_vars = action.calls[0]
    assert (module, arguments) == ("npufleet.triton.model_store", {"models": ["m"], "_request": {"releases": {"m": "content"}}})
    assert task_vars == {"inventory_hostname": "npu1", "ansible_no_target_syslog": True}
    assert variables == {"inventory_hostname": "npu1"}


def test_what_a_host_without_the_library_lacks_is_handed_to_it_alone() -> None:
    action = Action()
    action.ask("host_lease", {}, {"inventory_hostname": "npu1"}, {"run": "1"}, lambda: {"library": "packed"})
    assert action.calls[0][1] == {"_request": {"run": "1", "library": "packed"}}
    action._by_library = lambda *_arguments: {"taken": True}  # type: ignore[method-assign,assignment,return-value]
    assert action.ask("host_lease", {}, {"inventory_hostname": "npu1"}, {"run": "1"}, lambda: 1 / 0) == {"taken": True}
    assert len(action.calls) == 1


@pytest.mark.parametrize(
    ("error", "lines"),
    [(ValueError("one"), ["one"]), (KeyError("npufleet_npus"), ["'npufleet_npus'"])],
)
def test_a_refusal_names_the_host_and_each_reason(error: Exception, lines: list[str]) -> None:
    words = str(Action().refuse("npu1", error)).splitlines()
    assert words[0] == "npu1 is refused, nothing was changed:"
    assert [line.strip(" -") for line in words[1:]] == lines


def test_hosts_of_one_task_and_batch_meet_in_one_place_and_a_lone_one_nowhere() -> None:
    action = Action()
    action._task = SimpleNamespace(_uuid="task")

    def place(*hosts: str) -> str:
        return action._moment({"ansible_play_batch": list(hosts)})

    assert place("npu1", "npu2") == place("npu1", "npu2") != place("npu1", "npu3")
    assert Path(place("npu1", "npu2")).name.startswith("task-")
    assert (place("npu1"), action._moment({})) == ("", "")
