"""What on a host stands in the way of its plan, judged against the conditions that preflight_inputs.py makes: all reasons at once.

Only what the plan needs is asked for: a host that is as wanted has nothing in its way.
"""

from __future__ import annotations

import glob
import os
import sys
from typing import Any, Dict, Iterator, List, Mapping, Optional, Set, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.concerns.driver import PCI_VENDOR, REBOOT
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.engine import ENGINES, finds_by_name, flag_reasons
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.server import device_access
from ansible_collections.npufleet.triton.plugins.module_utils.driver import vendor_tool
from ansible_collections.npufleet.triton.plugins.module_utils.driver.systems import system_refusals
from ansible_collections.npufleet.triton.plugins.module_utils.engine import cdi
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine
from ansible_collections.npufleet.triton.plugins.module_utils.plan import INSPECT, Item, short
from ansible_collections.npufleet.triton.plugins.module_utils.system import free_space, installed_packages, read_text, run, which

GIB = 2**30
# The supplier of models, among passwords
LARGE_FILES = "large files of models"
# The concern, and the kind of supplier that the host's engine asks
ENGINE = "engine"
# PCI device ids of the cards (operator and exporter of the vendor; the second id of a pair is its virtual function).
CARDS = {
    "0x1020": "RBLN-CA02",
    "0x1021": "RBLN-CA02",
    "0x1120": "RBLN-CA12",
    "0x1121": "RBLN-CA12",
    "0x1150": "RBLN-CA15",
    "0x1220": "RBLN-CA22",
    "0x1221": "RBLN-CA22",
    "0x1250": "RBLN-CA25",
    "0x1251": "RBLN-CA25",
    "0x2030": "RBLN-CR03",
    "0x2031": "RBLN-CR03",
}
# What to do about a difference of the driver that no run can repair, by its name in the plan
BY_HAND = {
    "bus": "look with `lspci -d 1eff:`: seat and power of the card, or correct npufleet_npus",
    "/dev/rsd0": "without it the SDK sees no device: `modprobe -r rebellions && modprobe rebellions`, then `dmesg | tail`",
    "/dev/rbln*": "see `dmesg | tail` for the card that the driver gave up on",
    "cards": "see the vendor's tool and `dmesg | tail`; a power cycle clears most faults, else call the vendor",
    "groups": "look with `rbln-smi -g -j`: the tool numbers NPUs for each group, so that their numbers name no card",
    "tool": "another driver's tool comes first in its path: remove it",
    "installed module": "install the vendor's driver of this version, or choose the release whose driver is installed",
    "dkms": "see `dmesg | tail` and `dkms status`: install the headers of the running kernel, then `dkms autoinstall`",
    "firmware": "run the vendor's installer of this driver once more, or see its rbln-flash",
    REBOOT: "take the host out (playbooks/maintenance.yml), reboot it and put it back, or set rbln_driver_reboot",
    "card type": "choose a release that supports the card, or correct npufleet_card",
    cdi.SPEC: f"see `{cdi.TOOLKIT} cdi list` and /etc/rbln/container-toolkit.yaml, or take npufleet_device_access: devices",
}
# UEFI's variable, and where DKMS has the key that it signs with: Ubuntu's, Debian's
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
MOK_KEYS = ("/var/lib/shim-signed/mok/MOK.der", "/var/lib/dkms/mok.pub")
# Packages that cannot live beside the engine, and why
CONFLICTS = {
    "podman-docker": "it puts podman's client in the place of Docker's",
    "containerd.io": "it is of another repository than the engine that would be installed",
}


def refusals(
    wanted: Mapping[str, Any],
    actual: Mapping[str, Any],
    plan: List[Item],
    suppliers: List[Mapping[str, Any]],
    passwords: Mapping[str, Any],
) -> List[str]:
    """Every reason why this plan cannot be applied to this host. Reads more of the host where the plan needs it."""
    reasons: List[str] = []
    doing = {(item["concern"], item["action"]) for item in plan}
    changing = any(concern == ENGINE for concern, _action in doing)
    if plan and "driver" in actual:
        reasons += system_refusals(wanted, read_text("/etc/os-release") or "", os.uname().release)
        reasons += list(cards(wanted, actual["driver"], plan, _bus_types()))
        reasons += list(memory(wanted, actual["driver"]))
        if ("driver", "install") in doing:
            kernel = os.uname().release
            reasons += [*(headers(kernel, wanted["brings_headers"]) if wanted["headers"] else []), *secure_boot()]
        if ("driver", cdi.INSTALL) in doing and not wanted["brings_toolkit"]:
            reasons += list(cdi.refusals(actual["driver"]["toolkit"]["version"]))
    if changing:
        reasons += list(engine(actual["engine"], installed_packages([*CONFLICTS, *ENGINES]), _engine_name()))
        reasons += list(flag_reasons(plan))
        reasons += list(finds_by_name(actual["engine"], plan)) if wanted["by_name"] else []
    if ("server", "create") in doing or ("server", "replace") in doing:
        reasons += absent(wanted["listen"])
        reasons += list(ports(wanted, listeners(wanted["listen"]), _publishers(wanted["listen"])))
    if "server" in actual:
        # Of a driver that is about to come nothing is there yet, and of one that is about to be loaded no node
        reasons += list(mounts(actual["server"], ("driver", "install") not in doing))
        access = actual["server"]["access"]
        loads = any(("driver", action) in doing for action in ("install", "load", "reload"))
        # A spec that this plan makes
        makes = any(("driver", action) in doing for action in (cdi.INSTALL, cdi.GENERATE))
        missing = [why for why in access["missing"] if not (makes and why == device_access.NO_SPEC)]
        reasons += [f"npufleet_device_access: {why}" for why in [*([] if loads else missing), *access["closed"]]]
    reasons += list(disk(_needs(wanted, doing), free_space))
    reasons += filter(None, [(actual.get("models") or {}).get("undecided")])
    if "models" in actual and wanted["pulls"]:
        reasons += pulled(wanted["pulls"], actual["models"], passwords.get(LARGE_FILES) or {})
    # An engine that changes may come to trust, or to reach, what it does not now
    needed = [entry for entry in suppliers if tuple(entry["needed"]) in doing and not (changing and entry.get("kind") == ENGINE)]
    return reasons + (unreached(needed, passwords) if needed else [])


def unreached(suppliers: List[Mapping[str, Any]], passwords: Mapping[str, str]) -> List[str]:
    """What keeps this host from its suppliers."""
    # Here, because most runs have nobody to ask, and TLS takes its time to be imported.
    from ansible_collections.npufleet.triton.plugins.module_utils import http_probe
    from ansible_collections.npufleet.triton.plugins.module_utils.engine import registry

    ask = {ENGINE: registry.check_supplier}
    return [why for why in (ask.get(entry.get("kind", ""), http_probe.supplier)(entry, passwords) for entry in suppliers) if why]


def pulled(pulls: Mapping[str, Any], here: Mapping[str, Any], secrets: Mapping[str, str]) -> List[str]:
    """Large files that the host lacks and fetches itself: their sources, and whether it has room for them."""
    missing = sorted(set(pulls["files"]) & set(here["missing"]))
    if not missing:
        return []
    # Here, for the reason of `unreached`
    from ansible_collections.npufleet.triton.plugins.module_utils.fetch import download
    from ansible_collections.npufleet.triton.plugins.module_utils.store import blobs

    reasons = []
    sizes: Dict[str, Optional[int]] = {}
    try:
        inside = download.bundled(pulls["bundle"])
    except download.SourceError as error:
        return [str(error)]
    for digest in missing:
        file = pulls["files"][digest]
        try:
            # Its role brings rclone where none is.
            unasked = digest in inside or (download.store_of(file.get("url", "")) and not which("rclone"))
            sizes[digest] = inside.get(digest, file.get("size")) if unasked else download.size(file, digest, pulls["way"], secrets)
        except download.SourceError as error:
            reasons.append("model {}: compiled file {}: {}: correct {}".format(file["model"], file["source"], error, file["todo"]))
    return reasons + list(filter(None, [blobs.short_of_room(pulls["root"], here["free"], here["arrived"], sizes)]))


def _bus_types() -> List[str]:
    """The type of each NPU on the bus by its PCI id, the id itself where it is not known."""
    found = []
    for path in sorted(glob.glob("/sys/bus/pci/devices/*/vendor")):
        if (read_text(path) or "").strip() == PCI_VENDOR:
            device = (read_text(os.path.join(os.path.dirname(path), "device")) or "").strip()
            found.append(CARDS.get(device, device))
    return found


def cards(wanted: Mapping[str, Any], driver: Mapping[str, Any], plan: List[Item], types: List[str]) -> Iterator[str]:
    """What of the cards no run can repair; under a driver that is about to change only the bus can be judged."""
    mine = [item for item in plan if item["concern"] == "driver"]
    changing = any(model["action"] in ("install", "load", "reload") for model in mine)
    foreign = sorted(set(types) - set(wanted["cards"]))
    if foreign:
        fitting = [name for name, row in wanted["rows"].items() if set(foreign) <= set(row["cards"])]
        other = f"choose release {' or '.join(fitting)}" if fitting else "no release of this version supports it"
        yield "found {} on the bus, wanted {} for release {}: {}".format(
            ", ".join(foreign), " or ".join(wanted["cards"]), wanted["release"], other
        )
    for part in mine:
        settled = changing and part["name"] not in ("bus", REBOOT)
        if part["action"] != INSPECT or settled or (foreign and part["name"] == "card type"):
            continue
        found = "no card" if part["name"] == "bus" and not driver["bus"] else short(part["current"])
        name = "" if part["name"] == "cards" else part["name"] + ": "
        yield "{}found {}, wanted {}: {}".format(
            name, found, short(part["desired"]), BY_HAND.get(part["name"], "see docs/troubleshooting/driver.md")
        )


def memory(wanted: Mapping[str, Any], driver: Mapping[str, Any]) -> Iterator[str]:
    """Device memory of the models placed here against what each NPU of this host has."""
    short_of: Dict[str, List[str]] = {}
    for number, device in enumerate(vendor_tool.in_process_order(driver["tool"].get("devices") or [])):
        shares = {name: on_npus[number] for name, on_npus in wanted["models"].items() if number < len(on_npus) and on_npus[number]}
        needed, total = sum(shares.values()), device["memory_total"]
        if needed > total:
            most = ", ".join(f"{name} {shares[name] / GIB:.1f}" for name in sorted(shares, key=lambda name: -shares[name]))
            words = f"wanted {needed / GIB:.1f} for the models placed there ({most})"
            short_of.setdefault(f"found {total / GIB:.1f} GiB of device memory on NPU {{}}, {words}", []).append(str(number))
    for words, numbers in short_of.items():
        yield words.format(", ".join(numbers)) + ": place fewer models or instances there"


def mounts(server: Mapping[str, Any], installed: bool) -> Iterator[str]:
    """What the container mounts and the host lacks; the driver's files where it is `installed`."""
    for path in server["absent"]:
        yield f"found nothing at {path}, wanted what triton_server_volumes mounts from there: make it, or correct that variable"
    for files in server["driver_files"]["missing"] if installed else ():
        yield (
            f"found no {files}, wanted what the driver brings into the container: install the driver whole, or mount what it has "
            "by triton_server_volumes and turn triton_server_driver_files off"
        )


def headers(kernel: str, brought: bool) -> List[str]:
    """What DKMS builds the driver with; where they are `brought` by the role, whether they can be had: unknown without lists."""
    if os.path.isdir(f"/lib/modules/{kernel}/build"):
        return []
    unknown = not glob.glob("/var/lib/apt/lists/*_Packages*")
    if brought and (unknown or run("apt-cache", "show", f"linux-headers-{kernel}")[0] == 0):
        return []
    return [
        f"found no headers of the running kernel {kernel}, wanted them for the driver's build: "
        f"`apt-get install linux-headers-{kernel}`; where that is gone from the repository, boot the newest kernel first"
    ]


def secure_boot() -> List[str]:
    """Whether the kernel would take a module that DKMS builds here."""
    try:
        with open(SECURE_BOOT, "rb") as source:
            # Four bytes of attributes come before the value
            on = source.read()[4:] == b"\1"
    except OSError:
        on = False
    if not on or any("is already enrolled" in run("mokutil", "--test-key", key)[1] for key in MOK_KEYS if os.path.exists(key)):
        return []
    return [
        "found Secure Boot on and no enrolled key that DKMS signs modules with, wanted one, or Secure Boot off: `apt-get install "
        f"mokutil shim-signed`, `update-secureboot-policy --new-key`, `mokutil --import {MOK_KEYS[0]}`, then reboot and enroll it "
        "at the console; or turn Secure Boot off in the firmware's setup"
    ]


def _engine_name() -> Optional[str]:
    """What answers at the engine's socket says that it is; None when nothing does."""
    try:
        version = Engine().get("/version") or {}
    except OSError:
        return None
    return ", ".join(component.get("Name", "") for component in version.get("Components") or []) or "Engine"


def engine(actual: Mapping[str, Any], installed: Mapping[str, Any], name: Optional[str]) -> Iterator[str]:
    """What would keep a Docker engine from being installed or run."""
    others = set(installed) & set(ENGINES)
    for package in sorted(set(installed) & set(CONFLICTS)):
        if package == "containerd.io" and "docker-ce" in others:
            continue
        yield f"found package {package}, wanted a host without it ({CONFLICTS[package]}): `apt-get remove {package}`"
    if name and "podman" in name.lower():
        yield "found podman behind /var/run/docker.sock, wanted Docker's engine there: `systemctl disable --now podman.socket`"
    if os.path.isdir("/var/snap/docker"):
        yield "found Docker from a snap, which sees neither /dev/rbln* nor files outside of homes: `snap remove docker`"
    if actual["daemon"] is None:
        yield "found /etc/docker/daemon.json as {}, wanted JSON to merge with: repair it by hand".format(actual["daemon_error"])


def clash(listen: str, bound: str) -> bool:
    """Whether a port of `listen`, the empty address being every one, cannot be had beside a socket that is bound there."""
    if not listen or not bound or listen == bound or bound == "::":
        # A socket of :: may take IPv4 as well
        return True
    same = (":" in listen) == (":" in bound)
    return same and (listen in ("0.0.0.0", "::") or bound == "0.0.0.0")


def _bound(words: str) -> str:
    """The address of a socket as /proc/net/tcp and tcp6 have it: words of 32 bits in the byte order of the machine."""
    import socket

    raw = b"".join(int(words[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(words), 8))
    mapped = raw[12:] if raw[:12] == b"\0" * 10 + b"\xff\xff" else raw
    return socket.inet_ntop(socket.AF_INET if len(mapped) == 4 else socket.AF_INET6, mapped)


def absent(listen: str) -> List[str]:
    """Why nothing can be published on an address: the host does not have it, such as that of a gateway before it."""
    import socket

    try:
        with socket.socket(socket.AF_INET6 if ":" in listen else socket.AF_INET) as entry:
            entry.bind((listen, 0))
    except OSError as error:
        why = error.strerror or error
        return [f"found no address {listen} on this host ({why}), wanted the one of triton_server_listen_address: correct it"]
    return []


def listeners(listen: str) -> Dict[str, str]:
    """{port: who listens on it} of this host as far as it is in the way of that address, `pid (command)` where that can be seen."""
    inodes: Dict[str, str] = {}
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (read_text(path) or "").splitlines()[1:]:
            columns = line.split()
            if len(columns) > 9 and columns[3] == "0A":
                where, port = columns[1].rsplit(":", 1)
                if clash(listen, _bound(where)):
                    inodes[columns[9]] = str(int(port, 16))
    found = dict.fromkeys(inodes.values(), "a process")
    for path in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            inode = os.readlink(path)[8:-1] if inodes else ""
        except OSError:
            continue
        if inode in inodes:
            pid = path.split("/")[2]
            found[inodes[inode]] = "process {} ({})".format(pid, (read_text(f"/proc/{pid}/comm") or "").strip())
    return found


def _publishers(listen: str) -> Dict[str, str]:
    """{port: container that publishes it} as far as it is in the way of that address."""
    try:
        running = Engine().get("/containers/json") or []
    except OSError:
        return {}
    return {
        str(port["PublicPort"]): entry["Names"][0].lstrip("/")
        for entry in running
        for port in entry.get("Ports") or []
        if port.get("PublicPort") and clash(listen, port.get("IP") or "")
    }


def ports(wanted: Mapping[str, Any], taken: Mapping[str, str], published: Mapping[str, str]) -> Iterator[str]:
    """Ports of the server that something else has."""
    for port, variable in wanted["ports"].items():
        by = published.get(port)
        if by in (wanted["container"], wanted["container"] + "-previous"):
            continue
        if by:
            yield (
                f"found port {port} published by container {by}, wanted it free: stop that container, set another {variable}, "
                "or take a Triton that was started by hand over with playbooks/adopt.yml"
            )
        elif port in taken:
            yield f"found port {port} taken by {taken[port]}, wanted it free: stop it, or set another {variable}"


def _needs(wanted: Mapping[str, Any], doing: Set[Tuple[str, str]]) -> Dict[str, int]:
    """{directory: bytes that the plan will write there}."""
    concerns = {concern for concern, action in doing if action in ("build", "deliver", "release")}
    needs = {path: sum(size for concern, size in parts.items() if concern in concerns) for path, parts in wanted["disk"].items()}
    return {path: size for path, size in needs.items() if size}


def disk(needs: Mapping[str, int], free: Any) -> Iterator[str]:
    """Free space by file system: directories that share one need their sum."""
    shared: Dict[int, List[str]] = {}
    room: Dict[int, int] = {}
    for path in needs:
        device, room_here = free(path)
        shared.setdefault(device, []).append(path)
        room[device] = room_here
    for device, paths in shared.items():
        needed = sum(needs[path] for path in paths)
        if room[device] < needed:
            yield (
                f"found {room[device] / GIB:.1f} GiB free for {' and '.join(sorted(paths))}, wanted {needed / GIB:.0f}: "
                "make room, or correct preflight_disk_*"
            )
