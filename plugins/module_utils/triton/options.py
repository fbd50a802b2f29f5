# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The command line of a tritonserver that was started manually: its options, model repositories, keys and address."""

from __future__ import annotations

import posixpath
import re
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.triton import keys
from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import local_address

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
# Options that Triton 24.01 does not have. If an older and a newer option begin with the same prefix, the prefix means the older
# option: a server that has both options refuses the prefix as ambiguous, so the server of this command line has only the older one.
NEWER_OPTIONS = ("allow-client-shm", "enable-peer-access", "http-max-input-size", "model-config-name")
OPTIONS_WITHOUT_VALUE = ("disable-auto-complete-config", "help", "version")
# The name of an option. Names are written into templates, so an argument with other characters is not an option.
OPTION = re.compile(r"[a-z0-9][a-z0-9_-]*")


def options(arguments: Sequence[str]) -> Tuple[List[Tuple[str, str]], List[str]]:
    """Return the (option, value) pairs of tritonserver's arguments, and the arguments that are not options.

    The rules are those of getopt_long: `--a=b` equals `--a b`, a unique prefix stands for its option, and `--` ends the options.
    """
    option_pairs: List[Tuple[str, str]] = []
    others: List[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word[2:].partition("=")
        if word == "--":
            others += rest
            break
        if not word.startswith("--") or not OPTION.fullmatch(name):
            others.append(word)
            continue
        name = full_name(name)
        if not equals and name not in OPTIONS_WITHOUT_VALUE:
            value = rest.pop(0) if rest else ""
        option_pairs.append((name, value))
    return option_pairs, others


def full_name(name: str) -> str:
    """Return the full name of an option from its name or a prefix. An unknown or ambiguous name is returned unchanged."""
    matches = [option for option in NAMES if option.startswith(name)]
    matches = [option for option in matches if option not in NEWER_OPTIONS] or matches
    return matches[0] if name not in NAMES and len(matches) == 1 else name


def last_value(pairs: Sequence[Tuple[str, str]], name: str, default: str = "") -> str:
    """Return the value of the last occurrence of an option, because Triton ignores earlier occurrences."""
    return next((value for entry, value in reversed(pairs) if entry == name), default)


def repositories(argv: Sequence[str], directory: str) -> List[str]:
    """Return the model repositories of a command line. Paths are made absolute; `directory` is the working directory."""
    found = [value for name, value in options(argv[1:])[0] if name in ("model-repository", "model-store")]
    return [entry if "://" in entry else posixpath.normpath(posixpath.join(directory, entry)) for entry in found]


def starts_no_server(config: Mapping[str, Any]) -> bool:
    """Return True if the container's own command starts no server, such as `bash` or `sleep infinity`."""
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


def restricted(pairs: Sequence[Tuple[str, str]]) -> List[Tuple[List[str], str, str]]:
    """Return (APIs, name of the header, key) of each group of restricted APIs, for HTTP and for gRPC."""
    groups = []
    for name, value in pairs:
        apis, colon, key = value.partition(":")
        known_apis = [part for part in apis.split(",") if part in keys.API_GROUPS]
        # Other API names are left out, because Triton refuses them. HTTP allows no other characters in the name of a header.
        if name in keys.RESTRICT_OPTIONS and colon and known_apis and re.fullmatch(r"[A-Za-z0-9_-]+", key.partition("=")[0]):
            groups.append((known_apis, key.partition("=")[0], key.partition("=")[2]))
    return groups


def key_headers(argv: Sequence[str]) -> Dict[str, str]:
    """Return the headers that open all restricted HTTP APIs of a server with this command line."""
    return {name: key for _apis, name, key in restricted([option for option in options(argv[1:])[0] if "http" in option[0]])}


def endpoint(inspect: Mapping[str, Any], argv: Sequence[str]) -> Tuple[str, int]:
    """Return (address, port) at which the host reaches the server's HTTP service, even if the port is not published."""
    pairs = options(argv[1:])[0]
    port = int(last_value(pairs, "http-port", "8000"))
    if inspect["HostConfig"].get("NetworkMode") == "host":
        return local_address(listen_address(pairs, "http")), port
    networks = ((inspect.get("NetworkSettings") or {}).get("Networks") or {}).values()
    addresses = [network.get(key) for key in ("IPAddress", "GlobalIPv6Address") for network in networks]
    return next(filter(None, addresses), "127.0.0.1"), port


def listen_address(pairs: Sequence[Tuple[str, str]], service: str) -> str:
    """Return the value of `--http-address` or another service's option, without the prefix `ipv6:`."""
    return re.sub("^ipv6:", "", last_value(pairs, service + "-address"))
