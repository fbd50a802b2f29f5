"""Logins in the values of an inventory: found by what a value looks like, and told by where the login belongs.

A value with a login reaches command lines, lists of package sources and messages of other programs, which all people of a host may
read. Variables that may hold secrets (`no_log`, bounds.BOUNDS with `secret`) are left out. Controller only.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, Mapping, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import secret


def _instead(login: str) -> str:
    return f"set {login}_user and {login}_password instead"


REGISTRY, PROXY = _instead("triton_image_registry"), "set npufleet_http_proxy and npufleet_https_proxy instead, which may have one"
MIRROR = "name a mirror that asks for none"
HEADERS = "set inference_check_headers instead"
STORE = "set triton_server_cloud_credentials instead"
# What to do about a login in one of these variables, named as in bounds.BOUNDS; the values are addresses
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
# What holds no address: a login in it is one by chance, in an address of an option
ANY = "take it out, and give it by a variable that is kept in Ansible Vault and in no output"
# An address that begins with its user; an image may have a digest there
USER = re.compile(r"\s*[^\s/@]+@(?!sha(?:256|512):)")
# Values in a value that are looked at
MOST = 100000


def refusal(where: str, variable: str, value: Any) -> str:
    """Return why a value is refused that has a login, at any depth; empty where it has none. The value is not in it.

    `where` names the value in a message, `variable` as INSTEAD does.
    """
    instead = INSTEAD.get(variable)
    for place, text in _texts(where, value):
        if secret.has_login(text) or (instead and variable not in ("triton_image_pip_options[]",) and USER.match(text)):
            return f"{place} has a login in it, which a command line would show: {instead or ANY}"
    return ""


def _texts(where: str, value: Any) -> Iterator[Tuple[str, str]]:
    """Yield (where it is, text) of all texts in a value; keys of maps are texts too."""
    left, seen = [(where, value)], 0
    while left and seen < MOST:
        place, entry = left.pop()
        seen += 1
        if isinstance(entry, str):
            yield place, entry
        elif isinstance(entry, Mapping):
            left += [(place, str(key)) for key in entry]
            left += [(f"{place}[{key if not secret.has_login(str(key)) else '***'}]", part) for key, part in entry.items()]
        elif isinstance(entry, (list, tuple)):
            left += [(f"{place}[{number}]", part) for number, part in enumerate(entry)]
