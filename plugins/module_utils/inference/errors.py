"""Errors of tritonclient: what they say, and whose they are."""

from __future__ import annotations

from typing import Tuple

# Status of an error as gRPC names it, and what Triton answers over HTTP
STATUS = {
    "INVALID_ARGUMENT": "400", "NOT_FOUND": "404", "INTERNAL": "500", "UNIMPLEMENTED": "501", "UNAVAILABLE": "503",
    "DEADLINE_EXCEEDED": "",
}  # fmt: skip
# How tritonclient begins what it says of an HTTP status without Triton's JSON, as proxies send it
CLIENTS_WORDS = ("client received an empty response", "an exception occurred in the client", "Parse error at offset")


def status_of(error: Exception) -> str:
    """Status of an error of tritonclient, such as 404 or NOT_FOUND, empty for any other."""
    status = getattr(error, "status", None)
    return str(status() or "").replace("StatusCode.", "") if callable(status) else ""


def timed_out(error: Exception) -> bool:
    """Whether an answer did not come in time."""
    return isinstance(error, TimeoutError) or status_of(error) == "DEADLINE_EXCEEDED"


def not_served(error: Exception) -> bool:
    """Whether a server says that it does not serve the model, or its version: over HTTP older ones say so with the status 400."""
    words = reason(error)
    return (status_of(error) in ("404", "NOT_FOUND") and not words.startswith(CLIENTS_WORDS)) or "unknown model" in words


def of_connection(error: Exception) -> bool:
    """Whether an error may be the connection's, and not the server's answer."""
    closed = isinstance(error, OSError) or type(error).__name__ in ("HTTPConnectionClosed", "HTTPParseError")
    return closed or status_of(error) in ("UNAVAILABLE", "DEADLINE_EXCEEDED")


def reason(error: Exception) -> str:
    """An error as one line: Triton's own words, or what went wrong on the way to them."""
    message = getattr(error, "message", None)
    if callable(message):
        return _line(str(message())) or status_of(error) or type(error).__name__
    kind = "" if isinstance(error, (OSError, ValueError)) and str(error) else type(error).__name__ + ": "
    return _line(kind + str(error)).strip(": ") or type(error).__name__


def _natural(text: str) -> Tuple[int, str]:
    """Numbers in their own order."""
    return len(text), text


def _line(text: str) -> str:
    return " ".join(text.split())
