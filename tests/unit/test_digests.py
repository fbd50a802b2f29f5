"""Digests of large files: what is remembered, and when it is not believed."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import digests

LATER = 4e9


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files that were really read. The clock is long after their last change."""
    found: list[str] = []

    def hashed(path: str) -> str:
        found.append(Path(path).name)
        return sha256(Path(path).read_bytes())

    monkeypatch.setattr(digests, "file_digest", hashed)
    monkeypatch.setattr(digests, "time", SimpleNamespace(time=lambda: LATER))
    return found


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"first")
    return path


def test_a_file_is_read_once(weights: Path, tmp_path: Path, read: list[str]) -> None:
    cache = str(tmp_path / "cache/digests")
    assert [digests.digest(str(weights), cache) for _time in range(3)] == [sha256(b"first")] * 3
    assert read == ["weights.bin"]
    assert os.stat(cache).st_mode & 0o777 == 0o700


@pytest.mark.parametrize("what", ["content", "same size and time", "another file", "of another path"])
def test_a_file_that_changed_is_read_again(weights: Path, tmp_path: Path, read: list[str], what: str) -> None:
    cache = str(tmp_path / "cache")
    digests.digest(str(weights), cache)
    before = os.stat(weights)
    other = tmp_path / "other.bin"
    other.write_bytes(b"other")
    if what == "content":
        weights.write_bytes(b"longer than first")
    elif what == "same size and time":
        weights.write_bytes(b"fresh")
        os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif what == "another file":
        os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
        other.rename(weights)
    else:
        weights = other
    assert digests.digest(str(weights), cache) == sha256(weights.read_bytes())
    assert len(read) == 2


def test_a_file_that_changed_a_moment_ago_is_not_believed(
    weights: Path, tmp_path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "time", SimpleNamespace(time=lambda: os.stat(weights).st_mtime + 1))
    for _time in range(2):
        digests.digest(str(weights), str(tmp_path / "cache"))
    assert len(read) == 2


def test_a_file_that_changes_while_it_is_read_is_not_remembered(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[str]
) -> None:
    def hashed(path: str) -> str:
        Path(path).write_bytes(b"second")
        return sha256(b"first")

    monkeypatch.setattr(digests, "file_digest", hashed)
    digests.digest(str(weights), str(tmp_path / "cache"))
    monkeypatch.setattr(digests, "file_digest", lambda path: sha256(Path(path).read_bytes()))
    assert digests.digest(str(weights), str(tmp_path / "cache")) == sha256(b"second")


@pytest.mark.parametrize("rubbish", ["{", "[]", '{"of": [1], "sha256": "0"}'])
def test_what_a_killed_run_left_is_not_believed(weights: Path, tmp_path: Path, read: list[str], rubbish: str) -> None:
    cache = tmp_path / "cache"
    digests.digest(str(weights), str(cache))
    (memory,) = cache.iterdir()
    memory.write_text(rubbish)
    assert digests.digest(str(weights), str(cache)) == sha256(b"first")
    assert json.loads(memory.read_text())["sha256"] == sha256(b"first")
    assert len(read) == 2


def test_without_a_cache_it_is_read_every_time(weights: Path, tmp_path: Path, read: list[str]) -> None:
    (tmp_path / "file").touch()
    for cache in ("", "", str(tmp_path / "file/below")):
        assert digests.digest(str(weights), cache) == sha256(b"first")
    assert len(read) == 3
