#!/usr/bin/python3
"""Watches a Triton server by what its probes do not tell, and reloads a model or restarts the container.

npufleet_watchdog.py CONFIG: a JSON file, see `Config`. Runs as root beside the engine, on Python 3.9 and the standard library, with
stuck_load.py beside it.
What it sees is judged by `Judge`, which is pure; whether it may act by `Ledger`; everything that touches the host is in `Host`.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import functools
import hashlib
import http.client
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from typing import IO, Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

# An isolated Python (-I) does not look there by itself.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import stuck_load

ENGINE = "/var/run/docker.sock"
# Whoever takes the lease of the host holds the lock to write it; while it is there, nothing is done.
LOCK = "/run/npufleet-watchdog.lock"
LEASE = "lease.json"
# While it is there a container is being exchanged, and nothing may serve
REPLACEMENT = "replacement.json"
# Ends a change whose run is gone; its exit code while that may still be at it
CHANGE = "/usr/local/lib/npufleet/library/current"
BUSY = 75
# Seconds between two such calls, and without a sign of a run before there is any: each starts a Python of its own
CALL, QUIET = 10.0, 60.0
# The kernel keeps 15 characters of triton_python_backend_stub.
STUB = "triton_python_b"
# Up to here Triton restarts a dead stub by itself, and one that is killed during a request takes the server down with it.
LAST_TO_RESTART_STUBS = (2, 46)
# Requests that never reached the model say nothing about it.
NEVER_RUN = ("REJECTED", "CANCELED")
WORK = ("nv_inference_request_success", "nv_inference_count", "nv_inference_exec_count")
# What the path of a request cannot hold as it is
UNASKABLE = re.compile(r"[\x00-\x20\x7f/?#\ud800-\udfff]")
HOUR = 3600.0
# The rule of loads that are stuck, and what is done about them
STUCK, END = "stuck", "end"
# The longest pause, and one that is long enough to call for hands
LONGEST, LONG = 24 * HOUR, 600.0
# Seconds within which a model that has to be reloaded again was not helped by it
RELAPSE = 900.0
# Seconds: for one answer; for the processes of an unloaded model to end
ANSWER, SETTLE = 5.0, 10.0
# The server's port inside the container; seconds that a client there takes to start
GRPC_PORT, START = 8001, 60.0
KEPT = 50
# Seconds for all that the server says of its models
LOOK = 60.0
# Bytes of one answer, whatever it is framed in; lines of a page of metrics, and characters of a line that counts
ANSWER_SIZE, PAGE_LINES, LINE_LENGTH = 16 << 20, 100_000, 16_384
# Instances that one group of a model has at most
INSTANCES = 4096
# Not `\w+` alone: at each character of a long word it would begin again
LABEL = re.compile(r'(?<!\w)(\w+)="((?:[^"\\]|\\.)*)"')

Labels = Dict[str, str]
Page = Dict[str, List[Tuple[Labels, float]]]


class Config(NamedTuple):
    """The configuration: times in seconds."""

    container: str
    address: str
    http_port: int
    # None where the server offers no metrics: then only whether it answers is judged
    metrics_port: Optional[int]
    mode: str
    root: str
    vendor_tools: List[str]
    interval: float
    fault_limit: float
    stall_limit: float
    stub_limit: float
    silence_limit: float
    start_limit: float
    actions: int
    backoff: float
    load_limit: float
    stop_limit: float
    free_limit: float
    # Of the server's restricted APIs: the name of its header, and the file of the host and of the container that holds it
    key: Optional[Dict[str, str]]
    # What python3 in the container asks for loads with; None where the server is asked over HTTP
    client: Optional[str]
    # See stuck_load.py; 0 never ends a load
    stuck_load_limit: float = 0.0


class Reading(NamedTuple):
    """What one look at the host found."""

    at: float
    # Identity of this run of the container, None while it does not run
    life: Optional[str]
    age: float
    # None while the server does not answer
    metrics: Optional[Page]
    # {model: {version: state}}, None where the index is not to be had
    models: Optional[Dict[str, Dict[str, str]]]
    # {model: names of instances without a process}
    dead: Dict[str, List[str]]
    ensembles: Tuple[str, ...] = ()
    # Models that no request can name
    nameless: Tuple[str, ...] = ()
    # Loads in which server and stub wait for each other
    loads: Optional[stuck_load.Sample] = None


class Stub(NamedTuple):
    """A process of the python backend: the file that it runs, and the name of its instance, which other models may have too."""

    code: str
    instance: str


class Served(NamedTuple):
    """A version that is READY and whose instances are processes."""

    model: str
    version: str
    file: str
    instances: Tuple[str, ...]

    def runs(self, stub: Stub) -> bool:
        """Whether this process is of this version, by where its code lies."""
        return stub.code.endswith(f"/{self.model}/{self.version}/{self.file}")


class Finding(NamedTuple):
    """Something that has lasted for too long. `model` None means the whole server."""

    rule: str
    model: Optional[str]
    found: str
    wanted: str
    # Of a load that is stuck
    waits: Tuple[stuck_load.Wait, ...] = ()


class Failure(Exception):
    """Why something could not be done."""

    # What helps where the watchdog could not look
    todo = "see `systemctl status docker`"


class TooMuch(Failure):
    """An answer that is too large to be judged: nothing is done, as a restart would not make it smaller."""

    todo = "find out which model makes it so large: nothing is watched until then"


def parse(text: str) -> Page:
    """A page of metrics as {name: [(labels, value)]}; lines that are none or too long are passed over. Raises TooMuch."""
    page: Page = {}
    # Not splitlines(): the name of a model may have what Python takes for the end of a line.
    lines = text.split("\n", PAGE_LINES)
    if len(lines) > PAGE_LINES:
        raise TooMuch(f"a page of metrics of more than {PAGE_LINES} lines")
    for line in lines:
        match = re.match(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)", line) if len(line) <= LINE_LENGTH else None
        if match:
            pairs = LABEL.findall(match[2] or "")
            labels = {name: re.sub(r"\\(.)", lambda entry: "\n" if entry[1] == "n" else entry[1], value) for name, value in pairs}
            with contextlib.suppress(ValueError):
                page.setdefault(match[1], []).append((labels, float(match[3])))
    return page


class Judge:
    """The rules. It remembers how long something has been so; `forget` makes it start anew."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._life: Optional[str] = None
        self._answered = False
        self._since: Dict[Tuple[str, ...], float] = {}
        self._seen: Set[Tuple[str, ...]] = set()
        self._work: Dict[Tuple[str, str], Tuple[float, ...]] = {}
        # Requests that a reload left behind wait for ever in the gauge of a server that could not end their process.
        self._lost: Dict[Tuple[str, str], float] = {}
        self._lose: Optional[str] = None
        self._loads = stuck_load.History(config.stuck_load_limit)

    def forget(self, reloaded: Optional[str] = None) -> None:
        """Nothing lasts any more. What waits for a model just `reloaded` at the next look will never be answered."""
        self._since.clear()
        self._work.clear()
        self._loads.forget()
        self._lose = reloaded or self._lose

    def judge(self, reading: Reading) -> List[Finding]:
        """What has lasted for longer than its limit, the surest first."""
        if reading.life != self._life:
            self.forget()
            self._lost.clear()
            self._life, self._answered, self._lose = reading.life, False, None
        if reading.life is None:
            return []
        stuck = self._loads.add(reading.loads) if reading.loads else []
        if stuck:
            # Nobody has to wait any longer: neither end of such a wait can go on.
            processes = ", ".join(map(str, stuck))
            found = f"{processes} waiting for {self._config.stuck_load_limit:g} s for a server that waits for its end"
            return [Finding(STUCK, None, found, "a load that goes on", tuple(stuck))]
        self._seen.clear()
        silent = self._lasting(("silent",), reading.metrics is None, reading.at)
        if reading.metrics is None:
            patient = reading.age <= self._config.start_limit and not self._answered
            if silent <= self._config.silence_limit or patient:
                return []
            found = f"a container that runs, and a server that has not answered for {silent:.0f} s"
            return [Finding("silent", None, found, "answers")]
        self._answered = True
        findings = self._faults(reading) + self._stubs(reading) + self._stalls(reading)
        # What was unloaded meanwhile does not last any more.
        self._since = {key: since for key, since in self._since.items() if key in self._seen}
        return findings

    def _lasting(self, key: Tuple[str, ...], so: bool, now: float) -> float:
        """Seconds for which it has been `so` at every look."""
        if not so:
            self._since.pop(key, None)
            return 0.0
        self._seen.add(key)
        return now - self._since.setdefault(key, now)

    def _faults(self, reading: Reading) -> List[Finding]:
        """An NPU that does not answer, as the backend itself says."""
        silent: Dict[str, List[str]] = {}
        longest = 0.0
        for labels, value in (reading.metrics or {}).get("rbln_device_fault", []):
            key = ("fault", *(labels.get(name, "") for name in ("model", "version", "instance", "npu")))
            seconds = self._lasting(key, value > 0, reading.at)
            if seconds > self._config.fault_limit:
                longest = max(longest, seconds)
                silent.setdefault(labels.get("model", ""), []).append("NPU {} of {}".format(labels.get("npu", "?"), key[3]))
        return [
            Finding(
                "fault", model, "{} without an answer for {:.0f} s".format(", ".join(sorted(npus)), longest), "NPUs that answer"
            )
            for model, npus in sorted(silent.items())
        ]

    def _stubs(self, reading: Reading) -> List[Finding]:
        """Instances whose process is gone. Probes stay 200 and the index READY, each request to them fails."""
        findings = []
        for model, instances in sorted(reading.dead.items()):
            seconds = self._lasting(("stub", model), True, reading.at)
            if seconds > self._config.stub_limit:
                found = "no process of {} for {:.0f} s".format(", ".join(instances), seconds)
                findings.append(Finding("stub", model, found, "a process of every instance"))
        return findings

    def _stalls(self, reading: Reading) -> List[Finding]:
        """Requests wait and none is answered, although every probe is 200. An ensemble has no process: its steps are judged."""
        page = reading.metrics or {}
        findings = []
        for labels, pending in page.get("nv_inference_pending_request_count", []):
            model, version = labels.get("model", ""), labels.get("version", "")
            key = (model, version)
            if self._lose == model:
                self._lost[key] = pending
            self._lost[key] = min(self._lost.get(key, 0.0), pending)
            work = self._done(page, model, version)
            stuck = pending > self._lost[key] and self._work.get(key) == work and model not in reading.ensembles
            # From the look before, whose work was the same
            seconds = self._lasting(("stall", model, version), stuck, reading.at)
            self._work[key] = work
            if seconds > self._config.stall_limit:
                found = f"{pending - self._lost[key]:.0f} requests waiting and none answered for {seconds:.0f} s"
                findings.append(Finding("stall", model, found, "answers"))
        self._lose = None
        return findings

    @staticmethod
    def _done(page: Page, model: str, version: str) -> Tuple[float, ...]:
        """Every counter that moves when the model has worked, well or not."""
        of = {"model": model, "version": version}

        def total(name: str, *without: str) -> float:
            return sum(
                value
                for labels, value in page.get(name, [])
                if of.items() <= labels.items() and labels.get("reason") not in (None, *without)
            )

        counts = [value for name in WORK for labels, value in page.get(name, []) if of.items() <= labels.items()]
        # Without a reason, as before 24.05, a failure may be one that only waited for too long.
        return (*counts, total("nv_inference_request_failure", *NEVER_RUN))


def uptime() -> float:
    """Seconds since boot, by a clock that does not step: the time of day is for people only."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot() -> str:
    """This boot, as leases have it (change/lease.py): of the kernel, and of the first process of a container that is a host."""
    return f"{''.join(_pieces('/proc/sys/kernel/random/boot_id'))}/{_started(1)}"


class Ledger:
    """What was done, in a file that outlives the process, and whether more may be done."""

    def __init__(self, config: Config, clock: Callable[[], float] = uptime) -> None:
        self._config = config
        self._clock = clock
        self.path = config.root + "/watchdog.json"
        counts = {"reload": 0, "restart": 0, "failed": 0}
        self.state: Dict[str, Any] = {"actions": [], "counts": counts, "restarting": None, "reloading": None, "streak": 0}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            with open(self.path, encoding="utf-8") as source:
                found = json.load(source)
            actions = [self._dated(action) for action in found["actions"]]
            counts = {name: int(count) for name, count in found["counts"].items()}
            self.state.update(actions=actions, counts=counts, streak=int(found["streak"]))
            self.state.update(restarting=found["restarting"], reloading=found["reloading"])
        self.state.update(format=1, running=None, paused=None, gave_up=None)

    def _dated(self, action: Dict[str, Any]) -> Dict[str, Any]:
        """An action out of the file, its moment in seconds of this boot, which is before it for one of an earlier boot."""
        at, now, here = float(action["at"]), self._clock(), boot()
        if action.get("boot") == here and float(action["uptime"]) <= now:
            return {**action, "at": at, "uptime": float(action["uptime"])}
        # By the time of day, which may have been set since; at least as old as this boot, or of a version that kept no more
        age = max(time.time() - at, now if action.get("boot") else 0.0)
        return {**action, "at": at, "boot": here, "uptime": now - age}

    def note(self, **changes: Any) -> None:
        """Keep these, and write the file where they differ."""
        if any(self.state.get(key) != value for key, value in changes.items()):
            self.state.update(changes)
            self._write()

    def record(self, action: Dict[str, Any]) -> None:
        """Keep an action: {"at", "model", "rule", "action", "found", "did", "worked"}, `at` in seconds since 1970 for people."""
        action = {**action, "boot": boot(), "uptime": self._clock()}
        counts = dict(self.state["counts"])
        counts[action["action"]] = counts.get(action["action"], 0) + 1
        counts["failed"] = counts.get("failed", 0) + (not action["worked"])
        streak = self.state["streak"] + (action["action"] != END)
        kept = [*self.state["actions"], action]
        if len(kept) > KEPT:
            # Those that have a limit go last.
            kept.remove(next((entry for entry in kept if entry.get("action") == END), kept[0]))
        self.state.update(counts=counts, actions=kept, streak=streak)
        self._write()

    def lately(self) -> List[Dict[str, Any]]:
        """The actions of the last hour."""
        return [action for action in self._counted() if self._clock() - action["uptime"] < HOUR]

    def _counted(self) -> List[Dict[str, Any]]:
        """Return the actions that have a limit. What ends a stuck load has none: nothing was served that it could interrupt."""
        return [action for action in self.state["actions"] if action.get("action") != END]

    def waits(self) -> Tuple[float, Optional[str]]:
        """(seconds until something may be done, why nothing will be done although that is far)."""
        now, streak, counted = self._clock(), self.state["streak"], self._counted()
        if not counted or not streak:
            return 0.0, None
        pause = min(self._config.backoff * 2 ** (streak - 1), LONGEST)
        waits = [(counted[-1]["uptime"] + pause - now, f"{streak} actions in a row did not help" if pause > LONG else None)]
        lately = self.lately()
        if len(lately) >= self._config.actions:
            over = lately[-self._config.actions]["uptime"] + HOUR
            waits.append((over - now, f"{len(lately)} actions within an hour, which is the limit"))
        return max(waits, key=lambda wait: wait[0])

    def well(self) -> None:
        """Nothing is found: what was done has helped once that is so for an hour."""
        if self.state["streak"] and not self.lately():
            self.note(streak=0)

    def relapsed(self, model: str) -> bool:
        """Whether this model was reloaded a short while ago, and that did not help."""
        return any(
            action.get("action") == "reload" and action.get("model") == model and self._clock() - action["uptime"] < RELAPSE
            for action in self.state["actions"]
        )

    def _write(self) -> None:
        new = self.path + ".new"
        try:
            with open(new, "w", encoding="utf-8") as target:
                json.dump(self.state, target, indent=1, sort_keys=True)
            os.replace(new, self.path)
        except OSError as error:
            why = f"found {self.path} not to be written ({error.strerror}), wanted to keep there what was done"
            say(f"{why}: see `df {self.path}`", 4)


class _Overrun(OSError):
    """More bytes than an answer may have."""


class _Incoming(io.RawIOBase):
    """What a socket receives until a deadline, up to so many bytes: its own timeout begins again with each byte."""

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self._connected, self._deadline, self._left = connected, deadline, ANSWER_SIZE
        self._raw: Any = connected.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise socket.timeout("no whole answer in time")
        self._connected.settimeout(seconds)
        count = int(self._raw.readinto(buffer) or 0)
        self._left -= count
        if self._left < 0:
            raise _Overrun()
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Received:
    """What HTTPResponse takes of a socket."""

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self._connected, self._deadline = connected, deadline

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return what comes, as a file."""
        return io.BufferedReader(_Incoming(self._connected, self._deadline))


class _Connection(http.client.HTTPConnection):
    """A connection of one exchange, which ends after `timeout` whatever the server does."""

    def __init__(self, host: str, port: Optional[int] = None, *, timeout: float) -> None:
        super().__init__(host, port, timeout=timeout)
        self.response_class = functools.partial(_answer, time.monotonic() + timeout)  # type: ignore[assignment]

    def _encode_request(self, request: str) -> bytes:
        """Triton decodes nothing of a path: a name is its own bytes there, and quoted it would be another name."""
        return request.encode()


def _answer(deadline: float, connected: socket.socket, *arguments: Any, **options: Any) -> http.client.HTTPResponse:
    return http.client.HTTPResponse(_Received(connected, deadline), *arguments, **options)  # type: ignore[arg-type]


class _UnixConnection(_Connection):
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(ENGINE)


class Host:
    """Everything outside of this process: the engine, the server, processes, cards, marks."""

    def __init__(self, config: Config) -> None:
        self._config = config
        # When the run that holds the lease is looked for again
        self._call_at = 0.0

    # Reading

    def read(self) -> Reading:
        """One look. Raises Failure while the engine does not answer."""
        now = time.monotonic()
        facts = self.container()
        state = (facts or {}).get("State") or {}
        if not facts or state.get("Status") != "running":
            return Reading(now, None, 0.0, None, None, {})
        life, age = facts["Id"] + state["StartedAt"], _age(int(state["Pid"]))
        metrics = self._metrics()
        index = self.index() if metrics is not None else None
        ready, ensembles, _unknown = self._ready(index or {})
        nameless = tuple(sorted(model for model in index or {} if not _can_be_asked(model)))
        init = int(state["Pid"])
        return Reading(now, life, age, metrics, index, self._dead(init, ready), ensembles, nameless, stuck_load.look(init))

    def container(self) -> Optional[Dict[str, Any]]:
        """`docker inspect`, None where there is no such container."""
        status, facts = self._engine("GET", f"/containers/{self._config.container}/json")
        if status not in (200, 404):
            raise Failure(f"the engine answers {status}: {facts}")
        return facts if status == 200 else None

    def _engine(self, method: str, resource: str, timeout: float = 20.0, body: str = "") -> Tuple[int, Any]:
        headers = {"Content-Type": "application/json"} if body else {}
        return self._exchange(_UnixConnection("localhost", timeout=timeout), method, resource, body, headers)

    def _server(self, method: str, resource: str, timeout: Optional[float] = None, body: str = "") -> Tuple[int, Any]:
        connection = _Connection(self._config.address, self._config.http_port, timeout=timeout or ANSWER)
        return self._exchange(connection, method, resource, body, self._key())

    def _key(self) -> Dict[str, str]:
        """The header that opens restricted APIs; another key needs no other watchdog."""
        if self._config.key:
            with contextlib.suppress(OSError, ValueError), open(self._config.key["path"], encoding="ascii") as source:
                return {self._config.key["name"]: source.read().strip()}
        return {}

    @staticmethod
    def _exchange(
        connection: http.client.HTTPConnection, method: str, resource: str, body: str = "", headers: Optional[Dict[str, str]] = None
    ) -> Tuple[int, Any]:
        """(status, JSON or text) of one exchange; status 0 and the reason where there was none. Raises TooMuch."""
        try:
            connection.request(method, resource, body=body or None, headers=headers or {})
            with connection.getresponse() as answer:
                status, raw = answer.status, answer.read().decode("utf-8", "replace")
        except _Overrun:
            raise TooMuch(f"an answer to {method} {resource} of more than {ANSWER_SIZE} bytes") from None
        except (OSError, http.client.HTTPException) as error:
            return 0, str(error) or type(error).__name__
        finally:
            connection.close()
        try:
            return status, json.loads(raw)
        except (ValueError, RecursionError):
            return status, raw

    def _metrics(self) -> Optional[Page]:
        if self._config.metrics_port is None:
            return {} if self._server("GET", "/v2/health/live")[0] else None
        connection = _Connection(self._config.address, self._config.metrics_port, timeout=ANSWER)
        status, text = self._exchange(connection, "GET", "/metrics")
        return parse(str(text)) if status == 200 else None

    def index(self) -> Optional[Dict[str, Dict[str, str]]]:
        """{model: {version: state}}, None where the server does not say."""
        status, found = self._server("POST", "/v2/repository/index")
        if status != 200 or not isinstance(found, list):
            return None
        index: Dict[str, Dict[str, str]] = {}
        for entry in found:
            if isinstance(entry, dict) and isinstance(entry.get("name"), str):
                index.setdefault(entry["name"], {})[str(entry.get("version", "-"))] = str(entry.get("state", ""))
        return index

    def _ready(self, index: Dict[str, Dict[str, str]]) -> Tuple[List[Served], Tuple[str, ...], Set[str]]:
        """Return the versions that are READY and have processes, the ensembles, and the models whose config was not returned.

        Raises Failure where that takes too long.
        """
        served, ensembles, unknown = [], [], set()
        deadline = time.monotonic() + LOOK
        for model, versions in index.items():
            for version, state in versions.items():
                if state != "READY" or not version.isdigit() or not _can_be_asked(model):
                    continue
                if time.monotonic() >= deadline:
                    raise Failure(f"a server that has not told its {len(index)} models within {LOOK:.0f} s")
                status, config = self._server("GET", f"/v2/models/{model}/versions/{version}/config")
                if status != 200 or not isinstance(config, dict):
                    unknown.add(model)
                    continue
                if config.get("platform") == "ensemble":
                    ensembles.append(model)
                elif _in_processes(config):
                    file = str(config.get("default_model_filename") or "model.py")
                    served.append(Served(model, version, file, tuple(_instances(config))))
        return served, tuple(ensembles), unknown

    def _dead(self, init: int, ready: List[Served]) -> Dict[str, List[str]]:
        """{model: its instances that have no process}."""
        stubs = self.stubs(init) if ready else {}
        own, others = self._shares(stubs, ready)
        away = [entry for entry in ready if entry not in own]
        alive = collections.Counter(stubs[pid].instance for pid in others)
        asked = collections.Counter(name for entry in away for name in entry.instances)
        dead: Dict[str, Set[str]] = {}
        for element in ready:
            if element in own:
                lacking = set(
                    collections.Counter(element.instances) - collections.Counter(stubs[pid].instance for pid in own[element])
                )
            else:
                lacking = {name for name in element.instances if asked[name] > alive[name]}
            dead.setdefault(element.model, set()).update(lacking)
        return {model: sorted(names) for model, names in dead.items() if names}

    def _shares(self, stubs: Dict[int, Stub], ready: List[Served]) -> Tuple[Dict[Served, Set[int]], Set[int]]:
        """({version: its processes}, processes that may be of any other version).

        Code out of an object store lies in a directory of Triton's own, whose name tells nothing of the model.
        """
        home = self._config.root + "/served/"
        found = {entry: {pid for pid, stub in stubs.items() if entry.runs(stub)} for entry in ready}
        own = {entry: pids for entry, pids in found.items() if pids or os.path.lexists(home + entry.model)}
        told = {pid for pids in own.values() for pid in pids}
        return own, {pid for pid, stub in stubs.items() if pid not in told and not stub.code.startswith(home)}

    def _processes(self, init: int, model: str) -> Set[int]:
        """Return the processes that are certainly of this model: none that may be of another one."""
        ready, _ensembles, unknown = self._ready(self.index() or {})
        stubs = self.stubs(init)
        own, others = self._shares(stubs, ready)
        mine = [entry for entry in ready if entry.model == model]
        pids = {pid for part in mine for pid in own.get(part, ())}
        names = {name for part in mine if part not in own for name in part.instances}
        # A model whose config was not returned may have any names.
        if unknown - {model} or any(names & set(entry.instances) for entry in ready if entry.model != model and entry not in own):
            return pids
        return pids | {pid for pid in others if stubs[pid].instance in names}

    @staticmethod
    def stubs(init: int) -> Dict[int, Stub]:
        """The living stubs of the container whose first process is `init`, by process."""
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            words = _pieces(f"/proc/{pid}/cmdline", "\0") if _pieces(f"/proc/{pid}/comm") == [STUB] else []
            # A dead one that nobody waited for has no words. The first is the program's own, the last but one is the instance.
            if len(words) > 3 and _same_namespace(pid, str(init)):
                found[int(pid)] = Stub(words[1], words[-2])
        return found

    def paused(self) -> Optional[str]:
        """Why nothing is to be done, None where something may be."""
        if os.path.exists(self._config.root + "/maintenance.json"):
            return "maintenance"
        return "deployment" if os.path.exists(f"{self._config.root}/{LEASE}") else None

    def resume(self) -> Optional[str]:
        """Put back what a run left that is gone; why nothing is to be done, None where that is over."""
        if time.monotonic() < self._call_at or self._at_work():
            return "deployment"
        command = [sys.executable, "-IS", CHANGE, "resume", self._config.root]
        done = subprocess.run(command, capture_output=True, check=False, env=untranslated())
        for line in (done.stdout + done.stderr).decode("utf-8", "replace").splitlines():
            print(line, flush=True)
        self._call_at = time.monotonic() + CALL if done.returncode == BUSY else 0.0
        return "deployment" if done.returncode == BUSY else self.paused()

    def _at_work(self) -> bool:
        """Whether the lease was renewed just now, as each call of its run does, and nothing is being exchanged."""
        if os.path.exists(f"{self._config.root}/{REPLACEMENT}"):
            return False
        path = f"{self._config.root}/{LEASE}"
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            with open(path, encoding="utf-8") as source:
                lease = json.load(source)
            return bool(lease["boot"] == boot() and 0 <= uptime() - lease["uptime"] < QUIET)
        # A version before wrote the time of day alone
        with contextlib.suppress(OSError):
            return 0 <= time.time() - os.stat(path).st_mtime < QUIET
        return False

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """While this is held no deployment begins."""
        with _lock_file(LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    # Acting

    def version(self) -> Tuple[int, ...]:
        """The server's version; one that is not told counts as old."""
        found = self._server("GET", "/v2")[1]
        match = re.match(r"(\d+)\.(\d+)", str(found.get("version")) if isinstance(found, dict) else "")
        return (int(match[1]), int(match[2])) if match else (0, 0)

    def reload(self, model: str) -> str:
        """Unload, end what does not end by itself, load. Without the unload Triton would answer 200 and do nothing."""
        facts = self.container()
        if not facts:
            raise Failure("the container is gone")
        init = int(facts["State"]["Pid"])
        before = self._processes(init, model)
        self._control(model, "unload", ANSWER)
        left = self._left(init, before, SETTLE)
        killed = ""
        # Where Triton restarts stubs, killing one during a request ends the whole server.
        if left and self.version() > LAST_TO_RESTART_STUBS:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            stay = self._left(init, left, SETTLE)
            if stay:
                raise Failure("process {} of it does not end, not even killed".format(", ".join(map(str, sorted(stay)))))
            killed = f", killed {len(left)} processes of it that did not end"
        self.load(model)
        return f"unloaded{killed} and loaded it"

    def load(self, model: str) -> None:
        """Load a model, and see that it is. A load that is stuck is ended and repeated."""
        with stuck_load.Guard(self._first_process, self._config.stuck_load_limit, tell=_tell_stuck) as guard:
            while True:
                ended = len(guard.ended)
                notify("WATCHDOG=1")
                try:
                    self._control(model, "load", self._config.load_limit)
                    break
                except Failure:
                    if not guard.repeats(ended):
                        raise
        states = (self.index() or {}).get(model) or {}
        if "READY" not in states.values():
            raise Failure(f"it is {', '.join(states.values()) or 'not there'} after the load")

    def _first_process(self) -> Optional[int]:
        """Return the first process of the container, None while it does not run."""
        with contextlib.suppress(Failure, KeyError, TypeError, ValueError):
            return int((self.container() or {})["State"]["Pid"]) or None
        return None

    def end(self, waits: Iterable[stuck_load.Wait]) -> str:
        """End the stubs of loads that are stuck."""
        init = self._first_process()
        ended = [str(wait) for wait in waits if init and stuck_load.end(wait, init)]
        if not ended:
            raise Failure("they have ended by themselves")
        return f"ended {', '.join(ended)}"

    def renew(self, model: str) -> str:
        """Have a server that polls look again at a model that it did not load: it takes what has a newer time stamp."""
        home = f"{self._config.root}/served/{model}"
        try:
            for path in (home, *(f"{home}/{entry}" for entry in os.listdir(home) if entry.isdigit())):
                os.utime(path)
        except OSError as error:
            raise Failure(f"{error.filename} could not get another time stamp ({error.strerror})") from None
        return "gave its files a newer time stamp"

    def load_again(self, model: str) -> str:
        """Repeat a load that failed."""
        self.load(model)
        return "loaded it again"

    def _left(self, init: int, pids: Iterable[int], seconds: float) -> Set[int]:
        """Those of the stubs that live on after at most this long."""
        deadline = time.monotonic() + seconds
        left = set(pids) & set(self.stubs(init))
        while left and time.monotonic() < deadline:
            time.sleep(0.2)
            left &= set(self.stubs(init))
        return left

    def _control(self, model: str, verb: str, timeout: float) -> None:
        """Have the server load or unload a model: over gRPC, as a load over HTTP keeps a thread from the clients of others."""
        if self._config.client is None:
            if not _can_be_asked(model):
                raise Failure(f"no request over HTTP can name it, so Triton cannot be told to {verb} it")
            status, answer = self._server("POST", f"/v2/repository/models/{model}/{verb}", timeout, "{}")
            code, reason = ("OK" if status == 200 else str(status)), answer.get("error") if isinstance(answer, dict) else answer
        else:
            code, reason = self._inside(self._config.client, {"verb": verb, "model": model, "timeout": timeout})
        if code != "OK":
            raise Failure(f"Triton would not {verb} it (status {code}: {_line(reason)})")

    def _inside(self, client: str, asked: Dict[str, Any]) -> Tuple[str, str]:
        """(gRPC's code, Triton's words): python3 asks in the container, where it reads the key, too."""
        given = json.dumps({**asked, "key": self._config.key, "port": GRPC_PORT})
        command = {"AttachStdout": True, "AttachStderr": True, "Cmd": ["python3", "-c", client, given]}
        status, made = self._engine("POST", f"/containers/{self._config.container}/exec", body=json.dumps(command))
        if status != 201 or not isinstance(made, dict):
            raise Failure(f"the engine would not run a client in the container: {_line(made)}")
        start = json.dumps({"Detach": False, "Tty": False})
        status, said = self._engine("POST", f"/exec/{made['Id']}/start", asked["timeout"] + START, start)
        # Each piece of the engine's stream has a head of eight bytes; the answer is one of them.
        words = str(said) if status == 200 else ""
        begin, end = words.rfind('{"code": '), words.rfind("}")
        try:
            answer = json.loads(words[begin : end + 1] if begin >= 0 else "")
            return str(answer["code"]), str(answer["words"])
        except (ValueError, KeyError):
            raise Failure(f"the client in the container gave no answer: {_line(said)}") from None

    def stop(self, identity: str) -> None:
        """Stop the container, as patiently as it says itself."""
        status, answer = self._engine("POST", f"/containers/{identity}/stop", self._config.stop_limit)
        if status not in (204, 304):
            raise Failure(f"the engine could not stop the container ({_line(answer)}): reboot the host")

    def start(self, identity: str) -> None:
        """Start it."""
        status, answer = self._engine("POST", f"/containers/{identity}/start", self._config.stop_limit)
        if status not in (204, 304):
            raise Failure(f"the engine could not start the container: {_line(answer)}")

    def contexts(self) -> Optional[List[Tuple[str, str]]]:
        """(process, name) of every context on the cards, none without the vendor's tool; None where that fails or hangs."""
        tool = next((path for path in self._config.vendor_tools if os.path.isfile(path) and os.access(path, os.X_OK)), None)
        if tool is None:
            return []
        try:
            done = subprocess.run([tool, "-j"], capture_output=True, timeout=20, check=True, env=untranslated())
            listed = json.loads(done.stdout).get("contexts") or []
            return [(str(context.get("pid")), str(context.get("process"))) for context in listed]
        except (OSError, subprocess.SubprocessError, ValueError, AttributeError, TypeError, RecursionError):
            return None

    def foreign(self, init: int) -> List[Tuple[str, str]]:
        """Contexts of living processes that are not the container's."""
        return [
            (pid, name)
            for pid, name in self.contexts() or []
            if _pieces(f"/proc/{pid}/comm") == [name[:15]] and not _same_namespace(pid, str(init))
        ]

    def free(self, foreign: List[Tuple[str, str]]) -> bool:
        """Wait until only `foreign` contexts are left: a start beside one that ends can wedge the card."""
        deadline = time.monotonic() + self._config.free_limit
        while True:
            found = self.contexts()
            if found is not None and not set(found) - set(foreign):
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.5)


class Watchdog:
    """Reads, judges, and does what is to be done."""

    def __init__(self, config: Config, host: Host, ledger: Ledger, judge: Judge) -> None:
        self._config, self._host, self._ledger, self._judge = config, host, ledger, judge
        self._said: Optional[str] = None
        self._nameless: Tuple[str, ...] = ()
        # When the container was restarted, until the server answers again
        self._acted: Optional[float] = None
        # Models whose load was ended, until they are loaded again
        self._ended: Set[str] = set()

    def round(self) -> None:
        """One look, and at most one action."""
        paused = self._host.paused()
        if paused == "deployment":
            paused = self._host.resume()
        self._ledger.note(paused=paused)
        if paused:
            self._judge.forget()
            # Whoever works there now brings it up again.
            self._ledger.note(restarting=None, reloading=None)
            return
        try:
            self._finish()
            reading = self._host.read()
        except Failure as failure:
            self._once(f"found {failure}, wanted to look at the container: {failure.todo}", 4)
            self._judge.forget()
            return
        self._tell_nameless(reading)
        findings = self._judge.judge(reading)
        if not findings:
            self._well(reading)
            self._load_again(reading)
            return
        seconds, why = self._ledger.waits()
        if seconds > 0 and findings[0].rule != STUCK:
            if why:
                words = f"{_sentence(findings[0])}, did nothing: {why}. Look at the NPUs, then restart it"
                self._once(words, 3)
                self._ledger.note(gave_up=self._ledger.state["gave_up"] or words)
            return
        with self._host.alone():
            if not self._host.paused():
                self._act(findings[0], reading)

    def _tell_nameless(self, reading: Reading) -> None:
        """Say once which models cannot be looked at as the others are."""
        if reading.models is None or reading.nameless == self._nameless:
            return
        self._nameless = reading.nameless
        for model in reading.nameless:
            found = "found a name with a space, a control character, / ? or #, which no request over HTTP can carry"
            say(f"model {model}: {found}, wanted one that can be asked for: its processes are not watched until it is renamed", 4)

    def _well(self, reading: Reading) -> None:
        if reading.metrics is None:
            return
        if self._acted is not None:
            say(f"the server answers again, {time.monotonic() - self._acted:.0f} s after its start")
            self._acted = None
        self._said = None
        self._ledger.note(gave_up=None)
        self._ledger.well()

    def _once(self, words: str, level: int) -> None:
        """Say it, unless it was the last thing said; figures do not make it another."""
        key = re.sub(r"\d+", "", words)
        if key != self._said:
            say(words, level)
            self._said = key

    def _act(self, finding: Finding, reading: Reading) -> None:
        """The mildest thing that may help; the next one at once where that cannot be done."""
        if finding.rule == STUCK:
            with contextlib.suppress(Failure):
                self._do(finding, END, lambda: self._host.end(finding.waits))
                # A server that starts ends with this load, and its engine starts it again. One that serves goes on without it.
                self._ended.update(filter(None, map(_model_of, finding.waits)))
            self._judge.forget()
            return
        model = finding.model
        harder = self._reload_is_no_use(finding, reading)
        if model is not None and harder is None:
            states = (reading.models or {}).get(model) or {}
            if "READY" not in states.values():
                # Somebody is loading or unloading it.
                return
            try:
                self._ledger.note(reloading=model)
                self._do(finding, "reload", lambda: self._host.reload(model))
                self._judge.forget(reloaded=model)
                return
            except Failure:
                pass
            finally:
                self._ledger.note(reloading=None)
        self._judge.forget()
        with contextlib.suppress(Failure):
            self._do(finding, "restart", self._restart, harder)

    def _load_again(self, reading: Reading) -> None:
        """Repeat the loads that failed because their processes were ended, where the server goes on."""
        for model in sorted(self._ended if reading.models is not None else ()):
            states = set(((reading.models or {}).get(model) or {}).values())
            if states & {"LOADING", "UNLOADING"}:
                continue
            if not states or "READY" in states:
                self._ended.discard(model)
                continue
            whole = self._config.mode not in ("explicit", "poll")
            if whole and self._ledger.waits()[0] > 0:
                # A restart interrupts the models that are served
                return
            self._ended.discard(model)
            load: Dict[str, Callable[[], str]] = {
                "explicit": functools.partial(self._host.load_again, model),
                "poll": functools.partial(self._host.renew, model),
            }
            found = Finding(STUCK, model, "no load of it, as the process of the last one was ended", "a served model")
            with self._host.alone(), contextlib.suppress(Failure):
                if not self._host.paused():
                    action = "restart" if whole else END
                    self._do(found, action, load.get(self._config.mode, self._restart))
            self._judge.forget()
            if whole:
                # It loads all of them
                return

    def _reload_is_no_use(self, finding: Finding, reading: Reading) -> Optional[str]:
        """Why the container is restarted without a reload, None where a reload comes first."""
        if finding.model is None:
            return "the whole server is silent"
        if self._config.mode != "explicit":
            return f"mode {self._config.mode} takes no requests to load"
        if reading.models is None:
            return "the server does not tell its models"
        if self._ledger.relapsed(finding.model):
            return "it was reloaded a short while ago"
        if finding.rule == "stall" and self._host.version() <= LAST_TO_RESTART_STUBS:
            return "a Triton of this age cannot end a process that hangs"
        return None

    def _do(self, finding: Finding, action: str, do: Callable[[], str], because: Optional[str] = None) -> None:
        """One action, said in one line and written down. Raises Failure where it did not work."""
        began = time.monotonic()
        failed: Optional[Failure] = None
        try:
            did = do()
        except Failure as failure:
            failed, did = failure, f"tried a {action}, and {failure}"
        took = time.monotonic() - began
        if because and not failed:
            did += f" ({because})"
        say(f"{_sentence(finding)}, did: {did}, {took:.1f} s", 3 if failed else 4)
        self._ledger.record(
            {
                "at": round(time.time(), 1),
                "rule": finding.rule,
                "model": finding.model,
                "found": finding.found,
                "action": action,
                "did": did,
                "worked": failed is None,
                "seconds": round(took, 1),
            }
        )
        self._said = None
        if failed:
            raise failed
        if action == "restart":
            self._acted = time.monotonic()

    def _restart(self) -> str:
        """Stop, wait for the cards, start. It is written down before: whoever comes after a crash of this process starts it."""
        facts = self._host.container()
        if not facts or not facts["State"].get("Running"):
            raise Failure("somebody has stopped the container meanwhile: it stays so")
        foreign = self._host.foreign(int(facts["State"]["Pid"]))
        self._ledger.note(restarting=facts["Id"])
        self._host.stop(facts["Id"])
        free = self._host.free(foreign)
        self._host.start(facts["Id"])
        self._ledger.note(restarting=None)
        return "restarted the container" + (
            "" if free else f" although the cards were not free within {self._config.free_limit:.0f} s"
        )

    def _finish(self) -> None:
        """End what a process before this one began, or a restart that failed halfway."""
        identity, model = self._ledger.state["restarting"], self._ledger.state["reloading"]
        if not identity and not model:
            return
        with self._host.alone():
            if self._host.paused():
                return
            facts = self._host.container()
            running = bool(facts and facts["State"].get("Running"))
            if facts and facts["Id"] == identity and not running:
                self._host.start(identity)
                say("found the container stopped by a restart that was not finished, wanted it running, did: started it", 4)
            self._ledger.note(restarting=None, reloading=None)
            if model and running:
                self._host.load(model)
                say(f"model {model}: found a reload that was not finished, wanted the model loaded, did: loaded it", 4)


def untranslated() -> Dict[str, str]:
    """Return the environment of a command whose output is parsed: its messages are in English, whatever the host's language."""
    return {**os.environ, "LC_ALL": "C", "LANGUAGE": "C"}


def _model_of(wait: stuck_load.Wait) -> Optional[str]:
    """Return the model of a stub, by the directory of its code; None where Triton has copied it elsewhere."""
    parts = wait.code.split("/")
    return parts[-3] if len(parts) > 3 and parts[-2].isdigit() else None


def _tell_stuck(wait: stuck_load.Wait) -> None:
    """Say what a load of the watchdog's own had to end."""
    say(f"found {wait} waiting for a server that waits for its end, wanted a load that goes on, did: ends it and loads again", 4)


def _in_processes(config: Dict[str, Any]) -> bool:
    """Whether the instances of a model are processes of their own: those of backends that are written in Python."""
    return config.get("backend") == "python" or str(config.get("runtime")).endswith(".py")


def _instances(config: Dict[str, Any]) -> List[str]:
    """Names of a model's instances; those of a group on GPUs are others."""
    groups = config.get("instance_group")
    return [
        "{}_{}".format(group.get("name"), number)
        for group in (groups if isinstance(groups, list) else [])
        if isinstance(group, dict) and group.get("kind") in ("KIND_CPU", "KIND_MODEL") and _is_count(group.get("count"))
        for number in range(group["count"])
    ]


def _is_count(number: Any) -> bool:
    return isinstance(number, int) and number <= INSTANCES


def _can_be_asked(model: str) -> bool:
    """Whether a path can hold this name, of which Triton takes every byte as it is."""
    return bool(model) and not UNASKABLE.search(model)


def _sentence(finding: Finding) -> str:
    of = f"model {finding.model}: " if finding.model else ""
    return f"{of}found {finding.found}, wanted {finding.wanted}"


def _line(words: Any) -> str:
    return " ".join(str(words).split())[:200]


def _pieces(path: str, end: str = "\n") -> List[str]:
    """What a file of /proc holds, by what each piece ends with; nothing of a process that is gone."""
    try:
        with open(path, "rb") as source:
            return source.read().decode("utf-8", "replace").split(end)[:-1]
    except OSError:
        return []


def _same_namespace(text: str, other: str) -> bool:
    """Whether two processes are of the same container."""
    try:
        return os.readlink(f"/proc/{text}/ns/pid") == os.readlink(f"/proc/{other}/ns/pid")
    except OSError:
        return False


def _age(pid: int) -> float:
    """Seconds since a process started, 0 for one that is gone. The engine tells it by the time of day, which may be set since."""
    started = _started(pid)
    return uptime() - int(started) / os.sysconf("SC_CLK_TCK") if started else 0.0


def _started(pid: int) -> str:
    """Ticks from boot to the start of a process, field 22 of /proc/PID/stat (proc(5)); empty for one that is gone."""
    after_name = "".join(_pieces(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return after_name[19] if len(after_name) > 19 else ""


def _lock_file(path: str) -> IO[str]:
    """A lock file that root alone can open, and so lock, whatever the umask is, and whoever made it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.fchmod(handle, 0o600)
    return os.fdopen(handle, "r+", encoding="utf-8")


def say(words: str, level: int = 6) -> None:
    """One line to the journal, with syslog's level: 3 error, 4 warning, 6 information."""
    # What a server calls its models is not to begin a line of its own.
    line = "".join(word if word.isprintable() else word.encode("unicode_escape").decode() for word in words)
    sys.stdout.buffer.write(f"<{level}>{line}\n".encode())
    sys.stdout.buffer.flush()


def notify(state: str) -> None:
    """Tell systemd, where it waits for it."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line, contextlib.suppress(OSError):
            line.sendto(state.encode(), address.replace("@", "\0", 1) if address.startswith("@") else address)


def digest(*paths: str) -> str:
    """SHA-256 of files, one behind the other."""
    content = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as source:
            content.update(source.read())
    return content.hexdigest()


def main() -> None:
    """Entry point."""
    path = sys.argv[1]
    running = {"program": digest(os.path.abspath(__file__), stuck_load.__file__), "config": digest(path)}
    with open(path, encoding="utf-8") as source:
        config = Config(**json.load(source))
    ledger = Ledger(config)
    ledger.note(running=running)
    watchdog = Watchdog(config, Host(config), ledger, Judge(config))
    say(f"watches {config.container} at {config.address}, every {config.interval:g} s")
    notify("READY=1")
    while True:
        notify("WATCHDOG=1")
        watchdog.round()
        time.sleep(config.interval)


if __name__ == "__main__":
    main()
