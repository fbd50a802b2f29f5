# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The secrets in the variables of a host."""

from __future__ import annotations

import re
import urllib.parse
from typing import Any, List, Mapping, Set

from ansible_collections.npufleet.triton.plugins.module_utils.redact import RESTRICTED, SIGNED, WEBHOOK, is_headers
from ansible_collections.npufleet.triton.plugins.module_utils.secret import LOGIN, MIN_LENGTH, looks_secret

# A variable whose name ends in this way contains the location of a secret or the name of a login, and not the secret itself.
LOCATION_NAME = re.compile(r"(?<!webhook)_(file|path|dir|url|user|username|name)$", re.IGNORECASE)


def secret_values(variables: Mapping[str, Any]) -> Set[str]:
    """Return the secrets at any depth: the values of variables whose names mark a secret, and logins in addresses."""
    secrets: Set[str] = set()

    def walk(value: Any, secret: bool) -> None:
        if isinstance(value, Mapping):
            for name, part in value.items():
                named_secret = (looks_secret(str(name)) and not LOCATION_NAME.search(str(name))) or is_headers(name, part)
                walk(part, secret or named_secret)
        elif isinstance(value, (list, tuple)):
            for part in value:
                walk(part, secret)
        elif isinstance(value, (str, int, float)) and not isinstance(value, bool):
            text = str(value)
            secrets.update([text] if secret else _logins(text))

    walk(variables, False)
    return {value for value in secrets if len(value) >= MIN_LENGTH}


def _logins(text: str) -> List[str]:
    """Return the passwords and signatures in addresses, and the keys in options of tritonserver."""
    words = [urllib.parse.unquote(match["secret"]).split(":", 1)[-1] for match in LOGIN.finditer(text)]
    for pattern in (RESTRICTED, SIGNED, WEBHOOK):
        words += [urllib.parse.unquote(match["secret"]) for match in pattern.finditer(text)]
    return words
