"""The emulated compiler: the buckets of a model, with the outputs of each."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, Sequence, Union

import numpy as np

from rebel._cpu import ONNX_TYPES, computed, dtype_name, numpy_type, session_of, traced_type
from rebel.core.exception import RBLNCompileError, RBLNRuntimeError


def compiled_onnx(model: Any, infos: Sequence[Sequence[Any]]) -> tuple[bytes, list[dict[str, Any]]]:
    """Return (bytes, buckets) of an ONNX model (bytes, path, ModelProto). `infos` is a list of (name, shape, dtype) per bucket."""
    try:
        if isinstance(model, (str, os.PathLike)):
            raw = Path(model).read_bytes()
        else:
            raw = model if isinstance(model, bytes) else model.SerializeToString()
        session = session_of(raw)
    except Exception as error:  # onnxruntime's errors have no common base class.
        raise RBLNCompileError(f"not a model that can be compiled: {error}") from error
    names = [tensor.name for tensor in session.get_inputs()]
    buckets = []
    for info in infos:
        if [entry[0] for entry in info] != names:
            raise RBLNCompileError(f"input_info names {[entry[0] for entry in info]}, the model has {names}.")
        inputs = [{"name": name, "shape": [int(size) for size in shape], "dtype": dtype_name(kind)} for name, shape, kind in info]
        zeros = {tensor["name"]: np.zeros(tensor["shape"], numpy_type(tensor["dtype"])) for tensor in inputs}
        try:
            found = computed(session, zeros)
        except RBLNRuntimeError:
            raise
        except Exception as error:  # onnxruntime's errors have no common base class.
            raise RBLNCompileError(f"the model does not take {[tensor['shape'] for tensor in inputs]}: {error}") from error
        outputs = [
            {"name": tensor.name, "shape": list(array.shape), "dtype": str(array.dtype)}
            for tensor, array in zip(session.get_outputs(), found)
        ]
        buckets.append({"inputs": inputs, "outputs": outputs})
    return raw, buckets


def onnx_of_torch(mod: Any, infos: Sequence[Sequence[Any]]) -> bytes:
    """Return the ONNX model of a PyTorch module."""
    try:
        import torch
    except ImportError as error:
        raise RBLNCompileError("compile_from_torch needs PyTorch, and there is none here: install torch.") from error
    names = [entry[0] for entry in infos[0]]
    changing = {
        name: {axis: f"{name}_{axis}" for axis, sizes in enumerate(zip(*(info[at][1] for info in infos))) if len(set(sizes)) > 1}
        for at, name in enumerate(names)
    }
    example = tuple(torch.zeros(tuple(shape), dtype=getattr(torch, traced_type(kind))) for _name, shape, kind in infos[0])
    content = io.BytesIO()
    try:
        torch.onnx.export(mod.eval(), example, content, input_names=names, dynamic_axes=changing, opset_version=17, dynamo=False)
    except Exception as error:  # A module can raise any error while it is traced.
        raise RBLNCompileError(f"not a model that can be compiled: {error}") from error
    return content.getvalue()


def infos_of_shapes(mod: Any, shape: Union[dict[str, Any], Sequence[dict[str, Any]]]) -> list[Sequence[Any]]:
    """Return a list of (name, shape, dtype) for each {name: shape} in `shape`. The loaded ONNX model has the types."""
    if not hasattr(mod, "graph"):
        raise TypeError(f"compile_from_onnx(): {type(mod).__name__} given, expected a loaded model, onnx.load(path)")
    tensors = session_of(mod.SerializeToString()).get_inputs()
    shapes = [shape] if isinstance(shape, dict) else list(shape)
    for entry in shapes:
        if set(entry) != {tensor.name for tensor in tensors} or not all(isinstance(sizes, tuple) for sizes in entry.values()):
            raise RBLNCompileError(f"shape is {entry}, expected a tuple for each of {[tensor.name for tensor in tensors]}.")
    return [[(tensor.name, entry[tensor.name], ONNX_TYPES[tensor.type]) for tensor in tensors] for entry in shapes]


def infos_of(input_info: Sequence[Any]) -> list[Sequence[Any]]:
    """Return a list of buckets. `input_info` is one bucket, a list of (name, shape, dtype), or a list of buckets."""
    return [input_info] if isinstance(input_info[0][0], str) else list(input_info)
