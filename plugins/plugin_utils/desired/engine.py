# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The desired Docker engine of a host: packages, daemon.json, drop-ins of its units, proxies and certificate authority."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils.concerns import engine
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.driver import UNIT as CARDS
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import device_access
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import EMPTY, Context

DROP_IN = "/etc/systemd/system/{0}.d/50-npufleet.conf"
# Containers that start at boot need the cards. `Wants` instead of `Requires` lets the engine start without cards, too.
ORDER = f"# Written by npufleet\n[Unit]\nWants={CARDS}\nAfter={CARDS}\n"
# The characters that a proxy's address can contain. A shell and systemd read the file with the addresses, and could interpret other
# characters differently.
PROXY_CHARACTERS = re.compile(r"[\w.~:/?#@!$&()*+,;=%\[\]-]+", re.ASCII)
PROXY_VARIABLES = ("npufleet_http_proxy", "npufleet_https_proxy", "npufleet_no_proxy")


def desired(variables: Mapping[str, Any], context: Context = EMPTY) -> Dict[str, Any]:
    """Return the project's options of daemon.json, the packages, and the drop-ins. Raises Refusal."""
    limits = variables["docker_engine_unit_limits"]
    daemon = dict(variables["docker_engine_daemon_options"])
    uses_cdi = device_access.uses_cdi(variables)
    if uses_cdi:
        # Only engines from 28 on enable CDI by default.
        daemon["features"] = {**(daemon.get("features") or {}), "cdi": True}
    if variables["docker_engine_registry_mirrors"]:
        daemon["registry-mirrors"] = list(variables["docker_engine_registry_mirrors"])
    units = {unit: drop_in(limits[unit]) for unit in limits}
    proxies = variables["npufleet_proxy_text"]
    if proxies:
        units["docker.service"] = drop_in(limits.get("docker.service") or {}, variables["npufleet_proxy_file"])
    return {
        "packages": sorted(variables["docker_engine_packages"]),
        "daemon": daemon,
        # The oldest engine that finds cards by CDI name, or None if any version is sufficient
        "oldest": engine.OLDEST_CDI_VERSION if uses_cdi else None,
        "drop_ins": {**{DROP_IN.format(unit): units[unit] for unit in sorted(units)}, engine.ORDER_FILE: ORDER},
        "ca": authority(variables),
        # `systemctl show` prints the environment of a unit to every user of the host, so the proxies are in a file.
        "proxy_file": variables["npufleet_proxy_file"],
        "proxies": proxies or None,
        # True if daemon.json has values that other users must not read
        "private": engine.has_secrets(daemon),
    }


def sealed(state: Mapping[str, Any], key: str) -> Dict[str, Any]:
    """Return the desired state with digests instead of secrets. The host computes the digests with the key in `digest_key`."""
    proxies = state["proxies"] and engine.secret_file(state["proxies"], 0o600, 0, key)
    return {**state, **engine.with_digests(state, key), "proxies": proxies, "digest_key": key}


def proxy_reasons(variables: Mapping[str, Any]) -> List[str]:
    """Return the reasons why an environment file cannot contain the proxies. No reason shows a value, which can contain a login."""
    reasons = []
    for name in PROXY_VARIABLES:
        value = variables.get(name) or ""
        words = [str(entry) for entry in (value if isinstance(value, (list, tuple)) else [value]) if entry]
        invalid = sorted({sign for word in words for sign in word if not PROXY_CHARACTERS.fullmatch(sign)})
        if invalid:
            listed = ", ".join(ascii(sign) for sign in invalid)
            reasons.append(f"{name} has {listed}, expected an address without it. Encode such characters of a password, like %27")
    return reasons


def authority(variables: Mapping[str, Any]) -> Optional[str]:
    """Return the PEM text of the site's own certificate authority from a file on the controller, or None if no file is set."""
    path = variables["npufleet_ca_file"]
    return Path(path).read_text("ascii") if path else None


def drop_in(limits: Mapping[str, str], environment: str = "") -> str:
    """Return a systemd drop-in that sets the limits and, if given, the environment file. Raises Refusal."""
    lines = [f"{name}={limits[name]}" for name in sorted(limits)]
    if not all(re.fullmatch(r"\w+=[^\x00-\x1f\x7f]*", line) for line in lines):
        raise Refusal("docker_engine_unit_limits has a limit of more than one line. Write each as a name and a value")
    lines += [f"EnvironmentFile={environment}"] if environment else []
    return "# Written by npufleet\n[Service]\n" + "".join(line + "\n" for line in lines)
