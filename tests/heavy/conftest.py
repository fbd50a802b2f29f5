"""The import paths of the stand-in SDK, the collection and the helpers of the unit tests, and a directory with an emulated NPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SDK = ROOT / "lab/sdk"
sys.path.insert(0, str(SDK))
sys.path += [str(ROOT / "collections"), str(ROOT / "tests"), str(ROOT / "tests/unit")]


@pytest.fixture
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A device directory with one NPU and its group's node."""
    import rebel
    from rebel import _device

    root = tmp_path / "dev"
    root.mkdir()
    for name in ("rbln0", "rsd0"):
        (root / name).touch()
    monkeypatch.setattr(rebel, "DEV_ROOT", root)
    monkeypatch.setattr(rebel, "VISIBLE", None)
    yield root
    _device.state_path(root / "rbln0").unlink(missing_ok=True)
