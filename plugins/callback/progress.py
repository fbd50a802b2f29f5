"""Callback progress: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
name: progress
type: notification
short_description: Say which host is at which step and since when, while a step takes long
description:
  - A line for each host whose step takes longer than C(npufleet_progress) seconds, again and again until it ends, also where the
    output is no terminal, such as in the log of a CI.
  - Steps that tell by themselves how far they are have no such line.
  - Enable it with C(callbacks_enabled = npufleet.triton.progress). The variable C(npufleet_progress) with the value 0 turns it off.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
"""

import threading
import time
from contextlib import suppress
from typing import Any, Dict, NamedTuple, Optional, Tuple

from ansible.plugins.callback import CallbackBase

VARIABLE = "npufleet_progress"
DEFAULT = 10.0
# They have lines of their own
TELLING = ("npufleet.triton.server_change", "npufleet.triton.model_blobs")


class Step(NamedTuple):
    """What a host is at, since when by the clock of the controller and by the one that only goes on."""

    name: str
    since: str
    began: float


class CallbackModule(CallbackBase):
    """Remembers what each host is at; a thread of its own tells what takes long."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "npufleet.triton.progress"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._steps: Dict[Tuple[str, str], Step] = {}
        self._play: Any = None
        self._every: Optional[float] = None
        self._over = threading.Event()
        self._thread: Optional[threading.Thread] = None

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """The variable may have another value for other hosts."""
        self._play, self._every = play, None

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        if self._every is None:
            self._every = self._seconds(host)
        if self._every > 0 and task.action not in TELLING:
            since = time.strftime("%H:%M:%S")
            self._steps[host.get_name(), task._uuid] = Step(task.get_name(), since, time.monotonic())
            if self._thread is None:
                self._thread = threading.Thread(target=self._tell, daemon=True)
                self._thread.start()

    def _seconds(self, host: Any) -> float:
        """The variable as inventory and command line have it. A template, which nobody evaluates here, counts as the default."""
        known = self._play.get_variable_manager().get_vars(play=self._play, host=host)
        with suppress(TypeError, ValueError):
            return float(known.get(VARIABLE, DEFAULT))
        return DEFAULT

    def _ended(self, result: Any, **_more: Any) -> None:
        self._steps.pop((result._host.get_name(), result._task._uuid), None)

    v2_runner_on_ok = v2_runner_on_failed = v2_runner_on_skipped = v2_runner_on_unreachable = _ended

    def v2_playbook_on_stats(self, stats: Any) -> None:
        self._over.set()

    def _tell(self) -> None:
        """The thread: a line for each host that has been at the same step all that time."""
        while not self._over.wait(self._every or DEFAULT):
            now, every = time.monotonic(), self._every or DEFAULT
            for (host, _task), step in sorted(self._steps.copy().items()):
                # Half a turn less, as no two clocks go alike
                if now - step.began >= every / 2:
                    self._display.display(f"{host}: {step.name}, since {step.since}")
