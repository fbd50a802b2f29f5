"""What root takes over from the connecting user, and gives to it: no link is followed, and nobody can write afterwards."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import pwd
import stat
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils import store
from ansible_collections.npufleet.triton.plugins.module_utils.store import blobs, foreign, takeover
from ansible_collections.npufleet.triton.plugins.modules import transferred_file
from helpers import run_module
from hostile_user import PLANTS, SECRET, HostileUser
from test_house import TASK_FILES, load, tasks_of

CONTENT = b"an archive" * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def owners(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Only root may give files away: to whom they were given. And nobody is waited for who does not close."""
    monkeypatch.setattr(takeover, "CLOSE_TIMEOUT", 0.2)
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(takeover.os, "fchown", lambda _handle, user, group: given.append((user, group)))
    return given


@pytest.fixture
def incoming(tmp_path: Path) -> Path:
    (tmp_path / "incoming").mkdir()
    (tmp_path / "mine").mkdir()
    return tmp_path / "incoming"


@pytest.fixture
def user(incoming: Path) -> HostileUser:
    return HostileUser(incoming, incoming.parent / "elsewhere")


def take(incoming: Path, **limits: Any) -> str:
    return takeover.take(str(incoming), "image.tar", str(incoming.parent / "mine/image.tar"), 0o400, **limits)


def test_a_whole_file_is_roots_and_out_of_reach(incoming: Path, owners: list[tuple[int, int]]) -> None:
    (incoming / "image.tar").write_bytes(CONTENT)
    assert take(incoming) == DIGEST
    mine = incoming.parent / "mine/image.tar"
    assert (mine.read_bytes(), stat.S_IMODE(mine.stat().st_mode), owners) == (CONTENT, 0o400, [(0, 0)])
    assert os.listdir(incoming) == []


@pytest.mark.parametrize("what", PLANTS)
def test_what_is_planted_is_refused_and_what_is_behind_it_stays(incoming: Path, user: HostileUser, what: str) -> None:
    user.plant(what, "image.tar")
    with pytest.raises(takeover.RejectedFile, match="found a link or a directory in its place"):
        take(incoming)
    assert user.untouched()
    assert os.listdir(incoming.parent / "mine") == []


def test_a_directory_of_transfers_that_is_a_link_is_not_entered(incoming: Path, user: HostileUser) -> None:
    (user.elsewhere / "image.tar").write_bytes(CONTENT)
    incoming.rmdir()
    incoming.symlink_to(user.elsewhere)
    with pytest.raises(takeover.MissingFile):
        take(incoming)
    assert (user.elsewhere / "image.tar").read_bytes() == CONTENT


def test_a_sender_that_is_about_to_close_it_is_waited_for(
    incoming: Path, user: HostileUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    with contextlib.ExitStack() as sender:
        sender.enter_context(user.writing("image.tar", CONTENT, "descriptor"))

        def closes(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 2:
                sender.close()

        monkeypatch.setattr(takeover.time, "sleep", closes)
        assert take(incoming) == DIGEST
    assert len(waits) == 2


@pytest.mark.parametrize("way", ["descriptor", "mapping"])
def test_a_file_that_somebody_can_still_write_to_is_refused(incoming: Path, user: HostileUser, way: str) -> None:
    with user.writing("image.tar", CONTENT, way), pytest.raises(takeover.RejectedFile, match="still has it open for writing"):
        take(incoming)
    assert os.listdir(incoming.parent / "mine") == []


@pytest.mark.parametrize("way", ["descriptor", "mapping"])
def test_a_blob_that_somebody_can_still_write_to_is_refused(incoming: Path, user: HostileUser, way: str) -> None:
    root = str(incoming.parent)
    store.prepare(root)
    with user.writing(DIGEST, CONTENT, way), pytest.raises(store.StoreError, match="open for writing: transfer it again"):
        blobs.ingest(root, str(incoming), [DIGEST])
    assert os.listdir(incoming.parent / "blobs/sha256") == os.listdir(incoming.parent / "tmp") == []


def test_a_second_name_from_the_moment_of_the_take_over_is_found(incoming: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (incoming / "image.tar").write_bytes(CONTENT)
    mine = incoming.parent / "mine/image.tar"
    monkeypatch.setattr(takeover.os, "fchown", lambda *_arguments: os.link(mine, incoming / "again"))
    with pytest.raises(takeover.RejectedFile, match="link"):
        take(incoming)


def test_an_opening_that_was_under_way_is_found(incoming: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It passed the check of permissions before the file was root's, and is held up by the lease."""
    (incoming / "image.tar").write_bytes(CONTENT)
    digest = foreign.digest

    def late(source: Any, limit: int) -> str:
        path = incoming.parent / "mine/image.tar"
        os.chmod(path, 0o600)
        with pytest.raises(BlockingIOError):
            os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        return digest(source, limit)

    monkeypatch.setattr(takeover.foreign, "digest", late)
    with pytest.raises(takeover.RejectedFile, match="while it was read"):
        take(incoming)
    assert os.listdir(incoming.parent / "mine") == []


def test_without_leases_it_is_copied(incoming: Path, user: HostileUser, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fcntl.fcntl

    def no_leases(handle: int, command: int, *more: Any) -> Any:
        if command == fcntl.F_SETLEASE:
            raise OSError(errno.EINVAL, "no leases here")
        return real(handle, command, *more)

    monkeypatch.setattr(takeover.fcntl, "fcntl", no_leases)
    mine = incoming.parent / "mine/image.tar"
    path = incoming / "image.tar"
    path.write_bytes(CONTENT)
    with path.open("r+b") as kept:
        assert take(incoming) == DIGEST
        kept.write(b"another")
    assert (mine.read_bytes(), stat.S_IMODE(mine.stat().st_mode)) == (CONTENT, 0o400)
    assert os.listdir(mine.parent) == ["image.tar"]


# A tree of files


def test_a_tree_becomes_copies_of_its_own(incoming: Path, user: HostileUser) -> None:
    tree = incoming.parent / "mine"
    (tree / "inner").mkdir()
    (tree / "inner/a.whl").write_bytes(CONTENT)
    (tree / "b.whl").write_bytes(b"b")
    with (tree / "inner/a.whl").open("r+b") as kept:
        owned = takeover.take_over_tree(str(tree), 0o644)
        kept.write(b"another")
    assert owned == {"inner/a.whl": DIGEST, "b.whl": hashlib.sha256(b"b").hexdigest()}
    assert (tree / "inner/a.whl").read_bytes() == CONTENT
    assert stat.S_IMODE((tree / "b.whl").stat().st_mode) == 0o644
    assert sorted(os.listdir(tree)) == ["b.whl", "inner"]


@pytest.mark.parametrize("what", [what for what in PLANTS if what != "directory"])
def test_what_is_planted_in_a_tree_is_refused_by_its_name(incoming: Path, user: HostileUser, what: str) -> None:
    (incoming / "inner").mkdir()
    HostileUser.plant(user, what, "inner/a.whl")
    found = run_module(transferred_file, {"state": "secured", "path": str(incoming)})
    assert found["failed"] is True
    assert found["msg"] == f"{incoming}: inner/a.whl: found a link or a directory in its place; the file was not used"
    assert user.untouched()


# What root gives


@pytest.mark.parametrize("what", ["nothing", *PLANTS])
def test_what_is_given_replaces_what_lies_there(
    incoming: Path, user: HostileUser, owners: list[tuple[int, int]], what: str
) -> None:
    mine = incoming.parent / "mine/image.tar"
    mine.write_bytes(CONTENT)
    if what != "nothing":
        user.plant(what, "image.tar")
    me = pwd.getpwuid(os.geteuid())
    assert takeover.give(str(mine), str(incoming), "image.tar", me) == DIGEST
    found = (incoming / "image.tar").lstat()
    assert (stat.S_ISREG(found.st_mode), stat.S_IMODE(found.st_mode), owners) == (True, 0o600, [(me.pw_uid, me.pw_gid)])
    assert (incoming / "image.tar").read_bytes() == CONTENT
    assert user.untouched()
    assert user.secret.read_bytes() == SECRET


# The module


def call(incoming: Path, **given: Any) -> dict[str, Any]:
    mine = str(incoming.parent / "mine/image.tar")
    return run_module(transferred_file, {"incoming": str(incoming), "name": "image.tar", "path": mine, **given})


def test_the_module_keeps_what_has_its_digest_and_nothing_else(incoming: Path) -> None:
    mine = incoming.parent / "mine"
    (incoming / "image.tar").write_bytes(CONTENT)
    assert call(incoming, state="imported", sha256=DIGEST) == {"failed": False, "changed": True, "sha256": DIGEST}
    (incoming / "image.tar").write_bytes(b"another")
    (mine / "image.tar").unlink()
    found = call(incoming, state="imported", sha256=DIGEST)
    assert found["failed"] is True
    assert f"expected {DIGEST}; the file was removed: transfer it again" in found["msg"]
    assert os.listdir(mine) == os.listdir(incoming) == []


@pytest.mark.parametrize("what", PLANTS)
def test_the_module_says_what_is_planted(incoming: Path, user: HostileUser, what: str) -> None:
    user.plant(what, "image.tar")
    found = call(incoming, state="imported", sha256=DIGEST)
    words = f"{incoming}/image.tar: found a link or a directory in its place; the file was removed: transfer it again"
    assert (found["failed"], found["msg"]) == (True, words)
    assert user.untouched()


def test_the_module_gives_to_a_user_of_the_host(incoming: Path) -> None:
    mine = incoming.parent / "mine/image.tar"
    mine.write_bytes(CONTENT)
    assert "set ansible_user" in call(incoming, state="exported", user="nobody-of-here")["msg"]
    name = pwd.getpwuid(os.geteuid()).pw_name
    assert call(incoming, state="exported", user=name) == {"failed": False, "changed": True, "sha256": DIGEST}
    assert not mine.exists()


@pytest.mark.parametrize("name", ["", "..", "../etc/passwd", "a/b"])
def test_the_module_stays_in_its_directory(incoming: Path, name: str) -> None:
    assert "expected the name of a file" in call(incoming, state="imported", sha256=DIGEST, name=name)["msg"]


# Who touches that directory


OURS = ("transferred_file", "model_store", "model_blobs")
ALLOWED = {*(f"npufleet.triton.{name}" for name in OURS), "ansible.posix.synchronize"}


def test_no_role_touches_the_directory_of_transfers_by_itself() -> None:
    """Every other module follows links that the connecting user plants there, or leaves that user able to write."""
    touching = []
    for path in TASK_FILES:
        for task in tasks_of(load(path)):
            for module, given in task.items():
                if "npufleet_incoming" not in str(given) or module in ALLOWED or module in ("block", "rescue", "always"):
                    continue
                # To make it, whose parent is root's, and to remove a name in it
                if module == "ansible.builtin.file" and given.get("state") in ("directory", "absent"):
                    continue
                if module == "npufleet.triton.host_files" and set(given) == {"absent"}:
                    continue
                # Of a task above, whose module counts
                if module in ("loop", "vars", "environment"):
                    continue
                touching.append(f"{path.parent.parent.name}/{path.name}: {task.get('name')}: {module}")
    assert touching == []
