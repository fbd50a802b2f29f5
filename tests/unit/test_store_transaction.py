"""A store whose runs are killed between any two steps: what is served is always whole, and one ordinary run converges."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils import store
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import models
from played_engine import Killed
from test_model_store import COMPILED, arrive, change_store, hold, owners, release, served  # noqa: F401 (a fixture)

A = {
    "digits": release({"config.pbtxt": b"digits a"}, {"1/model.rbln": COMPILED}, mark="a"),
    "faces": release({"config.pbtxt": b"faces a"}, mark="1"),
}
# digits changes, faces is withdrawn, words is new
B = {
    "digits": release({"config.pbtxt": b"digits b"}, {"1/model.rbln": COMPILED}, mark="b"),
    "words": release({"config.pbtxt": b"words b"}, mark="2"),
}
ALICE, BOB = {"run": "alice/1/1", "by": "alice@ops1"}, {"run": "bob/2/2", "by": "bob@ops2"}
STEPS = ("rename", "replace", "symlink", "unlink")


def call(root: Path, state: str, who: dict[str, str] = ALICE, **more: Any) -> dict[str, Any]:
    hold(root, who)
    return change_store(root, state=state, **{**who, **more})


def difference(root: Path, wanted: dict[str, Any]) -> list[dict[str, Any]]:
    asked = {"root": str(root), "models": wanted}
    return models.diff(asked, models.read(asked))


def released(root: Path, wanted: dict[str, Any], who: dict[str, str] = ALICE, **more: Any) -> dict[str, Any]:
    """What the role does with the plan of the concern."""
    plan = difference(root, wanted)
    names = [item["name"] for item in plan if item["action"] == "release"]
    gone = [item["name"] for item in plan if item["action"] == "withdraw"]
    return call(root, "released", who, models=names, releases={name: wanted[name] for name in names}, withdraw=gone, **more)


def ordinary(root: Path, wanted: dict[str, Any], who: dict[str, str] = BOB, **more: Any) -> None:
    """One run of site.yml, as far as the store goes."""
    assert released(root, wanted, who, **more)["failed"] is False
    assert call(root, "proven", who, **more)["failed"] is False
    assert difference(root, wanted) == []
    assert not (root / "transaction.json").exists()
    assert os.listdir(root / "tmp") == []


@pytest.fixture
def proven(tmp_path: Path) -> Path:
    """A store that serves A, proven."""
    (tmp_path / "incoming").mkdir()
    arrive(tmp_path, COMPILED)
    ordinary(tmp_path, A, ALICE)
    return tmp_path


def history(root: Path) -> list[tuple[str, str, str]]:
    return [(event["model"], event["what"], event["result"]) for event in store.read_history(str(root))]


def change(root: Path) -> None:
    released(root, B)
    call(root, "proven")


def change_and_put_back(root: Path) -> None:
    released(root, B)
    call(root, "restored", why="digits answers wrong")
    call(root, "proven")


def roll_back(root: Path) -> None:
    ordinary(root, B, ALICE)
    call(root, "rolled_back", models=["digits"], why="wrong")
    call(root, "proven")


def killed_at(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], None]) -> bool:
    """Whether the act came to its step of this number, before which it is killed: nothing of it runs after that."""
    done = [0]
    with monkeypatch.context() as patched:

        def step(real: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*arguments: Any, **options: Any) -> Any:
                done[0] += 1
                if done[0] >= number:
                    raise Killed
                return real(*arguments, **options)

            return counted

        for name in STEPS:
            patched.setattr(os, name, step(getattr(os, name)))
        patched.setattr(shutil, "rmtree", step(shutil.rmtree))
        try:
            act()
        except Killed:
            return True
    return False


@pytest.mark.parametrize("act", [change, change_and_put_back, roll_back])
def test_killed_anywhere_it_serves_whole_releases_and_one_run_converges(
    proven: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, act: Callable[[Path], None]
) -> None:
    number = 1
    while True:
        root = tmp_path_factory.mktemp("killed") / "root"
        shutil.copytree(proven, root, symlinks=True)
        if not killed_at(monkeypatch, number, lambda root=root: act(root)):
            break
        # A server that starts now reads whole releases
        for name in os.listdir(root / "served"):
            assert (root / "served" / name / "config.pbtxt").read_bytes() in (f"{name} a".encode(), f"{name} b".encode())
        assert (root / "served/digits/1/model.rbln").read_bytes() == COMPILED
        opened = store.read_transaction(str(root))
        if opened and "digits" in opened["models"] and act is not roll_back:
            assert opened["models"]["digits"]["from"].endswith("-" + "a" * 12), "what was proven is forgotten"
        # Another run, to which the dead one is known to be dead
        store.write_holds(str(root), {})
        ordinary(root, B)
        assert served(root, "digits/config.pbtxt") == b"digits b"
        lines = store.read_history(str(root))
        keys = [(line["run"], line["model"], line["what"], line["from"], line["to"], line["result"]) for line in lines]
        assert len(keys) == len(set(keys)), "a line is written twice"
        assert ("digits", "deploy", "proven") in history(root)[2:]
        number += 1
    assert number > 10, "there were too few steps to be killed at"


def test_a_change_is_written_down(proven: Path) -> None:
    change(proven)
    lines = [event for event in store.read_history(str(proven)) if event["model"] == "digits"]
    assert [(line["who"], line["host"], line["from"], line["to"], line["result"]) for line in lines] == [
        ("alice@ops1", "npu1", None, "0001-" + "a" * 12, "proven"),
        ("alice@ops1", "npu1", "0001-" + "a" * 12, "0002-" + "b" * 12, "proven"),
    ]
    assert history(proven)[2:] == [("digits", "deploy", "proven"), ("faces", "withdraw", "proven"), ("words", "deploy", "proven")]


def test_put_back_links_fresh_copies_and_takes_away_what_was_new(proven: Path) -> None:
    first = os.stat(proven / "served/digits")
    released(proven, B)
    (proven / "incoming" / "nothing").touch()
    result = call(proven, "restored", why="digits answers wrong")
    # faces had no new directory, so that its own is linked again
    assert result["moves"]["words"]["to"] is None
    assert result["moves"]["digits"]["to"] == "0003-" + "a" * 12
    assert (served(proven, "digits/config.pbtxt"), served(proven, "faces/config.pbtxt")) == (b"digits a", b"faces a")
    assert not (proven / "served/words").exists()
    assert os.stat(proven / "served/digits").st_ino != first.st_ino
    assert os.listdir(proven / "incoming") == ["nothing"], "something was transferred"
    call(proven, "proven")
    assert history(proven)[2:] == [
        ("digits", "deploy", "failed"),
        ("faces", "withdraw", "failed"),
        ("words", "deploy", "failed"),
        ("digits", "put back", "proven"),
        ("faces", "put back", "proven"),
        ("words", "put back", "proven"),
    ]
    last = store.read_history(str(proven))[-3]
    assert (last["from"], last["to"], last["why"]) == ("0002-" + "b" * 12, "0003-" + "a" * 12, "digits answers wrong")
    assert difference(proven, A) == []


def test_put_back_heals_a_file_from_an_equal_release_and_tells_what_it_cannot(proven: Path) -> None:
    old = os.path.realpath(proven / "served/digits")
    released(proven, B)
    os.chmod(f"{old}/config.pbtxt", 0o644)
    Path(f"{old}/config.pbtxt").write_text("edited")
    result = call(proven, "restored")
    assert result["failed"] is True
    assert "model digits: release 0001-aaaaaaaaaaaa is no longer complete, lost or changed: config.pbtxt" in result["msg"]
    # What could be put back was
    assert served(proven, "faces/config.pbtxt") == b"faces a"
    copy = proven / "releases/digits/0000-aaaaaaaaaaaa"
    copy.mkdir()
    (copy / "config.pbtxt").write_bytes(b"digits a")
    assert call(proven, "restored")["failed"] is False
    assert served(proven, "digits/config.pbtxt") == b"digits a"


def test_put_back_goes_to_what_was_proven_over_a_run_that_was_killed(proven: Path) -> None:
    released(proven, B)
    released(proven, {"digits": release({"config.pbtxt": b"digits c"}, mark="c")}, BOB)
    call(proven, "restored", BOB)
    assert served(proven, "digits/config.pbtxt") == b"digits a"
    assert served(proven, "faces/config.pbtxt") == b"faces a"
    assert not (proven / "served/words").exists()


# Two runs


def test_a_run_that_does_not_hold_the_host_changes_nothing(proven: Path) -> None:
    released(proven, B)
    for state in ("proven", "restored", "rolled_back", "forgotten"):
        result = change_store(proven, state=state, **BOB)
        assert result["failed"] is True
        assert result["msg"].startswith("npu1: this run has lost the lease of the host (alice@ops1 has it since "), result["msg"]
    assert served(proven, "digits/config.pbtxt") == b"digits b"


def test_an_open_transaction_is_a_difference(proven: Path) -> None:
    released(proven, B)
    (entry,) = difference(proven, B)
    assert (entry["name"], entry["action"], entry["desired"]) == ("transaction", "prove", "proven and closed")
    assert entry["current"].endswith("by alice@ops1: digits, faces, words")


def test_a_transaction_that_cannot_be_read_counts_and_is_taken_over(proven: Path) -> None:
    (proven / "transaction.json").write_text("{")
    assert [entry["action"] for entry in difference(proven, A)] == ["mend", "prove"]
    ordinary(proven, A)


def test_a_full_disk_before_the_first_link_leaves_no_trace(proven: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "move_links", full)
    result = released(proven, B)
    assert result["failed"] is True
    assert "No space left on device" in result["msg"]
    assert not (proven / "transaction.json").exists()
    assert difference(proven, A) == []


# Rollback by hand


def test_rollback_to_previous_holds_until_another_source_comes(proven: Path) -> None:
    inventory = {"digits": {**B["digits"], "source": "b" * 64}}
    ordinary(proven, {**A, "digits": {**A["digits"], "source": "a" * 64}})
    ordinary(proven, inventory)
    result = call(proven, "rolled_back", why="wrong labels")
    assert result["moves"]["digits"]["to"].endswith("-" + "a" * 12)
    call(proven, "proven")
    assert served(proven, "digits/config.pbtxt") == b"digits a"

    def desired(wanted: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        asked: dict[str, Any] = {"models": {"root": str(proven), "models": dict(wanted)}, "server": {"models": dict(wanted)}}
        held = store.apply_holds(asked)
        return asked, held

    asked, held = desired(inventory)
    assert models.diff(asked["models"], models.read(asked["models"])) == []
    assert asked["server"]["models"]["digits"]["release"] == "a" * 64
    assert (held["digits"]["by"], held["digits"]["why"], held["digits"]["rejected"]) == ("alice@ops1", "wrong labels", "b" * 64)
    # Another source ends it
    third = {"digits": {**release({"config.pbtxt": b"digits c"}, mark="c"), "source": "c" * 64}}
    asked, held = desired(third)
    assert held == {}
    ordinary(proven, third)
    assert store.read_holds(str(proven)) == {}


def test_a_held_release_that_was_changed_is_made_again_of_itself(proven: Path) -> None:
    inventory = {"digits": {**B["digits"], "source": "b" * 64}}
    ordinary(proven, inventory)
    call(proven, "rolled_back", models=["digits"])
    call(proven, "proven")
    result = call(proven, "released", models=["digits"], releases=inventory)
    assert result["moves"]["digits"]["to"].endswith("-" + "a" * 12)
    assert store.read_holds(str(proven))["digits"]["label"] == result["moves"]["digits"]["to"]


def test_rolled_back_twice_the_inventorys_source_stays_unwanted(proven: Path) -> None:
    for mark in "bc":
        ordinary(proven, {"digits": {**release({"config.pbtxt": mark.encode()}, mark=mark), "source": mark * 64}})
    call(proven, "rolled_back", models=["digits"], to="b" * 12)
    call(proven, "proven")
    call(proven, "rolled_back", models=["digits"], to="a" * 12)
    assert store.read_holds(str(proven))["digits"]["source"] == "c" * 64


def test_a_rollback_that_fails_is_put_back_with_its_holds(proven: Path) -> None:
    ordinary(proven, {"digits": {**B["digits"], "source": "b" * 64}})
    call(proven, "rolled_back", models=["digits"])
    call(proven, "restored", why="no")
    call(proven, "proven")
    assert store.read_holds(str(proven)) == {}
    assert served(proven, "digits/config.pbtxt") == b"digits b"


def test_rollback_refuses_with_all_reasons_and_changes_nothing(proven: Path) -> None:
    before = sorted(os.listdir(proven))
    result = call(proven, "rolled_back", models=["digits", "faces", "words"], to="0042-ffffffffffff")
    assert result["failed"] is True
    for words in (
        "model digits: found no release 0042-ffffffffffff here, there are 0001-aaaaaaaaaaaa",
        "model faces: found no release",
        "model words is not served here",
    ):
        assert words in result["msg"]
    result = call(proven, "rolled_back", models=["digits"])
    assert "model digits: this host has no earlier proven release of it" in result["msg"]
    assert sorted(os.listdir(proven)) == before


def test_a_release_that_was_put_back_is_not_the_previous_one(proven: Path) -> None:
    ordinary(proven, {"digits": release({"config.pbtxt": b"c"}, mark="c")})
    released(proven, {"digits": B["digits"]})
    call(proven, "restored")
    call(proven, "proven")
    assert call(proven, "rolled_back", models=["digits"])["moves"]["digits"]["to"].endswith("-" + "a" * 12)


def test_forget_ends_a_hold(proven: Path) -> None:
    ordinary(proven, {"digits": {**B["digits"], "source": "b" * 64}})
    call(proven, "rolled_back", models=["digits"])
    call(proven, "proven")
    assert call(proven, "forgotten", models=["faces"])["changed"] is False
    assert call(proven, "forgotten")["forgotten"] == ["digits"]
    assert not (proven / "holds.json").exists()


# Answers of before


@pytest.mark.parametrize(
    ("new", "stale"),
    [
        ({"1/model.py": b"two"}, True),
        ({"1/model.py": b"one", "2/model.py": b"two"}, False),
        ({"2/model.py": b"two"}, False),
    ],
)
def test_a_served_version_that_changes_under_its_number(proven: Path, new: dict[str, bytes], stale: bool) -> None:
    old = {**release({"config.pbtxt": b"x", "1/model.py": b"one"}, mark="c"), "cached": True}
    ordinary(proven, {"echo": old})
    versions = sorted(path[0] for path in new)
    wanted = {"echo": {**release({"config.pbtxt": b"y", **new}, mark="d"), "cached": True, "versions": versions}}
    asked = {"root": str(proven), "models": wanted}
    assert models.read(asked)["served"]["echo"].get("in_place", False) is stale
    released(proven, wanted)
    opened = models.read(asked)["transaction"]
    assert opened is not None
    assert opened["stale"] == (["echo"] if stale else [])
