"""What the action plugins share."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction


class Action(FleetAction):
    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any], dict[str, Any]]] = []

    def act(self, host: str, task_vars: Any) -> dict[str, Any]:
        raise NotImplementedError

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


@pytest.mark.parametrize(
    ("error", "lines"),
    [(ValueError("one"), ["one"]), (KeyError("npufleet_npus"), ["'npufleet_npus'"])],
)
def test_a_refusal_names_the_host_and_each_reason(error: Exception, lines: list[str]) -> None:
    words = str(Action().refuse("npu1", error)).splitlines()
    assert words[0] == "npu1 is refused, nothing was changed:"
    assert [line.strip(" -") for line in words[1:]] == lines
