"""The computation of the emulated NPU: onnxruntime on the CPU, and the types of its models."""

from __future__ import annotations

from typing import Any

import numpy as np

from rebel.core.exception import RBLNRuntimeError

BFLOAT16 = "bfloat16"
# onnxruntime's name of a type -> numpy's name
ONNX_TYPES = {
    "tensor(bool)": "bool",
    "tensor(uint8)": "uint8",
    "tensor(int8)": "int8",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(float16)": "float16",
    "tensor(float)": "float32",
    "tensor(double)": "float64",
}


def dtype_name(kind: Any) -> str:
    """Return the numpy name of a type, which is a string, a numpy type or a PyTorch type (`torch.float32`)."""
    return str(numpy_type(str(kind).rpartition(".")[2] if str(kind).startswith("torch.") else kind))


def traced_type(kind: Any) -> str:
    """Return the type with which a module is traced: float32 for bfloat16, otherwise the type itself."""
    return "float32" if dtype_name(kind) == BFLOAT16 else dtype_name(kind)


def numpy_type(kind: Any) -> np.dtype[Any]:
    """Return the numpy type of a name. bfloat16 comes from ml_dtypes."""
    if str(kind) == BFLOAT16:
        try:
            import ml_dtypes
        except ImportError as error:
            raise RBLNRuntimeError(f"bfloat16 needs ml_dtypes, and there is none here ({error}).") from error
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(kind)


def computed(session: Any, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return the outputs of a run on the CPU. bfloat16 inputs are computed as float32, and float32 outputs are converted back."""
    bfloat16_types = [array.dtype for array in feed.values() if array.dtype.name == BFLOAT16]
    if not bfloat16_types:
        return session.run(None, feed)
    wide = {name: array.astype(np.float32) if array.dtype == bfloat16_types[0] else array for name, array in feed.items()}
    return [array.astype(bfloat16_types[0]) if array.dtype == np.float32 else array for array in session.run(None, wide)]


def session_of(onnx: bytes) -> Any:
    """Return an onnxruntime session with one thread, because the server needs the other CPUs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(onnx, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no common base class.
        raise RBLNRuntimeError(f"LOADING_FILE_BROKEN: not a compiled model ({error}).") from error
