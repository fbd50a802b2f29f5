# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Lines for the journal, and notifications to systemd."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress

ERROR, WARNING, INFORMATION = 3, 4, 6


def log(message: str, level: int = INFORMATION) -> None:
    """Write one line to standard output with its syslog level, as UTF-8 in every locale."""
    # A line break in the name of a model must not begin a new line of the journal.
    line = "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in message)
    sys.stdout.buffer.write(f"<{level}>{line}\n".encode())
    sys.stdout.buffer.flush()


def notify(state: str) -> None:
    """Send a state, such as READY=1, to systemd, if this process is a unit of type notify."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line, suppress(OSError):
            line.sendto(state.encode(), address.replace("@", "\0", 1) if address.startswith("@") else address)
