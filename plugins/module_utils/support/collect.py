# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The items of a support bundle, in the order in which they are read. A missing or stuck item does not affect the others."""

from __future__ import annotations

import functools
import glob
import os
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.balancer import drains
from ansible_collections.npufleet.triton.plugins.module_utils.balancer import files as balancer_files
from ansible_collections.npufleet.triton.plugins.module_utils.balancer.runtime import MASTER, SOCKET, Runtime
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.driver import MODULE, PCI_VENDOR
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.engine import DAEMON_JSON
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.registry import CONCERNS
from ansible_collections.npufleet.triton.plugins.module_utils.driver import vendor_tool
from ansible_collections.npufleet.triton.plugins.module_utils.engine import cdi, contexts
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine, decode_stream
from ansible_collections.npufleet.triton.plugins.module_utils.exchange import Budget, connect
from ansible_collections.npufleet.triton.plugins.module_utils.support import readers, vendor
from ansible_collections.npufleet.triton.plugins.module_utils.support.readers import Headers, Limits
from ansible_collections.npufleet.triton.plugins.module_utils.system import read_text
from ansible_collections.npufleet.triton.plugins.module_utils.triton import keys
from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import URL_UNSAFE, is_url_safe, netloc

UNITS = ("docker", "containerd", "npufleet*")
PACKAGES = (
    "rebellions*",
    "rbln*",
    "librbln*",
    "docker*",
    "containerd*",
    "runc",
    "dkms",
    "linux-image-*",
    "linux-headers-*",
    "kernel-*",
    "prometheus*",
    "haproxy*",
)
SYSFS = ("vendor", "device", "class", "numa_node", "current_link_speed", "current_link_width", "max_link_speed", "max_link_width")

# Files of Prometheus that are read if the desired state is unknown. Only the configuration, the targets and the rules are read,
# because other files of Prometheus can contain keys.
PROMETHEUS_CONFIG = "/etc/prometheus/prometheus.yml"
DEFAULT_TARGETS = ("/etc/prometheus/npufleet/triton.json",)

# After the time limit of an item, its thread gets this many more seconds to report that the time is over.
GRACE_SECONDS = 3


class Item(NamedTuple):
    """A file of the bundle. `get` reads its content. The time limit is the higher one of `seconds` and the general limit.

    If an optional item is missing, this is not an error.
    """

    name: str
    get: Callable[[], Any]
    seconds: float = 0.0
    optional: bool = False


def collect(bundle: List[Item], limits: Limits, deadline: float) -> Tuple[Dict[str, Any], List[str]]:
    """Read the items one after the other, and return ({name: content}, errors). `deadline` is a time of `time.monotonic`.

    A thread reads each item. If the thread does not end in time, for example because a file server does not respond, it is
    abandoned.
    """
    found: Dict[str, Any] = {}
    errors: List[str] = []
    for item in bundle:
        if time.monotonic() >= deadline:
            errors.append(f"{item.name}: not read, because the time for the whole bundle was over")
            continue
        result: Dict[str, Any] = {}
        thread = threading.Thread(target=_read_item, args=(item, result), daemon=True)
        thread.start()
        seconds = max(limits.seconds, item.seconds)
        thread.join(seconds + GRACE_SECONDS)
        if not result:
            errors.append(f"{item.name}: no answer within {seconds:g} s")
            continue
        if result.get("error"):
            errors.append("{}: {}".format(item.name, result["error"]))
        if result.get("content") is not None:
            found[item.name] = result["content"]
    return found, errors


def _read_item(item: Item, result: Dict[str, Any]) -> None:
    try:
        result.update(content=item.get(), error="")
    except readers.Partial as partial:
        result.update(content=partial.content, error=str(partial))
    except readers.Missing as error:
        result.update(content=None, error="" if item.optional else str(error))
    except Exception as error:  # An unexpected error must not affect the other items.
        result.update(content=None, error=str(error) if isinstance(error, (readers.Unavailable, OSError)) else repr(error))


def _device_nodes() -> str:
    paths = sorted(glob.glob("/dev/rbln*") + glob.glob("/dev/rsd*"))
    if not paths:
        raise readers.Unavailable("there is no /dev/rbln* and no /dev/rsd*")
    return "".join(map(readers.describe_path, paths))


def _cards() -> Dict[str, Any]:
    """Return the sysfs attributes of the vendor's cards and of the driver."""
    found: Dict[str, Any] = {}
    for path in sorted(glob.glob("/sys/bus/pci/devices/*")):
        if (read_text(path + "/vendor") or "").strip() == PCI_VENDOR:
            facts = {name: (read_text(f"{path}/{name}") or "").strip() for name in SYSFS}
            driver = path + "/driver"
            found[path] = {**facts, "driver": os.path.basename(os.readlink(driver)) if os.path.islink(driver) else ""}
    for path in sorted(glob.glob(f"/sys/class/{MODULE}/*/*") + glob.glob(f"/sys/module/{MODULE}/*")):
        if os.path.isfile(path) and os.access(path, os.R_OK) and os.stat(path).st_mode & 0o444:
            found[path] = (read_text(path) or "").strip()
    if not found:
        raise readers.Unavailable("there is no card of the vendor on the bus, and its module is not loaded")
    return found


def items(options: Mapping[str, Any], limits: Limits) -> Iterator[Item]:
    """Yield the items of a host, which depend on its concerns. `options` are the options of the module."""

    def run(name: str, *words: str) -> Item:
        return Item(name, lambda: readers.command(limits, *words))

    def journal(unit: str) -> Item:
        name = f"journal/{unit.rstrip('*')}.txt"
        return run(name, "journalctl", "--no-pager", "--output=short-iso", f"--lines={limits.lines}", f"--unit={unit}")

    for name, desired in options["desired"].items():
        yield Item(f"state/{name}.json", functools.partial(_state, name, desired))
    # The bundle has the result of the probe (probe.json), but not the checks with their golden data.
    for name in ("maintenance.json", "watchdog.json", "probe.json"):
        yield Item(f"host/{name}", functools.partial(readers.read_file, f"{options['root']}/{name}", limits), optional=True)
    yield Item("host/system.txt", _system)
    yield run("host/uname.txt", "uname", "-a")
    kernel = [f"/proc/{name}" for name in ("cmdline", "uptime", "loadavg", "modules")]
    yield Item("host/kernel.json", lambda: readers.read_files(limits, *kernel))
    yield run("host/cpu.txt", "lscpu")
    yield Item("host/memory.txt", lambda: readers.read_file("/proc/meminfo", limits))
    yield run("host/disk.txt", "df", "--human-readable", "--print-type", "--local")
    yield run("host/inodes.txt", "df", "--inodes", "--local")
    yield Item("host/packages.txt", lambda: vendor.packages(limits, list(PACKAGES)))
    yield run("host/processes.txt", "ps", "-eo", "pid,ppid,user,stat,etime,pcpu,rss,comm")
    yield run("host/clock.txt", "date", "--utc", "--iso-8601=seconds")
    yield run("host/failed-units.txt", "systemctl", "--failed", "--no-pager")
    yield run("host/listening.txt", "ss", "-lnt")
    yield run("host/addresses.txt", "ip", "-brief", "address")
    yield run("kernel/journal.txt", "journalctl", "--dmesg", "--no-pager", "--output=short-iso", f"--lines={limits.lines}")
    yield Item(
        "kernel/ring.txt", lambda: "".join(readers.command(limits, "dmesg", "--ctime").splitlines(keepends=True)[-limits.lines :])
    )
    if "driver" in options["concerns"]:
        tool = vendor_tool.find_tool() or vendor_tool.TOOLS[0]
        yield run("driver/tool.json", tool, "-j")
        yield run("driver/tool-groups.json", tool, "-g", "-j")
        yield run("driver/tool.txt", tool)
        yield Item("driver/installer-script.txt", lambda: vendor.installer_script(options["root"]), optional=True)
        yield Item("driver/installer-help.txt", lambda: vendor.installer_help(options["root"], limits), optional=True)
        yield run("driver/module.txt", "modinfo", MODULE)
        yield run("driver/dkms.txt", "dkms", "status")
        yield Item("driver/nodes.txt", _device_nodes)
        yield Item("driver/cdi.yaml", lambda: readers.read_file(cdi.SPEC, limits), optional=True)
        yield Item("driver/cdi-now.yaml", lambda: vendor.cdi_spec(limits), optional=True)
        yield Item("driver/holders.json", lambda: contexts.read_use(options["container"]))
        yield Item("driver/cards.json", _cards)
        yield run("driver/pci.txt", "lspci", "-nnk")
        yield run("driver/pci-cards.txt", "lspci", "-vv", "-d", PCI_VENDOR[2:] + ":")
    if "engine" in options["concerns"]:
        yield from _engine(options, limits)
        yield from map(journal, UNITS)
    if "server" in options["concerns"]:
        yield from _server(options, limits)
        yield Item("models/store.txt", lambda: readers.list_tree(options["root"]))
        yield Item("models/records.json", lambda: readers.read_files(limits, options["root"] + "/releases/*/*.json"))
        yield Item("models/configs.json", lambda: readers.read_files(limits, options["root"] + "/served/*/config.pbtxt"))
    if "balancer" in options["concerns"]:
        yield from _balancer(limits, run)
        yield journal("haproxy")
    if "monitoring" in options["concerns"]:
        port = options["prometheus_port"]
        desired = options["desired"].get("monitoring") or {}
        lists = sorted([*(desired.get("targets") or DEFAULT_TARGETS), *(desired.get("rules") or [])])
        files = [glob.escape(path) for path in (desired.get("config") or PROMETHEUS_CONFIG, *lists)]
        yield Item("monitoring/files.json", lambda: readers.read_files(limits, *files))
        yield Item("monitoring/targets.json", lambda: _http_answer("127.0.0.1", port, limits, "/api/v1/targets"))
        yield journal("prometheus")


def _balancer(limits: Limits, run: Callable[..., Item]) -> Iterator[Item]:
    """Yield the items of a load balancer. HAProxy's log of requests is left out: paths of requests can contain secrets."""
    yield Item("balancer/haproxy.cfg", lambda: readers.read_file(balancer_files.CONFIG, limits))
    yield Item("balancer/drop-in.conf", lambda: readers.read_file(balancer_files.DROP_IN, limits), optional=True)
    yield Item("balancer/drains.json", lambda: readers.read_file(f"{balancer_files.HOME}/{drains.RECORDS}", limits), optional=True)
    yield Item("balancer/saved-state.txt", lambda: readers.read_file(balancer_files.STATE, limits), optional=True)
    yield run("balancer/version.txt", "haproxy", "-vv")
    for words in ("show info", "show stat", "show servers state"):
        yield Item(f"balancer/{words.replace(' ', '-')}.txt", functools.partial(Runtime(SOCKET).command, words))
    yield Item("balancer/processes.txt", lambda: Runtime(MASTER, "@master").command("show proc"))


def _system() -> str:
    """Return the content of /etc/os-release without read_file, which refuses links. On most systems, this file is a link."""
    found = read_text("/etc/os-release")
    if found is None:
        raise readers.Missing("there is no /etc/os-release")
    return found


def _state(name: str, desired: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the plan and the actual state of one concern."""
    concern = CONCERNS[name].host_side
    actual = concern.read(desired)
    return {"plan": concern.diff(desired, actual), "actual": actual}


def _engine(options: Mapping[str, Any], limits: Limits) -> Iterator[Item]:
    engine = Engine(timeout=limits.seconds)

    def raw(resource: str) -> bytes:
        try:
            return readers.response_body(engine.connect(), "GET", resource, limits, Budget(limits.seconds))
        except OSError as error:
            raise readers.Unavailable(f"the engine does not answer: {error}") from error

    def request(resource: str) -> Callable[[], Any]:
        return lambda: shapes.parse(raw(resource))

    def log(name: str) -> Callable[[], Any]:
        resource = f"/containers/{name}/logs?stdout=1&stderr=1&timestamps=1&tail={limits.lines}"
        return lambda: readers.tail(decode_stream(raw(resource)), limits.size)

    yield Item("engine/version.json", request("/version"))
    yield Item("engine/info.json", request("/info"))
    yield Item("engine/containers.json", request("/containers/json?all=1"))
    yield Item("engine/images.json", request("/images/json"))
    yield Item("engine/daemon.json", lambda: readers.read_file(DAEMON_JSON, limits))
    yield Item("engine/login.json", lambda: readers.read_file("/root/.docker/config.json", limits), optional=True)
    units = [f"/etc/systemd/system/{unit}{end}" for unit in UNITS for end in (".service", ".service.d/*.conf", ".timer")]
    yield Item("engine/units.json", lambda: readers.read_files(limits, *units))
    name = options["container"]
    yield Item(f"container/{name}.json", request(f"/containers/{name}/json"))
    yield Item(f"container/{name}-log.txt", log(name))
    yield Item(f"container/{name}-processes.json", request(f"/containers/{name}/top"))
    # The previous container exists during a change, and after an interrupted change.
    yield Item(f"container/{name}-previous.json", request(f"/containers/{name}-previous/json"), optional=True)
    yield Item(f"container/{name}-previous-log.txt", log(f"{name}-previous"), optional=True)
    # The slowest item of the engine is last.
    yield Item("sdk/rebel.json", lambda: vendor.sdk(engine, name, options["root"], limits), vendor.SDK_SECONDS)


def _http_answer(address: str, port: int, limits: Limits, resource: str, method: str = "GET", headers: Headers = None) -> Any:
    """Return the data of an HTTP response, or its text if it is not JSON."""
    budget = Budget(limits.seconds)
    fields = {"Host": netloc(address, port), **(headers or {})}
    try:
        body = readers.response_body(connect(address, port, budget), method, resource, limits, budget, fields)
    except OSError as error:
        raise readers.Unavailable(f"{method} {resource} at {netloc(address, port)}: {error}") from error
    try:
        return shapes.parse(body) if body.strip() else {"status": 200}
    except ValueError:
        return readers.tail(body, limits.size)


def _server(options: Mapping[str, Any], limits: Limits) -> Iterator[Item]:
    address, port = options["address"], options["http_port"]
    key = keys.headers(((options.get("desired") or {}).get("server") or {}).get("key"))

    def request(resource: str, method: str = "GET") -> Callable[[], Any]:
        return lambda: _http_answer(address, port, limits, resource, method, key)

    read_index = request("/v2/repository/index", "POST")

    def configs() -> Dict[str, Any]:
        found: Dict[str, Any] = {}
        index = read_index()
        for entry in index if not shapes.mismatch(index, [{"name": str}]) else ():
            path = "/v2/models/{}/versions/{}/config".format(entry["name"], entry.get("version", 1))
            if not is_url_safe(entry["name"]):
                found[path] = {"error": URL_UNSAFE}
                continue
            try:
                found[path] = request(path)()
            except readers.Unavailable as error:
                found[path] = {"error": str(error)}
        return found

    yield Item("server/ready.json", request("/v2/health/ready"))
    yield Item("server/server.json", request("/v2"))
    yield Item("server/index.json", read_index)
    yield Item("server/configs.json", configs)
    yield Item("server/statistics.json", request("/v2/models/stats"))
    metrics = options.get("metrics_address") or address
    yield Item("server/metrics.txt", lambda: _http_answer(metrics, options["metrics_port"], limits, "/metrics"))
