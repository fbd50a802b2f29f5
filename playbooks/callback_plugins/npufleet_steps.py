# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Callback npufleet_steps: see DOCUMENTATION. Ansible loads this callback with every playbook of `playbooks/`."""

from __future__ import annotations

DOCUMENTATION = r"""
name: npufleet_steps
type: notification
short_description: Record which tasks have begun and ended on each host, and tags that select no step
description:
  - Prints nothing. A step is a task on one host. If Ansible cannot start the process of a step, the step begins and never ends, and
    Ansible does not report this. With this callback, the playbooks of the project then end with an error that names the hosts.
  - The playbooks also end with an error if C(--tags) and C(--skip-tags) select no step. Ansible alone would report success.
author: The npufleet developers (@npufleet)
"""

from typing import Any

from ansible.plugins.callback import CallbackBase
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import tag_guard
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.run_guard import STEPS, record_errors


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "npufleet_steps"
    CALLBACK_NEEDS_ENABLED = False

    _linear = False

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Record the errors in the options `--tags` and `--skip-tags`."""
        record_errors(tag_guard.errors(playbook))

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Record the strategy of the play.

        With `linear`, Ansible begins a task when all steps of the previous task have ended. A step without a result is lost then.
        """
        STEPS.mark_lost()
        self._linear = str(play.strategy).rpartition(".")[2] == "linear"

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool = False) -> None:
        if self._linear:
            STEPS.mark_lost()

    v2_playbook_on_handler_task_start = v2_playbook_on_task_start

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        STEPS.begin(host.get_name(), task._uuid, task.get_name())

    def _ended(self, result: Any, **_more: Any) -> None:
        STEPS.end(result._host.get_name(), result._task._uuid)

    v2_runner_on_ok = v2_runner_on_failed = v2_runner_on_skipped = v2_runner_on_unreachable = _ended
