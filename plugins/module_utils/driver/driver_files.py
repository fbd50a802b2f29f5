# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The files of the driver that a container needs: the vendor's tool, and from driver 3.0 on the libraries of the SDK.

The vendor's container toolkit mounts the same files (github.com/RBLN-SW/rbln-container-toolkit). Before 3.0 the SDK has its own.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.driver import vendor_tool

# Library directories of distributions; the first one that has a name counts.
DIRECTORIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")
LIBRARY = re.compile(r"(librbln-[a-z0-9_]+\.so)(?:\.[0-9]+)*")
# The SDK opens this name, which a driver may lack, and finds no NPU without it (torch-rbln, pull request 130).
NEEDED = "librbln-thunk.so"
# The loader of every image searches this directory without a cache.
CONTAINER_LIBRARIES = "/usr/lib"
# The SDK runs this program to list NPUs (rebel 0.10.1 and 0.11.0).
TOOL = "/usr/bin/rbln-smi"
_FILE = rf"(?:{'|'.join(map(re.escape, DIRECTORIES))})/{LIBRARY.pattern}"
_TOOL = "|".join(map(re.escape, vendor_tool.TOOLS))
BIND = re.compile(rf"(?:{_FILE}|{_TOOL}):(?:{CONTAINER_LIBRARIES}/{LIBRARY.pattern}|{_TOOL}):ro")


def find(desired: Mapping[str, Any]) -> Dict[str, List[str]]:
    """Return {"binds": bind mounts of the existing files, "missing": descriptions of the missing ones}.

    `desired`: {"libraries": if the driver includes libraries, "driver": its version}.
    """
    binds, missing = {}, []
    tool = vendor_tool.find_tool()
    if tool is None:
        missing.append("the vendor's tool (" + ", ".join(vendor_tool.TOOLS) + ")")
    else:
        binds[tool] = tool
    if desired["libraries"]:
        if tool is not None:
            binds.setdefault(TOOL, tool)
        libraries = _libraries()
        if NEEDED not in libraries:
            missing.append(f"{NEEDED}* of driver {desired['driver']} (in {', '.join(DIRECTORIES)})")
        binds.update({f"{CONTAINER_LIBRARIES}/{name}": path for name, path in libraries.items()})
    return {"binds": sorted(f"{path}:{target}:ro" for target, path in binds.items()), "missing": missing}


def _libraries() -> Dict[str, str]:
    """Return {name: path} of each library by all of its names, including the one without a version."""
    found: Dict[str, str] = {}
    for directory in DIRECTORIES:
        names = os.listdir(directory) if os.path.isdir(directory) else []
        for name in filter(LIBRARY.fullmatch, names):
            path = os.path.join(directory, name)
            # The engine would mount a broken link as a directory.
            if os.path.isfile(path):
                found.setdefault(name, path)
    for name in sorted(found, key=len):
        found.setdefault(LIBRARY.fullmatch(name)[1], found[name])  # type: ignore[index]
    return found


def is_driver_file(path: str) -> bool:
    """Return True if a path of a container belongs to the driver."""
    directory, name = os.path.split(path)
    return path in vendor_tool.TOOLS or (directory in DIRECTORIES and LIBRARY.fullmatch(name) is not None)
