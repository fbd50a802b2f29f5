# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The command line of a server that was started manually, translated into the project's variables."""

from __future__ import annotations

import re
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.redact import MARK, Redactor
from ansible_collections.npufleet.triton.plugins.module_utils.triton import keys
from ansible_collections.npufleet.triton.plugins.module_utils.triton.options import OPTION, OPTIONS_WITHOUT_VALUE, restricted
from ansible_collections.npufleet.triton.plugins.plugin_utils.run.host_text import Template

# {option: (variable, type)}
VARIABLES = {
    "model-control-mode": ("triton_server_model_control_mode", str),
    "repository-poll-secs": ("triton_server_poll_seconds", int),
    "exit-on-error": ("triton_server_exit_on_error", bool),
    "exit-timeout-secs": ("triton_server_exit_timeout", int),
    "allow-http": ("triton_server_allow_http", bool),
    "allow-grpc": ("triton_server_allow_grpc", bool),
    "allow-metrics": ("triton_server_allow_metrics", bool),
    "allow-cpu-metrics": ("triton_server_allow_cpu_metrics", bool),
    "metrics-interval-ms": ("triton_server_metrics_interval", int),
    "log-verbose": ("triton_server_log_verbose", int),
    "log-format": ("triton_server_log_format", str),
}
SERVICES = {"http": 8000, "grpc": 8001, "metrics": 8002}
# Options that translation.py translates, or that have no variable because the project sets them
TRANSLATED_OPTIONS = (
    *("model-repository", "model-store", "load-model"),
    *(f"{service}-{setting}" for service in SERVICES for setting in ("port", "address")),
)
# {option that is left out: reason}
DROPPED_OPTIONS = {
    "allow-gpu-metrics": "a host with NPUs has no metrics of GPUs",
    "log-file": "the managed server writes to the log of its container (docker logs)",
}
SECRET_NAME = re.compile(r"PASS|TOKEN|SECRET|CREDENTIAL|(?<![A-Z])(KEY|AUTH|PAT)(?![A-Z])|APIKEY", re.IGNORECASE)


class Translation(NamedTuple):
    """A translated container. `left_out` lists the options without a variable and the reasons. `vault` is {variable: secret}."""

    variables: Dict[str, Any]
    left_out: List[str]
    vault: Dict[str, str]


def is_secret(name: str, value: str) -> bool:
    """Return True if the value can be a secret, which an inventory must not contain in clear text."""
    looks_secret = SECRET_NAME.search(name) or MARK in Redactor([]).clean(f"{name}={value}")
    return bool(looks_secret) and not re.fullmatch(r"|\d{1,4}|true|false|/[\w./-]+", value)


def to_vault(host: str, name: str, value: str, vault: Dict[str, str]) -> Template:
    """Add the value to the vault and return a template with the name of its variable. Different values get different variables."""
    first = variable = "vault_" + re.sub(r"\W+", "_", f"{host}_{name}", flags=re.ASCII).lower()
    while vault.get(variable, value) != value:
        variable = f"{first}_{len(vault)}"
    vault[variable] = value
    return Template("{{ " + variable + " }}")


def translate_arguments(options: Sequence[Tuple[str, str]], host: str, translation: Translation) -> None:
    """Translate the options of tritonserver. Options without a variable become extra arguments."""
    variables = translation.variables
    # Without the option --model-control-mode, Triton uses this mode. The role has another default, so the variable is always set.
    variables["triton_server_model_control_mode"] = "none"
    extra: List[str] = []
    for name, value in options:
        is_true = value.lower() in ("true", "1")
        if name in VARIABLES:
            variable, kind = VARIABLES[name]
            number = int(value) if value.isdecimal() else int(is_true)
            variables[variable] = is_true if kind is bool else number if kind is int else value
        elif name == "disable-auto-complete-config" or (name == "strict-model-config" and is_true):
            variables["triton_server_auto_complete_config"] = False
        elif name in DROPPED_OPTIONS:
            if value.lower() != "false":
                translation.left_out.append(f"--{name}={value}: {DROPPED_OPTIONS[name]}")
        elif "restricted" in name or name in TRANSLATED_OPTIONS or name == "strict-model-config":
            continue
        elif is_secret(name, value):
            extra.append(Template(f"--{name}=" + to_vault(host, name, value, translation.vault)))
        else:
            extra.append(f"--{name}" if name in OPTIONS_WITHOUT_VALUE else f"--{name}={value}")
    if extra:
        variables["triton_server_extra_args"] = extra
    _restricted_apis(options, host, translation)


def _restricted_apis(options: Sequence[Tuple[str, str]], host: str, translation: Translation) -> None:
    """Translate the restricted APIs. The managed server has one list of APIs for HTTP and gRPC, and one key for all APIs."""
    variables, left_out, vault = translation
    groups = restricted(options)
    for name, value in (option for option in options if option[0] in keys.RESTRICT_OPTIONS):
        unknown = [part for part in value.partition(":")[0].split(",") if part not in keys.API_GROUPS]
        if unknown:
            # A text without a colon can be a key, so it is not shown.
            listed = ", ".join(part for part in unknown if ":" in value and OPTION.fullmatch(part)) or "another API"
            left_out.append(f"--{name} of {listed}: the managed server can only restrict {', '.join(keys.API_GROUPS)}")
    if not groups:
        left_out.append(
            "no key: the managed server requires a key from clients that load models, share memory, or set traces and logs "
            "(triton_server_restricted_apis)"
        )
        return
    groups.sort(key=lambda group: ("model-repository" not in group[0], -len(group[0])))
    _apis, name, key = groups[0]
    variables["triton_server_restricted_apis"] = sorted({api for apis, _name, _key in groups for api in apis})
    variables["triton_server_api_key_name"] = name.lower()
    variables["triton_server_api_key"] = to_vault(host, "triton_server_api_key", key, vault)
    others = sorted({other for _apis, other, value in groups if (other, value) != (name, key)})
    if others:
        left_out.append(f"another key in {', '.join(others)}: the managed server has one key, in the header {name}")
