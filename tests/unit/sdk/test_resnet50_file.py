"""The lab's `resnet50` compiled: the same file every time, and onnxruntime's own scores at every batch."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rebel

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "lab/models"))

import resnet50  # noqa: E402


@pytest.fixture
def made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    resnet50.main("RBLN-CA12", "0.6.2+lab", tmp_path)
    return json.loads(capsys.readouterr().out)


def test_same_file_every_time(made: dict[str, Any], tmp_path: Path) -> None:
    path = Path(made["path"])
    assert path.name == "resnet50-CA12-0.6.rbln"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == made["sha256"]
    resnet50.main("RBLN-CA12", "0.6.2+lab", tmp_path / "again")
    assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()


def test_its_record_says_what_the_config_says(made: dict[str, Any]) -> None:
    record = json.loads(Path(made["path"] + ".json").read_text())
    assert (record["sha256"], record["npu"]) == (made["sha256"], "RBLN-CA12")
    for batch, bucket in zip(resnet50.BATCHES, record["buckets"]):
        assert [(tensor["name"], tensor["shape"], tensor["dtype"]) for tensor in bucket["inputs"]] == [
            ("INPUT__0", [batch, 3, 224, 224], "float32")
        ]
        assert [(tensor["name"], tensor["shape"], tensor["dtype"]) for tensor in bucket["outputs"]] == [
            ("OUTPUT__0", [batch, 1000], "float32")
        ]


def test_golden_scores_at_every_batch(made: dict[str, Any], dev: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebel, "__version__", "0.6.2+lab")
    compiled = rebel.RBLNCompiledModel(made["path"])
    picture = np.load(ROOT / "files/golden/resnet50/pixels.npy")
    wanted = np.load(ROOT / "lab/golden/resnet50/scores.npy")[:1]
    for index, batch in enumerate(resnet50.BATCHES):
        found = compiled.create_runtime(input_info_index=index).run(np.repeat(picture, batch, axis=0))
        np.testing.assert_allclose(found, np.repeat(wanted, batch, axis=0), atol=1e-3)
