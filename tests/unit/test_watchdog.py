"""The watchdog on the host: each rule on pages that real servers gave, and what is done about it, how often, and when not."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.change import lease
from ansible_collections.npufleet.triton.plugins.module_utils.change.docker import Docker
from ansible_collections.npufleet.triton.plugins.module_utils.driver import vendor_tool
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import clock
from ansible_collections.npufleet.triton.plugins.module_utils.programs import archive, library
from ansible_collections.npufleet.triton.plugins.module_utils.triton import control, http_api, stuck_load
from ansible_collections.npufleet.triton.plugins.module_utils.watch import actions, evidence, journal, settings
from ansible_collections.npufleet.triton.plugins.module_utils.watch import ledger as ledgers
from ansible_collections.npufleet.triton.plugins.module_utils.watch import watchdog as subject
from ansible_collections.npufleet.triton.plugins.module_utils.watch.judge import Evidence, Judge
from ansible_collections.npufleet.triton.plugins.plugin_utils import library as libraries
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import watchdog as desired_watchdog
from helpers import FIXTURES, URL_UNSAFE_NAMES, UTF8, fleet, http_server, unix_server, until

# What Triton 24.01 and 24.10 gave: `healthy`, a request answered by each of two models; `hung`, both instances of `hang` hang and
# one request waits; `reloaded`, `hang` was unloaded and loaded
PAGES = {path.stem: path.read_text() for path in sorted((FIXTURES / "metrics").glob("*.txt"))}
RELEASES = ("24.01", "24.10")
FAULT = 'rbln_device_fault{{model="hang",version="1",npu="{npu}",instance="hang_0_{npu}"}} {value}\n'
READY = {"hang": {"1": "READY"}, "ok": {"1": "READY"}}
CONFIG = {
    "container": "triton",
    "address": "127.0.0.1",
    "http_port": 1,
    "metrics_port": 1,
    "mode": "explicit",
    "root": "/nowhere",
    "interval": 5,
    "fault_timeout": 30,
    "stall_timeout": 60,
    "process_timeout": 10,
    "silence_timeout": 60,
    "start_timeout": 900,
    "max_actions": 4,
    "backoff": 30,
    "load_timeout": 5,
    "stop_timeout": 5,
    "cards_timeout": 0.6,
    "key": None,
    "grpc": False,
    "stuck_load_limit": 15,
}


def configured(**changes: Any) -> Any:
    return settings.Watchdog(**{**CONFIG, **changes})


def reading(at: float, page: str | None = "24.10_healthy", more: str = "", **changes: Any) -> Any:
    """A look at a container that has run for an hour."""
    metrics = None if page is None else evidence.parse_page(PAGES[page] + more)
    facts = {"container_run": "c1", "age": 3600.0 + at, "metrics": metrics, "models": READY, "dead": {}, **changes}
    return Evidence(at=float(at), **facts)


def found(judge: Any, *readings: Any) -> list[tuple[float, str, str | None]]:
    """(second, rule, model) of each look that found something."""
    return [(entry.at, finding.rule, finding.model) for entry in readings for finding in judge.judge(entry)]


@pytest.fixture
def judge() -> Any:
    return Judge(configured())


# Pages


def test_recorded_pages_are_read_whole() -> None:
    for name, text in PAGES.items():
        page = evidence.parse_page(text)
        assert sum(map(len, page.values())) == sum(not line.startswith("#") for line in text.splitlines() if line), name
    assert len(PAGES) == 6


@pytest.mark.parametrize(
    ("written", "name"), [("a\\\\nb", "a\\nb"), ("a\\nb", "a\nb"), ('a\\"b', 'a"b'), ("a\u2028\x85b", "a\u2028\x85b")]
)
def test_label_is_what_was_meant(written: str, name: str) -> None:
    assert evidence.parse_page(f'a{{model="{written}"}} 1\nb 2\n') == {"a": [({"model": name}, 1.0)], "b": [({}, 2.0)]}


def test_labels_with_marks_and_lines_that_are_none() -> None:
    page = evidence.parse_page('# HELP a\na{x="1,\\"2\\"",y="}"} 3\nb 1e3\nbroken{\nc{x="1"} word\n\n')
    assert page == {"a": [({"x": '1,"2"', "y": "}"}, 3.0)], "b": [({}, 1000.0)]}


# (a) an NPU that does not answer


def test_fault_that_lasts_is_found_once_its_limit_is_over(judge: Any) -> None:
    item = FAULT.format(npu=0, value=0) + FAULT.format(npu=1, value=1)
    looks = [reading(at, more=item) for at in range(0, 40, 5)]
    assert found(judge, *looks) == [(35.0, "fault", "hang")]
    (finding,) = judge.judge(reading(40, more=item))
    assert finding.actual == "NPU 1 of hang_0_1 without an answer for 40 s"


def test_fault_that_goes_and_comes_again_does_not_last(judge: Any) -> None:
    looks = [reading(at, more=FAULT.format(npu=0, value=at != 20)) for at in range(0, 50, 5)]
    assert found(judge, *looks) == []


def test_fault_of_a_model_that_was_unloaded_meanwhile_does_not_last(judge: Any) -> None:
    looks = [reading(0, more=FAULT.format(npu=0, value=1)), reading(5), reading(60, more=FAULT.format(npu=0, value=1))]
    assert found(judge, *looks) == []


def test_two_npus_of_one_model_are_one_finding(judge: Any) -> None:
    both = FAULT.format(npu=0, value=1) + FAULT.format(npu=1, value=1)
    judge.judge(reading(0, more=both))
    (finding,) = judge.judge(reading(31, more=both))
    assert finding.actual == "NPU 0 of hang_0_0, NPU 1 of hang_0_1 without an answer for 31 s"


# (b) requests wait and none is answered


@pytest.mark.parametrize("release", RELEASES)
def test_hung_model_is_found_after_its_limit_and_its_neighbour_is_not(judge: Any, release: str) -> None:
    looks = [reading(0, f"{release}_healthy"), *(reading(at, f"{release}_hung") for at in range(5, 75, 5))]
    assert found(judge, *looks) == [(70.0, "stall", "hang")]
    (finding,) = judge.judge(reading(75, f"{release}_hung"))
    assert finding.actual == "1 requests waiting and none answered for 70 s"


@pytest.mark.parametrize("release", RELEASES)
def test_waiting_requests_of_a_model_that_works_are_none(judge: Any, release: str) -> None:
    def busy(at: int) -> str:
        line = 'nv_inference_request_success{model="hang",version="1"} '
        assert line + "1\n" in PAGES[f"{release}_hung"]
        return PAGES[f"{release}_hung"].replace(line + "1\n", f"{line}{1 + at // 50}\n")

    looks = [reading(at, metrics=evidence.parse_page(busy(at))) for at in range(0, 300, 5)]
    assert found(judge, *looks) == []


@pytest.mark.parametrize(("reason", "stalls"), [("REJECTED", True), ("CANCELED", True), ("BACKEND", False), ("OTHER", False)])
def test_failures_that_never_reached_the_model_are_no_sign_of_life(judge: Any, reason: str, stalls: bool) -> None:
    line = f'nv_inference_request_failure{{model="hang",reason="{reason}",version="1"}} '
    text = PAGES["24.10_hung"]
    assert line + "0\n" in text
    looks = [reading(at, metrics=evidence.parse_page(text.replace(line + "0\n", f"{line}{at}\n"))) for at in range(0, 100, 5)]
    assert bool(found(judge, *looks)) is stalls


@pytest.mark.parametrize("release", RELEASES)
def test_requests_that_a_reload_left_behind_are_not_found_again(judge: Any, release: str) -> None:
    for at in range(0, 80, 5):
        judge.judge(reading(at, f"{release}_hung"))
    judge.forget(reloaded="hang")
    # 24.01 keeps the lost request in its gauge
    looks = [reading(at, f"{release}_hung") for at in range(100, 1000, 5)]
    assert found(judge, *looks) == []
    # One more that waits is
    more = PAGES[f"{release}_hung"].replace(
        'pending_request_count{model="hang",version="1"} 1', 'pending_request_count{model="hang",version="1"} 2'
    )
    looks = [reading(at, metrics=evidence.parse_page(more)) for at in range(1000, 1080, 5)]
    assert found(judge, *looks)[0] == (1065.0, "stall", "hang")


def test_what_is_lost_is_not_known_before_the_look_after_a_pause(judge: Any) -> None:
    judge.judge(reading(0, "24.10_hung"))
    judge.forget(reloaded="hang")
    judge.forget()
    looks = [reading(at, "24.10_hung") for at in range(100, 300, 5)]
    assert found(judge, *looks) == []


def test_ensemble_is_not_judged_by_what_waits_in_it(judge: Any) -> None:
    looks = [reading(at, "24.10_hung", ensembles=("hang",)) for at in range(0, 200, 5)]
    assert found(judge, *looks) == []


# (c) an instance without a process


def test_dead_stub_is_found_although_the_page_is_healthy(judge: Any) -> None:
    looks = [reading(at, dead={"ok": ["ok_0_1"]} if at else {}) for at in range(0, 20, 5)]
    assert found(judge, *looks) == []
    (finding,) = judge.judge(reading(20, dead={"ok": ["ok_0_1"]}))
    assert (finding.rule, finding.model, finding.actual) == ("stub", "ok", "no process of ok_0_1 for 15 s")


def test_stub_that_the_server_itself_started_again_is_none(judge: Any) -> None:
    looks = [reading(at, dead={"ok": ["ok_0_1"]} if at != 10 else {}) for at in range(0, 25, 5)]
    assert found(judge, *looks) == []


# (d) a server that is silent


def test_server_that_answered_and_is_silent_is_found(judge: Any) -> None:
    looks = [reading(0), *(reading(at, None, age=10.0) for at in range(5, 75, 5))]
    assert found(judge, *looks) == [(70.0, "silent", None)]


def test_server_that_still_loads_has_its_grace(judge: Any) -> None:
    looks = [reading(at, None, age=float(at)) for at in range(0, 1000, 50)]
    assert found(judge, *looks) == [(950.0, "silent", None)]


def test_silence_of_a_restarted_container_begins_anew(judge: Any) -> None:
    looks = [
        reading(0),
        reading(5, None),
        reading(70, None, container_run="c2", age=1.0),
        reading(130, None, container_run="c2", age=61.0),
    ]
    assert found(judge, *looks) == []


def test_container_that_does_not_run_is_nobodys_business(judge: Any) -> None:
    looks = [reading(0), *(reading(at, None, container_run=None) for at in range(5, 2000, 100))]
    assert found(judge, *looks) == []


# What is done about it


class Clock:
    """Every clock, moved by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_800_000_000.0
        monkeypatch.setattr(time, "time", lambda: self.now)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(clock, "uptime", lambda: self.now)


class Played(actions.Host):  # type: ignore[name-defined,misc]
    """A host whose server is what a test says. Keeps what was done to it."""

    def __init__(self, config: Any, clock: Clock, tmp_path: Path) -> None:
        super().__init__(config)
        self.clock, self.lock = clock, tmp_path / "lock"
        self.done: list[str] = []
        self.sick: dict[str, Any] = {"dead": {"ok": ["ok_0_0"]}}
        self.why_paused: list[str | None] = [None]
        # What it says of a change that is under way, look by look; for ever where there is nothing
        self.resumed: list[str | None] = []
        self.triton = (2, 51)
        self.fails: dict[str, str] = {}
        self.running = True
        self.lives = 1
        self.after: Any = None

    def observe(self) -> Any:
        if not self.running:
            return Evidence(self.clock.now, None, 0.0, None, None, {})
        return reading(self.clock.now, **{"container_run": f"c{self.lives}", **self.sick})

    def container(self) -> Any:
        return {"Id": "c", "State": {"Running": self.running, "Pid": 1}}

    def paused(self) -> str | None:
        return self.why_paused[0] if len(self.why_paused) == 1 else self.why_paused.pop(0)

    def resume(self) -> str | None:
        why = self.resumed.pop(0) if self.resumed else self.why_paused[0]
        self.why_paused = [why]
        return why

    def version(self) -> tuple[int, ...]:
        return self.triton

    def _do(self, what: str) -> None:
        self.done.append(what)
        if what.split()[0] in self.fails:
            raise evidence.Failure(self.fails[what.split()[0]])
        if self.after:
            self.after(what)

    def reload(self, model: str) -> str:
        self._do(f"reload {model}")
        return "unloaded it and loaded it"

    def load(self, model: str) -> str:
        self._do(f"load {model}")
        return "loaded it again"

    def end_stuck_loads(self, waits: Any) -> str:
        self._do("end " + " ".join(wait.instance for wait in waits))
        return "ended process 7 of ok_0"

    def touch_model(self, model: str) -> str:
        self._do(f"renew {model}")
        return "gave its files a newer time stamp"

    def stop(self, identity: str) -> None:
        self._do("stop")
        self.running = False

    def foreign_contexts(self, init: int) -> Any:
        return []

    def wait_for_cards(self, foreign: Any) -> bool:
        self._do("wait_for_cards")
        return True

    def start(self, identity: str) -> None:
        self._do("start")
        self.running = True
        self.lives += 1


class Scene:
    """A watchdog on a played host, looked after every five seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **changes: Any) -> None:
        monkeypatch.setattr(lease, "WATCHDOG", str(tmp_path / "lock"))
        self.config = configured(root=str(tmp_path), **changes)
        self.clock = Clock(monkeypatch)
        self.host = Played(self.config, self.clock, tmp_path)
        self.start()

    def start(self) -> None:
        """A new process."""
        self.ledger = ledgers.Ledger(self.config)
        self.watchdog = subject.Watchdog(self.config, self.host, self.ledger, Judge(self.config))

    def run(self, seconds: float) -> list[str]:
        """What was done in this time."""
        before, end = len(self.host.done), self.clock.now + seconds
        while self.clock.now < end:
            self.watchdog.round()
            self.clock.now += 5
        return self.host.done[before:]

    def state(self) -> Any:
        return json.loads(Path(self.ledger.path).read_text())


RESTART = ["stop", "wait_for_cards", "start"]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Scene:
    return Scene(monkeypatch, tmp_path)


def heal(scene: Scene, by: str) -> None:
    """The server is well after this was done."""

    def healed(what: str) -> None:
        if what.startswith(by):
            scene.host.sick = {}

    scene.host.after = healed


def test_reload_comes_first_is_said_in_one_line_and_counted(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    heal(scene, "reload")
    assert scene.run(600) == ["reload ok"]
    assert capsys.readouterr().out.splitlines() == [
        "<4>model ok: no process of ok_0_0 for 15 s, expected a process of every instance. Action: unloaded it and loaded it, 0.0 s"
    ]
    state = scene.state()
    assert state["counts"] == {"reload": 1, "restart": 0, "failed": 0}
    (action,) = state["actions"]
    assert (action["rule"], action["model"], action["worked"]) == ("stub", "ok", True)


def test_reload_that_does_not_help_is_followed_by_a_restart_after_the_backoff(scene: Scene) -> None:
    began = scene.clock.now
    heal(scene, "start")
    assert scene.run(600) == ["reload ok", *RESTART]
    first, second = scene.state()["actions"]
    assert 30 <= second["at"] - first["at"] < 40
    assert first["at"] - began == 15


def test_reload_that_cannot_be_done_is_followed_by_a_restart_at_once(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.host.fails = {"reload": "Triton would not load it (status 400: no memory)"}
    heal(scene, "start")
    assert scene.run(600) == ["reload ok", *RESTART]
    lines = capsys.readouterr().out.splitlines()
    assert "Action: reload failed: Triton would not load it (status 400: no memory)" in lines[0]
    assert "Action: restarted the container" in lines[1]
    assert lines[2:] == ["<6>the server answers again, 5 s after its start"]
    assert scene.state()["counts"] == {"reload": 1, "restart": 1, "failed": 1}


@pytest.mark.parametrize(
    ("changes", "sick", "triton", "because"),
    [
        ({"mode": "poll"}, {"dead": {"ok": ["ok_0_0"]}}, (2, 51), "Triton loads no model on request in mode poll"),
        ({}, {"dead": {"ok": ["ok_0_0"]}, "models": None}, (2, 51), "the server does not return its models"),
        ({}, {"page": None}, (2, 51), "the whole server is silent"),
        ({}, {"page": "24.01_hung"}, (2, 42), "this version of Triton cannot end a process that hangs"),
    ],
)
def test_restart_without_a_reload(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changes: Any, sick: Any, triton: Any, because: str
) -> None:
    scene = Scene(monkeypatch, tmp_path, **changes)
    scene.host.sick, scene.host.triton = sick, triton
    heal(scene, "start")
    assert scene.run(600) == RESTART
    assert scene.state()["actions"][0]["did"] == f"restarted the container ({because})"


def test_hung_model_of_a_newer_triton_is_reloaded(scene: Scene) -> None:
    scene.host.sick = {"page": "24.10_hung"}
    heal(scene, "reload")
    assert scene.run(600) == ["reload hang"]


@pytest.mark.parametrize("state", ["LOADING", "UNLOADING", "UNAVAILABLE"])
def test_model_that_somebody_loads_is_left_alone(scene: Scene, state: str) -> None:
    scene.host.sick["models"] = {"ok": {"1": state}}
    assert scene.run(600) == []


# Bounds


def test_actions_are_bounded_with_growing_pauses_and_then_left_to_hands(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    assert scene.run(3000) == ["reload ok", *RESTART, *RESTART, *RESTART]
    times = [action["at"] for action in scene.state()["actions"]]
    pauses = [later - earlier for earlier, later in zip(times, times[1:])]
    assert all(pause >= wanted for pause, wanted in zip(pauses, (30, 60, 120))), pauses
    words = "did nothing: 4 actions within an hour, which is the limit. Look at the NPUs, then restart the container"
    assert len([line for line in capsys.readouterr().out.splitlines() if words in line]) == 1
    assert words in scene.state()["gave_up"]
    scene.run(10000)
    times = [action["at"] for action in scene.state()["actions"]]
    assert len(times) > 7
    assert all(later - earlier >= 3600 for earlier, later in zip(times, times[4:]))
    assert all(later - earlier >= 30 * 2**number for number, (earlier, later) in enumerate(zip(times, times[1:])))
    assert "8 actions in a row did not help" in capsys.readouterr().out
    scene.host.sick = {}
    scene.run(10)
    assert scene.state()["gave_up"] is None


def test_pauses_are_short_again_after_an_hour_that_was_well(scene: Scene) -> None:
    scene.run(200)
    assert scene.state()["streak"] == 3
    scene.host.sick = {}
    scene.run(3500)
    assert scene.state()["streak"] == 3
    scene.run(200)
    assert scene.state()["streak"] == 0
    scene.host.sick = {"dead": {"ok": ["ok_0_0"]}}
    assert scene.run(20) == ["reload ok"]


def test_bounds_outlive_the_process(scene: Scene) -> None:
    scene.run(1000)
    before = len(scene.host.done)
    scene.start()
    scene.run(600)
    assert len(scene.host.done) == before


@pytest.mark.parametrize("content", ["", "{", "[]", '{"actions": 1}', "null", '{"actions": [{}], "counts": {}, "streak": 1}'])
def test_state_that_cannot_be_read_is_made_anew(scene: Scene, content: str) -> None:
    Path(scene.ledger.path).write_text(content)
    scene.start()
    heal(scene, "reload")
    assert scene.run(60) == ["reload ok"]
    assert len(scene.state()["actions"]) == 1


def test_state_that_cannot_be_written_keeps_it_from_nothing(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    Path(scene.config.root, "file").touch()
    scene.ledger.path = f"{scene.config.root}/file/watchdog.json"
    heal(scene, "reload")
    assert scene.run(60) == ["reload ok"]
    assert "/file/watchdog.json cannot be written" in capsys.readouterr().out


# When it does nothing


@pytest.mark.parametrize("why", ["maintenance", "deployment"])
def test_nothing_is_done_while_somebody_works_there_and_time_begins_anew_after_that(scene: Scene, why: str) -> None:
    scene.run(10)
    scene.host.why_paused = [why]
    assert scene.run(4000) == []
    assert scene.state()["paused"] == why
    scene.host.why_paused = [None]
    assert scene.run(10) == []
    assert scene.run(10) == ["reload ok"]
    assert scene.state()["paused"] is None


def test_mark_that_appears_between_look_and_action_is_heeded(scene: Scene) -> None:
    scene.run(15)
    scene.host.why_paused = [None, "deployment"]
    assert scene.run(5) == []


def test_container_that_was_stopped_is_left_stopped(scene: Scene) -> None:
    scene.run(10)
    scene.host.running = False
    assert scene.run(4000) == []


def test_container_that_is_stopped_between_look_and_restart_stays_stopped(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    def stopped(_model: str) -> str:
        scene.host.running = False
        raise evidence.Failure("it is gone")

    scene.host.reload = stopped  # type: ignore[method-assign]
    assert scene.run(600) == []
    assert "the container was stopped meanwhile, and stays stopped" in capsys.readouterr().out


def test_restart_that_was_not_finished_is_finished_by_the_next_process(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.host.sick = {"page": None}
    scene.host.fails = {"start": "the engine could not start the container: busy"}
    scene.run(900)
    assert scene.state()["restarting"] == "c"
    assert not scene.host.running
    scene.host.fails, scene.host.sick = {}, {}
    scene.start()
    assert scene.run(5) == ["start"]
    assert scene.host.running
    assert scene.state()["restarting"] is None
    assert "a restart of the container was not finished. Action: started it" in capsys.readouterr().out


def test_reload_that_was_not_finished_is_finished_by_the_next_process(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    def killed(what: str) -> None:
        raise KeyboardInterrupt

    scene.host.after = killed
    # What a process leaves behind that is ended in the midst of it
    noted = scene.ledger.note
    scene.ledger.note = lambda **changes: None if changes == {"reloading": None} else noted(**changes)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        scene.run(60)
    assert scene.state()["reloading"] == "ok"
    scene.host.after, scene.host.sick = None, {}
    scene.start()
    assert scene.run(60) == ["load ok"]
    assert scene.state()["reloading"] is None
    assert "model ok: a reload was not finished. Action: loaded it" in capsys.readouterr().out


def test_restart_that_was_not_finished_is_left_to_a_person_who_took_the_host_out(scene: Scene) -> None:
    scene.ledger.note(restarting="c")
    scene.host.running = False
    scene.host.why_paused = ["maintenance"]
    assert scene.run(10) == []
    scene.host.why_paused = [None]
    assert scene.run(100) == []
    assert not scene.host.running


def test_engine_that_does_not_answer_is_said_once(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    def silent() -> Any:
        raise evidence.Failure(f"the engine answers 0: timeout {scene.clock.now}")

    scene.host.observe = silent  # type: ignore[method-assign]
    assert scene.run(600) == []
    assert len(capsys.readouterr().out.splitlines()) == 1


# The host


# Loads that are stuck

STUCK = stuck_load.Wait(stuck_load.Process(7, 1), stuck_load.Process(5, 1), 6, "ok_0", "/var/lib/npufleet/served/ok/1/model.py")


def stuck(scene: Scene, *waits: Any, **more: Any) -> None:
    """From now on these loads are stuck at each look."""

    def read() -> Any:
        found = reading(scene.clock.now, **{"container_run": f"c{scene.host.lives}", **scene.host.sick})
        now = tuple(wait for wait in waits if scene.host.sick.get("loads"))
        sample = stuck_load.Sample(scene.clock.now, dict.fromkeys(now, 3))
        return found._replace(loads=sample)

    scene.host.observe = read
    scene.host.sick = {"page": None, "age": 10.0, "loads": True, **more}


def test_a_start_that_is_stuck_is_ended_long_before_its_limit(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    stuck(scene, STUCK)

    def started_again(what: str) -> None:
        if what.startswith("end"):
            scene.host.lives += 1
            scene.host.sick = {"loads": False}

    scene.host.after = started_again
    assert scene.run(15) == []
    assert scene.run(600) == ["end ok_0"]
    assert capsys.readouterr().out.splitlines() == [
        "<4>process 7 of ok_0 and the server waiting for each other for 15 s, expected a load that makes progress. "
        "Action: ended process 7 of ok_0, 0.0 s"
    ]
    state = scene.state()
    assert (state["counts"]["end"], state["streak"], state["gave_up"]) == (1, 0, None)


def test_a_start_that_takes_long_and_is_not_stuck_has_its_limit(scene: Scene) -> None:
    stuck(scene)
    assert scene.run(900) == []


def test_a_wait_that_ends_in_time_is_nobodys_business(scene: Scene) -> None:
    stuck(scene, STUCK)
    for _time in range(10):
        scene.host.sick["loads"] = True
        assert scene.run(15) == []
        scene.host.sick["loads"] = False
        assert scene.run(5) == []


def test_loads_that_are_stuck_have_no_limit_and_use_up_none(scene: Scene) -> None:
    stuck(scene, STUCK)
    assert scene.run(3600) == ["end ok_0"] * (3600 // 20)
    scene.host.sick = {"dead": {"ok": ["ok_0_0"]}, "loads": False}
    heal(scene, "reload")
    assert scene.run(60) == ["reload ok"]
    # However many there are, what has a limit is remembered
    stuck(scene, STUCK)
    assert len(scene.run(3000)) > ledgers.MAX_ACTIONS
    assert [action["action"] for action in scene.ledger.recent()] == ["reload"]


@pytest.mark.parametrize(
    ("mode", "repeats"),
    [("explicit", ["load ok"]), ("poll", ["renew ok"]), ("none", RESTART)],
)
def test_a_load_of_a_server_that_goes_on_is_repeated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: str, repeats: list[str]
) -> None:
    scene = Scene(monkeypatch, tmp_path, mode=mode)
    models = {**READY, "ok": {"1": "LOADING"}}
    stuck(scene, STUCK, page="24.10_healthy", models=models)
    looks = ["LOADING", "LOADING", "UNAVAILABLE"]

    def ended(what: str) -> None:
        if what.startswith("end"):
            scene.host.sick["loads"] = False
        elif looks == []:
            models["ok"] = {"1": "READY"}

    scene.host.after = ended
    assert scene.run(20) == ["end ok_0"]
    while looks:
        models["ok"] = {"1": looks.pop(0)}
        did = scene.run(5)
    assert did == repeats
    assert scene.run(600) == []


def test_a_restart_repeats_all_loads_and_has_the_limits_of_restarts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scene = Scene(monkeypatch, tmp_path, mode="none")
    second = STUCK._replace(instance="second_0", code="/var/lib/npufleet/served/second/1/model.py")
    failed = {"ok": {"1": "UNAVAILABLE"}, "second": {"1": "UNAVAILABLE"}}
    stuck(scene, STUCK, second, page="24.10_healthy", models=failed)
    # The loads are stuck after each start, and fail as soon as they are ended
    scene.host.after = lambda what: scene.host.sick.update(loads=not what.startswith("end"))
    did = scene.run(3600)
    assert did[:5] == ["end ok_0 second_0", *RESTART, "end ok_0 second_0"]
    # As of any other restart, which interrupts the models that are served
    assert did.count("stop") == scene.config.max_actions


def test_a_load_that_somebody_has_repeated_is_not_repeated(scene: Scene) -> None:
    stuck(scene, STUCK, page="24.10_healthy")
    scene.host.after = lambda what: scene.host.sick.update(loads=False)
    assert scene.run(600) == ["end ok_0"]


def test_a_stuck_load_is_left_to_whoever_works_there(scene: Scene) -> None:
    stuck(scene, STUCK)
    scene.host.why_paused = ["maintenance"]
    assert scene.run(600) == []
    scene.host.why_paused = [None]
    assert scene.run(15) == []
    scene.host.why_paused = [None, "deployment"]
    assert scene.run(5) == []


def test_a_load_of_the_watchdogs_own_that_is_stuck_is_repeated(
    monkeypatch: pytest.MonkeyPatch, engine: Any, triton: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    host = host_of(triton)
    asked: list[str] = []

    class Guard(stuck_load.Guard):  # type: ignore[name-defined,misc]
        def __enter__(self) -> Any:
            assert self._root() == os.getpid()
            guards.append(self)
            return self

    def control(_model: str, verb: str, _timeout: float) -> None:
        asked.append(verb)
        if len(asked) == 1:
            guards[-1].ended_loads.append(STUCK)
            raise evidence.Failure("Triton would not load it")

    guards: list[Any] = []
    monkeypatch.setattr(stuck_load, "Guard", Guard)
    monkeypatch.setattr(host, "control", control)
    host.load("ok")
    assert asked == ["load", "load"]
    monkeypatch.setattr(host, "control", lambda *_given: (_ for _ in ()).throw(evidence.Failure("refused")))
    with pytest.raises(evidence.Failure, match="refused"):
        host.load("ok")


def test_model_of_a_stub_is_where_its_code_lies() -> None:
    assert subject._model_of(STUCK) == "ok"
    assert subject._model_of(STUCK._replace(code="/opt/tritonserver/backends/rbln/model.py")) is None
    assert subject._model_of(STUCK._replace(code="model.py")) is None


def test_files_of_a_model_get_a_newer_time_stamp(tmp_path: Path) -> None:
    places = [tmp_path / "releases/ok/1-a", tmp_path / "releases/ok/1-a/1"]
    places[1].mkdir(parents=True)
    (tmp_path / "served").mkdir()
    (tmp_path / "served/ok").symlink_to(places[0])
    for place in reversed(places):
        os.utime(place, (1, 1))
    host = actions.Host(configured(root=str(tmp_path)))
    assert host.touch_model("ok") == "gave its files a newer time stamp"
    assert all(place.stat().st_mtime > 1 for place in places)
    with pytest.raises(evidence.Failure, match="could not be changed"):
        host.touch_model("other")


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(lease, "WATCHDOG", str(tmp_path / "lock"))
    return tmp_path


def test_marks(marks: Path) -> None:
    host = actions.Host(configured(root=str(marks)))
    assert host.paused() is None
    (marks / "lease.json").touch()
    assert host.paused() == "deployment"
    (marks / "maintenance.json").touch()
    assert host.paused() == "maintenance"


def test_a_lease_is_not_taken_before_an_action_has_ended(marks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the very call of a run."""
    monkeypatch.setattr(lease, "WATCHDOG", str(marks / "lock"))
    host = actions.Host(configured(root=str(marks)))
    with host.block_deployments():
        run = threading.Thread(target=lease.acquire, args=(str(marks), lease.Holder("a", "a"), 60.0, {}))
        run.start()
        assert host.paused() is None
        assert run.is_alive()
    run.join(60)
    assert host.paused() == "deployment"


PROGRAM_OF_A_CHANGE = "import sys\nprint('<4>' + ' '.join(sys.argv[1:]))\nsys.exit({code})\n"


@pytest.mark.parametrize(("code", "why"), [(0, None), (1, None), (75, "deployment")])
def test_a_change_whose_run_is_gone_is_put_back(
    marks: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int, why: str | None
) -> None:
    (marks / "change").write_text(PROGRAM_OF_A_CHANGE.format(code=code))
    monkeypatch.setattr(library, "path", lambda: str(marks / "change"))
    host = actions.Host(configured(root=str(marks)))
    assert host.resume() == why
    assert capsys.readouterr().out == f"<4>resume {marks}\n"


def test_a_run_that_is_at_work_is_not_looked_for_all_the_time(
    marks: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (marks / "change").write_text(PROGRAM_OF_A_CHANGE.format(code=75))
    monkeypatch.setattr(library, "path", lambda: str(marks / "change"))
    host = actions.Host(configured(root=str(marks)))
    assert [host.resume() for _again in range(3)] == ["deployment"] * 3
    assert capsys.readouterr().out == f"<4>resume {marks}\n"
    (marks / "change").write_text(PROGRAM_OF_A_CHANGE.format(code=0))
    later = time.monotonic() + actions.RESUME_INTERVAL
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert host.resume() is None
    assert capsys.readouterr().out == f"<4>resume {marks}\n"


@pytest.mark.parametrize(
    ("changes", "exchanging", "looked"),
    [
        ({}, False, False),
        ({}, True, True),
        ({"uptime": -5.0}, False, True),
        ({"uptime": 70.0}, False, True),
        ({"boot": "another"}, False, True),
    ],
)
def test_a_run_that_has_just_shown_itself_is_not_looked_for(
    marks: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    exchanging: bool,
    looked: bool,
) -> None:
    """The time of day says nothing: this one is an hour behind."""
    (marks / "change").write_text(PROGRAM_OF_A_CHANGE.format(code=75))
    monkeypatch.setattr(library, "path", lambda: str(marks / "change"))
    lease.acquire(str(marks), lease.Holder("a", "a"), 60.0, {})
    taken = lease.read(str(marks))
    if "uptime" in changes:
        changes = {"uptime": taken["uptime"] - changes["uptime"]}
    (marks / "lease.json").write_text(json.dumps({**taken, **changes}))
    if exchanging:
        (marks / "replacement.json").touch()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    assert actions.Host(configured(root=str(marks))).resume() == "deployment"
    assert bool(capsys.readouterr().out) == looked


@pytest.mark.parametrize("umask", [0, 0o022, 0o777])
@pytest.mark.parametrize("before", [None, 0o644])
def test_nobody_else_can_open_the_lock(marks: Path, umask: int, before: int | None) -> None:
    if before is not None:
        (marks / "lock").touch()
        (marks / "lock").chmod(before)
    old = os.umask(umask)
    try:
        with actions.Host(configured(root=str(marks))).block_deployments():
            assert (marks / "lock").stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(old)


def test_the_age_of_a_server_is_not_that_of_a_clock_that_steps(engine: Any, triton: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 86400)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        engine.answers.update(inspected(Pid=process.pid))
        assert 0 <= host_of(triton).observe().age < 600
        process.communicate(b"\n")
    assert host_of(triton).observe().age == 0.0


@pytest.mark.parametrize("step", [-86400.0, 86400.0])
def test_a_step_of_the_clock_neither_shortens_nor_stretches_a_pause(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    assert scene.run(16) == ["reload ok"]
    monkeypatch.setattr(time, "time", lambda: scene.clock.now + step)
    # Another process, too
    scene.start()
    assert scene.run(25) == []
    assert scene.run(20) == RESTART


@pytest.mark.parametrize(("at", "boot", "waits"), [(-7000.0, "another", 0.0), (86400.0, "another", 0.0), (-10.0, None, 20.0)])
def test_actions_of_before_are_dated_anew(scene: Scene, at: float, boot: str | None, waits: float) -> None:
    """Of an earlier boot they are at least as old as this one, whatever the clock said. A version before had the time of day."""
    now = scene.clock.now
    action = {"at": now + at, "action": "reload", "model": "ok", "worked": True, **({"boot": boot, "uptime": 1.0} if boot else {})}
    counts = {"reload": 1, "restart": 0, "failed": 0}
    state = {"actions": [action], "counts": counts, "streak": 1, "restarting": None, "reloading": None}
    Path(scene.ledger.path).write_text(json.dumps(state))
    scene.start()
    assert max(scene.ledger.wait_before_action()[0], 0.0) == waits


def test_the_watchdog_goes_on_once_the_host_has_put_back(scene: Scene) -> None:
    scene.host.why_paused = ["deployment"]
    scene.host.resumed = ["deployment", "deployment", None]
    heal(scene, "reload")
    assert scene.run(60) == ["reload ok"]
    assert scene.host.resumed == []


def inspected(**state: Any) -> dict[str, tuple[int, Any]]:
    facts = {"Status": "running", "Running": True, "Pid": os.getpid(), "StartedAt": "2026-01-31T12:00:00.123456789Z", **state}
    return {"GET /containers/triton/json": (200, {"Id": "c0", "State": facts})}


def engine_at(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(evidence, "Docker", functools.partial(Docker, path))
    monkeypatch.setattr(control, "Engine", lambda timeout: Engine(path, timeout))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    engine_at(monkeypatch, str(tmp_path / "engine.sock"))
    with unix_server(tmp_path / "engine.sock", inspected()) as kept:
        yield kept


def of_two(backend: str = "python", **more: Any) -> dict[str, Any]:
    group = {"name": "ok_0", "kind": "KIND_CPU", "count": 2}
    return {"backend": backend, "platform": "", "instance_group": [group], **more}


TRITON: dict[str, tuple[int, Any]] = {
    "GET /metrics": (200, PAGES["24.10_healthy"].encode()),
    "GET /v2": (200, {"version": "2.51.0"}),
    "POST /v2/repository/index": (200, [{"name": "ok", "version": "1", "state": "READY"}]),
    "GET /v2/models/ok/versions/1/config": (200, of_two()),
    "GET /v2/models/ok/config": (200, of_two()),
    "POST /v2/repository/models/ok/unload": (200, None),
    "POST /v2/repository/models/ok/load": (200, None),
}


@pytest.fixture
def triton() -> Iterator[Any]:
    with http_server(dict(TRITON)) as kept:
        yield kept


def host_of(triton: Any, **changes: Any) -> Any:
    return actions.Host(configured(http_port=triton.port, metrics_port=triton.port, **changes))


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[Any]:
    """Starts processes that have a stub's name and its arguments, as Triton 24.01 and 24.10 give them."""
    started: list[subprocess.Popen[bytes]] = []
    # The kernel takes the name of what is executed, not of what the link leads to.
    link = tmp_path / "triton_python_b"
    link.symlink_to(sys.executable)

    def start(instance: str, code: str = "served/ok/1/model.py") -> subprocess.Popen[bytes]:
        file = tmp_path / code
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("import signal; signal.pause()\n")
        words = [link, file, "triton_python_backend_shm_region_2", "1048576", "1048576", "1", "/opt", "336", instance, "DEFAULT"]
        process = subprocess.Popen(words)
        started.append(process)
        # The kernel lets us go on before it has given the process its name and arguments
        until(lambda: Path(f"/proc/{process.pid}/cmdline").read_bytes().endswith(b"DEFAULT\0"))
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_look_at_a_server_that_is_well(engine: Any, triton: Any, stub: Any) -> None:
    stub("ok_0_0"), stub("ok_0_1")
    look = host_of(triton).observe()
    assert look.container_run == "c02026-01-31T12:00:00.123456789Z"
    assert look.metrics == evidence.parse_page(PAGES["24.10_healthy"])
    assert look.models == {"ok": {"1": "READY"}}
    assert (look.dead, look.ensembles) == ({}, ())


def test_killed_stub_is_dead_also_while_nobody_waited_for_it(engine: Any, triton: Any, stub: Any) -> None:
    stub("ok_0_0")
    item = stub("ok_0_1")
    item.kill()
    os.waitid(os.P_PID, item.pid, os.WEXITED | os.WNOWAIT)
    assert host_of(triton).observe().dead == {"ok": ["ok_0_1"]}


def test_two_versions_have_instances_of_the_same_name(engine: Any, triton: Any, stub: Any) -> None:
    both = [{"name": "ok", "version": version, "state": "READY"} for version in "12"]
    triton.answers.update({"POST /v2/repository/index": (200, both), "GET /v2/models/ok/versions/2/config": (200, of_two())})
    stub("ok_0_0"), stub("ok_0_1"), stub("ok_0_0", "served/ok/2/model.py")
    assert host_of(triton).observe().dead == {"ok": ["ok_0_1"]}


def serve(triton: Any, *models: str, file: str = "model.py") -> None:
    """Every model has a group of the same name, with one instance."""
    triton.answers["POST /v2/repository/index"] = (200, [{"name": model, "version": "1", "state": "READY"} for model in models])
    config = of_two(instance_group=[{"name": "npu", "kind": "KIND_CPU", "count": 1}], default_model_filename=file)
    for model in models:
        triton.answers[f"GET /v2/models/{model}/versions/1/config"] = (200, config)
        for verb in ("unload", "load"):
            triton.answers[f"POST /v2/repository/models/{model}/{verb}"] = (200, None)


@pytest.mark.parametrize("file", ["model.py", "code/other.py"])
def test_process_of_another_model_with_a_group_of_the_same_name_is_none_of_this_one(
    engine: Any, triton: Any, stub: Any, tmp_path: Path, file: str
) -> None:
    serve(triton, "ok", "twin", "an_ok", file=file)
    stub("npu_0", f"served/twin/1/{file}"), stub("npu_0", f"served/an_ok/1/{file}")
    # One that an unload has left behind
    stub("npu_0", "served/ok/1/gone.py")
    assert host_of(triton, root=str(tmp_path)).observe().dead == {"ok": ["npu_0"]}


def test_model_whose_only_process_died_borrows_none_from_an_object_store(
    engine: Any, triton: Any, stub: Any, tmp_path: Path
) -> None:
    serve(triton, "ok", "cloud")
    (tmp_path / "served/ok").mkdir(parents=True)
    stub("npu_0", "folderXq3dVz/1/model.py")
    assert host_of(triton, root=str(tmp_path)).observe().dead == {"ok": ["npu_0"]}


@pytest.mark.parametrize(("alive", "dead"), [(2, {}), (1, {"cloud": ["npu_0"], "cloud2": ["npu_0"]})])
def test_processes_out_of_an_object_store_are_counted_by_name(
    engine: Any, triton: Any, stub: Any, tmp_path: Path, alive: int, dead: Any
) -> None:
    serve(triton, "cloud", "cloud2")
    for number in range(alive):
        stub("npu_0", f"folder{number}/1/model.py")
    assert host_of(triton, root=str(tmp_path)).observe().dead == dead


def test_two_groups_of_one_name_need_as_many_processes(engine: Any, triton: Any, stub: Any) -> None:
    group = {"name": "npu", "kind": "KIND_CPU", "count": 1}
    triton.answers["GET /v2/models/ok/versions/1/config"] = (200, of_two(instance_group=[group, group]))
    stub("npu_0")
    assert host_of(triton).observe().dead == {"ok": ["npu_0"]}
    stub("npu_0")
    assert host_of(triton).observe().dead == {}


# Names that a request cannot hold, and such that only look like it


@pytest.mark.parametrize("name", UTF8)
def test_name_is_asked_for_by_its_very_bytes(engine: Any, triton: Any, stub: Any, name: str) -> None:
    serve(triton, "ok", name)
    stub("npu_0", "served/ok/1/model.py")
    look = host_of(triton).observe()
    assert (look.dead, look.nameless) == ({name: ["npu_0"]}, ())
    assert host_of(triton).reload(name) == "unloaded it and loaded it"


@pytest.mark.parametrize("name", [*URL_UNSAFE_NAMES, "\ud800"])
def test_name_that_no_request_can_hold_ends_no_look(engine: Any, triton: Any, stub: Any, name: str) -> None:
    serve(triton, "ok", name)
    look = host_of(triton).observe()
    # Half of a surrogate pair becomes a question mark, which no request can hold either.
    shown = name.encode("utf-8", "replace").decode()
    assert (look.dead, look.nameless) == ({"ok": ["npu_0"]}, (shown,))
    assert set(look.models) == {"ok", shown}
    asked = [request for request in triton.asked if "/models/" in request]
    assert asked == ["GET /v2/models/ok/versions/1/config"]
    with pytest.raises(evidence.Failure, match="no request over HTTP can carry"):
        host_of(triton).reload(name)
    assert [request for request in triton.asked if "load" in request] == []


def test_name_that_is_no_utf_8_ends_no_look(engine: Any, triton: Any) -> None:
    index = b'[{"name": "ok", "version": "1", "state": "READY"}, {"name": "\xff", "version": "1", "state": "READY"}]'
    triton.answers["POST /v2/repository/index"] = (200, index)
    assert host_of(triton).observe().dead == {"ok": ["ok_0_0", "ok_0_1"]}


@pytest.mark.parametrize(
    "entry", [None, 3, {}, {"name": None}, {"name": ["ok"]}, {"name": "x", "version": "../..", "state": "READY"}, {"name": "x"}]
)
def test_index_that_is_none_of_tritons_ends_no_look(engine: Any, triton: Any, entry: Any) -> None:
    triton.answers["POST /v2/repository/index"] = (200, [entry, {"name": "ok", "version": "1", "state": "READY"}])
    assert host_of(triton).observe().dead == {"ok": ["ok_0_0", "ok_0_1"]}


@pytest.mark.parametrize("groups", [3, "npu", [None], [{"kind": "KIND_CPU"}], [{"kind": "KIND_CPU", "count": "many"}]])
def test_config_that_is_none_of_tritons_ends_no_look(engine: Any, triton: Any, groups: Any) -> None:
    triton.answers["GET /v2/models/ok/versions/1/config"] = (200, of_two(instance_group=groups))
    assert host_of(triton).observe().dead == {}


def test_answer_without_an_end_to_its_depth_is_text(engine: Any, triton: Any) -> None:
    triton.answers["POST /v2/repository/index"] = (200, b"[" * 100_000)
    assert host_of(triton).observe().models is None


def test_names_that_cannot_be_asked_for_are_said_once_and_in_one_line(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.host.sick = {"nameless": ("new\n<0>line\ud800",)}
    assert scene.run(600) == []
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("<4>model new\\n<0>line\\ud800: its name has a space")


def test_hung_model_that_cannot_be_asked_for_is_restarted_with_its_server(scene: Scene) -> None:
    scene.host.sick = {"page": "24.10_hung"}
    scene.host.fails = {"reload": "no request over HTTP can carry its name"}
    heal(scene, "start")
    assert scene.run(600) == ["reload hang", *RESTART]


def test_what_is_said_reaches_the_journal_in_every_locale() -> None:
    log = f"from {journal.__name__} import log; log('\\ubaa8\\u2028')"
    program = f"import sys; sys.path[:] = {sys.path!r}; {log}"
    for locale in ("C", "POSIX", "en_US.ISO-8859-1"):
        environment = {"LC_ALL": locale, "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
        assert done.stdout.decode() == "<6>\ubaa8\\u2028\n", locale


@pytest.mark.parametrize(
    ("config", "dead"),
    [
        (of_two(), {"ok": ["ok_0_0", "ok_0_1"]}),
        (of_two("onnxruntime"), {}),
        (of_two("rbln", runtime="model.py"), {"ok": ["ok_0_0", "ok_0_1"]}),
        (of_two("rbln", runtime="libtriton_rbln.so"), {}),
        (of_two(instance_group=[{"name": "ok_0", "kind": "KIND_GPU", "count": 1, "gpus": [0]}]), {}),
        (of_two(instance_group=None), {}),
    ],
)
def test_instances_that_are_processes(engine: Any, triton: Any, stub: Any, config: Any, dead: Any) -> None:
    triton.answers["GET /v2/models/ok/versions/1/config"] = (200, config)
    assert host_of(triton).observe().dead == dead


def test_ensemble_is_known(engine: Any, triton: Any) -> None:
    triton.answers["GET /v2/models/ok/versions/1/config"] = (200, of_two(platform="ensemble", backend=""))
    look = host_of(triton).observe()
    assert (look.dead, look.ensembles) == ({}, ("ok",))


def test_server_that_does_not_answer_or_hides_its_models(engine: Any, triton: Any) -> None:
    triton.answers["POST /v2/repository/index"] = (403, {"error": "restricted"})
    look = host_of(triton).observe()
    assert (look.models, look.dead) == (None, {})
    triton.answers["GET /metrics"] = (503, b"")
    assert host_of(triton).observe().metrics is None
    assert actions.Host(configured()).observe().metrics is None


def test_without_metrics_only_life_is_asked_for(engine: Any, triton: Any, stub: Any) -> None:
    stub("ok_0_0"), stub("ok_0_1")
    host = actions.Host(configured(http_port=triton.port, metrics_port=None))
    assert host.observe().metrics == {}
    assert "GET /v2/health/live" in triton.asked


@pytest.mark.parametrize("state", [{"Status": "exited"}, {"Status": "restarting"}, {"Status": "paused"}])
def test_container_that_does_not_run_is_not_asked(engine: Any, triton: Any, state: dict[str, Any]) -> None:
    engine.answers.update(inspected(**state))
    assert host_of(triton).observe().container_run is None
    assert triton.asked == []


def test_no_container_and_no_engine(engine: Any, triton: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.answers.clear()
    assert host_of(triton).observe().container_run is None
    engine_at(monkeypatch, "/nowhere/engine.sock")
    with pytest.raises(evidence.Failure, match=r"the engine does not answer .*No such file"):
        host_of(triton).observe()


def test_reload_unloads_first_because_a_load_alone_does_nothing(engine: Any, triton: Any) -> None:
    assert host_of(triton).reload("ok") == "unloaded it and loaded it"
    control = [request for request in triton.asked if "/repository/models/" in request]
    assert control == ["POST /v2/repository/models/ok/unload", "POST /v2/repository/models/ok/load"]


@pytest.mark.parametrize(
    ("version", "killed"), [("2.51.0", True), ("2.47.0", True), ("2.46.0", False), ("2.42.0", False), ("", False)]
)
def test_processes_that_do_not_end_are_killed_where_the_server_survives_it(
    monkeypatch: pytest.MonkeyPatch, engine: Any, triton: Any, stub: Any, version: str, killed: bool
) -> None:
    monkeypatch.setattr(actions, "END_TIMEOUT", 1.0)
    triton.answers["GET /v2"] = (200, {"version": version})
    hung = stub("ok_0_0")
    others = [stub("ok_0_0", "served/twin/1/model.py"), stub("ok_0_0", "folderXq3dVz/1/model.py")]
    # Nobody in the real thing waits for them either; here Python would.
    did = host_of(triton).reload("ok")
    assert (did == "unloaded it, killed 1 of its processes that had not ended, and loaded it") is killed
    assert (hung.poll() is not None) is killed
    assert [other.poll() for other in others] == [None, None]


@pytest.mark.parametrize("twins", [False, True])
def test_process_out_of_an_object_store_is_killed_where_it_can_be_of_no_other_model(
    monkeypatch: pytest.MonkeyPatch, engine: Any, triton: Any, stub: Any, twins: bool
) -> None:
    monkeypatch.setattr(actions, "END_TIMEOUT", 1.0)
    serve(triton, *(["cloud", "twin"] if twins else ["cloud"]))
    triton.answers["GET /v2"] = (200, {"version": "2.51.0"})
    hung = stub("npu_0", "folderXq3dVz/1/model.py")
    host_of(triton).reload("cloud")
    assert (hung.poll() is None) is twins


def test_no_process_is_killed_while_the_config_of_another_model_is_unknown(
    monkeypatch: pytest.MonkeyPatch, engine: Any, triton: Any, stub: Any
) -> None:
    monkeypatch.setattr(actions, "END_TIMEOUT", 1.0)
    serve(triton, "cloud", "twin")
    triton.answers["GET /v2"] = (200, {"version": "2.51.0"})
    triton.answers["GET /v2/models/twin/versions/1/config"] = (503, {"error": "busy"})
    alive = stub("npu_0", "folderXq3dVz/1/model.py")
    host_of(triton).reload("cloud")
    assert alive.poll() is None


@pytest.mark.parametrize(
    ("changes", "words_of"),
    [
        (
            {"POST /v2/repository/models/ok/unload": (403, {"error": "restricted"})},
            r"would not unload it \(status 403: restricted\)",
        ),
        ({"POST /v2/repository/models/ok/load": (400, {"error": "no\nmemory"})}, r"would not load it \(status 400: no memory\)"),
        ({"POST /v2/repository/index": (200, [{"name": "ok", "version": "1", "state": "UNAVAILABLE"}])}, "it is UNAVAILABLE"),
        ({"POST /v2/repository/index": (200, [])}, "it is missing from the index after the load"),
    ],
)
def test_reload_that_fails_says_why(engine: Any, triton: Any, changes: Any, words_of: str) -> None:
    triton.answers.update(changes)
    with pytest.raises(evidence.Failure, match=words_of):
        host_of(triton).reload("ok")


def by_grpc(engine: Any, *said: dict[str, str]) -> None:
    """The engine runs the client in the container, which says this, one answer for each request."""
    rest = list(said)

    class Answers(dict[str, tuple[int, Any]]):
        def get(self, asked: str, default: Any = None) -> Any:
            if asked == "POST /exec/e1/start":
                words = json.dumps(rest.pop(0)).encode() + b"\n"
                return 200, b"\x02\0\0\0\0\0\0\x05warn\n" + b"\x01\0\0\0" + len(words).to_bytes(4, "big") + words
            return super().get(asked, default)

    engine.answers = Answers({**engine.answers, "POST /containers/triton/exec": (201, {"Id": "e1"})})


def test_reload_goes_by_grpc_inside_the_container_and_keeps_no_thread_of_http(engine: Any, triton: Any, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("0123456789-secret\n")
    key = {"name": "npufleet-key", "path": str(tmp_path / "key")}
    by_grpc(engine, {"code": "OK", "message": ""}, {"code": "OK", "message": ""})
    assert host_of(triton, grpc=True, key=key).reload("ok") == "unloaded it and loaded it"
    assert not [request for request in triton.asked if "/repository/models/" in request]
    commands = [json.loads(body)["Cmd"] for body in engine.bodies if b'"Cmd"' in body]
    assert [command[:3] for command in commands] == [["python3", "-c", control.PROGRAM]] * 2
    asked = [json.loads(command[3]) for command in commands]
    assert [(request["verb"], request["model"], request["key"], request["port"]) for request in asked] == [
        ("unload", "ok", key, 8001),
        ("load", "ok", key, 8001),
    ]
    assert b"secret" not in b"".join(engine.bodies)
    # What is asked over HTTP has the key of this moment
    assert {header.get("npufleet-key") for header in triton.headers} == {"0123456789-secret"}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"code": "INVALID_ARGUMENT", "message": "no\nmemory"}, r"would not unload it \(status INVALID_ARGUMENT: no memory\)"),
        ({"kode": ""}, "the client in the container ended with 0 and without a response"),
    ],
)
def test_reload_by_grpc_that_fails_says_why(engine: Any, triton: Any, said: dict[str, str], words: str) -> None:
    by_grpc(engine, said)
    with pytest.raises(evidence.Failure, match=words):
        host_of(triton, grpc=True).reload("ok")


def test_container_that_runs_no_client_says_why(engine: Any, triton: Any) -> None:
    engine.answers["POST /containers/triton/exec"] = (409, {"message": "container is paused"})
    with pytest.raises(evidence.Failure, match=r"would not unload it \(no response came from the server: .*paused"):
        host_of(triton, grpc=True).reload("ok")


def test_client_and_key_of_the_configuration_are_those_of_the_project(tmp_path: Path) -> None:
    config = json.loads(desired_watchdog.desired(fleet())["files"]["config"])
    assert (config["grpc"], config["key"]) == (True, {"name": "npufleet-key", "path": "/etc/npufleet/server/key"})
    for inventory in ({"triton_server_allow_grpc": False}, {"triton_server_extra_args": ["--grpc-use-ssl=true"]}):
        assert json.loads(desired_watchdog.desired(fleet(**inventory))["files"]["config"])["grpc"] is False


@pytest.mark.parametrize(("status", "fails"), [(204, False), (304, False), (404, True), (500, True)])
def test_engine_is_told_to_stop_and_start(engine: Any, triton: Any, status: int, fails: bool) -> None:
    host = host_of(triton)
    for verb in ("stop", "start"):
        engine.answers[f"POST /containers/c0/{verb}"] = (status, {"message": "tried to kill"} if status >= 400 else b"")
        if fails:
            with pytest.raises(evidence.Failure, match=f"could not {verb} the container"):
                getattr(host, verb)("c0")
        else:
            getattr(host, verb)("c0")


def tool(monkeypatch: pytest.MonkeyPatch, path: Path, *contexts: dict[str, str], script: str = "") -> None:
    (path.parent / "contexts.json").write_text(json.dumps({"KMD_version": "1.1.67", "devices": [], "contexts": list(contexts)}))
    path.write_text(f"#!/bin/sh\n{script or f'cat {path.parent}/contexts.json'}\n")
    path.chmod(0o755)
    monkeypatch.setattr(vendor_tool, "TOOLS", (str(path),))


def test_start_waits_for_the_cards_but_not_for_those_of_others(
    tmp_path: Path, triton: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = {"npu": "0", "pid": "999999", "process": "triton_python_b"}
    comm = Path("/proc/self/comm").read_text().strip()
    theirs = {"npu": "1", "pid": str(os.getpid()), "process": comm}
    tool(monkeypatch, tmp_path / "rbln-stat", ours, theirs)
    host = host_of(triton)
    # A process of the same namespace is the container's own
    assert host.foreign_contexts(os.getpid()) == []
    assert host.foreign_contexts(999999) == [(os.getpid(), comm)]
    assert host.wait_for_cards([(os.getpid(), comm)]) is False
    freed = threading.Timer(0.2, tool, (monkeypatch, tmp_path / "rbln-stat", theirs))
    freed.start()
    patient = host_of(triton, cards_timeout=300)
    assert patient.wait_for_cards([(os.getpid(), comm)]) is True
    freed.join()


def test_tool_that_is_not_there_keeps_nothing_from_starting(triton: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendor_tool, "TOOLS", ("/nowhere/rbln-stat",))
    assert host_of(triton).wait_for_cards([]) is True


@pytest.mark.parametrize("script", ["exit 3", "echo no JSON", "echo '[]'", "echo '{\"contexts\": 7}'"])
def test_tool_that_fails_does_not_say_that_the_cards_are_free(
    tmp_path: Path, triton: Any, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    tool(monkeypatch, tmp_path / "rbln-stat", script=script)
    assert host_of(triton).wait_for_cards([]) is False


# The program


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of these tests answers at once, and later on a busy machine."""
    monkeypatch.setattr(http_api, "TIMEOUT_SECONDS", 60.0)


def test_program_tells_systemd_that_it_lives_and_reports_what_it_runs(tmp_path: Path, hosts_library: Path) -> None:
    config = tmp_path / "watchdog.json.config"
    written = {settings.FILE_NAMES.get(name, name): value for name, value in CONFIG.items()}
    config.write_text(json.dumps({**written, "root": str(tmp_path), "interval": 0.05, "of another version": 1}))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(str(tmp_path / "notify"))
        line.settimeout(300)
        environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")}
        command = [sys.executable, "-IS", str(hosts_library / libraries.version()), "watchdog", str(config)]
        running = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
        try:
            assert [line.recv(100) for _time in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
            state = json.loads((tmp_path / "watchdog.json").read_text())
        finally:
            running.kill()
            output = running.communicate()[0].decode()
    assert state["running"] == {
        "program": archive.digest("watch.watchdog"),
        "config": hashlib.sha256(config.read_bytes()).hexdigest(),
    }
    assert "<6>watches triton at 127.0.0.1, every 0.05 s" in output


def test_pages_are_of_both_kinds() -> None:
    assert 'reason="BACKEND"' in PAGES["24.10_hung"]
    assert "reason=" not in PAGES["24.01_hung"]
