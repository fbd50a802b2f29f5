"""Triton's side of the `rbln` backend, played: its utilities as 24.01 and as 24.10 have them, and an SDK without an NPU."""

from __future__ import annotations

import ctypes
import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Optional

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
BACKEND = ROOT / "files/backends/rbln"
KINDS = {"TYPE_FP32": np.float32, "TYPE_INT64": np.int64, "TYPE_FP64": np.float64}
Serve = Callable[..., Any]


def until(true: Callable[[], Any], seconds: float = 120.0) -> None:
    """Wait for a condition; a test that waits in vain fails here."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


# DLManagedTensor of dlpack.h: where the code of its type is, and what it may be
CODE_AT, UNSIGNED, BFLOAT = 20, 1, 4
USED = ctypes.c_char_p(b"used_dlpack")


def code_of(capsule: Any) -> ctypes.c_uint8:
    """The code of what lies in the memory that a DLPack capsule lends."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return ctypes.c_uint8.from_address(pointer(capsule, b"dltensor") + CODE_AT)


class Tensor:
    """Triton's tensor. One of bfloat16 has its bits, uint16, and no array: it comes and goes as DLPack."""

    halves = True

    def __init__(self, name: str, array: np.ndarray, half: bool = False) -> None:
        self._name, self._array, self.half = name, array, half

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        if self.half:
            raise TritonModelException("Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() instead.")
        return self._array

    def to_dlpack(self) -> Any:
        capsule = self._array.__dlpack__()
        if self.half:
            code_of(capsule).value = BFLOAT
        return capsule

    @classmethod
    def from_dlpack(cls, name: str, capsule: Any) -> Tensor:
        code = code_of(capsule)
        half = code.value == BFLOAT
        if half and cls.halves:
            code.value = UNSIGNED
            array = np.from_dlpack(Lent(capsule))
        # Triton's name for one that it took, which is not DLPack's
        ctypes.pythonapi.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
        ctypes.pythonapi.PyCapsule_SetName(capsule, USED)
        if not (half and cls.halves):
            raise TritonModelException("DLPack type is not supported")
        return cls(name, array, half)


class Lent:
    """A DLPack capsule as numpy takes it."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


class TritonError:
    UNAVAILABLE, INTERNAL, INVALID_ARG, CANCELLED = "unavailable", "internal", "invalid_arg", "cancelled"

    def __init__(self, message: str, code: str) -> None:
        self.message, self.code = message, code


class TritonModelException(Exception):
    """A model that cannot be loaded, and what pb_utils itself raises."""


class Response:
    """A response as it leaves: Triton copies it, so later changes of the arrays do not count."""

    def __init__(self, output_tensors: Any = (), error: Optional[TritonError] = None) -> None:
        self.error = error
        self.names = [tensor.name() for tensor in output_tensors]
        self.halves = {tensor.name() for tensor in output_tensors if tensor.half}
        self.outputs = {tensor.name(): tensor._array for tensor in output_tensors}

    def taken(self) -> Response:
        self.outputs = {name: array.copy() for name, array in self.outputs.items()}
        return self


class Request(dict[str, np.ndarray]):
    """A client's request: tensors by name, those of `halves` as bits of bfloat16."""

    halves: tuple[str, ...] = ()

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.cancelled = False

    def is_cancelled(self) -> bool:
        return self.cancelled


class Families:
    """Triton's metrics endpoint: value by name and labels."""

    COUNTER, GAUGE = "counter", "gauge"

    def __init__(self) -> None:
        self.values: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
        self.lock = threading.Lock()

    def __call__(self, name: str, description: str, kind: str) -> Any:
        assert description
        family = self.values.setdefault(name, {})

        def metric(labels: dict[str, str]) -> Any:
            key = frozenset(labels.items())
            family.setdefault(key, 0)

            def increment(value: float) -> None:
                assert kind == self.COUNTER and value >= 0
                with self.lock:
                    family[key] += value

            def assign(value: float) -> None:
                assert kind == self.GAUGE
                family[key] = value

            return SimpleNamespace(increment=increment, set=assign)

        return SimpleNamespace(Metric=metric)

    def value(self, name: str, **labels: str) -> float:
        """Sum over the metrics of a family that have these labels."""
        found = [value for key, value in self.values[name].items() if labels.items() <= dict(key).items()]
        assert found, f"no {name} with {labels}"
        return sum(found)


class NPU:
    """The SDK with `count` NPUs: B squared and A twice, for the batches that the file was compiled for (0: no batch).

    From version 0.11 on a runtime serves all of them, before it the one of its index.
    """

    def __init__(self, count: int = 2, batches: tuple[int, ...] = (1, 2, 4), version: str = "") -> None:
        self.count, self.batches, self.__version__ = count, batches, version
        self.takes_buckets = not version.startswith("0.11")
        self.runs: list[tuple[np.ndarray, ...]] = []
        self.devices: list[Any] = []
        # Whether each runtime was made for one bucket
        self.of_buckets: list[bool] = []
        self.alive = 0
        self.answer: Callable[[np.ndarray, np.ndarray], Any] = lambda a, b: (b * b, a * 2)
        self.addresses: list[int] = []

    def device_count(self) -> int:
        return self.count

    def RBLNCompiledModel(self, path: str) -> Any:
        assert Path(path).read_bytes() == b"compiled"
        return SimpleNamespace(create_runtime=self.create_runtime)

    def create_runtime(self, *, tensor_type: str, device: Any, timeout: int, **bucket: int) -> Any:
        assert tensor_type == "np"
        self.devices.append(device)
        self.of_buckets.append("input_info_index" in bucket)
        npu, batches = self, self.batches
        if self.takes_buckets:
            batches = (batches[bucket.pop("input_info_index")],)
        assert not bucket, f"the SDK of {self.__version__} has no {bucket}"

        class Runtime:
            def __init__(self) -> None:
                npu.alive += 1

            def __del__(self) -> None:
                npu.alive -= 1

            def run(self, a: np.ndarray, b: np.ndarray) -> Any:
                assert batches == (0,) or (len(a) == len(b) and len(a) in batches), "not a compiled batch"
                assert a.flags.c_contiguous and b.flags.c_contiguous
                npu.runs.append((a.copy(), b.copy()))
                npu.addresses.append(a.ctypes.data)
                return npu.answer(a, b)

        return Runtime()


def arguments(repository: Path, config: dict[str, Any], instance: str) -> dict[str, str]:
    """What Triton 24.01 hands to initialize(); the device id of a KIND_MODEL instance is always 0."""
    return {
        "model_config": json.dumps(config),
        "model_name": "two",
        "model_instance_name": instance,
        "model_instance_kind": "MODEL",
        "model_instance_device_id": "0",
        "model_repository": str(repository),
        "model_version": "1",
    }


def output(name: str, kind: str, dims: list[int], **more: Any) -> dict[str, Any]:
    return {"name": name, "data_type": kind, "dims": dims, **more}


def parameters(**values: str) -> dict[str, Any]:
    return {name: {"string_value": value} for name, value in values.items()}


def request(rows: int, seed: int = 0) -> Request:
    """Inputs that are nobody else's: no value is 0, which pads."""
    base = 1 + 1000 * seed
    return Request(
        A=np.arange(base, base + rows * 3, dtype=np.float32).reshape(rows, 3),
        B=np.arange(base, base + rows * 2, dtype=np.int64).reshape(rows, 2),
    )


def requests(*sizes: int) -> list[Request]:
    return [request(rows, seed) for seed, rows in enumerate(sizes)]


def is_answer(response: Response, asked: Request) -> bool:
    """Whether a response has both outputs of this very request, in the config's order and types."""
    if response.error is not None or response.names != ["SQUARE", "TWICE"]:
        return False
    square, twice = response.outputs["SQUARE"], response.outputs["TWICE"]
    kinds = (square.dtype, twice.dtype) == (np.int64, np.float32)
    return kinds and np.array_equal(square, asked["B"] ** 2) and np.array_equal(twice, asked["A"] * 2)


def ask(model: Any, asked: list[Request]) -> list[Response]:
    """Return the responses to the requests of one call, in order."""
    return [entry.taken() for entry in model.execute(asked)]
