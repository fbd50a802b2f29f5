"""Tests that a PyTorch source becomes a compiled file with its record, and that this file answers as PyTorch does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rebel
import torch
from conftest import ROOT, SDK

PROGRAM = ROOT / "files/compile/rbln_compile.py"
BATCHES = (1, 2, 3, 4)
SOURCE = '''
import torch
from torch import nn


class Block(nn.Module):
    """A residual block, as image networks have them."""

    def __init__(self, channels):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels),
        )

    def forward(self, x):
        return torch.relu(x + self.body(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 7, stride=4, padding=3)
        self.blocks = nn.Sequential(Block(8), Block(8))
        self.head = nn.Linear(8, 10)

    def forward(self, image, scale):
        features = self.blocks(self.stem(image)).mean((2, 3))
        return self.head(features) * scale, features


def make():
    torch.manual_seed(7)
    net = Net()
    # Statistics as in a trained network. With the initial statistics, a normalisation changes nothing.
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return net


def broken():
    class Broken(nn.Module):
        def forward(self, image, scale):
            raise ValueError("this network does not run")

    return Broken()
'''
INPUTS = [{"name": "image", "shape": [3, 64, 64], "dtype": "float32"}, {"name": "scale", "shape": [1], "dtype": "float32"}]


def compiled(directory: Path, version: str, function: str = "make") -> subprocess.CompletedProcess[str]:
    (directory / "source").mkdir(exist_ok=True)
    (directory / "source/net.py").write_text(SOURCE)
    spec: dict[str, Any] = {
        "name": "net",
        "npu": "RBLN-CA22",
        "sdk": version,
        "devices": 1,
        "batches": list(BATCHES),
        "source": {"kind": "torch", "path": "source", "module": "net", "function": function},
        "inputs": INPUTS,
        "outputs": None,
        "digests": {"sha256": "of the source", "spec": "of the spec"},
        "output": "model.rbln",
    }
    (directory / "spec.json").write_text(json.dumps(spec))
    environment = {**os.environ, "PYTHONPATH": str(SDK), "RBLN_LAB_VERSION": version}
    command = [sys.executable, str(PROGRAM), str(directory / "spec.json")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("version", ["0.6.2+lab", "0.9.4+lab", "0.11.2+lab"])
def test_a_compiled_torch_model_answers_as_torch(version: str, tmp_path: Path, dev: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = compiled(tmp_path, version)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "model.rbln.json").read_text())
    assert [[tensor["shape"] for tensor in bucket["outputs"]] for bucket in record["buckets"]] == [
        [[n, 10], [n, 8]] for n in BATCHES
    ]
    assert {(tensor["name"], tensor["dtype"]) for bucket in record["buckets"] for tensor in bucket["outputs"]} == {
        (None, "float32")
    }
    assert record["source"]["kind"] == "torch"
    monkeypatch.syspath_prepend(str(tmp_path / "source"))
    monkeypatch.delitem(sys.modules, "net", raising=False)
    import net

    truth = net.make().eval()
    model = rebel.RBLNCompiledModel(tmp_path / "model.rbln")
    random = np.random.RandomState(1)
    for index, batch in enumerate(BATCHES):
        image = random.normal(size=(batch, 3, 64, 64)).astype(np.float32)
        scale = random.normal(size=(batch, 1)).astype(np.float32)
        with torch.no_grad():
            expected = truth(torch.from_numpy(image), torch.from_numpy(scale))
        actual = model.create_runtime(input_info_index=index).run(image, scale)
        for array, tensor in zip(actual, expected):
            np.testing.assert_allclose(array, tensor.numpy(), atol=1e-5)


@pytest.mark.parametrize(
    "function, why", [("broken", "refuses the model: .*this network does not run"), ("none", "found no net:none in its path")]
)
def test_a_failed_compilation_ends_with_one_line(function: str, why: str, tmp_path: Path) -> None:
    import re

    done = compiled(tmp_path, "0.9.4+lab", function)
    assert done.returncode == 1
    assert re.search(why, done.stderr.strip().splitlines()[-1]), done.stderr
    assert not list(tmp_path.glob("model.rbln*"))
