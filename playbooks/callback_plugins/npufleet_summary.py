# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Callback npufleet_summary: see DOCUMENTATION. Ansible loads this callback with every playbook of `playbooks/`."""

from __future__ import annotations

DOCUMENTATION = r"""
name: npufleet_summary
type: notification
short_description: Print a summary after the recap
description:
  - Prints the number of hosts in each state, and one reason for each host that was refused, has failed or is unreachable. Hosts
    with the same reason share a line.
  - With C(--check) and without C(--diff), the callback also prints the totals of the plan.
  - If the output of Ansible is JSON, the callback writes the summary to the standard error output.
author: The npufleet developers (@npufleet)
"""

from typing import Any

from ansible import constants, context
from ansible.plugins.callback import CallbackBase
from ansible_collections.npufleet.triton.plugins.plugin_utils.report.summary import Summary

# The callbacks of ansible.posix whose output is JSON
JSON_CALLBACKS = ("json", "jsonl")


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "npufleet_summary"
    CALLBACK_NEEDS_ENABLED = False

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._summary = Summary()

    def v2_runner_on_ok(self, result: Any) -> None:
        if result._task.action == "npufleet.triton.host_state":
            self._summary.read(result._host.get_name(), result._result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            self._summary.failed(result._host.get_name(), result._result, for_all=bool(result._task.run_once))

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._summary.failed(result._host.get_name(), result._result)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        hosts = sorted(stats.processed)
        if not hosts:
            return
        plan = bool(context.CLIARGS.get("check")) and not context.CLIARGS.get("diff")
        is_json = str(constants.DEFAULT_STDOUT_CALLBACK).rpartition(".")[2] in JSON_CALLBACKS
        lines = self._summary.lines(hosts, stats.changed, stats.failures, stats.dark, plan)
        if not is_json:
            self._display.banner("SUMMARY")
        for line in lines:
            self._display.display(line, stderr=is_json)
