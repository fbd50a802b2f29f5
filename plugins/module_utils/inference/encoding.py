# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Conversion of arrays to and from Triton's binary format, and certificates for clients."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Sequence

from ansible_collections.npufleet.triton.plugins.module_utils.inference.questions import NUMPY, Output


def pem(path: Optional[str]) -> Optional[bytes]:
    """Return the content of a file, or None without a path."""
    if not path:
        return None
    with open(path, "rb") as source:
        return source.read()


def tls_context(tls: Mapping[str, Any]) -> Any:
    """Return an SSLContext. It verifies the server with the authority `ca` or, without `ca`, with the authorities of the system.

    With `insecure`, it does not verify the server.
    """
    import ssl

    context = ssl.create_default_context(cafile=tls.get("ca"))
    if tls.get("insecure"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.get("cert"):
        context.load_cert_chain(tls["cert"], tls.get("key"))
    return context


def encode_array(dtype: str, array: Any) -> bytes:
    """Return an array in Triton's binary format: little endian, row by row. A length of 4 bytes precedes each element of BYTES."""
    import numpy as np
    from tritonclient.utils import serialize_byte_tensor

    if dtype == "BYTES":
        data = serialize_byte_tensor(array)
        return data.item() if data.size else b""
    if dtype == "BF16":
        # BF16 is the upper half of a float32. It is encoded here, because tritonclient from 2.6x on has no function for BF16.
        return np.ascontiguousarray(array, np.dtype("<f4")).reshape(-1).view(np.dtype("<u2"))[1::2].tobytes()
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def decode_array(dtype: str, shape: Sequence[int], data: bytes) -> Any:
    """Return the array in Triton's binary `data`, or None if the data does not match dtype and shape."""
    import numpy as np
    from tritonclient.utils import deserialize_bytes_tensor

    try:
        if dtype == "BYTES":
            array = deserialize_bytes_tensor(data)
        elif dtype == "BF16":
            array = (np.frombuffer(data, np.dtype("<u2")).astype(np.dtype("<u4")) << 16).view(np.dtype("<f4"))
        else:
            array = np.frombuffer(data, np.dtype(NUMPY[dtype]).newbyteorder("<"))
        return array.reshape(shape)
    except Exception:
        return None


def outputs_of(result: Any) -> Dict[str, Output]:
    """Return the outputs of a result of tritonclient."""
    response = result.get_response()
    outputs_by_name = {}
    for tensor in response.get("outputs", []) if isinstance(response, dict) else response.outputs:
        if isinstance(tensor, dict):
            name, dtype, shape = tensor["name"], tensor["datatype"], tensor["shape"]
        else:
            name, dtype, shape = tensor.name, tensor.datatype, tensor.shape
        try:
            array = result.as_numpy(name)
        except Exception:
            array = None
        outputs_by_name[name] = Output(dtype, [int(size) for size in shape], array)
    return outputs_by_name
