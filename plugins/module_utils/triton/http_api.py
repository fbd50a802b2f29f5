"""Triton's HTTP API, asked with the standard library alone."""

from __future__ import annotations

import http.client
import json
import re
from typing import Any, Dict, Optional, Tuple

# What the path of a request cannot hold as it is
_UNASKABLE = re.compile(r"[\x00-\x20\x7f/?#\ud800-\udfff]")
NAMELESS = "its name has a space, a control character, / ? or #, which no request over HTTP can carry"


def netloc(address: str, port: Any) -> str:
    """Address and port as URLs and the engine have them: an IPv6 address in brackets, no address as nothing."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


class HttpConnection(http.client.HTTPConnection):
    """A connection whose paths may hold a model's name: Triton takes its bytes as they are, and quoted it would be another name."""

    def _encode_request(self, request: str) -> bytes:
        return request.encode()


def can_be_asked(model: str) -> bool:
    """Whether a request's path can hold the name of this model; where it cannot, `NAMELESS` says why."""
    return bool(model) and not _UNASKABLE.search(model)


def http_json(
    address: str,
    port: int,
    method: str,
    resource: str,
    timeout: float = 5.0,
    body: str = "",
    headers: Optional[Dict[str, str]] = None,
) -> Tuple[int, Any]:
    """Status and JSON body of one HTTP exchange; status 0 with the reason when there was none."""
    connection = HttpConnection(address, port, timeout=timeout)
    try:
        connection.request(method, resource, body=body or None, headers=headers or {})
        answer = connection.getresponse()
        raw = answer.read()
    except (OSError, http.client.HTTPException) as error:
        return 0, str(error)
    finally:
        connection.close()
    words = raw.decode("utf-8", "replace")
    try:
        found = json.loads(words) if raw else None
        if "\\ud" in words.lower():
            # Half a character, which nobody could write down
            found = json.loads(json.dumps(found, ensure_ascii=False).encode("utf-8", "replace"))
        return answer.status, found
    except (ValueError, RecursionError):
        return answer.status, words[:500]
