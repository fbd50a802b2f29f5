# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Checks of image registries through the engine, which has its own certificate authorities, proxies and insecure registries.

A direct request to a registry (http_probe.py) is not enough: it can fail although the engine reaches the registry.
"""

from __future__ import annotations

import base64
import json
import re
import urllib.parse
from typing import Any, Mapping, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine
from ansible_collections.npufleet.triton.plugins.module_utils.plan import short

# Messages about a rejected login. They are compared because the HTTP status for a rejected login differs between engines.
REFUSED = re.compile(r"\b40[13]\b|unauthorized|denied|no basic auth|incorrect username or password", re.IGNORECASE)
# The registry to which Docker sends a login that names no registry
DOCKER_HUB = "https://index.docker.io/v1/"


def supplier_error(entry: Mapping[str, Any], passwords: Mapping[str, str]) -> Optional[str]:
    """Return the reason why the engine cannot use a supplier (an image or a repository in a registry), or None if it can.

    `entry` describes the supplier: {"name", "address", "registry", "user", "todo", "pushes"}. If `pushes` is true, `address` is the
    repository to which an image will be pushed. Otherwise it is the image to pull, with its digest. `todo` is the next step of the
    operator. If no engine runs yet, the function returns None.
    """
    user, password = str(entry.get("user") or ""), passwords.get(entry["name"], "")
    try:
        reason = _reason(entry, user, password)
    except OSError as error:
        if not Engine().is_running():
            return None
        reason = _unreachable(str(error) or "no response in time")
    # The engine can repeat the password in its message, so the password is masked.
    reason = reason.replace(password, "***") if reason and password else reason
    return f"{entry['name']} {entry['address']}: {reason}: {entry['todo']}" if reason else None


def _unreachable(answer: str) -> str:
    return f"this host's engine does not reach the registry ({answer})"


def _reason(entry: Mapping[str, Any], user: str, password: str) -> Optional[str]:
    """Return the reason why the engine cannot pull the image or, for a push, why the registry rejects the login."""
    login = {"username": user, "password": password, "serveraddress": entry["registry"] or DOCKER_HUB} if user else {}
    if entry["pushes"] and login:
        # The right to push is not checked, because only a push proves it.
        status, message = _request("POST", "/auth", login)
    else:
        header = base64.urlsafe_b64encode(json.dumps(login).encode()).decode()
        resource = "/distribution/{}/json".format(urllib.parse.quote(entry["address"], safe="/:@"))
        status, message = _request("GET", resource, headers={"X-Registry-Auth": header})
        if status == 404:
            return None if entry["pushes"] else f"the image of the lock file is not in the registry ({message})"
    if 200 <= status < 300:
        return None
    if REFUSED.search(message):
        return f"it refuses the login of {user} ({message})" if user else f"it requires a login, and none is set ({message})"
    return _unreachable(message)


def _request(method: str, resource: str, body: Any = None, headers: Optional[Mapping[str, str]] = None) -> Tuple[int, str]:
    """Return (status, error message in one line) of an engine's response."""
    status, raw = Engine().exchange(method, resource, body, headers=headers)
    text = raw.decode("utf-8", "replace")
    try:
        data = shapes.parse(text)
    except ValueError:
        data = None
    return status, short(str(data["message"]) if isinstance(data, dict) and "message" in data else text, 200)
