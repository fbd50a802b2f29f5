"""The vendor's tool, under any of its names: what it says of cards and of who has them open.

The tool numbers NPUs for each RSD group, beginning with 0. So a number alone names no card: a card is its device node, or its
address on the bus.
"""

from __future__ import annotations

import glob
import os
import re
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.system import run

# Each group has a node, `/dev/rsd0` is that of the default group
GROUP_NODES = "/dev/rsd[0-9]*"
# The vendor's tool by age: rbln-smi replaces rbln-stat, /usr/bin replaces /usr/local/bin.
TOOLS = ("/usr/local/bin/rbln-stat", "/usr/bin/rbln-smi", "/usr/local/bin/rbln-smi", "/usr/bin/rbln-stat")

# Most numbers are text in some versions
WHOLE = (int, re.compile("[0-9]{1,19}"))
# What goes into messages and plans: one line that is no longer than a name is
NAME = re.compile("[ -~]{0,200}")
ANSWER = {
    "KMD_version": NAME,
    "devices": [
        {
            "npu": WHOLE,
            # Below /dev
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


def find() -> Optional[str]:
    """Where it is, None where there is none."""
    # An engine that was to mount what was not there has made a directory of it
    return next((path for path in TOOLS if os.path.isfile(path) and os.access(path, os.X_OK)), None)


def ask_tool() -> Dict[str, Any]:
    """Return the tool's answer as one shape over its versions: {"path", "version", "devices", "contexts", "holders"} or {"error"}.

    A device has its "group" where the tool reports it. Where numbers repeat, groups are queried; "groups_error" says why they are
    not known on a host that has several.
    """
    path = find()
    if path is None:
        return {"error": "the vendor's tool is in none of " + ", ".join(sorted({os.path.dirname(name) for name in TOOLS}))}
    output, why = _asked(path, "-j")
    if why:
        return {"error": why}
    answer = parse_tool(output)
    devices = answer.get("devices") or []
    if len({device["npu"] for device in devices}) < len(devices) and not _grouped(devices):
        output, why = _asked(path, "-g", "-j")
        grouped = {} if why else parse_tool(output)
        if _grouped(grouped.get("devices") or []):
            answer = grouped
        elif len(glob.glob(GROUP_NODES)) > 1:
            answer["groups_error"] = why or f"{path} -g -j reports no group of each NPU: {output[:120]}"
    return {"path": path, **answer}


def _grouped(devices: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if the group of every device is known."""
    return bool(devices) and all("group" in device for device in devices)


def in_order(devices: Sequence[Mapping[str, Any]]) -> List[Mapping[str, Any]]:
    """Return the devices as a process numbers them: by group and number, as listed where these do not tell them apart."""
    places = {(device.get("group", 0), device["npu"]) for device in devices}
    if len(places) < len(devices):
        return list(devices)
    return sorted(devices, key=lambda device: (device.get("group", 0), device["npu"]))


def _asked(path: str, *options: str) -> Tuple[str, str]:
    """(what the tool wrote, why it did not answer): one of them is empty."""
    code, output = run(path, *options)
    if code:
        return "", f"{path} ended with {code}: {output[:200]}"
    return output, ""


def ask_groups() -> Dict[str, Any]:
    """{"groups": {name of an NPU's node: number of its group}} or {"error"}: `/dev/rsd<number>` is the node of a group."""
    path = find()
    if path is None:
        return {"error": "there is no vendor's tool"}
    output, why = _asked(path, "-g", "-j")
    if why:
        return {"error": why}
    try:
        groups = {str(device["device"]): _group(device) for device in shapes.parse(output)["devices"]}
        if None in groups.values():
            raise ValueError("an NPU without a group")
        return {"groups": groups}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return {"error": f"{path} -g -j answered in a shape that is not known ({error!r}): {output[:120]}"}


def _group(device: Mapping[str, Any]) -> Optional[int]:
    """The group of a device, None where the tool reports none that can be read."""
    group = str(device.get("group_id", ""))
    return int(group) if group.isascii() and group.isdigit() and len(group) < 10 else None


def _holders(contexts: Sequence[Mapping[str, Any]], devices: Sequence[Mapping[str, Any]]) -> List[Dict[str, Any]]:
    """Each context with "cards", the device nodes that it may be on: one where the tool's answer tells them apart.

    The SDK opens the node of one group, so that all contexts of a process are on NPUs of one group.
    """
    numbers: Dict[int, Set[int]] = {}
    for device in devices if _grouped(devices) else ():
        numbers.setdefault(device["group"], set()).add(device["npu"])
    held: Dict[int, Set[int]] = {}
    for context in contexts:
        held.setdefault(int(context["pid"]), set()).add(int(context["npu"]))
    holders = []
    for context in contexts:
        npu, pid, group = int(context["npu"]), int(context["pid"]), _group(context)
        fitting = {group} if group is not None else {other for other in numbers if held[pid] <= numbers[other]}
        cards = [device["device"] for device in devices if device["npu"] == npu and (not fitting or device.get("group") in fitting)]
        holders.append({"npu": npu, "cards": cards, "pid": pid, "process": str(context["process"])})
    return holders


def parse_tool(output: str) -> Dict[str, Any]:
    """Parse the JSON of `rbln-stat -j`. `npu` is a string before 2.0 and a number since; most other numbers stay strings."""
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
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        return {"error": f"the vendor's tool answered in a shape that is not known ({error!r}): {output[:120]}"}
