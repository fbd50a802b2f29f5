# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The ledger of the watchdog: a file with the past actions, which limit the next actions. The file outlives the process."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Dict, List, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.change import lease
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import clock
from ansible_collections.npufleet.triton.plugins.module_utils.watch import journal
from ansible_collections.npufleet.triton.plugins.module_utils.watch.settings import Watchdog as Settings

# The actions of the watchdog. The number of reloads and restarts is limited. END, the end of a stuck load, has no limit.
RELOAD, RESTART, END = "reload", "restart", "end"
HOUR = 3600.0
# The longest pause after an action, in seconds
MAX_PAUSE = 24 * HOUR
# If the pause is longer than this (in seconds), the past actions did not help, and an operator has to act.
OPERATOR_PAUSE = 600.0
# A model that fails within these seconds after its reload is not reloaded again: the reload did not help.
RELAPSE_SECONDS = 900.0
# Largest number of actions in the file
MAX_ACTIONS = 50


class Ledger:
    """The state and the past actions of the watchdog. status.yml and support bundles show its file."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.path = settings.root + "/watchdog.json"
        counts = {RELOAD: 0, RESTART: 0, "failed": 0}
        self.state: Dict[str, Any] = {"actions": [], "counts": counts, "restarting": None, "reloading": None, "streak": 0}
        with suppress(KeyError, TypeError, ValueError, AttributeError):
            before = shapes.read(self.path, {}).content
            actions = [_convert_uptime(action) for action in before["actions"]]
            counts = {name: int(count) for name, count in before["counts"].items()}
            self.state.update(actions=actions, counts=counts, streak=int(before["streak"]))
            self.state.update(restarting=before["restarting"], reloading=before["reloading"])
        self.state.update(format=1, running=None, paused=None, gave_up=None)

    def note(self, **changes: Any) -> None:
        """Change the state, and write the file if the state differs."""
        if any(self.state.get(key) != value for key, value in changes.items()):
            self.state.update(changes)
            self._write()

    def record(self, action: Dict[str, Any]) -> None:
        """Record an action: {"at" (seconds since 1970), "model", "rule", "action", "found" (fault), "did", "worked", "seconds"}."""
        counts = dict(self.state["counts"])
        counts[action["action"]] = counts.get(action["action"], 0) + 1
        counts["failed"] = counts.get("failed", 0) + (not action["worked"])
        streak = self.state["streak"] + (action["action"] != END)
        entries = [*self.state["actions"], {**action, **clock.mark()}]
        if len(entries) > MAX_ACTIONS:
            # The END actions are dropped first, because the limits depend on the other actions.
            entries.remove(next((entry for entry in entries if entry.get("action") == END), entries[0]))
        self.state.update(counts=counts, actions=entries, streak=streak)
        self._write()

    def recent(self) -> List[Dict[str, Any]]:
        """Return the reloads and restarts of the last hour."""
        return [action for action in self._limited_actions() if clock.uptime() - action["uptime"] < HOUR]

    def _limited_actions(self) -> List[Dict[str, Any]]:
        """Return the reloads and restarts. The end of a stuck load interrupts no served model, so it has no limit."""
        return [action for action in self.state["actions"] if action.get("action") != END]

    def wait_before_action(self) -> Tuple[float, Optional[str]]:
        """Return (seconds until the next action is allowed, reason why an operator has to act meanwhile or None)."""
        now, streak, limited = clock.uptime(), self.state["streak"], self._limited_actions()
        if not limited or not streak:
            return 0.0, None
        pause = min(self._settings.backoff * 2 ** (streak - 1), MAX_PAUSE)
        waits = [
            (limited[-1]["uptime"] + pause - now, f"{streak} actions in a row did not help" if pause > OPERATOR_PAUSE else None)
        ]
        recent = self.recent()
        if len(recent) >= self._settings.max_actions:
            allowed_at = recent[-self._settings.max_actions]["uptime"] + HOUR
            waits.append((allowed_at - now, f"{len(recent)} actions within an hour, which is the limit"))
        return max(waits, key=lambda wait: wait[0])

    def reset_pause(self) -> None:
        """Reset the pause to its first length if the last limited action is more than an hour old."""
        if self.state["streak"] and not self.recent():
            self.note(streak=0)

    def relapsed(self, model: str) -> bool:
        """Return True if this model was reloaded within the last RELAPSE_SECONDS seconds."""
        return any(
            action.get("action") == RELOAD and action.get("model") == model and clock.uptime() - action["uptime"] < RELAPSE_SECONDS
            for action in self.state["actions"]
        )

    def _write(self) -> None:
        try:
            lease.write(self.path, self.state)
        except OSError as error:
            why = f"{self.path} cannot be written ({error.strerror}), expected a file with the actions of the watchdog"
            journal.log(f"{why}. See `df {self.path}`", journal.WARNING)


def _convert_uptime(action: Dict[str, Any]) -> Dict[str, Any]:
    """Return a past action with its time as `uptime`: seconds since this boot, or a negative number if it was before this boot."""
    at = float(action["at"])
    return {**action, "at": at, **clock.mark(), "uptime": clock.uptime() - clock.age(action, at)}
