# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Queries of the vendor's tool (rbln-smi or rbln-stat), which lists the cards and the processes that have them open.

A context is one process on one NPU. NPUs can be divided into groups (RSD groups), and the tool numbers the NPUs of each group from
0. So only a device node or a bus address identifies a card.
"""

from __future__ import annotations

import glob
import os
import re
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.driver import readings
from ansible_collections.npufleet.triton.plugins.module_utils.system import run

# The device nodes of RSD groups. /dev/rsd0 is the node of the default group.
GROUP_NODES = "/dev/rsd[0-9]*"
# Paths of the tool, in the order in which they are tried. rbln-smi is the newer name, and /usr/bin the newer directory.
TOOLS = ("/usr/local/bin/rbln-stat", "/usr/bin/rbln-smi", "/usr/local/bin/rbln-smi", "/usr/bin/rbln-stat")

# A whole number, which some versions of the tool print as text
WHOLE = (int, re.compile("[0-9]{1,19}"))
# A short line of text, which plans and messages show
NAME = re.compile("[ -~]{0,200}")
ANSWER = {
    "KMD_version": NAME,
    "devices": [
        {
            "npu": WHOLE,
            # The name of the node below /dev
            "device": re.compile(r"[A-Za-z0-9][\w.-]{0,63}"),
            "name": NAME,
            "status": NAME,
            "fw_ver?": (NAME, shapes.NULL),
            "pci": {"bus_id": NAME},
            "memory": {"total": WHOLE, "used": WHOLE},
        }
    ],
    "contexts?": ([{"npu": WHOLE, "pid": WHOLE, "process": NAME}], shapes.NULL),
}


def find_tool() -> Optional[str]:
    """Return the path of the tool, or None if the host has none."""
    # A path can be a directory, because an engine creates missing bind sources as directories.
    return next((path for path in TOOLS if os.path.isfile(path) and os.access(path, os.X_OK)), None)


def query_tool() -> Dict[str, Any]:
    """Return the "path" of the tool and the fields of parse_tool, or {"error"}. The format is the same for all versions.

    If two NPUs have the same number, a second call of the tool queries the groups. If the second call fails on a host with several
    groups, "groups_error" is the reason.
    """
    output, error = _run("-j")
    if error:
        return {"error": error}
    answer = parse_tool(output)
    devices = answer.get("devices") or []
    if len({device["npu"] for device in devices}) < len(devices) and not _grouped(devices):
        output, error = _run("-g", "-j")
        grouped = {} if error else parse_tool(output)
        if _grouped(grouped.get("devices") or []):
            answer = grouped
        elif len(glob.glob(GROUP_NODES)) > 1:
            answer["groups_error"] = error or f"{find_tool()} -g -j reports no group of each NPU: {output[:120]}"
    return {"path": find_tool(), **answer}


def _grouped(devices: Sequence[Mapping[str, Any]]) -> bool:
    return bool(devices) and all("group" in device for device in devices)


def in_process_order(devices: Sequence[Mapping[str, Any]]) -> List[Mapping[str, Any]]:
    """Return the devices in the order in which a process numbers them: by group and number."""
    by_number = {(device.get("group", 0), device["npu"]): device for device in devices}
    # If two devices have the same group and number, the order of the tool is kept.
    return [by_number[number] for number in sorted(by_number)] if len(by_number) == len(devices) else list(devices)


def stale(tool: Mapping[str, Any], nodes: Sequence[str]) -> Optional[str]:
    """Return a message if the driver has lost its cards, or None. The driver can lose cards if a process that uses them is killed.

    After that, the tool gives every card of a group the number 0, or lists no card although device nodes (`nodes`) exist. Only a
    reload of the module or a reboot helps, and both end the servers on all cards. So the loss must be certain. If the groups are
    unknown, each card with the number 0 may be the first one of its group, so no card counts as lost.
    """
    devices = tool.get("devices")
    if devices is None:
        return None
    if not devices:
        return f"the vendor's tool lists no card, but {', '.join(nodes)} exist" if nodes else None
    numbers: Dict[Optional[int], List[int]] = {}
    for device in devices:
        numbers.setdefault(device.get("group"), []).append(device["npu"])
    lost_groups = [group for group in numbers if len(numbers[group]) > 1 and set(numbers[group]) == {0}]
    if not lost_groups or "groups_error" in tool:
        return None
    where = "" if len(numbers) == 1 else f" of group {lost_groups[0]}"
    return f"the vendor's tool numbers each of {len(numbers[lost_groups[0]])} cards{where} 0"


def query_readings(timeout: float) -> List[readings.Card]:
    """Return the readings of the cards, also of cards with missing fields. Raises ValueError if the tool reports no cards."""
    groups = ["-g"] if len(glob.glob(GROUP_NODES)) > 1 else []
    output, error = _run(*groups, "-j", timeout=timeout)
    if error:
        raise ValueError(error)
    return readings.parse(output)


def _run(*options: str, timeout: float = 60) -> Tuple[str, str]:
    """Run the tool, and return (output, error). At least one of them is empty."""
    path = find_tool()
    if path is None:
        return "", "the vendor's tool is in none of " + ", ".join(sorted({os.path.dirname(name) for name in TOOLS}))
    code, output = run(path, *options, timeout=timeout)
    if code:
        return "", f"{path} ended with {code}: {output[:200]}"
    return output, ""


def query_groups() -> Dict[str, Any]:
    """Return {"groups": {name of an NPU's node: number of its group}} or {"error"}."""
    output, error = _run("-g", "-j")
    if error:
        return {"error": error}
    try:
        devices = shapes.parse_as(output, {"devices": [{"device": str}]})["devices"]
        groups = {device["device"]: _group(device) for device in devices}
        if None in groups.values():
            raise ValueError("an NPU without a group")
        return {"groups": groups}
    except ValueError as failure:
        return {"error": f"{find_tool()} -g -j printed an unknown format ({failure!r}): {output[:120]}"}


def _group(device: Mapping[str, Any]) -> Optional[int]:
    """Return the group of a device or context, or None if the tool reports none."""
    group = str(device.get("group_id", ""))
    return int(group) if group.isascii() and group.isdigit() and len(group) < 10 else None


def _holders(contexts: Sequence[Mapping[str, Any]], devices: Sequence[Mapping[str, Any]]) -> List[Dict[str, Any]]:
    """Return {"npu", "cards", "pid", "process"} of each context. "cards" has the cards on which the context can be.

    The SDK opens the node of only one group, so all contexts of a process are on NPUs of the same group.
    """
    numbers: Dict[int, Set[int]] = {}
    for device in devices if _grouped(devices) else ():
        numbers.setdefault(device["group"], set()).add(device["npu"])
    npus_by_pid: Dict[int, Set[int]] = {}
    for context in contexts:
        npus_by_pid.setdefault(int(context["pid"]), set()).add(int(context["npu"]))
    holders = []
    for context in contexts:
        npu, pid, group = int(context["npu"]), int(context["pid"]), _group(context)
        possible_groups = {group} if group is not None else {other for other in numbers if npus_by_pid[pid] <= numbers[other]}
        cards = [
            device["device"]
            for device in devices
            if device["npu"] == npu and (not possible_groups or device.get("group") in possible_groups)
        ]
        holders.append({"npu": npu, "cards": cards, "pid": pid, "process": str(context["process"])})
    return holders


def parse_tool(output: str) -> Dict[str, Any]:
    """Return {"version", "devices", "contexts", "holders"} from the JSON that the tool prints with `-j`, or {"error"}.

    "version" is the version of the driver. "devices" are the NPUs, with their "group" if the tool reports it. "contexts" is the
    number of contexts, and "holders" lists them with their cards.
    """
    try:
        answer = shapes.parse_as(output, ANSWER)
        devices = [
            {
                "npu": int(device["npu"]),
                **({} if _group(device) is None else {"group": _group(device)}),
                "device": device["device"],
                "name": device["name"],
                "status": device["status"],
                "firmware": device.get("fw_ver"),
                "bus_id": device["pci"]["bus_id"],
                "memory_total": int(device["memory"]["total"]),
                "memory_used": int(device["memory"]["used"]),
            }
            for device in answer["devices"]
        ]
        contexts = answer.get("contexts") or []
        holders = _holders(contexts, devices)
        return {"version": answer["KMD_version"], "devices": devices, "contexts": len(contexts), "holders": holders}
    except ValueError as error:
        return {"error": f"the vendor's tool printed an unknown format ({error!r}): {output[:120]}"}
