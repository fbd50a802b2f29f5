"""Triton's container, compared with all of `docker inspect`, and what it serves, read from the server itself."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import secret, store
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import device_access
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.container import container_facts, environment
from ansible_collections.npufleet.triton.plugins.module_utils.driver import driver_files
from ansible_collections.npufleet.triton.plugins.module_utils.engine import images
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import clock
from ansible_collections.npufleet.triton.plugins.module_utils.plan import INSPECT, Item, item
from ansible_collections.npufleet.triton.plugins.module_utils.triton import keys
from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import NAMELESS
from ansible_collections.npufleet.triton.plugins.module_utils.triton.log import (
    last_words,
    loading,
    log_lines,
    plain,
    reasons,
    so_far,
)
from ansible_collections.npufleet.triton.plugins.module_utils.triton.served import asked, read_served, version_of

CONCERN = "server"
HANGING = "loads"
# Label of an image: the release row that it was built for
RELEASE_ROW = "io.npufleet.release"
# What a new container could not mount, or open
TO_MOUNT = (ABSENT, DRIVER_FILES, ACCESS) = ("volumes", "driver files", "device access")
# The directory of Triton's keys to object stores, for root only
CREDENTIALS_HOME = "/etc/npufleet/credentials"
# The facts of a model that Triton itself reads from an object store
CLOUD: Mapping[str, Any] = {
    **dict.fromkeys(("versions", "release", "source")),
    "steps": [],
    "memory": [],
    "switch": "beside",
    "cached": False,
}


def sealed_container(facts: Mapping[str, Any], key: str) -> Dict[str, Any]:
    """A container's facts with all that may be secret as digests."""
    entrypoint = facts["entrypoint"]
    return {
        **facts,
        "command": secret.seal_command(facts["command"], key),
        "entrypoint": secret.seal_command(entrypoint, key) if isinstance(entrypoint, (list, tuple)) else entrypoint,
        "environment": secret.seal_values(facts["environment"], key),
        "log": {**facts["log"], "options": secret.seal_values(facts["log"]["options"], key)},
    }


def read(wanted: Mapping[str, Any]) -> Dict[str, Any]:
    """The container of that name, the server's own index and configs, and its keys where it needs any."""
    actual = _read_container(wanted)
    actual["absent"] = [path for path in wanted["sources"] if not os.path.exists(path)]
    actual["driver_files"] = driver_files.find(wanted["driver_files"]) if wanted["driver_files"] else {"binds": [], "missing": []}
    actual["access"] = device_access.find(wanted["access"])
    if wanted.get("credentials"):
        actual["credentials"] = _read_credentials(wanted["credentials"], **wanted["reader"])
    flaw = keys.flaw(wanted["key"]["path"], wanted["key_fingerprint"], **wanted["reader"]) if wanted.get("key") else {"words": None}
    if flaw["words"]:
        actual["key"] = flaw
    return actual


def _read_credentials(wanted: Mapping[str, str], group: int, needed: bool) -> Optional[str]:
    """What is wrong with the file of keys; None for nothing. A server that is not root reads them by its group."""
    try:
        with open(wanted["path"], "rb") as source:
            found = os.fstat(source.fileno())
            digest = hashlib.sha256(source.read()).hexdigest()
    except OSError:
        return "nothing"
    if digest != wanted["sha256"]:
        return f"SHA-256 {digest[:12]}"
    mode = stat.S_IMODE(found.st_mode)
    alone, shared = (mode, found.st_uid) == (0o600, 0), (mode, found.st_uid, found.st_gid) == (0o640, 0, group)
    fits = shared or (alone and not needed)
    return None if fits else f"mode {mode:04o} of user {found.st_uid} and group {found.st_gid}"


def _read_container(wanted: Mapping[str, Any]) -> Dict[str, Any]:
    engine = Engine()
    try:
        found = engine.container(wanted["name"])
        here = images.inspect_image(engine, wanted["image"]["reference"])
        image = images.inspect_image(engine, found["Image"]) if found else None
        # What a run that was killed left aside
        previous = engine.container(wanted["name"] + "-previous")
    except OSError:
        return {"engine": False, "container": None, "served": None}
    # By which this engine knows the locked image
    ident = here["Id"] if here else None
    if not found:
        return {"engine": True, "container": None, "served": None, "previous": previous is not None, "image": ident}
    facts = container_facts(found, image or {})
    if wanted["image"]["content"] and images.content_digest(image or {}) == wanted["image"]["content"]:
        # The same image under the ID of this engine's store
        facts["image"] = wanted["container"]["image"]
    shown = sealed_container(facts, wanted["seal"])
    actual = {"engine": True, "container": shown, "served": None, "image": ident}
    actual["release"] = (((image or {}).get("Config") or {}).get("Labels") or {}).get(RELEASE_ROW)
    actual["inherited"] = secret.seal_values(environment((image or {}).get("Config") or {}), wanted["seal"])
    state = found["State"]
    actual["state"] = "running" if state["Status"] == "running" else "{} ({})".format(state["Status"], state["ExitCode"])
    # How often the engine had to start it again since hands or a run have
    actual["restarts"] = found.get("RestartCount") or 0
    actual["previous"] = previous is not None
    if actual["state"] == "running":
        actual["hung"] = hung(wanted["root"], state.get("StartedAt") or "", state.get("Pid") or 0)
        actual["served"] = read_served(wanted)
        if actual["served"] is None:
            if asked(wanted, "POST", "/v2/repository/index")[0] == 403:
                actual["closed"] = True
            lines = log_lines(engine, wanted["name"], _said_since(wanted, found))
            loads = [why for why in reasons(lines, sorted(wanted["models"])).values() if why.startswith("failed to load ")]
            # Of a life that ended, the reason; of one that goes on, how far it has come
            said = last_words(engine, wanted["name"]) if actual["restarts"] else so_far(lines, sorted(wanted["models"]))
            actual["log"] = "; ".join(loads) or said
            actual["cut_off"] = cut_off(engine, wanted, state) if actual["restarts"] else []
        status, server = asked(wanted, "GET", "/v2")
        actual["version"] = version_of(server) if status == 200 else None
    else:
        actual["log"] = last_words(engine, wanted["name"])
        actual["cut_off"] = cut_off(engine, wanted, state)
    if "log" in actual:
        raw, kept = ([*fact["environment"].values(), *fact["command"]] for fact in (facts, shown))
        actual["log"] = secret.remove_values(str(actual["log"]), raw, kept)
    return actual


def _said_since(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> float:
    """From when on its log tells why it does not answer: its start, or an open switch, where it has started again since."""
    started = epoch(found["State"].get("StartedAt") or "")
    opened = store.read_transaction(wanted["root"]) if found.get("RestartCount") else None
    return min(started, store.renewed(opened) or started) if opened else started


def cut_off(engine: Engine, wanted: Mapping[str, Any], state: Mapping[str, Any]) -> List[str]:
    """Models that a server was still loading when it ended last, as one that crashes is: why they do not load, it has not said."""
    until = epoch(state.get("StartedAt") or "") if state["Status"] == "running" else 0.0
    return sorted(loading(log_lines(engine, wanted["name"], until=until)) & set(wanted["models"]))


def hung(root: str, started: str, pid: int = 0) -> List[str]:
    """Models of which a load hangs in the server that started then, as a run has written down. A later start has ended it.

    The start of its process tells it, as the time of day may have been set since.
    """
    mark = store.read(root, store.HUNG).content
    process = clock.process_started(pid) if mark and "uptime" in mark and pid else None
    if mark and process is not None:
        return sorted(mark["models"]) if mark.get("boot") == clock.boot() and process < mark["uptime"] else []
    return sorted(mark["models"]) if mark and started and epoch(started) < mark["at"] else []


def epoch(stamp: str) -> float:
    """Seconds since 1970 of a time as the engine writes it, such as 2026-01-02T03:04:05.678901234Z; 0 for none."""
    import calendar

    found = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?", stamp)
    return calendar.timegm(time.strptime(found[1], "%Y-%m-%dT%H:%M:%S")) + float(found[2] or 0) if found else 0


def diff(wanted: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
    """Container first; the served models are judged only in a container that stays."""
    found = actual["container"]
    plan = []
    for_whom = "for root alone" if not wanted["reader"]["needed"] else "for root and group {}".format(wanted["reader"]["group"])
    if actual.get("credentials"):
        sealed_file = "SHA-256 {}, {}".format(wanted["credentials"]["sha256"][:12], for_whom)
        plan.append(item(CONCERN, "credentials", actual["credentials"], sealed_file, "write"))
    flaw = actual.get("key") or {}
    if flaw:
        whose = "the operator's key" if wanted["key_fingerprint"] else "a key of this host"
        plan.append(item(CONCERN, "key", flaw["words"], f"{whose}, {for_whom}", "key"))
    if actual["absent"]:
        plan.append(item(CONCERN, ABSENT, "nothing at " + ", ".join(actual["absent"]), "what is mounted from there", INSPECT))
    if found is None:
        return [*plan, item(CONCERN, "container", None, "running " + wanted["name"], "create")]
    from_driver = actual["driver_files"]
    if from_driver["missing"]:
        plan.append(item(CONCERN, DRIVER_FILES, None, ", ".join(from_driver["missing"]), INSPECT))
    access = actual["access"]
    barred = [*access["missing"], *access["closed"]]
    if barred:
        plan.append(item(CONCERN, ACCESS, "; ".join(barred), "the cards and files open to the server", INSPECT))
    as_wanted = {
        **wanted["container"],
        "volumes": sorted({*wanted["container"]["volumes"], *from_driver["binds"]}),
        "devices": access["devices"],
        "groups": access["groups"],
    }
    for key in sorted(as_wanted):
        value = as_wanted[key]
        if key == "environment":
            # What the image sets to the same value does not show in the container.
            value = dict(set(value.items()) - set(actual.get("inherited", {}).items()))
        if key == "ports":
            # Some engines record no address where 0.0.0.0 was asked for
            value = {
                port: where if found[key].get(port) == where else where.replace("0.0.0.0", "") for port, where in value.items()
            }
        if found[key] != value:
            plan.append(item(CONCERN, "container." + key, found[key], as_wanted[key], "replace"))
    replaced = any(difference["action"] == "replace" for difference in plan)
    if actual["state"] != "running":
        words = actual["state"] + (": " + actual["log"] if actual.get("log") else "")
        plan.append(item(CONCERN, "container", words, "running", "start"))
    elif (flaw.get("other") or actual.get("closed")) and not replaced:
        # A server reads its key when it starts.
        path = (wanted["key"] or {}).get("path", "no file")
        plan.append(item(CONCERN, "key in use", "another key", f"that of {path}", "restart"))
    elif actual["served"] is None:
        words = "no answer on port {}".format(wanted["http_port"])
        words += ", restart count {}".format(actual["restarts"]) if actual.get("restarts") else ""
        words += ": " + actual["log"] if actual.get("log") else ""
        plan.append(item(CONCERN, "http", words, "the model index", "wait"))
    else:
        plan += diff_models(wanted, actual["served"])
    if actual["state"] == "running" and actual.get("hung"):
        found = f"a load that hangs: {', '.join(actual['hung'])}"
        plan.append(item(CONCERN, HANGING, found, "a server that can load", "restart"))
    return plan


def diff_models(wanted: Mapping[str, Any], served: Mapping[str, Any]) -> List[Item]:
    """Every wanted model READY in its versions and of its release, and no other model READY."""
    act = {"none": "restart", "poll": "wait", "explicit": "load"}[wanted["mode"]]
    plan = []
    for name in sorted(wanted["models"]):
        model = wanted["models"][name]
        versions = served.get(name) or {}
        if model["release"] is None:
            if not any(version["state"] == "READY" for version in versions.values()):
                plan.append(item(CONCERN, name, _as_served(versions), "READY out of its object store", act))
            continue
        good = {
            version for version, state in versions.items() if state["state"] == "READY" and state["release"] == model["release"]
        }
        loaded = {version for version, state in versions.items() if state["state"] in ("READY", "LOADING")}
        if good != set(model["versions"]) or loaded - good:
            plan.append(item(CONCERN, name, _as_served(versions), _as_wanted(model), act))
    for name in sorted(set(served) - set(wanted["models"])):
        if any(entry["state"] == "READY" for entry in served[name].values()):
            unload = {"none": "restart", "poll": "wait", "explicit": "unload"}[wanted["mode"]]
            plan.append(item(CONCERN, name, _as_served(served[name]), None, unload))
    return plan


def _as_served(versions: Mapping[str, Any]) -> Optional[str]:
    words = []
    for version in sorted(versions):
        state = versions[version]
        tail = plain(state["reason"])
        if state["state"] == "READY":
            tail = (state["release"] or "no release")[:12] + (f" ({NAMELESS})" if state["reason"] == NAMELESS else "")
        words.append("version {} {} {}".format(version, state["state"], tail).strip())
    return ", ".join(words) or None


def _as_wanted(model: Mapping[str, Any]) -> str:
    return ", ".join("version {} READY {}".format(version, model["release"][:12]) for version in model["versions"])
