#!/usr/bin/env python3
"""Compile one model with the SDK of the Python interpreter that runs this program: rbln_compile.py SPEC.

SPEC is a JSON file. Paths in it are relative to its directory:

  {"name", "npu": such as "RBLN-CA22", "sdk": required version, "devices": number of NPUs that one instance uses,
   "source": {"kind": "onnx", "path"} or {"kind": "torch", "path": directory, "module", "function"},
   "batches": [1, 4] or [] for none, "inputs": [{"name", "shape": without the batch, "dtype"}],
   "outputs": null or like "inputs", "digests": {"sha256", "spec"}, "output": file}

The program writes the compiled file and its record, <output>.json, with the source, the target, the inputs and the outputs. In the
record, `device_memory` is the memory in bytes that one instance needs on each NPU. The program also prints the record.
If the program fails, it prints one line to standard error, exits with 1, and writes neither file.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import os
import re
import sys
from typing import Any, Dict, List, Mapping, Optional, Sequence

FORMAT = 1
# {ONNX's name of a type: its name in the spec}
ONNX_NAMES = {
    **{name.upper(): name for name in ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")},
    "FLOAT16": "float16",
    "BFLOAT16": "bfloat16",
    "FLOAT": "float32",
    "DOUBLE": "float64",
}


class CompileError(Exception):
    """The error of a model that cannot be compiled. Its message is for the author of the spec."""


def main(path: str) -> Dict[str, Any]:
    """Compile the model of a spec. Return the record. Raises CompileError."""
    with open(path, encoding="utf-8") as source:
        spec = json.load(source)
    os.chdir(os.path.dirname(os.path.abspath(path)))
    try:
        import rebel
    except ImportError as error:
        raise CompileError(f"{sys.executable} has no usable SDK ({error}), expected the SDK of the release row") from error
    if line(rebel.__version__) != line(spec["sdk"]):
        raise CompileError(f"the SDK in {sys.executable} is {rebel.__version__}, expected {spec['sdk']} of the release row")
    batches = spec["batches"] or [None]
    # The inputs of each bucket. A bucket is one set of shapes in a compiled file, here for one batch size.
    info = [[(tensor["name"], shaped(tensor, batch), tensor["dtype"]) for tensor in spec["inputs"]] for batch in batches]
    options = {"npu": spec["npu"]}
    if spec["devices"] > 1:
        options[name_of_devices(rebel.__version__)] = spec["devices"]
    module = None
    try:
        if spec["source"]["kind"] == "torch":
            module = module_of(spec["source"])
            compiled = rebel.compile_from_torch(module, info if spec["batches"] else info[0], **options)
        else:
            compiled = compiled_onnx(rebel, spec["source"]["path"], info if spec["batches"] else info[:1], options)
    except CompileError:
        raise
    except Exception as error:  # The errors of compilers have no common base class.
        raise CompileError(f"the compiler of SDK {rebel.__version__} refuses the model: {words(error)}") from error
    draft = spec["output"] + ".draft"
    compiled.save(draft)
    buckets = [
        {"inputs": [{"name": name, "shape": shape, "dtype": dtype} for name, shape, dtype in entry], "outputs": outputs}
        for entry, outputs in zip(info, outputs_of(rebel, draft, spec, info, module))
    ]
    record = {
        "format": FORMAT,
        "sha256": sha256_of(draft),
        "npu": spec["npu"],
        "compiler_version": rebel.__version__,
        "devices": spec["devices"],
        "device_memory": memory_of(compiled, spec["devices"]),
        "buckets": buckets,
        "source": {"kind": spec["source"]["kind"], **spec["digests"]},
    }
    with open(draft + ".json", "w", encoding="utf-8") as target:
        json.dump(record, target, indent=1, sort_keys=True)
        target.write("\n")
    # The compiled file is moved first, so that a record never exists without its file.
    os.replace(draft, spec["output"])
    os.replace(draft + ".json", spec["output"] + ".json")
    return record


def compiled_onnx(rebel: Any, path: str, info: Sequence[Sequence[Any]], options: Mapping[str, Any]) -> Any:
    """Compile an ONNX model. Older SDKs take the path of the model and `input_info`, newer SDKs the loaded model and `shape`."""
    if not wants_shapes(rebel):
        return rebel.compile_from_onnx(path, list(info) if len(info) > 1 else info[0], **options)
    try:
        import onnx
    except ImportError as error:
        raise CompileError(f"{sys.executable} has no onnx ({error}), expected it for an ONNX source with this SDK") from error
    model = onnx.load(path)
    constants = {tensor.name for tensor in model.graph.initializer}
    types = {
        tensor.name: ONNX_NAMES.get(onnx.TensorProto.DataType.Name(tensor.type.tensor_type.elem_type), "?")
        for tensor in model.graph.input
        if tensor.name not in constants
    }
    # `shape` has no types. The compiler takes the types from the model.
    wrong = [f"{name} as {kind}, the model has {types[name]}" for name, _shape, kind in info[0] if types.get(name, kind) != kind]
    if wrong:
        raise CompileError(f"the spec names input {'; '.join(wrong)}")
    shapes = [{name: tuple(shape) for name, shape, _kind in bucket} for bucket in info]
    return rebel.compile_from_onnx(model, shape=shapes if len(shapes) > 1 else shapes[0], **options)


def wants_shapes(rebel: Any) -> bool:
    """Return True if the compiler takes a loaded ONNX model and shapes. If its function has no signature, the version decides."""
    try:
        known = inspect.signature(rebel.compile_from_onnx).parameters
    except (TypeError, ValueError):
        return line(rebel.__version__) >= [0, 11]
    return "input_info" not in known and ("shape" in known or line(rebel.__version__) >= [0, 11])


def memory_of(compiled: Any, devices: int) -> List[int]:
    """Return the bytes of device memory on each NPU, as the SDK reports them."""
    if hasattr(compiled, "get_alloc_per_node"):
        return [int(size) for size in compiled.get_alloc_per_node()]
    return [int(compiled.get_total_device_alloc()) // devices] * devices


def shaped(entry: Mapping[str, Any], batch: Optional[int]) -> List[int]:
    """Return the shape of an input or output for a batch size, without the batch dimension if `batch` is None."""
    return [*([] if batch is None else [batch]), *entry["shape"]]


def name_of_devices(version: str) -> str:
    """Return the name of the argument for the number of NPUs. SDK 0.11 renamed this argument."""
    return "num_devices" if line(version) >= [0, 11] else "tensor_parallel_size"


def line(version: str) -> List[int]:
    """Return the minor version of an SDK, such as [0, 9] of 0.9.4. A compiled file runs with each SDK of its minor version."""
    return numbers(version)[:2]


def numbers(version: str) -> List[int]:
    """Return the first three numbers of a version, such as [0, 9, 4] of 0.9.4+more."""
    return [int(part) for part in re.findall(r"\d+", version)[:3]]


def module_of(source: Mapping[str, str]) -> Any:
    """Return the PyTorch module that the function of the source returns."""
    try:
        import torch  # noqa: F401  Reports a missing PyTorch before the import of the source fails.
    except ImportError as error:
        raise CompileError(f"{sys.executable} has no PyTorch ({error}), expected it for a torch source") from error
    sys.path.insert(0, source["path"])
    try:
        function = getattr(importlib.import_module(source["module"]), source["function"])
    except (ImportError, AttributeError) as error:
        raise CompileError(f"found no {source['module']}:{source['function']} in the path of the spec: {error}") from error
    return function()


def outputs_of(
    rebel: Any, path: str, spec: Mapping[str, Any], info: Sequence[Sequence[Any]], module: Any
) -> List[List[Dict[str, Any]]]:
    """Return the outputs of each bucket: from the spec, from the SDK, or from a run on the CPU. Raises CompileError."""
    batches = spec["batches"] or [None]
    if spec.get("outputs"):
        return [[{**tensor, "shape": shaped(tensor, batch)} for tensor in spec["outputs"]] for batch in batches]
    if hasattr(rebel.RBLNCompiledModel, "inspect"):
        found = rebel.RBLNCompiledModel.inspect(path)
        described_buckets = field(found, "input_info")
        if described_buckets and len(described_buckets) == len(info):
            return [[described(name) for name in field(bucket, "outputs")] for bucket in described_buckets]
        # Older SDKs describe only the outputs of the first bucket (compiled batch size). Only the batch differs in other buckets.
        first = [described(name) for name in field(found, "outputs")]
        if not spec["batches"]:
            return [first]
        if all(entry["shape"][:1] == batches[:1] for entry in first):
            return [[{**entry, "shape": [batch, *entry["shape"][1:]]} for entry in first] for batch in batches]
    try:
        return [run_of_torch(module, entry) if module is not None else run_of_onnx(spec["source"]["path"], entry) for entry in info]
    except ImportError:
        raise CompileError(
            f"SDK {rebel.__version__} does not return the outputs of a compiled file, expected them in the spec. "
            "Add `outputs`, in the form of `inputs`"
        ) from None


def run_of_onnx(path: str, bucket: Sequence[Any]) -> List[Dict[str, Any]]:
    """Return the outputs of one run on zeros. Raises ImportError without onnxruntime."""
    import numpy
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    arrays = session.run(None, {name: numpy.zeros(shape, dtype) for name, shape, dtype in bucket})
    names = [tensor.name for tensor in session.get_outputs()]
    return [{"name": name, "shape": list(array.shape), "dtype": str(array.dtype)} for name, array in zip(names, arrays)]


def run_of_torch(module: Any, bucket: Sequence[Any]) -> List[Dict[str, Any]]:
    """Return the outputs of one run on zeros. PyTorch has no names of outputs."""
    import torch

    with torch.no_grad():
        found = module.eval()(*[torch.zeros(shape, dtype=getattr(torch, dtype)) for _name, shape, dtype in bucket])
    tensors = found if isinstance(found, (list, tuple)) else [found]
    return [{"name": None, "shape": list(tensor.shape), "dtype": str(tensor.dtype).rpartition(".")[2]} for tensor in tensors]


def field(found: Any, name: str) -> Any:
    """Return a field of the result of `inspect`, or None. The result is a mapping or an object, depending on the SDK."""
    return found.get(name) if isinstance(found, Mapping) else getattr(found, name, None)


def described(entry: Any) -> Dict[str, Any]:
    return {
        "name": field(entry, "name"),
        "shape": [int(size) for size in field(entry, "shape")],
        # Types of PyTorch have a prefix, such as torch.float32.
        "dtype": str(field(entry, "dtype")).rpartition(".")[2],
    }


def sha256_of(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as source:
        for block in iter(lambda: source.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def words(error: Exception) -> str:
    """Return an error as one line."""
    return " ".join(str(error).split())[:600] or type(error).__name__


if __name__ == "__main__":
    try:
        print(json.dumps(main(sys.argv[1]), sort_keys=True))
    except (CompileError, OSError) as problem:
        sys.exit(words(problem))
