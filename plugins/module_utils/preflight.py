# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The preflight of a host: the reasons why its plan cannot be applied.

On the controller, preflight_inputs.py collects the conditions from the inventory. Most conditions are checked only if the plan
changes what they concern.
"""

from __future__ import annotations

import glob
import os
import sys
from contextlib import suppress
from typing import Any, Dict, Iterator, List, Mapping, Optional, Set, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.concerns.driver import PCI_VENDOR, REBOOT
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.engine import ENGINE_PACKAGES, cdi_refusals, flag_reasons
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.server import device_access
from ansible_collections.npufleet.triton.plugins.module_utils.driver import vendor_tool
from ansible_collections.npufleet.triton.plugins.module_utils.driver.systems import system_refusals
from ansible_collections.npufleet.triton.plugins.module_utils.engine import cdi
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine
from ansible_collections.npufleet.triton.plugins.module_utils.plan import INSPECT, Item, short
from ansible_collections.npufleet.triton.plugins.module_utils.system import (
    bind_error,
    free_space,
    installed_packages,
    read_text,
    run,
    which,
)

GIB = 2**30
# The key in `passwords` for the sources of large model files
LARGE_FILES = "large files of models"
# The name of the concern `engine`, and the `kind` of the suppliers that the host's engine contacts (image registries)
ENGINE = "engine"
# {PCI device ID: card type}, from the Kubernetes operator and exporter of the vendor. If a type has two IDs, the second ID is for
# the virtual function of the card.
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
# {name of a plan item of the driver that no run can repair: next step for the operator}
NEXT_STEPS = {
    "bus": "Check seat and power of the card with `lspci -d 1eff:`, or correct npufleet_npus",
    "/dev/rsd0": "Without it the SDK sees no device. Run `modprobe -r rebellions && modprobe rebellions`, then `dmesg | tail`",
    "/dev/rbln*": "See `dmesg | tail` for the card that the driver gave up",
    "cards": "See the vendor's tool and `dmesg | tail`. A power cycle clears most faults, else call the vendor",
    "groups": "Run `rbln-smi -g -j`: the tool numbers the NPUs in each group, so that their numbers name no card",
    "tool": "The tool of another driver comes first in the path. Remove it",
    "installed module": "Install the vendor's driver of this version, or choose the release whose driver is installed",
    "dkms": "See `dmesg | tail` and `dkms status`. Install the headers of the running kernel, then run `dkms autoinstall`",
    "firmware": "Run the vendor's installer of this driver again, or see its rbln-flash",
    REBOOT: "Reboot the host in maintenance (playbooks/maintenance.yml), or set rbln_driver_reboot",
    "card type": "Choose a release that supports the card, or correct npufleet_card",
    cdi.SPEC: f"See `{cdi.TOOLKIT} cdi list` and /etc/rbln/container-toolkit.yaml, or set npufleet_device_access: devices",
}
# SECURE_BOOT is the UEFI variable of Secure Boot. DKMS builds the driver's kernel module, and signs it with one of MOK_KEYS on
# Ubuntu and Debian.
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
MOK_KEYS = ("/var/lib/shim-signed/mok/MOK.der", "/var/lib/dkms/mok.pub")
# Packages that conflict with the engine, each with the reason
CONFLICTS = {
    "podman-docker": "it replaces the client of Docker by the client of podman",
    "containerd.io": "it comes from another repository than the engine that would be installed",
}


def refusals(
    desired: Mapping[str, Any],
    actual: Mapping[str, Any],
    plan: List[Item],
    suppliers: List[Mapping[str, Any]],
    passwords: Mapping[str, Any],
) -> List[str]:
    """Return every reason why the plan of this host cannot be applied. Read more facts of the host if the plan needs them."""
    reasons: List[str] = []
    planned_actions = {(item["concern"], item["action"]) for item in plan}
    changing = any(concern == ENGINE for concern, _action in planned_actions)
    if plan and "driver" in actual:
        reasons += system_refusals(desired, read_text("/etc/os-release") or "", os.uname().release)
        reasons += cards(desired, actual["driver"], plan, _bus_types())
        reasons += memory(desired, actual["driver"])
        if ("driver", "install") in planned_actions:
            reasons += headers(os.uname().release, desired["installs_headers"]) if desired["headers"] else []
            reasons += secure_boot()
        if ("driver", cdi.INSTALL) in planned_actions and not desired["installs_toolkit"]:
            reasons += cdi.refusals(actual["driver"]["toolkit"]["version"])
    if changing:
        reasons += engine(actual["engine"], installed_packages([*CONFLICTS, *ENGINE_PACKAGES]), _engine_name())
        reasons += flag_reasons(plan)
        reasons += cdi_refusals(actual["engine"], plan) if desired["uses_cdi"] else []
    if planned_actions & {("server", "create"), ("server", "replace")}:
        reasons += address_refusals(desired["listen"])
        metrics = desired.get("metrics_listen", desired["listen"])
        if metrics != desired["listen"]:
            reasons += address_refusals(metrics, "triton_server_metrics_listen_address")
        reasons += ports(desired, listeners(desired["listen"]), _publishers(desired["listen"]))
    if "server" in actual:
        # Driver files can be missing until the plan installs the driver, and device nodes until the plan loads the module.
        reasons += mounts(actual["server"], ("driver", "install") not in planned_actions)
        access = actual["server"]["access"]
        loads = planned_actions & {("driver", action) for action in ("install", "load", "reload")}
        generates = planned_actions & {("driver", cdi.INSTALL), ("driver", cdi.GENERATE)}
        missing = [reason for reason in access["missing"] if not (generates and reason == device_access.NO_SPEC)]
        reasons += [f"npufleet_device_access: {reason}" for reason in [*([] if loads else missing), *access["mismatches"]]]
    reasons += disk(_disk_needs(desired, planned_actions), free_space)
    reasons += filter(None, [(actual.get("models") or {}).get("undecided")])
    if "models" in actual and desired["downloads"]:
        reasons += download_refusals(desired["downloads"], actual["models"], passwords.get(LARGE_FILES) or {})
    # If the plan changes the engine, the image registries are not checked, because the engine can need the change to reach them.
    needed = [
        entry for entry in suppliers if tuple(entry["needed"]) in planned_actions and not (changing and entry.get("kind") == ENGINE)
    ]
    if needed:
        # These imports are slow, and most runs need no supplier.
        from ansible_collections.npufleet.triton.plugins.module_utils import http_probe
        from ansible_collections.npufleet.triton.plugins.module_utils.engine import registry

        checks = [(registry if entry.get("kind") == ENGINE else http_probe, entry) for entry in needed]
        reasons += filter(None, (check.supplier_error(entry, passwords) for check, entry in checks))
    return reasons


def download_refusals(downloads: Mapping[str, Any], store_state: Mapping[str, Any], secrets: Mapping[str, str]) -> List[str]:
    """Return the reasons why the missing large files cannot be downloaded: sources that fail, and too little free space."""
    missing = sorted(set(downloads["files"]) & set(store_state["missing"]))
    if not missing:
        return []
    # These imports are slow, and most runs download nothing.
    from ansible_collections.npufleet.triton.plugins.module_utils.fetch import download
    from ansible_collections.npufleet.triton.plugins.module_utils.store import blobs

    reasons = []
    options = downloads["fetch_options"]
    sizes: Dict[str, Optional[int]] = {}
    try:
        in_bundle = download.blobs_in_bundle(downloads["bundle"])
    except download.SourceError as error:
        return [str(error)]
    for digest in missing:
        file = downloads["files"][digest]
        try:
            # Before the role installs rclone, the size of a file in an object store cannot be queried. So the size stays unknown.
            skipped = digest in in_bundle or (download.store_of(file.get("url", "")) and not which("rclone"))
            sizes[digest] = in_bundle.get(digest, file.get("size")) if skipped else download.size(file, digest, options, secrets)
        except download.SourceError as error:
            reasons.append("model {}: compiled file {}: {}. Correct {}".format(file["model"], file["source"], error, file["todo"]))
    return reasons + list(filter(None, [blobs.shortage(downloads["root"], store_state["free"], store_state["arrived"], sizes)]))


def _bus_types() -> List[str]:
    """Return the card type of each NPU on the bus, or its PCI device ID if the type is unknown."""
    found = []
    for path in sorted(glob.glob("/sys/bus/pci/devices/*/vendor")):
        if (read_text(path) or "").strip() == PCI_VENDOR:
            device = (read_text(os.path.join(os.path.dirname(path), "device")) or "").strip()
            found.append(CARDS.get(device, device))
    return found


def cards(desired: Mapping[str, Any], driver: Mapping[str, Any], plan: List[Item], types: List[str]) -> Iterator[str]:
    """Yield the differences of the driver and its cards that no run can repair.

    If the plan changes the driver, yield only differences of the bus and a pending reboot, because the change can end the others.
    """
    driver_items = [item for item in plan if item["concern"] == "driver"]
    changing = any(entry["action"] in ("install", "load", "reload") for entry in driver_items)
    foreign = sorted(set(types) - set(desired["cards"]))
    if foreign:
        fitting = [name for name, row in desired["rows"].items() if set(foreign) <= set(row["cards"])]
        step = f"Choose release {' or '.join(fitting)}" if fitting else "No release of this version supports them"
        expected = f"{' or '.join(desired['cards'])} for release {desired['release']}"
        yield f"the bus has {', '.join(foreign)}, expected {expected}. {step}"
    for entry in driver_items:
        repaired = changing and entry["name"] not in ("bus", REBOOT)
        if entry["action"] != INSPECT or repaired or (foreign and entry["name"] == "card type"):
            continue
        found = "no card" if entry["name"] == "bus" and not driver["bus"] else short(entry["current"] or "missing")
        step = NEXT_STEPS.get(entry["name"], "See docs/troubleshooting/driver.md")
        yield f"{entry['name']}: {found}, expected {short(entry['desired'])}. {step}"


def memory(desired: Mapping[str, Any], driver: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message about the NPUs whose device memory is too small for the models that are placed on them."""
    npus_by_reason: Dict[str, List[str]] = {}
    for number, device in enumerate(vendor_tool.in_process_order(driver["tool"].get("devices") or [])):
        shares = {name: on_npus[number] for name, on_npus in desired["models"].items() if number < len(on_npus) and on_npus[number]}
        needed, total = sum(shares.values()), device["memory_total"]
        if needed > total:
            most = ", ".join(f"{name} {shares[name] / GIB:.1f}" for name in sorted(shares, key=lambda name: -shares[name]))
            reason = f"is {total / GIB:.1f} GiB, expected {needed / GIB:.1f} GiB for the models on it ({most})"
            npus_by_reason.setdefault(reason, []).append(str(number))
    for reason, numbers in npus_by_reason.items():
        yield f"device memory of NPU {', '.join(numbers)} {reason}. Place fewer models or instances on it"


def mounts(server: Mapping[str, Any], installed: bool) -> Iterator[str]:
    """Yield a message for each mount whose source is missing. Driver files are checked only if the driver is `installed`."""
    for path in server["absent"]:
        yield f"{path} is missing, expected the source of a mount in triton_server_volumes. Create it, or correct the variable"
    for files in server["driver_files"]["missing"] if installed else ():
        yield (
            f"{files} is missing, expected the file of the driver for the container. Install the complete driver, or mount it "
            "by triton_server_volumes and turn triton_server_driver_files off"
        )


def headers(kernel: str, installs: bool) -> List[str]:
    """Return a list with the reason if the kernel headers are missing and the role cannot install them, or an empty list."""
    if os.path.isdir(f"/lib/modules/{kernel}/build"):
        return []
    unknown = not glob.glob("/var/lib/apt/lists/*_Packages*")
    if installs and (unknown or run("apt-cache", "show", f"linux-headers-{kernel}")[0] == 0):
        return []
    return [
        f"headers of the running kernel {kernel} are missing, expected them for the build of the driver. Run `apt-get install "
        f"linux-headers-{kernel}`. If the repository no longer has them, boot the newest kernel first"
    ]


def secure_boot() -> List[str]:
    """Return a list with the reason if the kernel would refuse a module that DKMS builds, or an empty list."""
    on = False
    with suppress(OSError), open(SECURE_BOOT, "rb") as source:
        # The value follows four bytes of attributes.
        on = source.read()[4:] == b"\1"
    if not on or any("is already enrolled" in run("mokutil", "--test-key", key)[1] for key in MOK_KEYS if os.path.exists(key)):
        return []
    return [
        "Secure Boot is on and the key by which DKMS signs modules is not enrolled, expected it enrolled, or Secure Boot off. Run "
        f"`apt-get install mokutil shim-signed`, `update-secureboot-policy --new-key`, `mokutil --import {MOK_KEYS[0]}`, then "
        "reboot and enroll the key at the console, or turn Secure Boot off in the setup of the firmware"
    ]


def _engine_name() -> str:
    """Return the name of the engine that answers at the socket, or an empty text if no engine answers."""
    with suppress(OSError):
        return ", ".join(component.get("Name", "") for component in (Engine().get("/version") or {}).get("Components") or [])
    return ""


def engine(actual: Mapping[str, Any], installed: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield the reasons why a Docker engine cannot be installed or run."""
    others = set(installed) & set(ENGINE_PACKAGES)
    for package in sorted(set(installed) & set(CONFLICTS)):
        if package == "containerd.io" and "docker-ce" in others:
            continue
        yield f"package {package} is installed, expected a host without it ({CONFLICTS[package]}). Run `apt-get remove {package}`"
    if "podman" in name.lower():
        yield "podman answers at /var/run/docker.sock, expected the engine of Docker. Run `systemctl disable --now podman.socket`"
    if os.path.isdir("/var/snap/docker"):
        yield "Docker is installed from a snap, which sees neither /dev/rbln* nor files outside of homes. Run `snap remove docker`"
    if actual["daemon"] is None:
        yield f"/etc/docker/daemon.json is broken ({actual['daemon_error']}), expected JSON to merge with. Repair it manually"


def clash(listen: str, bound: str) -> bool:
    """Return True if a socket at `bound` prevents a socket at `listen` on the same port. An empty address means every address."""
    if not listen or not bound or listen == bound or bound == "::":
        # A socket at :: can also accept IPv4.
        return True
    same_family = (":" in listen) == (":" in bound)
    return same_family and (listen in ("0.0.0.0", "::") or bound == "0.0.0.0")


def _decode_address(digits: str) -> str:
    """Return the address in /proc/net/tcp or tcp6: hexadecimal 32-bit words in the byte order of the machine."""
    import socket

    raw = b"".join(int(digits[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(digits), 8))
    mapped = raw[12:] if raw[:12] == b"\0" * 10 + b"\xff\xff" else raw
    return socket.inet_ntop(socket.AF_INET if len(mapped) == 4 else socket.AF_INET6, mapped)


def address_refusals(listen: str, name: str = "triton_server_listen_address") -> List[str]:
    """Return a list with the reason if the host does not have this address, so that no port can be published there."""
    reason = bind_error(listen)
    return [f"{name} is {listen}, expected an address of this host ({reason}). Correct it"] if reason else []


def listeners(listen: str) -> Dict[str, str]:
    """Return {port: process} of the ports that processes occupy at this address."""
    inodes: Dict[str, str] = {}
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (read_text(path) or "").splitlines()[1:]:
            columns = line.split()
            if len(columns) > 9 and columns[3] == "0A":
                where, port = columns[1].rsplit(":", 1)
                if clash(listen, _decode_address(where)):
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
    """Return {port: container} of the ports that containers publish at this address."""
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


def ports(desired: Mapping[str, Any], listening: Mapping[str, str], published: Mapping[str, str]) -> Iterator[str]:
    """Yield a message for each port of the server that another container or process uses."""
    for port, variable in desired["ports"].items():
        by = published.get(port)
        if by in (desired["container"], desired["container"] + "-previous"):
            continue
        if by:
            yield (
                f"port {port} is published by container {by}, expected it free. Stop that container, set another {variable}, or "
                "take over a Triton that was started manually with playbooks/adopt.yml"
            )
        elif port in listening:
            yield f"port {port} is taken by {listening[port]}, expected it free. Stop it, or set another {variable}"


def _disk_needs(desired: Mapping[str, Any], planned_actions: Set[Tuple[str, str]]) -> Dict[str, int]:
    """Return {directory: bytes that the plan writes to it}."""
    concerns = {concern for concern, action in planned_actions if action in ("build", "deliver", "release")}
    needs = {path: sum(size for concern, size in sizes.items() if concern in concerns) for path, sizes in desired["disk"].items()}
    return {path: size for path, size in needs.items() if size}


def disk(needs: Mapping[str, int], free: Any) -> Iterator[str]:
    """Yield a reason for each file system that has less free space than all its directories in `needs` together."""
    paths_by_device: Dict[int, List[str]] = {}
    for path in needs:
        paths_by_device.setdefault(free(path)[0], []).append(path)
    for paths in paths_by_device.values():
        needed, free_bytes = sum(needs[path] for path in paths), free(paths[0])[1]
        if free_bytes < needed:
            yield (
                f"free space of {' and '.join(sorted(paths))} is {free_bytes / GIB:.1f} GiB, expected {needed / GIB:.0f}. Make "
                "room, or correct preflight_disk_*"
            )
