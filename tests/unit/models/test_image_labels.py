"""Model `image_labels`: probabilities that add up, and names in the right order."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import REPOSITORY, TritonModelException, answers, config_of, module_of, start

LABELS = (REPOSITORY / "image_labels/labels.txt").read_text().splitlines()


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    return start(module_of("image_labels", monkeypatch), config_of("image_labels"), REPOSITORY / "image_labels")


def scores(**classes: float) -> np.ndarray:
    """Scores [1, 1000] of 0 but for these classes."""
    row = np.zeros((1, 1000), np.float32)
    for name, score in classes.items():
        row[0, LABELS.index(name)] = score
    return row


def test_probabilities_and_labels_best_first(model: Any) -> None:
    rows = np.concatenate([scores(tabby=9, tench=7, lynx=8), scores(espresso=5)])
    (response,) = model.execute([{"SCORES": rows}])
    found = answers(response)
    assert found["PROBABILITIES"].dtype == np.float32
    np.testing.assert_allclose(found["PROBABILITIES"].sum(axis=1), [1, 1], atol=1e-6)
    wanted = np.exp(9) / (np.exp(9) + np.exp(8) + np.exp(7) + 997)
    assert found["PROBABILITIES"][0, LABELS.index("tabby")] == pytest.approx(wanted, rel=1e-5)
    # What is equally likely comes in the order of the classes.
    assert found["LABELS"].tolist() == [["tabby", "lynx", "tench", LABELS[1], LABELS[2]], ["espresso", *LABELS[:4]]]
    assert found["LABELS"].dtype == np.object_


def test_scores_of_any_size_overflow_nothing(model: Any) -> None:
    (response,) = model.execute([{"SCORES": scores(tabby=1e38, tench=-1e38)}])
    found = answers(response)["PROBABILITIES"]
    assert found[0, LABELS.index("tabby")] == 1
    assert np.isfinite(found).all()


def test_a_response_for_each_request_in_order(model: Any) -> None:
    responses = model.execute([{"SCORES": scores(tabby=5)}, {"SCORES": np.repeat(scores(lynx=5), 3, axis=0)}])
    assert [answers(response)["LABELS"][:, 0].tolist() for response in responses] == [["tabby"], ["lynx"] * 3]


@pytest.mark.parametrize(("lines", "top"), [(999, 5), (1001, 5), (1000, 1001)])
def test_a_label_for_each_class_or_it_is_not_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lines: int, top: int) -> None:
    shutil.copytree(REPOSITORY / "image_labels", tmp_path / "image_labels")
    (tmp_path / "image_labels/labels.txt").write_text("".join(f"{number}\n" for number in range(lines)))
    config = config_of("image_labels")
    config.output[1].dims[0] = top
    with pytest.raises(TritonModelException) as failure:
        start(module_of("image_labels", monkeypatch), config, tmp_path / "image_labels")
    assert f"labels.txt has {lines} lines and LABELS {top}, expected 1000 lines and at most as many" in str(failure.value)
