"""Shares, overheads, targets and the table, from readings that are given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional

import figures
import pytest
from ledger import Use
from perf import Reading

READING = Reading(
    infer_per_s=970.0,
    p50=8.2,
    p99=9.1,
    avg=8.3,
    queue=3.0,
    input=0.1,
    infer=4.2,
    output=0.1,
    network=0.5,
    count=1,
    noise=1.0,
    stable=True,
)


def row(
    case: str = "rbln",
    profile: Optional[str] = "throughput",
    device_ms: float = 4,
    clients: int = 16,
    release: str = "24.01",
    **reading: Any,
) -> figures.Row:
    return figures.row(case, profile, release, device_ms, clients, replace(READING, **reading), Use(10, 39, 0.04, 0.01), 0.25)


def test_share_is_of_full_batches_without_a_gap() -> None:
    assert (figures.limit(4), figures.limit(2)) == (1000, 2000)
    assert row()["share_of_device_limit"] == 0.97
    assert row(device_ms=2)["share_of_device_limit"] == 0.485


def test_a_row_has_the_agreed_keys() -> None:
    found = row()
    for key in ("device_ms", "concurrency", "case", "profile", "infer_per_s", "p99_ms", "share_of_device_limit"):
        assert key in found
    assert (found["device_busy"], found["rows_per_run"], found["idle_ms_per_run"]) == (0.8, 3.9, 1.0)


def test_overhead_is_what_comes_on_top_of_the_device() -> None:
    assert row(clients=1, p50=4.5)["overhead_ms"] == 0.5
    assert row("empty", None, clients=1, p50=0.4)["overhead_ms"] == 0.4
    assert row(clients=4)["overhead_ms"] is None


def test_an_answer_before_the_device_is_done_is_impossible() -> None:
    assert figures.impossible(row(p50=3.9)) == ["half of the answers came within 3.9 ms, before the 4 ms of the NPU were over"]
    assert figures.impossible(row(p50=4.1)) == []
    assert figures.impossible(row("empty", None, p50=0.4)) == []


@pytest.mark.parametrize(
    ("case", "profile", "device_ms", "clients", "expected"),
    (
        ("rbln", "throughput", 4, 8, 0.97),
        ("rbln", "throughput", 4, 16, 0.97),
        ("rbln", "throughput", 2, 8, 0.90),
        ("rbln", "throughput", 4, 4, None),
        ("rbln", "latency", 4, 16, 0.90),
        ("rbln", "latency", 2, 16, 0.85),
        ("rbln", "latency", 2, 8, None),
        ("rbln-24.10", "throughput", 2, 16, 0.90),
        ("naive", None, 4, 16, None),
        ("empty", None, 4, 16, None),
    ),
)
def test_expected_shares(case: str, profile: Optional[str], device_ms: float, clients: int, expected: Optional[float]) -> None:
    assert figures.expected_share(row(case, profile, device_ms, clients)) == expected


def test_overhead_is_judged_by_the_floor_of_the_same_server() -> None:
    floors = [
        row("empty", None, clients=1, p50=0.4),
        row("empty", None, clients=1, p50=0.8, device_ms=2),
        row("empty", None, clients=1, p50=1.0, release="24.10"),
    ]
    latency = row("rbln", "latency", clients=1, p50=4.44)
    newer = row("rbln-24.10", "latency", clients=1, p50=5.2, release="24.10")
    assert figures.expected_overhead(latency, floors) == 0.44
    assert figures.expected_overhead(newer, floors) == 1.1
    assert figures.expected_overhead(row("rbln", "throughput", clients=1), floors) is None
    assert figures.expected_overhead(latency, []) is None
    assert [verdict.reached for verdict in figures.verdicts([*floors, latency, newer])] == [True, False]


def test_verdicts_at_their_edges() -> None:
    assert [verdict.reached for verdict in figures.verdicts([row(), row(infer_per_s=969.0)])] == [True, False]
    assert figures.npus_verdict(1000, 1800).reached
    assert not figures.npus_verdict(1000, 1799).reached
    assert not figures.npus_verdict(0, 10).reached
    before = {"requests": 10_000, "mib": 300.0, "shm_mib": 5.0}
    assert [
        verdict.reached for verdict in figures.memory_verdicts(before, {"requests": 100_000, "mib": 304.9, "shm_mib": 5.0})
    ] == [
        True,
        True,
    ]
    assert [
        verdict.reached for verdict in figures.memory_verdicts(before, {"requests": 100_000, "mib": 305.0, "shm_mib": 5.1})
    ] == [
        False,
        False,
    ]


def test_the_table_says_which_target_is_missed() -> None:
    lines = figures.table(
        [row(), row(clients=8, infer_per_s=900.0), row("empty", None, clients=1, p50=0.4, infer_per_s=2000.0, stable=False)]
    ).splitlines()
    assert len(lines) == 4
    assert "MISSED" in next(line for line in lines if "0.900" in line)
    assert " ok" in next(line for line in lines if "0.970" in line)
    assert lines[1].endswith("1%!")


def test_noise_in_a_line() -> None:
    assert figures.noise([row(noise=3.0), row(noise=9.0, stable=False)]) == (
        "noise: windows differ by up to 9%, 1 of 2 points are unstable; others used up to 0.2 cores, 0.2 on average"
    )
