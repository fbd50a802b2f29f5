"""The vendor's SDK in its forms 0.6, 0.9 and 0.11, behind one face. Imported where an NPU may be touched, never at import.

What sets the forms apart is decided here, by the version of the SDK (docs.rbln.ai, bucketing and Python API of each version):
whether one runtime serves all buckets, and which runtime there can be.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from .compiled import BFLOAT16, TYPES
from .errors import Fault

# Starts a run of a bucket; what it gives waits for the outputs. The vendor's synchronous runtime starts only there.
Run = Callable[[Sequence[np.ndarray]], Callable[[], List[np.ndarray]]]
# From here on one runtime serves all buckets and chooses by the shapes that it is given.
SHARED_FROM = (0, 11)
# From here on the asynchronous runtime takes a file of several buckets.
ASYNC_BUCKETS_FROM = (0, 9, 2)


class SDK:
    """The `rebel` module of this image."""

    def __init__(self) -> None:
        try:
            import rebel
        except ImportError as error:
            raise Fault(f"the image has no usable SDK, rebel-compiler: {error}") from error
        self._rebel: Any = rebel

    @property
    def version(self) -> str:
        """Version of the SDK, empty where neither module nor package says it."""
        found = getattr(self._rebel, "__version__", "")
        if found:
            return str(found)
        # Here, as each process of a model would else import it
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("rebel-compiler")
        except PackageNotFoundError:
            return ""

    def inspect(self, path: str) -> Optional[Dict[str, Any]]:
        """What the SDK reads out of a compiled file without an NPU: None before 0.9, {"flaw": why} where it is not understood."""
        inspect = getattr(self._rebel.RBLNCompiledModel, "inspect", None)
        if inspect is None:
            return None
        found = inspect(path)
        try:
            return _plain(found)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"{type(found).__name__} with {', '.join(_fields(found)) or 'no fields'}"
            return {"flaw": f"inspect of SDK {self.version} gives {what}, which this backend does not understand ({error})"}

    def count(self) -> int:
        """Number of visible NPUs."""
        return int(self._rebel.device_count())

    def card(self, npu: int) -> Optional[str]:
        """Type of an NPU, such as RBLN-CA12; None where it is not known."""
        name = getattr(self._rebel, "get_npu_name", None)
        return name(npu) if name else None

    def per_bucket(self, said: str) -> bool:
        """Whether each bucket has a runtime of its own: as parameter `runtime_per_bucket` says, else as this SDK wants it."""
        if said not in ("", "true", "false"):
            raise Fault(f"parameter runtime_per_bucket is {said!r}, wanted true or false")
        return said == "true" if said else _numbers(self.version) < SHARED_FROM

    def load(
        self, path: str, buckets: int, npus: Sequence[int], timeout_s: int, parallel: int, per_bucket: bool
    ) -> List[List[Run]]:
        """Runtimes of a compiled file on its NPUs: for each of `parallel` runs that may be under way at once, one for each bucket.

        The asynchronous runtime holds the file once for all of them; it is for one NPU. Without it, each run under way has runtimes
        of its own, because nothing says that one of the vendor's may be called twice at a time. A file that spans NPUs is too large
        for that: its runs follow each other.
        """
        common = {"tensor_type": "np", "device": npus[0] if len(npus) == 1 else list(npus)}

        def runs(create: Callable[..., Any], wrap: Callable[[Any], Run], **more: Any) -> List[Run]:
            if not per_bucket:
                return [wrap(_make(create, timeout_s, **common, **more))] * buckets
            return [wrap(_make(create, timeout_s, input_info_index=index, **common, **more)) for index in range(buckets)]

        model = self._rebel.RBLNCompiledModel
        version = _numbers(self.version)
        queued = hasattr(model, "create_async_runtime") and (buckets == 1 or not version or version >= ASYNC_BUCKETS_FROM)
        if parallel > 1 and len(npus) == 1 and queued:
            return [runs(model(path).create_async_runtime, _asynchronous, parallel=parallel)] * parallel
        # A compiled model for each: the vendor keeps its runtimes apart by it.
        return [runs(model(path).create_runtime, _synchronous) for _number in range(parallel if len(npus) == 1 else 1)]


def sdk_array(array: np.ndarray, dtype: str) -> np.ndarray:
    """Memory of a tensor as the SDK takes it: bfloat16 lies there as 16 bits, and the SDK's is of ml_dtypes, as numpy has none."""
    if dtype != BFLOAT16:
        return array
    try:
        import ml_dtypes
    except ImportError as error:
        raise Fault(f"the model has {BFLOAT16} tensors, and the image has no ml_dtypes, which the SDK brings: {error}") from error
    return array.view(ml_dtypes.bfloat16)


def _numbers(version: str) -> Tuple[int, ...]:
    """A version's first three numbers, (0, 9, 4); none where it is not known."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _make(create: Callable[..., Any], timeout_s: int, **options: Any) -> Any:
    """A runtime with the vendor's own time limit, in whole seconds, where this shape of the SDK takes one."""
    if timeout_s:
        try:
            return create(timeout=timeout_s, **options)
        except TypeError:
            pass
    return create(**options)


def _get(entry: Any, name: str) -> Any:
    """A field of what `inspect` gives: a mapping or an object, by version; None where it has none."""
    return entry.get(name) if isinstance(entry, Mapping) else getattr(entry, name, None)


def _fields(found: Any) -> List[str]:
    """Names of what `inspect` gave."""
    return [str(name) for name in (found if isinstance(found, Mapping) else getattr(found, "__dict__", ()))][:20]


def _plain(found: Any) -> Dict[str, Any]:
    """A result of `inspect` as plain data. Raises where it is none that is known."""

    def tensor(entry: Any) -> Dict[str, Any]:
        shape, dtype, name = _get(entry, "shape"), _get(entry, "dtype"), _get(entry, "name")
        if shape is None or dtype is None:
            raise ValueError(f"a tensor is {str(entry)[:80]!r}, wanted name, shape and dtype")
        # "float32", numpy's own type or class, or "torch.float32"
        kind = str(getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype).rpartition(".")[2]
        if kind not in TYPES:
            raise ValueError(f"a tensor's dtype is {str(dtype)[:80]!r}, wanted one of {', '.join(TYPES)}")
        return {"name": None if name is None else str(name), "shape": [int(size) for size in shape], "dtype": kind}

    def bucket(entry: Any) -> Dict[str, Any]:
        inputs = [tensor(part) for part in _get(entry, "inputs") or ()]
        if not inputs:
            raise ValueError("it has no inputs")
        return {"inputs": inputs, "outputs": [tensor(part) for part in _get(entry, "outputs") or ()]}

    every = [bucket(entry) for entry in _get(found, "input_info") or ()]
    devices = _get(found, "num_devices") or _get(found, "tensor_parallel_size")
    return {
        "npu": _get(found, "npu"),
        "compiler_version": _get(found, "compiler_version"),
        "devices": None if devices is None else int(devices),
        **(bucket(found) if _get(found, "inputs") or not every else every[0]),
        "input_info": every,
    }


def _arrays(found: Any) -> List[np.ndarray]:
    """Outputs of a run as a list, whether the runtime gives one array, a list or a tuple."""
    arrays = list(found) if isinstance(found, (list, tuple)) else [found]
    for entry in arrays:
        if not isinstance(entry, np.ndarray):
            raise Fault(f"the SDK's runtime gave {type(entry).__name__}, wanted an array, or a list or tuple of them")
    return arrays


def _synchronous(runtime: Any) -> Run:
    run = runtime.run
    return lambda inputs: lambda: _arrays(run(*inputs))


def _asynchronous(runtime: Any) -> Run:
    """The run is on the NPU's queue before anybody waits: it has the next batch when this one ends."""
    start = getattr(runtime, "run", None) or runtime.async_run

    def run(inputs: Sequence[np.ndarray]) -> Callable[[], List[np.ndarray]]:
        task = start(*inputs)
        return lambda: _arrays(_joined(task))

    return run


def _joined(task: Any) -> Any:
    """Outputs of a task, in whichever way this version of the SDK joins one."""
    for name in ("result", "wait"):
        if hasattr(task, name):
            return getattr(task, name)()
    if not hasattr(task, "__await__"):
        return task
    # Here, as each process of a model would else import it
    import asyncio

    return asyncio.run(_awaited(task))


async def _awaited(task: Any) -> Any:
    return await task
