"""The command line of tritonserver: read, and said in the project's variables."""

from __future__ import annotations

import posixpath
import re
from typing import Any, Dict, List, Mapping, Sequence, Tuple

SERVER = "tritonserver"
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
    *(one + "-port" for one in SERVICES),
    *(one + "-address" for one in SERVICES),
)
DROPPED = {
    "allow-gpu-metrics": "a host with NPUs has no such metrics, the managed server never asks for them",
    "log-file": "the managed server's log is that of its container (docker logs)",
}
SECRET_NAME = re.compile(r"PASS|TOKEN|SECRET|CREDENTIAL|(?<![A-Z])(KEY|AUTH|PAT)(?![A-Z])|APIKEY", re.IGNORECASE)
SECRET_VALUE = re.compile(r"://[^/@\s]*:[^/@\s]+@")


class Template(str):
    """A value that Ansible is to evaluate. Anything else came out of a container, and is a text whatever stands in it."""


def options(arguments: Sequence[str]) -> Tuple[List[Tuple[str, str]], List[str]]:
    """([(option, value)] of tritonserver's arguments, what is none): `--a=b` and `--a b` are the same."""
    found: List[Tuple[str, str]] = []
    strange: List[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            strange.append(word)
            continue
        name, equals, value = word[2:].partition("=")
        if not equals and name not in BARE:
            value = rest.pop(0) if rest else ""
        found.append((name, value))
    return found, strange


def last(given: Sequence[Tuple[str, str]], name: str, default: str = "") -> str:
    """The value of an option that was given, the last one where it was given twice."""
    return next((value for one, value in reversed(given) if one == name), default)


def repositories(argv: Sequence[str], directory: str) -> List[str]:
    """The model repositories of a command line, as absolute paths inside the container where they are paths."""
    found = [value for name, value in options(argv[1:])[0] if name in ("model-repository", "model-store")]
    return [one if "://" in one else posixpath.normpath(posixpath.join(directory, one)) for one in found]


def idles(config: Mapping[str, Any]) -> bool:
    """Whether the container's own command only keeps it there, so that hands started the server in it: `bash`, `sleep infinity`."""
    command = list(config.get("Cmd") or [])
    if not command:
        return True
    program, rest = posixpath.basename(command[0]), command[1:]
    if program in ("sleep", "tail", "cat"):
        return True
    script = next((one for one in rest if not one.startswith("-")), "")
    return program in ("bash", "sh", "dash", "zsh") and (
        not script or ("-c" in rest and SERVER not in script and ".sh" not in script)
    )


def is_secret(name: str, value: str) -> bool:
    """Whether this is nothing to write into an inventory in clear."""
    return bool(SECRET_NAME.search(name) or SECRET_VALUE.search(value)) and not re.fullmatch(
        r"|\d{1,4}|true|false|/[\w./-]+", value
    )


def to_vault(host: str, name: str, value: str, vault: Dict[str, str]) -> Template:
    variable = "vault_" + re.sub(r"\W+", "_", f"{host}_{name}").lower()
    vault[variable] = value
    return Template("{{ " + variable + " }}")


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
            variables[variable] = truth if kind is bool else int(value) if value.isdigit() else int(truth) if kind is int else value
        elif name == "disable-auto-complete-config" or (name == "strict-model-config" and value.lower() in ("true", "1")):
            variables["triton_server_auto_complete_config"] = False
        elif name in DROPPED:
            if value.lower() != "false":
                left_out.append(f"--{name}={value}: {DROPPED[name]}")
        elif "restricted" in name:
            extra.append(Template(f"--{name}=" + to_vault(host, name, value, vault)))
        elif name not in ELSEWHERE and name != "strict-model-config":
            extra.append(f"--{name}" if name in BARE else f"--{name}={value}")
    if extra:
        variables["triton_server_extra_args"] = extra
