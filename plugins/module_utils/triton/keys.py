"""The key of a host's Triton: what only its holder may ask (restricted APIs), where it lies, and how a request carries it.

It is made on its host and stays there: container, plan and controller know where it lies and nothing of what it is. Triton takes
a key in its command line alone, so a shell inside the container reads it there just before it becomes the server.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from functools import cache
from typing import Any, Dict, List, Mapping, Optional

# Mounted as a directory: a file that was replaced would stay what it was inside a container that runs.
HOME = "/etc/npufleet/server"
FILE = HOME + "/key"
# By gRPC a key has its name behind this
METADATA = "triton-grpc-protocol-"
APIS = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)
# What checks by inference ask
ASKED = frozenset(("health", "metadata", "inference", "model-config", "statistics"))
CONTROL = "model-repository"
OPTIONS = ("http-restricted-api", "grpc-restricted-protocol")
# A key that somebody thought up must not be told by its fingerprint, which is compared.
SHORTEST = 12
# The mode that lets whoever may load bring code of his own with it
EXPLICIT = "explicit"
# What the shell that reads it is called
SHELL = "npufleet"
START = (
    f'key=$(cat {FILE}) && [ -n "$key" ] || {{ echo "tritonserver: found no key in {FILE}, wanted that of this host: run '
    'playbooks/site.yml" >&2; exit 1; }; exec "$@" '
)


def desired(variables: Mapping[str, Any]) -> Optional[Dict[str, str]]:
    """{"name": of the header, "path": of the file on its host}; None where nothing is restricted."""
    if not variables["triton_server_restricted_apis"]:
        return None
    return {"name": str(variables["triton_server_api_key_name"]), "path": FILE}


def digest(variables: Mapping[str, Any]) -> Optional[str]:
    """The fingerprint of the operator's own key; None where the host makes one."""
    given = str(variables["triton_server_api_key"])
    return fingerprint(given) if given and variables["triton_server_restricted_apis"] else None


@cache
def fingerprint(key: str) -> str:
    """What a key is compared by. Slow, as plans and reports hold it and somebody may have thought the key up."""
    return hashlib.pbkdf2_hmac("sha256", key.encode(), b"npufleet", 100_000).hex()


def for_checks(variables: Mapping[str, Any]) -> Optional[Dict[str, str]]:
    """As `desired`, where checks by inference ask something that is restricted."""
    return desired(variables) if ASKED & set(variables["triton_server_restricted_apis"]) else None


def command(variables: Mapping[str, Any], line: List[str]) -> List[str]:
    """The command line of a server that asks for its host's key."""
    apis = variables["triton_server_restricted_apis"]
    if not apis:
        return line
    wanted = ",".join(api for api in APIS if api in apis)
    asks = " ".join(f'"--{option}={wanted}:{variables["triton_server_api_key_name"]}=$key"' for option in OPTIONS)
    return ["sh", "-c", START + asks, SHELL, *line]


def volumes(variables: Mapping[str, Any]) -> List[str]:
    """The mount by which the container reads it."""
    return [f"{HOME}:{HOME}:ro"] if variables["triton_server_restricted_apis"] else []


def reasons(variables: Mapping[str, Any]) -> List[str]:
    """Why the doors cannot be closed as they are described, or would stand open."""
    found: List[str] = []
    apis = variables["triton_server_restricted_apis"]
    name, key = str(variables["triton_server_api_key_name"]), str(variables["triton_server_api_key"])
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name):
        found.append(
            f"triton_server_api_key_name is {name}, wanted the name of a header, of lower case letters, digits and hyphens"
        )
    if key and not re.fullmatch(f"[!-~]{{{SHORTEST},}}", key):
        found.append(
            f"triton_server_api_key is shorter than {SHORTEST} characters, or has blanks or letters beyond ASCII in it: take a "
            "random one, or leave it out and each host makes its own"
        )
    own = [
        argument
        for argument in map(str, variables["triton_server_extra_args"])
        for option in OPTIONS
        if argument.startswith("--" + option)
    ]
    if own:
        options = ", ".join(entry.split("=")[0] for entry in own)
        found.append(
            f"triton_server_extra_args has {options}, whose key would stand in plan and container: use "
            "triton_server_restricted_apis, triton_server_api_key and triton_server_api_key_name"
        )
    if (
        variables["triton_server_model_control_mode"] == EXPLICIT
        and CONTROL not in apis
        and not loopback(str(variables["triton_server_listen_address"]))
        and not variables["triton_server_open_control"]
    ):
        found.append(
            "triton_server_restricted_apis has no {}, in mode explicit and with ports at {}: whoever reaches them runs code of his "
            "own as root, by one request to load. Put it back, listen at 127.0.0.1, or insist by "
            "triton_server_open_control: true".format(CONTROL, variables["triton_server_listen_address"] or "every address")
        )
    return found


def loopback(address: str) -> bool:
    """Whether nobody but this host reaches what listens there."""
    import ipaddress

    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address == "localhost"


def content(path: str) -> Optional[str]:
    """The key; None where there is none to be read."""
    try:
        with open(path, encoding="ascii") as source:
            return source.read().strip() or None
    except (OSError, ValueError):
        return None


def headers(key: Optional[Mapping[str, str]]) -> Dict[str, str]:
    """The header of a request over HTTP: none for a server without a key."""
    found = content(key["path"]) if key else None
    return {key["name"]: found} if key and found else {}


def flaw(path: str, wanted: Optional[str] = None, group: int = 0, needed: bool = False) -> Dict[str, Any]:
    """{"words": what is wrong with the file, None for nothing; "other": whether another key has to be written}.

    `wanted` is the fingerprint of the key that it has to be; `group` may read it beside root, and has to where it is `needed`.
    """
    found = content(path)
    if found is None:
        return {"words": "no key in it" if os.path.lexists(path) else "nothing", "other": True}
    if wanted and fingerprint(found) != wanted:
        return {"words": "another key", "other": True}
    for entry, alone, shared in ((os.path.dirname(path), 0o700, 0o050), (path, 0o600, 0o040)):
        state = os.lstat(entry)
        mode, mine = stat.S_IMODE(state.st_mode), group and state.st_gid == group
        kind = "a link" if stat.S_ISLNK(state.st_mode) else f"mode {mode:04o} of user {state.st_uid} and group {state.st_gid}"
        if mode & ~(alone | shared if mine else alone) or state.st_uid != os.geteuid() or stat.S_ISLNK(state.st_mode):
            # Who could read it may have it.
            return {"words": f"{kind} at {entry}", "other": not wanted}
        if needed and not (mine and mode & shared == shared):
            return {"words": f"{kind} at {entry}", "other": False}
    return {"words": None, "other": False}
