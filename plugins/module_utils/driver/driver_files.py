"""What the driver brings beside its module and a container needs: the vendor's tool, and from 3.0 on the libraries of the SDK.

The vendor's container toolkit mounts the same files (github.com/RBLN-SW/rbln-container-toolkit); before 3.0 the SDK has its own.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.driver import vendor_tool

# Where distributions have libraries, the first that has a name counts
DIRECTORIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")
LIBRARY = re.compile(r"(librbln-[a-z0-9_]+\.so)(?:\.[0-9]+)*")
# Opened by the SDK under its plain name, which a driver may lack: without it no NPU is seen (torch-rbln, pull request 130)
NEEDED = "librbln-thunk.so"
# A directory that the loader of every image searches, without a cache that would have to be made
INSIDE = "/usr/lib"
# What the SDK runs to list NPUs (rebel 0.10.1 and 0.11.0)
TOOL = "/usr/bin/rbln-smi"
_FILE = rf"(?:{'|'.join(map(re.escape, DIRECTORIES))})/{LIBRARY.pattern}"
_TOOL = "|".join(map(re.escape, vendor_tool.TOOLS))
BIND = re.compile(rf"(?:{_FILE}|{_TOOL}):(?:{INSIDE}/{LIBRARY.pattern}|{_TOOL}):ro")


def find(wanted: Mapping[str, Any]) -> Dict[str, List[str]]:
    """{"binds": bind mounts of what is there, "missing": what is wanted and not there}.

    `wanted`: {"libraries": whether the driver brings them, "driver": its version}.
    """
    binds, missing = {}, []
    tool = vendor_tool.find()
    if tool is None:
        missing.append("the vendor's tool (" + ", ".join(vendor_tool.TOOLS) + ")")
    else:
        binds[tool] = tool
    if wanted["libraries"]:
        if tool is not None:
            binds.setdefault(TOOL, tool)
        libraries = _libraries()
        if NEEDED not in libraries:
            missing.append(f"{NEEDED}* of driver {wanted['driver']} (in {', '.join(DIRECTORIES)})")
        binds.update({f"{INSIDE}/{name}": path for name, path in libraries.items()})
    return {"binds": sorted(f"{path}:{inside}:ro" for inside, path in binds.items()), "missing": missing}


def _libraries() -> Dict[str, str]:
    """{name: path} of every library under each of its names, and under its plain one."""
    found: Dict[str, str] = {}
    for directory in DIRECTORIES:
        names = os.listdir(directory) if os.path.isdir(directory) else []
        for name in filter(LIBRARY.fullmatch, names):
            path = os.path.join(directory, name)
            # A link that leads nowhere is no file, and would be mounted as a directory
            if os.path.isfile(path):
                found.setdefault(name, path)
    for name in sorted(found, key=len):
        found.setdefault(LIBRARY.fullmatch(name)[1], found[name])  # type: ignore[index]
    return found


def inside(path: str) -> bool:
    """Whether such a file of a container is one that the driver brings."""
    directory, name = os.path.split(path)
    return path in vendor_tool.TOOLS or (directory in DIRECTORIES and LIBRARY.fullmatch(name) is not None)
