# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The facts of the server's container from `docker inspect`, in the same form as the desired container."""

from __future__ import annotations

import re
from typing import Any, Dict, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils import secret
from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import netloc


def container_facts(inspect: Mapping[str, Any], image: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the facts of a container. Variables that its image sets to the same value are left out.

    An entrypoint, user or working directory that equals the image's own appears as "the image's".
    """
    host = inspect["HostConfig"]
    config = inspect["Config"]
    base = image.get("Config") or {}

    def setting(key: str) -> Any:
        return "the image's" if (config.get(key) or None) == (base.get(key) or None) else config.get(key)

    return {
        "image": inspect["Image"],
        "command": list(config.get("Cmd") or []),
        "environment": dict(set(environment(config).items()) - set(environment(base).items())),
        "log": {"driver": host["LogConfig"]["Type"], "options": dict(host["LogConfig"].get("Config") or {})},
        "ports": {
            port: ", ".join(sorted(netloc(entry.get("HostIp") or "", entry["HostPort"]) for entry in bindings))
            for port, bindings in (host.get("PortBindings") or {}).items()
            if bindings
        },
        "privileged": host["Privileged"],
        "restart": host["RestartPolicy"]["Name"],
        "shm_size": host["ShmSize"],
        "stop_timeout": config.get("StopTimeout") or 10,
        "ulimits": {limit["Name"]: "{}:{}".format(limit["Soft"], limit["Hard"]) for limit in host.get("Ulimits") or []},
        "volumes": sorted(bind if bind.count(":") > 1 else bind + ":rw" for bind in host.get("Binds") or []),
        # Some engines write capabilities with the prefix CAP_, others without it. The prefix is removed before a comparison.
        **{
            key: sorted(name[4:] if name.startswith("CAP_") else name for name in host.get(recorded) or [])
            for key, recorded in (("cap_add", "CapAdd"), ("cap_drop", "CapDrop"))
        },
        "cpuset": host.get("CpusetCpus") or "",
        "device_requests": sorted(map(_device_request, host.get("DeviceRequests") or [])),
        "devices": sorted(
            "{PathOnHost}:{PathInContainer}:{CgroupPermissions}".format(**device) for device in host.get("Devices") or []
        ),
        "extra_hosts": sorted(host.get("ExtraHosts") or []),
        "groups": sorted(host.get("GroupAdd") or []),
        "memory": host.get("Memory") or 0,
        # Some engines write `default` for the network, others `bridge`. Both names mean the same network.
        "network": "default" if host.get("NetworkMode") in (None, "", "default", "bridge") else host["NetworkMode"],
        "pid": host.get("PidMode") or "",
        "read_only": bool(host.get("ReadonlyRootfs")),
        "tmpfs": sorted(f"{path}:{options}".rstrip(":") for path, options in (host.get("Tmpfs") or {}).items()),
        "entrypoint": setting("Entrypoint"),
        "ipc": "default" if host.get("IpcMode") in (None, "", "private", "shareable") else host["IpcMode"],
        "cpus": (host.get("NanoCpus") or 0) / 1e9,
        "pids_limit": max(host.get("PidsLimit") or 0, 0),
        # Not all engines write the ending `=true` or `:true`. The engine itself adds `label=disable` to a privileged container.
        "security": sorted({re.sub("[:=]true$", "", option) for option in host.get("SecurityOpt") or []} - {"label=disable"}),
        "user": setting("User"),
        "working_dir": setting("WorkingDir"),
    }


def _device_request(request: Mapping[str, Any]) -> str:
    """Return a device request (from `--gpus`, or CDI names) as one text."""
    count = request.get("Count") or 0
    devices = request.get("DeviceIDs") or ["all" if count < 0 else str(count)]
    # Docker Compose adds capabilities to each request. Those of a CDI request are left out, because engines ignore them.
    kinds = [kind for kinds in request.get("Capabilities") or [] for kind in kinds if request.get("Driver") != "cdi"]
    return " ".join([request.get("Driver") or "any", *kinds, ",".join(devices)])


def environment(config: Mapping[str, Any]) -> Dict[str, str]:
    """Return the environment from the "Config" of a container or image."""
    return dict(variable.split("=", 1) for variable in config.get("Env") or [] if "=" in variable)


def sealed_container(facts: Mapping[str, Any], key: str) -> Dict[str, Any]:
    """Return the facts of a container with sealed secrets: secret.py replaces each secret by a digest that depends on `key`."""
    entrypoint = facts["entrypoint"]
    return {
        **facts,
        "command": secret.seal_command(facts["command"], key),
        "entrypoint": secret.seal_command(entrypoint, key) if isinstance(entrypoint, (list, tuple)) else entrypoint,
        "environment": secret.seal_values(facts["environment"], key),
        "log": {**facts["log"], "options": secret.seal_values(facts["log"]["options"], key)},
    }
