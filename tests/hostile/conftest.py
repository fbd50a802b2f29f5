"""The checkout is importable to every test here, as in tests/unit, and a hostile host is their fixture."""

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "hostile"), str(TESTS / "unit")]

import checkout  # noqa: E402, F401
import hostile_hosts  # noqa: E402


@pytest.fixture
def hostile(tmp_path: Path) -> hostile_hosts.Hostile:
    """A fleet of two: one says whatever hurts, one is as wanted."""
    return hostile_hosts.make(tmp_path)
