# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The watchdog: detects failures that the health probes of a Triton server miss, and reloads a model or restarts the container.

It also ends a stuck load, in which the server and the process of a model (stub) wait for each other.
See docs/decisions/0016-a-watchdog-that-does-not-believe-probes.md.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sys
import time
from contextlib import suppress
from typing import Callable, Dict, List, Optional, Set, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.programs import library
from ansible_collections.npufleet.triton.plugins.module_utils.triton import stuck_load
from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import URL_UNSAFE
from ansible_collections.npufleet.triton.plugins.module_utils.watch import actions, journal
from ansible_collections.npufleet.triton.plugins.module_utils.watch.evidence import Failure
from ansible_collections.npufleet.triton.plugins.module_utils.watch.judge import STUCK, Evidence, Finding, Judge
from ansible_collections.npufleet.triton.plugins.module_utils.watch.ledger import END, RELOAD, RESTART, Ledger
from ansible_collections.npufleet.triton.plugins.module_utils.watch.settings import Watchdog as Settings
from ansible_collections.npufleet.triton.plugins.module_utils.watch.settings import load

EXPLICIT, POLL = "explicit", "poll"


class Watchdog:
    """The loop of the watchdog: observe the host, apply the rules, and perform the mildest action that can help."""

    def __init__(self, settings: Settings, host: actions.Host, ledger: Ledger, judge: Judge) -> None:
        self._settings, self._host, self._ledger, self._judge = settings, host, ledger, judge
        # The last logged message, without its digits
        self._last_message: Optional[str] = None
        self._nameless: Tuple[str, ...] = ()
        # Time of the last restart, or None if the server has answered since then
        self._restarted: Optional[float] = None
        # Models that have to be loaded again, because their stuck load was ended
        self._to_load_again: Set[str] = set()

    def round(self) -> None:
        """Observe the host once, and perform at most one action."""
        paused = self._host.paused()
        if paused == actions.DEPLOYMENT:
            paused = self._host.resume()
        self._ledger.note(paused=paused)
        if paused:
            self._judge.forget()
            # The operator or the run that works on this host starts the server again. So the watchdog need not finish its own
            # interrupted restart or reload.
            self._ledger.note(restarting=None, reloading=None)
            return
        try:
            self._finish()
            evidence = self._host.observe()
        except Failure as failure:
            self._log_once(f"the server is not watched: {failure}. {failure.next_step}", journal.WARNING)
            self._judge.forget()
            return
        self._report_nameless(evidence)
        findings = self._judge.judge(evidence)
        if not findings:
            self._note_healthy(evidence)
            self._load_again(evidence)
            return
        seconds, why = self._ledger.wait_before_action()
        if seconds > 0 and findings[0].rule != STUCK:
            if why:
                message = f"{findings[0]}. The watchdog did nothing: {why}. Look at the NPUs, then restart the container"
                self._log_once(message, journal.ERROR)
                self._ledger.note(gave_up=self._ledger.state["gave_up"] or message)
            return
        with self._host.block_deployments():
            if not self._host.paused():
                self._act(findings[0], evidence)

    def _report_nameless(self, evidence: Evidence) -> None:
        """Log once each model that is not watched, because HTTP requests cannot contain its name."""
        if evidence.models is None or evidence.nameless == self._nameless:
            return
        self._nameless = evidence.nameless
        for model in evidence.nameless:
            journal.log(f"model {model}: {URL_UNSAFE}. Its processes are not watched until it is renamed", journal.WARNING)

    def _note_healthy(self, evidence: Evidence) -> None:
        if evidence.metrics is None:
            return
        if self._restarted is not None:
            journal.log(f"the server answers again, {time.monotonic() - self._restarted:.0f} s after its start")
            self._restarted = None
        self._last_message = None
        self._ledger.note(gave_up=None)
        self._ledger.reset_pause()

    def _log_once(self, message: str, level: int) -> None:
        """Log a message. Do not log it if only its digits differ from the last message."""
        key = re.sub(r"\d+", "", message)
        if key != self._last_message:
            journal.log(message, level)
            self._last_message = key

    def _act(self, finding: Finding, evidence: Evidence) -> None:
        """Perform the mildest action that can help. If a reload fails, restart the container at once."""
        if finding.rule == STUCK:
            with suppress(Failure):
                self._perform(finding, END, lambda: self._host.end_stuck_loads(finding.waits))
                # The ended load fails and has to be repeated. A server that was still starting exits, and the engine restarts it.
                self._to_load_again.update(filter(None, map(_model_of, finding.waits)))
            self._judge.forget()
            return
        model = finding.model
        restart_reason = self._why_not_reload(finding, evidence)
        if model is not None and restart_reason is None:
            states = (evidence.models or {}).get(model) or {}
            if "READY" not in states.values():
                # Another client is loading or unloading the model.
                return
            try:
                self._ledger.note(reloading=model)
                self._perform(finding, RELOAD, lambda: self._host.reload(model))
                self._judge.forget(reloaded=model)
                return
            except Failure:
                pass
            finally:
                self._ledger.note(reloading=None)
        self._judge.forget()
        with suppress(Failure):
            self._perform(finding, RESTART, self._restart, restart_reason)

    def _load_again(self, evidence: Evidence) -> None:
        """Repeat the loads that failed because the watchdog ended their processes."""
        if evidence.models is None:
            return
        for model in sorted(self._to_load_again):
            states = set(evidence.models.get(model, {}).values())
            if states & {"LOADING", "UNLOADING"}:
                continue
            if not states or "READY" in states:
                self._to_load_again.discard(model)
                continue
            # In the mode `none`, only a restart of the server repeats the load.
            restarts = self._settings.mode not in (EXPLICIT, POLL)
            if restarts and self._ledger.wait_before_action()[0] > 0:
                # A restart interrupts the models that are served, so it waits for the end of the pause after the last action.
                return
            self._to_load_again.discard(model)
            repeats: Dict[str, Callable[[], str]] = {
                EXPLICIT: functools.partial(self._host.load, model),
                POLL: functools.partial(self._host.touch_model, model),
            }
            finding = Finding(STUCK, model, "not loaded, because its stuck load was ended", "a served model")
            with self._host.block_deployments(), suppress(Failure):
                if not self._host.paused():
                    self._perform(finding, RESTART if restarts else END, repeats.get(self._settings.mode, self._restart))
            self._judge.forget()
            if restarts:
                # The restart loads all models.
                return

    def _why_not_reload(self, finding: Finding, evidence: Evidence) -> Optional[str]:
        """Return the reason to restart the container without a reload, or None if a reload can help."""
        if finding.model is None:
            return "the whole server is silent"
        if self._settings.mode != EXPLICIT:
            return f"Triton loads no model on request in mode {self._settings.mode}"
        if evidence.models is None:
            return "the server does not return its models"
        if self._ledger.relapsed(finding.model):
            return "the model was reloaded a short while ago"
        if finding.rule == "stall" and self._host.version() <= actions.LAST_TO_RESTART_STUBS:
            return "this version of Triton cannot end a process that hangs"
        return None

    def _perform(self, finding: Finding, action: str, execute: Callable[[], str], restart_reason: Optional[str] = None) -> None:
        """Perform one action, log it in one line and record it. Raises Failure if the action failed."""
        began = time.monotonic()
        failed: Optional[Failure] = None
        try:
            description = execute()
        except Failure as failure:
            failed, description = failure, f"{action} failed: {failure}"
        seconds_taken = time.monotonic() - began
        if restart_reason and not failed:
            description += f" ({restart_reason})"
        journal.log(f"{finding}. Action: {description}, {seconds_taken:.1f} s", journal.ERROR if failed else journal.WARNING)
        self._ledger.record(
            {
                "at": round(time.time(), 1),
                "rule": finding.rule,
                "model": finding.model,
                "found": finding.actual,
                "action": action,
                "did": description,
                "worked": failed is None,
                "seconds": round(seconds_taken, 1),
            }
        )
        self._last_message = None
        if failed:
            raise failed
        if action == RESTART:
            self._restarted = time.monotonic()

    def _restart(self) -> str:
        """Stop the container, wait for the cards, and start it. Record the restart first, so that a later process can finish it."""
        facts = self._host.container()
        if not facts or not facts["State"].get("Running"):
            raise Failure("the container was stopped meanwhile, and stays stopped")
        foreign = self._host.foreign_contexts(int(facts["State"]["Pid"]))
        self._ledger.note(restarting=facts["Id"])
        self._host.stop(facts["Id"])
        free = self._host.wait_for_cards(foreign)
        self._host.start(facts["Id"])
        self._ledger.note(restarting=None)
        late_note = f" although the cards were not free within {self._settings.cards_timeout:.0f} s"
        return "restarted the container" + ("" if free else late_note)

    def _finish(self) -> None:
        """Finish a restart or reload that was interrupted, because an action failed or an earlier watchdog process ended."""
        identity, model = self._ledger.state["restarting"], self._ledger.state["reloading"]
        if not identity and not model:
            return
        with self._host.block_deployments():
            if self._host.paused():
                return
            facts = self._host.container()
            runs = bool(facts and facts["State"].get("Running"))
            if facts and facts["Id"] == identity and not runs:
                self._host.start(identity)
                journal.log("a restart of the container was not finished. Action: started it", journal.WARNING)
            self._ledger.note(restarting=None, reloading=None)
            if model and runs:
                self._host.load(model)
                journal.log(f"model {model}: a reload was not finished. Action: loaded it", journal.WARNING)


def _model_of(wait: stuck_load.Wait) -> Optional[str]:
    """Return the model in the path of a stub's code, or None if Triton has copied the code to another directory."""
    parts: List[str] = wait.code.split("/")
    return parts[-3] if len(parts) > 3 and parts[-2].isdigit() else None


def running(config: str) -> Dict[str, str]:
    """Return the digests of the running code and its configuration, {"program", "config"}, for the concern `watchdog`."""
    programs = shapes.read(library.programs_file(sys.path[0]), {"watchdog": str}).content or {}
    with open(config, "rb") as source:
        return {"program": programs.get("watchdog", ""), "config": hashlib.sha256(source.read()).hexdigest()}


def run(config: str) -> int:
    """Watch the server until a signal ends this process."""
    digests = running(config)
    settings = load(config, Settings)
    ledger = Ledger(settings)
    ledger.note(running=digests)
    watchdog = Watchdog(settings, actions.Host(settings), ledger, Judge(settings))
    journal.log(f"watches {settings.container} at {settings.address}, every {settings.interval:g} s")
    journal.notify("READY=1")
    while True:
        journal.notify("WATCHDOG=1")
        watchdog.round()
        time.sleep(settings.interval)
