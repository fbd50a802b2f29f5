"""Module model_store on real directories: all or nothing, never in place, never half-made below served/."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils import host_files
from ansible_collections.npufleet.triton.plugins.module_utils import store as store_utils
from ansible_collections.npufleet.triton.plugins.module_utils.change import detached, lease, releases, replacement
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import models
from ansible_collections.npufleet.triton.plugins.module_utils.fetch import receive
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import durable
from ansible_collections.npufleet.triton.plugins.module_utils.store import blobs, removal
from ansible_collections.npufleet.triton.plugins.modules import model_store
from helpers import ROOT, ansible_playbook, run_module

COMPILED, SECOND = b"compiled" * 8, b"another" * 8


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture(autouse=True)
def owners(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """What was given to whom; only root may really do it."""
    given: list[tuple[str, int, int]] = []
    monkeypatch.setattr(
        os, "fchown", lambda handle, user, group: given.append((os.readlink(f"/proc/self/fd/{handle}"), user, group))
    )
    return given


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host with a place for transfers and no store."""
    (tmp_path / "incoming").mkdir()
    return tmp_path


def arrive(root: Path, content: bytes, name: str = "") -> str:
    name = name or digest(content)
    (root / "incoming" / name).write_bytes(content)
    return name


def release(small: dict[str, bytes], blobs: dict[str, bytes] | None = None, mark: str = "e") -> dict[str, Any]:
    """The argument `releases` for one model."""
    files: dict[str, Any] = {
        path: {"sha256": digest(content), "blob": False, "content": base64.b64encode(content).decode()}
        for path, content in small.items()
    }
    files.update({path: {"sha256": digest(content), "blob": True} for path, content in (blobs or {}).items()})
    facts = {"versions": ["1"], "steps": [], "cached": False, "shape": "s"}
    return {"source": "f" * 64, "release": mark * 64, "files": files, **facts}


def hold(root: Path, who: dict[str, str] | None = None) -> None:
    """A run takes the host, over from whatever run has it."""
    who = who or {"run": "alice/1/1", "by": "alice@ops1"}
    before = lease.read(str(root))
    lease.acquire(str(root), lease.Holder(who["run"], who["by"]), 60.0, {}, dead_run=before["run"] if before else "")


DEFAULTS: dict[str, Any] = {
    "state": "released",
    "models": [],
    "releases": {},
    "withdraw": [],
    "to": "previous",
    "why": "",
    "hung": [],
    "keep": 3,
    "run": "alice/1/1",
    "by": "alice@ops1",
    "host": "npu1",
}


def change_store(root: Path, **given: Any) -> dict[str, Any]:
    """Return what a change of a host makes of the store, with `failed` and `open`: True while a transaction is open."""
    params = {**DEFAULTS, "incoming": str(root / "incoming"), **given}
    who = store_utils.Run(params["run"], params["by"], params["host"])
    params["withdraw"] = [name for name in params["withdraw"] if os.path.lexists(root / "served" / name)]
    if params["state"] == "released" and releases.is_applied(str(root), params):
        return {"failed": False, "changed": False, "moves": {}, "open": False}
    try:
        with lease.working(str(root), lease.Holder(who.run, who.by)):
            answer = releases.apply(str(root), who, params)
    except lease.LeaseError as error:
        return {"failed": True, "msg": f"npu1: {error}"}
    except (store_utils.StoreError, OSError) as error:
        return {"failed": True, "msg": f"model store {root}: {error}"}
    return {"failed": False, **answer, "open": store_utils.read_transaction(str(root)) is not None}


def store(root: Path, new: dict[str, Any], **more: Any) -> dict[str, Any]:
    hold(root)
    return change_store(root, models=sorted(new), releases=new, **more)


def served(root: Path, path: str) -> bytes:
    return (root / "served" / path).read_bytes()


def left(root: Path, name: str) -> list[str]:
    directory = root / name
    return sorted(os.listdir(directory)) if directory.is_dir() else []


DIGITS = release({"config.pbtxt": b"one"}, {"1/model.rbln": COMPILED})


# A release


def test_release_is_made_and_switched_to(root: Path, owners: list[tuple[str, int, int]]) -> None:
    arrive(root, COMPILED)
    label = "0001-" + "e" * 12
    moves = {"digits": {"from": None, "to": label, "what": "deploy"}}
    assert store(root, {"digits": DIGITS}) == {
        "failed": False,
        "changed": True,
        "moves": moves,
        "open": True,
    }
    assert served(root, "digits/config.pbtxt") == b"one"
    assert served(root, "digits/1/model.rbln") == COMPILED
    assert os.readlink(root / "served/digits") == f"../releases/digits/{label}"
    assert os.readlink(root / "served/digits/1/model.rbln") == f"../../../../blobs/sha256/{digest(COMPILED)}"
    assert left(root, "incoming") == left(root, "tmp") == []
    assert owners == [(str(root / "tmp" / digest(COMPILED)), 0, 0)]


def test_links_resolve_where_triton_sees_only_the_tree(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    arrive(root, COMPILED)
    store(root, {"digits": DIGITS})
    elsewhere = tmp_path_factory.mktemp("mount") / "npufleet"
    root.rename(elsewhere)
    assert served(elsewhere, "digits/1/model.rbln") == COMPILED


def test_modes_let_any_user_read_and_nobody_write(root: Path) -> None:
    arrive(root, COMPILED)
    store(root, {"digits": DIGITS})
    modes = {name: stat.S_IMODE(os.stat(root / name).st_mode) for name in ("", "served", "releases", "blobs/sha256", "tmp")}
    assert modes == {"": 0o755, "served": 0o755, "releases": 0o755, "blobs/sha256": 0o755, "tmp": 0o700}
    release_modes = {
        name: stat.S_IMODE(os.stat(root / "served/digits" / name).st_mode) for name in ("", "1", "config.pbtxt", "1/model.rbln")
    }
    assert release_modes == {"": 0o755, "1": 0o755, "config.pbtxt": 0o444, "1/model.rbln": 0o444}


def test_record_lies_beside_the_release(root: Path) -> None:
    arrive(root, COMPILED)
    store(root, {"digits": DIGITS})
    label = "0001-" + "e" * 12
    assert json.loads((root / f"releases/digits/{label}.json").read_text()) == {
        "release": "e" * 64,
        "source": "f" * 64,
        "versions": ["1"],
        "steps": [],
        "cached": False,
        "shape": "s",
        "files": {
            "1/model.rbln": {"sha256": digest(COMPILED), "size": len(COMPILED), "blob": True},
            "config.pbtxt": {"sha256": digest(b"one"), "size": 3, "blob": False},
        },
    }
    assert sorted(os.listdir(root / "releases/digits" / label)) == ["1", "config.pbtxt"]


def test_the_concern_finds_what_the_module_made(root: Path) -> None:
    arrive(root, COMPILED)
    store(root, {"digits": DIGITS})
    wanted = {"root": str(root), "models": {"digits": DIGITS}}
    assert [item["action"] for item in models.diff(wanted, models.read(wanted))] == ["prove"]


def test_same_content_again_is_a_fresh_directory(root: Path) -> None:
    arrive(root, COMPILED)
    labels = [store(root, {"digits": DIGITS})["moves"]["digits"]["to"]]
    first = os.stat(root / "served/digits/config.pbtxt")
    labels.append(store(root, {"digits": release({"config.pbtxt": b"two"}, mark="a")})["moves"]["digits"]["to"])
    labels.append(store(root, {"digits": DIGITS})["moves"]["digits"]["to"])
    assert labels == ["0001-" + "e" * 12, "0002-" + "a" * 12, "0003-" + "e" * 12]
    # Triton reloads only what is newer: neither the directory nor its small files are the old ones.
    assert os.stat(root / "served/digits/config.pbtxt").st_ino != first.st_ino
    assert len(set(map(os.path.realpath, (root / "releases/digits").glob("000?-*[!n]")))) == 3
    assert served(root, "digits/1/model.rbln") == COMPILED


def test_serial_grows_also_over_removed_releases_and_past_four_digits(root: Path) -> None:
    for name in ("0007-aaaaaaaaaaaa", "9999-bbbbbbbbbbbb", "notes"):
        (root / "releases/digits" / name).mkdir(parents=True)
    (root / "releases/digits/0007-aaaaaaaaaaaa").rmdir()
    assert store(root, {"digits": release({"config.pbtxt": b"one"})})["moves"]["digits"]["to"] == "10000-" + "e" * 12


def test_blob_that_is_here_needs_no_transfer_and_keeps_its_time(root: Path) -> None:
    arrive(root, COMPILED)
    store(root, {"digits": DIGITS})
    blob = root / "blobs/sha256" / digest(COMPILED)
    before = blob.stat()
    assert store(root, {"faces": release({"config.pbtxt": b"faces"}, {"1/model.rbln": COMPILED})})["failed"] is False
    after = blob.stat()
    assert (before.st_ino, before.st_ctime_ns) == (after.st_ino, after.st_ctime_ns)
    assert served(root, "faces/1/model.rbln") == COMPILED


def test_blobs_of_all_models_are_linked_at_their_depth(root: Path) -> None:
    arrive(root, COMPILED)
    arrive(root, SECOND)
    store(root, {"digits": release({"config.pbtxt": b""}, {"big.bin": COMPILED, "1/deep/er.bin": SECOND})})
    assert served(root, "digits/big.bin") == COMPILED
    assert served(root, "digits/1/deep/er.bin") == SECOND


# Failures leave what is served as it was


@pytest.fixture
def serving(root: Path) -> Path:
    """A store that serves `digits` in its first release, proven."""
    arrive(root, COMPILED)
    assert store(root, {"digits": DIGITS})["failed"] is False
    assert store(root, {}, state="proven")["failed"] is False
    return root


def untouched_beside(root: Path) -> bool:
    return os.readlink(root / "served/digits") == "../releases/digits/0001-" + "e" * 12


def untouched(root: Path) -> bool:
    return os.readlink(root / "served/digits") == "../releases/digits/0001-" + "e" * 12 and left(root, "served") == ["digits"]


def test_corrupt_blob_is_refused(serving: Path) -> None:
    arrive(serving, b"cut off", name=digest(SECOND))
    result = store(serving, {"digits": release({"config.pbtxt": b"two"}, {"1/model.rbln": SECOND}, mark="a")})
    assert (result["failed"], result["msg"]) == (
        True,
        f"model store {serving}: blob {digest(SECOND)[:12]} arrived with SHA-256 {digest(b'cut off')}, expected {digest(SECOND)}, "
        "and was removed: transfer it again",
    )
    assert untouched(serving)
    assert left(serving, "blobs/sha256") == [digest(COMPILED)]
    assert left(serving, "tmp") == left(serving, "incoming") == []


def test_blob_that_did_not_arrive_is_refused(serving: Path) -> None:
    wanted = {"digits": release({}, {"1/model.rbln": SECOND}, mark="a")}
    for more in ({}, {"incoming": None}):
        result = store(serving, wanted, **more)
        assert result["failed"] is True
        assert f"blob {digest(SECOND)[:12]} was not transferred: transfer it again" in result["msg"]
        assert untouched(serving)


def test_no_blob_is_kept_before_all_are_verified_and_every_bad_one_is_named(root: Path) -> None:
    third, fourth = b"third" * 9, b"fourth" * 9
    arrive(root, COMPILED)
    arrive(root, b"bad", name=digest(SECOND))
    arrive(root, b"worse", name=digest(third))
    blobs = {f"{number}/model.rbln": content for number, content in enumerate((COMPILED, SECOND, third, fourth), 1)}
    result = store(root, {"digits": release({"config.pbtxt": b"one"}, blobs)})
    for words in (
        f"blob {digest(SECOND)[:12]} arrived with SHA-256 {digest(b'bad')[:12]}",
        f"blob {digest(third)[:12]} arrived with SHA-256 {digest(b'worse')[:12]}",
        f"blob {digest(fourth)[:12]} was not transferred",
    ):
        assert words in result["msg"]
    assert left(root, "blobs/sha256") == left(root, "served") == left(root, "releases") == []


def test_good_blob_beside_a_bad_one_is_not_left_in_tmp(root: Path) -> None:
    arrive(root, COMPILED)
    arrive(root, b"bad", name=digest(SECOND))
    assert store(root, {"digits": release({}, {"1/a": COMPILED, "1/b": SECOND})})["failed"] is True
    assert left(root, "tmp") == []


def test_link_in_incoming_is_not_taken_for_a_blob(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    secret = tmp_path_factory.mktemp("elsewhere") / "secret"
    secret.write_bytes(COMPILED)
    secret.chmod(0o600)
    (root / "incoming" / digest(COMPILED)).symlink_to(secret)
    assert store(root, {"digits": DIGITS})["failed"] is True
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_changed_small_file_is_refused_and_no_model_is_switched(serving: Path) -> None:
    wrong = release({"1/model.py": b"pass", "config.pbtxt": b"words"}, mark="b")
    wrong["files"]["config.pbtxt"]["sha256"] = digest(b"other words")
    result = store(serving, {"digits": release({"config.pbtxt": b"two"}, mark="a"), "words": wrong})
    assert (result["failed"], result["msg"]) == (
        True,
        f"model store {serving}: model words: config.pbtxt changed during the transfer",
    )
    assert untouched(serving)
    assert left(serving, "tmp") == left(serving, "releases/words") == []


def test_full_disk_leaves_nothing_behind(serving: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    result = store(serving, {"digits": release({"1/model.py": b"pass", "config.pbtxt": b"two"}, mark="a")})
    assert result["failed"] is True
    assert "No space left on device" in result["msg"]
    assert untouched(serving)
    assert left(serving, "tmp") == []


def test_what_was_switched_before_a_failure_is_told(serving: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.replace

    def full(source: Any, target: Any) -> None:
        if str(target).endswith("served/words"):
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", full)
    result = store(serving, {name: release({"config.pbtxt": b"two"}, mark="a") for name in ("digits", "words")})
    assert result["failed"] is True
    assert result["msg"].endswith("; digits switched before that: run again, the open transaction records the previous releases")
    assert json.loads((serving / "transaction.json").read_text())["models"]["digits"]["from"] == "0001-" + "e" * 12


def test_a_directory_where_a_link_belongs_is_refused_before_anything_is_switched(serving: Path) -> None:
    (serving / "served/words").mkdir()
    result = store(serving, {name: release({"config.pbtxt": b"two"}, mark="a") for name in ("digits", "words")})
    assert result["failed"] is True
    assert untouched_beside(serving)
    assert "served/words is a directory, expected a link: move it out of the store" in result["msg"]


# The switch


def test_served_path_is_there_before_and_after_every_step(serving: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[str, bytes]] = []

    def watched(name: str) -> None:
        real = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            before = served(serving, "digits/config.pbtxt")
            result = real(*arguments, **options)
            steps.append((name, before))
            steps.append((name, served(serving, "digits/config.pbtxt")))
            assert all((serving / "served" / entry).is_symlink() for entry in os.listdir(serving / "served"))
            return result

        monkeypatch.setattr(os, name, call)

    for name in ("link", "mkdir", "remove", "rename", "replace", "rmdir", "symlink", "unlink"):
        watched(name)
    # What an interrupted run left
    os.symlink("nowhere", serving / "tmp/link-digits")
    steps.clear()
    assert store(serving, {"digits": release({"config.pbtxt": b"two"}, mark="a")})["failed"] is False
    contents = [content for _, content in steps]
    assert contents == sorted(contents, key=[b"one", b"two"].index)
    # The only step that changes what is served is a replacement in one piece.
    assert [steps[at][0] for at in range(1, len(steps)) if contents[at] != contents[at - 1]] == ["replace"]
    assert contents[-1] == b"two"
    assert left(serving, "tmp") == []


def test_all_releases_are_whole_before_the_first_link_moves(serving: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    real = store_utils.move_links

    def move_links(root: str, moves: dict[str, Any]) -> list[str]:
        seen.append(
            [entry for entry in ("digits", "words") if left(serving, f"releases/{entry}/0002-{'a' * 12}") == ["config.pbtxt"]]
        )
        return real(root, moves)

    (serving / "releases/words/0001-cccccccccccc").mkdir(parents=True)
    monkeypatch.setattr(store_utils, "move_links", move_links)
    store(serving, {name: release({"config.pbtxt": b"two"}, mark="a") for name in ("digits", "words")})
    assert seen == [["digits", "words"]]


# Withdraw, check mode, arguments


def test_withdraw_takes_the_link_and_keeps_the_release(serving: Path) -> None:
    assert store(serving, {}, withdraw=["digits"])["moves"]["digits"]["to"] is None
    assert left(serving, "served") == []
    assert left(serving, "releases/digits") == ["0001-" + "e" * 12, "0001-" + "e" * 12 + ".json"]


def test_withdraw_twice_changes_nothing(serving: Path) -> None:
    store(serving, {}, withdraw=["digits"])
    store(serving, {}, state="proven")
    again = store(serving, {}, withdraw=["digits"])
    assert (again["failed"], again["changed"]) == (False, False)


def test_nothing_asked_is_no_change(serving: Path) -> None:
    assert store(serving, {}) == {"failed": False, "changed": False, "moves": {}, "open": False}
    assert untouched(serving)


def test_an_empty_store_is_made_for_a_server_of_no_models(tmp_path: Path) -> None:
    fresh = tmp_path / "fresh"
    for changed in (True, False):
        assert store(fresh, {}) == {"failed": False, "changed": changed, "moves": {}, "open": False}
    assert (fresh / "served").is_dir()


def test_a_release_that_lost_a_file_while_it_was_made_is_none(serving: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = store_utils.write_json

    def robbed(root: str, path: str, value: Any) -> None:
        real(root, path, value)
        for entry in (serving / "tmp").glob("release-*/1/model.py"):
            entry.unlink()

    monkeypatch.setattr(store_utils.releases, "write_json", robbed)
    result = store(serving, {"digits": release({"1/model.py": b"pass", "config.pbtxt": b"two"}, mark="a")})
    assert result["failed"] is True
    assert "model digits: release 0002-aaaaaaaaaaaa lost 1/model.py while it was made" in result["msg"]
    assert untouched(serving)
    assert left(serving, "tmp") == []


def test_a_failed_release_leaves_no_record_although_its_directory_cannot_be_removed(
    serving: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = store_utils.releases.trees.remove

    def remove(path: str) -> int:
        if "/tmp/release-" in path:
            raise OSError("Input/output error")
        return real(path)

    def full(*_paths: str) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(store_utils.releases.trees, "remove", remove)
    monkeypatch.setattr(store_utils.releases.os, "rename", full)
    result = store(serving, {"digits": release({"config.pbtxt": b"two"}, mark="a")})
    assert (result["failed"], "No space left on device" in result["msg"]) == (True, True)
    assert untouched(serving)
    assert not list((serving / "releases/digits").glob("0002-*"))


# A host with another umask


@pytest.fixture
def strict() -> Iterator[None]:
    """A umask that takes everything from others."""
    before = os.umask(0o077)
    yield
    os.umask(before)


# Root's alone: whoever can open one can lock it
LOCKS = ("lock", "lease.lock", "lease.calls")


def hidden(root: Path) -> list[str]:
    """What a user of the container that is not root cannot read of all that a server reads."""
    found = []
    for place, names, files in os.walk(root):
        names[:] = [name for name in names if Path(place, name) not in (root / "tmp", root / "incoming", root / "blobs/stamps")]
        for path, wanted in [(Path(place), 0o005), *((Path(place, file), 0o004) for file in files if file not in LOCKS)]:
            if path.stat().st_mode & wanted != wanted:
                found.append(str(path.relative_to(root)))
    return found


def test_a_strict_umask_hides_nothing_from_a_server_that_is_not_root(tmp_path: Path, strict: None) -> None:
    root = tmp_path / "of" / "our" / "own"
    order = {"do": "prepare", "user": "root", "by": "jane@desk", "blobs": {digest(COMPILED): {"source": "here"}}}
    receive.serve(str(root), str(root / "incoming"), order, {})
    arrive(root, COMPILED)
    receive.serve(str(root), str(root / "incoming"), {**order, "do": "take"}, {})
    store(root, {"digits": DIGITS})
    store(root, {}, state="proven")
    store(root, {"digits": release({"1/deep/er.txt": b"two"}, mark="a")}, state="released")
    store(root, {}, state="restored")
    assert hidden(root) == []
    assert [stat.S_IMODE((tmp_path / entry).stat().st_mode) for entry in ("of", "of/our")] == [0o755] * 2
    # The one that connects asks for it while the host pulls
    receive._write(str(root / "incoming"), blobs.TOTAL, "total 7\n")
    assert stat.S_IMODE((root / "incoming" / blobs.TOTAL).stat().st_mode) == 0o644


@pytest.mark.parametrize(
    "path", ["releases", "served", "releases/digits", "releases/digits/{label}", "releases/digits/{label}/1", "blobs/sha256/{blob}"]
)
def test_what_others_cannot_read_is_drift_and_one_run_heals_it(serving: Path, path: str) -> None:
    place = serving / path.format(label="0001-" + "e" * 12, blob=digest(COMPILED))
    place.chmod(0o700)
    wanted = {"root": str(serving), "models": {"digits": DIGITS}}
    plan = models.diff(wanted, models.read(wanted))
    assert [item["action"] for item in plan] == ["release"]
    assert f"others cannot read {place.relative_to(serving)}" in plan[0]["current"]
    store(serving, {"digits": DIGITS})
    store(serving, {}, state="proven", keep=1)
    assert models.diff(wanted, models.read(wanted)) == []
    assert hidden(serving / "served") == hidden(Path(os.path.realpath(serving / "served/digits"))) == []


# Removal


def removed(root: Path, check: bool = False) -> dict[str, Any]:
    return run_module(model_store, {"root": str(root), "state": "absent", "run": "r", "by": "ops", "host": "npu1"}, check)


def test_a_store_is_removed_with_all_that_is_in_it(tmp_path: Path) -> None:
    root = tmp_path / "npufleet"
    store_utils.prepare(str(root))
    deep = root / "incoming"
    for _level in range(30):
        deep = deep / ("d" * 60)
    deep.mkdir(parents=True)
    lease.write(str(root / lease.MAINTENANCE_FILE), {"by": "ops"})
    (root / "lost+found").mkdir()
    (root / "holds.json.damaged").write_text("")
    (root / "served/x").symlink_to("/etc")
    assert removed(root, check=True)["changed"] is True
    assert (root / "blobs").is_dir()
    (root / "lost+found").rmdir()
    assert removed(root) == {"failed": False, "changed": True}
    assert not root.exists()
    assert removed(root)["changed"] is False


def test_a_directory_that_only_a_lease_is_in_is_removed(tmp_path: Path) -> None:
    root = tmp_path / "npufleet"
    lease.write(str(root / lease.LEASE), {"run": "r"})
    assert removed(root)["changed"] is True
    assert not root.exists()


@pytest.mark.parametrize("foreign", ["customers.db", "src", "transaction.json.bak", ".git", "a\nb"])
def test_a_store_with_the_files_of_others_stays(tmp_path: Path, foreign: str) -> None:
    root = tmp_path / "npufleet"
    store_utils.prepare(str(root))
    (root / foreign).write_text("")
    for check in (True, False):
        done = removed(root, check)
        assert done["failed"]
        assert "expected only what npufleet has made. Nothing was removed" in done["msg"]
        assert "\n" not in done["msg"]
    assert store_utils.is_complete(str(root))


def test_a_directory_that_is_no_store_stays(tmp_path: Path) -> None:
    """Its names alone prove nothing: many a project has a build directory."""
    root = tmp_path / "project"
    (root / "build").mkdir(parents=True)
    done = removed(root)
    assert done["failed"] and "expected a store of npufleet" in done["msg"]
    assert (root / "build").is_dir()


def test_a_link_and_a_directory_of_somebody_else_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "npufleet"
    store_utils.prepare(str(root))
    (tmp_path / "link").symlink_to(root)
    assert f"it is a link to {root}, expected a directory" in removed(tmp_path / "link")["msg"]
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert "expected a directory of root" in removed(root)["msg"]
    assert store_utils.is_complete(str(root))


def test_every_name_that_roles_use_in_the_root_is_known() -> None:
    known = {*removal.DIRECTORIES, *removal.FILES, *(part.partition("/")[0] for part in store_utils.DIRECTORIES)}
    used = set()
    for path in [*(ROOT / "roles").rglob("*.yml"), *(ROOT / "playbooks").rglob("*.yml")]:
        used |= set(re.findall(r"npufleet_root *(?:\}\}|~ ')/([\w.-]+)", path.read_text()))
    assert len(used) > 8
    assert used <= known
    assert {lease.MAINTENANCE_FILE, lease.LEASE, lease.LOCK, lease.CALLS, lease.LAST} == set(removal.LEASE_FILES)
    assert {detached.ORDER, detached.RESULT, detached.STEPS, detached.DECISION, detached.LOCK, replacement.REPLACEMENT} <= known


def test_what_a_killed_probe_leaves_keeps_no_store_from_being_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = tmp_path / "npufleet"
    store_utils.prepare(str(root))
    with monkeypatch.context() as killed:
        killed.setattr(os, "replace", lambda *_given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            durable.write(str(root / "probe.json"), "{}", 0o600)
    assert len(list(root.glob("probe.json.*"))) == 1
    assert removed(root)["changed"]
    assert not root.exists()


@pytest.mark.parametrize("store", [True, False])
def test_what_a_killed_playbook_leaves_keeps_no_store_from_being_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: bool
) -> None:
    root = tmp_path / "npufleet"
    root.mkdir()
    if store:
        store_utils.prepare(str(root))
    wanted = host_files.Desired([], [host_files.File(str(root / lease.MAINTENANCE_FILE), b"{}", 0o644)], [])
    with monkeypatch.context() as killed:
        killed.setattr(os, "replace", lambda *_given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            host_files.apply(wanted, host_files.differences(wanted))
    assert len(list(root.glob(f".{lease.MAINTENANCE_FILE}.*"))) == 1
    assert removed(root)["changed"]
    assert not root.exists()


def test_a_draft_of_a_file_of_somebody_else_is_not_removed(tmp_path: Path) -> None:
    root = tmp_path / "npufleet"
    store_utils.prepare(str(root))
    (root / ".thesis.tex.abc.new").touch()
    assert ".thesis.tex.abc.new" in removed(root)["msg"]


def test_teardown_removes_the_root_by_the_module_alone() -> None:
    text = (ROOT / "playbooks/teardown.yml").read_text()
    assert "npufleet_root" not in text
    assert "npufleet.triton.model_store:\n        state: absent\n" in text


@pytest.mark.parametrize(
    ("name", "message"), [("etc", "npufleet_root is /etc, expected "), ("foreign", "Nothing was removed"), ("store", "")]
)
def test_a_play_removes_a_store_and_nothing_else(tmp_path: Path, name: str, message: str) -> None:
    """As teardown.yml asks for it: the variable is bounded on the controller, and the directory is proven on the host."""
    roots = {"etc": "/etc", "foreign": str(tmp_path / "foreign"), "store": str(tmp_path / "store")}
    for made in ("foreign", "store"):
        store_utils.prepare(roots[made])
    (tmp_path / "foreign/customers.db").write_text("")
    (tmp_path / "play.yml").write_text(
        "- hosts: all\n  gather_facts: false\n  tasks:\n    - npufleet.triton.model_store:\n        state: absent\n"
    )
    (tmp_path / "hosts").write_text(f"[npu_hosts]\nnpu1 ansible_connection=local ansible_python_interpreter={sys.executable}\n")
    done = ansible_playbook(tmp_path, "-i", tmp_path / "hosts", tmp_path / "play.yml", "-e", f"npufleet_root={roots[name]}")
    output = " ".join((done.stdout + done.stderr).split())
    assert message in output
    assert (done.returncode == 0) is (name == "store"), output
    assert (tmp_path / "store").exists() is (name != "store")
    assert (tmp_path / "foreign/blobs").is_dir()
