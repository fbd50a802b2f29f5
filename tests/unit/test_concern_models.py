"""The model store as it is found: drift below a served link, blobs that are missing, and what follows for the plan."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import models
from ansible_collections.npufleet.triton.plugins.module_utils.store import prepare
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import models as desired_models
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import Context
from helpers import fleet

LABEL = "0001-" + "e" * 12
RELEASE = "e" * 64
COMPILED = b"compiled" * 4
DIGEST = hashlib.sha256(COMPILED).hexdigest()
FILES = {
    "1/model.rbln": {"sha256": DIGEST, "blob": True},
    "config.pbtxt": {"sha256": hashlib.sha256(b"config").hexdigest(), "blob": False},
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store that serves one release of `digits`, as it was made."""
    tmp_path.chmod(0o755)
    release = tmp_path / "releases/digits" / LABEL
    for directory in (tmp_path / "blobs/sha256", tmp_path / "served", release / "1"):
        directory.mkdir(parents=True)
    (tmp_path / "blobs/sha256" / DIGEST).write_bytes(COMPILED)
    (release / "config.pbtxt").write_text("config")
    (release / "1/model.rbln").symlink_to(f"../../../../blobs/sha256/{DIGEST}")
    record = {"release": RELEASE, "source": "f" * 64, "files": {"1/model.rbln": {"sha256": DIGEST, "size": len(COMPILED)}}}
    (tmp_path / f"releases/digits/{LABEL}.json").write_text(json.dumps(record))
    (tmp_path / "served/digits").symlink_to(f"../releases/digits/{LABEL}")
    return tmp_path


def wanted(store: Path, release: str = RELEASE) -> dict[str, Any]:
    facts = {"versions": ["1"], "cached": False, "shape": "s"}
    return {"root": str(store), "models": {"digits": {"source": "f" * 64, "release": release, "files": FILES, **facts}}}


def found(name: str, current: Any, desired: Any, action: str) -> dict[str, Any]:
    return {"concern": "models", "name": name, "current": current, "desired": desired, "action": action}


def plan(store: Path, release: str = RELEASE) -> list[dict[str, Any]]:
    asked = wanted(store, release)
    return models.diff(asked, models.read(asked))


def test_desired_leaves_the_contents_out() -> None:
    manifest = {
        "name": "digits",
        "source": "f",
        "release": "e",
        "versions": ["1"],
        "cached": False,
        "shape": "s",
        "files": FILES,
        "contents": {"config.pbtxt": b""},
    }
    assert desired_models.desired(fleet(), Context({"digits": manifest})) == {
        "root": "/var/lib/npufleet",
        "incoming": "/var/lib/npufleet/incoming",
        "verify": False,
        "models": {"digits": {"source": "f", "release": "e", "files": FILES, "versions": ["1"], "cached": False, "shape": "s"}},
    }


def test_store_as_wanted(store: Path) -> None:
    assert models.read(wanted(store)) == {
        "served": {"digits": {"release": LABEL, "differs": []}},
        "missing": [],
        "transaction": None,
        "store": False,
    }
    assert plan(store) == []


def test_bare_host(tmp_path: Path) -> None:
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming" / DIGEST).write_bytes(b"part")
    actual = models.read({**wanted(tmp_path), "incoming": str(tmp_path / "incoming")})
    assert actual.pop("free") > 0
    assert actual == {"served": {}, "missing": [DIGEST], "arrived": {DIGEST: 4}, "transaction": None, "store": False}
    assert plan(tmp_path) == [found("digits", None, "e" * 12, "release")]


def test_store_of_a_host_without_models(tmp_path: Path) -> None:
    asked = {**wanted(tmp_path), "models": {}}
    assert models.diff(asked, models.read(asked)) == [found("store", None, "empty", "prepare")]
    prepare(str(tmp_path))
    assert models.diff(asked, models.read(asked)) == []


def _wrong_link(release: Path, store: Path) -> None:
    (store / "elsewhere").write_bytes(COMPILED)
    (release / "1/model.rbln").unlink()
    (release / "1/model.rbln").symlink_to(store / "elsewhere")


def _copy_for_link(release: Path, _store: Path) -> None:
    (release / "1/model.rbln").unlink()
    (release / "1/model.rbln").write_bytes(COMPILED)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda release, _: (release / "config.pbtxt").write_text("edited"), "config.pbtxt was changed"),
        (lambda release, _: (release / "config.pbtxt").unlink(), "config.pbtxt is gone"),
        (lambda release, _: (release / "1/notes.txt").write_text(""), "1/notes.txt was added"),
        (lambda release, _: (release / "1/other").symlink_to("/nowhere"), "1/other was added"),
        (lambda release, _: (release / "1/model.rbln").unlink(), f"1/model.rbln is not the blob {DIGEST[:12]}"),
        (_wrong_link, f"1/model.rbln is not the blob {DIGEST[:12]}"),
        (_copy_for_link, f"1/model.rbln is not the blob {DIGEST[:12]}"),
        (lambda _, store: (store / "blobs/sha256" / DIGEST).unlink(), "1/model.rbln: its blob is gone"),
        (lambda _, store: (store / "blobs/sha256" / DIGEST).write_bytes(b"cut"), "1/model.rbln: its blob has 3 bytes, not 32"),
    ],
)
def test_drift_below_a_served_release(store: Path, change: Callable[[Path, Path], Any], words: str) -> None:
    change(store / "releases/digits" / LABEL, store)
    assert models.drift(str(store), "digits", LABEL, FILES, {}) == [words]
    assert plan(store) == [found("digits", f"{LABEL}, {words}", "e" * 12, "release")]


def test_all_drift_is_named_in_one_item(store: Path) -> None:
    release = store / "releases/digits" / LABEL
    (release / "config.pbtxt").write_text("edited")
    (release / "new").write_text("")
    assert plan(store) == [found("digits", f"{LABEL}, config.pbtxt was changed; new was added", "e" * 12, "release")]


@pytest.mark.parametrize("record", [None, "", "{", "{}", '{"files": {"1/model.rbln": {}}}'])
def test_without_a_readable_record_sizes_are_not_judged(store: Path, record: str | None) -> None:
    path = store / f"releases/digits/{LABEL}.json"
    path.unlink() if record is None else path.write_text(record)
    (store / "blobs/sha256" / DIGEST).write_bytes(b"cut")
    assert models.drift(str(store), "digits", LABEL, FILES, {}) == []


def test_all_models_and_blobs_are_named_in_order(tmp_path: Path) -> None:
    names = ("words", "digits", "faces")
    files = {name: {"1/model.rbln": {"sha256": digest * 64, "blob": True}} for name, digest in zip(names, "cab")}
    asked: dict[str, Any] = {"root": str(tmp_path), "models": {name: {"release": RELEASE, "files": files[name]} for name in names}}
    (tmp_path / "served").mkdir()
    for name in ("zebra", "ant"):
        (tmp_path / "served" / name).symlink_to(f"../releases/{name}/0001-{'d' * 12}")
    actual = models.read(asked)
    assert list(actual["served"]) == ["ant", "zebra"]
    assert actual["missing"] == ["a" * 64, "b" * 64, "c" * 64]
    assert [(item["name"], item["action"]) for item in models.diff(asked, actual)] == [
        ("digits", "release"),
        ("faces", "release"),
        ("words", "release"),
        ("ant", "withdraw"),
        ("zebra", "withdraw"),
    ]


def test_missing_blob_has_to_be_transferred(store: Path) -> None:
    (store / "blobs/sha256" / DIGEST).unlink()
    assert models.read(wanted(store))["missing"] == [DIGEST]


def test_blob_that_was_changed_is_missing_and_its_release_differs(store: Path) -> None:
    (store / "blobs/sha256" / DIGEST).write_bytes(b"comp1led" * 4)
    assert models.read(wanted(store))["missing"] == [DIGEST]
    assert plan(store) == [found("digits", f"{LABEL}, 1/model.rbln: its blob was changed", "e" * 12, "release")]


def test_another_release_is_wanted(store: Path) -> None:
    assert plan(store, "c" * 64) == [found("digits", LABEL, "c" * 12, "release")]


def test_model_that_is_no_longer_wanted_is_withdrawn(store: Path) -> None:
    (store / "served/faces").symlink_to("../releases/faces/0007-" + "d" * 12)
    assert plan(store) == [found("faces", "0007-" + "d" * 12, None, "withdraw")]


def test_served_directory_that_is_no_link(store: Path) -> None:
    (store / "served/digits").unlink()
    (store / "served/digits").mkdir()
    assert plan(store) == [found("digits", "not a link", "e" * 12, "release")]


def test_link_that_leaves_the_store_is_drift(store: Path) -> None:
    foreign = store / "foreign" / LABEL
    foreign.mkdir(parents=True)
    (store / "served/digits").unlink()
    os.symlink(foreign, store / "served/digits")
    assert plan(store) == [found("digits", "not a link", "e" * 12, "release")]
    (store / "served/digits").unlink()
    os.symlink(f"../releases/faces/{LABEL}", store / "served/digits")
    assert plan(store) == [found("digits", "not a link", "e" * 12, "release")]


def test_absolute_link_to_the_release_is_as_good(store: Path) -> None:
    (store / "served/digits").unlink()
    os.symlink(store / "releases/digits" / LABEL, store / "served/digits")
    assert plan(store) == []
