"""The way of a document into the container: arrays as JSON, made-up ones as what they are made of, certificates as files."""

from __future__ import annotations

import base64
import io
import os
import zlib
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.inference.questions import NUMPY, Rows

# Of made-up texts
LETTERS, LENGTH = b"abcdefghijklmnopqrstuvwxyz", 16
# Pixels become a third of what they were, and nobody waits for it
COMPRESSION = 1


def pack(array: Any, rows: Optional[Sequence[int]] = None) -> Dict[str, Any]:
    """These rows of an array as JSON, or all of it as it is. Bytes are kept to the last zero, which numpy's own would drop."""
    import numpy as np

    numbers = None if rows is None else list(rows)
    taken = array if numbers is None else array[numbers]
    if taken.dtype.kind == "O":
        data = [base64.b64encode(bytes(element)).decode() for element in taken.flat]
        return {"rows": numbers, "shape": list(taken.shape), "bytes": data}
    buffer = io.BytesIO()
    np.save(buffer, taken, allow_pickle=False)
    return {"rows": numbers, "data": base64.b64encode(zlib.compress(buffer.getvalue(), COMPRESSION)).decode()}


def pack_generated(made_of: Mapping[str, Any], rows: Optional[Sequence[int]] = None) -> Dict[str, Any]:
    """The same of an array that `generated` makes of these arguments: it is made where it is asked."""
    return {"rows": None if rows is None else list(rows), "generated": dict(made_of)}


def unpack(packed: Mapping[str, Any]) -> Rows:
    """What `pack` or `pack_generated` made."""
    import numpy as np

    numbers = packed["rows"]
    if "generated" in packed:
        array = generated(**packed["generated"])
        array = array if numbers is None else array[numbers]
    elif "bytes" in packed:
        array = of_bytes([base64.b64decode(byte) for byte in packed["bytes"]], packed["shape"])
    else:
        array = np.load(io.BytesIO(zlib.decompress(base64.b64decode(packed["data"]))), allow_pickle=False)
    return Rows(None if numbers is None else {row: place for place, row in enumerate(numbers)}, array)


def of_bytes(flat: Sequence[bytes], shape: Sequence[int]) -> Any:
    """An array of bytes of any length."""
    import numpy as np

    array = np.empty(len(flat), dtype=np.object_)
    array[:] = flat
    return array.reshape(shape)


def generated(dtype: str, shape: Sequence[int], seed: int = 0, low: Optional[float] = None, high: Optional[float] = None) -> Any:
    """Made-up values, equal for equal arguments: floats from `low` (0) to `high` (1), whole numbers to below it (128)."""
    import numpy as np

    # The old generator: its numbers are promised to stay.
    random = np.random.RandomState(seed)
    if dtype == "BYTES":
        count = int(np.prod(shape, dtype=np.int64))
        letters = np.frombuffer(LETTERS, np.uint8)[random.randint(0, len(LETTERS), (count, LENGTH))]
        return of_bytes([row.tobytes() for row in letters], shape)
    kind = np.dtype(NUMPY[dtype])
    if kind.kind == "b":
        return random.randint(0, 2, shape).astype(bool)
    if kind.kind == "f":
        low, high = low or 0.0, 1.0 if high is None else high
        return (low + (high - low) * random.random_sample(shape)).astype(kind)
    return random.randint(*whole_limits(dtype, low, high), shape, dtype=kind)


def whole_limits(dtype: str, low: Optional[float] = None, high: Optional[float] = None) -> Tuple[int, int]:
    """The least whole number that `generated` makes of this dtype, and the one that all are below."""
    import numpy as np

    return int(low or 0), int(min(128, int(np.iinfo(NUMPY[dtype]).max) + 1) if high is None else high)


def with_rows(expect: Mapping[str, Any]) -> Dict[str, Any]:
    """Expectations whose golden values are unpacked: {output: {..., "values": {"rows": Rows, "atol", "rtol"}}}."""
    unpacked = {}
    for name, wanted in expect.items():
        unpacked[name] = dict(wanted)
        if "values" in wanted:
            unpacked[name]["values"] = {**wanted["values"], "rows": unpack(wanted["values"])}
    return unpacked


def with_files(document: Mapping[str, Any], place: str) -> Dict[str, Any]:
    """The document with each PEM of its server in a file below `place`, as clients take them."""
    server = dict(document["server"])
    for kind in ("http_tls", "grpc_tls"):
        parts = dict(server.get(kind) or {})
        for name, given in parts.items():
            if isinstance(given, str) and given.lstrip().startswith("-----BEGIN"):
                parts[name] = os.path.join(place, f"{kind}_{name}.pem")
                with open(os.open(parts[name], os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as target:
                    target.write(given)
        if parts:
            server[kind] = parts
    return {**document, "server": server}
