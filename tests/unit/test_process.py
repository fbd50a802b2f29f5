"""A server as a process of this machine: supervised, changed, proven and restored, with a program in the place of tritonserver."""

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
from ansible_collections.npufleet.triton.plugins.module_utils.change import drivers, host_change, lease, proof, replacement
from ansible_collections.npufleet.triton.plugins.module_utils.engine import check_client
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import locks
from ansible_collections.npufleet.triton.plugins.module_utils.process import conditions, state, supervised, supervisor
from ansible_collections.npufleet.triton.plugins.module_utils.programs import archive
from ansible_collections.npufleet.triton.plugins.module_utils.triton.served import read_served
from ansible_collections.npufleet.triton.plugins.modules import triton_process
from helpers import run_module
from played_engine import Killed
from test_stuck_load import STUB, needs_numbers

SUPERVISOR = base64.b64encode(archive.program("process.supervisor")).decode()
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
    monkeypatch.setattr(proof, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(supervised, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(check_client, "run_in_process", lambda *_given: [{"name": "digits", "ok": True, "why": ""}])
    return home


def config_of(root: str, command: list[str], **more: Any) -> dict[str, Any]:
    environment = {"PATH": os.environ["PATH"]}
    config = {"command": command, "environment": environment, "stop_timeout": 5, "program": DIGEST, "stuck_load_limit": 0}
    return {**config, **more}


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
        assert locks.is_held(looking) is False
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
    """Return a function that makes the order of a change for models {name: edition}, with changed fields of server or order."""
    port = free_port()

    def make(models: dict[str, int], *more: str, **changes: Any) -> dict[str, Any]:
        releases = {name: release_of(name, edition) for name, edition in models.items()}
        wanted = {
            name: {**release, "files": {path: {"sha256": file["sha256"], "blob": False} for path, file in release["files"].items()}}
            for name, release in releases.items()
        }
        server: dict[str, Any] = {
            "root": root,
            "address": "127.0.0.1",
            "http_port": port,
            "grpc": False,
            "grpc_port": 1,
            "key": None,
            "fingerprint": None,
            "mode": "none",
            "cache": False,
            "models": {name: {**model, "memory": [], "switch": "beside"} for name, model in wanted.items()},
            "triton": "2.42.0",
            "cards": {"npus": 2, "card": "RBLN-CA12"},
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
            "stuck_load_limit": 15,
            "backends": {"rbln/model.py": base64.b64encode(b"pass\n").decode()},
            "supervisor": {"archive": SUPERVISOR, "digest": DIGEST},
        }
        server.update({name: value for name, value in changes.items() if name in server})
        return {
            "run": "r",
            "desired": {
                "models": {"root": root, "incoming": root + "/incoming", "verify": False, "models": wanted},
                "server": server,
            },
            "container": {"free_timeout": 0, "stop_timeout": 5, "ready_timeout": changes.get("ready_timeout", 60), "key": None},
            "poll_seconds": 1,
            "keep": 3,
            "releases": releases,
            "blobs": {},
            "api_key": changes.get("api_key", ""),
            "checks": {"image": "", "document": {"host": "localhost", "checks": [1], "server": {}}, "program": ""},
        }

    return make


def local_server(root: str, order: dict[str, Any]) -> triton_process.LocalServer:
    given = {name: value for name, value in order.items() if name not in ("run", "api_key")}
    who = {"run": order["run"], "by": "me@here", "host": "localhost"}
    return triton_process.LocalServer({"root": root, "order": given, "api_key": order["api_key"], **who})


def change(root: str, order: dict[str, Any]) -> host_change.Outcome:
    return local_server(root, order).apply()


def served(order: dict[str, Any]) -> dict[str, Any]:
    found = read_served(order["desired"]["server"]) or {}
    return {name: versions["1"]["release"] for name, versions in found.items()}


def names(root: str, order: dict[str, Any]) -> list[str]:
    return [entry["name"] for entry in local_server(root, order).change().observe().plan]


def test_it_serves_and_a_second_look_finds_nothing(root: str, order: Any) -> None:
    wanted = order({"digits": 1})
    assert names(root, wanted) == ["digits", "process"]
    outcome = change(root, wanted)
    assert outcome.why is None, outcome.why
    assert [check["ok"] for check in outcome.checks] == [True]
    assert served(wanted) == {"digits": release_of("digits", 1)["release"]}
    assert names(root, wanted) == []
    running = supervised.running(root) or {}
    assert "--allow-vertex-ai=false" not in running["command"], "this server does not know it"
    (backends,) = [word.partition("=")[2] for word in running["command"] if word.startswith("--backend-directory=")]
    assert sorted(os.listdir(backends)) == ["python", "rbln"]
    assert running["environment"]["PATH"].startswith(root + "/venv/bin:")


def test_a_model_that_changes_is_served_anew(root: str, order: Any) -> None:
    change(root, order({"digits": 1, "add": 1}))
    wanted = order({"digits": 2})
    outcome = change(root, wanted)
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
    change(root, order({"digits": 1}))
    assert names(root, order({"digits": 1}, **changes)) == names_of


def test_a_server_that_does_not_start_gives_way_to_the_one_before(root: str, order: Any) -> None:
    before = order({"digits": 1})
    change(root, before)
    outcome = change(root, order({"digits": 2}, "--dies"))
    assert outcome.why is not None and "no such option: --dies" in outcome.why
    assert outcome.back == "the previous server serves again"
    assert served(before) == {"digits": release_of("digits", 1)["release"]}
    assert names(root, before) == []


def test_a_secret_that_the_server_repeats_is_not_told(root: str, order: Any) -> None:
    wanted = order({"digits": 1}, "--dies", "--cache-config=redis,password=hunter2-and-more")
    outcome = change(root, wanted)
    assert outcome.why is not None and "no such option: --dies" in outcome.why
    assert "hunter2" not in outcome.why
    assert "npufleet_supervisor" in outcome.why


def test_wrong_answers_bring_back_what_served(root: str, order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = order({"digits": 1})
    change(root, before)
    monkeypatch.setattr(
        check_client, "run_in_process", lambda *_given: [{"name": "digits", "ok": False, "why": "found 8, wanted 3"}]
    )
    outcome = change(root, order({"digits": 2}))
    assert outcome.why is not None and outcome.why.startswith("0 of 1 checks passed") and "found 8, wanted 3" in outcome.why
    assert [check["ok"] for check in outcome.checks] == [False]
    assert served(before) == {"digits": release_of("digits", 1)["release"]}


def test_server_with_another_port_is_rolled_back_to_the_previous_port(
    root: str, order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = order({"digits": 1})
    change(root, before)
    monkeypatch.setattr(check_client, "run_in_process", lambda *_given: [{"name": "digits", "ok": False, "why": "wrong"}])
    moved = order({"digits": 2}, ready_timeout=20)
    server, port = moved["desired"]["server"], free_port()
    old_port = server["http_port"]
    server.update(http_port=port, command=[word.replace(f"-port={old_port}", f"-port={port}") for word in server["command"]])
    outcome = change(root, moved)
    assert (outcome.why is None, outcome.back, outcome.restored) == (False, "the previous server serves again", True)
    assert served(before) == {"digits": release_of("digits", 1)["release"]}


def test_other_cards_are_refused_while_the_old_one_serves(root: str, order: Any) -> None:
    before = order({"digits": 1})
    change(root, before)
    pid = supervised.holder(root)
    environment = {**before["desired"]["server"]["environment"], "MARK": "2"}
    outcome = change(root, order({"digits": 1}, environment=environment, cards={"npus": 3, "card": "RBLN-CA12"}))
    assert outcome.why is not None and "the SDK in this container sees 2 NPUs, expected 3" in outcome.why
    assert supervised.holder(root) == pid


def test_another_triton_is_not_kept(root: str, order: Any) -> None:
    outcome = change(root, order({"digits": 1}, triton="2.51.0"))
    assert outcome.why is not None and "server version" in outcome.why
    assert "2.42.0" in outcome.why and "2.51.0, as rbln_release has it" in outcome.why
    assert outcome.back == "there was no server before; the next run continues from this state"


def test_a_key_is_made_once_for_its_owner_alone(root: str, order: Any) -> None:
    def closed(**more: Any) -> dict[str, Any]:
        wanted = order({"digits": 1}, **more)
        wanted["desired"]["server"]["key"] = {"name": "npufleet-key", "path": state.key_path(root)}
        return wanted

    assert names(root, closed()) == ["digits", "key", "process"]
    assert change(root, closed()).why is None
    key = Path(state.key_path(root))
    assert (key.stat().st_mode & 0o777, len(key.read_text())) == (0o600, 64)
    assert names(root, closed()) == []
    key.chmod(0o644)
    assert names(root, closed()) == ["key"]
    assert change(root, closed(api_key="of the operator's own")).why is None
    assert key.read_text() == "of the operator's own"
    assert names(root, closed()) == []


def test_one_change_at_a_time(root: str, order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_process, "WAIT_SECONDS", 0.0)
    lease.acquire(root, lease.Holder("bob/2/2", "bob@ops2"), 60.0, {}, watchdog=False)
    with pytest.raises(lease.LeaseError, match="another run is changing this host: bob@ops2"):
        change(root, order({"digits": 1}))
    assert supervised.holder(root) is None


def test_a_run_that_ends_leaves_no_lease(root: str, order: Any) -> None:
    assert change(root, order({"digits": 1})).why is None
    assert lease.read(root) is None
    assert replacement.read(root) is None


# A change that is killed


def killed(root: str, order: dict[str, Any], monkeypatch: pytest.MonkeyPatch, place_of: Any, name: str, after: bool) -> None:
    """Have a change end at the first call of a function, before or after that, as a kill ends it."""
    real = getattr(place_of, name)

    def dies(*given: Any, **more: Any) -> Any:
        if after:
            real(*given, **more)
        raise Killed

    with monkeypatch.context() as dying:
        dying.setattr(place_of, name, dies)
        # The kernel ends what a process holds, and nobody releases the lease
        dying.setattr(triton_process.lease, "release", lambda *_given: False)
        with pytest.raises(Killed):
            change(root, order)


@pytest.mark.parametrize("right", [True, False], ids=["proven by the next run", "restored by the next run"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("place_of", "name"),
    [
        (supervised, "stop"),
        (supervised, "start"),
        (host_change.HostChange, "_prove"),
        (host_change.HostChange, "_check"),
        (drivers.ProcessDriver, "keep"),
    ],
    ids=["stop", "start", "proof", "checks", "keep"],
)
def test_the_next_run_finishes_a_change_that_was_killed(
    root: str, order: Any, monkeypatch: pytest.MonkeyPatch, place_of: Any, name: str, after: bool, right: bool
) -> None:
    monkeypatch.setattr(triton_process, "LEASE_SECONDS", 0.0)
    first = order({"digits": 1})
    assert change(root, first).why is None
    config = supervised.running(root)
    second = order({"digits": 2}, environment={**first["desired"]["server"]["environment"], "MARK": "2"})
    killed(root, second, monkeypatch, place_of, name, after)
    assert "lease" in names(root, {**second, "run": "s"})
    if not right:
        monkeypatch.setattr(check_client, "run_in_process", lambda *_given: [{"name": "digits", "ok": False, "why": "is 8"}])
    outcome = change(root, {**second, "run": "s"})
    # At the end of a change its releases are proven, and soon after that its server is
    closed = name == "keep"
    proven = right or (closed and after)
    assert (outcome.why is None) is proven, (outcome.why, outcome.back)
    assert served(second) == {"digits": release_of("digits", 2 if right or closed else 1)["release"]}
    assert (supervised.running(root) == config) is not proven
    assert closed or names(root, second if proven else first) == []
    assert (lease.read(root), replacement.read(root)) == (None, None)
    assert not os.path.exists(os.path.join(root, "transaction.json"))


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
    outcome = change(root, order({"digits": 1}, *stuck, stuck_load_limit=1))
    assert outcome.why is None, outcome.why
    (words,) = [entry for entry in outcome.did if entry.startswith("a load")]
    assert re.fullmatch(r"a load is stuck, ends process \d+ of digits_0", words)
    assert "the server ended with 1 and starts again in 1 s" in supervised.log_since(root, 0)


@needs_numbers
def test_without_a_limit_a_start_that_is_stuck_is_not_proven(root: str, order: Any, stuck: list[str]) -> None:
    outcome = change(root, order({"digits": 1}, *stuck, stuck_load_limit=0, ready_timeout=3))
    assert outcome.why is not None and "server http" in outcome.why
    assert "ended with" not in supervised.log_since(root, 0)


@needs_numbers
def test_what_is_put_back_and_stuck_is_repeated_as_well(root: str, order: Any, stuck: list[str]) -> None:
    began = Path(stuck[0].partition("=")[2], "began")
    began.touch()
    before = order({"digits": 1}, *stuck, stuck_load_limit=1)
    assert change(root, before).why is None
    began.unlink()
    outcome = change(root, order({"digits": 1}, "--dies", stuck_load_limit=1))
    assert outcome.why and outcome.back == "the previous server serves again"
    assert names(root, before) == []


def test_a_load_that_was_stuck_is_repeated(root: str, order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In mode explicit Triton refuses the load, right behind the line of its supervisor."""
    applied: list[int] = []

    class Change:
        loaded: ClassVar[list[str]] = []
        unloaded: ClassVar[list[str]] = []

        hung: ClassVar[list[str]] = []

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
    monkeypatch.setattr(host_change, "Change", Change)
    found = local_server(root, order({"digits": 1})).change()
    found._load({})
    assert (applied, found._outcome([]).did) == ([0, 1], ["a load is stuck, ends process 7 of digits_0"])


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
        "Triton is 2.42.0, expected 2.51.0",
        f"{sys.executable} is Python {FITS['python']}, expected 3.99",
        "1 devices ",
        "rsd0 is missing",
        "the driver of this machine is 3.2.2-abc, expected 1.1.67",
        "the cards are RBLN-CA25, expected RBLN-CA12",
        "MiB free, expected",
        f"port {port} is in use",
    ]
    assert len(found) == len(words), found
    assert [word for word, reason in zip(words, found) if word not in reason] == []


def test_without_a_server_it_is_no_triton_container(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "HOME", str(place / "none"))
    (reason,) = refusals(place)
    assert "tritonserver is missing" in reason


def test_a_server_that_cannot_run_is_no_server(place: Path, triton: Path) -> None:
    (triton / "bin/tritonserver").write_text("#!/bin/sh\necho libb64.so.0d: cannot open >&2\nexit 127\n")
    (reason,) = refusals(place)
    assert "--help lists no options (libb64.so.0d: cannot open), expected a server that runs" in reason


def test_a_driver_of_the_row_with_a_build_behind_it_is_the_rows(place: Path) -> None:
    (place / "version").write_text("1.1.67-6d00b56\n")
    assert refusals(place) == []
    (place / "version").write_text("1.1.670\n")
    assert len(refusals(place)) == 1


def python(place: Path, text: str) -> str:
    """Write a program in place of the server's Python, and return its path."""
    program = place / "python"
    program.write_text(f"#!{sys.executable}\n{text}\n")
    program.chmod(0o755)
    return str(program)


def test_what_a_python_lacks() -> None:
    assert conditions.missing_packages(sys.executable, FITS["requirements"]) == (["no-such-package==1.0"], [])


def test_python_that_fails_lacks_all_packages(tmp_path: Path) -> None:
    for path in ("/no/python", python(tmp_path, "raise SystemExit('broken')")):
        assert conditions.missing_packages(path, ["numpy<2"]) == (["numpy<2"], [])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "nothing"),
        ("print('banner')", "banner"),
        ("""print('{"lacks": []}\\nGoodbye')""", '{"lacks": []} Goodbye'),
        ("""print('{"python": "3.10"}')""", '{"python": "3.10"}'),
        ("""print('{"lacks": "numpy"}')""", '{"lacks": "numpy"}'),
        ("print('[]')", "[]"),
    ],
)
def test_python_with_another_output_is_a_refusal(tmp_path: Path, text: str, found: str) -> None:
    """Without a refusal, the packages would count as installed."""
    path = python(tmp_path, text)
    lacks, refused = conditions.missing_packages(path, ["numpy<2"])
    assert lacks == ["numpy<2"]
    (reason,) = refused
    assert reason.startswith(
        f"{path} printed {found}, expected a list of missing packages as JSON. Correct what this Python prints"
    )


def test_unreadable_python_refuses_the_run(root: str, order: Any, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = python(place, "print('banner')")
    monkeypatch.setattr(state, "python_path", lambda _root: broken)
    wanted = {**order({"digits": 1}), "conditions": {**FITS, "requirements": ["numpy<2"]}}
    request = {name: wanted[name] for name in ("run", "api_key")}
    found = run_module(triton_process, {**request, "state": "planned", "root": root, "host": "localhost", "order": wanted})
    assert found["failed"] is False, found
    (refusal,) = found["refusals"]
    assert f"{broken} printed banner, expected a list of missing packages" in refusal


def test_what_the_container_was_given_too_little_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions.resource, "getrlimit", lambda _limit: (65536, 65536))
    memlock, shared = conditions.warnings({**FITS, "shm_size": 1 << 60})
    assert "the memlock limit is 65536 bytes" in memlock
    assert "/dev/shm has " in shared and "MiB, expected" in shared
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
    change(root, order({"digits": 1}))

    def fails(_server: Any) -> None:
        raise error

    wanted = order({"digits": 2})
    monkeypatch.setattr(host_change.HostChange, "_check", fails)
    outcome = change(root, wanted)
    assert outcome.why and f"{type(error).__name__}(" in outcome.why and "playbooks/collect.yml" in outcome.why
    assert outcome.back == "the previous releases serve again"
    assert served(wanted) == {"digits": release_of("digits", 1)["release"]}
    assert not os.path.exists(os.path.join(root, "transaction.json"))
