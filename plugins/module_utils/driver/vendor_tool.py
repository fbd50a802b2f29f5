"""The vendor's tool, under any of its names: what it says of cards and of who has them open."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.system import run

# The vendor's tool by age: rbln-smi replaces rbln-stat, /usr/bin replaces /usr/local/bin.
TOOLS = ("/usr/local/bin/rbln-stat", "/usr/bin/rbln-smi", "/usr/local/bin/rbln-smi", "/usr/bin/rbln-stat")


def find() -> Optional[str]:
    """Where it is, None where there is none."""
    # An engine that was to mount what was not there has made a directory of it
    return next((path for path in TOOLS if os.path.isfile(path) and os.access(path, os.X_OK)), None)


def ask_tool() -> Dict[str, Any]:
    """The vendor's tool as one shape over its versions: {"path", "version", "devices", "contexts", "holders"} or {"error"}."""
    path = find()
    if path is None:
        return {"error": "the vendor's tool is in none of " + ", ".join(sorted({os.path.dirname(name) for name in TOOLS}))}
    output, why = _asked(path, "-j")
    return {"error": why} if why else {"path": path, **parse_tool(output)}


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
        return {"groups": {str(device["device"]): int(device["group_id"]) for device in json.loads(output)["devices"]}}
    except (ValueError, KeyError, TypeError) as error:
        return {"error": f"{path} -g -j answered in a shape that is not known ({error!r}): {output[:120]}"}


def parse_tool(output: str) -> Dict[str, Any]:
    """JSON of `rbln-stat -j`. `npu` is a string before 2.0 and a number since; most other numbers stay strings."""
    try:
        answer = json.loads(output)
        devices = [
            {
                "npu": int(device["npu"]),
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
        holders = [
            {"npu": int(context["npu"]), "pid": int(context["pid"]), "process": str(context["process"])} for context in contexts
        ]
        return {"version": answer["KMD_version"], "devices": devices, "contexts": len(contexts), "holders": holders}
    except (ValueError, KeyError, TypeError) as error:
        return {"error": f"the vendor's tool answered in a shape that is not known ({error!r}): {output[:120]}"}
