# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The concern `engine`: packages of Docker, daemon.json (merged, never overwritten), systemd drop-ins, and the running engine.

A plan shows digests in place of secrets. module_utils/secret.py computes (seals) each digest with a key.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from typing import Any, Dict, Iterator, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import secret
from ansible_collections.npufleet.triton.plugins.module_utils.engine import daemon_config
from ansible_collections.npufleet.triton.plugins.module_utils.engine.daemon_config import DAEMON_JSON, merge
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine
from ansible_collections.npufleet.triton.plugins.module_utils.plan import INSPECT, Item, item
from ansible_collections.npufleet.triton.plugins.module_utils.system import candidate_version, installed_packages, read_text, which

CONCERN = "engine"
CA_FILE = "/usr/local/share/ca-certificates/npufleet.crt"
# Options of daemon.json whose values are not secret
PUBLIC_OPTIONS = (
    "log-driver", "storage-driver", "storage-opts", "data-root", "default-runtime", "path", "exec-opts", "cgroup-parent",
    "registry-mirrors", "insecure-registries", "dns", "hosts", "bip", "fixed-cidr", "labels", "features",
)  # fmt: skip
# Packages that contain an engine
ENGINE_PACKAGES = ("docker.io", "docker-ce", "moby-engine")
# The client program, and its package on Debian 13, where the engine's package does not contain the client
CLIENT, CLIENT_PACKAGE = "docker", "docker-cli"
# The oldest major version of the engine whose containers can request devices by CDI names
OLDEST_CDI_VERSION = 25
# The plan items about the version of the engine, and about flags with which dockerd does not start
VERSION, FLAGS = "version", "flags"
# Directories that are searched for programs in addition to PATH
EXTRA_PATH = "/usr/bin:/usr/local/bin:/usr/sbin"
# The drop-in that makes the engine start after the unit of the cards (npufleet-cards.service)
ORDER_FILE = "/etc/systemd/system/docker.service.d/60-npufleet-cards.conf"


def has_secrets(daemon: Mapping[str, Any]) -> bool:
    """Return True if a daemon.json has values that other users must not read."""
    return bool(secret.seal_values(daemon, "", PUBLIC_OPTIONS) != daemon)


def with_digests(part: Mapping[str, Any], key: str) -> Dict[str, Any]:
    """Return the desired or actual daemon.json and drop-ins, with digests instead of secrets."""
    return {
        "daemon": secret.seal_values(part["daemon"], key, PUBLIC_OPTIONS),
        "drop_ins": {
            path: content if content is None else secret.seal_unit(content, key) for path, content in part["drop_ins"].items()
        },
    }


def secret_file(content: str, mode: int, user: int, key: str) -> str:
    """Return the text that plans show for a file of secrets: a digest of its content, its mode and its owner."""
    return f"{secret.seal(content, key)}, mode {mode:04o} of user {user}"


def missing_packages(desired: List[str], installed: List[str]) -> List[str]:
    """Return the packages to install. For an entry such as `docker.io|docker-ce`, return the first package if the host has none."""
    return [entry.split("|")[0] for entry in desired if not set(entry.split("|")) & set(installed)]


def read(desired: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the packages, files and flags of the engine, and the facts of the running engine."""
    actual: Dict[str, Any] = {
        "packages": sorted(installed_packages([name for package in desired["packages"] for name in package.split("|")])),
        "drop_ins": {path: read_text(path) for path in desired["drop_ins"]},
        "client": which(CLIENT, EXTRA_PATH) is not None,
        "program": which(daemon_config.PROGRAM, EXTRA_PATH),
        "flags": daemon_config.read_flags(),
        "running": None,
        "ca": read_text(CA_FILE),
    }
    try:
        actual["daemon"] = daemon_config.parse(read_text(DAEMON_JSON))
    except ValueError as error:
        actual.update(daemon=None, daemon_error=str(error))
    with suppress(OSError):
        info = Engine().get("/info") or {}
        actual["running"] = {"version": info.get("ServerVersion"), "log-driver": info.get("LoggingDriver")}
    actual["private"] = has_secrets(actual["daemon"] or {})
    key = desired["digest_key"]
    return {**actual, **with_digests(actual, key), "proxies": _proxies(desired["proxy_file"], key)}


def _proxies(path: str, key: str) -> Optional[str]:
    """Return the text that plans show for the file of proxies, or None if the file cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as source:
            found = os.fstat(source.fileno())
            return secret_file(source.read(), stat.S_IMODE(found.st_mode), found.st_uid, key)
    except OSError:
        return None


def diff(desired: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
    """Return the differences of packages, files and the running engine."""
    plan = []
    missing = missing_packages(desired["packages"], actual["packages"])
    # The package of an engine can include the client. So a missing client is not reported while a package is missing.
    if not missing and not actual["client"]:
        missing = [CLIENT_PACKAGE]
    if missing:
        plan.append(item(CONCERN, "packages", "without " + ", ".join(missing), missing, "install"))
    merged = merge(actual["daemon"], desired["daemon"])
    if actual["daemon"] is None:
        broken = "not a JSON object ({})".format(actual["daemon_error"])
        plan.append(item(CONCERN, "daemon.json", broken, desired["daemon"], "repair by hand"))
    elif merged != actual["daemon"]:
        # `current` also has the options that the merge removes, such as options of another log driver.
        current = {key: actual["daemon"].get(key) for key in (*desired["daemon"], *sorted(set(actual["daemon"]) - set(merged)))}
        plan.append(item(CONCERN, "daemon.json", current, desired["daemon"], "configure"))
    clashes = daemon_config.clashes(merged, actual["flags"])
    if clashes:
        plan.append(item(CONCERN, FLAGS, ", ".join(clashes), f"options in {DAEMON_JSON} alone", INSPECT))
    for path, content in desired["drop_ins"].items():
        if actual["drop_ins"][path] != content:
            # This drop-in only has an effect at the next boot, so the running engine does not need a restart.
            action = "order" if path == ORDER_FILE else "configure"
            plan.append(item(CONCERN, path, actual["drop_ins"][path], content, action))
    if desired["ca"] is not None and actual["ca"] != desired["ca"]:
        found = None if actual["ca"] is None else "another certificate"
        plan.append(item(CONCERN, CA_FILE, found, "the site's certificate authority", "configure"))
    if actual["proxies"] != desired["proxies"]:
        plan.append(item(CONCERN, desired["proxy_file"], actual["proxies"], desired["proxies"], "configure"))
    running = actual["running"]
    if running is None:
        plan.append(item(CONCERN, "service", None, "an engine that answers", "start"))
    elif running["log-driver"] != desired["daemon"].get("log-driver", running["log-driver"]):
        plan.append(item(CONCERN, "service", running["log-driver"], desired["daemon"]["log-driver"], "restart"))
    if running and older(running["version"], desired["oldest"]):
        plan.append(item(CONCERN, VERSION, running["version"], "{} or newer".format(desired["oldest"]), INSPECT))
    return plan


def flag_reasons(plan: List[Item]) -> Iterator[str]:
    """Yield the reasons why dockerd would not start with the merged daemon.json, or would not read that file."""
    for entry in plan:
        if entry["concern"] == CONCERN and entry["name"] == FLAGS:
            yield (
                f"{entry['current']} is set beside {DAEMON_JSON}, expected {entry['desired']}. Remove the flags, or the options "
                "from docker_engine_daemon_options and from the file"
            )


def older(actual: Optional[str], oldest: Optional[int]) -> bool:
    """Return True if a version such as `5:27.3.1-1` is older than the major version `oldest`. An unknown version is not older."""
    major = re.match(r"(?:\d+:)?(\d+)\.", actual or "")
    return bool(oldest and major and int(major[1]) < oldest)


def cdi_refusals(actual: Mapping[str, Any], plan: List[Item]) -> Iterator[str]:
    """Yield a reason if the engine that runs, or that the plan installs, does not support CDI names of devices."""
    if actual["running"]:
        found, todo = actual["running"]["version"], "Upgrade it"
    else:
        desired = [name for entry in plan if entry["name"] == "packages" for name in entry["desired"]]
        candidates = [candidate_version(name) for name in desired if name in ENGINE_PACKAGES]
        found, todo = next(iter(candidates), None), "Install a newer one first, such as docker-ce of Docker's own repository"
    if older(found, OLDEST_CDI_VERSION):
        yield (
            f"Docker is {found}, expected {OLDEST_CDI_VERSION} or newer, which finds devices by name. {todo}, or set "
            "npufleet_device_access: devices"
        )
