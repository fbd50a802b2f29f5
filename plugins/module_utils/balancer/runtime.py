# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Commands to a running HAProxy, and its answers as typed rows.

HAProxy answers on two sockets. The runtime socket reaches the current worker. The master socket also reaches old workers, which
keep running after a reload until their last session ends. `Runtime` limits the size and the time of each answer.
"""

from __future__ import annotations

import csv
import re
import socket
import time
from typing import Dict, Iterable, Iterator, List, NamedTuple, Sequence, TypeVar

from ansible_collections.npufleet.triton.plugins.module_utils.kernel import clock

# The sockets of HAProxy. Debian's unit starts HAProxy with this master socket.
SOCKET = "/run/haproxy/admin.sock"
MASTER = "/run/haproxy-master.sock"
# Limits of an answer: bytes, rows of a table, and seconds
MAX_BYTES, MAX_ROWS, TIMEOUT_SECONDS = 1 << 26, 10_000, 10.0
# Seconds for which a connection is retried, and the pause between two attempts. HAProxy refuses connections during a reload.
RETRY_SECONDS, RETRY_PAUSE = 5.0, 0.1
# Largest length of an answer in a message, and largest number of old workers
MAX_SHOWN, MAX_OLD_WORKERS = 120, 100
# The two backends, by protocol. A gRPC server tracks the HTTP server of the same name.
BACKENDS = {"http": "npufleet_http", "grpc": "npufleet_grpc"}
# The names of servers. Other names are not inserted into commands.
NAME = re.compile(r"[A-Za-z0-9_.:-]{1,253}")
# {counter of a server since the start of the process: its column in the answer to `show stat`}
COUNTERS = {
    "requests": "stot",
    "responses_4xx": "hrsp_4xx",
    "responses_5xx": "hrsp_5xx",
    "connection_errors": "econ",
    "response_errors": "eresp",
    "client_aborts": "cli_abrt",
    "server_aborts": "srv_abrt",
}
_SESSION = re.compile(r"0x[0-9a-f]{1,16}")


class BalancerError(Exception):
    """An error because HAProxy cannot be queried, or does not carry out a command."""


class NotRunning(BalancerError):
    """An error because no HAProxy listens on a socket."""


class Runtime:
    """A socket of HAProxy. `prefix` addresses a process on the master socket: `@master`, or a worker such as `@!123`."""

    def __init__(self, path: str, prefix: str = "", seconds: float = TIMEOUT_SECONDS) -> None:
        self.path, self.prefix, self.seconds = path, prefix, seconds

    def command(self, text: str) -> str:
        """Return the answer to one command. Raises BalancerError if HAProxy does not answer, or if the answer exceeds a limit."""
        if not re.fullmatch(r"[!-:<-~]+(?: [!-:<-~]+)*", text):
            raise BalancerError(f"the command {text[:MAX_SHOWN]!r} is not one line of plain words")
        try:
            return self._answer(f"{self.prefix} {text}\n".lstrip().encode()).decode("utf-8", "replace")
        except socket.timeout:
            raise BalancerError(f"HAProxy did not answer `{text}` on {self.path} within {self.seconds:g} s") from None
        except OSError as error:
            raise NotRunning(f"HAProxy cannot be queried on {self.path}: {error.strerror or error}. Is it running?") from None

    def _answer(self, request: bytes) -> bytes:
        """Return the answer. Retry while HAProxy is reloaded. A repeated command does no harm."""
        deadline = time.monotonic() + RETRY_SECONDS
        while True:
            try:
                return self._exchange(request)
            except ConnectionError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(RETRY_PAUSE)

    def _exchange(self, request: bytes) -> bytes:
        deadline, answer = time.monotonic() + self.seconds, bytearray()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
            channel.settimeout(self.seconds)
            channel.connect(self.path)
            channel.sendall(request)
            # Without this call, the master would keep the connection open after the answer. The command `quit` is not reliable:
            # after about 1 of 300 long answers of an old worker, the connection stays open (HAProxy 2.6).
            channel.shutdown(socket.SHUT_WR)
            while True:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise socket.timeout
                channel.settimeout(left)
                block = channel.recv(1 << 18)
                if not block:
                    break
                answer += block
                if len(answer) > MAX_BYTES:
                    raise BalancerError(f"the answer of HAProxy on {self.path} has more than {MAX_BYTES} bytes")
        if not answer:
            # Even the answer to a command without output ends with an empty line. So this connection ended before the answer.
            raise ConnectionResetError("the connection was closed without an answer")
        if answer.startswith(b"Can't connect to the target CLI"):
            # The worker has ended, and the master has not noticed it yet.
            raise ConnectionResetError("the master does not reach the worker")
        return bytes(answer)

    def execute(self, text: str) -> None:
        """Run a command that answers nothing on success. Raises BalancerError with HAProxy's message."""
        answer = self.command(text).strip()
        if answer:
            raise BalancerError(f"HAProxy refuses `{text}`: {one_line(answer)}")


def one_line(text: str) -> str:
    """Return the start of an answer as one printable line, for messages."""
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in text[: 4 * MAX_SHOWN]).split())
    return line if len(line) <= MAX_SHOWN else line[: MAX_SHOWN - 3] + "..."


class StatRow(NamedTuple):
    """A server in the answer to `show stat`."""

    backend: str
    name: str
    status: str
    in_flight: int
    # The values of COUNTERS
    counters: Dict[str, int]


class StateRow(NamedTuple):
    """A server in the answer to `show servers state`."""

    backend: str
    name: str
    operational: int
    admin: int
    weight: int
    initial_weight: int


class ProcessInfo(NamedTuple):
    """The process that answers `show info`. `started` is in seconds since 1970."""

    pid: int
    version: str
    started: float


Row = TypeVar("Row", StatRow, StateRow)


def parse_stat(text: str) -> List[StatRow]:
    """Return the servers of `show stat`. Raises BalancerError if the table is damaged."""
    columns = ("# pxname", "svname", "scur", "qcur", "status", "type", *COUNTERS.values())
    found = []
    for fields in _table(csv.reader(text.strip("\n").split("\n")), columns, "show stat"):
        # Rows of type 2 are servers. Rows of other types are frontends, backends and listeners.
        if fields["type"] == "2" and fields["# pxname"] in BACKENDS.values():
            counters = {name: _count(fields[column], "show stat") for name, column in COUNTERS.items()}
            in_flight = _count(fields["scur"], "show stat") + _count(fields["qcur"], "show stat")
            status = one_line(fields["status"])
            found.append(StatRow(fields["# pxname"], _name(fields["svname"]), status, in_flight, counters))
    return found


def parse_state(text: str) -> List[StateRow]:
    """Return the servers of `show servers state`. Raises BalancerError if the table is damaged."""
    version, *lines = text.strip("\n").split("\n")
    if version != "1":
        raise BalancerError(f"HAProxy's answer to `show servers state` is {one_line(text)}, expected a table of version 1")
    columns = ("be_name", "srv_name", "srv_op_state", "srv_admin_state", "srv_uweight", "srv_iweight")
    found = []
    for fields in _table((line.removeprefix("# ").split(" ") for line in lines), columns, "show servers state"):
        backend, name, *numbers = [fields[column] for column in columns]
        if backend in BACKENDS.values():
            found.append(StateRow(backend, _name(name), *[_count(number, "show servers state") for number in numbers]))
    return found


def parse_info(text: str, now: float) -> ProcessInfo:
    """Return the process from an answer to `show info` at the time `now`. Raises BalancerError if a field is missing."""
    fields = dict(line.split(": ", 1) for line in text.split("\n")[:MAX_ROWS] if ": " in line)
    missing = [name for name in ("Pid", "Version", "Uptime_sec") if name not in fields]
    if missing:
        raise BalancerError(f"HAProxy's answer to `show info` has no {missing[0]}: {one_line(text)}")
    pid, uptime = (_count(fields[name], "show info") for name in ("Pid", "Uptime_sec"))
    return ProcessInfo(pid, one_line(fields["Version"]), now - uptime)


def parse_old_workers(text: str) -> List[int]:
    """Return the process IDs of old workers from the answer to `show proc`."""
    if not text.startswith("#<PID>"):
        raise BalancerError(f"HAProxy's answer to `show proc` is {one_line(text)}, expected its processes")
    section, found = "", []
    for line in text.split("\n")[:MAX_ROWS]:
        if line.startswith("# "):
            section = line
        words = line.split()
        if section == "# old workers" and words[1:2] == ["worker"]:
            found.append(_count(words[0], "show proc"))
    if len(found) > MAX_OLD_WORKERS:
        raise BalancerError(f"HAProxy has {len(found)} old workers, expected at most {MAX_OLD_WORKERS}. Set hard-stop-after")
    return found


def parse_sessions(text: str, name: str) -> List[str]:
    """Return the IDs of a server's sessions on the two backends, from the answer to `show sess`."""
    found = []
    for line in text.split("\n"):
        session, _colon, rest = line.partition(":")
        words = rest.split()
        on_server = f"srv={name}" in words and any(f"be={backend}" in words for backend in BACKENDS.values())
        if on_server and _SESSION.fullmatch(session):
            found.append(session)
    return found


def is_gone(answer: str) -> bool:
    """Return True if the master answers that the addressed worker has ended."""
    return answer.startswith("Can't find the target PID")


def _table(lines: Iterable[List[str]], columns: Sequence[str], command: str) -> Iterator[Dict[str, str]]:
    """Yield each row as {column: field}. Raises BalancerError if one of `columns` is missing, or if the table is damaged."""
    rows = _rows(lines)
    header = next(rows, [])
    missing = [name for name in columns if name not in header]
    if missing:
        raise BalancerError(f"HAProxy's answer to `{command}` has no column {missing[0]}: {one_line(' '.join(header))}")
    for row in rows:
        if len(row) != len(header):
            raise BalancerError(f"HAProxy's answer to `{command}` has a row of {len(row)} fields, expected {len(header)}")
        yield dict(zip(header, row))


def _rows(lines: Iterable[List[str]]) -> Iterator[List[str]]:
    """Yield the rows of a table, without empty rows. Raises BalancerError if the table is damaged or too long."""
    try:
        for number, row in enumerate(lines):
            if number > MAX_ROWS:
                raise BalancerError(f"HAProxy's answer has more than {MAX_ROWS} rows")
            if any(row):
                yield row
    except csv.Error as error:
        raise BalancerError(f"HAProxy's answer is not a table: {error}") from None


def _count(text: str, command: str) -> int:
    """Return the number in a field of at most 18 digits. An empty field counts as 0."""
    if text and not re.fullmatch(r"[0-9]{1,18}", text):
        raise BalancerError(f"HAProxy's answer to `{command}` has {one_line(text)!r}, expected a number")
    return int(text or 0)


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise BalancerError(f"HAProxy's answer has {one_line(text)!r}, expected the name of a server")
    return text


def by_protocol(rows: Sequence[Row]) -> Dict[str, Dict[str, Row]]:
    """Return {protocol: {server: row}} of the two backends."""
    return {protocol: {row.name: row for row in rows if row.backend == backend} for protocol, backend in BACKENDS.items()}


def process(runtime: Runtime) -> ProcessInfo:
    """Return the process that answers on a socket. Raises BalancerError."""
    info = parse_info(runtime.command("show info"), time.time())
    # HAProxy reports the uptime in whole seconds only, so the exact start comes from the kernel.
    started = clock.process_started(info.pid)
    exact = time.time() - clock.uptime() + started if started is not None else info.started
    return info._replace(started=exact) if abs(exact - info.started) < 2 else info
