# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Errors of tritonclient: their message, their status, and their cause (server or connection)."""

from __future__ import annotations

# {gRPC status: HTTP status that Triton returns for the same error}
STATUS = {
    "INVALID_ARGUMENT": "400", "NOT_FOUND": "404", "INTERNAL": "500", "UNIMPLEMENTED": "501", "UNAVAILABLE": "503",
    "DEADLINE_EXCEEDED": "",
}  # fmt: skip
# Beginnings of tritonclient's messages for an HTTP error without Triton's JSON, such as an error of a proxy
WITHOUT_JSON = ("client received an empty response", "an exception occurred in the client", "Parse error at offset")


def status_of(error: Exception) -> str:
    """Return the status of an error of tritonclient, such as 404 or NOT_FOUND, or an empty text for other errors."""
    status = getattr(error, "status", None)
    return str(status() or "").replace("StatusCode.", "") if callable(status) else ""


def timed_out(error: Exception) -> bool:
    """Return True if the answer did not arrive in time."""
    return isinstance(error, TimeoutError) or status_of(error) == "DEADLINE_EXCEEDED"


def not_served(error: Exception) -> bool:
    """Return True if the server does not serve the model or version.

    Older servers report this over HTTP with status 400, not 404, so the message is checked, too.
    """
    message = reason(error)
    return (status_of(error) in ("404", "NOT_FOUND") and not message.startswith(WITHOUT_JSON)) or "unknown model" in message


def of_connection(error: Exception) -> bool:
    """Return True if the connection may have caused the error."""
    is_closed = isinstance(error, OSError) or type(error).__name__ in ("HTTPConnectionClosed", "HTTPParseError")
    return is_closed or status_of(error) in ("UNAVAILABLE", "DEADLINE_EXCEEDED")


def reason(error: Exception) -> str:
    """Return an error as one line: its message, or its status or type if the error has no message."""
    message = getattr(error, "message", None)
    if callable(message):
        return one_line(str(message())) or status_of(error) or type(error).__name__
    kind = "" if isinstance(error, (OSError, ValueError)) and str(error) else type(error).__name__ + ": "
    return one_line(kind + str(error)).strip(": ") or type(error).__name__


def one_line(text: str) -> str:
    """Return a text with one space instead of each run of spaces and line breaks."""
    return " ".join(text.split())
