# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The access of the container to the cards (npufleet_device_access), and the limits that follow for it."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils.concerns.server.device_access import RIGHTS
from ansible_collections.npufleet.triton.plugins.module_utils.engine import cdi
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal

PRIVILEGED, DEVICES, CDI = "privileged", "devices", "cdi"
# The directories of the store that a server reads
STORE = ("blobs", "releases", "served")
# All that a container needs to serve with the cards. Backend.AI gives IPC_LOCK to the vendor's runtime, which pins memory with it;
# a user other than root pins memory within its memlock limit
LEAST: Mapping[str, Any] = {
    "privileged": False,
    "read_only": True,
    "cap_drop": ["ALL"],
    "cap_add": ["IPC_LOCK"],
    "security": ["no-new-privileges"],
}
# Models and the SDK write caches and files here. The rest is read-only, and /dev/shm belongs to the engine.
HOME = "/tmp"
# A device of a card as Docker records it, and as this project gives it to a container
OF_CARDS = re.compile(rf"(/dev/rbln[0-9]+):\1:[rwm]+|/dev/rsd[0-9]+:{cdi.GROUP_NODE}:[rwm]+")
DEVICE = re.compile(rf"(?:{OF_CARDS.pattern})(?<=:{RIGHTS})")
# Device requests by the names of the vendor's container toolkit: any, and one for each NPU
BY_NAME = re.compile(rf"cdi (?:.*,)?{re.escape(cdi.KIND)}=")
EACH = re.compile(rf"cdi (?:,?{re.escape(cdi.KIND)}=[0-9]+)+")
GROUP = re.compile(r"[1-9][0-9]{0,9}")
# No account of a system may have a larger number.
LARGEST_USER = 2**31 - 1


def privileged(variables: Mapping[str, Any]) -> bool:
    """Return True if the container sees every device of the host, as in the vendor's guide."""
    return bool(variables["npufleet_device_access"] == PRIVILEGED)


def by_name(variables: Mapping[str, Any]) -> bool:
    """Return True if the engine finds the cards by their names in the vendor's spec. Raises Refusal for a driver without it."""
    if variables["npufleet_device_access"] != CDI:
        return False
    driver = variables["npufleet_row"]["driver"]["version"]
    if int(str(driver).partition(".")[0]) < cdi.OLDEST_DRIVER:
        raise Refusal(
            [
                f"the driver of release {variables['rbln_release']} is {driver}, expected {cdi.OLDEST_DRIVER}.0 or newer for "
                f"npufleet_device_access: {CDI}, whose container toolkit needs librbln-ml. Set {DEVICES}, or choose another release"
            ]
        )
    return True


def requests(npus: int) -> List[str]:
    """Return the device requests in the form of container_facts."""
    return ["cdi " + ",".join(cdi.device_names(npus))]


def user(variables: Mapping[str, Any]) -> int:
    """Return the number of the user, and of the group, of a server without privileges. Raises Refusal."""
    number = int(variables["triton_server_user"])
    if not 0 < number <= LARGEST_USER:
        raise Refusal([f"triton_server_user is {number}, expected the number of a user that is not root, such as 61100"])
    return number


def limits(variables: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the privileges and limits of the container in the form of container_facts."""
    if privileged(variables):
        return {"privileged": True}
    tmpfs = sorted(map(str, variables["triton_server_tmpfs"]))
    named = {"device_requests": requests(int(variables["npufleet_npus"]))} if by_name(variables) else {}
    return {**LEAST, "user": "{0}:{0}".format(user(variables)), "tmpfs": tmpfs, **named}


def environment(variables: Mapping[str, Any]) -> Dict[str, str]:
    """Return the environment that a user needs whom the image does not know."""
    return {} if privileged(variables) else {"HOME": HOME}


def mounts(variables: Mapping[str, Any], binds: List[str]) -> List[str]:
    """Return the bind mounts; without privileges only what a server reads of the project's directory."""
    root = variables["npufleet_root"]
    if privileged(variables) or f"{root}:{root}:ro" not in binds:
        return binds
    return [bind for bind in binds if bind != f"{root}:{root}:ro"] + [f"{root}/{name}:{root}/{name}:ro" for name in STORE]


def reader(variables: Mapping[str, Any]) -> Dict[str, Any]:
    """Return {"group": the group that may read the server's keys beside root, "needed": True if the server reads them by it}."""
    return {"group": user(variables), "needed": not privileged(variables)}


def query(variables: Mapping[str, Any], binds: List[str]) -> Optional[Dict[str, Any]]:
    """Return the query of concerns.device_access.find, None for a container that has every device.

    {"npus", "user", "binds": bind mounts, "names": by which the engine finds the NPUs, empty if it is given their nodes}
    """
    if privileged(variables):
        return None
    npus = int(variables["npufleet_npus"])
    return {"npus": npus, "user": user(variables), "binds": binds, "names": cdi.device_names(npus) if by_name(variables) else []}
