"""The differences between a container and one of a plain `docker run`, as `docker inspect` shows them.

An empty value (null, "", 0, false, [], {}) is plain everywhere. What an engine fills in by itself is listed here. All other values
were asked for, also those of options that engines will have one day.
"""

from __future__ import annotations

import re
from typing import Any, Collection, Dict, Iterator, List, Mapping, Tuple

# Values of HostConfig that an engine fills in
PLAIN_HOST: Dict[str, Tuple[Any, ...]] = {
    # By the host's version of cgroups
    "CgroupnsMode": ("private", "host"),
    "Isolation": ("default",),
    "MemorySwappiness": (-1,),
    "Runtime": ("runc", "io.containerd.runc.v2"),
}
# Of the terminal that `docker run` was called from, and not of the container
OF_THE_CALLER = ("AttachStdin", "AttachStdout", "AttachStderr", "ConsoleSize", "OpenStdin", "StdinOnce", "Tty")
# Lists of paths that every engine hides or protects in a container without privileges, some more than others
HIDDEN = {"MaskedPaths": ("/proc/kcore", "/sys/firmware"), "ReadonlyPaths": ("/proc/sys",)}
# Parts of an inspect output that say how the container is, and not how it was asked for
STATE = (
    "AppArmorProfile", "Args", "Created", "Driver", "ExecIDs", "GraphDriver", "HostnamePath", "HostsPath", "Id", "Image",
    "ImageManifestDescriptor", "LogPath", "MountLabel", "Name", "Path", "Platform", "ProcessLabel", "ResolvConfPath",
    "RestartCount", "SizeRootFs", "SizeRw", "State", "Storage",
)  # fmt: skip
SECTIONS = ("Config", "HostConfig", "Mounts", "NetworkSettings")
# What a container has of its image where nothing was asked for, beside what becomes a variable
INHERITED = ("Healthcheck", "Labels", "StopSignal")
# Maps of which each entry is a difference of its own
MAPS = ("Annotations", "Labels", "Sysctls")
# What an engine records of a network by itself
NETWORK_STATE = (
    "DNSNames", "EndpointID", "Gateway", "GlobalIPv6Address", "GlobalIPv6PrefixLen", "IPAddress", "IPPrefixLen", "IPv6Gateway",
    "MacAddress", "NetworkID",
)  # fmt: skip
# How a mount is propagated where nothing was asked for
PROPAGATION = ("", "rprivate")


def differences(
    inspect: Mapping[str, Any], image: Mapping[str, Any], default_runtime: str, handled: Collection[str]
) -> Iterator[Tuple[str, Any]]:
    """Yield name and value of every option that a plain `docker run` of the image would not have; `handled` are left out."""
    host, config, base = inspect["HostConfig"], inspect["Config"], image.get("Config") or {}
    for key in sorted(set(host) - set(handled) - set(OF_THE_CALLER)):
        if not _plain(key, host[key], default_runtime, bool(host.get("Privileged"))):
            yield from _each(key, host[key], {})
    for key in sorted({*config, *INHERITED} - set(handled) - set(OF_THE_CALLER)):
        value, inherited = config.get(key) or None, (base.get(key) or None) if key in INHERITED else None
        if key == "Hostname":
            own = inspect.get("Id", "")[:12] == config[key] or "host" in (host.get("NetworkMode"), host.get("UTSMode"))
            if value and not own:
                yield key, value
        elif value != inherited:
            yield from _each(key, value or "none", inherited)
    yield from _networks(inspect)
    for key in sorted(set(inspect) - set(STATE) - set(SECTIONS)):
        if inspect[key]:
            yield key, inspect[key]


def _plain(key: str, value: Any, default_runtime: str, privileged: bool) -> bool:
    if key in HIDDEN and value is not None:
        # An empty list is asked for (systempaths=unconfined); a privileged container has none
        return privileged or set(HIDDEN[key]) <= set(value)
    if not value or (isinstance(value, list) and not any(value)):
        return True
    return value in PLAIN_HOST.get(key, ()) or (key == "Runtime" and value == default_runtime)


def _each(key: str, value: Any, base: Any) -> Iterator[Tuple[str, Any]]:
    """The entries of a map one by one, without those of the image."""
    if key in MAPS and isinstance(value, Mapping):
        for name in sorted(value):
            if (base or {}).get(name) != value[name]:
                yield f"{key} {name}", value[name]
    else:
        yield key, value


def _networks(inspect: Mapping[str, Any]) -> Iterator[Tuple[str, Any]]:
    """Networks beside the one that the container was started in, and what was asked for in each."""
    host, networks = inspect["HostConfig"], (inspect.get("NetworkSettings") or {}).get("Networks") or {}
    mode = host.get("NetworkMode") or "default"
    first = "bridge" if mode == "default" else mode
    # Of what an engine and Compose call it in each
    names = {inspect.get("Id", "")[:12], str(inspect.get("Name", "")).lstrip("/")}
    for name in sorted(networks):
        # By its id, a network is named as the mode, too
        if name != first and len(networks) > 1 and networks[name].get("NetworkID") != mode:
            yield "network", name
        for key in sorted(set(networks[name]) - set(NETWORK_STATE)):
            value = networks[name][key]
            if key == "Aliases":
                value = [alias for alias in value or [] if alias not in names]
            if value and any(value.values() if isinstance(value, Mapping) else [value]):
                yield f"network {name} {key}", value


def mount_options(mount: Mapping[str, Any]) -> List[str]:
    """Return the options of a bind mount or a volume beside `ro` and `rw`: relabelling for SELinux, propagation, nocopy."""
    # Engines write z for every volume that has a name
    usual = ("", "ro", "rw", "z") if mount["Type"] == "volume" else ("", "ro", "rw")
    found = [option for option in str(mount.get("Mode") or "").split(",") if option not in usual]
    propagation = mount.get("Propagation") or ""
    return found + ([propagation] if propagation not in (*PROPAGATION, *found) else [])


def long_mounts(inspect: Mapping[str, Any]) -> Iterator[Tuple[str, Any]]:
    """Yield target and options of each `--mount` that has some which a bind mount cannot have."""
    for mount in inspect["HostConfig"].get("Mounts") or []:
        asked = {
            f"{kind}.{name}": value
            for kind in ("BindOptions", "VolumeOptions", "TmpfsOptions", "ImageOptions", "ClusterOptions")
            for name, value in (mount.get(kind) or {}).items()
            if value and name not in ("Propagation", "CreateMountpoint")
        }
        if mount.get("Consistency") not in (None, "", "default"):
            asked["Consistency"] = mount["Consistency"]
        if asked:
            yield str(mount.get("Target")), asked


def published(inspect: Mapping[str, Any]) -> Dict[str, List[Dict[str, str]]]:
    """{port of the container: [{"HostIp", "HostPort"}]}. A port that was left to the engine has the one that it chose."""
    chosen = (inspect.get("NetworkSettings") or {}).get("Ports") or {}
    asked = inspect["HostConfig"].get("PortBindings") or {}
    found: Dict[str, List[Dict[str, str]]] = {}
    for port in sorted({*chosen, *asked}):
        actual = [entry for entry in chosen.get(port) or [] if _is_port(entry.get("HostPort"))]
        found[port] = []
        for entry in asked.get(port) or actual:
            if not _is_port(entry.get("HostPort")):
                # An engine with IPv6 lists a port twice
                mine = [other for other in actual if (entry.get("HostIp") or "0.0.0.0") == other.get("HostIp")] or actual
                entry = {"HostIp": entry.get("HostIp") or "", "HostPort": mine[0]["HostPort"] if mine else ""}
            if entry["HostPort"] and entry not in found[port]:
                found[port].append(dict(entry))
    return found


def _is_port(value: Any) -> bool:
    return bool(re.fullmatch("[1-9][0-9]{0,4}", str(value)))
