"""The stand-in SDK fails as the vendor's does where a deployment is wrong, and answers like onnxruntime where it is right."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "lab/sdk"), str(ROOT / "lab/models")]

import digits  # noqa: E402
import rebel  # noqa: E402
import yaml  # noqa: E402


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """digits compiled for batches 1, 2, 4."""
    train, _held_out, labels, _ = digits.split()
    buckets = [[("INPUT__0", [batch, 64], "float32")] for batch in digits.BATCHES]
    path = tmp_path_factory.mktemp("compiled") / "model.rbln"
    rebel.compile_from_onnx(digits.as_onnx(digits.fit(train, labels)), input_info=buckets).save(path)
    return path


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Device nodes of two NPUs and their group."""
    for name in ("rbln0", "rbln1", "rsd0"):
        (tmp_path / name).touch()
    monkeypatch.setattr(rebel, "DEV_ROOT", tmp_path)
    return tmp_path


def test_devices_need_the_groups_node(nodes: Path) -> None:
    assert rebel.device_count() == 2
    assert [rebel.npu_is_available(number) for number in (-1, 0, 1, 2)] == [False, True, True, False]
    (nodes / "rsd0").unlink()
    assert rebel.device_count() == 0


def test_environment_selects_devices(nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebel, "VISIBLE", "1")
    assert [node.name for node in rebel._nodes()] == ["rbln1"]


def test_answers_are_those_of_the_model(compiled: Path, nodes: Path) -> None:
    _train, held_out, _labels, _ = digits.split()
    train, _, labels, _ = digits.split()
    weights = digits.fit(train, labels)
    model = rebel.RBLNCompiledModel(compiled)
    for index, batch in enumerate(digits.BATCHES):
        found = model.create_runtime(input_info_index=index, device=1).run(held_out[:batch])
        np.testing.assert_allclose(found, digits.predict(weights, held_out[:batch]), atol=1e-3)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((3, 64), np.float32), r"float32\[3, 64\] given, compiled for float32\[1, 64\]"),
        (np.zeros((1, 64), np.float64), r"float64\[1, 64\] given"),
    ],
)
def test_another_shape_or_type_is_refused(compiled: Path, nodes: Path, array: Any, words: str) -> None:
    with pytest.raises(rebel.RBLNRuntimeError, match=words):
        rebel.Runtime(compiled)(array)


def test_missing_file_has_the_vendors_words(nodes: Path) -> None:
    with pytest.raises(rebel.RBLNRuntimeError, match="LOADING_FILE_NOT_FOUND: The specified file does not exist"):
        rebel.Runtime(nodes / "nothing.rbln")


def test_absent_npu_is_refused(compiled: Path, nodes: Path) -> None:
    with pytest.raises(rebel.RBLNRuntimeError, match="NPU 2 is not available: 2 NPUs are visible"):
        rebel.Runtime(compiled, device=2)


def test_file_for_another_card_is_refused(compiled: Path, nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RBLN_LAB_NPU_NAME", "RBLN-CA22")
    with pytest.raises(rebel.RBLNRuntimeError, match="compiled for RBLN-CA12, NPU 0 is RBLN-CA22"):
        rebel.Runtime(compiled)


def test_file_of_another_sdk_line_is_refused(compiled: Path, nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = rebel.RBLNCompiledModel(compiled)
    model.meta["compiler_version"] = "0.6.2+lab"
    model.save(nodes / "old.rbln")
    monkeypatch.setattr(rebel, "__version__", "0.9.4+lab")
    with pytest.raises(rebel.RBLNRuntimeError, match=r"compiled with 0\.6\.2\+lab, this runtime is 0\.9\.4\+lab"):
        rebel.RBLNCompiledModel(nodes / "old.rbln")


def test_timeout_is_a_whole_number(compiled: Path, nodes: Path) -> None:
    with pytest.raises(TypeError):
        rebel.Runtime(compiled, timeout=60.0)


def test_one_npu_runs_one_thing_at_a_time(compiled: Path, nodes: Path) -> None:
    """While a runtime runs, its NPU's lock is taken and the other NPU's is free."""
    runtimes = [rebel.Runtime(compiled, device=device) for device in (0, 1)]
    others = [rebel.Runtime(compiled, device=device) for device in (0, 1)]
    taken = {}

    class Session:
        def run(self, names: list[str], feed: dict[str, np.ndarray]) -> list[np.ndarray]:
            for device, other in enumerate(others):
                try:
                    fcntl.flock(other._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    fcntl.flock(other._lock, fcntl.LOCK_UN)
                    taken[device] = False
                except BlockingIOError:
                    taken[device] = True
            return [np.zeros((1, 10), np.float32)]

    runtimes[0]._session = Session()
    runtimes[0].run(np.zeros((1, 64), np.float32))
    assert taken == {0: True, 1: False}


def test_node_is_open_while_a_runtime_lives(compiled: Path, nodes: Path) -> None:
    runtime = rebel.Runtime(compiled)
    fds = {str(path.resolve()) for path in Path("/proc/self/fd").iterdir()}
    assert str(nodes / "rbln0") in fds
    runtime.close()
    fds = {str(path.resolve()) for path in Path("/proc/self/fd").iterdir()}
    assert str(nodes / "rbln0") not in fds


def test_training_is_good_and_the_same_every_time(tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        command = [sys.executable, str(ROOT / "lab/models/digits.py"), "RBLN-CA12", "0.6.2+lab", str(tmp_path / name)]
        made.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    files = [next((tmp_path / name).glob("*.rbln")).read_bytes() for name in ("one", "two")]
    assert hashlib.sha256(files[0]).digest() == hashlib.sha256(files[1]).digest()
    assert float(made[0].split('"accuracy": ')[1].rstrip("}\n")) >= 0.95


def test_golden_images_are_held_out_and_labelled_truly() -> None:
    train, held_out, _labels, held_out_labels = digits.split()
    images = np.load(ROOT / "files/golden/digits/images.npy")
    known = {row.tobytes(): int(label) for row, label in zip(held_out, held_out_labels)}
    assert [known[row.tobytes()] for row in images] == list(range(10)) * 9
    assert not {row.tobytes() for row in train} & {row.tobytes() for row in images}


def test_wheel_is_whole_and_reproducible(tmp_path: Path) -> None:
    for name in ("one", "two"):
        subprocess.run([sys.executable, str(ROOT / "lab/sdk/build.py"), "0.6.2+lab", str(tmp_path / name)], check=True)
    wheels = [tmp_path / name / "rebel_compiler-0.6.2+lab-py3-none-any.whl" for name in ("one", "two")]
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
    with zipfile.ZipFile(wheels[0]) as archive:
        listed = {line.split(",")[0] for line in archive.read("rebel_compiler-0.6.2+lab.dist-info/RECORD").decode().splitlines()}
        assert listed == set(archive.namelist())
        assert "rebel/core/exception.py" in listed


@pytest.mark.parametrize("model", ["digits", "digits_guide"])
def test_labels_of_the_checks_are_those_of_the_data_set(model: str) -> None:
    """Of the golden rows in their order; two hosts ask every one of them."""
    checks = yaml.safe_load((ROOT / f"files/checks/{model}.yml").read_text())["checks"]
    for check in checks:
        first, labels = check["rows"]["first"], check["expect"]["OUTPUT__0"]["argmax"]
        assert labels == [row % 10 for row in range(first, first + len(labels))]
