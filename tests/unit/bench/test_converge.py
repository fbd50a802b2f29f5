"""Figures of bench-converge: the middle of turns, and what reaches the targets. The labs themselves are not run here."""

from __future__ import annotations

from typing import Any

import converge
import pytest


def row(hosts: int, ratio: float, **more: float) -> dict[str, Any]:
    times = {"seconds": 2.0, "pyinfra_seconds": 3.0, "ssh_seconds": 0.3}
    return {"case": "no_change", "hosts": hosts, "ratio": ratio, "module_calls_per_host": 1, **times, **more}


@pytest.mark.parametrize(
    ("found", "reached"),
    [
        (row(8, 1.0), [True]),
        (row(8, 1.01), [False]),
        (row(2, 1.2), [True]),
        (row(2, 1.21), [False]),
        (row(2, 1.0, before_seconds=2.0), [True, True]),
        (row(2, 1.0, before_seconds=1.8), [True, False]),
    ],
)
def test_targets(found: dict[str, Any], reached: list[bool]) -> None:
    assert [reached for _words, reached in converge.verdicts([found])] == reached
    assert f"{found['ratio']:.2f}" in converge.table([found])


def test_the_middle_is_one_that_was_measured() -> None:
    assert converge.middle([3.0, 1.0, 2.0]) == 2.0
    assert converge.middle([4.0, 1.0, 3.0, 2.0]) == 2.0
