"""When the scenarios ask once more: where Triton itself has crashed, and nowhere else."""

from __future__ import annotations

import pytest
from crash import crashed


@pytest.mark.parametrize(
    ("output", "wanted"),
    [
        ("\x1b[0;31m  - stream/stream/cancelled: stream 11, after 10 were\x1b[0m\n    cancelled: Socket closed", True),
        ("- stream/stream/cancelled: no Triton\n  answers stream at 127.0.0.1:8001", True),
        ("- stream/stream/cancelled: stream 11, after 10 were cancelled: 3 answers, wanted 4", False),
        ("- stream/http/not over HTTP: no Triton answers http at 127.0.0.1:8000", False),
    ],
)
def test_the_crash_that_is_known_is_told_from_other_failures(output: str, wanted: bool) -> None:
    assert crashed(output) is wanted
