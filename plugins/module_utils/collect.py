"""What a support bundle holds, and how each item is got: read-only, bounded in size and time, on a bare host too."""

from __future__ import annotations

import glob
import http.client
import json
import os
import selectors
import signal
import stat
import struct
import subprocess
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.concerns.all import CONCERNS
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.driver import MODULE, PCI_VENDOR, TOOLS
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.engine import DAEMON_JSON
from ansible_collections.npufleet.triton.plugins.module_utils.plan import sentence
from ansible_collections.npufleet.triton.plugins.module_utils.probe import Engine, text

UNITS = ("docker", "containerd", "npufleet*")
PACKAGES = ("rebellions*", "rbln*", "librbln*", "docker*", "containerd*", "runc", "dkms", "linux-image-*", "linux-headers-*", "prometheus*")
SYSFS = ("vendor", "device", "class", "numa_node", "current_link_speed", "current_link_width", "max_link_speed", "max_link_width")
# Entries of the store that are listed; a store that has more is listed up to there
ENTRIES = 5000


class Unavailable(Exception):
    """Why an item cannot be got."""


class Partial(Exception):
    """What was got of an item, and why it is not all or not right."""

    def __init__(self, content: Any, why: str) -> None:
        super().__init__(why)
        self.content = content


class Item(NamedTuple):
    """One file of the bundle."""

    name: str
    get: Callable[[], Any]


class Limits(NamedTuple):
    """Bounds of one item."""

    seconds: int
    size: int
    lines: int


def collect(items: List[Item], limits: Limits, deadline: float) -> Tuple[Dict[str, Any], List[str]]:
    """(content by name, what could not be got) of items, one after the other: a busy host is not to be slowed down.

    Each runs in a thread of its own, which is left behind when the kernel or a file server does not let go of it.
    """
    found: Dict[str, Any] = {}
    errors: List[str] = []
    for item in items:
        if time.monotonic() >= deadline:
            errors.append(f"{item.name}: not tried, the time for the whole bundle was over")
            continue
        answer: Dict[str, Any] = {}
        thread = threading.Thread(target=_get, args=(item, answer), daemon=True)
        thread.start()
        thread.join(limits.seconds + 3)
        if not answer:
            errors.append(f"{item.name}: no answer within {limits.seconds} s")
            continue
        if answer.get("why"):
            errors.append("{}: {}".format(item.name, answer["why"]))
        if answer.get("content") is not None:
            found[item.name] = answer["content"]
    return found, errors


def _get(item: Item, answer: Dict[str, Any]) -> None:
    try:
        answer.update(content=item.get(), why="")
    except Partial as partial:
        answer.update(content=partial.content, why=str(partial))
    except Exception as error:  # whatever it is, it costs this item and no other
        why = str(error) if isinstance(error, (Unavailable, OSError)) else repr(error)
        answer.update(content=None, why=why)


def bounded(raw: bytes, size: int) -> str:
    """The last `size` bytes as text, from the begin of a line: half of a secret would not be known as one."""
    if len(raw) <= size:
        return raw.decode("utf-8", "replace")
    tail = raw[-size:].split(b"\n", 1)
    kept = tail[1] if len(tail) > 1 else b""
    return f"[the first {len(raw) - len(kept)} bytes are left out]\n" + kept.decode("utf-8", "replace")


def command(limits: Limits, *words: str) -> str:
    """Output of a command. One that does not end is killed, and not waited for."""
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "LC_ALL": "C", "SYSTEMD_COLORS": "0"},
            start_new_session=True,
        )
    except FileNotFoundError:
        raise Unavailable(f"{words[0]} is not installed") from None
    raw, ended = _read_output(process, limits)
    output = bounded(raw, limits.size)
    if not ended:
        raise Partial(output or None, f"`{' '.join(words)}` did not end within {limits.seconds} s")
    if process.returncode:
        raise Partial(output or None, f"`{' '.join(words)}` ended with {process.returncode}: {output.strip()[-200:]}")
    return output


def _read_output(process: subprocess.Popen[bytes], limits: Limits) -> Tuple[bytes, bool]:
    """(the end of what it says, whether it ended by itself)."""
    deadline = time.monotonic() + limits.seconds
    raw = bytearray()
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector, process.stdout as pipe:
        selector.register(pipe, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            if selector.select(deadline - time.monotonic()):
                block = os.read(pipe.fileno(), 1 << 16)
                if not block:
                    break
                raw += block
                if len(raw) > 4 * limits.size:
                    del raw[: -2 * limits.size]
    try:
        process.wait(max(deadline - time.monotonic(), 0.1))
        return bytes(raw), True
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return bytes(raw), False


def content(path: str, limits: Limits) -> Any:
    """A file: data where it is JSON, else the end of its text."""
    try:
        with open(path, "rb") as source:
            whole = os.fstat(source.fileno()).st_size
            source.seek(max(whole - 2 * limits.size, 0))
            raw = source.read(2 * limits.size)
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}") from None
    if path.endswith(".json"):
        try:
            return json.loads(raw)
        except ValueError:
            pass
    return bounded(raw, limits.size)


def contents(limits: Limits, *patterns: str) -> Dict[str, Any]:
    """{path: content} of all files that match."""
    paths = [path for pattern in patterns for path in sorted(glob.glob(pattern)) if os.path.isfile(path)]
    if not paths:
        raise Unavailable("there is no " + ", ".join(patterns))
    found: Dict[str, Any] = {}
    for path in paths[:200]:
        try:
            found[path] = content(path, limits)
        except Unavailable as error:
            found[path] = {"error": str(error)}
    return found


def exchange(connection: http.client.HTTPConnection, method: str, resource: str, size: int) -> bytes:
    """Body of one HTTP answer; of one longer than eight times `size` whole lines up to there."""
    try:
        connection.request(method, resource)
        answer = connection.getresponse()
        body = answer.read(8 * size)
    except http.client.HTTPException as error:
        raise Unavailable(f"the answer to {method} {resource} broke off: {error}") from error
    finally:
        connection.close()
    if answer.status != 200:
        words = body.decode("utf-8", "replace").strip()[:300]
        raise Unavailable(f"{method} {resource} was answered with {answer.status}: {words}")
    return body if len(body) < 8 * size else body[: body.rfind(b"\n") + 1]


def log_lines(raw: bytes) -> bytes:
    """What a container said, out of the engine's stream of frames; of a container with a terminal it has none."""
    lines, at = b"", 0
    while at + 8 <= len(raw) and raw[at] in (0, 1, 2) and raw[at + 1 : at + 4] == b"\0\0\0":
        length = struct.unpack(">I", raw[at + 4 : at + 8])[0]
        lines += raw[at + 8 : at + 8 + length]
        at += 8 + length
    return lines or raw


def listing(root: str) -> str:
    """Everything below a directory: mode, owner, size, time, path, and where a link leads."""
    if not os.path.isdir(root):
        raise Unavailable(f"there is no {root}")
    lines = []
    for directory, names, files in os.walk(root):
        names.sort()
        for name in sorted([*names, *files]):
            if len(lines) == ENTRIES:
                raise Partial("".join(lines), f"only the first {ENTRIES} entries are listed")
            lines.append(_entry(os.path.join(directory, name)))
    return "".join(lines)


def _entry(path: str) -> str:
    try:
        facts = os.lstat(path)
    except OSError as error:
        return f"{path}: {error.strerror}\n"
    size = f"{os.major(facts.st_rdev)},{os.minor(facts.st_rdev)}" if stat.S_ISCHR(facts.st_mode) else str(facts.st_size)
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(facts.st_mtime))
    target = " -> " + os.readlink(path) if stat.S_ISLNK(facts.st_mode) else ""
    return f"{stat.filemode(facts.st_mode)} {facts.st_uid}:{facts.st_gid} {size:>12} {moment} {path}{target}\n"


def _nodes() -> str:
    paths = sorted(glob.glob("/dev/rbln*") + glob.glob("/dev/rsd*"))
    if not paths:
        raise Unavailable("there is no /dev/rbln* and no /dev/rsd*")
    return "".join(map(_entry, paths))


def _cards() -> Dict[str, Any]:
    """The vendor's cards on the bus and as the driver's class shows them, without any tool."""
    found: Dict[str, Any] = {}
    for path in sorted(glob.glob("/sys/bus/pci/devices/*")):
        if (text(path + "/vendor") or "").strip() == PCI_VENDOR:
            facts = {name: (text(f"{path}/{name}") or "").strip() for name in SYSFS}
            found[path] = {**facts, "driver": os.path.basename(os.path.realpath(path + "/driver"))}
    for path in sorted(glob.glob(f"/sys/class/{MODULE}/*/*") + glob.glob(f"/sys/module/{MODULE}/*")):
        if os.path.isfile(path) and os.access(path, os.R_OK) and os.stat(path).st_mode & 0o444:
            found[path] = (text(path) or "").strip()
    if not found:
        raise Unavailable("there is no card of the vendor on the bus, and its module is not loaded")
    return found


def items(wanted: Mapping[str, Any], limits: Limits) -> Iterator[Item]:
    """The bundle's items for a host with these concerns; `wanted` is what the module was asked for."""

    def run(name: str, *words: str) -> Item:
        return Item(name, lambda: command(limits, *words))

    def journal(unit: str) -> Item:
        name = f"journal/{unit.rstrip('*')}.txt"
        return run(name, "journalctl", "--no-pager", "--output=short-iso", f"--lines={limits.lines}", f"--unit={unit}")

    yield from (Item(f"state/{name}.json", _state(name, one)) for name, one in wanted["desired"].items())
    yield Item("host/system.txt", lambda: content("/etc/os-release", limits))
    yield run("host/uname.txt", "uname", "-a")
    yield Item("host/kernel.json", lambda: contents(limits, "/proc/cmdline", "/proc/uptime", "/proc/loadavg", "/proc/modules"))
    yield run("host/cpu.txt", "lscpu")
    yield Item("host/memory.txt", lambda: content("/proc/meminfo", limits))
    yield run("host/disk.txt", "df", "--human-readable", "--print-type", "--local")
    yield run("host/inodes.txt", "df", "--inodes", "--local")
    yield run("host/packages.txt", "dpkg-query", "--show", "--showformat=${db:Status-Abbrev} ${binary:Package} ${Version}\n", *PACKAGES)
    yield run("host/processes.txt", "ps", "-eo", "pid,ppid,user,stat,etime,pcpu,rss,comm")
    yield run("host/clock.txt", "timedatectl", "--no-pager")
    yield run("host/failed-units.txt", "systemctl", "--failed", "--no-pager")
    yield run("host/listening.txt", "ss", "-lnt")
    yield run("host/addresses.txt", "ip", "-brief", "address")
    yield run("kernel/journal.txt", "journalctl", "--dmesg", "--no-pager", "--output=short-iso", f"--lines={limits.lines}")
    yield Item("kernel/ring.txt", lambda: _last(command(limits, "dmesg", "--ctime"), limits.lines))
    if "driver" in wanted["concerns"]:
        tool = next((path for path in TOOLS if os.access(path, os.X_OK)), TOOLS[0])
        yield run("driver/tool.json", tool, "-j")
        yield run("driver/tool.txt", tool)
        yield run("driver/module.txt", "modinfo", MODULE)
        yield run("driver/dkms.txt", "dkms", "status")
        yield Item("driver/nodes.txt", _nodes)
        yield Item("driver/cards.json", _cards)
        yield run("driver/pci.txt", "lspci", "-nnk")
        yield run("driver/pci-cards.txt", "lspci", "-vv", "-d", PCI_VENDOR[2:] + ":")
    if "engine" in wanted["concerns"]:
        yield from _engine(wanted, limits)
        yield from map(journal, UNITS)
    if "server" in wanted["concerns"]:
        yield from _server(wanted, limits)
        yield Item("models/store.txt", lambda: listing(wanted["root"]))
        yield Item("models/records.json", lambda: contents(limits, wanted["root"] + "/releases/*/*.json"))
        yield Item("models/configs.json", lambda: contents(limits, wanted["root"] + "/served/*/config.pbtxt"))
    if "monitoring" in wanted["concerns"]:
        port = wanted["prometheus_port"]
        yield Item("monitoring/files.json", lambda: contents(limits, "/etc/prometheus/*.yml", "/etc/prometheus/*/*"))
        yield Item("monitoring/targets.json", lambda: _answer("127.0.0.1", port, limits, "/api/v1/targets"))
        yield journal("prometheus")


def _last(lines: str, number: int) -> str:
    return "".join(lines.splitlines(keepends=True)[-number:])


def _state(name: str, desired: Mapping[str, Any]) -> Callable[[], Any]:
    """What host_state says of one concern."""

    def get() -> Dict[str, Any]:
        actual = CONCERNS[name].read(desired)
        plan = CONCERNS[name].diff(desired, actual)
        return {"report": [sentence(one) for one in plan], "plan": plan, "actual": actual}

    return get


def _engine(wanted: Mapping[str, Any], limits: Limits) -> Iterator[Item]:
    engine = Engine(timeout=limits.seconds)

    def ask(resource: str) -> Callable[[], Any]:
        return lambda: json.loads(exchange(engine.connection(), "GET", resource, limits.size))

    yield Item("engine/version.json", ask("/version"))
    yield Item("engine/info.json", ask("/info"))
    yield Item("engine/containers.json", ask("/containers/json?all=1"))
    yield Item("engine/images.json", ask("/images/json"))
    yield Item("engine/daemon.json", lambda: content(DAEMON_JSON, limits))
    yield Item("engine/login.json", lambda: content("/root/.docker/config.json", limits))
    units = [f"/etc/systemd/system/{unit}{end}" for unit in UNITS for end in (".service", ".service.d/*.conf")]
    yield Item("engine/units.json", lambda: contents(limits, *units))
    for name in (wanted["container"], wanted["container"] + "-previous"):
        yield Item(f"container/{name}.json", ask(f"/containers/{name}/json"))
        log = f"/containers/{name}/logs?stdout=1&stderr=1&timestamps=1&tail={limits.lines}"
        yield Item(
            f"container/{name}-log.txt",
            lambda log=log: bounded(log_lines(exchange(engine.connection(), "GET", log, limits.size)), limits.size),  # type: ignore[misc]
        )
    yield Item("container/processes.json", ask("/containers/{}/top".format(wanted["container"])))


def _answer(address: str, port: int, limits: Limits, resource: str, method: str = "GET") -> Any:
    """JSON of one HTTP answer, its text where it is none."""
    connection = http.client.HTTPConnection(address, port, timeout=limits.seconds)
    try:
        body = exchange(connection, method, resource, limits.size)
    except OSError as error:
        raise Unavailable(f"{method} {resource} at {address}:{port}: {error}") from error
    try:
        return json.loads(body) if body.strip() else {"status": 200}
    except ValueError:
        return bounded(body, limits.size)


def _server(wanted: Mapping[str, Any], limits: Limits) -> Iterator[Item]:
    address, port = wanted["address"], wanted["http_port"]

    def ask(resource: str, method: str = "GET") -> Callable[[], Any]:
        return lambda: _answer(address, port, limits, resource, method)

    def configs() -> Dict[str, Any]:
        found: Dict[str, Any] = {}
        for one in _answer(address, port, limits, "/v2/repository/index", "POST"):
            path = "/v2/models/{}/versions/{}/config".format(one["name"], one.get("version", 1))
            try:
                found[path] = _answer(address, port, limits, path)
            except Unavailable as error:
                found[path] = {"error": str(error)}
        return found

    yield Item("server/ready.json", ask("/v2/health/ready"))
    yield Item("server/server.json", ask("/v2"))
    yield Item("server/index.json", ask("/v2/repository/index", "POST"))
    yield Item("server/configs.json", configs)
    yield Item("server/statistics.json", ask("/v2/models/stats"))
    yield Item("server/metrics.txt", lambda: _answer(address, wanted["metrics_port"], limits, "/metrics"))
