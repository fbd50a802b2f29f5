# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Files that are replaced as a whole: after a crash, a file has either its old or its new content."""

from __future__ import annotations

import os
from typing import Union


def write(path: str, content: Union[str, bytes], mode: int = 0o644) -> None:
    """Replace a file as a whole, and create its directory if it is missing. Raises OSError."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    draft = path + ".new"
    with open(draft, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as sink:
        # A killed run can have left the temporary file with another mode, so the mode is set again.
        os.fchmod(sink.fileno(), mode)
        sink.write(content.encode() if isinstance(content, str) else content)
        sink.flush()
        os.fsync(sink.fileno())
    os.replace(draft, path)
