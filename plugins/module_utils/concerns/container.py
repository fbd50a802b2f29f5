"""The server's container as `docker inspect` shows it, in the form of the desired container."""

from __future__ import annotations

import re
from typing import Any, Dict, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import netloc


def container_facts(inspect: Mapping[str, Any], image: Mapping[str, Any]) -> Dict[str, Any]:
    """`docker inspect` in the shape of the desired container; what comes from the image is left out."""
    host = inspect["HostConfig"]
    config = inspect["Config"]
    base = image.get("Config") or {}

    def own(key: str) -> Any:
        return "the image's" if (config.get(key) or None) == (base.get(key) or None) else config.get(key)

    return {
        "image": inspect["Image"],
        "command": list(config.get("Cmd") or []),
        "environment": dict(set(environment(config).items()) - set(environment(base).items())),
        "log": {"driver": host["LogConfig"]["Type"], "options": dict(host["LogConfig"].get("Config") or {})},
        "ports": {
            port: ", ".join(sorted(netloc(entry.get("HostIp") or "", entry["HostPort"]) for entry in found))
            for port, found in (host.get("PortBindings") or {}).items()
            if found
        },
        "privileged": host["Privileged"],
        "restart": host["RestartPolicy"]["Name"],
        "shm_size": host["ShmSize"],
        "stop_timeout": config.get("StopTimeout") or 10,
        "ulimits": {limit["Name"]: "{}:{}".format(limit["Soft"], limit["Hard"]) for limit in host.get("Ulimits") or []},
        "volumes": sorted(bind if bind.count(":") > 1 else bind + ":rw" for bind in host.get("Binds") or []),
        # Engines write them with and without the kernel's prefix
        **{
            key: sorted(name[4:] if name.startswith("CAP_") else name for name in host.get(recorded) or [])
            for key, recorded in (("cap_add", "CapAdd"), ("cap_drop", "CapDrop"))
        },
        "cpuset": host.get("CpusetCpus") or "",
        "device_requests": sorted(map(_request, host.get("DeviceRequests") or [])),
        "devices": sorted(
            "{PathOnHost}:{PathInContainer}:{CgroupPermissions}".format(**device) for device in host.get("Devices") or []
        ),
        "extra_hosts": sorted(host.get("ExtraHosts") or []),
        "groups": sorted(host.get("GroupAdd") or []),
        "memory": host.get("Memory") or 0,
        # Engines say `default` or `bridge` for the same thing.
        "network": "default" if host.get("NetworkMode") in (None, "", "default", "bridge") else host["NetworkMode"],
        "pid": host.get("PidMode") or "",
        "read_only": bool(host.get("ReadonlyRootfs")),
        "tmpfs": sorted(f"{path}:{how}".rstrip(":") for path, how in (host.get("Tmpfs") or {}).items()),
        "entrypoint": own("Entrypoint"),
        "ipc": "default" if host.get("IpcMode") in (None, "", "private", "shareable") else host["IpcMode"],
        "cpus": (host.get("NanoCpus") or 0) / 1e9,
        "pids_limit": max(host.get("PidsLimit") or 0, 0),
        # The engine itself adds this one to a privileged container
        "security": sorted({_plainly(option) for option in host.get("SecurityOpt") or []} - {"label=disable"}),
        "user": own("User"),
        "working_dir": own("WorkingDir"),
    }


def _request(asked: Mapping[str, Any]) -> str:
    """Devices that an engine finds by itself (`--gpus`, or by the name that a container device interface gives them)."""
    count = asked.get("Count") or 0
    which = asked.get("DeviceIDs") or ["all" if count < 0 else str(count)]
    # Of which an engine takes none into account where it finds devices by name, and Compose wants some
    kinds = [kind for kinds in asked.get("Capabilities") or [] for kind in kinds if asked.get("Driver") != "cdi"]
    return " ".join([asked.get("Driver") or "any", *kinds, ",".join(which)])


def _plainly(option: str) -> str:
    """A security option that is on, however that was written."""
    return re.sub("[:=]true$", "", option)


def environment(config: Mapping[str, Any]) -> Dict[str, str]:
    """Environment of a container's or an image's Config."""
    return dict(variable.split("=", 1) for variable in config.get("Env") or [] if "=" in variable)
