"""The devices of the cards that a container gets (npufleet_device_access), and what its user could not open."""

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

# A container opens nodes and makes none. The vendor's container toolkit gives the same rights.
RIGHTS = "rw"
# Callers that are about to make the spec leave this reason out.
NO_SPEC = f"found no {cdi.SPEC}, wanted the vendor's spec of the NPUs there: run playbooks/site.yml"


def find(asked: Optional[Mapping[str, Any]]) -> Dict[str, List[str]]:
    """{"devices": to give to the container, "groups": that may open them, and in words "missing": why it could not open them,
    "closed": why its user could not be this one}."""
    if asked is None:
        return {"devices": [], "groups": [], "missing": [], "closed": []}
    nodes = [f"/dev/rbln{number}" for number in range(asked["npus"])]
    group, missing = _group_node(nodes)
    devices = [f"{node}:{node}:{RIGHTS}" for node in nodes] + [f"{group}:{GROUP_NODE}:{RIGHTS}"]
    if asked["names"]:
        devices = []
        missing += [] if os.path.exists(cdi.SPEC) else [NO_SPEC]
    groups: Set[str] = set()
    for node in [*nodes, group]:
        number, why = _opener(node, asked["user"])
        groups |= {str(number)} if number else set()
        missing += [why] if why else []
    closed = [*_account(asked["user"]), *_closed(asked)]
    if asked["names"] and group != GROUP_NODE:
        closed.append(
            f"found the NPUs in the group of {group}, wanted that of {GROUP_NODE}: the container toolkit gives a node its own name "
            f"inside, and the SDK looks for {GROUP_NODE} alone: take npufleet_device_access: devices, or undo the group"
        )
    return {"devices": sorted(devices), "groups": sorted(groups), "missing": missing, "closed": closed}


def _group_node(nodes: List[str]) -> Tuple[str, List[str]]:
    """(the node of the group of these NPUs, why there is no such one): numbers of groups are the vendor's tool's."""
    if len(glob.glob("/dev/rsd[0-9]*")) < 2:
        return GROUP_NODE, []
    found = vendor_tool.query_groups()
    if "error" in found:
        return GROUP_NODE, [f"found no groups of the NPUs ({found['error']}), wanted the one whose node is {GROUP_NODE} inside"]
    groups = {found["groups"].get(os.path.basename(node), 0) for node in nodes}
    if len(groups) > 1:
        listed = ", ".join(map(str, sorted(groups)))
        return GROUP_NODE, [f"found the NPUs in groups {listed}, wanted all in one: a container has the node of one group"]
    return f"/dev/rsd{groups.pop() if groups else 0}", []


def _opener(node: str, uid: int) -> Tuple[Optional[int], Optional[str]]:
    """(the group by which a node may be opened, None where anybody may; why it may not)."""
    try:
        found = os.stat(node)
    except OSError:
        found = None
    if found is None or not stat.S_ISCHR(found.st_mode):
        return None, f"found no device {node}, wanted the node of each NPU and of their group: see `dmesg | tail`"
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o006 == 0o006:
        return None, None
    if mode & 0o060 == 0o060 and found.st_gid:
        return found.st_gid, None
    return None, (
        f"found {node} with mode {mode:04o} of user {found.st_uid} and group {found.st_gid}, wanted it open to a group that is not "
        f'root\'s, for user {uid} of the server: write a udev rule, such as KERNEL=="rbln*|rsd*", GROUP="render", MODE="0660"'
    )


def _account(uid: int) -> Iterator[str]:
    """Whoever has the server's number on the host could read its keys."""
    for kind, ask in (("user", lambda: pwd.getpwuid(uid).pw_name), ("group", lambda: grp.getgrgid(uid).gr_name)):
        try:
            name = ask()
        except KeyError:
            continue
        yield (
            f"found {kind} {name} with the number {uid}, wanted one that nobody on the host has, as it may read the server's keys: "
            "set triton_server_user"
        )


def _closed(asked: Mapping[str, Any]) -> Iterator[str]:
    """What the server's user cannot read, or write, of what it mounts."""
    for bind in asked["binds"]:
        path, _inside, mode = bind.split(":")
        rights = "ro" if "ro" in mode.split(",") else "rw"
        try:
            found = os.stat(path)
        except OSError:
            # A volume of the engine, or what is told elsewhere
            continue
        bits = (4 if rights == "ro" else 6) | (1 if stat.S_ISDIR(found.st_mode) else 0)
        shift = 6 if found.st_uid == asked["user"] else 3 if found.st_gid == asked["user"] else 0
        if found.st_mode >> shift & bits != bits:
            yield (
                f"found {path} with mode {stat.S_IMODE(found.st_mode):04o} of user {found.st_uid} and group {found.st_gid}, "
                f"wanted it {'readable' if rights == 'ro' else 'writable'} for user {asked['user']} of the server: change its "
                "mode, or set triton_server_user"
            )
