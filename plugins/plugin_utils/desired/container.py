# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The desired container of the server, in the form that concerns.server.container.container_facts returns."""

from __future__ import annotations

import posixpath
import re
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import local_address, netloc
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import device_access
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.other_hosts import parsed_ip

# Environment variables that limit the SDK to some of the NPUs
DEVICE_SELECTIONS = ("RBLN_VISIBLE_DEVICES", "RBLN_DEVICES")
# Triton's default of --metrics-interval-ms
METRICS_INTERVAL_MS = 2000
# (service of the server, its port in the container)
SERVICES = (("http", 8000), ("grpc", 8001), ("metrics", 8002))
CLOUD_SERVICES = ("allow-sagemaker", "allow-vertex-ai")
# Options of Triton that name a certificate for gRPC
CERTIFICATE_OPTIONS = ("--grpc-server-cert", "--grpc-root-cert")
# The values that the engine records for unset options. The desired state contains them, so that the plan shows an option that the
# actual container has and the desired container lacks.
ENGINE_DEFAULTS: Dict[str, Any] = {
    "cap_add": [],
    "cap_drop": [],
    "cpuset": "",
    "device_requests": [],
    "devices": [],
    "entrypoint": "the image's",
    "extra_hosts": [],
    "groups": [],
    "ipc": "default",
    "cpus": 0,
    "memory": 0,
    "network": "default",
    "pid": "",
    "pids_limit": 0,
    "read_only": False,
    "security": [],
    "tmpfs": [],
    "user": "the image's",
    "working_dir": "the image's",
}


def accepts_grpc(variables: Mapping[str, Any]) -> bool:
    """Return True if the server accepts gRPC without TLS, which a process in its container needs to request the load of a model."""
    secured = any(str(argument).startswith("--grpc-use-ssl") for argument in variables["triton_server_extra_args"])
    return bool(variables["triton_server_allow_grpc"]) and not secured


def cache(variables: Mapping[str, Any]) -> Optional[str]:
    """Return the kind of the server's response cache, such as `local` or `redis`, or None if the server has no cache."""
    words = " ".join(map(str, variables["triton_server_extra_args"]))
    if not words:
        return None
    kind = re.search(r"--cache-config[= ](\w+)", words)
    size_given = re.search(r"--response-cache-byte-size[= ](\d+)", words)
    return kind[1] if kind else "local" if size_given and int(size_given[1]) else None


def listen_address(variables: Mapping[str, Any], service: str = "http") -> str:
    """Return the address on which a service is published, in its shortest form, or "" for all addresses. Raises Refusal."""
    is_separate = service == "metrics" and variables["triton_server_metrics_listen_address"].strip()
    name = "triton_server_metrics_listen_address" if is_separate else "triton_server_listen_address"
    listen = variables[name].strip()
    if not listen:
        return ""
    ip = parsed_ip(listen[1:-1] if listen.startswith("[") and listen.endswith("]") else listen)
    if ip is None:
        expected = "an IP address of the host, or an empty text for every address"
        raise Refusal(f"{name} is {listen}, expected {expected}. Ports are published on addresses, not on names")
    return str(ip)


def address(variables: Mapping[str, Any], service: str = "http") -> str:
    """Return the address at which the host itself reaches a service of the server."""
    return local_address(listen_address(variables, service))


def command(variables: Mapping[str, Any], models: List[str], release_options: Sequence[str] = ()) -> List[str]:
    """Return the command line of tritonserver. `release_options` has the options of this release that other releases lack."""

    def flag(name: str) -> str:
        return "true" if variables[name] else "false"

    mode = variables["triton_server_model_control_mode"]
    line = ["tritonserver"]
    line += ["--model-repository=" + repository for repository in variables["triton_server_model_repositories"]]
    line += ["--model-control-mode=" + mode]
    if mode == "poll":
        line += ["--repository-poll-secs={}".format(variables["triton_server_poll_seconds"])]
    if mode == "explicit":
        # `served/` has exactly the desired models. With `*`, a change of the models changes no option, so the container is kept.
        only_store = variables["triton_server_model_repositories"] == [variables["npufleet_root"] + "/served"]
        line += ["--load-model=*"] if only_store else ["--load-model=" + name for name in models]
    line += [
        "--exit-on-error=" + flag("triton_server_exit_on_error"),
        "--exit-timeout-secs={}".format(variables["triton_server_exit_timeout"]),
        "--allow-http=" + flag("triton_server_allow_http"),
        "--allow-grpc=" + flag("triton_server_allow_grpc"),
        "--allow-metrics=" + flag("triton_server_allow_metrics"),
        "--allow-gpu-metrics=false",
        "--http-port=8000",
        "--grpc-port=8001",
        "--metrics-port=8002",
        "--log-verbose={}".format(variables["triton_server_log_verbose"]),
    ]
    line += _changed_options(variables)
    # Before Triton 26.03, requests to the services of clouds bypassed the restriction of APIs.
    line += [f"--{service}=false" for service in CLOUD_SERVICES if service in release_options]
    if not variables["triton_server_auto_complete_config"]:
        line += ["--disable-auto-complete-config"]
    return line + [str(argument) for argument in variables["triton_server_extra_args"]]


def _changed_options(variables: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options of metrics, logs and traces that differ from Triton's defaults.

    An option with its default value would have no effect, but would change the command line and so replace existing containers.
    """
    if not variables["triton_server_allow_cpu_metrics"]:
        yield "--allow-cpu-metrics=false"
    if variables["triton_server_metrics_interval"] != METRICS_INTERVAL_MS:
        yield "--metrics-interval-ms={}".format(variables["triton_server_metrics_interval"])
    yield from ("--metrics-config=" + setting for setting in variables["triton_server_metrics_config"])
    if variables["triton_server_log_format"] != "default":
        yield "--log-format=" + variables["triton_server_log_format"]
    yield from ("--trace-config=" + setting for setting in variables["triton_server_trace_config"])


def ports(variables: Mapping[str, Any]) -> Dict[str, str]:
    """Return {port of the container: published address and port} for the enabled services."""
    return {
        f"{port}/tcp": netloc(listen_address(variables, name), variables[f"npufleet_{name}_port"])
        for name, port in SERVICES
        if variables["triton_server_allow_" + name]
    }


def size_of(variables: Mapping[str, Any], name: str) -> int:
    """Return the bytes of a variable with a size, such as `1g`, `512m`, `64k` or a number. Raises Refusal."""
    match = re.fullmatch(r"(\d+)([kmg]?)b?", str(variables[name]).strip().lower())
    if not match:
        raise Refusal(f"{name}: {variables[name]} is not a size, expected bytes, or a size such as 512m or 1g")
    return int(match.group(1)) * {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}[match.group(2)]


def ulimits(variables: Mapping[str, Any]) -> Dict[str, str]:
    """Return {limit: "soft:hard"} for the entries of triton_server_ulimits. Raises Refusal."""
    limits = {}
    for entry in variables["triton_server_ulimits"]:
        # Without a hard limit, the soft limit is also the hard limit.
        match = re.fullmatch(r"(\w+):(-?\d+)(?::(-?\d+))?", str(entry))
        if not match:
            raise Refusal(f"triton_server_ulimits has {entry}, expected limit:soft:hard such as memlock:-1:-1")
        limits[match.group(1)] = f"{match.group(2)}:{match.group(3) or match.group(2)}"
    return limits


def volume(bind: str) -> str:
    """Return a bind mount in the engine's form, which includes the mode. Raises Refusal."""
    parts = bind.split(":")
    if len(parts) == 2 and parts[1].startswith("/"):
        return bind + ":rw"
    if len(parts) != 3:
        raise Refusal(f"triton_server_volumes has {bind}, expected host path:container path, or these followed by :ro")
    return bind


def mount_sources(variables: Mapping[str, Any]) -> List[str]:
    """Return the mounted host paths that administrators create. The project creates the paths below npufleet_root."""
    root = variables["npufleet_root"]
    paths = [str(bind).partition(":")[0] for bind in variables["triton_server_volumes"]]
    return sorted(path for path in paths if path.startswith("/") and not (path + "/").startswith(root + "/"))


def driver_files(variables: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
    """Return the query for driver.driver_files.find, or None if this project mounts no files of the driver into the container.

    From 3.0 on, the driver contains the SDK's libraries. If the engine finds cards by CDI name, the vendor's CDI spec mounts these
    libraries.
    """
    if device_access.uses_cdi(variables) or not variables["triton_server_driver_files"]:
        return None
    version = str(variables["npufleet_release_row"]["driver"]["version"])
    return {"libraries": int(version.partition(".")[0]) >= 3, "driver": version}


def cards(variables: Mapping[str, Any]) -> Dict[str, Any]:
    """Return {"npus": number, "card": type}: the cards that the SDK has to find in the container."""
    environment = variables["triton_server_environment"]
    selected = next((str(environment[name]) for name in DEVICE_SELECTIONS if name in environment), None)
    npus = int(variables["npufleet_npus"]) if selected is None else len([npu for npu in selected.split(",") if npu.strip()])
    return {"npus": npus, "card": variables["npufleet_card"]}


def host_certificates(variables: Mapping[str, Any]) -> List[str]:
    """Return the host's paths of the certificates that the server reads for gRPC with TLS.

    Triton's options name paths in the container. A file outside of all volumes belongs to the image, and is left out.
    """
    words = [word for argument in variables["triton_server_extra_args"] for word in str(argument).split("=", 1)]
    values = [value for option, value in zip(words, words[1:]) if option in CERTIFICATE_OPTIONS]
    return [path for path in (_on_host(variables, value) for value in dict.fromkeys(values)) if path]


def _on_host(variables: Mapping[str, Any], path: str) -> Optional[str]:
    """Return the host's path of a file in the container, or None for a file of the image. The deepest matching volume decides."""
    volumes = [volume(str(bind)).split(":")[:2] for bind in variables["triton_server_volumes"]]
    for host_path, container_path in sorted(volumes, key=lambda pair: len(pair[1]), reverse=True):
        directory = container_path.rstrip("/")
        if path == container_path or path.startswith(directory + "/"):
            # A volume without a path is a named volume. Only the engine knows its path on the host.
            return posixpath.normpath(host_path + path[len(directory) :]) if host_path.startswith("/") else None
    return None
