"""Loads the `rbln` backend as Triton does, with what `played` stands in for."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Iterator

import pytest
from helpers import common_home
from played import (
    BACKEND,
    NPU,
    Families,
    Response,
    Serve,
    Tensor,
    TritonError,
    TritonModelException,
    arguments,
    output,
    parameters,
)


@pytest.fixture
def log() -> list[str]:
    """Errors that the backend wrote to the server's log."""
    return []


@pytest.fixture
def families() -> Families:
    return Families()


@pytest.fixture(params=["24.01"])
def release(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return Triton's release. Only 24.10 has tensors of bfloat16."""
    monkeypatch.setattr(Tensor, "halves", request.param == "24.10")
    return str(request.param)


@pytest.fixture
def utils(monkeypatch: pytest.MonkeyPatch, log: list[str], families: Families, tmp_path: Path, release: str) -> ModuleType:
    """triton_python_backend_utils."""
    utils = ModuleType("triton_python_backend_utils")
    utils.__dict__.update(
        Tensor=Tensor,
        TritonError=TritonError,
        TritonModelException=TritonModelException,
        InferenceResponse=Response,
        Logger=SimpleNamespace(log_info=lambda message: None, log_error=log.append),
        MetricFamily=families,
        get_model_dir=lambda: str(tmp_path / "two" / "1"),
        get_input_tensor_by_name=lambda request, name: (
            Tensor(name, request[name], name in getattr(request, "halves", ())) if name in request else None
        ),
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils)
    return utils


@pytest.fixture
def backend(utils: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The backend's module as Triton imports it, its parts anew with it."""
    monkeypatch.syspath_prepend(str(BACKEND))
    monkeypatch.setattr(sys, "pycache_prefix", common_home("bytecode"))
    ours = ("model", "npufleet_rbln")
    for name in [name for name in sys.modules if name.partition(".")[0] in ours]:
        monkeypatch.delitem(sys.modules, name)
    yield importlib.import_module("model")
    for name in [name for name in sys.modules if name.partition(".")[0] in ours]:
        del sys.modules[name]


PARAMETERS = (
    "batches",
    "runtime_per_bucket",
    "npus",
    "npus_per_instance",
    "device_timeout_ms",
    "isolation",
    "npufleet_source",
    "npufleet_release",
)


@pytest.fixture
def serve(backend: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Load model `two` on a played NPU: serve(npu, instance=..., batches="1,2,4", npus=..., <config keys>=...)."""
    models = []

    def load(npu: NPU, instance: str = "two_0_0", **config: Any) -> Any:
        monkeypatch.setitem(sys.modules, "rebel", npu)  # type: ignore[arg-type]
        named = {name: config.pop(name) for name in PARAMETERS if name in config}
        named.setdefault("batches", ",".join(str(batch) for batch in npu.batches))
        named.setdefault("isolation", "none")  # what is played here is not in another process
        whole = {
            "name": "two",
            "max_batch_size": max(npu.batches),
            "input": [{"name": "A", "data_type": "TYPE_FP32", "dims": [3]}, {"name": "B", "data_type": "TYPE_INT64", "dims": [2]}],
            "output": [output("SQUARE", "TYPE_INT64", [2]), output("TWICE", "TYPE_FP32", [3])],
            "parameters": parameters(**named),
            **config,
        }
        path = tmp_path / "two" / "1" / (whole.get("default_model_filename") or "model.rbln")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"compiled")
        model = backend.TritonPythonModel()
        model.initialize(arguments(tmp_path / "two", whole, instance))
        models.append(model)
        npu.runs.clear()  # those that taught what the outputs are
        return model

    yield load
    for model in models:
        model.finalize()
