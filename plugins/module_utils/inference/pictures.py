# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Inputs of requests as pictures for reports."""

from __future__ import annotations

import base64
import importlib
import io
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils.inference.questions import BYTES, NUMBERS, Request

# Largest number of values of a row that a report draws
DRAWN_VALUES = 784
# Largest side of a picture in pixels. Larger inputs are scaled down.
PICTURE_SIDE = 64
# The first bytes of JPEG and PNG files
PICTURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")


def drawable(inputs: Mapping[str, Any], request: Request) -> Optional[List[int]]:
    """Return the values of the only input row of a request as whole numbers, or None if they cannot be drawn."""
    import numpy as np

    rows = list(inputs.values())
    if request.rows is None or len(request.rows) != 1 or len(rows) != 1:
        return None
    if rows[0].size > DRAWN_VALUES or rows[0].dtype.kind not in "fiu":
        return None
    return [round(float(value)) for value in rows[0].flatten()] if np.isfinite(rows[0]).all() else None


def picture(inputs: Mapping[str, Any], request: Request) -> Optional[Dict[str, Any]]:
    """Return {"width", "height", "channels", "pixels": base64} of the input row of a request, or None if the row is no image.

    An image is a matrix, an array with three channels first or last, a vector with a square length, or a JPEG or PNG file.
    """
    import numpy as np

    rows = list(inputs.values())
    if len(request.rows or [0]) != 1 or len(rows) != 1 or not rows[0].size:
        return None
    if rows[0].dtype.kind in BYTES or (rows[0].dtype == np.uint8 and rows[0].ravel()[:8].tobytes().startswith(PICTURES)):
        row = _decode_picture(rows[0])
    elif request.rows is None or rows[0].dtype.kind not in NUMBERS:
        row = None
    else:
        row = np.squeeze(rows[0][0])
    if row is None:
        return None
    if row.ndim == 1 and 64 <= row.size <= DRAWN_VALUES and round(row.size**0.5) ** 2 == row.size:
        row = row.reshape(round(row.size**0.5), -1)
    if row.ndim == 3 and row.shape[0] == 3:
        row = np.moveaxis(row, 0, 2)
    if row.ndim == 2:
        row = row[:, :, None]
    if row.ndim != 3 or row.shape[2] not in (1, 3) or min(row.shape[:2]) < 4 or max(row.shape[:2]) > 4 * min(row.shape[:2]):
        return None
    step = -(-max(row.shape[:2]) // PICTURE_SIDE)
    levels = row[::step, ::step]
    if levels.dtype != np.uint8:
        # Scale other values, such as normalised ones, to the range from 0 to 255.
        levels = levels.astype(np.float64)
        if not np.isfinite(levels).all():
            return None
        levels = levels - levels.min()
        levels = (levels * (255 / (levels.max() or 1))).round().astype(np.uint8)
    height, width, channels = (int(size) for size in levels.shape)
    pixels = base64.b64encode(np.ascontiguousarray(levels).tobytes()).decode()
    return {"width": width, "height": height, "channels": channels, "pixels": pixels}


def _decode_picture(array: Any) -> Any:
    """Return the pixels [height, width, 3] of an array that contains the bytes of a picture file, or None for other arrays."""
    import numpy as np

    data = array.tobytes() if array.dtype == np.uint8 else bytes(array.flat[0])
    if (array.dtype.kind in BYTES and array.size != 1) or not data.startswith(PICTURES):
        return None
    try:
        image = importlib.import_module("PIL.Image").open(io.BytesIO(data))
        image.draft("RGB", (PICTURE_SIDE, PICTURE_SIDE))
        image.thumbnail((PICTURE_SIDE, PICTURE_SIDE))
        return np.asarray(image.convert("RGB"))
    except Exception:
        # A check can send a corrupt picture on purpose, so this is not an error.
        return None
