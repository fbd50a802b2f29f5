"""One interface for the versions 0.6, 0.9 and 0.11 of the vendor's SDK. Only a call of SDK() imports the SDK itself.

A bucket is one set of shapes that a file was compiled for. From 0.11 on, one runtime serves all buckets (docs.rbln.ai, bucketing
and Python API of each version).
"""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from .compiled import BFLOAT16, TYPES
from .errors import Fault

# A function that runs one bucket: it takes the inputs and returns the outputs
Run = Callable[[Sequence[np.ndarray]], List[np.ndarray]]
# First version whose runtime serves all buckets. The runtime selects the bucket by the shapes of the inputs.
SHARED_FROM = (0, 11)


class SDK:
    """The SDK of this image, its Python module `rebel`."""

    def __init__(self) -> None:
        try:
            import rebel
        except ImportError as error:
            raise Fault(f"the image has no usable SDK, rebel-compiler: {error}") from error
        self._rebel: Any = rebel

    @property
    def version(self) -> str:
        """The version of the SDK. It is empty if neither the module nor its package has a version."""
        found = getattr(self._rebel, "__version__", "")
        if found:
            return str(found)
        # Most processes do not need importlib.metadata, so it is imported only here.
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("rebel-compiler")
        except PackageNotFoundError:
            return ""

    def inspect(self, path: str) -> Optional[Dict[str, Any]]:
        """Return the SDK's facts about a compiled file. Return None for an SDK before 0.9.

        If the form of the facts is unknown, return {"flaw": reason}.
        """
        inspect = getattr(self._rebel.RBLNCompiledModel, "inspect", None)
        if inspect is None:
            return None
        found = inspect(path)
        try:
            return _plain(found)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"{type(found).__name__} with {', '.join(_field_names(found)) or 'no fields'}"
            return {"flaw": f"inspect of SDK {self.version} returns {what}, which this backend cannot read ({error})"}

    def count(self) -> int:
        """Return the number of visible NPUs."""
        return int(self._rebel.device_count())

    def card(self, npu: int) -> Optional[str]:
        """Return the type of an NPU, such as RBLN-CA12, or None if it is unknown."""
        name = getattr(self._rebel, "get_npu_name", None)
        return name(npu) if name else None

    def per_bucket(self, text: str) -> bool:
        """Return True if each bucket needs its own runtime. `text` is the parameter `runtime_per_bucket`, which may be empty."""
        if text not in ("", "true", "false"):
            raise Fault(f"parameter runtime_per_bucket is {text!r}, expected true or false")
        return text == "true" if text else _numbers(self.version) < SHARED_FROM

    def load(self, path: str, buckets: int, npus: Sequence[int], timeout_s: int, per_bucket: bool) -> List[Run]:
        """Load a compiled file onto its NPUs, and return a run function for each bucket."""
        common = {"tensor_type": "np", "device": npus[0] if len(npus) == 1 else list(npus)}
        create = self._rebel.RBLNCompiledModel(path).create_runtime
        if not per_bucket:
            return [_run_of(_make(create, timeout_s, **common))] * buckets
        return [_run_of(_make(create, timeout_s, input_info_index=index, **common)) for index in range(buckets)]


def sdk_array(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return an array for the SDK. For bfloat16, uint16 becomes the type of ml_dtypes, because numpy has no such type."""
    if dtype != BFLOAT16:
        return array
    try:
        import ml_dtypes
    except ImportError as error:
        raise Fault(f"the model has {BFLOAT16} tensors, and the image lacks ml_dtypes, a package of the SDK: {error}") from error
    return array.view(ml_dtypes.bfloat16)


def _numbers(version: str) -> Tuple[int, ...]:
    """Return the first three numbers of a version, such as (0, 9, 4), or () if it is unknown."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _make(create: Callable[..., Any], timeout_s: int, **options: Any) -> Any:
    """Return a runtime, with a time limit in whole seconds if this version of the SDK has that option."""
    if timeout_s:
        try:
            return create(timeout=timeout_s, **options)
        except TypeError:
            pass
    return create(**options)


def _get(entry: Any, name: str) -> Any:
    """Return a field of the result of `inspect`, or None. The result is a mapping or an object, depending on the version."""
    return entry.get(name) if isinstance(entry, Mapping) else getattr(entry, name, None)


def _field_names(found: Any) -> List[str]:
    """Return the names of the fields of the result of `inspect`."""
    return [str(name) for name in (found if isinstance(found, Mapping) else getattr(found, "__dict__", ()))][:20]


def _plain(found: Any) -> Dict[str, Any]:
    """Return the result of `inspect` as JSON data. Raises ValueError, KeyError, TypeError or AttributeError for an unknown form."""

    def tensor(entry: Any) -> Dict[str, Any]:
        shape, dtype, name = _get(entry, "shape"), _get(entry, "dtype"), _get(entry, "name")
        if shape is None or dtype is None:
            raise ValueError(f"a tensor is {str(entry)[:80]!r}, expected name, shape and dtype")
        # "float32", numpy's own type or class, or "torch.float32"
        kind = str(getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype).rpartition(".")[2]
        if kind not in TYPES:
            raise ValueError(f"a tensor's dtype is {str(dtype)[:80]!r}, expected one of {', '.join(TYPES)}")
        return {"name": None if name is None else str(name), "shape": [int(size) for size in shape], "dtype": kind}

    def bucket(entry: Any) -> Dict[str, Any]:
        inputs = [tensor(part) for part in _get(entry, "inputs") or ()]
        if not inputs:
            raise ValueError("it has no inputs")
        return {"inputs": inputs, "outputs": [tensor(part) for part in _get(entry, "outputs") or ()]}

    buckets = [bucket(entry) for entry in _get(found, "input_info") or ()]
    devices = _get(found, "num_devices") or _get(found, "tensor_parallel_size")
    return {
        "npu": _get(found, "npu"),
        "compiler_version": _get(found, "compiler_version"),
        "devices": None if devices is None else int(devices),
        **(bucket(found) if _get(found, "inputs") or not buckets else buckets[0]),
        "input_info": buckets,
    }


def _arrays(found: Any) -> List[np.ndarray]:
    """Return the outputs of a run as a list. The SDK returns one array, a list or a tuple."""
    arrays = list(found) if isinstance(found, (list, tuple)) else [found]
    for entry in arrays:
        if not isinstance(entry, np.ndarray):
            raise Fault(f"the SDK's runtime returned {type(entry).__name__}, expected an array, or a list or tuple of them")
    return arrays


def _run_of(runtime: Any) -> Run:
    run = runtime.run
    return lambda inputs: _arrays(run(*inputs))
