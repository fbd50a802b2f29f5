# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The concern `driver`: packages and their hold (apt-mark), kernel module, device nodes, cards, vendor's tool, and CDI spec."""

from __future__ import annotations

import glob
import os
import re
import stat
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils.driver.vendor_tool import TOOLS, query_tool, stale
from ansible_collections.npufleet.triton.plugins.module_utils.engine import cdi
from ansible_collections.npufleet.triton.plugins.module_utils.plan import INSPECT, Item, item
from ansible_collections.npufleet.triton.plugins.module_utils.system import installed_packages, read_text, run

CONCERN = "driver"
MODULE = "rebellions"
PCI_VENDOR = "0x1eff"
BOOT_FILE = "/etc/modules-load.d/npufleet.conf"
UNIT = "npufleet-cards.service"
UNIT_FILE = "/etc/systemd/system/" + UNIT
UNIT_ENABLED = "/etc/systemd/system/multi-user.target.wants/" + UNIT
# The plan item about a required reboot, and the marker file that the role writes. The reboot removes the file.
REBOOT = "reboot"
REBOOT_FILE = "/run/npufleet/reboot-required"
# Forms of a driver besides `deb`. Somebody else has installed a PRESENT driver: this project only checks it and holds its packages
# (apt-mark hold). A RUN driver comes from the vendor's installer.
PRESENT, RUN = "present", "run"
# The plan item about a wrong version of a PRESENT driver
INSTALLED_MODULE = "installed module"
# Packages of a driver. Drivers before 3.0 have the package `rebellions`. Later drivers have other packages, which the vendor's
# installer installs.
PACKAGES = ("rebellions*", "librbln-*")
PACKAGE = re.compile(r"(?:rebellions|librbln-)[a-z0-9.+-]*")
# Services of the driver, the older one first. A running service keeps the module in use.
SERVICES = ("rbln_daemon.service", "rbln-smd.service")
UNITS = ("/etc/systemd/system", "/lib/systemd/system", "/usr/local/lib/systemd/system")
# The DKMS directories of the driver's modules. A directory has one link for each kernel that has the module.
DKMS = "/var/lib/dkms/rebellions*"
# Packages whose upgrade installs another kernel, such as linux-generic, linux-image-generic-hwe-22.04 and linux-headers-amd64
FLAVOURS = "generic|virtual|lowlatency|oem|kvm|aws|azure|gcp|oracle|ibm|(?:cloud-|rt-)?amd64"
KERNELS = re.compile(rf"linux-(?:image-|headers-)?(?:{FLAVOURS})(?:-hwe)?(?:-[0-9.]+)?(?:-edge)?")


def read(desired: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the facts that the package manager, the kernel and the vendor's tool report."""
    kernel = ["linux-image-" + os.uname().release, "linux-headers-" + os.uname().release]
    not_deb = desired["form"] in (PRESENT, RUN)
    installed = installed_packages([desired["package"], *kernel, "linux-*", *PACKAGES], broken=True)
    version = read_text(f"/sys/module/{MODULE}/version")
    return {
        "package": installed.get(desired["package"]),
        # {package of any driver: True if it is held}
        "packages": {name: facts["held"] for name, facts in sorted(installed.items()) if PACKAGE.fullmatch(name)},
        # These two facts are None if the form is `deb`.
        "installed": _installed() if not_deb else None,
        "dkms": _dkms() if not_deb else None,
        # Directories that an engine created for missing sources of mounts. A package cannot install a file at their paths.
        "in_the_way": [path for path in TOOLS if os.path.isdir(path) and not os.listdir(path)],
        "services": [unit for unit in SERVICES if any(os.path.exists(os.path.join(directory, unit)) for directory in UNITS)],
        "kernel_packages": {
            name: facts["held"] for name, facts in sorted(installed.items()) if name in kernel or KERNELS.fullmatch(name)
        },
        "kernel": os.uname().release,
        "module": version.strip() if version else None,
        "reboot": os.path.exists(REBOOT_FILE),
        "boot": (read_text(BOOT_FILE) or "").split() == [MODULE],
        "bus": sorted(
            os.path.basename(os.path.dirname(path))
            for path in glob.glob("/sys/bus/pci/devices/*/vendor")
            if (read_text(path) or "").strip() == PCI_VENDOR
        ),
        "nodes": sorted(os.path.basename(path) for path in glob.glob("/dev/rbln[0-9]*")),
        "rsd0": _is_device("/dev/rsd0"),
        "unit": read_text(UNIT_FILE),
        "unit_enabled": os.path.islink(UNIT_ENABLED),
        "tool": query_tool(),
        "toolkit": cdi.read(desired["npus"] if desired["cdi"] else None),
    }


def _installed() -> Optional[str]:
    """Return the version of the kernel module on the disk, or None if there is no module for this kernel."""
    code, output = run("/sbin/modinfo", "--field", "version", MODULE)
    return output.strip() or None if code == 0 else None


def _dkms() -> Optional[bool]:
    """Return True if DKMS has installed the module for the running kernel, False if not, and None if DKMS does not have it."""
    directories = glob.glob(DKMS)
    built = any(glob.glob(os.path.join(path, f"kernel-{os.uname().release}-*")) for path in directories)
    return built if directories else None


def _is_device(path: str) -> bool:
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        return False


def diff(desired: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
    """Return the differences of packages, units, module and cards."""
    plan = []
    package = actual["package"] or {}
    if desired["form"] == PRESENT:
        plan += _diff_present(desired, actual)
    elif desired["form"] == RUN:
        plan += _diff_run(desired, actual)
    elif not same_version(package.get("version"), desired["version"]):
        plan.append(item(CONCERN, "package", package.get("version"), desired["version"], "install"))
    if desired["hold"]:
        driver_packages = {desired["package"]: bool(package.get("held"))} if desired["form"] == "deb" else actual["packages"]
        not_held = [
            name for packages in (driver_packages, actual["kernel_packages"]) for name in sorted(packages) if not packages[name]
        ]
        if not_held:
            plan.append(item(CONCERN, "hold", "free to change: " + ", ".join(not_held), "held", "hold"))
    if not actual["boot"]:
        plan.append(item(CONCERN, "boot", "not loaded at boot", "loaded at boot", "configure"))
    if actual["unit"] != desired["unit"]:
        plan.append(item(CONCERN, UNIT, actual["unit"], desired["unit"], "configure"))
    elif not actual["unit_enabled"]:
        plan.append(item(CONCERN, UNIT, "disabled", "enabled", "configure"))
    loaded = actual["module"]
    # A module can be loaded if it is on the disk, or if this plan installs it. The plan does not install a PRESENT driver.
    loadable = desired["form"] != PRESENT or same_version(actual["installed"], desired["version"])
    stale_reason = stale(actual["tool"], actual["nodes"]) if loaded is not None else None
    if loadable and not same_version(loaded, desired["version"]):
        plan.append(item(CONCERN, "module", loaded, desired["version"], "load" if loaded is None else "reload"))
    elif stale_reason:
        plan.append(item(CONCERN, "module", f"stale: {stale_reason}", "reloaded", "reload"))
    if actual["reboot"] and any(entry["name"] == "module" for entry in plan):
        plan.append(item(CONCERN, REBOOT, "required", "rebooted", "reboot" if desired["reboots"] else INSPECT))
    if len(actual["bus"]) < desired["npus"]:
        plan.append(item(CONCERN, "bus", "{} NPUs".format(len(actual["bus"])), "{} NPUs".format(desired["npus"]), INSPECT))
    cards = _diff_cards(desired, actual, compare_listed=stale_reason is None) if loaded is not None else []
    # If cards differ, the CDI spec is not compared yet, because a repair of the cards changes the spec.
    return [
        *plan,
        *cards,
        *cdi.diff(CONCERN, actual["toolkit"], desired["cdi"], loaded is not None and not stale_reason and not cards),
    ]


def _diff_present(desired: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
    plan = []
    if not same_version(actual["installed"], desired["version"]):
        plan.append(item(CONCERN, INSTALLED_MODULE, actual["installed"], desired["version"], INSPECT))
    if actual["dkms"] is False:
        plan.append(item(CONCERN, "dkms", "not installed", "installed for kernel {}".format(actual["kernel"]), INSPECT))
    return plan + _diff_firmware(desired, actual)


def _diff_run(desired: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
    found = actual["installed"]
    if not same_version(found, desired["version"]):
        return [item(CONCERN, "package", found, desired["version"], "install")]
    if actual["dkms"] is False:
        kernel = "for kernel {}".format(actual["kernel"])
        return [item(CONCERN, "package", f"{found}, not built {kernel}", f"{desired['version']} {kernel}", "install")]
    return _diff_firmware(desired, actual)


def _diff_firmware(desired: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
    """Return an item for the cards whose firmware does not match the driver. The firmware is unknown if no module is loaded."""
    cards = (actual["tool"].get("devices") or []) if actual["module"] is not None else []
    other = [card for card in cards if not same_version(card["firmware"], desired["version"])]
    listed = ", ".join(f"{card['device']} {card['firmware'] or 'unknown'}" for card in other)
    return [item(CONCERN, "firmware", listed, desired["version"], INSPECT)] if other else []


def _diff_cards(desired: Mapping[str, Any], actual: Mapping[str, Any], compare_listed: bool) -> List[Item]:
    """Return the differences of the cards of a loaded module. With `compare_listed`, compare the cards that the tool lists, too."""
    plan = []
    if not actual["rsd0"]:
        plan.append(item(CONCERN, "/dev/rsd0", None, "a character device", INSPECT))
    if len(actual["nodes"]) < desired["npus"]:
        plan.append(item(CONCERN, "/dev/rbln*", actual["nodes"], "{} device nodes".format(desired["npus"]), INSPECT))
    tool = actual["tool"]
    if "error" in tool:
        plan.append(item(CONCERN, "cards", tool["error"], "every card listed `normal`", INSPECT))
        return plan
    if not same_version(tool["version"], desired["version"]):
        plan.append(item(CONCERN, "tool", tool["version"], desired["version"], INSPECT))
    if not compare_listed:
        return plan
    if "groups_error" in tool:
        # The plan does not reload the module, because a reload ends the servers of all groups. An operator has to decide on it.
        plan.append(item(CONCERN, "groups", tool["groups_error"], "the group of every NPU", INSPECT))
    listed = {device["bus_id"]: device for device in tool["devices"]}
    unlisted = [address for address in actual["bus"] if address not in listed]
    faulty_cards = ["{device} {status}".format(**device) for device in tool["devices"] if device["status"] != "normal"]
    faulty_cards += [f"{address} not listed" for address in unlisted]
    if faulty_cards or len(listed) < desired["npus"]:
        found = "{} listed{}".format(len(listed), "".join(", " + card for card in faulty_cards))
        plan.append(item(CONCERN, "cards", found, "{} listed `normal`".format(max(desired["npus"], len(actual["bus"]))), INSPECT))
    other_types = sorted({device["name"] for device in tool["devices"]} - set(desired["cards"]))
    if other_types:
        plan.append(item(CONCERN, "card type", ", ".join(other_types), " or ".join(desired["cards"]), INSPECT))
    return plan


def same_version(found: Optional[str], desired: str) -> bool:
    """Return True if the versions are equal, apart from a build suffix of the actual version, such as in `1.2.92-6d00b56`."""
    return found is not None and (found == desired or found.startswith(desired + "-"))
