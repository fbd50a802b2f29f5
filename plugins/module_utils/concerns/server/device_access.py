# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The devices that a container gets (npufleet_device_access), and the devices and mounts that the server could not open."""

from __future__ import annotations

import glob
import grp
import os
import pwd
import stat
from typing import Any, Dict, Iterator, List, Mapping, Optional, Set, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.driver import vendor_tool
from ansible_collections.npufleet.triton.plugins.module_utils.engine import cdi
from ansible_collections.npufleet.triton.plugins.module_utils.engine.cdi import GROUP_NODE

# The container may read and write the devices. The right to create nodes (m) is not needed, and the vendor's container toolkit
# does not grant it either.
RIGHTS = "rw"
# The reason if the CDI spec is missing. A caller that is about to generate the spec ignores this reason.
NO_SPEC = f"{cdi.SPEC} is missing, expected the vendor's spec of the NPUs. Run playbooks/site.yml"


def find(query: Optional[Mapping[str, Any]]) -> Dict[str, List[str]]:
    """Return {"devices": devices for the container, "groups": IDs of the groups that may open them, "missing", "mismatches"}.

    "missing" lists the reasons why the server could not open the cards. "mismatches" lists the reasons why the user of the server
    or the groups of the NPUs do not fit. `query` comes from desired/device_access.py.
    """
    if query is None:
        return {"devices": [], "groups": [], "missing": [], "mismatches": []}
    nodes = [f"/dev/rbln{number}" for number in range(query["npus"])]
    group, missing = _group_node(nodes)
    devices = [f"{node}:{node}:{RIGHTS}" for node in nodes] + [f"{group}:{GROUP_NODE}:{RIGHTS}"]
    if query["cdi_names"]:
        devices = []
        missing += [] if os.path.exists(cdi.SPEC) else [NO_SPEC]
    groups: Set[str] = set()
    for node in [*nodes, group]:
        number, why = _access_group(node, query["user"])
        groups |= {str(number)} if number else set()
        missing += [why] if why else []
    mismatches = [*_account_conflicts(query["user"]), *_mount_problems(query)]
    if query["cdi_names"] and group != GROUP_NODE:
        mismatches.append(
            f"the NPUs are in the group of {group}, expected the group of {GROUP_NODE}: the toolkit keeps the name of a node, "
            f"and the SDK only looks for {GROUP_NODE}. Set npufleet_device_access: devices, or remove the group of the NPUs"
        )
    return {"devices": sorted(devices), "groups": sorted(groups), "missing": missing, "mismatches": mismatches}


def _group_node(nodes: List[str]) -> Tuple[str, List[str]]:
    """Return (device node of the group of these NPUs, reasons why the NPUs have no common group). Queries the vendor's tool."""
    if len(glob.glob("/dev/rsd[0-9]*")) < 2:
        return GROUP_NODE, []
    found = vendor_tool.query_groups()
    if "error" in found:
        return GROUP_NODE, [
            f"the groups of the NPUs are unknown ({found['error']}), expected one group for all NPUs of the container"
        ]
    groups = {found["groups"].get(os.path.basename(node), 0) for node in nodes}
    if len(groups) > 1:
        listed = ", ".join(map(str, sorted(groups)))
        return GROUP_NODE, [f"the NPUs are in groups {listed}, expected one group: a container has the node of one group"]
    return f"/dev/rsd{groups.pop() if groups else 0}", []


def _access_group(node: str, uid: int) -> Tuple[Optional[int], Optional[str]]:
    """Return (ID of the group that may open a node, None), (None, None) if every user may, or (None, why the server cannot)."""
    try:
        found = os.stat(node)
    except OSError:
        found = None
    if found is None or not stat.S_ISCHR(found.st_mode):
        return None, f"device {node} is missing, expected the node of each NPU and of their group. See `dmesg | tail`"
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o006 == 0o006:
        return None, None
    if mode & 0o060 == 0o060 and found.st_gid:
        return found.st_gid, None
    return None, (
        f"{node} has mode {mode:04o} of user {found.st_uid} and group {found.st_gid}, expected read and write "
        f"access for a group other than root's, which user {uid} of the server joins. "
        'Write a udev rule, such as KERNEL=="rbln*|rsd*", GROUP="render", MODE="0660"'
    )


def _account_conflicts(uid: int) -> Iterator[str]:
    """Yield a reason for each account of the host with the server's user ID, because the account could read the server's keys."""
    for kind, find_name in (("user", lambda: pwd.getpwuid(uid).pw_name), ("group", lambda: grp.getgrgid(uid).gr_name)):
        try:
            name = find_name()
        except KeyError:
            continue
        yield (
            f"{kind} {name} has the number {uid}, expected a number without an account on the host, as it may read the server's "
            "keys. Set triton_server_user"
        )


def _mount_problems(query: Mapping[str, Any]) -> Iterator[str]:
    """Yield a reason for each mount that the user of the server cannot read or write."""
    for bind in query["binds"]:
        path, _target, mode = bind.split(":")
        rights = "ro" if "ro" in mode.split(",") else "rw"
        try:
            found = os.stat(path)
        except OSError:
            # The path is the name of an engine's volume, or a missing source. The plan reports missing sources as `volumes`.
            continue
        bits = (4 if rights == "ro" else 6) | (1 if stat.S_ISDIR(found.st_mode) else 0)
        shift = 6 if found.st_uid == query["user"] else 3 if found.st_gid == query["user"] else 0
        if found.st_mode >> shift & bits != bits:
            yield (
                f"{path} has mode {stat.S_IMODE(found.st_mode):04o} of user {found.st_uid} and group {found.st_gid}, expected it "
                f"{'readable' if rights == 'ro' else 'writable'} for user {query['user']} of the server. Change its mode, or set "
                "triton_server_user"
            )
