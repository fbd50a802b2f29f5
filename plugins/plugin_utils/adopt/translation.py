# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The translation of a Triton container that was started manually into variables of the project.

The module `adoption` reads the container. Options without a variable are listed with the reason.
"""

from __future__ import annotations

import json
import posixpath
import re
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.concerns.server import container
from ansible_collections.npufleet.triton.plugins.module_utils.driver import driver_files
from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import netloc
from ansible_collections.npufleet.triton.plugins.module_utils.triton.options import (
    SERVER,
    last_value,
    listen_address,
    options,
    repositories,
    restricted,
)
from ansible_collections.npufleet.triton.plugins.plugin_utils.adopt import plain_run
from ansible_collections.npufleet.triton.plugins.plugin_utils.adopt.arguments import (
    SERVICES,
    Translation,
    is_secret,
    to_vault,
    translate_arguments,
)
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import device_access
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.container import ENGINE_DEFAULTS
from ansible_collections.npufleet.triton.plugins.plugin_utils.run.host_text import Template

# Options of a container that the functions below translate or report
HANDLED_OPTIONS = (
    "AutoRemove", "Binds", "CapAdd", "CapDrop", "Cmd", "CpusetCpus", "DeviceRequests", "Devices", "Entrypoint", "Env",
    "ExposedPorts", "ExtraHosts", "GroupAdd", "Image", "IpcMode", "LogConfig", "Memory", "MemorySwap", "Mounts", "NanoCpus",
    "NetworkMode", "PidMode", "PidsLimit", "PortBindings", "Privileged", "PublishAllPorts", "ReadonlyRootfs", "RestartPolicy",
    "SecurityOpt", "ShmSize", "StopTimeout", "Tmpfs", "Ulimits", "User", "Volumes", "WorkingDir",
)  # fmt: skip
COMPOSE_LABELS = "com.docker.compose."
# The form of a password hash of htpasswd or crypt, which can be in a label for a proxy
PASSWORD_HASH = re.compile(r"\$(?:apr1|[1256y]|2[abxy])\$")
# The maximum number of characters of a value in a message
MAX_VALUE_LENGTH = 200
# Variables of an environment that a shell or the engine sets
SET_BY_SHELL = ("PWD", "OLDPWD", "SHLVL", "_", "TERM", "HOME", "HOSTNAME", "LS_COLORS", "LINES", "COLUMNS", "LESSOPEN", "LESSCLOSE")
# The start of the path of a file in a version directory, such as `1/`
VERSION_DIR = re.compile("(0|[1-9][0-9]{0,17})/")
# A name that the engine has generated, such as quirky_bell
GENERATED_NAME = re.compile(r"(?!.*triton)[a-z]+_[a-z]+\d?")


def translate(adopted: Mapping[str, Any], host: str, root: str) -> Translation:
    """Return the translation of a host's container.

    `adopted` has "inspect", "image" (inspect of the image), "default_runtime", "others" (other processes in the container) and
    "process" (the server). A process has "argv", "directory", "environment" and "main", which is True if the container started it.
    `root` is the directory of the store.
    """
    inspect, process = adopted["inspect"], adopted["process"]
    facts = container.container_facts(inspect, adopted["image"])
    arguments, unknown = options(process["argv"][1:])
    translation = Translation({}, [], {})
    left_out = translation.left_out
    name = inspect["Name"].lstrip("/")
    if GENERATED_NAME.fullmatch(name):
        left_out.append(f"name {name}: the engine generated it, so triton_server_name keeps its default")
    else:
        translation.variables["triton_server_name"] = name
    _command(inspect, facts, process, left_out)
    left_out += [
        f"process {other['pid']} ({_printable(other['program'])}) beside the server: the managed container does not start it"
        for other in adopted.get("others") or []
    ]
    _resources(adopted, facts, translation)
    _volumes(inspect, process, root, translation)
    _environment(adopted, host, translation)
    translate_arguments(arguments, host, translation)
    _ports(inspect, arguments, translation)
    left_out += [f"argument {argument}: tritonserver has no such option" for argument in unknown]
    return translation


def _command(inspect: Mapping[str, Any], facts: Mapping[str, Any], process: Mapping[str, Any], left_out: List[str]) -> None:
    """Report a command that does more than start the server. The command can contain keys, so only its program is shown."""
    config = inspect["Config"]
    if not process["main"] and process.get("user", "0") != "0":
        left_out.append(
            f"user {_printable(process['user'])} of the server process: the managed server has the user of its container"
        )
    has_entrypoint = facts["entrypoint"] != "the image's"
    words = [*(config.get("Entrypoint") or [] if has_entrypoint else []), *(config.get("Cmd") or [])]
    if words and posixpath.basename(str(words[0])) != SERVER and (has_entrypoint or process["main"]):
        left_out.append(f"command {_printable(words[0])}: only the start of {SERVER} is adopted, see `docker inspect` for the rest")


def _printable(value: Any) -> str:
    """Return the name of a program or user, with each unusual character replaced by `?`."""
    return re.sub(r"[^\w./ +-]", "?", str(value))[:80]


def _resources(adopted: Mapping[str, Any], facts: Mapping[str, Any], translation: Translation) -> None:
    """Translate the options of the container that have variables. Report each other option."""
    variables, left_out, _vault = translation
    inspect, image = adopted["inspect"], adopted["image"]
    host = inspect["HostConfig"]
    managed = _access(facts, translation)
    variables["triton_server_shm_size"] = size(facts["shm_size"])
    variables["triton_server_ulimits"] = [f"{name}:{both}" for name, both in sorted(facts["ulimits"].items())]
    if facts["cpuset"]:
        variables["triton_server_cpuset"] = facts["cpuset"]
    if facts["memory"]:
        variables["triton_server_memory"] = size(facts["memory"])
    if facts["restart"] in ("", "no"):
        left_out.append(
            'restart policy no: the managed server starts after a reboot, unless you set triton_server_restart_policy: "no"'
        )
    else:
        variables["triton_server_restart_policy"] = facts["restart"]
    tries = host["RestartPolicy"].get("MaximumRetryCount")
    if tries:
        left_out.append(f"restart policy with a limit of {tries} tries: there is no variable for it")
    if facts["log"]["driver"] != "json-file" or facts["log"]["options"]:
        variables["triton_server_log_driver"] = facts["log"]["driver"]
        variables["triton_server_log_options"] = facts["log"]["options"]
    if inspect["Config"].get("StopTimeout"):
        variables["triton_server_stop_timeout"] = inspect["Config"]["StopTimeout"]
    for key in sorted(set(managed) - {"cpuset", "memory", "entrypoint", "privileged"}):
        # _ports() reports a server on the host's network, which gets published ports instead.
        if facts[key] != managed[key] and not (key == "network" and facts[key] == "host"):
            left_out.append(f"{key} {_value_text(facts[key])}: the managed container has {_value_text(managed[key])}")
    if host.get("MemorySwap") not in (None, 0, -1, 2 * facts["memory"]):
        left_out.append(f"MemorySwap {host['MemorySwap']}: there is no variable for it")
    labels = inspect["Config"].get("Labels") or {}
    default_runtime = adopted.get("default_runtime") or "runc"
    for name, value in plain_run.differences(inspect, image, default_runtime, HANDLED_OPTIONS):
        if not name.startswith(f"Labels {COMPOSE_LABELS}"):
            left_out.append(f"{_option_text(name, value)}: there is no variable for it")
    exposed = set(inspect["Config"].get("ExposedPorts") or {}) - set((image.get("Config") or {}).get("ExposedPorts") or {})
    for port in sorted(exposed - set(host.get("PortBindings") or {})):
        left_out.append(f"exposed port {port}: there is no variable for it, and it is not published")
    if "com.docker.compose.project" in labels:
        service, project = labels.get("com.docker.compose.service"), labels["com.docker.compose.project"]
        file = labels.get("com.docker.compose.project.config_files", "its file")
        left_out.append(
            f"service {service} of compose project {project}: remove it from {file}, or the next `docker compose up` starts a "
            "second server"
        )


def _access(facts: Mapping[str, Any], translation: Translation) -> Dict[str, Any]:
    """Translate the access to the cards, and return the privileges and limits of the managed container."""
    variables = translation.variables
    card_devices = [device for device in facts["devices"] if device_access.CARD_DEVICE.fullmatch(device)]
    cdi_requests = [request for request in facts["device_requests"] if device_access.CDI_REQUEST.search(request)]
    uses_cdi = bool(cdi_requests) and not card_devices
    unprivileged = device_access.CDI if uses_cdi else device_access.DEVICES
    variables["npufleet_device_access"] = device_access.PRIVILEGED if facts["privileged"] else unprivileged
    if facts["privileged"]:
        return ENGINE_DEFAULTS
    # Without a read-only file system, the server can also write outside its tmpfs mounts, so triton_server_tmpfs keeps its default.
    if facts["read_only"]:
        variables["triton_server_tmpfs"] = list(facts["tmpfs"])
    if not card_devices and not cdi_requests:
        translation.left_out.append("no device of a card: the managed container gets the cards of the host")
    # A managed container requests each NPU by its number.
    numbered = not uses_cdi or all(map(device_access.NUMBERED_CDI_REQUEST.fullmatch, cdi_requests))
    return {
        **ENGINE_DEFAULTS,
        **device_access.UNPRIVILEGED,
        # The container's user ID can belong to an account of the host, which could then read the keys. So the ID is not adopted.
        "user": "the user of triton_server_user",
        "tmpfs": facts["tmpfs"] if facts["read_only"] else ["the paths of triton_server_tmpfs"],
        "devices": card_devices,
        "device_requests": (cdi_requests if uses_cdi else []) if numbered else ["each NPU by its number"],
        "groups": facts["groups"] and ["the groups that may open the cards"],
    }


def _volumes(inspect: Mapping[str, Any], process: Mapping[str, Any], root: str, translation: Translation) -> None:
    """Translate the mounts, except the mounts of models, store and driver. The store replaces the mount of the models."""
    left_out = translation.left_out
    model_paths = repositories(process["argv"], process.get("directory") or "/")
    tmpfs = {path.rstrip("/") or "/" for path in inspect["HostConfig"].get("Tmpfs") or {}}
    volumes = []
    for mount in sorted(inspect.get("Mounts") or [], key=lambda element: str(element["Destination"])):
        target = mount["Destination"].rstrip("/") or "/"
        source = mount.get("Name") if mount["Type"] == "volume" else mount.get("Source")
        if any(name == target or name.startswith(target.rstrip("/") + "/") for name in model_paths):
            left_out.append(f"volume {source}:{target}: its models are in the model list, its other files are left out")
        elif target == root or driver_files.is_driver_file(target):
            if source != root if target == root else not driver_files.is_driver_file(str(source)):
                left_out.append(f"volume {source}:{target}: the managed container mounts {target} of the host")
        elif mount["Type"] == "bind" or (mount["Type"] == "volume" and not re.fullmatch("[0-9a-f]{64}", str(source))):
            mount_options = plain_run.mount_options(mount)
            volumes.append("{}:{}:{}".format(source, target, ",".join(["rw" if mount.get("RW", True) else "ro", *mount_options])))
            if mount_options:
                left_out.append(
                    f"volume {source}:{target} with {', '.join(mount_options)}: kept in triton_server_volumes, check whether it is "
                    "needed"
                )
        elif mount["Type"] != "tmpfs" or target not in tmpfs:
            left_out.append(f"{mount['Type']} volume at {target}: it has no name, so it cannot be mounted again")
    for path, options_of_mount in plain_run.long_mounts(inspect):
        left_out.append(f"mount at {path} with {_value_text(options_of_mount)}: there is no variable for it")
    if volumes:
        # This list replaces the default of the variable. Its first mount is this default.
        translation.variables["triton_server_volumes"] = [Template("{{ npufleet_root }}:{{ npufleet_root }}:ro"), *volumes]


def own_environment(adopted: Mapping[str, Any]) -> Tuple[Dict[str, str], Dict[str, str]]:
    """Return the environment that was set for the container, and the variables that a shell exported to the server."""
    base = container.environment(adopted["image"].get("Config") or {})
    container_environment = container.environment(adopted["inspect"]["Config"])
    set_variables = {name: value for name, value in container_environment.items() if base.get(name) != value}
    process = adopted["process"]
    exported = {
        name: value
        for name, value in (process.get("environment") or {}).items()
        if container_environment.get(name) != value and name not in SET_BY_SHELL
    }
    return set_variables, {} if process["main"] else exported


def _environment(adopted: Mapping[str, Any], host: str, translation: Translation) -> None:
    variables, left_out, vault = translation
    set_variables, exported = own_environment(adopted)
    environment: Dict[str, str] = {}
    for name, value in sorted({**set_variables, **exported}.items()):
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name):
            left_out.append(f"environment {name}: not a valid name of an environment variable")
        elif name in ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH") and name in exported:
            left_out.append(f"environment {name}: it is for files of this container that the managed image lacks")
        else:
            environment[name] = to_vault(host, name, value, vault) if is_secret(name, value) else value
    if environment:
        variables["triton_server_environment"] = environment


def _ports(inspect: Mapping[str, Any], arguments: Sequence[Tuple[str, str]], translation: Translation) -> None:
    """Translate the published ports. The managed server publishes every active service, even if the old container did not."""
    variables, left_out, _vault = translation
    on_host = inspect["HostConfig"].get("NetworkMode") == "host"
    published = plain_run.published(inspect)
    addresses: List[str] = []
    container_ports = {service: last_value(arguments, service + "-port", str(port)) for service, port in SERVICES.items()}
    for service, container_port in container_ports.items():
        if not variables.get(f"triton_server_allow_{service}", True):
            continue
        listens = last_value(arguments, service + "-address")
        if not on_host and listens not in ("", "0.0.0.0", "::", "ipv6:::"):
            left_out.append(f"--{service}-address={listens}: the managed server listens on every address of its container")
        bindings = published.get(f"{container_port}/tcp") or []
        # An engine with IPv6 lists a port twice, for IPv4 and for IPv6. The entry for IPv4 is sufficient.
        bindings = [binding for binding in bindings if binding.get("HostIp") != "::"] or bindings
        if on_host:
            variables[f"npufleet_{service}_port"] = int(container_port)
            addresses.append(listen_address(arguments, service) or "0.0.0.0")
        elif bindings:
            variables[f"npufleet_{service}_port"] = int(bindings[0]["HostPort"])
            addresses.append(bindings[0].get("HostIp") or "")
            left_out += [
                f"{service} also at {netloc(binding['HostIp'], binding['HostPort'])}: the managed server has one port for a service"
                for binding in bindings[1:]
            ]
        else:
            left_out.append(
                f"{service} was not published: the managed server publishes it if triton_server_allow_{service} is true"
            )
    if addresses:
        variables["triton_server_listen_address"] = addresses[0]
        if len(set(addresses)) > 1:
            listed = ", ".join(address or "(all addresses)" for address in addresses)
            left_out.append(f"listen addresses {listed}: all managed services listen on the first address")
    if on_host:
        left_out.append("network host: the managed container has its own network and publishes its ports")
    for port, bindings in sorted(published.items()):
        if bindings and port not in [f"{container_port}/tcp" for container_port in container_ports.values()]:
            left_out.append(f"port {port}: no service of Triton uses it")


def size(number: int) -> str:
    """Return a number of bytes as text, in the largest unit that divides it, such as `512m`."""
    for letter, unit in (("g", 2**30), ("m", 2**20), ("k", 2**10)):
        if number and number % unit == 0:
            return f"{number // unit}{letter}"
    return str(number)


def _value_text(value: Any) -> str:
    if isinstance(value, Mapping) or (
        isinstance(value, (list, tuple)) and any(isinstance(part, (Mapping, list)) for part in value)
    ):
        return json.dumps(value, sort_keys=True, ensure_ascii=False)
    return ", ".join(map(str, value)) or "none" if isinstance(value, (list, tuple)) else str(value or "none")


def _option_text(name: str, value: Any) -> str:
    """Return an option and its value as one line. A value that can be a secret is masked."""
    text, equals = _value_text(value), "=" if " " in name and not name.startswith("network ") else " "
    text = "(a secret)" if is_secret(name, text) or PASSWORD_HASH.search(text) else text
    return name + equals + (text if len(text) <= MAX_VALUE_LENGTH else text[: MAX_VALUE_LENGTH - 3] + "...")


def model_entry(name: str, model: Mapping[str, Any], key: str, npus: int, left_out: List[str]) -> Dict[str, Any]:
    """Return the entry of a model for `triton_models`. `key` is the card and SDK of the compiled file, such as CA22/0.9.

    The caller adds the path of the compiled file on the controller.
    """
    element: Dict[str, Any] = {"name": name}
    counts = {
        group.get("count", 1) for group in (model["config"] or {}).get("instance_group") or [] if group.get("kind") == "KIND_MODEL"
    }
    for count in sorted(counts):
        if count % npus:
            left_out.append(f"model {name}: {count} instances are not a multiple of {npus} NPUs, so the managed model has {npus}")
        elif count > npus:
            element["instances"] = count // npus
    compiled = compiled_file(model)
    if compiled:
        element["artefacts"] = {key: {"sha256": model["files"][compiled]["sha256"], "path": compiled}}
    return element


def compiled_file(model: Mapping[str, Any]) -> Optional[str]:
    """Return the path of a model's compiled file if the model has only one and it is in a version directory, else None."""
    adopted = [path for path in model["files"] if path.endswith(".rbln")]
    return adopted[0] if len(adopted) == 1 and VERSION_DIR.match(adopted[0]) else None


def secrets(adopted: Mapping[str, Any], vault: Mapping[str, str]) -> List[str]:
    """Return the values that no result may show, longest first: the values of the vault, and the keys in the command line."""
    arguments = options(adopted["process"]["argv"][1:])[0]
    return sorted(
        {*vault.values(), *(key for _apis, _header, key in restricted(arguments))} - {""}, key=lambda value: (-len(value), value)
    )


def masked(value: Any, texts: Sequence[str]) -> Any:
    """Return a value in which `(secret)` replaces each secret in `texts`."""
    if isinstance(value, str):
        for secret in texts:
            value = value.replace(secret, "(secret)")
        return value
    if isinstance(value, Mapping):
        return {key: masked(part, texts) for key, part in value.items()}
    return [masked(part, texts) for part in value] if isinstance(value, list) else value
