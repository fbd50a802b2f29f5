# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The API key of a host's server: the restricted APIs, the command line that reads the key, and the checks of the variables.

The host generates and keeps the key. Triton accepts a key only on its command line, so the container starts a shell that reads the
key and then executes tritonserver.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils.triton.keys import (
    API_GROUPS,
    FILE,
    RESTRICT_OPTIONS,
    SHELL,
    fingerprint,
)
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.other_hosts import parsed_ip

# The APIs that checks by inference use
USED_BY_CHECKS = frozenset(("health", "metadata", "inference", "model-config", "statistics"))
CONTROL = "model-repository"
# The minimum length of a key that an operator sets. The fingerprint of a key is not secret, so a short key could be guessed from
# its fingerprint.
MIN_KEY_LENGTH = 12
# In this mode of model control, a client that is allowed to load models can send a model with its own code.
EXPLICIT = "explicit"
START = (
    f'key=$(cat {FILE}) && [ -n "$key" ] || {{ echo "tritonserver: found no key in {FILE}, wanted that of this host: run '
    'playbooks/site.yml" >&2; exit 1; }; exec "$@" '
)


def desired(variables: Mapping[str, Any]) -> Optional[Dict[str, str]]:
    """Return {"name": name of the header, "path": file of the key on the host}, or None if no API is restricted."""
    if not variables["triton_server_restricted_apis"]:
        return None
    return {"name": str(variables["triton_server_api_key_name"]), "path": FILE}


def digest(variables: Mapping[str, Any]) -> Optional[str]:
    """Return the fingerprint of the operator's own key, or None if the host generates the key or no API is restricted."""
    key = str(variables["triton_server_api_key"])
    return fingerprint(key) if key and variables["triton_server_restricted_apis"] else None


def for_checks(variables: Mapping[str, Any]) -> Optional[Dict[str, str]]:
    """Return the result of desired() if checks by inference use a restricted API, else None."""
    return desired(variables) if USED_BY_CHECKS & set(variables["triton_server_restricted_apis"]) else None


def command(variables: Mapping[str, Any], line: List[str]) -> List[str]:
    """Return the command line of a server that requires the key of its host."""
    apis = variables["triton_server_restricted_apis"]
    if not apis:
        return line
    listed = ",".join(api for api in API_GROUPS if api in apis)
    arguments = " ".join(f'"--{option}={listed}:{variables["triton_server_api_key_name"]}=$key"' for option in RESTRICT_OPTIONS)
    return ["sh", "-c", START + arguments, SHELL, *line]


def reasons(variables: Mapping[str, Any]) -> List[str]:
    """Return the reasons why the variables of the key, of the restricted APIs or of open model control are refused."""
    messages: List[str] = []
    apis = variables["triton_server_restricted_apis"]
    name, key = str(variables["triton_server_api_key_name"]), str(variables["triton_server_api_key"])
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name):
        expected = "the name of a header, of lower case letters, digits and hyphens"
        messages.append(f"triton_server_api_key_name is {name}, expected {expected}")
    if key and not re.fullmatch(f"[!-~]{{{MIN_KEY_LENGTH},}}", key):
        actual = f"shorter than {MIN_KEY_LENGTH} characters, or has blanks or letters beyond ASCII"
        messages.append(f"triton_server_api_key is {actual}. Choose a random key, or leave it out and each host makes its own")
    key_options = tuple(f"--{option}" for option in RESTRICT_OPTIONS)
    arguments = map(str, variables["triton_server_extra_args"])
    options = ", ".join(argument.partition("=")[0] for argument in arguments if argument.startswith(key_options))
    if options:
        todo = "Use triton_server_restricted_apis, triton_server_api_key and triton_server_api_key_name"
        messages.append(f"triton_server_extra_args has {options}, whose key would be in the plan and the container. {todo}")
    if (
        variables["triton_server_model_control_mode"] == EXPLICIT
        and CONTROL not in apis
        and not loopback(str(variables["triton_server_listen_address"]))
        and not variables["triton_server_allow_open_control"]
    ):
        messages.append(
            "triton_server_restricted_apis has no {}, in mode explicit and with ports at {}: a client that reaches them runs its "
            "own code as root by one request to load. Add it, listen at 127.0.0.1, or set "
            "triton_server_allow_open_control: true".format(CONTROL, variables["triton_server_listen_address"] or "every address")
        )
    return messages


def loopback(address: str) -> bool:
    """Return True if only the host itself can reach the address."""
    ip = parsed_ip(address.strip("[]"))
    return address == "localhost" if ip is None else ip.is_loopback
