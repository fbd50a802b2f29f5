# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The actual state of the server: its container, its served models, its keys, and missing mounts and devices."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import secret, store
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.server import connection, container, device_access
from ansible_collections.npufleet.triton.plugins.module_utils.driver import driver_files
from ansible_collections.npufleet.triton.plugins.module_utils.engine import images
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import clock
from ansible_collections.npufleet.triton.plugins.module_utils.triton import keys, log
from ansible_collections.npufleet.triton.plugins.module_utils.triton.served import query, read_served, version_of

# The directory of the file with Triton's keys to object stores. Only root can read it.
CREDENTIALS_HOME = "/etc/npufleet/credentials"
# The label of an image that names the release row for which the image was built. A release row is a row of files/releases.yml.
RELEASE_ROW = "io.npufleet.release"


def read(desired: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the facts of the container, the served models, and the flaws of the server's files and devices."""
    actual = _read_container(desired)
    actual["absent"] = [path for path in desired["sources"] if not os.path.exists(path)]
    actual["driver_files"] = driver_files.find(desired["driver_files"]) if desired["driver_files"] else {"binds": [], "missing": []}
    actual["access"] = device_access.find(desired["access"])
    if desired.get("credentials"):
        actual["credentials"] = credentials_flaw(desired["credentials"], **desired["key_readers"])
    if desired.get("key"):
        flaw = keys.flaw(desired["key"]["path"], desired["key_fingerprint"], **desired["key_readers"])
        actual.update({"key": flaw} if flaw["flaw"] else {})
    return actual


def _read_container(desired: Mapping[str, Any]) -> Dict[str, Any]:
    engine = Engine()
    try:
        inspect = engine.container(desired["name"])
        pinned = images.inspect_image(engine, desired["image"]["reference"])
        image = (images.inspect_image(engine, inspect["Image"]) if inspect else None) or {}
        # A killed run leaves the previous container under this name.
        previous = engine.container(desired["name"] + "-previous")
    except OSError:
        return {"engine": False, "container": None, "served": None}
    actual: Dict[str, Any] = {"engine": True, "container": None, "served": None, "previous": previous is not None}
    # The ID that this engine gives to the image that the lock file names
    actual["image"] = pinned["Id"] if pinned else None
    if not inspect:
        return actual
    facts = container.container_facts(inspect, image)
    if desired["image"]["content"] and images.content_digest(image) == desired["image"]["content"]:
        # The content of the image is the desired one, so a different ID does not count as a difference.
        facts["image"] = desired["container"]["image"]
    # The same facts with digests in place of secrets
    sealed = container.sealed_container(facts, desired["digest_key"])
    config, state = image.get("Config") or {}, inspect["State"]
    running = state["Status"] == "running"
    actual.update(
        container=sealed,
        release=(config.get("Labels") or {}).get(RELEASE_ROW),
        inherited=secret.seal_values(container.environment(config), desired["digest_key"]),
        state="running" if running else "{} ({})".format(state["Status"], state["ExitCode"]),
        # The number of restarts by the engine itself since the last start by an operator or a run
        restarts=inspect.get("RestartCount") or 0,
    )
    if running:
        actual["hung"] = hanging_loads(desired["root"], state.get("StartedAt") or "", state.get("Pid") or 0)
        actual_server = connection.of_container(desired, inspect)
        actual["served"] = read_served(actual_server)
        if actual["served"] is None:
            actual["http_port"] = actual_server["http_port"]
            actual.update({"key_refused": True} if query(actual_server, "POST", "/v2/repository/index")[0] == 403 else {})
        status, server = query(actual_server, "GET", "/v2")
        actual["version"] = version_of(server) if status == 200 else None
    if not running or actual["served"] is None:
        actual.update(read_log(engine, desired, inspect))
        secrets, digests = ([*fact["environment"].values(), *fact["command"]] for fact in (facts, sealed))
        actual["log"] = secret.remove_values(str(actual["log"]), secrets, digests)
    return actual


def credentials_flaw(desired: Mapping[str, str], group: int, group_must_read: bool) -> Optional[str]:
    """Return the flaw of the file with Triton's keys to object stores, or None.

    If `group_must_read` is true, the group must be able to read the file, because the server does not run as root.
    """
    try:
        with open(desired["path"], "rb") as source:
            status = os.fstat(source.fileno())
            digest = hashlib.sha256(source.read()).hexdigest()
    except OSError:
        return "missing"
    if digest != desired["sha256"]:
        return f"SHA-256 {digest[:12]}"
    mode = stat.S_IMODE(status.st_mode)
    private, shared = (mode, status.st_uid) == (0o600, 0), (mode, status.st_uid, status.st_gid) == (0o640, 0, group)
    fits = shared or (private and not group_must_read)
    return None if fits else f"mode {mode:04o} of user {status.st_uid} and group {status.st_gid}"


def read_log(engine: Engine, desired: Mapping[str, Any], inspect: Mapping[str, Any]) -> Dict[str, Any]:
    """Return {"log": reason why the server does not answer, "cut_off": models that were loading when the server last ended}."""
    name, state = desired["name"], inspect["State"]
    running, restarted = state["Status"] == "running", bool(inspect.get("RestartCount"))
    since, cut_off = epoch(state.get("StartedAt") or ""), []
    if restarted or not running:
        until = since if running else 0.0
        cut_off = sorted(log.loading(log.log_lines(engine, name, until=until)) & set(desired["models"]))
    if not running:
        return {"log": log.ending_reason(engine, name), "cut_off": cut_off}
    # During a transaction, a server may have logged a failed load before it restarted.
    transaction = store.read_transaction(desired["root"]) if restarted else None
    if transaction:
        since = min(since, store.renewal_time(transaction) or since)
    lines = log.log_lines(engine, name, since)
    failed = [reason for reason in log.reasons(lines, sorted(desired["models"])).values() if reason.startswith("failed to load ")]
    # A restarted server has logged why it ended. A server that still starts has logged its progress.
    reason = log.ending_reason(engine, name) if restarted else log.progress(lines, sorted(desired["models"]))
    return {"log": "; ".join(failed) or reason, "cut_off": cut_off}


def hanging_loads(root: str, started: str, pid: int = 0) -> List[str]:
    """Return the models whose load hangs according to hung.json. The file does not apply to a server that started later.

    The start of the process is compared by uptime if possible, because the time of day may have been set meanwhile.
    """
    mark = store.read(root, store.HUNG).content
    if not mark:
        return []
    process = clock.process_started(pid) if "uptime" in mark and pid else None
    if process is None:
        applies = started and epoch(started) < mark["at"]
    else:
        applies = mark.get("boot") == clock.boot() and process < mark["uptime"]
    return sorted(mark["models"]) if applies else []


def epoch(stamp: str) -> float:
    """Return the seconds since 1970 for an engine's time, such as 2026-01-02T03:04:05.678901234Z, or 0 for any other text."""
    import calendar

    match = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?", stamp)
    return calendar.timegm(time.strptime(match[1], "%Y-%m-%dT%H:%M:%S")) + float(match[2] or 0) if match else 0
