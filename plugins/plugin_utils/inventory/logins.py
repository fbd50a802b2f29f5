# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Refusal of logins in the values of an inventory. Controller only.

Such a value would reach command lines, lists of package sources and messages of other programs. All users of a host may read them.
Variables that may contain secrets (`no_log`, bounds.BOUNDS with `secret`) are not checked.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, Mapping, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import secret


def _instead(login: str) -> str:
    return f"set {login}_user and {login}_password instead"


REGISTRY, PROXY = _instead("triton_image_registry"), "set npufleet_http_proxy and npufleet_https_proxy instead, which may have one"
MIRROR = "name a mirror without a login"
HEADERS = "set inference_check_headers instead"
STORE = "set triton_server_cloud_credentials instead"
# {variable of an address, in the form of the keys of bounds.BOUNDS: the next step if it contains a login}
INSTEAD: Dict[str, str] = {
    "rbln_driver_package_url": _instead("rbln_driver_package"),
    **dict.fromkeys(("triton_image_base_archive", "triton_models[].artefacts[*].url"), _instead("npufleet_artefact")),
    "triton_image_index_url": _instead("triton_image_index"),
    "triton_image_extra_index_urls[]": f"{MIRROR}, or make it triton_image_index_url and {_instead('triton_image_index')}",
    **dict.fromkeys(("triton_image_base", "triton_image_registry", "triton_image_plain_base", "npufleet_image"), REGISTRY),
    **dict.fromkeys((f"npufleet_{name}[*].triton.image" for name in ("extra_releases", "release_rows")), REGISTRY),
    **dict.fromkeys(("model_compile_image", "inference_check_image", "triton_image_name"), REGISTRY),
    **dict.fromkeys(("triton_image_delivery_repository", "triton_image_delivery_registry"), _instead("triton_image_delivery")),
    **dict.fromkeys(
        ("rbln_driver_toolkit_repository", "rbln_driver_toolkit_key_url"),
        f"{MIRROR}, or install the toolkit yourself and set rbln_driver_toolkit_repository to an empty text",
    ),
    "docker_engine_registry_mirrors[]": f"{MIRROR}, or name it in triton_image_base and {REGISTRY}",
    "triton_image_pip_options[]": f"{PROXY}; for an index {_instead('triton_image_index')}",
    "npufleet_no_proxy[]": PROXY,
    "model_repository_s3_endpoint": "set model_repository_s3_access_key and model_repository_s3_secret_key instead",
    "model_repository_gs_endpoint": "set model_repository_gs_credentials instead",
    **dict.fromkeys(("triton_models[].repository", "triton_server_model_repositories[]"), STORE),
    **dict.fromkeys(("inference_check_address", "npufleet_address"), HEADERS),
}
# The next step for a login in any other variable
ELSEWHERE = "remove it, and pass it in a variable that is kept in Ansible Vault and in no output"
# An address that begins with `user@`. The @ before the digest of an image does not count.
USER = re.compile(r"\s*[^\s/@]+@(?!sha(?:256|512):)")
# The most parts of a value that are checked
MOST = 100000


def refusal(where: str, variable: str, value: Any) -> str:
    """Return the error of a value that contains a login at any depth, or "". The error does not show the value.

    `where` names the value in the message, `variable` is its key in INSTEAD.
    """
    instead = INSTEAD.get(variable)
    for place, text in _texts(where, value):
        if secret.has_login(text) or (instead and variable != "triton_image_pip_options[]" and USER.match(text)):
            todo = instead or ELSEWHERE
            return f"{place} contains a login, which command lines would show. {todo[0].upper()}{todo[1:]}."
    return ""


def _texts(where: str, value: Any) -> Iterator[Tuple[str, str]]:
    """Yield (place, text) for each text in a value. The keys of maps are texts, too."""
    left, count = [(where, value)], 0
    while left and count < MOST:
        place, entry = left.pop()
        count += 1
        if isinstance(entry, str):
            yield place, entry
        elif isinstance(entry, Mapping):
            left += [(place, str(key)) for key in entry]
            left += [(f"{place}[{key if not secret.has_login(str(key)) else '***'}]", part) for key, part in entry.items()]
        elif isinstance(entry, (list, tuple)):
            left += [(f"{place}[{number}]", part) for number, part in enumerate(entry)]
