"""The server's container: as the variables want it, and as `docker inspect` shows it."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ansible_collections.npufleet.triton.plugins.module_utils.concerns import device_access
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import netloc

# Variables by which the SDK shows some of the NPUs only
SELECTS = ("RBLN_VISIBLE_DEVICES", "RBLN_DEVICES")
CLOUD_SERVICES = ("allow-sagemaker", "allow-vertex-ai")
# What the engine records for options that were not given: an option dropped from the inventory is then a difference.
DEFAULTS: Dict[str, Any] = {
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


def by_grpc(variables: Mapping[str, Any]) -> bool:
    """Whether the server takes requests to load over gRPC, from inside its container and without TLS."""
    secured = any(str(argument).startswith("--grpc-use-ssl") for argument in variables["triton_server_extra_args"])
    return bool(variables["triton_server_allow_grpc"]) and not secured


def cache(variables: Mapping[str, Any]) -> Optional[str]:
    """The kind of response cache that the server has, such as `local` or `redis`; None without one."""
    words = " ".join(map(str, variables["triton_server_extra_args"]))
    if not words:
        return None
    found = re.search(r"--cache-config[= ](\w+)", words)
    size_given = re.search(r"--response-cache-byte-size[= ](\d+)", words)
    return found[1] if found else "local" if size_given and int(size_given[1]) else None


def listens(variables: Mapping[str, Any]) -> str:
    """The address of the host that ports are published on, as it is written shortest; empty for every address. Raises Refusal."""
    # Here, as only the controller needs it
    import ipaddress

    given = variables["triton_server_listen_address"].strip()
    bare = given[1:-1] if given.startswith("[") and given.endswith("]") else given
    try:
        return str(ipaddress.ip_address(bare)) if given else ""
    except ValueError:
        raise Refusal(
            [
                f"triton_server_listen_address is {given}, wanted an IP address of the host, or none for every address: "
                "ports are published on addresses, not on names"
            ]
        ) from None


def address(variables: Mapping[str, Any]) -> str:
    """Where the host itself reaches the server."""
    listen = listens(variables)
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(listen, listen)


def command(variables: Mapping[str, Any], models: List[str], known: Sequence[str] = ()) -> List[str]:
    """The command line of tritonserver; `known` are those of its options that not every release has."""

    def flag(name: str) -> str:
        return "true" if variables[name] else "false"

    mode = variables["triton_server_model_control_mode"]
    line = ["tritonserver"]
    line += ["--model-repository=" + repository for repository in variables["triton_server_model_repositories"]]
    line += ["--model-control-mode=" + mode]
    if mode == "poll":
        line += ["--repository-poll-secs={}".format(variables["triton_server_poll_seconds"])]
    if mode == "explicit":
        # What is linked there is what is wanted: with a star another model does not mean another container
        only = variables["triton_server_model_repositories"] == [variables["npufleet_root"] + "/served"]
        line += ["--load-model=*"] if only else ["--load-model=" + name for name in models]
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
    # Services of clouds, by which requests went past restricted APIs before 26.03
    line += [f"--{service}=false" for service in CLOUD_SERVICES if service in known]
    if not variables["triton_server_auto_complete_config"]:
        line += ["--disable-auto-complete-config"]
    return line + [str(argument) for argument in variables["triton_server_extra_args"]]


def ports(variables: Mapping[str, Any]) -> Dict[str, str]:
    """Published ports, container side first: a service that is off publishes none."""
    services = (("http", 8000), ("grpc", 8001), ("metrics", 8002))
    listen = listens(variables)
    return {
        f"{inside}/tcp": netloc(listen, variables[f"npufleet_{name}_port"])
        for name, inside in services
        if variables["triton_server_allow_" + name]
    }


def size(value: Any) -> int:
    """Bytes of `1g`, `512m`, `64k` or a number."""
    found = re.fullmatch(r"(\d+)([kmg]?)b?", str(value).strip().lower())
    if not found:
        raise Refusal([f"{value} is no size, wanted whole bytes or such as 512m or 1g"])
    return int(found.group(1)) * {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}[found.group(2)]


def size_of(variables: Mapping[str, Any], name: str) -> int:
    """Bytes of a variable, 0 where it is empty."""
    try:
        return size(variables[name])
    except Refusal as refusal:
        raise Refusal([f"{name}: {refusal}"]) from None


def ulimits(variables: Mapping[str, Any], name: str) -> Dict[str, str]:
    """{limit: "soft:hard"} of a list of `limit:soft:hard`, or `limit:both`."""
    limits = {}
    for variable in variables[name]:
        found = re.fullmatch(r"(\w+):(-?\d+)(?::(-?\d+))?", str(variable))
        if not found:
            raise Refusal([f"{name} has {variable}, wanted limit:soft:hard such as memlock:-1:-1"])
        limits[found.group(1)] = f"{found.group(2)}:{found.group(3) or found.group(2)}"
    return limits


def volume(bind: str) -> str:
    """A bind mount as the engine writes it out, with its mode."""
    parts = bind.split(":")
    if len(parts) == 2 and parts[1].startswith("/"):
        return bind + ":rw"
    if len(parts) != 3:
        raise Refusal([f"triton_server_volumes has {bind}, wanted host path:container path, or these with :ro behind them"])
    return bind


def sources(variables: Mapping[str, Any]) -> List[str]:
    """Paths of the host that its administrators have to have made: those of the project are made on the way."""
    root = variables["npufleet_root"]
    paths = [str(bind).partition(":")[0] for bind in variables["triton_server_volumes"]]
    return sorted(path for path in paths if path.startswith("/") and not (path + "/").startswith(root + "/"))


def brought(variables: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
    """What of the driver is mounted (driver_files.find), None for nothing. From 3.0 on it brings the SDK's libraries.

    Where the engine finds the cards by name, the vendor's spec mounts it.
    """
    if device_access.by_name(variables):
        return None
    version = str(variables["npufleet_row"]["driver"]["version"])
    libraries = int(version.partition(".")[0]) >= 3
    return {"libraries": libraries, "driver": version} if variables["triton_server_driver_files"] else None


def cards(variables: Mapping[str, Any]) -> Dict[str, Any]:
    """What the SDK has to see in the container: {"npus": how many, "card": their type}."""
    environment = variables["triton_server_environment"]
    chosen = next((str(environment[name]) for name in SELECTS if name in environment), None)
    npus = int(variables["npufleet_npus"]) if chosen is None else len([npu for npu in chosen.split(",") if npu.strip()])
    return {"npus": npus, "card": variables["npufleet_card"]}


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
    kinds = [kind for kinds in asked.get("Capabilities") or [] for kind in kinds if asked.get("Driver") != device_access.CDI]
    return " ".join([asked.get("Driver") or "any", *kinds, ",".join(which)])


def _plainly(option: str) -> str:
    """A security option that is on, however that was written."""
    return re.sub("[:=]true$", "", option)


def environment(config: Mapping[str, Any]) -> Dict[str, str]:
    """Environment of a container's or an image's Config."""
    return dict(variable.split("=", 1) for variable in config.get("Env") or [] if "=" in variable)
