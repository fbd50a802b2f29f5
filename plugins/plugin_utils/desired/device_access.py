# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The container's access to the cards (npufleet_device_access), and the privileges and limits that follow from it."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils.concerns.server.device_access import RIGHTS
from ansible_collections.npufleet.triton.plugins.module_utils.engine import cdi
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal

PRIVILEGED, DEVICES, CDI = "privileged", "devices", "cdi"
# The subdirectories of npufleet_root that a server reads
STORE_DIRECTORIES = ("blobs", "releases", "served")
# Privileges and limits of an unprivileged container. The SDK pins memory. IPC_LOCK lets only root pin memory without a limit, and
# the server does not run as root. Therefore the memlock limit decides how much memory the server can pin.
UNPRIVILEGED: Mapping[str, Any] = {
    "privileged": False,
    "read_only": True,
    "cap_drop": ["ALL"],
    "cap_add": ["IPC_LOCK"],
    "security": ["no-new-privileges"],
}
# The directory to which models and the SDK write files, because the root file system is read-only
HOME = "/tmp"
# A mapping of a card's device node, `host path:container path:rights`, with any rights, in the form of container_facts
# (concerns/server/container.py)
CARD_DEVICE = re.compile(rf"(/dev/rbln[0-9]+):\1:[rwm]+|/dev/rsd[0-9]+:{cdi.GROUP_NODE}:[rwm]+")
# The same mapping with exactly the rights that this project grants to a container
GRANTED_DEVICE = re.compile(rf"(?:{CARD_DEVICE.pattern})(?<=:{RIGHTS})")
# A device request that has a CDI name of the vendor, such as rebellions.ai/npu=all
CDI_REQUEST = re.compile(rf"cdi (?:.*,)?{re.escape(cdi.KIND)}=")
# A device request whose names are all numbers of NPUs, such as rebellions.ai/npu=0, but not rebellions.ai/npu=all
NUMBERED_CDI_REQUEST = re.compile(rf"cdi (?:,?{re.escape(cdi.KIND)}=[0-9]+)+")
# The ID of a group other than root's
GROUP_ID = re.compile(r"[1-9][0-9]{0,9}")
# The largest allowed user ID
MAX_USER_ID = 2**31 - 1


def privileged(variables: Mapping[str, Any]) -> bool:
    """Return True if the container sees every device of the host, as in the vendor's guide."""
    return bool(variables["npufleet_device_access"] == PRIVILEGED)


def uses_cdi(variables: Mapping[str, Any]) -> bool:
    """Return True if the engine finds the cards by their CDI names. Raises Refusal if the driver is too old for CDI."""
    if variables["npufleet_device_access"] != CDI:
        return False
    driver = variables["npufleet_release_row"]["driver"]["version"]
    if int(str(driver).partition(".")[0]) < cdi.OLDEST_DRIVER:
        raise Refusal(
            f"the driver of release {variables['rbln_release']} is {driver}, expected {cdi.OLDEST_DRIVER}.0 or newer for "
            f"npufleet_device_access: {CDI}. The vendor's container toolkit needs librbln-ml, which older drivers lack. "
            f"Set npufleet_device_access: {DEVICES}, or choose another release"
        )
    return True


def requests(npus: int) -> List[str]:
    """Return the device requests for the NPUs in the form of concerns.server.container.container_facts."""
    return ["cdi " + ",".join(cdi.device_names(npus))]


def user(variables: Mapping[str, Any]) -> int:
    """Return the user ID of an unprivileged server. Its group ID is the same number. Raises Refusal."""
    number = int(variables["triton_server_user"])
    if not 0 < number <= MAX_USER_ID:
        raise Refusal(f"triton_server_user is {number}, expected the number of a user that is not root, such as 61100")
    return number


def limits(variables: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the privileges and limits of the container in the form of concerns.server.container.container_facts."""
    if privileged(variables):
        return {"privileged": True}
    tmpfs = sorted(map(str, variables["triton_server_tmpfs"]))
    cdi_requests = {"device_requests": requests(int(variables["npufleet_npus"]))} if uses_cdi(variables) else {}
    return {**UNPRIVILEGED, "user": "{0}:{0}".format(user(variables)), "tmpfs": tmpfs, **cdi_requests}


def environment(variables: Mapping[str, Any]) -> Dict[str, str]:
    """Return environment variables. An unprivileged server gets HOME, because its user is not in the image and has no home."""
    return {} if privileged(variables) else {"HOME": HOME}


def mounts(variables: Mapping[str, Any], binds: List[str]) -> List[str]:
    """Return the bind mounts. An unprivileged container gets only the subdirectories of npufleet_root that a server reads."""
    root = variables["npufleet_root"]
    project_mount = f"{root}:{root}:ro"
    if privileged(variables) or project_mount not in binds:
        return binds
    return [*(bind for bind in binds if bind != project_mount), *(f"{root}/{name}:{root}/{name}:ro" for name in STORE_DIRECTORIES)]


def key_readers(variables: Mapping[str, Any]) -> Dict[str, Any]:
    """Return {"group": the ID of the server's group, "group_must_read": True for an unprivileged server}.

    An unprivileged server does not run as root, so its group must be able to read the keys. A privileged server runs as root, so
    no group needs to read them.
    """
    return {"group": user(variables), "group_must_read": not privileged(variables)}


def access_query(variables: Mapping[str, Any], binds: List[str]) -> Optional[Dict[str, Any]]:
    """Return the query with which concerns.server.device_access.find looks for the devices of the container.

    The query is {"npus": number, "user": user ID, "binds": bind mounts, "cdi_names": CDI names of the NPUs}. Without CDI, the
    container gets device nodes, and `cdi_names` is empty. Return None for a privileged container, which has every device.
    """
    if privileged(variables):
        return None
    npus = int(variables["npufleet_npus"])
    return {
        "npus": npus,
        "user": user(variables),
        "binds": binds,
        "cdi_names": cdi.device_names(npus) if uses_cdi(variables) else [],
    }
