"""Model `add` with Triton's utilities played: its golden sums, its parameters, and errors that are their sender's alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import served
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks import check_files, inputs
from helpers import ROOT, fleet
from manifests import manifest_of, parse_config

MODEL = ROOT / "model_repository/add"
GOLDEN = ROOT / "files/golden/add"


@pytest.fixture
def log() -> list[str]:
    """What the model wrote to the server's log."""
    return []


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: list[str]) -> Callable[..., Any]:
    """Load the model with these parameters over those of its config.pbtxt; `bias` replaces its file."""
    numpy_types = {"TYPE_FP32": np.float32}
    module = served.module_of(
        "add",
        monkeypatch,
        Logger=SimpleNamespace(log_info=log.append),
        triton_string_to_numpy=numpy_types.__getitem__,
    )
    shutil.copytree(MODEL, tmp_path / "add")

    def start(bias: str | None = None, **parameters: str) -> Any:
        if bias is not None:
            (tmp_path / "add/1/bias.json").write_text(bias)
        config = served.config_of("add")
        for key, value in parameters.items():
            config.parameters[key].string_value = value
        return served.start(module, config, tmp_path / "add")

    return start


def request(first: Any, second: Any) -> dict[str, np.ndarray]:
    return {"INPUT0": np.asarray(first, np.float32), "INPUT1": np.asarray(second, np.float32)}


def test_golden_sums(load: Callable[..., Any], log: list[str]) -> None:
    first, second, total = (np.load(GOLDEN / f"{name}.npy") for name in ("first", "second", "sum"))
    (response,) = load().execute([request(first[4:], second[4:])])
    (output,) = response.tensors
    assert output.name() == "OUTPUT0"
    assert output.as_numpy().dtype == np.float32
    np.testing.assert_allclose(output.as_numpy(), total[4:], atol=1e-6)
    assert log == ["model add: bias 0.0, scale 1.0"]


def test_parameters_decide(load: Callable[..., Any]) -> None:
    (response,) = load('{"bias": 0.5}', scale="2").execute([request([[1, 2]], [[3, 4]])])
    assert response.tensors[0].as_numpy().tolist() == [[9, 13]]
    (response,) = load(model_path="").execute([request([[1]], [[1]])])
    assert response.tensors[0].as_numpy().tolist() == [[2]]


def test_one_bad_request_does_not_fail_its_neighbours(load: Callable[..., Any]) -> None:
    good, bad, again = load().execute([request([[1]], [[1]]), request([[1, 2]], [[1]]), request([[2]], [[2]])])
    assert good.error is None and again.error is None
    assert again.tensors[0].as_numpy().tolist() == [[4]]
    assert bad.error.code == served.TritonError.INVALID_ARG
    assert bad.error.message == "add: INPUT0 has shape [1, 2] and INPUT1 [1, 1], expected equal ones"


@pytest.mark.parametrize(
    ("bias", "parameters", "words"),
    [
        (None, {"scale": "much"}, "scale is 'much', expected a number"),
        (None, {"scale": "inf"}, "scale is 'inf', expected a number"),
        (None, {"model_path": "../../secret.json"}, "model_path is '../../secret.json', expected a file of the version directory"),
        (
            None,
            {"model_path": "none.json"},
            "model_path 'none.json' cannot be read (FileNotFoundError), expected JSON with a `bias`",
        ),
        ("{", {}, "model_path 'bias.json' cannot be read (JSONDecodeError)"),
        ('{"bias": "x"}', {}, "bias is 'x', expected a number"),
    ],
)
def test_mistakes_keep_it_from_loading(
    load: Callable[..., Any], tmp_path: Path, bias: str | None, parameters: dict[str, str], words: str
) -> None:
    with pytest.raises(served.TritonModelException) as failure:
        load(bias, **parameters)
    assert words in str(failure.value)
    assert str(tmp_path) not in str(failure.value), "a path of the host is nobody's business"


def test_all_mistakes_at_once(load: Callable[..., Any]) -> None:
    with pytest.raises(served.TritonModelException, match=r"scale is 'a', expected a number; model_path 'b' cannot be read"):
        load(scale="a", model_path="b")


def test_unload_is_told(load: Callable[..., Any], log: list[str]) -> None:
    load().finalize()
    assert log[-1] == "model add: unloaded"


def test_it_can_be_placed_and_proven() -> None:
    """The manifest takes it as it is, for a host of any NPUs, and its check file has no finding."""
    found = manifest_of({"name": "add"}, fleet(npufleet_npus=4))
    config = parse_config(found["contents"]["config.pbtxt"].decode(), "config.pbtxt")
    assert [(group.kind, group.count) for group in config.instance_group] == [(config.instance_group[0].KIND_CPU, 1)]
    assert (found["versions"], sorted(found["files"])) == (["1"], ["1/bias.json", "1/model.py", "config.pbtxt"])
    document = check_files.read_checks(["add"], [inputs.CHECKS_DIR], [inputs.GOLDEN_DIR], 0)
    assert document["no_check_file"] == []
    assert [check["name"] for check in document["checks"][0]["checks"]] == ["sum", "largest batch"]
