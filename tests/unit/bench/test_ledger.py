"""What a ledger of the NPUs can carry, and what it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import List

import pytest
from ledger import Ledger, Run, audit, overlaps, use

MS = 0.001


def queue(count: int, device_ms: float = 4, rows: int = 4, npu: int = 0, begin: float = 100.0) -> List[Run]:
    """Runs without a gap, as a busy NPU has them."""
    return [Run(npu, begin + n * device_ms * MS, begin + (n + 1) * device_ms * MS, rows) for n in range(count)]


def test_a_busy_npu_carries_what_was_answered() -> None:
    assert audit(queue(10), 4 * MS, 4, 40, [0]) == []


def test_padding_is_more_rows_than_answers() -> None:
    assert audit(queue(10), 4 * MS, 4, 31, [0]) == []


def test_two_npus_may_run_at_the_same_time() -> None:
    assert audit(queue(10) + queue(10, npu=1), 4 * MS, 4, 80, [0, 1]) == []


def test_other_npus_than_the_model_was_given() -> None:
    runs = queue(10) + queue(10, npu=1)
    assert audit(runs, 4 * MS, 4, 80, [0]) == ["the runs were on NPUs [0, 1], expected [0]"]
    assert audit(queue(10), 4 * MS, 4, 40, [0, 1]) == ["the runs were on NPUs [0], expected [0, 1]"]


def test_fewer_rows_than_answers() -> None:
    assert audit(queue(10), 4 * MS, 4, 41, [0]) == ["the NPUs carried 40 rows, but 41 were answered"]


def test_no_ledger_at_all_carries_nothing() -> None:
    assert audit([], 4 * MS, 4, 1, [0]) == ["the NPUs carried 0 rows, but 1 were answered"]


def test_an_interval_shorter_than_set() -> None:
    reasons = audit([*queue(3), Run(0, 200.0, 200.0039, 4)], 4 * MS, 4, 16, [0])
    assert reasons == ["1 of 4 intervals are shorter than set: the shortest has 3.900 ms, expected 4.000 ms"]


def test_rounding_of_large_floats_is_not_short() -> None:
    begin = 8_000_000.1
    assert audit([Run(0, begin, begin + 4 * MS - 2e-9, 4)], 4 * MS, 4, 4, [0]) == []


def test_more_rows_than_compiled_for() -> None:
    assert audit(queue(2, rows=5), 4 * MS, 4, 8, [0]) == ["2 of 2 intervals carry [5] rows, expected 1 to 4"]


@pytest.mark.parametrize("order", (1, -1))
def test_overlap_whatever_the_order_of_the_lines(order: int) -> None:
    runs = [Run(0, 1.0, 1.004, 4), Run(0, 1.0039, 1.0079, 4)][::order]
    assert audit(runs, 4 * MS, 4, 8, [0]) == [
        "1 intervals begin before the one before them on the same NPU ended: NPU 0 1.004000 > 1.003900"
    ]


def test_a_long_interval_overlaps_all_that_began_within_it() -> None:
    runs = [Run(0, 1.0, 1.020, 4), Run(0, 1.001, 1.005, 4), Run(0, 1.010, 1.014, 4), Run(0, 1.020, 1.024, 4)]
    assert overlaps(runs) == [(runs[0], runs[1]), (runs[0], runs[2])]


def test_all_reasons_at_once() -> None:
    assert len(audit([Run(0, 1.0, 1.001, 5), Run(0, 1.0, 1.001, 5)], 4 * MS, 4, 100, [0])) == 4


def test_busy_and_idle_per_npu() -> None:
    used = use([Run(0, 1.0, 1.004, 4), Run(0, 1.006, 1.010, 2), Run(1, 5.0, 5.004, 1)])
    assert (used.runs, used.rows) == (3, 7)
    assert (used.busy, used.idle) == (pytest.approx(0.012), pytest.approx(0.002))
    assert use([]).runs == 0


def test_only_whole_new_lines_are_read(tmp_path: Path) -> None:
    line = json.dumps({"npu": 1, "begin": 1.5, "end": 2.5, "rows": 3, "pid": 7}) + "\n"
    first, second = tmp_path / "7.jsonl", tmp_path / "8.jsonl"
    first.write_text(line + line[:10])
    ledger = Ledger(tmp_path)
    assert ledger.new() == [Run(1, 1.5, 2.5, 3)]
    assert ledger.new() == []
    with first.open("a") as more:
        more.write(line[10:])
    second.write_text(line)
    assert ledger.new() == [Run(1, 1.5, 2.5, 3)] * 2
