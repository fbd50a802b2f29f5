"""Stand-in for the vendor's SDK: the same calls and errors, but ONNX on the CPU behind an emulated command queue for each NPU.

Like the real runtime it needs the device nodes: /dev/rblnN of the NPU, and /dev/rsd0 of its group. It keeps the node of
the NPU open while a runtime exists, so that the emulated vendor tool lists its process. RBLN_DEVICES selects the visible
NPUs, and is read once, at import. `_device.py` emulates time, memory and faults of an NPU, `_cpu.py` computes, and
`_compiler.py` compiles.

The version of the package determines which of three forms the API has. The differences are from the vendor's pages
(docs.rbln.ai/<version>/software/api/python/python_api.html, .../tutorial/advanced/concurrent_processing.html and
.../bucketing.html). Each version accepts its own form and refuses the other forms:

  0.6   no `RBLNCompiledModel.inspect`; `tensor_parallel_size`; a runtime serves one bucket, that of `input_info_index`;
        `compile_from_onnx` takes a path, bytes or a model, and `input_info`
  0.9   `inspect` returns a dict (v0.9.1: it reads input, output, compiler version, target NPU, tensor parallel size and UUID
        without loading the model; users index it, metadata["alloc_per_node"]); from 0.9.2 on the async runtime accepts
        a file of several buckets
  0.11  `inspect` returns an object; `num_devices` replaces `tensor_parallel_size`; `timeout` has to be an int; one runtime
        serves all buckets and chooses one by the shapes of the inputs, without `input_info_index`; `compile_from_onnx`
        takes a loaded model and `shape`, which is {name: tuple}, or a list of such dicts for several buckets (the list
        is an assumption: the pages only show the dict)

All versions share the following, from the same pages and from a wheel of 2024. create_runtime(*, device=0, tensor_type="np") and
create_async_runtime(*, device=0, tensor_type="np", parallel=None) exclude each other on one compiled model. `device` is an
int, for the synchronous runtime also a list. Inputs are C-contiguous and have exactly the types and shapes of a bucket. A run
returns one array, or a list of arrays. `await runtime.async_run(x)` is for asyncio. Other callers start a run with
`runtime.run(x)`, which returns a task, and join it with `task.wait(timeout)`. A task can also be awaited. `parallel` (1 or 2)
is the number of inputs that are prepared at once: with 2, the next run is queued behind the current run. An async runtime
needs more device memory, which `get_alloc_per_node(non_blocking_mode=True)` returns.

numpy has no bfloat16, so the type comes from ml_dtypes. A bucket with bfloat16 inputs is computed in float32, and its
floating-point outputs are bfloat16.

Environment variables of the lab, read when a runtime is created:
  RBLN_LAB_DEV_ROOT (/dev)        directory of the device nodes (read at import)
  RBLN_LAB_VERSION                version that replaces the version of the package (read at import)
  RBLN_LAB_NPU_NAME               type of the cards; without it the type of a compiled file is not checked, as the emulated
                                  sysfs is not visible in a container
  RBLN_LAB_DEVICE_MS (0)          time of one run on the NPU
  RBLN_LAB_DEVICE_MEMORY (16 GiB) bytes of memory of each NPU
  RBLN_LAB_LEDGER                 directory for the records of the intervals in which each NPU ran
  RBLN_LAB_FAULTS                 file of faults: no_memory when a runtime is created; 501, 503, hang, hang_forever in a run
"""

from __future__ import annotations

import json
import os
import queue
import re
import sys
import threading
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Callable, Generator, Optional, Sequence, Union

import numpy as np

from rebel import _compiler, _device
from rebel._cpu import computed, numpy_type, session_of
from rebel.core.exception import RBLNCompileError, RBLNRuntimeError

# Each process of each model imports this module, so imports that few processes need are in functions.
if TYPE_CHECKING:
    from concurrent.futures import Future

try:
    # build.py adds this module to the wheel.
    from rebel._version import VERSION
except ModuleNotFoundError:
    VERSION = "0.0.0+source"
__version__ = os.environ.get("RBLN_LAB_VERSION") or VERSION

PathLike = Union[str, os.PathLike[str]]

DEV_ROOT = Path(os.environ.get("RBLN_LAB_DEV_ROOT", "/dev"))
VISIBLE = os.environ.get("RBLN_DEVICES")
EPOCH = (2024, 1, 1, 0, 0, 0)  # Time stamp of all files in a compiled file
# Bytes of device memory that a bucket needs in addition to its weights, on each NPU
BUCKET_BYTES = 1 << 20
# Additional bytes that a bucket needs in an async runtime, for inputs that are prepared during a run
ASYNC_BYTES = 1 << 16
DEFAULT_NPU = "RBLN-CA12"  # Type to compile for if no other is known


def _line(number: str) -> str:
    """Return the minor line of a version, such as 0.9. A compiled file only runs on the SDK line that compiled it."""
    found = re.match(r"\d+\.\d+", number)
    return found.group() if found else number


# If the package is not installed, the API has the form of 0.9.
API_VERSION = (0, 9) if __version__ == "0.0.0+source" else tuple(int(part) for part in _line(__version__).split("."))
# True if one runtime serves all buckets
ONE_RUNTIME = API_VERSION >= (0, 11)
# True if the async runtime accepts a file of several buckets, which it does since 0.9.2
ASYNC_BUCKETS = __version__ == "0.0.0+source" or tuple(int(part) for part in re.findall(r"\d+", __version__)[:3]) >= (0, 9, 2)


def _nodes() -> list[Path]:
    """Return the device nodes of the NPUs that this process may use, in their order."""
    found = sorted(DEV_ROOT.glob("rbln[0-9]*"), key=lambda path: int(path.name[4:]))
    if VISIBLE is None:
        return found
    chosen = [int(number) for number in VISIBLE.split(",") if number.strip()]
    return [path for path in found if int(path.name[4:]) in chosen]


def _check_selection() -> None:
    """Raise RBLNRuntimeError if RBLN_DEVICES has changed, which the vendor's runtime reads only once."""
    if os.environ.get("RBLN_DEVICES") != VISIBLE:
        raise RBLNRuntimeError("RBLN_DEVICES environment variable changed at runtime")


def device_count() -> int:
    """Return the number of usable NPUs, which is 0 if the group's node /dev/rsd0 is missing."""
    return len(_nodes()) if (DEV_ROOT / "rsd0").exists() else 0


def npu_is_available(device: int = 0) -> bool:
    """Return True if NPU `device` can be used."""
    return 0 <= device < device_count()


def get_npu_name(device: int = 0) -> Optional[str]:
    """Return the type of an NPU, such as RBLN-CA12, or None if it is absent or unknown."""
    return os.environ.get("RBLN_LAB_NPU_NAME") if npu_is_available(device) else None


class RBLNCompiledModel:
    """A compiled file: one ONNX model, and a list of buckets with fixed shapes.

    `meta` is {"compiler_version", "npu", "devices", "weights": bytes, "buckets": [{"inputs": [{"name", "shape", "dtype"}],
    "outputs": [...]}]}. Names of outputs may be null.
    """

    def __init__(self, path: PathLike) -> None:
        self.meta = _meta_of(path)
        self._path: Optional[PathLike] = path
        self._onnx: Optional[bytes] = None
        self._set_up()
        if _line(self.meta["compiler_version"]) != _line(__version__) and __version__ != "0.0.0+source":
            raise RBLNRuntimeError(
                f"compiled with {self.meta['compiler_version']}, this runtime is {__version__}: compile it again."
            )

    @classmethod
    def _made(cls, meta: dict[str, Any], onnx: bytes) -> RBLNCompiledModel:
        model = cls.__new__(cls)
        model.meta, model._path, model._onnx = meta, None, onnx
        model._set_up()
        return model

    def _set_up(self) -> None:
        self._session: Any = None
        self._kind: Optional[type] = None
        self._making = threading.Lock()
        # Number of runtimes of this model on each NPU. They share its weights.
        self._sharing: dict[_device.Npu, int] = {}

    @property
    def onnx(self) -> bytes:
        """The ONNX model, read on demand because the weights may be large."""
        if self._onnx is not None:
            return self._onnx
        assert self._path is not None
        with _BrokenFileIsAnError(), zipfile.ZipFile(self._path) as archive:
            return archive.read("model.onnx")

    def save(self, path: PathLike) -> None:
        """Write the compiled file. The same model gives the same bytes."""
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for name, content in (("meta.json", json.dumps(self.meta, sort_keys=True).encode()), ("model.onnx", self.onnx)):
                archive.writestr(zipfile.ZipInfo(name, EPOCH), content)

    def get_alloc_per_node(self, non_blocking_mode: bool = False) -> list[int]:
        """Return the bytes of device memory of all buckets on each NPU of the model.

        With `non_blocking_mode` these are the bytes in an async runtime.
        """
        return _alloc_per_node(self.meta, non_blocking_mode)

    def get_total_device_alloc(self, non_blocking_mode: bool = False) -> int:
        """Return the bytes of device memory of all buckets over all NPUs."""
        return sum(self.get_alloc_per_node(non_blocking_mode))

    def create_runtime(
        self,
        name: Optional[str] = None,
        *,
        tensor_type: Optional[str] = None,
        device: Union[int, Sequence[int], None] = None,
        activate_profiler: Optional[bool] = None,
        timeout: Union[int, float, None] = None,
        **more: Any,
    ) -> Runtime:
        """Return a runtime on one NPU, or on a list of NPUs. It excludes async runtimes of the same instance.

        Before 0.11 a runtime serves one bucket, which `input_info_index` in `more` selects.
        """
        return Runtime(self, device=device, tensor_type=tensor_type or "np", timeout=timeout, **_index("create_runtime", more))

    def create_async_runtime(
        self,
        name: Optional[str] = None,
        *,
        tensor_type: Optional[str] = None,
        device: Optional[int] = None,
        parallel: Optional[int] = None,
        timeout: Union[int, float, None] = None,
        **more: Any,
    ) -> AsyncRuntime:
        """Return an async runtime on one NPU. It excludes synchronous runtimes of the instance. `more` is as in create_runtime."""
        return AsyncRuntime(
            self,
            device=device,
            tensor_type=tensor_type or "np",
            parallel=parallel,
            timeout=timeout,
            **_index("create_async_runtime", more),
        )

    if API_VERSION >= (0, 9):

        @staticmethod
        def inspect(path: PathLike) -> Any:
            """Return the metadata of a compiled file without loading it, as a dict, or since 0.11 as an object.

            `inputs` and `outputs` are those of the first bucket. `input_info` contains those of every bucket.
            """
            import uuid

            meta = _meta_of(path)
            several = meta["devices"] if meta["devices"] > 1 else None
            found = {
                "compiler_version": meta["compiler_version"],
                "npu": meta["npu"],
                ("num_devices" if API_VERSION >= (0, 11) else "tensor_parallel_size"): several,
                "uuid": str(uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(meta, sort_keys=True))),
                "alloc_per_node": _alloc_per_node(meta),
                "inputs": meta["buckets"][0]["inputs"],
                "outputs": meta["buckets"][0]["outputs"],
                "input_info": meta["buckets"],
            }
            return json.loads(json.dumps(found), object_hook=_as_object if API_VERSION >= (0, 11) else None)

    def _allocate(self, kind: type, npus: Sequence[_device.Npu], buckets: int, memory: int) -> Any:
        """Return the shared session of all runtimes of this instance, and allocate `buckets` bytes and the weights on the NPUs."""
        with self._making:
            if self._kind not in (None, kind):
                raise RBLNRuntimeError("a compiled model has either runtimes or async runtimes: load the file again.")
            if self._session is None:
                self._session = session_of(self.onnx)
            allocated: list[_device.Npu] = []
            try:
                for npu in npus:
                    npu.allocate(buckets + (0 if npu in self._sharing else self._weights()), memory)
                    self._sharing[npu] = self._sharing.get(npu, 0) + 1
                    allocated.append(npu)
            except RBLNRuntimeError:
                self._release_unlocked(allocated, buckets)
                raise
            self._kind = kind
            return self._session

    def _release(self, npus: Sequence[_device.Npu], buckets: int) -> None:
        with self._making:
            self._release_unlocked(npus, buckets)

    def _release_unlocked(self, npus: Sequence[_device.Npu], buckets: int) -> None:
        for npu in npus:
            self._sharing[npu] -= 1
            last = not self._sharing[npu]
            if last:
                del self._sharing[npu]
            npu.release(buckets + (self._weights() if last else 0))

    def _weights(self) -> int:
        return self.meta["weights"] // self.meta["devices"]


class Runtime:
    """A compiled model on one or several NPUs, before 0.11 only one bucket of it. Call it with inputs by position or by name."""

    def __init__(
        self,
        model: Union[PathLike, RBLNCompiledModel],
        *,
        device: Union[int, Sequence[int], None] = None,
        tensor_type: str = "np",
        activate_profiler: Optional[bool] = None,
        timeout: Union[int, float, None] = None,
        **more: Any,
    ) -> None:
        self._prepare(model, device, tensor_type, timeout, _index("Runtime", more).get("input_info_index"))

    def _prepare(
        self,
        model: Union[PathLike, RBLNCompiledModel],
        device: Union[int, Sequence[int], None],
        tensor_type: str,
        timeout: Union[int, float, None],
        input_info_index: Optional[int],
    ) -> None:
        """Raise RBLNRuntimeError or TypeError if the model cannot run. Otherwise open the NPUs and allocate memory."""
        if tensor_type != "np":
            raise RBLNRuntimeError(f"tensor_type {tensor_type!r} is not supported here, only 'np'.")
        if API_VERSION >= (0, 11) and timeout is not None and not isinstance(timeout, int):
            raise TypeError(f"create_{self._call}_runtime(): incompatible function arguments, timeout has to be an int")
        _check_selection()
        compiled = model if isinstance(model, RBLNCompiledModel) else RBLNCompiledModel(model)
        wanted = compiled.meta["devices"]
        chosen = list(range(wanted)) if device is None else [device] if isinstance(device, int) else list(device)
        if len(set(chosen)) != wanted or len(chosen) != wanted:
            raise RBLNRuntimeError(f"compiled for {wanted} NPUs, device is {device}.")
        for node in chosen:
            if not npu_is_available(node):
                raise RBLNRuntimeError(f"NPU {node} is not available: {device_count()} NPUs are visible.")
            here = get_npu_name(node)
            if here and compiled.meta["npu"] != here:
                raise RBLNRuntimeError(f"compiled for {compiled.meta['npu']}, NPU {node} is {here}.")
        buckets = compiled.meta["buckets"]
        if not ONE_RUNTIME:
            index = input_info_index or 0
            if not 0 <= index < len(buckets):
                raise RBLNRuntimeError(f"input_info_index {index} is not one of 0 to {len(buckets) - 1}.")
            buckets = [buckets[index]]
        self._buckets = [
            [(tensor["name"], tuple(tensor["shape"]), numpy_type(tensor["dtype"])) for tensor in bucket["inputs"]]
            for bucket in buckets
        ]
        self._inputs = self._buckets[0]
        self._timeout = None if timeout is None else int(timeout * 1_000_000_000)
        setting = os.environ.get
        self._duration = int(float(setting("RBLN_LAB_DEVICE_MS") or 0) * 1_000_000)
        self._ledger = _device.Ledger(ledger) if (ledger := setting("RBLN_LAB_LEDGER")) else None
        self._faults = _device.FaultFile(faults) if (faults := setting("RBLN_LAB_FAULTS")) else None
        # All runs lock NPUs in the order of their numbers, so that two runs on several NPUs never wait for each other's locks.
        npus = sorted((_device.npu_at(_nodes()[node]) for node in chosen), key=lambda npu: npu.number)
        if self._faults and self._faults.next(npus, ("no_memory",)):
            raise RBLNRuntimeError("Lack of device memory")
        memory = int(setting("RBLN_LAB_DEVICE_MEMORY") or _device.DEFAULT_MEMORY)
        self._bytes = len(buckets) * _bucket_bytes(self._call == "async")
        self._session = compiled._allocate(type(self), npus, self._bytes, memory)
        self._compiled, self._npus = compiled, npus
        self._open = [open(npu.node, "rb") for npu in npus]  # noqa: SIM115  `close` closes them.

    _call = "sync"

    def run(self, *inputs: np.ndarray, **named: np.ndarray) -> Any:
        """Return the outputs: one array, or a list of several. The inputs have to have the shapes and types of a bucket."""
        return self._run(self._feed(inputs, named))

    __call__ = run

    def _feed(self, inputs: Sequence[np.ndarray], named: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if named:
            unknown = sorted(set(named) - {entry[0] for entry in self._inputs})
            if unknown or inputs:
                raise RBLNRuntimeError(f"unexpected inputs {unknown or 'by position beside named ones'}.")
            inputs = tuple(named[entry[0]] for entry in self._inputs if entry[0] in named)
        if len(inputs) != len(self._inputs):
            raise RBLNRuntimeError(f"{len(inputs)} inputs given, the model takes {len(self._inputs)}.")
        for (name, _shape, _kind), array in zip(self._inputs, inputs):
            if not isinstance(array, np.ndarray):
                raise RBLNRuntimeError(f"input {name}: {type(array).__name__} given, expected a numpy array.")
        found = [(array.shape, array.dtype) for array in inputs]
        if found not in [[entry[1:] for entry in bucket] for bucket in self._buckets]:
            raise RBLNRuntimeError(self._misfit(found))
        for (name, _shape, _kind), array in zip(self._inputs, inputs):
            if not array.flags.c_contiguous:
                raise RBLNRuntimeError(f"input {name}: not C-contiguous.")
        return {entry[0]: array for entry, array in zip(self._inputs, inputs)}

    def _misfit(self, found: Sequence[Any]) -> str:
        """Return the message for inputs whose shapes and types fit no bucket."""
        if len(self._buckets) > 1:
            given = [f"{kind}{list(shape)}" for shape, kind in found]
            compiled = [[f"{kind}{list(shape)}" for _name, shape, kind in bucket] for bucket in self._buckets]
            return f"{given} given, compiled for {' or '.join(map(str, compiled))}."
        for (name, shape, kind), entry in zip(self._inputs, found):
            if entry != (shape, kind):
                return f"input {name}: {entry[1]}{list(entry[0])} given, compiled for {kind}{list(shape)}."
        raise AssertionError("they fit")

    def _run(self, feed: dict[str, np.ndarray]) -> Any:
        """Run once. The interval on the NPU is reserved first, so that it does not depend on the speed of the CPU."""
        if not self._open:
            raise RBLNRuntimeError("this runtime is closed.")
        limit = None if self._timeout is None else time.monotonic_ns() + self._timeout
        if self._faults:
            self._emulate_fault(self._faults, limit)
        begin, end = _device.reserve(self._npus, self._duration)
        if self._ledger:
            self._ledger.write(self._npus, begin, end, next((len(array) for array in feed.values() if array.ndim), 1))
        if limit is not None and end > limit:
            self._raise_timeout(limit)
        outputs = computed(self._session, feed)
        _device.wait_until(end)
        return outputs[0] if len(outputs) == 1 else outputs

    def _emulate_fault(self, faults: _device.FaultFile, limit: Optional[int]) -> None:
        """Emulate the fault that applies to the NPU now, if any."""
        kind = faults.next(self._npus, _device.RUN_FAULTS)
        if kind in ("501", "503"):
            raise RBLNRuntimeError(f"Inference failed: {kind}")
        if kind == "hang_forever":
            _device.never_return()
        if kind == "hang":
            while faults.applies(self._npus, "hang"):
                if limit is not None and time.monotonic_ns() >= limit:
                    self._raise_timeout(limit)
                time.sleep(_device.FAULT_POLL_SECONDS)

    def _raise_timeout(self, limit: int) -> None:
        """Raise the error of a timeout. The vendor's message is unknown."""
        _device.wait_until(limit)
        seconds = (self._timeout or 0) / 1e9
        raise RBLNRuntimeError(f"Inference failed: no answer of NPU {self._npus[0].number} within the timeout of {seconds:g} s.")

    def close(self) -> None:
        """Close the nodes of the NPUs and release their memory."""
        if getattr(self, "_open", None):
            opened, self._open = self._open, []
            for node in opened:
                node.close()
            self._compiled._release(self._npus, self._bytes)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():  # When the process ends, the kernel closes everything.
            self.close()


class _Core(Runtime):
    """The runtime that the threads of an async runtime share."""

    _call = "async"


class AsyncTask:
    """A run in the queue. Join it with `wait()`, or await it."""

    def __init__(self) -> None:
        from concurrent.futures import Future

        self._future: Future[Any] = Future()
        # A queued run cannot be cancelled.
        self._future.set_running_or_notify_cancel()

    def done(self) -> bool:
        """Return True if the run has ended, with or without an error."""
        return self._future.done()

    def wait(self, timeout: Optional[float] = None) -> Any:
        """Return the outputs of the run, or raise its error. Raises TimeoutError after `timeout` seconds."""
        return self._future.result(timeout)

    def __await__(self) -> Generator[Any, None, Any]:
        import asyncio

        return asyncio.wrap_future(self._future).__await__()


class AsyncRuntime:
    """A runtime with a queue of runs. `parallel` threads take the runs in their order."""

    def __init__(
        self,
        model: Union[PathLike, RBLNCompiledModel],
        *,
        device: Optional[int] = None,
        tensor_type: str = "np",
        parallel: Optional[int] = None,
        timeout: Union[int, float, None] = None,
        **more: Any,
    ) -> None:
        if device is not None and not isinstance(device, int):
            raise TypeError(f"create_async_runtime(): incompatible function arguments, device has to be an int, not {device!r}")
        self.parallel = 1 if parallel is None else parallel
        if self.parallel not in (1, 2):
            raise RBLNRuntimeError(f"parallel is {parallel}, expected 1 or 2.")
        compiled = model if isinstance(model, RBLNCompiledModel) else RBLNCompiledModel(model)
        if len(compiled.meta["buckets"]) > 1 and not ASYNC_BUCKETS:
            raise RBLNRuntimeError(f"an async runtime of SDK {__version__} takes a model of one bucket.")
        self._core = _Core(compiled, device=device, tensor_type=tensor_type, timeout=timeout, **_index("AsyncRuntime", more))
        self._queue: queue.SimpleQueue[Optional[tuple[AsyncTask, dict[str, np.ndarray]]]] = queue.SimpleQueue()
        for _number in range(self.parallel):
            # Daemon threads, so that a hanging run does not keep the process alive. They have no reference to this object.
            threading.Thread(target=_serve, args=(self._core, self._queue), daemon=True).start()

    def run(self, *inputs: np.ndarray, **named: np.ndarray) -> AsyncTask:
        """Put a run on the queue. Wrong inputs are refused at once. The arrays must not change until the run ends."""
        if self._core is None:
            raise RBLNRuntimeError("this runtime is closed.")
        task = AsyncTask()
        self._queue.put((task, self._core._feed(inputs, named)))
        return task

    __call__ = run
    async_run = run

    def close(self) -> None:
        """Release the NPU after the queued runs."""
        if getattr(self, "_core", None) is not None:
            self._core = None
            for _number in range(self.parallel):
                self._queue.put(None)

    def __del__(self) -> None:
        self.close()


def _serve(core: Runtime, waiting: queue.SimpleQueue[Any]) -> None:
    """Execute the runs of a queue until it contains None."""
    while (given := waiting.get()) is not None:
        task, feed = given
        try:
            task._future.set_result(core._run(feed))
        except BaseException as error:  # The caller of the run gets every error.
            task._future.set_exception(error)
        # Otherwise these variables would keep the arrays and the result in memory until the next run.
        del given, task, feed


if ONE_RUNTIME:

    def compile_from_onnx(
        mod: Any, shape: Union[dict[str, Any], Sequence[dict[str, Any]]], npu: Optional[str] = None, *, num_devices: int = 1
    ) -> RBLNCompiledModel:
        """Compile a loaded ONNX model for {name: shape} of its inputs, or for a list of them. The model defines the types.

        `npu` is the card type to compile for. Default is RBLN_FORCE_NPU_NAME, RBLN_TARGET_SOC, or the type of NPU 0.
        """
        return _compiled(*_compiler.compiled_onnx(mod, _compiler.infos_of_shapes(mod, shape)), npu, num_devices)

else:

    def compile_from_onnx(  # type: ignore[misc]
        model: Any, input_info: Sequence[Any], npu: Optional[str] = None, *, tensor_parallel_size: int = 1
    ) -> RBLNCompiledModel:
        """Compile an ONNX model (bytes, path or ModelProto) for one bucket, a list of (name, shape, dtype), or a list of buckets.

        `npu` is the card type to compile for. Default is RBLN_FORCE_NPU_NAME, RBLN_TARGET_SOC, or the type of NPU 0.
        """
        return _compiled(*_compiler.compiled_onnx(model, _compiler.infos_of(input_info)), npu, tensor_parallel_size)


def compile_from_torch(
    mod: Any,
    input_info: Sequence[Any],
    npu: Optional[str] = None,
    *,
    tensor_parallel_size: Optional[int] = None,
    num_devices: Optional[int] = None,
) -> RBLNCompiledModel:
    """Compile a PyTorch module through ONNX. As with the vendor's compiler, the outputs have no names."""
    devices = _devices(tensor_parallel_size, num_devices)
    infos = _compiler.infos_of(input_info)
    raw, buckets = _compiler.compiled_onnx(_compiler.onnx_of_torch(mod, infos), infos)
    for bucket in buckets:
        for tensor in bucket["outputs"]:
            tensor["name"] = None
    return _compiled(raw, buckets, npu, devices)


def _compiled(raw: bytes, buckets: list[dict[str, Any]], npu: Optional[str], devices: int) -> RBLNCompiledModel:
    chosen = npu or os.environ.get("RBLN_FORCE_NPU_NAME") or os.environ.get("RBLN_TARGET_SOC") or get_npu_name(0)
    meta = {
        "compiler_version": __version__,
        "npu": chosen or DEFAULT_NPU,
        "devices": devices,
        "weights": len(raw),
        "buckets": buckets,
    }
    return RBLNCompiledModel._made(meta, raw)


def _devices(tensor_parallel_size: Optional[int], num_devices: Optional[int]) -> int:
    """Return the number of NPUs to compile for. Each version accepts only one of the two names."""
    name, refused_value = ("num_devices", tensor_parallel_size) if API_VERSION >= (0, 11) else ("tensor_parallel_size", num_devices)
    if refused_value is not None:
        wrong = "tensor_parallel_size" if name == "num_devices" else "num_devices"
        raise TypeError(f"unexpected keyword argument {wrong!r}: SDK {__version__} calls it {name}")
    return num_devices or tensor_parallel_size or 1


class _BrokenFileIsAnError:
    """A context manager that turns errors of a damaged compiled file into the SDK's error."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, _trace: Any) -> None:
        if isinstance(error, (zipfile.BadZipFile, KeyError, ValueError, OSError)):
            raise RBLNRuntimeError(f"LOADING_FILE_BROKEN: not a compiled model ({error}).") from error


def _meta_of(path: PathLike) -> dict[str, Any]:
    """Return the metadata of a compiled file without reading its model."""
    if not os.path.isfile(path):
        raise RBLNRuntimeError("LOADING_FILE_NOT_FOUND: The specified file does not exist.")
    with _BrokenFileIsAnError(), zipfile.ZipFile(path) as archive:
        archive.getinfo("model.onnx")
        return json.loads(archive.read("meta.json"))


def _bucket_bytes(non_blocking_mode: bool) -> int:
    return BUCKET_BYTES + (ASYNC_BYTES if non_blocking_mode else 0)


def _alloc_per_node(meta: dict[str, Any], non_blocking_mode: bool = False) -> list[int]:
    buckets = _bucket_bytes(non_blocking_mode) * len(meta["buckets"])
    return [meta["weights"] // meta["devices"] + buckets] * meta["devices"]


def _index(call: str, more: dict[str, Any]) -> dict[str, Optional[int]]:
    """Return {"input_info_index"} of further arguments of a call, {} since 0.11. Raises TypeError for other arguments."""
    for name in more:
        if ONE_RUNTIME or name != "input_info_index":
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}")
    return {} if ONE_RUNTIME else {"input_info_index": more.get("input_info_index")}


def _as_object(found: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(**found)


__all__ = [
    "AsyncRuntime",
    "AsyncTask",
    "RBLNCompileError",
    "RBLNCompiledModel",
    "RBLNRuntimeError",
    "Runtime",
    "compile_from_onnx",
    "compile_from_torch",
    "device_count",
    "get_npu_name",
    "npu_is_available",
]
