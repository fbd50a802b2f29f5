# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The concern `balancer`: HAProxy's packages, configuration, certificates and systemd drop-in, and the running HAProxy.

A plan shows digests in place of secrets. module_utils/secret.py computes (seals) each digest with a key.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import stat
from typing import Any, Dict, Iterator, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import secret
from ansible_collections.npufleet.triton.plugins.module_utils.balancer import drains, files
from ansible_collections.npufleet.triton.plugins.module_utils.balancer.runtime import MASTER, SOCKET, BalancerError
from ansible_collections.npufleet.triton.plugins.module_utils.balancer.servers import DOWN, DRAINED, READY, Balancer
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item, item, short
from ansible_collections.npufleet.triton.plugins.module_utils.programs import library
from ansible_collections.npufleet.triton.plugins.module_utils.system import installed_packages, read_text, run

CONCERN = "balancer"
# A plan shows at most MAX_LINES changed lines. A certificate that expires in less than MIN_DAYS days causes a warning.
MAX_LINES, MIN_DAYS = 20, 21
# Parts of a line that may be secret: the digest of a login, and the headers of a health check
_LOGIN = re.compile(r"(acl npufleet_known .* -m str )(\S+)")
_HEADER = re.compile(r"( hdr (?!host |content-type )\S+ )('(?:[^']|'\\'')*')")


def content_digest(content: str, mode: int, key: str) -> str:
    """Return the text that plans show for a file that only root can read: a digest of its content, and its mode."""
    return f"{secret.seal(content, key)}, mode {mode:04o}"


def shown_lines(config: str, key: str) -> List[str]:
    """Return the lines of a configuration with digests instead of secrets."""

    def seal(line: str) -> str:
        pattern = _HEADER if line.lstrip().startswith("http-check send ") else _LOGIN
        return pattern.sub(lambda found: found[1] + secret.seal(found[2], key), line)

    return [seal(line) for line in config.splitlines()]


def read(desired: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the packages, the files, the running HAProxy and its servers."""
    key, config = desired["digest_key"], read_text(files.CONFIG)
    return {
        "packages": sorted(installed_packages(desired["packages"])),
        "owner": owner(config),
        "lines": shown_lines(config or "", key) if files.HEADER in (config or "") else [],
        "files": {path: _file(path, key) for path in [*desired["files"], *desired["absent"]]},
        "drop_in": read_text(files.DROP_IN),
        "library": os.path.isdir(library.path()),
        "expires_in": desired["expires_in"],
        "pool": sorted(desired["servers"]),
        **_running_facts(),
    }


def _file(path: str, key: str) -> Optional[str]:
    """Return the text that plans show for a file, or None if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as source:
            status = os.fstat(source.fileno())
            return content_digest(source.read(), stat.S_IMODE(status.st_mode), key)
    except OSError:
        return None


def owner(config: Optional[str]) -> str:
    """Return who wrote a haproxy.cfg: `nobody` (no file), `npufleet`, `package` (it is the package's default) or `site`."""
    if config is None:
        return "nobody"
    if config.startswith(files.HEADER + "\n"):
        return "npufleet"
    listed = run("dpkg-query", "--show", "--showformat=${Conffiles}", "haproxy")[1]
    known = re.search(f"^ *{re.escape(files.CONFIG)} ([0-9a-f]{{32}})", listed, re.MULTILINE)
    # dpkg records the MD5 of the files of a package.
    digest = hashlib.md5(config.encode("utf-8", "surrogateescape"), usedforsecurity=False).hexdigest()
    return "package" if known and known[1] == digest else "site"


def _running_facts() -> Dict[str, Any]:
    """Return facts of the running HAProxy: `running` (digest of its configuration), its servers, and the records of drains."""
    try:
        balancer = Balancer(SOCKET, MASTER)
        running = files.digest_in(balancer.runtime.command("show info")) or "another configuration"
        servers = balancer.servers() if running != "another configuration" else {}
    except BalancerError as error:
        return {"running": None, "reason": str(error), "servers": {}, "records": {}}
    facts = {
        name: {"state": server.state, "health": server.health, "weight": server.weights[0], "in_flight": server.in_flight}
        for name, server in servers.items()
    }
    return {"running": running, "reason": "", "servers": facts, "records": drains.read(files.HOME).by_server}


def diff(desired: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
    """Return the differences of packages, files and the running HAProxy."""
    plan = []
    missing = sorted(set(desired["packages"]) - set(actual["packages"]))
    if missing:
        plan.append(item(CONCERN, "packages", "without " + ", ".join(missing), "installed", "install"))
    for path, expected in desired["files"].items():
        found = actual["files"].get(path)
        if found != expected:
            is_config = path == files.CONFIG
            plan.append(_config_item(desired, actual) if is_config else item(CONCERN, path, found, expected, "configure"))
    for path in desired["absent"]:
        if actual["files"].get(path) is not None:
            plan.append(item(CONCERN, path, "present", None, "configure"))
    if actual["drop_in"] != desired["drop_in"]:
        plan.append(item(CONCERN, files.DROP_IN, actual["drop_in"], desired["drop_in"], "configure"))
    if not actual["library"]:
        plan.append(item(CONCERN, library.path(), None, "the programs that save the state of the servers", "configure"))
    if actual["running"] is None:
        plan.append(item(CONCERN, "service", None, "a HAProxy that answers at " + SOCKET, "start"))
    elif actual["running"] != desired["digest"]:
        plan.append(item(CONCERN, "loaded configuration", actual["running"], desired["digest"], "reload"))
    elif set(desired["servers"]) != set(actual["servers"]):
        plan.append(item(CONCERN, "servers", ", ".join(actual["servers"]) or None, ", ".join(desired["servers"]), "reload"))
    if actual["running"] is not None and not actual["enabled"]:
        plan.append(item(CONCERN, files.UNIT, "disabled", "enabled", "start"))
    return plan


def _config_item(desired: Mapping[str, Any], actual: Mapping[str, Any]) -> Item:
    """Return the difference of haproxy.cfg: its changed lines, or who wrote it if this project did not."""
    if actual["owner"] != "npufleet":
        owners = {"nobody": None, "package": "the default of the package", "site": "a configuration of the site"}
        servers = f"a balancer of {len(desired['servers'])} servers"
        return item(CONCERN, files.CONFIG, owners[actual["owner"]], servers, "configure")
    changed = list(difflib.unified_diff(actual["lines"], desired["lines"], n=0, lineterm=""))[2:]
    sides = ([line[1:].strip() for line in changed if line[0] == sign and "description npufleet" not in line] for sign in "-+")
    current, expected = ("; ".join(side[:MAX_LINES]) for side in sides)
    return item(CONCERN, files.CONFIG, current or "another version", expected, "configure")


def warning(actual: Mapping[str, Any]) -> Optional[str]:
    """Return a warning about servers that get no requests and about a certificate that expires soon, or None."""
    return "; ".join(_warnings(actual)) or None


def _warnings(actual: Mapping[str, Any]) -> Iterator[str]:
    for name, server in (actual.get("servers") or {}).items():
        record = (actual.get("records") or {}).get(name)
        if server["state"] == DRAINED:
            by = "{by} since {since} ({reason})".format(**record) if record else "an operator on the socket of HAProxy"
            yield short(f"server {name} is drained by {by}")
        elif server["state"] != READY:
            yield f"HAProxy has server {name} in state MAINT"
        elif server["health"] == DOWN:
            yield f"the health check of server {name} fails"
    for name in sorted(set(actual.get("records") or {}) - set(actual.get("pool") or [])):
        yield f"{files.HOME}/{drains.RECORDS} has a drain of {name}, which is not in the pool"
    if actual.get("expires_in") is not None and actual["expires_in"] < MIN_DAYS:
        yield "the certificate of the balancer expires in {} days".format(actual["expires_in"])
