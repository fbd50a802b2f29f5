"""The way of a document into the container: arrays as JSON, certificates as files."""

from __future__ import annotations

import base64
import io
import os
from typing import Any, Dict, Mapping, Optional, Sequence

from ansible_collections.npufleet.triton.plugins.module_utils.inference.questions import Rows


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
    return {"rows": numbers, "data": base64.b64encode(buffer.getvalue()).decode()}


def unpack(packed: Mapping[str, Any]) -> Rows:
    """What `pack` made."""
    import numpy as np

    if "bytes" in packed:
        array = np.empty(len(packed["bytes"]), dtype=np.object_)
        array[:] = [base64.b64decode(byte) for byte in packed["bytes"]]
        array = array.reshape(packed["shape"])
    else:
        array = np.load(io.BytesIO(base64.b64decode(packed["data"])), allow_pickle=False)
    numbers = packed["rows"]
    return Rows(None if numbers is None else {row: place for place, row in enumerate(numbers)}, array)


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
