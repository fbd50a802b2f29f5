"""Driver and cards: package, hold, module, device nodes, and what the vendor's tool says of every card."""

from __future__ import annotations

import glob
import os
import stat
from typing import Any, Dict, List, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.concerns.contract import NOTHING, NPU_HOSTS, Given
from ansible_collections.npufleet.triton.plugins.module_utils.plan import INSPECT, Item, Refusal, item
from ansible_collections.npufleet.triton.plugins.module_utils.system import packages, text
from ansible_collections.npufleet.triton.plugins.module_utils.vendor_tool import ask_tool

CONCERN = "driver"
GROUP = NPU_HOSTS
MODULE = "rebellions"
PCI_VENDOR = "0x1eff"
BOOT_FILE = "/etc/modules-load.d/npufleet.conf"
UNIT = "npufleet-cards.service"
UNIT_FILE = "/etc/systemd/system/" + UNIT
UNIT_ENABLED = "/etc/systemd/system/multi-user.target.wants/" + UNIT
# `$$` and `%%` are systemd's for `$` and `%`. Nodes are counted, not named: a dead card may shift the numbers of the others.
UNIT_TEXT = r"""# Written by npufleet
[Unit]
Description=Device nodes of the NPUs
After=systemd-modules-load.service
Before=docker.service

[Service]
Type=oneshot
RemainAfterExit=yes
Environment=NPUS={npus} TIMEOUT={timeout}
ExecStart=/bin/sh -c '\
    waited=0; \
    while :; do \
        set --; \
        for node in /dev/rbln[0-9]*; do if [ -c "$$node" ]; then set -- "$$@" "$$node"; fi; done; \
        if [ -c /dev/rsd0 ]; then rsd0=there; else rsd0=missing; fi; \
        if [ $$# -ge "$$NPUS" ] && [ $$rsd0 = there ]; then exit 0; fi; \
        if [ $$waited -ge "$$TIMEOUT" ]; then break; fi; \
        sleep 1; waited=$$((waited + 1)); \
    done; \
    echo "after $$TIMEOUT s: found $$# of $$NPUS NPUs ($$*), /dev/rsd0 $$rsd0: see dmesg; the engine starts all the same" >&2; \
    exit 1'

[Install]
WantedBy=multi-user.target
"""
FORMS = ("deb",)


def desired(variables: Mapping[str, Any], given: Given = NOTHING) -> Dict[str, Any]:
    """The driver of the release row on a host with `npufleet_npus` NPUs."""
    row = variables["npufleet_row"]
    driver = row["driver"]
    if driver["form"] not in FORMS:
        raise Refusal(
            [
                "driver {} of release {} is a .{} package, this version installs {}: choose a release whose driver is one".format(
                    driver["version"],
                    variables["rbln_release"],
                    driver["form"],
                    " or ".join("." + form for form in FORMS),
                )
            ]
        )
    return {
        "package": driver["package"],
        "version": driver["version"],
        "npus": int(variables["npufleet_npus"]),
        "cards": list(row["cards"]),
        "hold": bool(variables["rbln_driver_hold"]),
        "unit": unit(int(variables["npufleet_npus"]), int(variables["rbln_driver_boot_timeout"])),
    }


def unit(npus: int, timeout: int) -> str:
    """The systemd unit that ends once the device nodes of `npus` NPUs are there, or fails after `timeout` seconds."""
    return UNIT_TEXT.replace("{npus}", str(npus)).replace("{timeout}", str(timeout))


def read(wanted: Mapping[str, Any]) -> Dict[str, Any]:
    """What the package manager, the kernel and the vendor's tool say."""
    kernel = ["linux-image-" + os.uname().release, "linux-headers-" + os.uname().release]
    installed = packages([wanted["package"], *kernel])
    version = text(f"/sys/module/{MODULE}/version")
    return {
        "package": installed.pop(wanted["package"], None),
        "kernel_packages": {name: facts["held"] for name, facts in installed.items()},
        "kernel": os.uname().release,
        "module": version.strip() if version else None,
        "boot": (text(BOOT_FILE) or "").split() == [MODULE],
        "bus": sorted(
            os.path.basename(os.path.dirname(path))
            for path in glob.glob("/sys/bus/pci/devices/*/vendor")
            if (text(path) or "").strip() == PCI_VENDOR
        ),
        "nodes": sorted(os.path.basename(path) for path in glob.glob("/dev/rbln[0-9]*")),
        "rsd0": _is_device("/dev/rsd0"),
        "unit": text(UNIT_FILE),
        "unit_enabled": os.path.islink(UNIT_ENABLED),
        "tool": ask_tool(),
    }


def _is_device(path: str) -> bool:
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        return False


def diff(wanted: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
    """Package first, then the module, then what only hands can repair."""
    plan = []
    package = actual["package"] or {}
    if package.get("version") != wanted["version"]:
        plan.append(item(CONCERN, "package", package.get("version"), wanted["version"], "install"))
    if wanted["hold"]:
        loose = [] if package.get("held") else [wanted["package"]]
        loose += sorted(name for name, held in actual["kernel_packages"].items() if not held)
        if loose:
            plan.append(item(CONCERN, "hold", "free to change: " + ", ".join(loose), "held", "hold"))
    if not actual["boot"]:
        plan.append(item(CONCERN, "boot", "not loaded at boot", "loaded at boot", "configure"))
    if actual["unit"] != wanted["unit"]:
        plan.append(item(CONCERN, UNIT, actual["unit"], wanted["unit"], "configure"))
    elif not actual["unit_enabled"]:
        plan.append(item(CONCERN, UNIT, "disabled", "enabled", "configure"))
    loaded = actual["module"]
    if loaded is None or not same_version(loaded, wanted["version"]):
        plan.append(item(CONCERN, "module", loaded, wanted["version"], "load" if loaded is None else "reload"))
    if len(actual["bus"]) < wanted["npus"]:
        plan.append(item(CONCERN, "bus", "{} NPUs".format(len(actual["bus"])), "{} NPUs".format(wanted["npus"]), INSPECT))
    if loaded is not None:
        plan += _diff_cards(wanted, actual)
    return plan


def _diff_cards(wanted: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
    """Cards are judged only under a loaded module: without one there is nothing to see."""
    plan = []
    if not actual["rsd0"]:
        plan.append(item(CONCERN, "/dev/rsd0", None, "a character device", INSPECT))
    if len(actual["nodes"]) < wanted["npus"]:
        plan.append(item(CONCERN, "/dev/rbln*", actual["nodes"], "{} device nodes".format(wanted["npus"]), INSPECT))
    tool = actual["tool"]
    if "error" in tool:
        plan.append(item(CONCERN, "cards", tool["error"], "every card listed `normal`", INSPECT))
        return plan
    if not same_version(tool["version"], wanted["version"]):
        plan.append(item(CONCERN, "tool", tool["version"], wanted["version"], INSPECT))
    listed = {device["bus_id"]: device for device in tool["devices"]}
    unlisted = [address for address in actual["bus"] if address not in listed]
    sick = ["{device} {status}".format(**device) for device in tool["devices"] if device["status"] != "normal"]
    sick += [f"{address} not listed" for address in unlisted]
    if sick or len(listed) < wanted["npus"]:
        found = "{} listed{}".format(len(listed), "".join(", " + card for card in sick))
        plan.append(item(CONCERN, "cards", found, "{} listed `normal`".format(max(wanted["npus"], len(actual["bus"]))), INSPECT))
    foreign = sorted({device["name"] for device in tool["devices"]} - set(wanted["cards"]))
    if foreign:
        plan.append(item(CONCERN, "card type", ", ".join(foreign), " or ".join(wanted["cards"]), INSPECT))
    return plan


def same_version(found: str, wanted: str) -> bool:
    """The kernel adds the build to the version: `1.2.92-6d00b56` is 1.2.92."""
    return found == wanted or found.startswith(wanted + "-")
