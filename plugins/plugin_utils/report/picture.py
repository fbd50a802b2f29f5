# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Small pictures for reports: pixels that a check sent, as a PNG in a data URI. Controller only, standard library alone."""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from typing import Any, Mapping, Optional

# Longest side; what is larger is thinned out before it is sent here.
SIDE = 64
# PNG's colour types by the number of channels
COLOURS = {1: 0, 3: 2}


def png(width: int, height: int, channels: int, pixels: bytes) -> bytes:
    """Eight-bit pixels, row by row, grey or red-green-blue, as a PNG file."""
    line = width * channels
    if len(pixels) != line * height:
        raise ValueError(f"the picture has {len(pixels)} bytes, expected {line * height} for {width} x {height} x {channels}")
    # Each line starts with its filter, 0 for none.
    lines = b"".join(b"\0" + pixels[start : start + line] for start in range(0, len(pixels), line))
    head = struct.pack(">IIBBBBB", width, height, 8, COLOURS[channels], 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(lines, 9)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def data_uri(found: Any) -> Optional[str]:
    """Return a picture of inference as a data URI; None for any other value, because it comes from a host."""
    if not isinstance(found, Mapping):
        return None
    # A bool is an int in Python, but not in JSON.
    numbers = [found.get(key) for key in ("width", "height", "channels")]
    sizes = [size for size in numbers if isinstance(size, int) and not isinstance(size, bool) and 0 < size <= SIDE]
    if len(sizes) != 3 or sizes[2] not in COLOURS:
        return None
    width, height, channels = sizes
    try:
        pixels = base64.b64decode(found["pixels"], validate=True)
        return "data:image/png;base64," + base64.b64encode(png(width, height, channels, pixels)).decode()
    except (KeyError, TypeError, ValueError, binascii.Error):
        return None
