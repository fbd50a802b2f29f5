"""The command line of tritonserver: read, and said in the project's variables."""

from __future__ import annotations

import posixpath
import re
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.triton import keys

SERVER = "tritonserver"
# Options of tritonserver 24.01 to 26.07 (`tritonserver --help`)
NAMES = (
    "allow-client-shm", "allow-cpu-metrics", "allow-gpu-metrics", "allow-grpc", "allow-http", "allow-metrics",
    "allow-sagemaker", "allow-vertex-ai", "backend-config", "backend-directory", "buffer-manager-thread-count",
    "cache-config", "cache-directory", "cuda-memory-pool-byte-size", "cuda-virtual-address-size",
    "disable-auto-complete-config", "enable-peer-access", "exit-on-error", "exit-timeout-secs", "grpc-address",
    "grpc-header-forward-pattern", "grpc-http2-max-ping-strikes", "grpc-http2-max-pings-without-data",
    "grpc-http2-min-recv-ping-interval-without-data", "grpc-infer-allocation-pool-size",
    "grpc-infer-response-compression-level", "grpc-keepalive-permit-without-calls", "grpc-keepalive-time",
    "grpc-keepalive-timeout", "grpc-max-connection-age", "grpc-max-connection-age-grace", "grpc-port",
    "grpc-restricted-protocol", "grpc-root-cert", "grpc-server-cert", "grpc-server-key", "grpc-use-ssl",
    "grpc-use-ssl-mutual", "help", "host-policy", "http-address", "http-header-forward-pattern", "http-max-input-size",
    "http-port", "http-restricted-api", "http-thread-count", "id", "load-model", "log-error", "log-file", "log-format",
    "log-info", "log-verbose", "log-warning", "metrics-address", "metrics-config", "metrics-interval-ms",
    "metrics-port", "min-supported-compute-capability", "model-config-name", "model-control-mode",
    "model-load-gpu-limit", "model-load-retry-count", "model-load-thread-count", "model-namespacing",
    "model-repository", "model-store", "pinned-memory-pool-byte-size", "rate-limit", "rate-limit-resource",
    "repoagent-directory", "repository-poll-secs", "response-cache-byte-size", "reuse-grpc-port", "reuse-http-port",
    "sagemaker-port", "sagemaker-safe-port-range", "sagemaker-thread-count", "strict-model-config", "strict-readiness",
    "trace-config", "trace-count", "trace-file", "trace-level", "trace-log-frequency", "trace-rate", "version",
    "vertex-ai-default-model", "vertex-ai-port", "vertex-ai-thread-count",
)  # fmt: skip
# Those that 24.01 does not have. Where one of them begins like an older one, a server that runs with that beginning is older
LATER = ("allow-client-shm", "enable-peer-access", "http-max-input-size", "model-config-name")
# Options of tritonserver that take no value
BARE = ("disable-auto-complete-config", "help", "version")
# Option -> variable, and the kind of its value
VARIABLES = {
    "model-control-mode": ("triton_server_model_control_mode", str),
    "repository-poll-secs": ("triton_server_poll_seconds", int),
    "exit-on-error": ("triton_server_exit_on_error", bool),
    "exit-timeout-secs": ("triton_server_exit_timeout", int),
    "allow-http": ("triton_server_allow_http", bool),
    "allow-grpc": ("triton_server_allow_grpc", bool),
    "allow-metrics": ("triton_server_allow_metrics", bool),
    "log-verbose": ("triton_server_log_verbose", int),
}
SERVICES = {"http": 8000, "grpc": 8001, "metrics": 8002}
# Options whose meaning is carried by something else than an option
ELSEWHERE = (
    "model-repository",
    "model-store",
    "load-model",
    *(service + "-port" for service in SERVICES),
    *(service + "-address" for service in SERVICES),
)
DROPPED = {
    "allow-gpu-metrics": "a host with NPUs has no such metrics, the managed server never asks for them",
    "log-file": "the managed server's log is that of its container (docker logs)",
}
# What the name of an option can be; anything else that was given is none, and becomes no part of a template
OPTION = re.compile(r"[a-z0-9][a-z0-9_-]*")
SECRET_NAME = re.compile(r"PASS|TOKEN|SECRET|CREDENTIAL|(?<![A-Z])(KEY|AUTH|PAT)(?![A-Z])|APIKEY", re.IGNORECASE)


class Template(str):
    """A value that Ansible is to evaluate. Anything else came out of a container, and is a text whatever stands in it."""


def options(arguments: Sequence[str]) -> Tuple[List[Tuple[str, str]], List[str]]:
    """Return ([(option, value)] of tritonserver's arguments, what is none): `--a=b` and `--a b` are the same.

    As getopt_long has it, the beginning of a name stands for the only option that begins so, and `--` ends the options.
    """
    found: List[Tuple[str, str]] = []
    strange: List[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word[2:].partition("=")
        if word == "--":
            strange += rest
            break
        if not word.startswith("--") or not OPTION.fullmatch(name):
            strange.append(word)
            continue
        name = full_name(name)
        if not equals and name not in BARE:
            value = rest.pop(0) if rest else ""
        found.append((name, value))
    return found, strange


def full_name(name: str) -> str:
    """Return the option that a name or its beginning stands for; the name itself where that is not one alone."""
    begun = [option for option in NAMES if option.startswith(name)]
    known = [option for option in begun if option not in LATER] or begun
    return known[0] if name not in NAMES and len(known) == 1 else name


def last(given: Sequence[Tuple[str, str]], name: str, default: str = "") -> str:
    """The value of an option that was given, the last one where it was given twice."""
    return next((value for entry, value in reversed(given) if entry == name), default)


def repositories(argv: Sequence[str], directory: str) -> List[str]:
    """The model repositories of a command line, as absolute paths inside the container where they are paths."""
    found = [value for name, value in options(argv[1:])[0] if name in ("model-repository", "model-store")]
    return [entry if "://" in entry else posixpath.normpath(posixpath.join(directory, entry)) for entry in found]


def idles(config: Mapping[str, Any]) -> bool:
    """Whether the container's own command only keeps it there, so that hands started the server in it: `bash`, `sleep infinity`."""
    command = list(config.get("Cmd") or [])
    if not command:
        return True
    program, rest = posixpath.basename(command[0]), command[1:]
    if program in ("sleep", "tail", "cat"):
        return True
    script = next((word for word in rest if not word.startswith("-")), "")
    return program in ("bash", "sh", "dash", "zsh") and (
        not script or ("-c" in rest and SERVER not in script and ".sh" not in script)
    )


def is_secret(name: str, value: str) -> bool:
    """Whether this is nothing to write into an inventory in clear."""
    # Here, as its patterns take longer than all else that is imported for a plan
    from ansible_collections.npufleet.triton.plugins.module_utils.redact import MARK, Redactor

    looks = SECRET_NAME.search(name) or MARK in Redactor([]).clean(f"{name}={value}")
    return bool(looks) and not re.fullmatch(r"|\d{1,4}|true|false|/[\w./-]+", value)


def to_vault(host: str, name: str, value: str, vault: Dict[str, str]) -> Template:
    """The template of a variable of the vault for this value; two values have two variables."""
    first = variable = "vault_" + re.sub(r"\W+", "_", f"{host}_{name}", flags=re.ASCII).lower()
    while vault.get(variable, value) != value:
        variable = f"{first}_{len(vault)}"
    vault[variable] = value
    return Template("{{ " + variable + " }}")


def restricted(given: Sequence[Tuple[str, str]]) -> List[Tuple[List[str], str, str]]:
    """(APIs, name of the header, key) of every group of restricted APIs, HTTP's and gRPC's."""
    found = []
    for name, value in given:
        apis, colon, key = value.partition(":")
        known = [part for part in apis.split(",") if part in keys.APIS]
        # Triton itself takes no other API, and a header has no other name
        if name in keys.OPTIONS and colon and known and re.fullmatch(r"[A-Za-z0-9_-]+", key.partition("=")[0]):
            found.append((known, key.partition("=")[0], key.partition("=")[2]))
    return found


def key_headers(argv: Sequence[str]) -> Dict[str, str]:
    """The headers by which a server with this command line answers whatever it is asked over HTTP."""
    return {name: key for _apis, name, key in restricted([option for option in options(argv[1:])[0] if "http" in option[0]])}


def _close(
    given: Sequence[Tuple[str, str]], host: str, variables: Dict[str, Any], left_out: List[str], vault: Dict[str, str]
) -> None:
    """Restricted APIs and their key. The managed server has one key, the one that opened most, and one list for both protocols."""
    groups = restricted(given)
    for name, value in given:
        unknown = [part for part in value.partition(":")[0].split(",") if part not in keys.APIS] if name in keys.OPTIONS else []
        if unknown:
            # Without a colon it may be a key
            listed = ", ".join(part for part in unknown if ":" in value and OPTION.fullmatch(part)) or "something else"
            left_out.append(f"--{name} of {listed}: the managed server closes only {', '.join(keys.APIS)}")
    if not groups:
        left_out.append(
            "no key: the managed server asks for one (triton_server_restricted_apis), clients that load models, share memory "
            "or set traces and logs have to send it"
        )
        return
    groups.sort(key=lambda group: ("model-repository" not in group[0], -len(group[0])))
    _apis, name, key = groups[0]
    variables["triton_server_restricted_apis"] = sorted({api for apis, _name, _key in groups for api in apis})
    variables["triton_server_api_key_name"] = name.lower()
    variables["triton_server_api_key"] = to_vault(host, "triton_server_api_key", key, vault)
    others = sorted({other for _apis, other, value in groups if (other, value) != (name, key)})
    if others:
        left_out.append(f"another key in {', '.join(others)}: the managed server has one, in the header {name}")


def carry(
    given: Sequence[Tuple[str, str]], host: str, variables: Dict[str, Any], left_out: List[str], vault: Dict[str, str]
) -> None:
    """tritonserver's options; those without a variable of their own go on as they are."""
    # Triton's own default, which is not the role's
    variables["triton_server_model_control_mode"] = "none"
    extra: List[str] = []
    for name, value in given:
        if name in VARIABLES:
            variable, kind = VARIABLES[name]
            truth = value.lower() in ("true", "1")
            variables[variable] = (
                truth if kind is bool else int(value) if value.isdecimal() else int(truth) if kind is int else value
            )
        elif name == "disable-auto-complete-config" or (name == "strict-model-config" and value.lower() in ("true", "1")):
            variables["triton_server_auto_complete_config"] = False
        elif name in DROPPED:
            if value.lower() != "false":
                left_out.append(f"--{name}={value}: {DROPPED[name]}")
        elif is_secret(name, value) and "restricted" not in name:
            extra.append(Template(f"--{name}=" + to_vault(host, name, value, vault)))
        elif "restricted" not in name and name not in ELSEWHERE and name != "strict-model-config":
            extra.append(f"--{name}" if name in BARE else f"--{name}={value}")
    if extra:
        variables["triton_server_extra_args"] = extra
    _close(given, host, variables, left_out, vault)
