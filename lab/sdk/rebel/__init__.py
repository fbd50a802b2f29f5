"""Stand-in for the vendor's SDK: the same calls and errors, ONNX on the CPU behind one lock per NPU.

It needs the device nodes as the real runtime does: /dev/rblnN for the NPU and /dev/rsd0 for its group, and keeps the
NPU's node open while a runtime lives, so that the emulated vendor tool lists its process. RBLN_DEVICES selects the NPUs
that are seen and is read once, at import. Two runtimes never run on one NPU at a time: a run holds the NPU's lock in
/dev/shm, which all processes of a container share, as one container at a time has the NPUs.

Settings of the lab: RBLN_LAB_DEV_ROOT (default /dev) looks for the nodes elsewhere, RBLN_LAB_DEVICE_MS (default 0) is the
shortest time of one run on the NPU, RBLN_LAB_NPU_NAME the type of the cards (without it the type of a compiled file is not
checked: inside a container the emulated sysfs is not to be seen).
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import time
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence, Union

import numpy as np

from rebel.core.exception import RBLNCompileError, RBLNRuntimeError

try:
    __version__ = version("rebel-compiler")
except PackageNotFoundError:
    __version__ = "0.0.0+source"

DEV_ROOT = Path(os.environ.get("RBLN_LAB_DEV_ROOT", "/dev"))
VISIBLE = os.environ.get("RBLN_DEVICES")
EPOCH = (2024, 1, 1, 0, 0, 0)
# Bytes that a bucket takes in device memory beside its weights.
BUCKET_BYTES = 1 << 20


def _nodes() -> list[Path]:
    """Device nodes of the NPUs that this process may use, in their order."""
    found = sorted(DEV_ROOT.glob("rbln[0-9]*"), key=lambda path: int(path.name[4:]))
    if VISIBLE is None:
        return found
    chosen = [int(number) for number in VISIBLE.split(",") if number.strip()]
    return [path for path in found if int(path.name[4:]) in chosen]


def _check_selection() -> None:
    """The vendor's runtime reads RBLN_DEVICES once and refuses to go on when it changes."""
    if os.environ.get("RBLN_DEVICES") != VISIBLE:
        raise RBLNRuntimeError("RBLN_DEVICES environment variable changed at runtime")


def device_count() -> int:
    """Number of usable NPUs: 0 without the group's node /dev/rsd0."""
    return len(_nodes()) if (DEV_ROOT / "rsd0").exists() else 0


def npu_is_available(device: int = 0) -> bool:
    """Whether NPU `device` can be used."""
    return 0 <= device < device_count()


def get_npu_name(device: int = 0) -> Optional[str]:
    """Type of an NPU, such as RBLN-CA12; None where it is absent or not known."""
    return os.environ.get("RBLN_LAB_NPU_NAME") if npu_is_available(device) else None


class RBLNCompiledModel:
    """A compiled file: the ONNX model once, and a list of buckets with fixed shapes.

    `meta` is {"compiler_version", "npu", "buckets": [{"inputs": [{"name", "shape", "dtype"}], "outputs": [...]}]}.
    """

    def __init__(self, path: Union[str, os.PathLike[str]]) -> None:
        if not os.path.isfile(path):
            raise RBLNRuntimeError("LOADING_FILE_NOT_FOUND: The specified file does not exist.")
        try:
            with zipfile.ZipFile(path) as archive:
                self.meta: dict[str, Any] = json.loads(archive.read("meta.json"))
                self.onnx: bytes = archive.read("model.onnx")
        except (zipfile.BadZipFile, KeyError, ValueError, OSError) as error:
            raise RBLNRuntimeError(f"LOADING_FILE_BROKEN: not a compiled model ({error}).") from error
        if _line(self.meta["compiler_version"]) != _line(__version__) and __version__ != "0.0.0+source":
            raise RBLNRuntimeError(
                f"compiled with {self.meta['compiler_version']}, this runtime is {__version__}: compile it again."
            )

    @classmethod
    def _made(cls, meta: dict[str, Any], onnx: bytes) -> RBLNCompiledModel:
        model = cls.__new__(cls)
        model.meta, model.onnx = meta, onnx
        return model

    def save(self, path: Union[str, os.PathLike[str]]) -> None:
        """Write the compiled file; the same model gives the same bytes."""
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for name, content in (("meta.json", json.dumps(self.meta, sort_keys=True).encode()), ("model.onnx", self.onnx)):
                archive.writestr(zipfile.ZipInfo(name, EPOCH), content)

    def get_total_device_alloc(self) -> int:
        """Bytes of device memory that all buckets take together."""
        return len(self.onnx) + BUCKET_BYTES * len(self.meta["buckets"])

    def create_runtime(
        self,
        name: Optional[str] = None,
        *,
        input_info_index: Optional[int] = None,
        tensor_type: Optional[str] = None,
        device: Optional[int] = None,
        timeout: Optional[int] = None,
    ) -> Runtime:
        """A runtime of one bucket on one NPU."""
        return Runtime(
            self, device=device or 0, tensor_type=tensor_type or "np", timeout=timeout, input_info_index=input_info_index or 0
        )


class Runtime:
    """One compiled model on one NPU. Call it with the inputs in their order, or by name."""

    def __init__(
        self,
        model: Union[str, os.PathLike[str], RBLNCompiledModel],
        *,
        device: int = 0,
        tensor_type: str = "np",
        activate_profiler: Optional[bool] = None,
        timeout: Optional[int] = None,
        input_info_index: int = 0,
    ) -> None:
        import onnxruntime

        if tensor_type != "np":
            raise RBLNRuntimeError(f"tensor_type {tensor_type!r} is not supported here, only 'np'.")
        if timeout is not None and not isinstance(timeout, int):
            raise TypeError("create_sync_runtime(): incompatible function arguments, timeout has to be an int")
        _check_selection()
        compiled = model if isinstance(model, RBLNCompiledModel) else RBLNCompiledModel(model)
        if not npu_is_available(device):
            raise RBLNRuntimeError(f"NPU {device} is not available: {device_count()} NPUs are visible.")
        here = get_npu_name(device)
        if here and compiled.meta["npu"] != here:
            raise RBLNRuntimeError(f"compiled for {compiled.meta['npu']}, NPU {device} is {here}.")
        buckets = compiled.meta["buckets"]
        if not 0 <= input_info_index < len(buckets):
            raise RBLNRuntimeError(f"input_info_index {input_info_index} is not one of 0 to {len(buckets) - 1}.")
        self._inputs = buckets[input_info_index]["inputs"]
        self._outputs = buckets[input_info_index]["outputs"]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(compiled.onnx, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's errors have no common base
            raise RBLNRuntimeError(f"LOADING_FILE_BROKEN: not a compiled model ({error}).") from error
        node = _nodes()[device]
        self._node = open(node, "rb")  # noqa: SIM115  open for as long as the runtime lives
        self._lock = open(f"/dev/shm/npufleet-lab-{node.name}.lock", "a+b")  # noqa: SIM115
        self._seconds = float(os.environ.get("RBLN_LAB_DEVICE_MS", "0")) / 1000

    def run(self, *inputs: np.ndarray, **named: np.ndarray) -> Any:
        """Outputs for these inputs: one array, or a tuple of several. Shapes and types are those of the bucket."""
        if named:
            unknown = sorted(set(named) - {one["name"] for one in self._inputs})
            if unknown or inputs:
                raise RBLNRuntimeError(f"unexpected inputs {unknown or 'by position beside named ones'}.")
            inputs = tuple(named[one["name"]] for one in self._inputs if one["name"] in named)
        if len(inputs) != len(self._inputs):
            raise RBLNRuntimeError(f"{len(inputs)} inputs given, the model takes {len(self._inputs)}.")
        feed = {}
        for one, array in zip(self._inputs, inputs):
            if not isinstance(array, np.ndarray):
                raise RBLNRuntimeError(f"input {one['name']}: {type(array).__name__} given, wanted a numpy array.")
            if list(array.shape) != one["shape"] or array.dtype != np.dtype(one["dtype"]):
                found = f"{array.dtype}{list(array.shape)}"
                raise RBLNRuntimeError(f"input {one['name']}: {found} given, compiled for {one['dtype']}{one['shape']}.")
            feed[one["name"]] = array
        if self._node.closed:
            raise RBLNRuntimeError("this runtime is closed.")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            began = time.monotonic()
            outputs = self._session.run([one["name"] for one in self._outputs], feed)
            # The NPU is busy for its own time, however fast the CPU that stands in for it.
            time.sleep(max(0.0, began + self._seconds - time.monotonic()))
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    __call__ = run

    def close(self) -> None:
        """Give the NPU back."""
        self._node.close()
        self._lock.close()

    def __del__(self) -> None:
        for name in ("_node", "_lock"):
            if hasattr(self, name):
                getattr(self, name).close()


def compile_from_onnx(
    model: Union[bytes, str, os.PathLike[str]], input_info: Sequence[Any], npu: str = "RBLN-CA12"
) -> RBLNCompiledModel:
    """Compile an ONNX model for one or several lists of (name, shape, dtype), each a bucket."""
    import onnx
    import onnxruntime

    try:
        raw = model if isinstance(model, bytes) else Path(model).read_bytes()
        onnx.checker.check_model(onnx.load(io.BytesIO(raw)))
        session = onnxruntime.InferenceSession(raw, providers=["CPUExecutionProvider"])
    except Exception as error:  # neither library's errors have a common base
        raise RBLNCompileError(f"not a model that can be compiled: {error}") from error
    # One bucket is a list of tuples that begin with a name; several are a list of such lists.
    infos: list[Sequence[Any]] = [input_info] if isinstance(input_info[0][0], str) else list(input_info)
    names = [one.name for one in session.get_inputs()]
    buckets = []
    for info in infos:
        if [one[0] for one in info] != names:
            raise RBLNCompileError(f"input_info names {[one[0] for one in info]}, the model has {names}.")
        inputs = [{"name": name, "shape": list(shape), "dtype": dtype} for name, shape, dtype in info]
        zeros = {one["name"]: np.zeros(one["shape"], one["dtype"]) for one in inputs}
        try:
            found = session.run(None, zeros)
        except Exception as error:  # as above
            raise RBLNCompileError(f"the model does not take {[one['shape'] for one in inputs]}: {error}") from error
        outputs = [
            {"name": one.name, "shape": list(array.shape), "dtype": str(array.dtype)}
            for one, array in zip(session.get_outputs(), found)
        ]
        buckets.append({"inputs": inputs, "outputs": outputs})
    meta: Mapping[str, Any] = {"compiler_version": __version__, "npu": npu, "buckets": buckets}
    return RBLNCompiledModel._made(dict(meta), raw)


def _line(number: str) -> str:
    """The minor line of a version: a compiled file runs on the SDK line that made it."""
    found = re.match(r"\d+\.\d+", number)
    return found.group() if found else number


__all__ = [
    "RBLNCompileError",
    "RBLNCompiledModel",
    "RBLNRuntimeError",
    "Runtime",
    "compile_from_onnx",
    "device_count",
    "get_npu_name",
    "npu_is_available",
]
