"""How the container gets at the cards (npufleet_device_access), and what it may be and do beside that."""

from __future__ import annotations

import glob
import grp
import os
import pwd
import re
import stat
from typing import Any, Dict, Iterator, List, Mapping, Optional, Set, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.driver import vendor_tool
from ansible_collections.npufleet.triton.plugins.module_utils.engine import cdi
from ansible_collections.npufleet.triton.plugins.module_utils.engine.cdi import GROUP_NODE
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal

PRIVILEGED, DEVICES, CDI = "privileged", "devices", "cdi"
# What of the store a server reads
STORE = ("blobs", "releases", "served")
# What a container may be and do that serves with the cards and nothing else. IPC_LOCK is what Backend.AI gives the vendor's runtime
# to pin memory by; a user that is not root pins by its limit memlock
LEAST: Mapping[str, Any] = {
    "privileged": False,
    "read_only": True,
    "cap_drop": ["ALL"],
    "cap_add": ["IPC_LOCK"],
    "security": ["no-new-privileges"],
}
# Where caches and files of models and of the SDK go; the rest is read-only, and /dev/shm is the engine's
HOME = "/tmp"
# To open a node is enough, nobody makes one inside; the vendor's container toolkit gives the same
RIGHTS = "rw"
OF_CARDS = re.compile(rf"(/dev/rbln[0-9]+):\1:[rwm]+|/dev/rsd[0-9]+:{GROUP_NODE}:[rwm]+")
DEVICE = re.compile(rf"(?:{OF_CARDS.pattern})(?<=:{RIGHTS})")
# As the vendor's container toolkit names them to an engine
BY_NAME = re.compile(rf"cdi (?:.*,)?{re.escape(cdi.KIND)}=")
EACH = re.compile(rf"cdi (?:,?{re.escape(cdi.KIND)}=[0-9]+)+")
# Told where it is not there yet, which those who are about to make it need not be
NO_SPEC = f"found no {cdi.SPEC}, wanted the vendor's spec of the NPUs there: run playbooks/site.yml"
GROUP = re.compile(r"[1-9][0-9]{0,9}")
# No account of a system may have a larger number
LARGEST_USER = 2**31 - 1


def privileged(variables: Mapping[str, Any]) -> bool:
    """Whether the container sees every device of the host, as in the vendor's guide."""
    return bool(variables["npufleet_device_access"] == PRIVILEGED)


def by_name(variables: Mapping[str, Any]) -> bool:
    """Whether the engine finds the cards by their names in the vendor's spec. Raises Refusal where there can be no such one."""
    if variables["npufleet_device_access"] != CDI:
        return False
    driver = variables["npufleet_row"]["driver"]["version"]
    if int(str(driver).partition(".")[0]) < cdi.OLDEST_DRIVER:
        raise Refusal(
            [
                f"npufleet_device_access is {CDI} and the driver of release {variables['rbln_release']} {driver}, wanted "
                f"{cdi.OLDEST_DRIVER}.0 or newer, whose librbln-ml the container toolkit needs: take {DEVICES}, or another release"
            ]
        )
    return True


def requests(npus: int) -> List[str]:
    """What the engine is asked for, as container_facts has it."""
    return ["cdi " + ",".join(cdi.names(npus))]


def user(variables: Mapping[str, Any]) -> int:
    """Number of the user, and of the group, that a server without privileges runs as. Raises Refusal."""
    number = int(variables["triton_server_user"])
    if not 0 < number <= LARGEST_USER:
        raise Refusal([f"triton_server_user is {number}, wanted the number of a user that is not root, such as 61100"])
    return number


def limits(variables: Mapping[str, Any]) -> Dict[str, Any]:
    """What the container may be and do, as container_facts has it."""
    if privileged(variables):
        return {"privileged": True}
    tmpfs = sorted(map(str, variables["triton_server_tmpfs"]))
    named = {"device_requests": requests(int(variables["npufleet_npus"]))} if by_name(variables) else {}
    return {**LEAST, "user": "{0}:{0}".format(user(variables)), "tmpfs": tmpfs, **named}


def environment(variables: Mapping[str, Any]) -> Dict[str, str]:
    """What a user that the image does not know needs to be told."""
    return {} if privileged(variables) else {"HOME": HOME}


def mounts(variables: Mapping[str, Any], binds: List[str]) -> List[str]:
    """These bind mounts; without privileges not the whole of the project's directory, but what a server reads."""
    root = variables["npufleet_root"]
    if privileged(variables) or f"{root}:{root}:ro" not in binds:
        return binds
    return [bind for bind in binds if bind != f"{root}:{root}:ro"] + [f"{root}/{name}:{root}/{name}:ro" for name in STORE]


def reader(variables: Mapping[str, Any]) -> Dict[str, Any]:
    """{"group": who may read the server's keys beside root, "needed": whether the server is such a reader}."""
    return {"group": user(variables), "needed": not privileged(variables)}


def wanted(variables: Mapping[str, Any], binds: List[str]) -> Optional[Dict[str, Any]]:
    """What `find` has to look for, None for a container that has every device: {"npus", "user", "binds": what it mounts, "names":
    by which the engine finds the NPUs, empty where it is given their nodes}."""
    if privileged(variables):
        return None
    npus = int(variables["npufleet_npus"])
    return {"npus": npus, "user": user(variables), "binds": binds, "names": cdi.names(npus) if by_name(variables) else []}


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
            f"inside, and the SDK looks for {GROUP_NODE} alone: take npufleet_device_access: {DEVICES}, or undo the group"
        )
    return {"devices": sorted(devices), "groups": sorted(groups), "missing": missing, "closed": closed}


def _group_node(nodes: List[str]) -> Tuple[str, List[str]]:
    """(the node of the group of these NPUs, why there is no such one): numbers of groups are the vendor's tool's."""
    if len(glob.glob("/dev/rsd[0-9]*")) < 2:
        return GROUP_NODE, []
    found = vendor_tool.ask_groups()
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
