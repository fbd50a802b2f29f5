# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Requests to Triton's HTTP API with the standard library."""

from __future__ import annotations

import json
import re
from typing import Any, Dict, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import exchange, shapes

# Default time limit of an exchange in seconds
TIMEOUT_SECONDS = 5.0
# Characters that the path of a request cannot contain without percent-encoding, which Triton does not decode
_URL_UNSAFE_CHARACTER = re.compile(r"[\x00-\x20\x7f/?#\ud800-\udfff]")
# The reason why a model with an unsafe name cannot be queried
URL_UNSAFE = "its name has a space, a control character, / ? or #, which no request over HTTP can carry"


def netloc(address: str, port: Any) -> str:
    """Return `address:port` as in URLs, with an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def local_address(listens: str) -> str:
    """Return the address at which a host reaches its server that listens on the address `listens`."""
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(listens, listens)


def is_url_safe(model: str) -> bool:
    """Return True if a URL can contain the name of this model."""
    return bool(model) and not _URL_UNSAFE_CHARACTER.search(model)


def http_bytes(
    address: str,
    port: int,
    method: str,
    resource: str,
    timeout: Optional[float] = None,
    body: str = "",
    headers: Optional[Dict[str, str]] = None,
    *,
    size: Optional[int] = None,
) -> Tuple[int, bytes]:
    """Send a request, and return (status, body). Raises OSError, or exchange.TooLong if the body has more than `size` bytes."""
    received = None if size is None else exchange.MAX_LINES * exchange.MAX_LINE + exchange.FRAMING_FACTOR * size
    budget = exchange.Budget(timeout or TIMEOUT_SECONDS, received)
    with exchange.connect(address, port, budget) as connected:
        host = {"Host": netloc(address, port), **(headers or {})}
        return exchange.exchange(connected, method, resource, host, body.encode() or None, budget, size=size)


def http_json(*request: Any, size: Optional[int] = None, **options: Any) -> Tuple[int, Any]:
    """Send a request as http_bytes does. Return (status, data of `parse_body`), or (0, reason) if the exchange failed."""
    try:
        status, raw = http_bytes(*request, size=size, **options)
    except OSError as error:
        return 0, str(error)
    return status, parse_body(raw, size)


def parse_body(raw: bytes, size: Optional[int] = None) -> Any:
    """Return the data of a JSON body, the first 500 characters of any other body, or None for an empty body."""
    text = raw.decode("utf-8", "replace")
    try:
        data = shapes.parse(text, size or shapes.MAX_SIZE) if raw else None
        if "\\ud" in text.lower():
            # Unpaired surrogates are replaced, because they cannot be written to a file.
            data = json.loads(json.dumps(data, ensure_ascii=False).encode("utf-8", "replace"))
        return data
    except ValueError:
        return text[:500]
