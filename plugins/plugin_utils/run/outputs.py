# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Files that runs write on the controller."""

from __future__ import annotations

import os


def write(path: str, text: str) -> None:
    """Write a file atomically, readable only by its owner. Raises OSError."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    draft = f"{path}.{os.getpid()}"
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as sink:
        sink.write(text)
    os.replace(draft, path)
