"""The lab's `resnet50`, its golden data, and `resnet50_guide` with the SDK played."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import ROOT
from served import REPOSITORY, TritonModelException, answers, config_of, module_of, start

GOLDEN, LAB = ROOT / "files/golden", ROOT / "lab/golden/resnet50"
sys.path.insert(0, str(ROOT / "lab/models"))

import resnet50  # noqa: E402
import resnet50_golden as golden  # noqa: E402


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    """Two photographs and a grey picture, float32 [3, 3, 224, 224]."""
    return np.concatenate([golden.pictures(), np.full((1, 3, 224, 224), 0.5, np.float32)])


# The network and what is expected of it


def test_golden_scores_are_onnxruntimes(images: np.ndarray) -> None:
    found = golden.scores(images[:2])
    np.testing.assert_allclose(np.load(LAB / "scores.npy"), found, atol=1e-3)
    np.testing.assert_allclose(np.load(LAB / "probabilities.npy"), golden.probabilities(found), atol=1e-3)
    np.testing.assert_allclose(np.load(LAB / "noise_scores.npy"), golden.scores(golden.noise()), atol=1e-3)


def test_the_script_makes_what_is_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed = {"GOLDEN": golden.GOLDEN, "LAB": golden.LAB}
    shutil.copytree(golden.GOLDEN / "resnet50", tmp_path / "GOLDEN/resnet50")
    for name in committed:
        monkeypatch.setattr(golden, name, tmp_path / name)
    golden.main()
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.npy"))
    assert len(made) == 6
    for path in made:
        there = committed[path.parts[0]].joinpath(*path.parts[1:])
        np.testing.assert_allclose(np.load(tmp_path / path), np.load(there), atol=1e-3)


def test_pictures_are_told_apart(images: np.ndarray) -> None:
    """A server that mixes up rows, or answers with padding, is far out of any tolerance of a check."""
    found = golden.scores(images)
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert np.abs(found[first] - found[second]).mean() > 1
    made_up = golden.scores(golden.noise())
    assert min(np.abs(made_up[number] - made_up[two]).mean() for number in range(4) for two in range(number)) > 1
    best = np.sort(golden.probabilities(found[:2]))
    assert (best[:, -1] - best[:, -2] > 0.2).all(), "a label of a check has to have a clear lead"


@pytest.mark.parametrize("name", ["resnet50", "resnet50_guide"])
def test_the_config_is_what_is_compiled(name: str) -> None:
    config = config_of(name)
    batches = [int(size) for size in config.parameters["batches"].string_value.split(",")]
    assert (batches, config.max_batch_size) == (list(resnet50.BATCHES), max(resnet50.BATCHES))
    assert (list(config.input[0].dims), list(config.output[0].dims)) == ([3, 224, 224], [resnet50.CLASSES])
    assert config.HasField("dynamic_batching")


# The vendor guide's form


class Sdk(ModuleType):
    """The SDK played: a score is the picture's first value; what was run is written down."""

    def __init__(self, npus: int = 2, version: str = "0.9.4") -> None:
        super().__init__("rebel")
        self.__version__ = version
        self.runs: list[tuple[int, tuple[int, ...]]] = []
        self.devices: list[int] = []
        self.fails = False
        self.device_count = lambda: npus
        self.RBLNCompiledModel = lambda path: SimpleNamespace(create_runtime=self.runtime, path=path)

    def runtime(self, tensor_type: str, device: int, **bucket: int) -> Any:
        assert tensor_type == "np"
        self.devices.append(device)
        sizes = (1, 2, 3, 4)
        if self.__version__ == "0.9.4":
            sizes = (sizes[bucket.pop("input_info_index")],)
        assert bucket == {}

        def run(batch: np.ndarray) -> np.ndarray:
            assert batch.shape in [(size, 3, 224, 224) for size in sizes]
            size = len(batch)
            assert batch.flags["C_CONTIGUOUS"]
            self.runs.append((device, batch.shape))
            if self.fails:
                raise RuntimeError("the NPU is gone")
            return np.repeat(batch.reshape(size, -1)[:, :1], 1000, axis=1)

        return SimpleNamespace(run=run)


@pytest.fixture
def sdk(monkeypatch: pytest.MonkeyPatch) -> Sdk:
    played = Sdk()
    monkeypatch.setitem(sys.modules, "rebel", played)
    return played


def guide(monkeypatch: pytest.MonkeyPatch, instance: int = 0, **parameters: str) -> Any:
    config = config_of("resnet50_guide")
    for name, value in parameters.items():
        config.parameters[name].string_value = value
    return start(module_of("resnet50_guide", monkeypatch), config, REPOSITORY / "resnet50_guide", instance)


def request(*values: float) -> dict[str, np.ndarray]:
    return {"INPUT__0": np.stack([np.full((3, 224, 224), value, np.float32) for value in values])}


def test_each_instance_is_on_the_npu_of_its_index(sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> None:
    for instance, npu in ((0, 0), (1, 1), (2, 0), (11, 1)):
        sdk.devices.clear()
        guide(monkeypatch, instance)
        assert sdk.devices == [npu] * 4


def test_one_runtime_serves_every_batch_since_0_11(monkeypatch: pytest.MonkeyPatch) -> None:
    sdk = Sdk(version="0.11.2")
    monkeypatch.setitem(sys.modules, "rebel", sdk)
    model = guide(monkeypatch)
    assert sdk.devices == [0]
    for rows in (1, 3):
        (response,) = model.execute([request(*range(rows))])
        assert answers(response)["OUTPUT__0"][:, 0].tolist() == list(range(rows))
    assert [shape[0] for _npu, shape in sdk.runs] == [1, 3]


def test_a_parameter_names_the_npus(monkeypatch: pytest.MonkeyPatch) -> None:
    sdk = Sdk(npus=4)
    monkeypatch.setitem(sys.modules, "rebel", sdk)
    for instance, npu in ((0, 3), (1, 1), (2, 3)):
        sdk.devices.clear()
        guide(monkeypatch, instance, npus="3,1")
        assert sdk.devices == [npu] * 4


def test_requests_are_joined_once_and_answered_in_their_order(sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> None:
    responses = guide(monkeypatch).execute([request(1), request(2, 3), request(4)])
    assert [answers(response)["OUTPUT__0"][:, 0].tolist() for response in responses] == [[1], [2, 3], [4]]
    assert sdk.runs == [(0, (4, 3, 224, 224))]


@pytest.mark.parametrize(("batches", "sizes"), [("1,2,3,4", [1, 2, 3, 4])])
def test_a_batch_runs_at_its_own_size(sdk: Sdk, monkeypatch: pytest.MonkeyPatch, batches: str, sizes: list[int]) -> None:
    model = guide(monkeypatch, batches=batches)
    for size in sizes:
        (response,) = model.execute([request(*range(size))])
        assert answers(response)["OUTPUT__0"][:, 0].tolist() == list(range(size))
    assert [shape[0] for _npu, shape in sdk.runs] == sizes


def test_a_batch_between_two_sizes_is_padded(sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> None:
    model = guide(monkeypatch)
    del model.runtimes[2], model.runtimes[3]
    (response,) = model.execute([request(7, 8)])
    assert answers(response)["OUTPUT__0"][:, 0].tolist() == [7, 8]
    assert sdk.runs == [(0, (4, 3, 224, 224))]


def test_an_error_of_the_npu_is_one_line_for_each_request(sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> None:
    model = guide(monkeypatch)
    sdk.fails = True
    responses = model.execute([request(1), request(2)])
    assert [response.error.message for response in responses] == ["resnet50_guide: the NPU is gone"] * 2


def test_batches_have_to_hold_what_triton_may_send(sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TritonModelException, match="max_batch_size is 4, expected at most 2, the largest of `batches`"):
        guide(monkeypatch, batches="1,2")
