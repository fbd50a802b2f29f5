"""Triton's utilities for python models, played: a model.py loads and answers without a server."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format
from helpers import ROOT, common_home
from manifests import parse_config

REPOSITORY = ROOT / "model_repository"


class TritonError:
    INVALID_ARG, CANCELLED, INTERNAL, UNAVAILABLE = "invalid_arg", "cancelled", "internal", "unavailable"

    def __init__(self, message: str, code: str = "internal") -> None:
        self.message, self.code = message, code


class TritonModelException(Exception):
    """A model that cannot be loaded."""


def tensor(name: str, array: np.ndarray) -> Any:
    return SimpleNamespace(name=lambda: name, as_numpy=lambda: array)


def config_of(name: str, repository: Path = REPOSITORY) -> Any:
    """The config.pbtxt of a model of a repository, parsed."""
    path = repository / name / "config.pbtxt"
    return parse_config(path.read_text(), str(path))


def module_of(name: str, monkeypatch: pytest.MonkeyPatch, **more: Any) -> ModuleType:
    """The model.py of a model of the repository, with its version directory on the path as Triton puts it there.

    `more` is what else of triton_python_backend_utils it uses.
    """
    utils = ModuleType("triton_python_backend_utils")
    utils.__dict__.update(
        {
            "Tensor": tensor,
            "TritonError": TritonError,
            "TritonModelException": TritonModelException,
            "InferenceResponse": lambda output_tensors=(), error=None: SimpleNamespace(tensors=output_tensors, error=error),
            "get_input_tensor_by_name": lambda request, name: tensor(name, request[name]),
            **more,
        }
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils)
    monkeypatch.setattr(sys, "pycache_prefix", common_home("bytecode"))
    monkeypatch.syspath_prepend(REPOSITORY / name / "1")
    spec = importlib.util.spec_from_file_location(f"model_{name}", REPOSITORY / name / "1/model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def start(module: ModuleType, config: Any, repository: Path, instance: int = 0) -> Any:
    """An instance of the module's model, started as Triton starts it."""
    model = module.TritonPythonModel()
    model.initialize(
        {
            "model_name": config.name,
            "model_version": "1",
            "model_repository": str(repository),
            "model_instance_name": f"{config.name}_0_{instance}",
            "model_config": json.dumps(json_format.MessageToDict(config, preserving_proto_field_name=True)),
        }
    )
    return model


def answers(response: Any) -> dict[str, np.ndarray]:
    """Outputs of a response by name."""
    assert response.error is None, response.error.message
    return {entry.name(): entry.as_numpy() for entry in response.tensors}
