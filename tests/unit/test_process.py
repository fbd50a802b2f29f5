"""A server as a process of this machine: supervised, changed, proven and put back, with a program in the place of tritonserver."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.engine import check_client
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import locks
from ansible_collections.npufleet.triton.plugins.module_utils.process import change, conditions, supervised, supervisor
from ansible_collections.npufleet.triton.plugins.module_utils.programs import archive
from test_stuck_load import STUB, needs_numbers

SUPERVISOR = base64.b64encode(archive.of("process.supervisor")).decode()
DIGEST = archive.digest("process.supervisor")
# Serves what is linked when it starts, as Triton does in mode none; `dies` and `refuses` are what goes wrong in it
SERVER = """#!{python}
import json, os, re, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
given = dict(word[2:].partition("=")[::2] for word in sys.argv[1:] if word.startswith("--"))
if "help" in given:
    sys.exit(print("  --model-repository\\n  --http-port\\n"))
if "dies" in given:
    sys.exit("E1 no such option: --dies in " + " ".join(sys.argv[4:]))
if "stuck" in given and not os.path.exists(given["stuck"] + "/began"):
    import subprocess
    open(given["stuck"] + "/began", "w").close()
    words = ["stub", given["stuck"] + "/model.py", given["region"], "message", "digits_0", "DEFAULT"]
    os.waitpid(subprocess.Popen(words, executable=sys.executable).pid, 0)
    sys.exit("E1 failed to load 'digits'")
root = given["model-repository"]
text = lambda name: open(os.path.join(root, name, "config.pbtxt")).read()
found = {{name: re.search("release=(\\\\w+)", text(name))[1] for name in sorted(os.listdir(root))}}
class Handler(BaseHTTPRequestHandler):
    def log_message(self, *words):
        pass
    def say(self, answer):
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_POST(self):
        self.say([{{"name": name, "version": "1", "state": "READY"}} for name in found])
    def do_GET(self):
        if self.path == "/v2":
            return self.say({{"version": "2.42.0"}})
        name = self.path.split("/")[3]
        self.say({{"name": name, "parameters": {{"npufleet_release": {{"string_value": found[name]}}}}}})
print("serves", found, os.environ.get("MARK"), flush=True)
HTTPServer(("127.0.0.1", int(given["http-port"])), Handler).serve_forever()
"""
REBEL = 'device_count = lambda: 2\nget_npu_name = lambda npu: "RBLN-CA12"\n'


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 120
    while not (found := condition()):
        assert time.monotonic() < deadline, "not within two minutes"
        time.sleep(0.02)
    return found


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    """A root that has the SDK's Python already. What runs there ends with the test."""
    bins = tmp_path / "root/venv/bin"
    bins.mkdir(parents=True)
    (bins / "python3").symlink_to(sys.executable)
    (tmp_path / "sdk").mkdir()
    (tmp_path / "sdk/rebel.py").write_text(REBEL)
    yield str(tmp_path / "root")
    pid = supervised.holder(str(tmp_path / "root"))
    if pid:
        os.kill(pid, signal.SIGTERM)
        wait_for(lambda: supervised.holder(str(tmp_path / "root")) is None)


@pytest.fixture(autouse=True)
def triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the server is; its checks are answered rightly."""
    home = tmp_path / "opt"
    for directory in ("bin", "backends/python"):
        (home / directory).mkdir(parents=True)
    program = home / "bin/tritonserver"
    program.write_text(SERVER.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setattr(conditions, "HOME", str(home))
    monkeypatch.setattr(change, "LOOK", 0.05)
    monkeypatch.setattr(supervised, "LOOK", 0.02)
    monkeypatch.setattr(check_client, "run_in_process", lambda *_given: [{"name": "digits", "ok": True, "why": ""}])
    return home


def config_of(root: str, command: list[str], **more: Any) -> dict[str, Any]:
    return {**supervised.wanted(command, {"PATH": os.environ["PATH"]}, 5, DIGEST), **more}


def start(root: str, command: list[str]) -> int:
    supervised.start(root, config_of(root, command), SUPERVISOR, sys.executable)
    return wait_for(lambda: supervised.holder(root))


# The supervisor

ONCE = "import os, sys, time; print('began', os.getpid(), flush=True); time.sleep(1000)"


def lives(root: str) -> list[int]:
    return [int(line.split()[1]) for line in supervised.log_since(root, 0).splitlines() if line.startswith("began ")]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_server_that_dies_starts_again_and_the_log_says_so(root: str) -> None:
    start(root, [sys.executable, "-c", ONCE])
    (first,) = wait_for(lambda: lives(root))
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: len(lives(root)) == 2)
    assert "npufleet_supervisor: " in supervised.log_since(root, 0)
    assert "the server ended with -9 and starts again in 1 s" in supervised.log_since(root, 0)


def test_a_server_does_not_outlive_its_supervisor(root: str) -> None:
    pid = start(root, [sys.executable, "-c", ONCE])
    (server,) = wait_for(lambda: lives(root))
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: gone(server))
    assert supervised.holder(root) is None
    assert supervised.running(root) is None


def test_stop_ends_both_and_is_done_once(root: str) -> None:
    start(root, [sys.executable, "-c", ONCE])
    (server,) = wait_for(lambda: lives(root))
    assert supervised.stop(root) is True
    assert gone(server)
    assert supervised.stop(root) is False


def test_a_server_that_does_not_end_by_itself_is_ended(root: str) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + ONCE
    config = config_of(root, [sys.executable, "-c", deaf], stop_timeout=0)
    supervised.start(root, config, SUPERVISOR, sys.executable)
    (server,) = wait_for(lambda: lives(root))
    assert supervised.stop(root) is True
    assert gone(server)


def test_there_is_one_supervisor_at_a_time(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = start(root, [sys.executable, "-c", ONCE])
    wait_for(lambda: lives(root))
    monkeypatch.setattr(sys, "argv", ["supervisor.pyz", f"{supervised.home(root)}/config.json"])
    assert supervisor.main() == 1
    assert supervised.holder(root) == pid
    assert len(lives(root)) == 1


def test_whoever_looks_is_no_supervisor(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Path(supervised.home(root), supervised.PID)
    place.parent.mkdir()
    place.write_text("4711\n")
    lock, found = fcntl.flock, []

    def looked_at_meanwhile(file: Any, how: int) -> None:
        lock(file, how)
        monkeypatch.setattr(fcntl, "flock", lock)
        found.append(supervised.holder(root))

    monkeypatch.setattr(fcntl, "flock", looked_at_meanwhile)
    assert (supervised.holder(root), found) == (None, [None])


def test_a_supervisor_starts_while_somebody_looks(root: str) -> None:
    place = Path(supervised.home(root), supervised.PID)
    place.parent.mkdir()
    with place.open("w") as looking:
        assert locks.held(looking) is False
        ended = threading.Timer(0.3, fcntl.flock, [looking, fcntl.LOCK_UN])
        ended.start()
        start(root, [sys.executable, "-c", ONCE])
        ended.join()
    assert wait_for(lambda: lives(root))


def test_a_log_gives_way_to_a_new_one(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "LOG_BYTES", 1000)
    start(root, [sys.executable, "-c", "import time\nprint('x' * 5000, flush=True)\ntime.sleep(1000)"])
    wait_for(lambda: os.path.exists(supervised.log_path(root) + ".1"))
    wait_for(lambda: supervised.log_size(root) < 1000)


def test_what_it_was_started_with_is_what_runs(root: str) -> None:
    command = [sys.executable, "-c", ONCE]
    assert supervised.running(root) is None
    start(root, command)
    assert supervised.running(root) == config_of(root, command)
    assert oct(os.stat(supervised.home(root)).st_mode & 0o777) == "0o700"
    Path(supervised.home(root), "config.json").write_text("{")
    assert supervised.running(root) == {}, "one that nobody can read is of no wanted server"


def test_a_supervisor_that_does_not_start_is_told_with_its_words(root: str) -> None:
    with pytest.raises(supervised.ProcessError, match=r"the supervisor does not run: .*SyntaxError"):
        supervised.start(root, config_of(root, ["true"]), base64.b64encode(b"no archive").decode(), sys.executable)


# The change


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def release_of(name: str, edition: int) -> dict[str, Any]:
    digest = hashlib.sha256(f"{name}{edition}".encode()).hexdigest()
    content = f"# release={digest}\n".encode()
    file = {"sha256": hashlib.sha256(content).hexdigest(), "blob": False}
    facts = {"release": digest, "source": digest, "versions": ["1"], "steps": [], "cached": False, "shape": None}
    return {**facts, "files": {"config.pbtxt": {**file, "content": base64.b64encode(content).decode()}}}


@pytest.fixture
def order(root: str, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """What the controller hands over, for models {name: edition}."""
    port = free_port()

    def make(models: dict[str, int], *more: str, **changes: Any) -> dict[str, Any]:
        releases = {name: release_of(name, edition) for name, edition in models.items()}
        wanted = {
            name: {**release, "files": {path: {"sha256": file["sha256"], "blob": False} for path, file in release["files"].items()}}
            for name, release in releases.items()
        }
        server = {"address": "127.0.0.1", "http_port": port, "key": None, "mode": "none", "models": {}}
        server["models"] = {name: {**model, "memory": [], "switch": "beside"} for name, model in wanted.items()}
        return {
            "run": "r",
            "by": "me@here",
            "host": "localhost",
            "models": {"root": root, "incoming": root + "/incoming", "verify": False, "models": wanted},
            "server": server,
            "command": [
                "tritonserver",
                f"--model-repository={root}/served",
                f"--http-port={port}",
                "--allow-vertex-ai=false",
                *more,
            ],
            "maybe": ["allow-vertex-ai"],
            "environment": {"PYTHONPATH": str(tmp_path / "sdk"), "MARK": "1"},
            "stop_timeout": 5,
            "ready_timeout": 60,
            "stuck_load_limit": 15,
            "keep": 3,
            "fingerprint": None,
            "grpc": False,
            "grpc_port": 1,
            "triton": "2.42.0",
            "cards": {"npus": 2, "card": "RBLN-CA12"},
            "backends": {"rbln/model.py": base64.b64encode(b"pass\n").decode()},
            "supervisor": {"archive": SUPERVISOR, "digest": DIGEST},
            "releases": releases,
            "blobs": {},
            "api_key": "",
            "checks": {"document": {"host": "localhost", "checks": [1], "server": {}}, "program": ""},
            **changes,
        }

    return make


def served(order: dict[str, Any]) -> dict[str, Any]:
    found = change.read_served(order["server"]) or {}
    return {name: versions["1"]["release"] for name, versions in found.items()}


def names(root: str, order: dict[str, Any]) -> list[str]:
    return [entry["name"] for entry in change.Server(root, order).look()[1]]


def test_it_serves_and_a_second_look_finds_nothing(root: str, order: Any) -> None:
    wanted = order({"digits": 1})
    assert names(root, wanted) == ["digits", "process"]
    outcome = change.Server(root, wanted).change()
    assert outcome.why is None, outcome.why
    assert [check["ok"] for check in outcome.checks] == [True]
    assert served(wanted) == {"digits": release_of("digits", 1)["release"]}
    assert change.Server(root, wanted).look()[1] == []
    running = supervised.running(root) or {}
    assert "--allow-vertex-ai=false" not in running["command"], "this server does not know it"
    (backends,) = [word.partition("=")[2] for word in running["command"] if word.startswith("--backend-directory=")]
    assert sorted(os.listdir(backends)) == ["python", "rbln"]
    assert running["environment"]["PATH"].startswith(root + "/venv/bin:")


def test_a_model_that_changes_is_served_anew(root: str, order: Any) -> None:
    change.Server(root, order({"digits": 1, "add": 1})).change()
    wanted = order({"digits": 2})
    outcome = change.Server(root, wanted).change()
    assert outcome.why is None, outcome.why
    assert served(wanted) == {"digits": release_of("digits", 2)["release"]}


@pytest.mark.parametrize(
    ("changes", "names_of"),
    [
        ({"environment": {"MARK": "2"}}, ["process"]),
        ({"backends": {"rbln/model.py": "AAAA"}}, ["process"]),
        ({"stop_timeout": 6}, ["process"]),
    ],
)
def test_another_process_is_a_difference(root: str, order: Any, changes: dict[str, Any], names_of: list[str]) -> None:
    change.Server(root, order({"digits": 1})).change()
    assert names(root, order({"digits": 1}, **changes)) == names_of


def test_a_server_that_does_not_start_gives_way_to_the_one_before(root: str, order: Any) -> None:
    before = order({"digits": 1})
    change.Server(root, before).change()
    outcome = change.Server(root, order({"digits": 2}, "--dies")).change()
    assert outcome.why is not None and "no such option: --dies" in outcome.why
    assert outcome.back == "the one before it serves again"
    assert served(before) == {"digits": release_of("digits", 1)["release"]}
    assert change.Server(root, before).look()[1] == []


def test_a_secret_that_the_server_repeats_is_not_told(root: str, order: Any) -> None:
    wanted = order({"digits": 1}, "--dies", "--cache-config=redis,password=hunter2-and-more")
    outcome = change.Server(root, wanted).change()
    assert outcome.why is not None and "no such option: --dies" in outcome.why
    assert "hunter2" not in outcome.why
    assert "npufleet_supervisor" in outcome.why


def test_wrong_answers_bring_back_what_served(root: str, order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = order({"digits": 1})
    change.Server(root, before).change()
    monkeypatch.setattr(
        check_client, "run_in_process", lambda *_given: [{"name": "digits", "ok": False, "why": "found 8, wanted 3"}]
    )
    outcome = change.Server(root, order({"digits": 2})).change()
    assert outcome.why is not None and outcome.why.startswith("0 of 1 checks passed") and "found 8, wanted 3" in outcome.why
    assert [check["ok"] for check in outcome.checks] == [False]
    assert served(before) == {"digits": release_of("digits", 1)["release"]}


def test_other_cards_are_refused_while_the_old_one_serves(root: str, order: Any) -> None:
    before = order({"digits": 1})
    change.Server(root, before).change()
    pid = supervised.holder(root)
    outcome = change.Server(
        root, order({"digits": 1}, environment={**before["environment"], "MARK": "2"}, cards={"npus": 3, "card": "RBLN-CA12"})
    ).change()
    assert outcome.why is not None and "found 2 NPUs by the SDK in this container, wanted 3" in outcome.why
    assert supervised.holder(root) == pid


def test_another_triton_is_not_kept(root: str, order: Any) -> None:
    outcome = change.Server(root, order({"digits": 1}, triton="2.51.0")).change()
    assert outcome.why == "found Triton 2.42.0, wanted 2.51.0: choose the rbln_release of this image"
    assert outcome.back == "there was none before; the next run goes on from here"


def test_a_key_is_made_once_for_its_owner_alone(root: str, order: Any) -> None:
    def closed(**more: Any) -> dict[str, Any]:
        wanted = order({"digits": 1}, **more)
        wanted["server"]["key"] = {"name": "npufleet-key", "path": change.key_path(root)}
        return wanted

    assert names(root, closed()) == ["digits", "key", "process"]
    assert change.Server(root, closed()).change().why is None
    key = Path(change.key_path(root))
    assert (key.stat().st_mode & 0o777, len(key.read_text())) == (0o600, 64)
    assert names(root, closed()) == []
    key.chmod(0o644)
    assert names(root, closed()) == ["key"]
    assert change.Server(root, closed(api_key="of the operator's own")).change().why is None
    assert key.read_text() == "of the operator's own"
    assert names(root, closed()) == []


def test_one_change_at_a_time(root: str, order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    monkeypatch.setattr(change, "WAIT", 0.0)
    with open(os.path.join(root, "process.lock"), "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(supervised.ProcessError, match="another run changes"):
            change.Server(root, order({"digits": 1})).change()


# A start that is stuck


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[list[str]]:
    """Options by which the first life of the server is stuck."""
    place = tmp_path / "stuck"
    place.mkdir()
    (place / "model.py").write_text(STUB)
    region = Path("/dev/shm", f"npufleet_process_{os.getpid()}")
    region.write_bytes(bytes(4096))
    yield [f"--stuck={place}", f"--region={region.name}"]
    region.unlink()


@needs_numbers
def test_a_start_that_is_stuck_is_ended_and_repeated(root: str, order: Any, stuck: list[str]) -> None:
    outcome = change.Server(root, order({"digits": 1}, *stuck, stuck_load_limit=1)).change()
    assert outcome.why is None, outcome.why
    (words,) = [entry for entry in outcome.did if entry.startswith("a load")]
    assert re.fullmatch(r"a load is stuck, ends process \d+ of digits_0", words)
    assert "the server ended with 1 and starts again in 1 s" in supervised.log_since(root, 0)


@needs_numbers
def test_without_a_limit_a_start_that_is_stuck_is_not_proven(root: str, order: Any, stuck: list[str]) -> None:
    outcome = change.Server(root, order({"digits": 1}, *stuck, stuck_load_limit=0, ready_timeout=3)).change()
    assert outcome.why is not None and "does not serve what is wanted" in outcome.why
    assert "ended with" not in supervised.log_since(root, 0)


@needs_numbers
def test_what_is_put_back_and_stuck_is_repeated_as_well(root: str, order: Any, stuck: list[str]) -> None:
    began = Path(stuck[0].partition("=")[2], "began")
    began.touch()
    before = order({"digits": 1}, *stuck, stuck_load_limit=1)
    assert change.Server(root, before).change().why is None
    began.unlink()
    outcome = change.Server(root, order({"digits": 1}, "--dies", stuck_load_limit=1)).change()
    assert outcome.why and outcome.back == "the one before it serves again"
    assert change.Server(root, before).look()[1] == []


def test_a_load_that_was_stuck_is_repeated(root: str, order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In mode explicit Triton refuses the load, right behind the line of its supervisor."""
    applied: list[int] = []

    class Change:
        loaded: ClassVar[list[str]] = []
        unloaded: ClassVar[list[str]] = []

        def __init__(self, *_given: Any) -> None:
            pass

        def apply(self) -> None:
            applied.append(len(applied))
            if len(applied) == 1:
                with open(supervised.log_path(root), "a") as log:
                    log.write("npufleet_supervisor: 2026-01-31T12:00:00Z: a load is stuck, ends process 7 of digits_0\n")

        def why(self) -> str:
            return "Triton refused digits" if len(applied) == 1 else ""

    os.makedirs(supervised.home(root))
    monkeypatch.setattr(change.repository_api, "Change", Change)
    server = change.Server(root, order({"digits": 1}))
    server._load({})
    assert (applied, server.did) == ([0, 1], ["a load is stuck, ends process 7 of digits_0"])


def test_a_supervisor_of_an_older_version_is_still_known(root: str) -> None:
    start(root, [sys.executable, "-c", ONCE])
    path = Path(supervised.home(root), supervised.CONFIG)
    older = json.loads(path.read_text())
    del older["stuck_load_limit"]
    path.write_text(json.dumps(older))
    running = supervised.running(root)
    assert running and running["command"] and "stuck_load_limit" not in running


# The conditions

FITS: dict[str, Any] = {
    "triton": "2.42.0",
    "python": ".".join(map(str, sys.version_info[:2])),
    "driver": "1.1.67",
    "cards": {"npus": 2, "card": "RBLN-CA12"},
    "requirements": ["pip>=1", "no-such-package==1.0"],
    "listen": "127.0.0.1",
    "ports": [],
    "shm_size": 0,
    "room": 1,
}


@pytest.fixture
def place(tmp_path: Path, triton: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A container that fits."""
    for name in ("rbln0", "rbln1", "rsd0"):
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev" / name).touch()
    (tmp_path / "version").write_text("1.1.67\n")
    (triton / "TRITON_VERSION").write_text("2.42.0\n")
    monkeypatch.setattr(conditions, "DEVICES", str(tmp_path / "dev"))
    monkeypatch.setattr(conditions, "SYSFS", str(tmp_path / "version"))
    monkeypatch.setattr(conditions, "own_python", lambda: sys.executable)
    monkeypatch.setattr(conditions.vendor_tool, "find_tool", lambda: None)
    return tmp_path


def refusals(place: Path, runs: bool = False, **changes: Any) -> list[str]:
    return conditions.refusals({**FITS, **changes}, str(place / "here"), runs)


def test_a_container_that_fits_has_nothing_in_its_way(place: Path) -> None:
    assert refusals(place) == []


def test_every_reason_at_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "dev/rbln1").unlink()
    (place / "dev/rsd0").unlink()
    (place / "version").write_text("3.2.2-abc\n")
    monkeypatch.setattr(conditions.vendor_tool, "find_tool", lambda: "/usr/bin/rbln-smi")
    monkeypatch.setattr(conditions.vendor_tool, "query_tool", lambda: {"devices": [{"name": "RBLN-CA25"}]})
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        found = refusals(place, triton="2.51.0", python="3.99", ports=[port], room=1 << 60)
        assert not [reason for reason in refusals(place, runs=True, ports=[port]) if "port" in reason], "our own server has it"
    words = [
        "found Triton 2.42.0, wanted 2.51.0",
        f"found Python {FITS['python']} as {sys.executable}, wanted 3.99",
        "found 1 of ",
        "rsd0, wanted it",
        "found driver 3.2.2-abc on this machine, wanted 1.1.67",
        "found cards RBLN-CA25, wanted RBLN-CA12",
        f"MiB free at {place}, wanted",
        f"port {port} cannot be had",
    ]
    assert len(found) == len(words), found
    assert [word for word, reason in zip(words, found) if word not in reason] == []


def test_without_a_server_it_is_no_triton_container(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "HOME", str(place / "none"))
    (reason,) = refusals(place)
    assert "found no tritonserver" in reason


def test_a_server_that_cannot_run_is_no_server(place: Path, triton: Path) -> None:
    (triton / "bin/tritonserver").write_text("#!/bin/sh\necho libb64.so.0d: cannot open >&2\nexit 127\n")
    (reason,) = refusals(place)
    assert "--help names no options (libb64.so.0d: cannot open), wanted a server that runs" in reason


def test_a_driver_of_the_row_with_a_build_behind_it_is_the_rows(place: Path) -> None:
    (place / "version").write_text("1.1.67-6d00b56\n")
    assert refusals(place) == []
    (place / "version").write_text("1.1.670\n")
    assert len(refusals(place)) == 1


def test_what_a_python_lacks() -> None:
    assert conditions.python(sys.executable, FITS["requirements"]) == (FITS["python"], ["no-such-package==1.0"])
    assert conditions.python("/no/python", ["numpy<2"]) == (None, ["numpy<2"])


def test_what_the_container_was_given_too_little_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions.resource, "getrlimit", lambda _limit: (65536, 65536))
    memlock, shared = conditions.warnings({**FITS, "shm_size": 1 << 60})
    assert "found a memlock limit of 65536 bytes" in memlock
    assert "MiB in /dev/shm, wanted" in shared
    monkeypatch.setattr(conditions.resource, "getrlimit", lambda _limit: (conditions.resource.RLIM_INFINITY,) * 2)
    assert conditions.warnings(FITS) == []


def test_the_file_of_a_server_is_json(root: str) -> None:
    start(root, [sys.executable, "-c", ONCE])
    assert set(json.loads(Path(supervised.home(root), "config.json").read_text())) >= {"command", "environment", "log", "pid"}


# The client


def test_a_client_that_gives_no_answer_is_told_with_its_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    document = {"host": "localhost", "checks": [], "timeout": 1}
    with pytest.raises(check_client.ClientError, match=r"the client in .*python.* ended with 1 and without a result"):
        check_client.run_in_process(sys.executable, document, base64.b64encode(b"no archive").decode())
    with pytest.raises(check_client.ClientError, match="the client of /no/python did not run"):
        check_client.run_in_process("/no/python", document, "")


@pytest.mark.parametrize("error", [KeyError("State"), MemoryError(), RecursionError("too deep")])
def test_any_error_restores_the_server_before(root: str, order: Any, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    change.Server(root, order({"digits": 1})).change()

    def fails(_server: Any) -> None:
        raise error

    wanted = order({"digits": 2})
    monkeypatch.setattr(change.Server, "_ask", fails)
    outcome = change.Server(root, wanted).change()
    assert outcome.why and f"{type(error).__name__}(" in outcome.why and "playbooks/collect.yml" in outcome.why
    assert outcome.back == "the one before it serves again"
    assert served(wanted) == {"digits": release_of("digits", 1)["release"]}
    assert not os.path.exists(os.path.join(root, "transaction.json"))
