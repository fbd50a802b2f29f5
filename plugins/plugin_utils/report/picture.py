# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The conversion of pixels from a check into a PNG in a data URI, for reports. It uses only the standard library."""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from typing import Any, Mapping, Optional

# The longest side in pixels. Checks reduce larger pictures before they send them.
MAX_SIDE = 64
# {number of channels: colour type of PNG}
COLOURS = {1: 0, 3: 2}


def png(width: int, height: int, channels: int, pixels: bytes) -> bytes:
    """Return a PNG file of eight-bit pixels, grey or red-green-blue, row by row. Raises ValueError."""
    line = width * channels
    if len(pixels) != line * height:
        raise ValueError(f"the picture has {len(pixels)} bytes, expected {line * height} for {width} x {height} x {channels}")
    # In a PNG, each line starts with the number of its filter. 0 means no filter.
    lines = b"".join(b"\0" + pixels[start : start + line] for start in range(0, len(pixels), line))
    header = struct.pack(">IIBBBBB", width, height, 8, COLOURS[channels], 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(lines, 9)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def data_uri(value: Any) -> Optional[str]:
    """Return the picture of a check as a data URI. Return None if the value, which comes from a host, is not a picture."""
    if not isinstance(value, Mapping):
        return None
    # A bool is an int in Python, but not in JSON.
    numbers = [value.get(key) for key in ("width", "height", "channels")]
    sizes = [size for size in numbers if isinstance(size, int) and not isinstance(size, bool) and 0 < size <= MAX_SIDE]
    if len(sizes) != 3 or sizes[2] not in COLOURS:
        return None
    width, height, channels = sizes
    try:
        pixels = base64.b64decode(value["pixels"], validate=True)
        return "data:image/png;base64," + base64.b64encode(png(width, height, channels, pixels)).decode()
    except (KeyError, TypeError, ValueError, binascii.Error):
        return None
