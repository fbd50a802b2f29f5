# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The vendor's container toolkit, and the CDI spec (Container Device Interface) that the toolkit generates.

With the spec, an engine adds NPUs to a container by name. The source of the toolkit (github.com/RBLN-SW/rbln-container-toolkit,
0.2.0) shows what a spec contains. The entry of an NPU has the device node of the NPU and the device node of its group, with the
names that they have on the host. For all NPUs, the spec mounts the driver's libraries and tools, and creates their links.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.driver import driver_files
from ansible_collections.npufleet.triton.plugins.module_utils.plan import INSPECT, Item, item
from ansible_collections.npufleet.triton.plugins.module_utils.system import candidate_version, read_text, run

PACKAGE, TOOLKIT = "rbln-container-toolkit", "/usr/bin/rbln-ctk"
# Specs of older toolkits have no names for single NPUs.
MIN_VERSION = "0.2"
# Older drivers lack a library that the toolkit needs.
OLDEST_DRIVER = 3
# The path of the spec. The vendor's own unit also writes this file. Each boot removes the file, because /var/run is in memory. The
# vendor's package writes a second spec into /etc/cdi, but only during its installation, so the second spec gets outdated. This
# does not matter, because engines prefer /var/run/cdi to /etc/cdi.
SPEC = "/var/run/cdi/rbln.yaml"
KIND = "rebellions.ai/npu"
# The node of the default group of NPUs. The SDK opens only this name, and finds no NPU without it.
GROUP_NODE = "/dev/rsd0"
SPEC_UNIT, START_UNIT = "npufleet-cdi.service", "npufleet-cdi-start.service"
SYSTEMD = "/etc/systemd/system"
# {unit: the unit that starts it}. START_UNIT runs at every start of the engine, not only at boot.
WANTED_BY = {SPEC_UNIT: "multi-user.target", START_UNIT: "docker.service"}
GENERATE_COMMAND = (TOOLKIT, "cdi", "generate", "--output")
UNIT_TEXT = f"""# Written by npufleet
[Unit]
Description=Spec of the NPUs for containers (CDI)
After=npufleet-cards.service
Before=docker.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={" ".join(GENERATE_COMMAND)} {SPEC} --format yaml

[Install]
WantedBy=multi-user.target
"""
# Some versions of the engine, such as 27.5, start containers before they initialize CDI. A container that requests cards by name
# then fails to start (github.com/moby/moby/issues/49989, fixed in later versions). The unit starts the container after this error.
START_TEXT = """# Written by npufleet
[Unit]
Description=The Triton server that the engine could not start while it started itself
After=docker.service

[Service]
Type=oneshot
ExecStart=/bin/sh -c '\\
    docker inspect --format "{{.State.Error}}" "CONTAINER" 2>/dev/null | grep --quiet "device driver .cdi." || exit 0; \\
    exec docker start "CONTAINER"'

[Install]
WantedBy=docker.service
"""
# Actions of plan items
INSTALL, LINK, GENERATE, REMOVE = "toolkit", "link", "generate", "remove"


def device_names(npus: int) -> List[str]:
    """Return the CDI names of the NPUs of a host."""
    return [f"{KIND}={number}" for number in range(npus)]


def unit_texts(container: str) -> Dict[str, str]:
    """Return {name: text} of the systemd units, for the container of the server."""
    return {SPEC_UNIT: UNIT_TEXT, START_UNIT: START_TEXT.replace("CONTAINER", container)}


def read(npus: Optional[int]) -> Dict[str, Any]:
    """Return the facts of the units. If `npus` is not None, add the facts of the toolkit and the spec.

    - "units": {name of a unit: its text, or None}, and "enabled": names of the enabled units
    - "version": version of the toolkit
    - "spec": "current", "outdated", or None without a spec
    - "flaws" and "error": what is wrong with the spec that the toolkit generates now
    - "link": {"path", "to"} of the link to a library if the link is missing, or None
    """
    installed: Dict[str, Any] = {
        "units": {name: read_text(f"{SYSTEMD}/{name}") for name in WANTED_BY},
        "enabled": [name for name, by in WANTED_BY.items() if os.path.islink(f"{SYSTEMD}/{by}.wants/{name}")],
    }
    if npus is None:
        return installed
    facts: Dict[str, Any] = {**installed, "version": version(), "spec": None, "flaws": [], "error": None, "link": _missing_link()}
    if facts["version"] is None:
        return facts
    (code, generated), (json_code, as_json) = (run(*GENERATE_COMMAND, "-", "--format", form) for form in ("yaml", "json"))
    spec = read_text(SPEC)
    if code or json_code:
        facts["error"] = f"{TOOLKIT} cdi generate ended with {code or json_code}: {(generated if code else as_json)[-200:]}"
    else:
        facts["flaws"] = list(spec_flaws(as_json, npus, facts["link"] is not None))
    if spec is not None:
        facts["spec"] = "current" if not code and spec.strip() == generated else "outdated"
    return facts


def version() -> Optional[str]:
    """Return the version of the toolkit, or an empty string if the toolkit prints no version, or None if it is not installed."""
    if not os.access(TOOLKIT, os.X_OK):
        return None
    found = re.search(r"version v?(\d+\.\d[\w.+~-]*)", run(TOOLKIT, "version")[1])
    return found[1] if found else ""


def is_too_old(found: str) -> bool:
    """Return True if this version has no names for single NPUs. A custom build without a version number is not too old."""
    numbers = [[int(part) for part in re.findall(r"\d+", text.rpartition(":")[2])[:2]] for text in (found, MIN_VERSION)]
    return bool(numbers[0]) and numbers[0] < numbers[1]


def refusals(found: Optional[str]) -> Iterator[str]:
    """Yield a reason if neither the installed version `found` nor the version in the host's repositories is new enough."""
    if found is not None and not is_too_old(found):
        return
    offered = candidate_version(PACKAGE)
    if offered is None or is_too_old(offered):
        yield (
            f"{PACKAGE} is {found or 'missing'} and {offered or 'missing'} in the host's repositories, expected {MIN_VERSION} or "
            "newer, which names each NPU. Set rbln_driver_toolkit_repository, or install it"
        )


def _missing_link() -> Optional[Dict[str, str]]:
    """Return the link that the SDK opens, if it is missing on the host. The toolkit copies only links that exist on the host."""
    target = f"{driver_files.CONTAINER_LIBRARIES}/{driver_files.NEEDED}"
    for bind in driver_files.find({"libraries": True, "driver": ""})["binds"]:
        path, name, _rights = bind.split(":")
        if name == target and os.path.basename(path) != driver_files.NEEDED:
            return {"path": os.path.join(os.path.dirname(path), driver_files.NEEDED), "to": os.path.basename(path)}
    return None


def spec_flaws(as_json: str, npus: int, unlinked: bool = False) -> Iterator[str]:
    """Yield a description of each NPU, device node, library and tool of the host that is missing in a spec."""
    try:
        spec = shapes.parse(as_json)
        entries = {
            str(entry["name"]): {
                str(node["path"]): str(node.get("hostPath") or node["path"])
                for node in entry["containerEdits"].get("deviceNodes") or []
            }
            for entry in spec["devices"]
        }
        edits = spec["containerEdits"]
        mounts = {str(mount["containerPath"]): str(mount["hostPath"]) for mount in edits.get("mounts") or []}
        hooked = [str(word) for hook in edits.get("hooks") or [] for word in hook.get("args") or []]
        kind = spec["kind"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        yield f"a spec in an unknown format ({error!r})"
        return
    if kind != KIND:
        yield f"the kind {kind}"
    for number in range(npus):
        nodes = entries.get(str(number))
        if nodes is None:
            yield f"no NPU {number}"
            continue
        yield from (f"no {node} for NPU {number}" for node in (f"/dev/rbln{number}", GROUP_NODE) if nodes.get(node) != node)
    yield from _mount_flaws(mounts, [word.rpartition("::")[2] for word in hooked if "::" in word], unlinked)


def _mount_flaws(mounts: Mapping[str, str], links: Sequence[str], unlinked: bool) -> Iterator[str]:
    """Yield a description of each driver file that a spec does not mount, and of each mount whose source is missing."""
    yield from (f"a mount of {path}, which does not exist" for path in sorted(set(mounts.values())) if not os.path.exists(path))
    mounted = {os.path.realpath(path) for path in mounts.values()}
    of_driver = {bind.split(":")[0] for bind in driver_files.find({"libraries": True, "driver": ""})["binds"]}
    yield from (f"no {path}" for path in sorted(of_driver) if os.path.realpath(path) not in mounted)
    in_container = [*mounts, *links]
    if driver_files.TOOL not in in_container:
        yield f"no {driver_files.TOOL} in the container"
    if not unlinked and driver_files.NEEDED not in map(os.path.basename, in_container):
        yield f"no {driver_files.NEEDED} in the container"


def diff(concern: str, found: Mapping[str, Any], desired: Mapping[str, str], loaded: bool) -> List[Item]:
    """Return the differences of the toolkit and the units, and if the driver is `loaded`, also those of the spec.

    `desired` is {name of a unit: text}. If it is empty, installed units have to be removed.
    """
    if not desired:
        return [item(concern, name, "installed", None, REMOVE) for name, unit in found["units"].items() if unit is not None]
    plan = []
    if found["version"] is None or is_too_old(found["version"]):
        plan.append(item(concern, PACKAGE, found["version"], f"{MIN_VERSION} or newer", INSTALL))
    for name, unit in desired.items():
        if found["units"][name] != unit:
            plan.append(item(concern, name, found["units"][name], unit, "configure"))
        elif name not in found["enabled"]:
            plan.append(item(concern, name, "disabled", "enabled", "configure"))
    if found["link"]:
        plan.append(item(concern, found["link"]["path"], None, "a link to {}".format(found["link"]["to"]), LINK))
    if not loaded or found["version"] is None:
        return plan
    if found["error"]:
        plan.append(item(concern, SPEC, found["error"], "a spec of the NPUs", INSPECT))
        return plan
    if found["spec"] != "current":
        plan.append(item(concern, SPEC, found["spec"], "the toolkit's spec of this host", GENERATE))
    if found["flaws"]:
        complete = f"each NPU with its node and {GROUP_NODE}, and the driver's files"
        plan.append(item(concern, SPEC, "; ".join(found["flaws"]), complete, INSPECT))
    return plan
