"""Triton's HTTP API, asked with the standard library alone."""

from __future__ import annotations

import json
import re
from typing import Any, Dict, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.exchange import Budget, connect, exchange

# Seconds of an exchange whose caller names none
SECONDS = 5.0
# What the path of a request cannot hold as it is
_UNASKABLE = re.compile(r"[\x00-\x20\x7f/?#\ud800-\udfff]")
NAMELESS = "its name has a space, a control character, / ? or #, which no request over HTTP can carry"


def netloc(address: str, port: Any) -> str:
    """Address and port as URLs and the engine have them: an IPv6 address in brackets, no address as nothing."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def can_be_asked(model: str) -> bool:
    """Whether a request's path can hold the name of this model; where it cannot, `NAMELESS` says why."""
    return bool(model) and not _UNASKABLE.search(model)


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
    """Status and JSON body of one HTTP exchange, of at most `size` bytes; status 0 with the reason when there was none."""
    told = {"Host": netloc(address, port), **(headers or {})}
    budget = Budget(timeout or SECONDS)
    try:
        with connect(address, port, budget) as connected:
            status, raw = exchange(connected, method, resource, told, body.encode() or None, budget, size=size)
    except OSError as error:
        return 0, str(error)
    words = raw.decode("utf-8", "replace")
    try:
        found = shapes.parse(words, size or shapes.SIZE) if raw else None
        if "\\ud" in words.lower():
            # Half a character, which nobody could write down
            found = json.loads(json.dumps(found, ensure_ascii=False).encode("utf-8", "replace"))
        return status, found
    except ValueError:
        return status, words[:500]
