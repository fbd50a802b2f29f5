# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Requests to Triton's HTTP API with the standard library."""

from __future__ import annotations

import json
import re
from typing import Any, Dict, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import exchange, shapes

# Seconds of an exchange whose caller names none
SECONDS = 5.0
# What the path of a request cannot hold as it is
_UNASKABLE = re.compile(r"[\x00-\x20\x7f/?#\ud800-\udfff]")
NAMELESS = "its name has a space, a control character, / ? or #, which no request over HTTP can carry"


def netloc(address: str, port: Any) -> str:
    """Return address and port as URLs and the engine have them: an IPv6 address in brackets, no address as nothing."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def can_be_asked(model: str) -> bool:
    """Return True if the path of a request can hold the name of this model. If not, `NAMELESS` is the reason."""
    return bool(model) and not _UNASKABLE.search(model)


def http_bytes(
    address: str,
    port: int,
    method: str,
    resource: str,
    timeout: Optional[float] = None,
    body: str = "",
    headers: Optional[Dict[str, str]] = None,
    size: Optional[int] = None,
) -> Tuple[int, bytes]:
    """Return status and body of one exchange, of at most `size` bytes. Raises OSError, and exchange.TooLong for a larger body."""
    framed = None if size is None else exchange.LINES * exchange.LINE + exchange.FRAMING * size
    budget = exchange.Budget(timeout or SECONDS, framed)
    with exchange.connect(address, port, budget) as connected:
        host = {"Host": netloc(address, port), **(headers or {})}
        return exchange.exchange(connected, method, resource, host, body.encode() or None, budget, size=size)


def http_json(
    address: str,
    port: int,
    method: str,
    resource: str,
    timeout: Optional[float] = None,
    body: str = "",
    headers: Optional[Dict[str, str]] = None,
    size: Optional[int] = None,
) -> Tuple[int, Any]:
    """Return status and data of one exchange, with text for a body that is not JSON, and status 0 with the reason if it failed."""
    try:
        status, raw = http_bytes(address, port, method, resource, timeout, body, headers, size)
    except OSError as error:
        return 0, str(error)
    return status, parsed(raw, size)


def parsed(raw: bytes, size: Optional[int] = None) -> Any:
    """Return the data of a body, its first 500 characters if it is not JSON, None if it is empty."""
    text = raw.decode("utf-8", "replace")
    try:
        data = shapes.parse(text, size or shapes.SIZE) if raw else None
        if "\\ud" in text.lower():
            # Half of a surrogate pair cannot be written to a file.
            data = json.loads(json.dumps(data, ensure_ascii=False).encode("utf-8", "replace"))
        return data
    except ValueError:
        return text[:500]
