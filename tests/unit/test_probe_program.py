"""The probe's program: when it asks, what it leaves, and what keeps it from asking. Docker is played by a script."""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.driver import vendor_tool
from ansible_collections.npufleet.triton.plugins.module_utils.engine import check_client
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import clock
from ansible_collections.npufleet.triton.plugins.module_utils.watch import probe as program
from ansible_collections.npufleet.triton.plugins.module_utils.watch import probe_page

PASSED = {"name": "m/http/row 0", "model": "m", "check": "row", "protocol": "http", "ok": True, "why": "", "ms": 1.5}
DOCUMENT = {"host": "npu1", "checks": [{"model": "m"}], "server": {}}
FAILED = {**PASSED, "name": "m/http/row 1", "ok": False, "why": "OUT: label is 1, expected 2", "ms": 250}


class Host:
    """The places of a probe below a directory, and a docker that says what it is told to."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.root = place / "root"
        self.root.mkdir()
        self.document()
        self.says(PASSED)

    def document(self, **changes: Any) -> None:
        body = check_client.standard_input({**DOCUMENT, **changes}, "")
        head = json.dumps({"checks": "d", "document": hashlib.sha256(body).hexdigest()}).encode()
        (self.place / "checks.json").write_bytes(head + b"\n" + body)

    def docker(self, script: str) -> None:
        path = self.place / "docker"
        path.write_text(f'#!/bin/sh\necho "$*" >> {self.place}/ran\n{script}\n')
        path.chmod(0o755)

    def says(self, *checks: dict[str, Any], then: str = "") -> None:
        (self.place / "answer").write_text("Welcome\n" + json.dumps({"host": "npu1", "checks": checks}) + "\n")
        self.docker(f"cat > {self.place}/given\n{then}\ncat {self.place}/answer")

    def ran(self) -> list[str]:
        """Return the first words of each command line."""
        path = self.place / "ran"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(("run", "rm"))]

    def run(self, **changes: Any) -> int:
        config = {
            "host": "npu1",
            "document": str(self.place / "checks.json"),
            "image": "image",
            "limit": 10,
            "interval": 60,
            "root": str(self.root),
            "textfile": str(self.place / "npufleet.prom"),
            "key": None,
            **changes,
        }
        (self.place / "config.json").write_text(json.dumps(config))
        return int(program.run(str(self.place / "config.json")))

    def state(self) -> dict[str, Any]:
        return dict(json.loads((self.root / "probe.json").read_text()))

    def metrics(self) -> dict[str, float]:
        lines = (self.place / "npufleet.prom").read_text().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(program, "LOCK", str(tmp_path / "lock"))
    monkeypatch.setattr(program, "NODES", str(tmp_path / "dev/rbln[0-9]*"))
    monkeypatch.setattr(vendor_tool, "TOOLS", (str(tmp_path / "rbln-stat"),))
    monkeypatch.setattr(vendor_tool, "GROUP_NODES", str(tmp_path / "dev/rsd[0-9]*"))
    monkeypatch.setattr(check_client, "which", lambda _name, _extra: str(tmp_path / "docker") if host_has(tmp_path) else None)
    return Host(tmp_path)


def host_has(place: Path) -> bool:
    return (place / "docker").exists()


def held(age: float = 0.0, old: bool = False, **changes: Any) -> str:
    """The lease of a run that made its last call so long ago, maybe as the version before wrote it."""
    clocks = {} if old else {"uptime": clock.uptime() - age}
    facts = {"run": "a/1/1", "by": "a@b", "since": "", "boot": clock.boot(), "maintenance": False, "container": {}}
    return json.dumps({**facts, "renewed": time.time() - age, "patience": 60, **clocks, **changes})


def reasons(metrics: dict[str, float], name: str) -> list[str]:
    return [re.findall('"(.*)"', metric)[0] for metric, value in metrics.items() if metric.startswith(name) and value == 1]


def test_answers_are_left_as_metrics_and_as_json(host: Host) -> None:
    host.says(PASSED, FAILED, {**PASSED, "protocol": "grpc"})
    before = time.time()
    assert host.run() == 0
    found = host.metrics()
    # The requests of a check are one line: the worst of them.
    assert found['npufleet_check_ok{model="m",check="row",protocol="http"}'] == 0
    assert found['npufleet_check_ok{model="m",check="row",protocol="grpc"}'] == 1
    assert found['npufleet_check_duration_seconds{model="m",check="row",protocol="http"}'] == 0.25
    assert (found["npufleet_checks"], found["npufleet_checks_failed"], found["npufleet_models_unchecked"]) == (2, 1, 0)
    assert before <= found["npufleet_probe_last_run_timestamp_seconds"] <= time.time()
    assert found["npufleet_probe_last_run_timestamp_seconds"] == found["npufleet_probe_last_attempt_timestamp_seconds"]
    assert reasons(found, "npufleet_probe_unavailable") == reasons(found, "npufleet_probe_paused") == []
    state = host.state()
    assert [check["why"] for check in state["checks"]] == ["", "OUT: label is 1, expected 2", ""]
    assert (host.place / "given").read_bytes() == (host.place / "checks.json").read_bytes().partition(b"\n")[2]
    assert stat.S_IMODE((host.place / "npufleet.prom").stat().st_mode) == 0o644
    assert stat.S_IMODE((host.root / "probe.json").stat().st_mode) == 0o600
    # Which checks it speaks of
    assert state["document"] == "d"


def test_time_of_the_last_proof_of_each_model_is_kept(host: Host) -> None:
    name = 'npufleet_proof_last_success_timestamp_seconds{model="%s"}'
    other = {**PASSED, "model": "n"}
    host.says(PASSED, other)
    host.run()
    first = host.metrics()
    assert first[name % "m"] == first[name % "n"] == first["npufleet_probe_last_run_timestamp_seconds"]
    # One of two checks of the model fails.
    host.says(PASSED, FAILED, other)
    host.run()
    second = host.metrics()
    assert second[name % "m"] == first[name % "m"] < second[name % "n"]
    # Without a run the times stay.
    (host.root / "maintenance.json").write_text("{")
    host.run()
    paused = host.metrics()
    assert (paused[name % "m"], paused[name % "n"]) == (second[name % "m"], second[name % "n"])
    (host.root / "maintenance.json").unlink()
    host.says(other)
    host.run()
    assert name % "m" not in host.metrics()


def test_failed_checks_leave_the_time_of_the_last_proof_if_a_deployment_began(host: Host) -> None:
    name = 'npufleet_proof_last_success_timestamp_seconds{model="m"}'
    host.run()
    before = host.metrics()[name]
    (host.place / "lease").write_text(held())
    host.says({**PASSED, "model": "n"}, FAILED, then=f"cp {host.place}/lease {host.root}/lease.json")
    host.run()
    found = host.metrics()
    assert (reasons(found, "npufleet_probe_paused"), found[name]) == (["deployment"], before)
    assert [metric for metric in found if 'model="n"' in metric] == []


def test_models_that_no_check_asks_are_counted_and_nothing_at_all_is_no_result(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    host.document(unchecked=["words", "faces"])
    host.run()
    found = host.metrics()
    assert (found["npufleet_checks_failed"], found["npufleet_models_unchecked"]) == (0, 2)
    assert "no check covers words, faces" in capsys.readouterr().out
    host.document(checks=[], unchecked=["words"])
    host.run()
    found = host.metrics()
    assert reasons(found, "npufleet_probe_unavailable") == ["nothing"]
    assert [entry for entry in found if entry.startswith(("npufleet_check", "npufleet_models"))] == []
    assert "no check covers words" in host.state()["unavailable"]["why"]
    # A host that serves no model has nothing to check.
    host.document(checks=[])
    host.run()
    found = host.metrics()
    assert (reasons(found, "npufleet_probe_unavailable"), found["npufleet_checks"], found["npufleet_models_unchecked"]) == (
        [],
        0,
        0,
    )


def test_what_golden_data_says_is_not_kept(host: Host) -> None:
    host.says({**PASSED, "expected": "a secret text", "got": "a secret text", "image": [1], "picture": {"pixels": "xx"}})
    host.run()
    assert "secret" not in (host.root / "probe.json").read_text()
    assert set(host.state()["checks"][0]) == set(PASSED)


def test_page_has_a_help_and_a_type_for_every_name_and_its_labels_are_escaped(host: Host) -> None:
    host.says({**PASSED, "check": 'a "b"\\c\nd'})
    cards(host, 0, 1)
    host.run()
    text = (host.place / "npufleet.prom").read_text()
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE") and line.endswith(" gauge")}
    helped = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP")}
    used = {re.split(r"[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}
    assert names == helped == used == set(probe_page.HELP)
    assert 'check="a \\"b\\"\\\\c\\nd"' in text
    assert text.endswith("\n")


@pytest.mark.parametrize("reason", ["maintenance", "deployment"])
def test_nothing_is_asked_while_somebody_works_there(host: Host, reason: str) -> None:
    host.run()
    first = host.metrics()["npufleet_probe_last_run_timestamp_seconds"]
    mark = host.root / {"maintenance": "maintenance.json", "deployment": "lease.json"}[reason]
    mark.write_text(held())
    assert host.run() == 0
    found = host.metrics()
    assert len(host.ran()) == 1
    # What was found before is not said of a host that is being worked on.
    assert [entry for entry in found if entry.startswith("npufleet_check")] == []
    assert reasons(found, "npufleet_probe_paused") == [reason]
    assert found["npufleet_probe_last_run_timestamp_seconds"] == first
    assert found["npufleet_probe_last_attempt_timestamp_seconds"] > first
    mark.unlink()
    host.run()
    assert (len(host.ran()), host.metrics()["npufleet_checks"]) == (2, 1)


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize(
    "lease",
    ["", "{", "[]", '{"renewed": "now", "patience": 60}', "[" * 9999, '{"uptime": "1", "boot": 1}', "run out", "of the future"],
)
def test_lease_that_holds_nobody_any_more_keeps_it_from_nothing(host: Host, lease: str, old: bool) -> None:
    ages = {"run out": 61.0, "of the future": -86400.0}
    (host.root / "lease.json").write_text(held(ages[lease], old) if lease in ages else lease)
    host.run()
    assert len(host.ran()) == 1


def test_a_lease_of_another_boot_holds_nobody(host: Host) -> None:
    (host.root / "lease.json").write_text(held(boot="another"))
    host.run()
    assert len(host.ran()) == 1


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("step", [-30.0, -0.5, 0.5, 30.0])
def test_a_step_of_the_clock_ends_no_lease(host: Host, monkeypatch: pytest.MonkeyPatch, step: float, old: bool) -> None:
    (host.root / "lease.json").write_text(held(old=old))
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + step)
    host.run()
    assert host.ran() == []


def test_the_time_that_a_probe_takes_is_not_that_of_a_clock_that_steps(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    real, steps = time.time, itertools.count(0, -1000)
    monkeypatch.setattr(time, "time", lambda: real() + next(steps))
    host.run()
    assert 0 <= host.state()["seconds"] < 60
    assert clock.since(host.state()) is not None


@pytest.mark.parametrize("umask", [0, 0o022, 0o777])
@pytest.mark.parametrize("before", [None, 0o644])
def test_nobody_else_can_open_the_lock(host: Host, umask: int, before: int | None) -> None:
    lock = Path(program.LOCK)
    if before is not None:
        lock.touch()
        lock.chmod(before)
    old = os.umask(umask)
    try:
        host.run()
        assert lock.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(old)


def test_server_that_is_taken_away_while_it_is_asked_has_not_failed(host: Host) -> None:
    (host.place / "held").write_text(held())
    host.says(FAILED, then=f"cp {host.place}/held {host.root}/lease.json")
    host.run()
    assert reasons(host.metrics(), "npufleet_probe_paused") == ["deployment"]
    assert host.state()["checks"] == []
    # An answer that was right is one all the same.
    (host.root / "lease.json").unlink()
    host.says(PASSED, then=f"cp {host.place}/held {host.root}/lease.json")
    host.run()
    assert host.metrics()["npufleet_checks_failed"] == 0


def _no_document(host: Host) -> None:
    (host.place / "checks.json").unlink()


def _other_document(host: Host) -> None:
    path = host.place / "checks.json"
    path.write_bytes(path.read_bytes() + b" ")


@pytest.mark.parametrize(
    ("spoil", "reason", "why"),
    [
        (_no_document, "checks", "checks.json: [Errno 2] "),
        (_other_document, "checks", "its content was changed: run playbooks/site.yml"),
        (lambda host: (host.place / "docker").unlink(), "engine", "docker is not installed"),
        (lambda host: host.docker("echo 'Error: No such image: x' >&2; exit 125"), "image", "image image is not on the host"),
        (lambda host: host.docker("echo 'Cannot connect to the Docker daemon' >&2; exit 125"), "engine", "Cannot connect"),
        (
            lambda host: host.docker('echo \'{"error": "No module named numpy"}\''),
            "client",
            "has no client (No module named numpy)",
        ),
        (lambda host: host.docker("echo Killed >&2; exit 137"), "client", "ended with 137 and without a result: Killed"),
    ],
)
def test_what_keeps_it_from_asking_is_a_metric_of_its_own(
    host: Host, spoil: Callable[[Host], None], reason: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    host.run()
    first = host.metrics()["npufleet_probe_last_run_timestamp_seconds"]
    spoil(host)
    assert host.run() == 0
    found = host.metrics()
    assert reasons(found, "npufleet_probe_unavailable") == [reason]
    assert [entry for entry in found if entry.startswith("npufleet_check")] == []
    assert found["npufleet_probe_last_run_timestamp_seconds"] == first < found["npufleet_probe_last_attempt_timestamp_seconds"]
    assert why in host.state()["unavailable"]["why"]
    assert f"no check could run, {reason}: " in capsys.readouterr().out


def test_client_that_does_not_end_is_taken_away(host: Host) -> None:
    host.docker('case "$1" in run) exec sleep 60 ;; esac')
    host.run(limit=2)
    assert [line.split()[0] for line in host.ran()] == ["run", "rm"]
    assert host.ran()[1] == "rm --force npufleet-probe"
    assert reasons(host.metrics(), "npufleet_probe_unavailable") == ["time"]


def test_container_that_a_killed_probe_left_behind_is_taken_away(host: Host) -> None:
    left = host.place / "left"
    left.write_text("")
    taken = 'echo "The container name /x is already in use" >&2; exit 125'
    host.docker(f'case "$1" in rm) rm {left} ;; run) if [ -e {left} ]; then {taken}; fi; cat {host.place}/answer ;; esac')
    host.run()
    assert [line.split()[0] for line in host.ran()] == ["run", "rm", "run"]
    assert all("npufleet-probe" in line for line in host.ran())
    assert host.metrics()["npufleet_checks_failed"] == 0


def test_never_two_at_once(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    with open(host.place / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert host.run() == 0
    assert (host.ran(), "another probe is running" in capsys.readouterr().out) == ([], True)
    host.run()
    assert len(host.ran()) == 1


def test_state_that_cannot_be_read_is_begun_anew(host: Host) -> None:
    for content in ("{", "[]", '{"last_run": "x"}'):
        (host.root / "probe.json").write_text(content)
        assert host.run() == 0
        assert host.state()["checks"][0]["ok"] is True


def test_place_that_is_not_there_fails_the_unit(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    assert host.run(textfile=str(host.place / "none/npufleet.prom")) == 1
    assert "the result cannot be written: " in capsys.readouterr().err


def test_reader_sees_a_whole_page_at_any_time(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    replace = os.replace

    def look(draft: str, path: str) -> None:
        seen.append((draft.endswith((".prom", ".json")), Path(draft).read_text().endswith(("\n", "}"))))
        replace(draft, path)

    monkeypatch.setattr(program.os, "replace", look)
    host.run()
    # Node exporter reads whatever ends with .prom.
    assert seen == [(False, True)] * 2


def test_checks_are_asked_with_the_key_that_the_server_has_now(host: Host) -> None:
    host.says(PASSED)
    host.document(server={"headers": {"of-the-site": "1"}})
    key = {"name": "npufleet-key", "path": str(host.place / "key")}
    for secret in ("0123456789-first", "0123456789-second"):
        (host.place / "key").write_text(secret + "\n")
        assert host.run(key=key) == 0
        given = json.loads((host.place / "given").read_bytes())
        assert given["document"]["server"]["headers"] == {"npufleet-key": secret, "of-the-site": "1"}
    assert "second" not in (host.place / "checks.json").read_text()


def listed(*devices: dict[str, Any]) -> str:
    """Return what the vendor's tool prints for cards with these facts."""
    facts = {"name": "RBLN-CA12", "status": "normal", "pci": {"bus_id": "0"}, "memory": {"total": "1", "used": "0"}}
    whole = [{"device": f"rbln{number}", **facts, **device} for number, device in enumerate(devices)]
    return json.dumps({"KMD_version": "1.1.67", "devices": whole})


def grouped(host: Host, plain: list[dict[str, Any]], by_group: list[dict[str, Any]] | None, group_nodes: int = 3) -> None:
    """A vendor's tool that lists cards with `-j`, and with `-g -j` where it has that."""
    answers = [listed(*(devices or [])) for devices in (plain, by_group)]
    tool = host.place / "rbln-stat"
    by_groups = "exit 2" if by_group is None else f"echo '{answers[1]}'"
    tool.write_text(f"#!/bin/sh\nif [ \"$*\" = '-g -j' ]; then {by_groups}; else echo '{answers[0]}'; fi\n")
    tool.chmod(0o755)
    (host.place / "dev").mkdir()
    for node in [*(f"rbln{number}" for number in range(len(plain))), *(f"rsd{number}" for number in range(group_nodes))]:
        (host.place / "dev" / node).touch()


ZEROS = [{"npu": 0}, {"npu": 0}]
OWN = [{"npu": 0, "group_id": "1"}, {"npu": 0, "group_id": "2"}]
WEDGED = [{"npu": 0, "group_id": "1"}, {"npu": 0, "group_id": "1"}]


@pytest.mark.parametrize(
    ("plain", "by_group", "group_nodes", "stale"),
    [
        (OWN, [], 3, 0),
        (ZEROS, OWN, 3, 0),
        (ZEROS, WEDGED, 3, 1),
        ([*WEDGED, {"npu": 0, "group_id": "2"}], None, 3, 1),
        # Groups are not known: nothing is said, unless the host has none
        (ZEROS, None, 3, None),
        (ZEROS, ZEROS, 3, None),
        (ZEROS, [{"npu": 0, "group_id": None}], 3, None),
        (ZEROS, None, 1, 1),
        (ZEROS, ZEROS, 1, 1),
    ],
)
def test_numbers_of_a_driver_that_has_lost_its_cards_are_those_of_a_group(
    host: Host, plain: list[dict[str, Any]], by_group: list[dict[str, Any]] | None, group_nodes: int, stale: int | None
) -> None:
    grouped(host, plain, by_group, group_nodes)
    host.run()
    assert host.metrics().get("npufleet_driver_stale") == stale


def cards(host: Host, *numbers: Any, nodes: int = 2, code: int = 0) -> None:
    """A vendor's tool that lists cards of these numbers, beside so many device nodes."""
    answer = listed(*({"npu": number} for number in numbers))
    tool = host.place / "rbln-stat"
    tool.write_text(f"#!/bin/sh\necho '{answer}'\nexit {code}\n")
    tool.chmod(0o755)
    (host.place / "dev").mkdir()
    for node in range(nodes):
        (host.place / f"dev/rbln{node}").touch()


@pytest.mark.parametrize(
    ("numbers", "nodes", "stale"),
    [(("0", "1"), 2, 0), ((0,), 1, 0), ((), 0, 0), ((0, 1, 0, 1), 4, 0), ((0, 0), 2, 1), (("0", "0"), 2, 1), ((), 2, 1)],
)
def test_a_driver_that_has_lost_its_cards_is_told(
    host: Host, capsys: pytest.CaptureFixture[str], numbers: tuple[Any, ...], nodes: int, stale: int
) -> None:
    cards(host, *numbers, nodes=nodes)
    host.run()
    assert host.metrics()["npufleet_driver_stale"] == stale
    assert ("the driver is stale, run playbooks/recover.yml: the vendor's tool" in capsys.readouterr().out) == bool(stale)
    # Whatever the server answers
    assert host.metrics()["npufleet_checks_failed"] == 0


@pytest.mark.parametrize("code", [1, None])
def test_a_tool_that_does_not_say_is_no_result(host: Host, code: int | None) -> None:
    if code:
        cards(host, "0", "0", code=code)
    host.run()
    assert "npufleet_driver_stale" not in host.metrics()


def test_cards_are_not_looked_at_while_somebody_changes_the_host(host: Host) -> None:
    cards(host)
    (host.root / "lease.json").write_text(held())
    host.run()
    assert "npufleet_driver_stale" not in host.metrics()


def test_infinite_golden_data_can_be_checked(tmp_path: Path) -> None:
    check = {"model": "m", "expect": {"Y": {"numbers": [float("-inf"), 1.0]}}}
    body = check_client.standard_input({"host": "h", "checks": [check], "server": {}}, "program")
    head = {"checks": "digest", "document": hashlib.sha256(body).hexdigest()}
    (tmp_path / "checks.json").write_bytes(json.dumps(head).encode() + b"\n" + body)
    checks, kept = program.read_checks(str(tmp_path / "checks.json"))
    assert (checks, kept["document"]["checks"]) == ("digest", [check])
