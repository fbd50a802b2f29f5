"""Figures of bench-models: what moved, what was loaded, and what reaches the targets. The lab itself is not run here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import models
import pytest
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.repository import lint

LOG = """I1121 model_lifecycle.cc:838] successfully loaded 'bench0'
I1121 model_lifecycle.cc:838] successfully loaded 'bench1'
I1121 model_lifecycle.cc:838] successfully loaded 'bench0'
"""


def state(blobs: dict[int, int], server: str = "s", **loads: int) -> models.State:
    return models.State(blobs, server, loads)


def test_readings_of_a_host() -> None:
    assert models.blobs_of("12 104857600\n13 7\n") == {12: 104857600, 13: 7}
    assert models.blobs_of("") == {}
    assert {name: count for name, count in models.loads_of(LOG).items() if count} == {"bench0": 2, "bench1": 1}


def test_bytes_that_came_count_on_every_host() -> None:
    before = {"npu1": state({1: 100}), "npu2": state({1: 100})}
    assert models.moved(before, before) == 0
    assert models.moved(before, {"npu1": state({1: 100, 2: 30}), "npu2": state({2: 30, 3: 5})}) == 65


def test_reloads_by_the_log_of_the_same_server_and_of_a_new_one() -> None:
    before = {"npu1": state({}, bench0=1, bench1=1), "npu2": state({}, bench0=1, bench1=1)}
    same = {"npu1": state({}, bench0=2, bench1=1), "npu2": state({}, bench0=1, bench1=1)}
    assert models.reloaded(before, before) == []
    assert models.reloaded(before, same) == ["bench0"]
    assert models.reloaded(before, {**same, "npu2": state({}, "new", bench0=1, bench1=1)}) == ["bench0", "bench1"]


def row(case: str, seconds: float = 2.0, moved: int = 0, reloaded: tuple[str, ...] = (), calls: int = 6) -> dict[str, Any]:
    return {
        "case": case,
        "seconds": seconds,
        "rsync_seconds": 2.0,
        "floor_seconds": 5.0,
        "status_seconds": 2.0,
        "ratio": 1.0,
        "module_calls_per_host": calls,
        "bytes_moved": moved,
        "models_reloaded": [*reloaded],
    }


@pytest.mark.parametrize(
    ("measured", "reached"),
    [
        (row("one_changed", 9.0, 9, ("bench0",)), [True, True, True]),
        (row("one_changed", 9.01, 9, ("bench0", "bench1"), calls=7), [False, False, False]),
        (row("no_change", 2.4), [True, True]),
        (row("no_change", 2.5, moved=1), [False, False]),
        (row("no_change", reloaded=("bench3",)), [False, True]),
        (row("rollback", 9.0, 0, ("bench0",)), [True, True, True]),
        (row("rollback", 9.1, 1), [False, False, False]),
    ],
)
def test_targets(measured: dict[str, Any], reached: list[bool]) -> None:
    assert [found for _words, found in models.verdicts([measured])] == reached
    assert measured["case"] in models.table([measured])


def test_the_models_are_two_gib_and_nothing_is_wrong_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert abs(sum(map(models.size_of, models.NAMES)) - 2 * 2**30) < len(models.NAMES)
    assert models.size_of(models.ONE) == 100 * 2**20
    monkeypatch.setattr(models, "REPOSITORY", tmp_path / "models")
    monkeypatch.setattr(models, "CHANGED", 2**20 + 1)
    monkeypatch.setattr(models, "TOTAL", 10 * 2**20)
    linted = lint([str(models.make_models())])
    assert (sorted(linted.models), linted.findings) == (models.NAMES, [])
    first = (tmp_path / "models/bench0/1/weights.bin").read_bytes()
    models.write_weights("bench0")
    second = (tmp_path / "models/bench0/1/weights.bin").read_bytes()
    assert len(first) == len(second) == 2**20 + 1
    assert first != second
