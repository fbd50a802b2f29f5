# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The options of a container in `docker inspect`: all values that a plain `docker run` would not set.

A plain `docker run` sets empty values (null, "", 0, false, [], {}) and the defaults below. Every other value counts as an option,
so that the options of future engines are also found.
"""

from __future__ import annotations

import re
from typing import Any, Collection, Dict, Iterator, List, Mapping, Tuple

# Defaults of HostConfig
PLAIN_HOST: Dict[str, Tuple[Any, ...]] = {
    # The default depends on the version of cgroups.
    "CgroupnsMode": ("private", "host"),
    "Isolation": ("default",),
    "MemorySwappiness": (-1,),
    "Runtime": ("runc", "io.containerd.runc.v2"),
}
# Options that describe the terminal of the caller of `docker run`
TERMINAL_OPTIONS = ("AttachStdin", "AttachStdout", "AttachStderr", "ConsoleSize", "OpenStdin", "StdinOnce", "Tty")
# Every engine masks or protects at least these paths in an unprivileged container.
PROTECTED_PATHS = {"MaskedPaths": ("/proc/kcore", "/sys/firmware"), "ReadonlyPaths": ("/proc/sys",)}
# Keys of `docker inspect` that are state and not options
STATE_KEYS = (
    "AppArmorProfile", "Args", "Created", "Driver", "ExecIDs", "GraphDriver", "HostnamePath", "HostsPath", "Id", "Image",
    "ImageManifestDescriptor", "LogPath", "MountLabel", "Name", "Path", "Platform", "ProcessLabel", "ResolvConfPath",
    "RestartCount", "SizeRootFs", "SizeRw", "State", "Storage",
)  # fmt: skip
# Sections of `docker inspect` whose entries are compared one by one: `Mounts` by the caller, all others in this file
SECTIONS = ("Config", "HostConfig", "Mounts", "NetworkSettings")
# Options that a container inherits from its image. No variable of the inventory can set them.
INHERITED_OPTIONS = ("Healthcheck", "Labels", "StopSignal")
# Maps whose entries are compared one by one
MAP_OPTIONS = ("Annotations", "Labels", "Sysctls")
# Keys of a network that are state and not options
NETWORK_STATE = (
    "DNSNames", "EndpointID", "Gateway", "GlobalIPv6Address", "GlobalIPv6PrefixLen", "IPAddress", "IPPrefixLen", "IPv6Gateway",
    "MacAddress", "NetworkID",
)  # fmt: skip
# Defaults of the propagation of a mount
DEFAULT_PROPAGATION = ("", "rprivate")


def differences(
    inspect: Mapping[str, Any], image: Mapping[str, Any], default_runtime: str, excluded: Collection[str]
) -> Iterator[Tuple[str, Any]]:
    """Yield (name, value) of each option that a plain `docker run` of the image would not set, without those in `excluded`."""
    host, config, base = inspect["HostConfig"], inspect["Config"], image.get("Config") or {}
    for key in sorted(set(host) - set(excluded) - set(TERMINAL_OPTIONS)):
        if not _plain(key, host[key], default_runtime, bool(host.get("Privileged"))):
            yield from _entries(key, host[key], {})
    for key in sorted({*config, *INHERITED_OPTIONS} - set(excluded) - set(TERMINAL_OPTIONS)):
        value, inherited = config.get(key) or None, (base.get(key) or None) if key in INHERITED_OPTIONS else None
        if key == "Hostname":
            is_default = inspect.get("Id", "")[:12] == config[key] or "host" in (host.get("NetworkMode"), host.get("UTSMode"))
            if value and not is_default:
                yield key, value
        elif value != inherited:
            yield from _entries(key, value or "none", inherited)
    yield from _networks(inspect)
    for key in sorted(set(inspect) - set(STATE_KEYS) - set(SECTIONS)):
        if inspect[key]:
            yield key, inspect[key]


def _plain(key: str, value: Any, default_runtime: str, privileged: bool) -> bool:
    if key in PROTECTED_PATHS and value is not None:
        # An empty list is the default in a privileged container. In other containers, it means that systempaths=unconfined was set.
        return privileged or set(PROTECTED_PATHS[key]) <= set(value)
    if not value or (isinstance(value, list) and not any(value)):
        return True
    return value in PLAIN_HOST.get(key, ()) or (key == "Runtime" and value == default_runtime)


def _entries(key: str, value: Any, base: Any) -> Iterator[Tuple[str, Any]]:
    """Yield an option and its value. For a map, yield each entry that differs from the image."""
    if key in MAP_OPTIONS and isinstance(value, Mapping):
        for name in sorted(value):
            if (base or {}).get(name) != value[name]:
                yield f"{key} {name}", value[name]
    else:
        yield key, value


def _networks(inspect: Mapping[str, Any]) -> Iterator[Tuple[str, Any]]:
    """Yield the additional networks of a container, and the options of each network."""
    host, networks = inspect["HostConfig"], (inspect.get("NetworkSettings") or {}).get("Networks") or {}
    mode = host.get("NetworkMode") or "default"
    first = "bridge" if mode == "default" else mode
    # The engine and Compose add these aliases of the container to each network.
    names = {inspect.get("Id", "")[:12], str(inspect.get("Name", "")).lstrip("/")}
    for name in sorted(networks):
        # NetworkMode can be the ID of the network instead of its name.
        if name != first and len(networks) > 1 and networks[name].get("NetworkID") != mode:
            yield "network", name
        for key in sorted(set(networks[name]) - set(NETWORK_STATE)):
            value = networks[name][key]
            if key == "Aliases":
                value = [alias for alias in value or [] if alias not in names]
            if value and any(value.values() if isinstance(value, Mapping) else [value]):
                yield f"network {name} {key}", value


def mount_options(mount: Mapping[str, Any]) -> List[str]:
    """Return the options of a bind mount or volume other than `ro` and `rw`: relabelling for SELinux, propagation, nocopy."""
    # Engines themselves set the option `z` for every named volume, so it is a default of volumes.
    default_options = ("", "ro", "rw", "z") if mount["Type"] == "volume" else ("", "ro", "rw")
    entries = [option for option in str(mount.get("Mode") or "").split(",") if option not in default_options]
    propagation = mount.get("Propagation") or ""
    return entries + ([propagation] if propagation not in (*DEFAULT_PROPAGATION, *entries) else [])


def long_mounts(inspect: Mapping[str, Any]) -> Iterator[Tuple[str, Any]]:
    """Yield the target and the options of each `--mount` that cannot be written as `--volume`."""
    for mount in inspect["HostConfig"].get("Mounts") or []:
        options = {
            f"{kind}.{name}": value
            for kind in ("BindOptions", "VolumeOptions", "TmpfsOptions", "ImageOptions", "ClusterOptions")
            for name, value in (mount.get(kind) or {}).items()
            if value and name not in ("Propagation", "CreateMountpoint")
        }
        if mount.get("Consistency") not in (None, "", "default"):
            options["Consistency"] = mount["Consistency"]
        if options:
            yield str(mount.get("Target")), options


def published(inspect: Mapping[str, Any]) -> Dict[str, List[Dict[str, str]]]:
    """Return {port of the container: [{"HostIp", "HostPort"}]}, including ports that the engine has chosen."""
    chosen = (inspect.get("NetworkSettings") or {}).get("Ports") or {}
    requested = inspect["HostConfig"].get("PortBindings") or {}
    entries: Dict[str, List[Dict[str, str]]] = {}
    for port in sorted({*chosen, *requested}):
        actual = [entry for entry in chosen.get(port) or [] if _is_port(entry.get("HostPort"))]
        entries[port] = []
        for binding in requested.get(port) or actual:
            entry = dict(binding)
            if not _is_port(entry.get("HostPort")):
                # An engine with IPv6 lists a port once for each address, so the entry with the requested address is preferred.
                same_address = [other for other in actual if (entry.get("HostIp") or "0.0.0.0") == other.get("HostIp")] or actual
                entry = {"HostIp": entry.get("HostIp") or "", "HostPort": same_address[0]["HostPort"] if same_address else ""}
            if entry["HostPort"] and entry not in entries[port]:
                entries[port].append(entry)
    return entries


def _is_port(value: Any) -> bool:
    return bool(re.fullmatch("[1-9][0-9]{0,4}", str(value)))
