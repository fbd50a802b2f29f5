"""A registry, asked by the engine: with its own trust, its own proxies and its own list of registries without TLS.

Asked directly (http_probe.py) a registry would be refused that the engine gets along with. Changes nothing.
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

# How engines and registries say that a login is not taken, whatever status it comes with
REFUSED = re.compile(r"\b40[13]\b|unauthorized|denied|no basic auth|incorrect username or password", re.IGNORECASE)
# What an engine hands a login to where no registry is named
DOCKER_HUB = "https://index.docker.io/v1/"


def supplier(entry: Mapping[str, Any], passwords: Mapping[str, str]) -> Optional[str]:
    """Ask one supplier: {"what", "address", "registry", "user", "todo", "pushes"}; passwords by `what`. None, or one sentence.

    `address` is an image with its digest; with `pushes` it is the repository that one will be pushed to. None too without an
    engine, which is not there yet, and will be asked once it is.
    """
    login = (str(entry.get("user") or ""), passwords.get(entry["what"], ""))
    try:
        why = (_login if entry["pushes"] and login[0] else _image)(entry, login)
    except OSError as error:
        if not Engine().answers():
            return None
        why = f"found no answer ({error or 'none in time'}), wanted the registry reachable for this host's engine"
    # An engine that repeats a password is not to be helped by ours
    why = why.replace(login[1], "***") if why and login[1] else why
    return f"{entry['what']} {entry['address']}: {why}: {entry['todo']}" if why else None


def _login(entry: Mapping[str, Any], login: Tuple[str, str]) -> Optional[str]:
    """Whether the registry takes the login; whether it may push there, a push alone tells."""
    asked = {"username": login[0], "password": login[1], "serveraddress": entry["registry"] or DOCKER_HUB}
    return _judged(*_asked("POST", "/auth", asked), login)


def _image(entry: Mapping[str, Any], login: Tuple[str, str]) -> Optional[str]:
    """Whether the image is there for this login; of a repository that is to be pushed to, whether its registry answers."""
    auth = {"username": login[0], "password": login[1], "serveraddress": entry["registry"] or DOCKER_HUB} if login[0] else {}
    header = base64.urlsafe_b64encode(json.dumps(auth).encode()).decode()
    resource = "/distribution/{}/json".format(urllib.parse.quote(entry["address"], safe="/:@"))
    status, said = _asked("GET", resource, headers={"X-Registry-Auth": header})
    if status == 404:
        return None if entry["pushes"] else f"found no such image there ({said}), wanted the one that the lock file pins"
    return _judged(status, said, login)


def _judged(status: int, said: str, login: Tuple[str, str]) -> Optional[str]:
    """What an engine's answer says of a registry."""
    if 200 <= status < 300:
        return None
    if REFUSED.search(said):
        words = f"it refuses the login of {login[0]}" if login[0] else "it wants a login, and none is set"
        return f"found that {words} ({said}), wanted one that it takes"
    return f"found no answer ({said}), wanted the registry reachable for this host's engine"


def _asked(method: str, resource: str, body: Any = None, headers: Optional[Mapping[str, str]] = None) -> Tuple[int, str]:
    """(status, what the engine says of an error, in one line)."""
    status, raw = Engine().exchange(method, resource, body, headers=headers)
    text = raw.decode("utf-8", "replace")
    try:
        said = shapes.parse(text)
    except ValueError:
        said = None
    return status, short(str(said["message"]) if isinstance(said, dict) and "message" in said else text, 200)
