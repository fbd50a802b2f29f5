"""The vendor's SDK in its shapes 0.6, 0.9 and 0.11, behind one face. Imported where an NPU may be touched, never at import."""

from __future__ import annotations

import asyncio
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np

from .errors import Fault

# Starts a run of a bucket; what it gives waits for the outputs. The vendor's synchronous runtime starts only there.
Run = Callable[[Sequence[np.ndarray]], Callable[[], List[np.ndarray]]]


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
        try:
            return found or version("rebel-compiler")
        except PackageNotFoundError:
            return ""

    def inspect(self, path: str) -> Optional[Dict[str, Any]]:
        """What the SDK reads out of a compiled file without an NPU; None before 0.9. A dict or an object, by version."""
        inspect = getattr(self._rebel.RBLNCompiledModel, "inspect", None)
        if inspect is None:
            return None
        found = _plain(inspect(path))
        return found if found.get("inputs") or found.get("input_info") else None

    def count(self) -> int:
        """Number of visible NPUs."""
        return int(self._rebel.device_count())

    def card(self, npu: int) -> Optional[str]:
        """Type of an NPU, such as RBLN-CA12; None where it is not known."""
        name = getattr(self._rebel, "get_npu_name", None)
        return name(npu) if name else None

    def load(self, path: str, buckets: int, npus: Sequence[int], timeout_s: int, parallel: int) -> List[List[Run]]:
        """Runtimes of a compiled file on its NPUs: for each of `parallel` runs that may be under way at once, one for each bucket.

        The asynchronous runtime holds the file once for all of them. Without one, each run under way has runtimes of its own,
        because nothing says that one of the vendor's may be called twice at a time.
        """
        device: Any = npus[0] if len(npus) == 1 else list(npus)
        common = {"tensor_type": "np", "device": device}

        def runs(create: Callable[..., Any], wrap: Callable[[Any], Run], **more: Any) -> List[Run]:
            return [wrap(_make(create, timeout_s, input_info_index=index, **common, **more)) for index in range(buckets)]

        model = self._rebel.RBLNCompiledModel
        if parallel > 1 and hasattr(model, "create_async_runtime"):
            return [runs(model(path).create_async_runtime, _asynchronous, parallel=parallel)] * parallel
        # A compiled model for each: the vendor keeps its runtimes apart by it.
        return [runs(model(path).create_runtime, _synchronous) for _number in range(parallel)]


def _make(create: Callable[..., Any], timeout_s: int, **options: Any) -> Any:
    """A runtime with the vendor's own time limit, in whole seconds, where this shape of the SDK takes one."""
    if timeout_s:
        try:
            return create(timeout=timeout_s, **options)
        except TypeError:
            pass
    return create(**options)


def _plain(found: Any) -> Dict[str, Any]:
    """A result of `inspect` as plain data, whether it came as dicts or as objects."""

    def get(entry: Any, name: str) -> Any:
        return entry.get(name) if isinstance(entry, dict) else getattr(entry, name, None)

    def tensors(side: Any) -> List[Dict[str, Any]]:
        return [
            {"name": get(tensor, "name"), "shape": list(get(tensor, "shape")), "dtype": str(get(tensor, "dtype"))}
            for tensor in side or []
        ]

    def bucket(entry: Any) -> Dict[str, Any]:
        return {"inputs": tensors(get(entry, "inputs")), "outputs": tensors(get(entry, "outputs"))}

    names = ("npu", "compiler_version", "num_devices", "tensor_parallel_size")
    return {
        **{name: get(found, name) for name in names},
        **bucket(found),
        "input_info": [bucket(entry) for entry in get(found, "input_info") or []],
    }


def _arrays(found: Any) -> List[np.ndarray]:
    """Outputs of a run as a list, whether the runtime gives one array, a list or a tuple."""
    return list(found) if isinstance(found, (list, tuple)) else [found]


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
    return asyncio.run(_awaited(task)) if hasattr(task, "__await__") else task


async def _awaited(task: Any) -> Any:
    return await task
