# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Refusal of logins in the values of an inventory.

A login would reach command lines, lists of package sources and messages of other programs, which all users of a host can read.
Variables with `no_log`, or with `secret` in bounds.BOUNDS, may contain secrets and are not checked.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, Mapping, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import secret


def _set_login(login: str) -> str:
    return f"set {login}_user and {login}_password instead"


REGISTRY = _set_login("triton_image_registry")
PROXY = "set npufleet_http_proxy and npufleet_https_proxy instead, which may contain logins"
STORE = "set triton_server_cloud_credentials instead"
MIRROR = "name a mirror without a login"
# {variable of an address: the next step if it contains a login}. Keys have the form of the keys in bounds.BOUNDS.
NEXT_STEPS: Dict[str, str] = {
    "rbln_driver_package_url": _set_login("rbln_driver_package"),
    **dict.fromkeys(("triton_image_base_archive", "triton_models[].artefacts[*].url"), _set_login("npufleet_artefact")),
    "triton_image_index_url": _set_login("triton_image_index"),
    "triton_image_extra_index_urls[]": f"{MIRROR}, or make it triton_image_index_url and {_set_login('triton_image_index')}",
    **dict.fromkeys(("triton_image_base", "triton_image_registry", "triton_image_plain_base", "npufleet_image"), REGISTRY),
    **dict.fromkeys((f"npufleet_{name}[*].triton.image" for name in ("extra_releases", "release_rows")), REGISTRY),
    **dict.fromkeys(("model_compile_image", "inference_check_image", "triton_image_name"), REGISTRY),
    **dict.fromkeys(("triton_image_delivery_repository", "triton_image_delivery_registry"), _set_login("triton_image_delivery")),
    **dict.fromkeys(
        ("rbln_driver_toolkit_repository", "rbln_driver_toolkit_key_url"),
        f"{MIRROR}, or install the toolkit yourself and set rbln_driver_toolkit_repository to an empty text",
    ),
    "docker_engine_registry_mirrors[]": f"{MIRROR}, or name it in triton_image_base and {REGISTRY}",
    "triton_image_pip_options[]": f"{PROXY}; for an index {_set_login('triton_image_index')}",
    "npufleet_no_proxy[]": PROXY,
    "model_repository_s3_endpoint": "set model_repository_s3_access_key and model_repository_s3_secret_key instead",
    "model_repository_gs_endpoint": "set model_repository_gs_credentials instead",
    **dict.fromkeys(("triton_models[].repository", "triton_server_model_repositories[]"), STORE),
    **dict.fromkeys(("inference_check_address", "npufleet_address"), "set inference_check_headers instead"),
}
# The next step for a login in any other variable
DEFAULT_NEXT_STEP = "remove it, and pass it in a variable that is kept in Ansible Vault and in no output"
# An address that begins with `user@`, but not an image reference with a digest
USER = re.compile(r"\s*[^\s/@]+@(?!sha(?:256|512):)")
# The maximum number of texts, lists and maps in a value that are checked
MAX_PARTS = 100000


def refusal(where: str, variable: str, value: Any) -> str:
    """Return the error of a value that contains a login at any depth, or "". The error does not show the value.

    `where` names the value in the message, `variable` is its key in NEXT_STEPS.
    """
    next_step = NEXT_STEPS.get(variable)
    for location, text in _texts(where, value):
        if secret.has_login(text) or (next_step and variable != "triton_image_pip_options[]" and USER.match(text)):
            todo = next_step or DEFAULT_NEXT_STEP
            return f"{location} contains a login, which command lines would show. {todo[0].upper()}{todo[1:]}."
    return ""


def _texts(where: str, value: Any) -> Iterator[Tuple[str, str]]:
    """Yield (location, text) for each text in a value, including the keys of maps."""
    pending, count = [(where, value)], 0
    while pending and count < MAX_PARTS:
        location, entry = pending.pop()
        count += 1
        if isinstance(entry, str):
            yield location, entry
        elif isinstance(entry, Mapping):
            pending += [(location, str(key)) for key in entry]
            pending += [(f"{location}[{key if not secret.has_login(str(key)) else '***'}]", part) for key, part in entry.items()]
        elif isinstance(entry, (list, tuple)):
            pending += [(f"{location}[{number}]", part) for number, part in enumerate(entry)]
