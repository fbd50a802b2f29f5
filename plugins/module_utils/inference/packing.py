# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Packing of a check document for the container: arrays as JSON, generated arrays as parameters, certificates as files."""

from __future__ import annotations

import base64
import io
import os
import zlib
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.inference.questions import NUMPY, Rows

# Alphabet and length of generated texts
LETTERS, TEXT_LENGTH = b"abcdefghijklmnopqrstuvwxyz", 16
# A low compression level is fast, and reduces pixels to a third of their size.
COMPRESSION_LEVEL = 1


def pack(array: Any, rows: Optional[Sequence[int]] = None) -> Dict[str, Any]:
    """Return the given rows of an array, or all rows, as a value for JSON.

    Arrays of bytes are packed element by element, because numpy's own format drops zero bytes at the end of an element.
    """
    import numpy as np

    numbers = None if rows is None else list(rows)
    selected = array if numbers is None else array[numbers]
    if selected.dtype.kind == "O":
        data = [base64.b64encode(bytes(element)).decode() for element in selected.flat]
        return {"rows": numbers, "shape": list(selected.shape), "bytes": data}
    buffer = io.BytesIO()
    np.save(buffer, selected, allow_pickle=False)
    return {"rows": numbers, "data": base64.b64encode(zlib.compress(buffer.getvalue(), COMPRESSION_LEVEL)).decode()}


def pack_generated(parameters: Mapping[str, Any], rows: Optional[Sequence[int]] = None) -> Dict[str, Any]:
    """Return the arguments of `generated` as a value for JSON. The container generates the array from them."""
    return {"rows": None if rows is None else list(rows), "generated": dict(parameters)}


def unpack(packed: Mapping[str, Any]) -> Rows:
    """Return the rows that `pack` or `pack_generated` packed."""
    import numpy as np

    numbers = packed["rows"]
    if "generated" in packed:
        array = generated(**packed["generated"])
        array = array if numbers is None else array[numbers]
    elif "bytes" in packed:
        array = of_bytes([base64.b64decode(byte) for byte in packed["bytes"]], packed["shape"])
    else:
        array = np.load(io.BytesIO(zlib.decompress(base64.b64decode(packed["data"]))), allow_pickle=False)
    return Rows(None if numbers is None else {row: index for index, row in enumerate(numbers)}, array)


def of_bytes(flat: Sequence[bytes], shape: Sequence[int]) -> Any:
    """Return an array whose elements are bytes of any length."""
    import numpy as np

    array = np.empty(len(flat), dtype=np.object_)
    array[:] = flat
    return array.reshape(shape)


def generated(dtype: str, shape: Sequence[int], seed: int = 0, low: Optional[float] = None, high: Optional[float] = None) -> Any:
    """Return reproducible random values from `low` (default 0) to `high` (default 1 for floats, 128 for whole numbers).

    Whole numbers are always below `high`. For BOOL and BYTES, the limits have no effect.
    """
    import numpy as np

    # numpy guarantees that the sequences of this old generator never change.
    random = np.random.RandomState(seed)
    if dtype == "BYTES":
        count = int(np.prod(shape, dtype=np.int64))
        letters = np.frombuffer(LETTERS, np.uint8)[random.randint(0, len(LETTERS), (count, TEXT_LENGTH))]
        return of_bytes([row.tobytes() for row in letters], shape)
    kind = np.dtype(NUMPY[dtype])
    if kind.kind == "b":
        return random.randint(0, 2, shape).astype(bool)
    if kind.kind == "f":
        low, high = low or 0.0, 1.0 if high is None else high
        return (low + (high - low) * random.random_sample(shape)).astype(kind)
    return random.randint(*whole_limits(dtype, low, high), shape, dtype=kind)


def whole_limits(dtype: str, low: Optional[float] = None, high: Optional[float] = None) -> Tuple[int, int]:
    """Return (smallest whole number that `generated` can return, largest number plus 1)."""
    import numpy as np

    return int(low or 0), int(min(128, int(np.iinfo(NUMPY[dtype]).max) + 1) if high is None else high)


def with_rows(expect: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the expectations with unpacked golden values: {output: {..., "values": {"rows": Rows, "atol", "rtol"}}}."""
    unpacked = {}
    for name, expected in expect.items():
        unpacked[name] = dict(expected)
        if "values" in expected:
            unpacked[name]["values"] = {**expected["values"], "rows": unpack(expected["values"])}
    return unpacked


def with_files(document: Mapping[str, Any], directory: str) -> Dict[str, Any]:
    """Write each PEM text of the document to a file, because clients need paths. Return the document with the paths."""
    server = dict(document["server"])
    for kind in ("http_tls", "grpc_tls"):
        parts = dict(server.get(kind) or {})
        for name, content in parts.items():
            if isinstance(content, str) and content.lstrip().startswith("-----BEGIN"):
                parts[name] = os.path.join(directory, f"{kind}_{name}.pem")
                with open(os.open(parts[name], os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as target:
                    target.write(content)
        if parts:
            server[kind] = parts
    return {**document, "server": server}
