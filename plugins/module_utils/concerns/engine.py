"""Docker engine: packages, daemon.json (merged, never overwritten), limits and order of its units, and that it answers."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils.concerns.driver import UNIT as CARDS
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item, item
from ansible_collections.npufleet.triton.plugins.module_utils.probe import Engine, packages, text

CONCERN = "engine"
DAEMON_JSON = "/etc/docker/daemon.json"
CA_FILE = "/usr/local/share/ca-certificates/npufleet.crt"
DROP_IN = "/etc/systemd/system/{0}.d/50-npufleet.conf"
# Containers that come back at boot must find the cards. Wanted, not required: without cards, too, the engine has to be looked at.
ORDER_FILE = "/etc/systemd/system/docker.service.d/60-npufleet-cards.conf"
ORDER = f"# Written by npufleet\n[Unit]\nWants={CARDS}\nAfter={CARDS}\n"


def desired(variables: Mapping[str, Any]) -> Dict[str, Any]:
    """Options of daemon.json that are ours, packages, a drop-in for each unit that has limits, and the order after the cards."""
    limits = variables["docker_engine_unit_limits"]
    daemon = dict(variables["docker_engine_daemon_options"])
    if variables["docker_engine_registry_mirrors"]:
        daemon["registry-mirrors"] = list(variables["docker_engine_registry_mirrors"])
    units = {unit: drop_in(limits[unit]) for unit in limits}
    proxies = variables["npufleet_proxy_environment"]
    if proxies:
        units["docker.service"] = drop_in(limits.get("docker.service") or {}, proxies)
    return {
        "packages": sorted(variables["docker_engine_packages"]),
        "daemon": daemon,
        "drop_ins": {**{DROP_IN.format(unit): units[unit] for unit in sorted(units)}, ORDER_FILE: ORDER},
        "ca": authority(variables),
    }


def authority(variables: Mapping[str, Any]) -> Optional[str]:
    """The site's own certificate authority, a file of the controller, as PEM text; None where none is named."""
    path = variables["npufleet_ca_file"]
    if not path:
        return None
    with open(path, encoding="ascii") as source:
        return source.read()


def drop_in(limits: Mapping[str, str], environment: Optional[Mapping[str, str]] = None) -> str:
    """A systemd drop-in that sets these limits and, for the proxies, these variables."""
    lines = [f"{name}={limits[name]}" for name in sorted(limits)]
    for name, value in sorted((environment or {}).items()):
        # A percent sign is systemd's own in a unit.
        lines.append('Environment="{}={}"'.format(name.upper(), value.replace("%", "%%")))
    return "# Written by npufleet\n[Service]\n" + "".join(line + "\n" for line in lines)


def lacking(wanted: List[str], installed: List[str]) -> List[str]:
    """What to install: of `docker.io|docker-ce` the first, unless one of them is there."""
    return [one.split("|")[0] for one in wanted if not set(one.split("|")) & set(installed)]


def read(wanted: Mapping[str, Any]) -> Dict[str, Any]:
    """Files as they are and what the running engine says of itself."""
    raw = text(DAEMON_JSON)
    actual: Dict[str, Any] = {
        "packages": sorted(packages([name for one in wanted["packages"] for name in one.split("|")])),
        "drop_ins": {path: text(path) for path in wanted["drop_ins"]},
        "running": None,
        "ca": text(CA_FILE),
    }
    try:
        actual["daemon"] = json.loads(raw) if raw and raw.strip() else {}
        if not isinstance(actual["daemon"], dict):
            raise ValueError(f"wanted an object, found {raw}")
    except ValueError as error:
        actual["daemon"] = None
        actual["daemon_error"] = str(error)
    try:
        info = Engine().get("/info") or {}
        actual["running"] = {"version": info.get("ServerVersion"), "log-driver": info.get("LoggingDriver")}
    except OSError:
        pass
    return actual


def merge(current: Optional[Mapping[str, Any]], wanted: Mapping[str, Any]) -> Dict[str, Any]:
    """`wanted` laid over `current`: maps are merged, everything else is replaced."""
    merged = dict(current or {})
    for key, value in wanted.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def diff(wanted: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
    """Packages, files, then the running engine where the files alone do not explain it."""
    plan = []
    missing = lacking(wanted["packages"], actual["packages"])
    if missing:
        plan.append(item(CONCERN, "packages", "without " + ", ".join(missing), missing, "install"))
    if actual["daemon"] is None:
        broken = "not a JSON object ({})".format(actual["daemon_error"])
        plan.append(item(CONCERN, "daemon.json", broken, wanted["daemon"], "repair by hand"))
    elif merge(actual["daemon"], wanted["daemon"]) != actual["daemon"]:
        ours = {key: actual["daemon"].get(key) for key in wanted["daemon"]}
        plan.append(item(CONCERN, "daemon.json", ours, wanted["daemon"], "configure"))
    for path, content in wanted["drop_ins"].items():
        if actual["drop_ins"][path] != content:
            # An order counts from the next boot on: the running engine need not be restarted for it
            action = "order" if path == ORDER_FILE else "configure"
            plan.append(item(CONCERN, path, actual["drop_ins"][path], content, action))
    if wanted["ca"] is not None and actual["ca"] != wanted["ca"]:
        found = None if actual["ca"] is None else "another certificate"
        plan.append(item(CONCERN, CA_FILE, found, "the site's certificate authority", "configure"))
    running = actual["running"]
    if running is None:
        plan.append(item(CONCERN, "service", None, "an engine that answers", "start"))
    elif running["log-driver"] != wanted["daemon"].get("log-driver", running["log-driver"]):
        plan.append(item(CONCERN, "service", running["log-driver"], wanted["daemon"]["log-driver"], "restart"))
    return plan
