# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: progress
type: notification
short_description: Report hosts whose step takes long
description:
  - A step is a task on one host. If a step takes longer than C(npufleet_progress) seconds, the callback prints a line about the
    host, and repeats it in this interval until the step ends. The lines also appear without a terminal, such as in the log of
    a CI job.
  - The callback prints no lines about steps that report their progress themselves.
  - Enable the callback with C(callbacks_enabled = npufleet.triton.progress). If the variable C(npufleet_progress) is 0, the
    callback prints nothing.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
"""

import threading
import time
from contextlib import suppress
from typing import Any, Dict, NamedTuple, Optional, Tuple

from ansible.plugins.callback import CallbackBase

DEFAULT = 10.0
# Actions that report their progress themselves
REPORTING = ("npufleet.triton.server_change", "npufleet.triton.model_blobs")


class Step(NamedTuple):
    """A step of a host: its name, its start as HH:MM:SS, and its start by the monotonic clock in seconds."""

    name: str
    since: str
    began: float


class CallbackModule(CallbackBase):
    """A callback that keeps the current step of each host. A thread reports the long steps."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "npufleet.triton.progress"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._steps: Dict[Tuple[str, str], Step] = {}
        self._play: Any = None
        self._interval: Optional[float] = None
        self._over = threading.Event()
        self._thread: Optional[threading.Thread] = None

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Reset the interval, because the hosts of this play can have another interval."""
        self._play, self._interval = play, None

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        if self._interval is None:
            self._interval = self._seconds(host)
        if self._interval > 0 and task.action not in REPORTING:
            since = time.strftime("%H:%M:%S")
            self._steps[host.get_name(), task._uuid] = Step(task.get_name(), since, time.monotonic())
            if self._thread is None:
                self._thread = threading.Thread(target=self._report, daemon=True)
                self._thread.start()

    def _seconds(self, host: Any) -> float:
        """Return the interval from the inventory or the command line, or the default if the value is a template."""
        known = self._play.get_variable_manager().get_vars(play=self._play, host=host)
        with suppress(TypeError, ValueError):
            return float(known.get("npufleet_progress", DEFAULT))
        return DEFAULT

    def _ended(self, result: Any, **_more: Any) -> None:
        self._steps.pop((result._host.get_name(), result._task._uuid), None)

    v2_runner_on_ok = v2_runner_on_failed = v2_runner_on_skipped = v2_runner_on_unreachable = _ended

    def v2_playbook_on_stats(self, stats: Any) -> None:
        self._over.set()

    def _report(self) -> None:
        """Print a line for each host whose step takes long, until the run ends."""
        while not self._over.wait(self._interval or DEFAULT):
            now, interval = time.monotonic(), self._interval or DEFAULT
            for (host, _task), step in sorted(self._steps.copy().items()):
                # This loop runs once in each interval. With a full interval as the limit, a step that began just after a pass of
                # the loop would be reported after almost two intervals.
                if now - step.began >= interval / 2:
                    self._display.display(f"{host}: {step.name}, since {step.since}")
