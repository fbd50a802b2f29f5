# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The files of the driver that a container needs: the vendor's tool and, since driver 3.0, the libraries that the SDK opens.

Before driver 3.0 these libraries were part of the SDK. The vendor's container toolkit mounts the same files
(github.com/RBLN-SW/rbln-container-toolkit).
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.driver import vendor_tool

# Library directories of distributions. If several directories have a library of the same name, the first directory counts.
DIRECTORIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")
LIBRARY = re.compile(r"(librbln-[a-z0-9_]+\.so)(?:\.[0-9]+)*")
# The SDK opens the library by this name and finds no NPU without it (torch-rbln, pull request 130). Some driver packages install
# the library only under names with a version.
NEEDED = "librbln-thunk.so"
# The dynamic loader of every image searches this directory, also for libraries that are not in the loader's cache.
CONTAINER_LIBRARIES = "/usr/lib"
# The SDK (Python package rebel, versions 0.10.1 and 0.11.0) runs this program to list NPUs.
TOOL = "/usr/bin/rbln-smi"
_LIBRARY_PATTERN = rf"(?:{'|'.join(map(re.escape, DIRECTORIES))})/{LIBRARY.pattern}"
_TOOL_PATTERN = "|".join(map(re.escape, vendor_tool.TOOLS))
# The bind mounts of driver files that a container may have
BIND = re.compile(rf"(?:{_LIBRARY_PATTERN}|{_TOOL_PATTERN}):(?:{CONTAINER_LIBRARIES}/{LIBRARY.pattern}|{_TOOL_PATTERN}):ro")


def find(desired: Mapping[str, Any]) -> Dict[str, List[str]]:
    """Return {"binds": bind mounts of the existing files, "missing": descriptions of the missing files}.

    `desired` is {"libraries": True if the driver includes libraries, "driver": the version of the driver}.
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
    """Return {name: path} of the libraries. Each library has an entry for each of its names, and for its name without a version."""
    found: Dict[str, str] = {}
    for directory in DIRECTORIES:
        names = os.listdir(directory) if os.path.isdir(directory) else []
        for name in filter(LIBRARY.fullmatch, names):
            path = os.path.join(directory, name)
            # A broken link is left out, because the engine would create a directory as its target and mount the directory.
            if os.path.isfile(path):
                found.setdefault(name, path)
    for name in sorted(found, key=len):
        found.setdefault(LIBRARY.fullmatch(name)[1], found[name])  # type: ignore[index]
    return found


def is_driver_file(path: str) -> bool:
    """Return True if this is the path of a driver file."""
    directory, name = os.path.split(path)
    return path in vendor_tool.TOOLS or (directory in DIRECTORIES and LIBRARY.fullmatch(name) is not None)
