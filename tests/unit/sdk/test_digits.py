"""The digits model and its golden data: good enough, the same everywhere, and true."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rebel
import yaml

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "files/golden/digits"
sys.path.insert(0, str(ROOT / "lab/models"))

import digits  # noqa: E402
import golden  # noqa: E402


def compile_digits(directory: Path, **environment: str) -> dict[str, Any]:
    command = [sys.executable, str(ROOT / "lab/models/digits.py"), "RBLN-CA12", "0.6.2+lab", str(directory)]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def training() -> tuple[np.ndarray, np.ndarray]:
    """Images and labels that a model is fitted to."""
    train, _held_out, labels, _held_out_labels = digits.split()
    return train, labels


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return compile_digits(tmp_path_factory.mktemp("digits"))


def test_reads_held_out_digits(made: dict[str, Any]) -> None:
    assert made["accuracy"] >= 0.95
    train, held_out, _labels, _held_out_labels = digits.split()
    known = {image.tobytes() for image in train}
    assert len(held_out) == 450
    assert not [image for image in held_out if image.tobytes() in known]


def test_same_file_whatever_the_linear_algebra(made: dict[str, Any], tmp_path: Path) -> None:
    other = compile_digits(tmp_path, OPENBLAS_NUM_THREADS="1", OPENBLAS_CORETYPE="Prescott")
    assert other["sha256"] == made["sha256"] == hashlib.sha256(Path(made["path"]).read_bytes()).hexdigest()
    assert Path(other["path"]).name == "digits-CA12-0.6.rbln"


def test_its_record_says_what_it_is(made: dict[str, Any]) -> None:
    record = json.loads(Path(made["path"] + ".json").read_text())
    assert record["buckets"] == [
        {
            "inputs": [{"name": "INPUT__0", "shape": [batch, 64], "dtype": "float32"}],
            "outputs": [{"name": "OUTPUT__0", "shape": [batch, 10], "dtype": "float32"}],
        }
        for batch in digits.BATCHES
    ]
    assert (record["format"], record["sha256"], record["npu"], record["devices"]) == (1, made["sha256"], "RBLN-CA12", 1)
    assert record["compiler_version"] == "0.6.2+lab"
    weights = digits.as_onnx(digits.fit(*training()))
    assert record["source"] == {"kind": "onnx", "sha256": hashlib.sha256(weights).hexdigest()}
    assert record["device_memory"][0] > len(weights)


def test_refuses_a_model_that_reads_badly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = digits.fit(*training())
    monkeypatch.setattr(digits, "fit", lambda images, labels: {**fitted, "w2": -fitted["w2"]})
    with pytest.raises(SystemExit, match=r"on the held-out images is .*, expected 0\.95"):
        digits.main("RBLN-CA12", "0.6.2+lab", tmp_path)
    assert list(tmp_path.iterdir()) == []


def checks() -> list[tuple[str, dict[str, Any]]]:
    found = []
    for name in ("digits", "digits_guide"):
        document = yaml.safe_load((ROOT / f"files/checks/{name}.yml").read_text())
        assert (document["model"], document["golden"]) == (name, "digits")
        found += [(name, check) for check in document["checks"]]
    return found


def rows_of(check: dict[str, Any]) -> list[int]:
    """Rows of images.npy that a check may send, over all hosts and protocols."""
    first = check["rows"]["first"]
    return list(range(first, first + len(check["expect"]["OUTPUT__0"]["argmax"])))


@pytest.mark.parametrize("name, check", checks())
def test_labels_are_the_data_sets(name: str, check: dict[str, Any]) -> None:
    _train, held_out, _labels, labels = digits.split()
    label_of = {image.tobytes(): int(label) for image, label in zip(held_out, labels)}
    images = np.load(GOLDEN / "images.npy")
    assert images.dtype == np.float32
    truth = [label_of[images[row].tobytes()] for row in rows_of(check)]
    assert truth == check["expect"]["OUTPUT__0"]["argmax"]


@pytest.mark.parametrize("name, check", checks())
def test_blocks_show_zero_to_nine(name: str, check: dict[str, Any]) -> None:
    labels = check["expect"]["OUTPUT__0"]["argmax"]
    if check["rows"].get("spread"):
        assert labels == list(range(10)) * (len(labels) // 10)
        assert len(labels) // 10 >= 4
    else:
        assert len(labels) == check["rows"]["count"] == max(digits.BATCHES)


def test_no_row_is_asked_twice() -> None:
    asked = [row for _name, check in checks() for row in rows_of(check)]
    assert len(asked) == len(set(asked))
    assert len({np.load(GOLDEN / "images.npy")[row].tobytes() for row in asked}) == len(asked)


def test_the_compiled_file_gives_the_golden_scores(
    made: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dev: Path
) -> None:
    monkeypatch.setattr(rebel, "__version__", "0.6.2+lab")
    compiled = rebel.RBLNCompiledModel(made["path"])
    images, scores = np.load(GOLDEN / "images.npy"), np.load(GOLDEN / "scores.npy")
    for index, batch in enumerate(digits.BATCHES):
        runtime = compiled.create_runtime(input_info_index=index)
        for first in range(0, len(images) - batch + 1, batch):
            found = runtime.run(images[first : first + batch])
            np.testing.assert_allclose(found, scores[first : first + batch], atol=1e-4)


def test_models_of_other_seeds_read_the_golden_images() -> None:
    images = np.load(GOLDEN / "images.npy")
    wanted = np.load(GOLDEN / "scores.npy").argmax(1)
    for seed in (1, 2, 3):
        scores = digits.predict(digits.fit(*training(), seed), images)
        best = np.sort(scores, axis=1)
        assert (scores.argmax(1) == wanted).all()
        assert (best[:, -1] - best[:, -2]).min() > golden.MARGIN


def test_the_script_makes_what_is_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden, "GOLDEN", tmp_path)
    golden.main()
    np.testing.assert_array_equal(np.load(tmp_path / "images.npy"), np.load(GOLDEN / "images.npy"))
    np.testing.assert_allclose(np.load(tmp_path / "scores.npy"), np.load(GOLDEN / "scores.npy"), atol=1e-4)
