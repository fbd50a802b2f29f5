# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Files that are on the disk as a whole before they count."""

from __future__ import annotations

import os


def write(path: str, text: str, mode: int = 0o644) -> None:
    """Write a file in one piece, and its directory if that is missing. Raises OSError."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    draft = path + ".new"
    with open(draft, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, mode)) as sink:
        # A run that was killed may have left the draft with another mode.
        os.fchmod(sink.fileno(), mode)
        sink.write(text)
        sink.flush()
        os.fsync(sink.fileno())
    os.replace(draft, path)
