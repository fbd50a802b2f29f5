"""Blobs on real directories: their stamps, what was changed under our feet, the lock, and what is collected."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils import store
from ansible_collections.npufleet.triton.plugins.module_utils.store import blobs, foreign, rollback, takeover
from test_kernel import DEEP, deep

ONE, TWO = b"one" * 9000, b"two" * 9000


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture(autouse=True)
def no_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only root may give files away."""
    """Only root may give files away."""
    monkeypatch.setattr(takeover.os, "fchown", lambda *_arguments: None)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    store.prepare(str(tmp_path))
    (tmp_path / "incoming").mkdir()
    return tmp_path


def keep(root: Path, *contents: bytes) -> None:
    for content in contents:
        (root / "incoming" / digest(content)).write_bytes(content)
    blobs.ingest(str(root), str(root / "incoming"), [digest(entry) for entry in contents])


def blob(root: Path, content: bytes) -> Path:
    return root / "blobs/sha256" / digest(content)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files that were read for their digest."""
    read: list[str] = []
    known, opened = blobs.file_digest, foreign.digest
    monkeypatch.setattr(blobs, "file_digest", lambda path: (read.append(path), known(path))[1])
    monkeypatch.setattr(foreign, "digest", lambda source, limit: (read.append(source.name), opened(source, limit))[1])
    return read


# Changed on the host


def test_a_blob_is_hashed_once_when_it_comes(root: Path, hashed: list[str]) -> None:
    keep(root, ONE)
    assert len(hashed) == 1
    assert blobs.flaw(str(root), digest(ONE)) is None
    assert len(hashed) == 1
    assert blobs.flaw(str(root), digest(ONE), verify=True) is None
    assert len(hashed) == 2


@pytest.mark.parametrize("change", ["cut", "other bytes", "touched", "restored from a copy", "gone", "link"])
def test_what_became_of_a_blob(root: Path, hashed: list[str], change: str) -> None:
    keep(root, ONE)
    path = blob(root, ONE)
    os.chmod(path, 0o644)
    if change == "cut":
        os.truncate(path, 5)
    elif change == "other bytes":
        path.write_bytes(TWO)
    elif change == "touched":
        os.utime(path)
    elif change == "restored from a copy":
        (root / "copy").write_bytes(ONE)
        os.replace(root / "copy", path)
    else:
        path.unlink()
        if change == "link":
            path.symlink_to("/etc/hostname")
    found = blobs.flaw(str(root), digest(ONE))
    wanted = {"gone": "is gone", "touched": None, "restored from a copy": None}.get(change, "was changed")
    assert found == wanted


def test_same_size_and_time_are_found_by_the_deep_check_only(root: Path) -> None:
    keep(root, ONE)
    path = blob(root, ONE)
    before = os.stat(path)
    os.chmod(path, 0o644)
    with open(path, "r+b") as sink:
        sink.write(b"x")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert blobs.flaw(str(root), digest(ONE)) is None
    assert blobs.flaw(str(root), digest(ONE), verify=True) == "was changed"


def test_a_bad_blob_gives_way_by_a_rename_and_who_had_it_open_keeps_it(root: Path) -> None:
    keep(root, ONE)
    path = blob(root, ONE)
    os.chmod(path, 0o644)
    path.write_bytes(b"bad")
    with open(path, "rb") as loaded:
        keep(root, ONE)
        assert loaded.read() == b"bad"
    assert path.read_bytes() == ONE
    assert blobs.flaw(str(root), digest(ONE)) is None


def test_a_bad_blob_without_a_new_one_is_told(root: Path) -> None:
    keep(root, ONE)
    os.truncate(blob(root, ONE), 5)
    with pytest.raises(store.StoreError, match="was not transferred: transfer it again"):
        blobs.ingest(str(root), str(root / "incoming"), [digest(ONE)])


def test_wrong_digest_names_source_found_and_wanted_and_is_removed(root: Path) -> None:
    (root / "incoming" / digest(ONE)).write_bytes(TWO)
    with pytest.raises(store.StoreError) as error:
        blobs.ingest(str(root), str(root / "incoming"), [digest(ONE)], {digest(ONE): "https://a.example.com/x"})
    for words in (
        "from https://a.example.com/x",
        f"SHA-256 {digest(TWO)}",
        f"expected {digest(ONE)}",
        "was removed: transfer it again",
    ):
        assert words in str(error.value)
    assert os.listdir(root / "incoming") == os.listdir(root / "tmp") == os.listdir(root / "blobs/sha256") == []


def test_a_store_without_stamps_is_hashed_and_then_stamped(root: Path, hashed: list[str]) -> None:
    blob(root, ONE).write_bytes(ONE)
    assert blobs.flaw(str(root), digest(ONE)) is None
    assert blobs.flaw(str(root), digest(ONE)) is None
    assert len(hashed) == 2
    blobs.ingest(str(root), None, [digest(ONE)])
    hashed.clear()
    assert blobs.flaw(str(root), digest(ONE)) is None
    assert hashed == []


# The lock, room


def test_the_lock_dies_with_its_holder(root: Path) -> None:
    holder = subprocess.Popen(
        ["flock", str(root / "incoming"), sys.executable, "-c", "print('held', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout and holder.stdout.readline() == b"held\n"
        with pytest.raises(blobs.Busy), blobs.locked(str(root / "incoming"), wait=False):
            raise AssertionError("two hold it")
        # What the connection's end does to rsync: nothing more to read
        assert holder.stdin
        holder.stdin.close()
        with blobs.locked(str(root / "incoming")):
            pass


@pytest.mark.parametrize(
    ("free", "partial", "sizes", "fits"),
    [
        (100, {}, {"a": 100}, True),
        (100, {}, {"a": 60, "b": 41}, False),
        (41, {"a": 60}, {"a": 60, "b": 41}, True),
        (0, {}, {"a": None}, True),
    ],
)
def test_room(free: int, partial: dict[str, int], sizes: dict[str, Any], fits: bool) -> None:
    why = blobs.shortage("/x", free, partial, sizes)
    assert (why is None) is fits
    assert fits or why == "/x has 100 bytes (0 MiB) free, expected 101 (1 MiB) for 2 large files. Make room on this disk"


# What leaves


@pytest.fixture
def full(root: Path) -> Path:
    """Five releases of `digits`, each with a blob of its own and one that all share; the newest is served."""
    shared = b"shared" * 100
    for number in range(1, 6):
        own = b"%d" % number * 1000
        keep(root, own, shared)
        release = {"release": f"{number}" * 64, "source": "f" * 64, "files": {}}
        release["files"] = {
            f"1/{name}": {"sha256": digest(content), "blob": True} for name, content in (("own", own), ("shared", shared))
        }
        store.move_links(str(root), {"digits": store.make_release(str(root), "digits", release)})
    return root


def labels(root: Path) -> list[int]:
    return sorted(int(path.name[:4]) for path in (root / "releases/digits").iterdir() if path.is_dir())


def numbers(root: Path) -> list[int]:
    return [number for number in range(1, 6) if blob(root, b"%d" % number * 1000).exists()]


def test_the_newest_stay_and_their_blobs(full: Path) -> None:
    found = blobs.collect(str(full), 3)
    assert labels(full) == numbers(full) == [3, 4, 5]
    assert blob(full, b"shared" * 100).exists()
    assert found["removed"][:2] == [f"release digits/{label(2)}", f"release digits/{label(1)}"]
    assert found["bytes"] == 2000
    assert sorted(path.name for path in (full / "releases/digits").glob("*.json")) == sorted(
        path.name + ".json" for path in (full / "releases/digits").iterdir() if path.is_dir()
    )
    assert len(os.listdir(full / "blobs/stamps")) == 4
    assert blobs.collect(str(full), 3) == {"removed": [], "bytes": 0}


def label(number: int) -> str:
    return f"{number:04d}-" + f"{number}" * 12


def line(
    to: int | str, before: int | str | None = None, result: str = "proven", what: str = "deploy", model: str = "digits"
) -> str:
    labels = [label(entry) if isinstance(entry, int) else entry for entry in (before, to)]
    return json.dumps({"model": model, "what": what, "from": labels[0], "to": labels[1], "result": result}) + "\n"


def test_served_and_previous_stay_whatever_their_age(full: Path) -> None:
    store.move_links(str(full), {"digits": label(2)})
    (full / "history.jsonl").write_text(line(1, 4) + line(3, 3, model="other") + line(2, 1))
    blobs.collect(str(full), 1)
    assert labels(full) == numbers(full) == [1, 2]


def again(root: Path, number: int) -> str:
    """The content of a release in a fresh directory, linked."""
    whole = store.release_content(str(root), "digits", label(number))
    made = store.make_release(str(root), "digits", whole)
    store.move_links(str(root), {"digits": made})
    return made


def test_content_counts_once_however_often_it_was_put_back_or_repaired(full: Path) -> None:
    lines = "".join(line(number, number - 1 if number > 1 else None) for number in range(1, 6))
    served = label(5)
    for failed in range(3):
        before, served = served, again(full, 5)
        lines += line(f"{90 + failed}-{'d' * 12}", before, "failed") + line(served, f"{90 + failed}-{'d' * 12}", what="put back")
    for _repair in range(2):
        before, served = served, again(full, 5)
        lines += line(served, before)
    (full / "history.jsonl").write_text(lines)
    blobs.collect(str(full), 3)
    assert labels(full) == [3, 4, 10] and numbers(full) == [3, 4, 5]
    assert rollback.rollback_target(str(full), "digits", "previous") == label(4)
    # A label of before is its content
    assert rollback.rollback_target(str(full), "digits", label(5)) == served
    blobs.collect(str(full), 1)
    assert labels(full) == [4, 10]
    assert rollback.rollback_target(str(full), "digits", "previous") == label(4)


def test_what_was_never_proven_takes_nobodys_place(full: Path) -> None:
    """Three releases failed in a row: what was proven before the served one is still there."""
    store.move_links(str(full), {"digits": label(2)})
    lines = line(1) + line(2, 1) + "".join(line(failed, 2, "failed") + line(2, failed, what="put back") for failed in (3, 4, 5))
    (full / "history.jsonl").write_text(lines)
    blobs.collect(str(full), 3)
    assert labels(full) == numbers(full) == [1, 2]
    assert rollback.rollback_target(str(full), "digits", "previous") == label(1)


def test_of_equal_releases_a_whole_one_stays(full: Path) -> None:
    made = again(full, 3)
    (full / f"releases/digits/{made}.json").unlink()
    store.move_links(str(full), {"digits": label(5)})
    blobs.collect(str(full), 9)
    assert labels(full) == [1, 2, 3, 4, 5]
    assert not (full / "releases/digits" / made).exists()
    # What is not whole is nothing to go back to
    (full / f"releases/digits/{label(4)}.json").write_text("{")
    blob(full, b"3" * 1000).unlink()
    blobs.collect(str(full), 2)
    assert labels(full) == [2, 5]


def test_what_an_open_transaction_or_a_hold_names_stays(full: Path) -> None:
    moves = {"digits": {"from": label(2), "to": label(5), "what": "deploy"}, "new": {"from": None, "to": None, "what": "deploy"}}
    store.open_transaction(str(full), store.Run("r", "jane", "npu1"), moves)
    hold = {"source": "f" * 64, "label": label(3), "release": "3" * 64, "versions": ["1"], "by": "jane", "when": "now", "why": ""}
    store.write_holds(str(full), {"digits": hold})
    blobs.collect(str(full), 1)
    # Beside them the one before the served one, by its serial, as there is no history
    assert labels(full) == [2, 3, 4, 5]


@pytest.mark.parametrize("name", ["transaction.json", "holds.json", "history.jsonl"])
@pytest.mark.parametrize("content", ['{"models', '{"models": []}', "7"])
def test_nothing_goes_while_a_file_that_names_what_stays_cannot_be_used(full: Path, name: str, content: str) -> None:
    (full / name).write_text(content)
    with pytest.raises(store.StoreError, match=rf"{name} cannot be used \(.+\): nothing is removed until it is repaired"):
        blobs.collect(str(full), 1)
    assert labels(full) == [1, 2, 3, 4, 5]


def test_a_blob_that_just_came_for_another_run_stays(full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(full, ONE)
    blobs.collect(str(full), 9)
    assert blob(full, ONE).exists()
    monkeypatch.setattr(blobs, "STAGED_AGE", -1)
    assert blobs.collect(str(full), 9)["removed"] == [f"blob {digest(ONE)[:12]}"]


def test_leavings_go_when_they_are_old_and_nobody_transfers(full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (full / "incoming" / digest(ONE)).write_bytes(b"part")
    (full / "tmp/digits-abc").mkdir()
    (full / "tmp/digits-abc/x").write_bytes(b"12")
    assert blobs.collect(str(full), 9)["removed"] == []
    later = time.time() + blobs.PARTIAL_AGE + 1
    monkeypatch.setattr(blobs.time, "time", lambda: later)
    with blobs.locked(str(full / "incoming")):
        assert blobs.collect(str(full), 9) == {"removed": ["tmp/digits-abc"], "bytes": 2}
    assert blobs.collect(str(full), 9) == {"removed": ["incoming/" + digest(ONE)], "bytes": 4}


def test_a_directory_of_any_depth_in_incoming_goes_with_the_rest(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep(root / "incoming" / "tree")
    deep(root / "tmp" / "tree")
    monkeypatch.setattr(blobs, "PARTIAL_AGE", -1)
    monkeypatch.setattr(blobs, "STAGED_AGE", -1)
    found = blobs.collect(str(root), 3)
    assert sorted(found["removed"]) == ["incoming/tree", "tmp/tree"]
    assert found["bytes"] == 2 * 5 * DEEP
    assert (os.listdir(root / "incoming"), os.listdir(root / "tmp")) == ([], [])


@pytest.mark.parametrize("directory", ["incoming", "tmp"])
def test_what_somebody_is_at_work_on_is_no_rubbish_whatever_the_clock_says(
    root: Path, monkeypatch: pytest.MonkeyPatch, directory: str
) -> None:
    (root / directory / "partial").write_text("1")
    real = blobs.time.time
    monkeypatch.setattr(blobs.time, "time", lambda: real() + 1e9)
    with blobs.locked(str(root / directory)):
        assert blobs.collect(str(root), 3)["removed"] == []
    assert blobs.collect(str(root), 3)["removed"] == [f"{directory}/partial"]
