"""Files of a store that hands or a disk damaged: each is named by what is read of the host, and one run leads back."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.filter.history_table import history_table
from ansible_collections.npufleet.triton.plugins.module_utils import preflight, shapes, store
from ansible_collections.npufleet.triton.plugins.module_utils.change import resume
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import models as concern
from ansible_collections.npufleet.triton.plugins.module_utils.store import blobs, records, releases
from ansible_collections.npufleet.triton.plugins.modules import host_state
from helpers import fleet, run_module
from manifests import manifest_of
from test_model_store import arrive, owners, served  # noqa: F401 (a fixture)
from test_store_transaction import ALICE, call, difference, ordinary, released

CONFIG = """backend: "python"
max_batch_size: 4
input { name: "A" data_type: TYPE_FP32 dims: 3 }
output { name: "B" data_type: TYPE_FP32 dims: 3 }
"""
POLICIES = {
    "": ["3"],
    "version_policy { latest { num_versions: 2 } }": ["2", "3"],
    "version_policy { all {} }": ["1", "2", "3"],
    "version_policy { specific { versions: [ 1, 3 ] } }": ["1", "3"],
    "response_cache { enable: true }": ["3"],
    'parameters { key: "npufleet_other" value { string_value: "x" } }': ["3"],
}

PYTHON = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n# "


def made(place: Path, config: str = "", state: str = "") -> dict[str, Any]:
    """A model as the controller sends it: what the module gets, and what is remembered of it."""
    for number in (1, 2, 3):
        (place / f"digits/{number}").mkdir(parents=True, exist_ok=True)
        (place / f"digits/{number}/model.py").write_text(PYTHON + state)
    (place / "digits/1/weights.bin").write_bytes(b"w" * 2**20)
    (place / "digits/config.pbtxt").write_text(CONFIG + config)
    return manifest_of({"name": "digits"}, fleet(npufleet_model_repository=str(place)))


def sent(entry: dict[str, Any]) -> dict[str, Any]:
    """A manifest as the module gets it."""
    files = {
        path: {**facts, **({} if facts["blob"] else {"content": base64.b64encode(entry["contents"][path]).decode()})}
        for path, facts in entry["files"].items()
    }
    return {**{key: entry[key] for key in releases.FACTS}, "files": files}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_record_made_anew_out_of_its_release_is_the_one_that_was_lost(tmp_path: Path, policy: str) -> None:
    entry = made(tmp_path / "models", policy)
    assert entry["versions"] == POLICIES[policy]
    root = tmp_path / "root"
    store.prepare(str(root))
    blob = next(path["sha256"] for path in entry["files"].values() if path["blob"])
    (root / "blobs/sha256" / blob).write_bytes(b"w" * 2**20)
    label = store.make_release(str(root), "digits", sent(entry))
    base = store.release_path(str(root), "digits", label)

    def kept(digest: str) -> str | None:
        return None if blobs.flaw(str(root), digest) else store.blob_path(str(root), digest)

    wanted = json.loads(Path(store.record_path(str(root), "digits", label)).read_text())
    assert shapes.mismatch(wanted, records.SHAPE) is None
    assert records.record_of(base, label, kept) == wanted
    # Of another release, or of changed files, it is none
    assert records.record_of(base, "0001-" + "0" * 12, kept) is None
    (root / "blobs/sha256" / blob).write_bytes(b"v" * 2**20)
    assert records.record_of(base, label, kept) is None
    (root / "blobs/sha256" / blob).write_bytes(b"w" * 2**20)
    assert records.record_of(base, label, kept) is not None
    os.chmod(f"{base}/3/model.py", 0o644)
    Path(f"{base}/3/model.py").write_text("edited")
    assert records.record_of(base, label, kept) is None


# What the host's own runs make of it


@pytest.fixture
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Three states of one model, by the last word of its model.py."""
    place = tmp_path_factory.mktemp("models")
    return {state: {"digits": sent(made(place, state=state))} for state in ("one", "two", "three")}


@pytest.fixture
def root(tmp_path: Path, models: dict[str, dict[str, Any]]) -> Path:
    """A store that served `one`, then `two`, both proven."""
    (tmp_path / "incoming").mkdir()
    arrive(tmp_path, b"w" * 2**20)
    ordinary(tmp_path, models["one"], ALICE)
    ordinary(tmp_path, models["two"], ALICE)
    return tmp_path


def content(root: Path) -> bytes:
    return served(root, "digits/3/model.py").removeprefix(PYTHON.encode())


def named(root: Path, wanted: dict[str, Any]) -> dict[str, str]:
    """Damaged files that the plan names, with what it found."""
    return {entry["name"]: entry["current"] for entry in difference(root, wanted) if entry["action"] == "mend"}


def record(root: Path, number: int) -> Path:
    (found,) = (root / "releases/digits").glob(f"{number:04d}-*.json")
    return found


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


WRONG = {
    "transaction.json": ["{", "[]", '{"models": []}', '{"models": {"../x": {}}}', ""],
    "holds.json": ["{", "7", '{"digits": 7}', '{"digits": {"label": "../../x"}}', ""],
    "hung.json": ["{", "[]", '{"models": "digits", "at": 5}', ""],
    "history.jsonl": ['{"model": "digits", "fr', "7\n[]\n", '{"model": "digits", "result": "proven", "from": [], "to": null}'],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in WRONG.items() for text in texts])
def test_a_damaged_file_is_named_and_one_run_leads_back(
    root: Path, models: dict[str, dict[str, Any]], name: str, text: str
) -> None:
    before = (root / name).read_text() if (root / name).exists() else ""
    (root / name).write_text(before + text)
    assert list(named(root, models["two"])) == [name]
    assert all(named(root, models["two"]).values())
    told = run_module(host_state, {"store": True, "mark": f"{root}/maintenance.json", "desired": {}})["store"]
    assert {path: f"damaged: {flaw}" for path, flaw in told["damaged"].items()} == named(root, models["two"])
    assert f"{name} is damaged: {told['damaged'][name]}" in history_table(told)
    result = released(root, models["two"])
    assert (result["failed"], result["changed"], result["mended"]) == (False, True, [name])
    assert (root / (name + ".damaged")).read_text() == before + text
    assert call(root, "proven")["failed"] is False
    assert difference(root, models["two"]) == []
    assert released(root, models["two"])["changed"] is False
    assert content(root) == b"two"
    # What is done by hand finds what it needs
    assert call(root, "rolled_back")["failed"] is False
    assert content(root) == b"one"


@pytest.mark.parametrize("state", ["restored", "proven", "rolled_back", "forgotten"])
@pytest.mark.parametrize("name", WRONG)
def test_every_state_puts_damage_right_first(root: Path, models: dict[str, dict[str, Any]], name: str, state: str) -> None:
    (root / name).write_text(((root / name).read_text() if (root / name).exists() else "") + "{")
    result = call(root, state)
    assert (result["failed"], result["mended"]) == (False, [name])
    assert named(root, models["two"]) == {}


@pytest.mark.parametrize("name", WRONG)
def test_a_directory_or_a_link_in_the_place_of_a_file(root: Path, models: dict[str, dict[str, Any]], name: str) -> None:
    for make in (lambda path: path.mkdir(), lambda path: path.symlink_to("nowhere")):
        if (root / name).exists():
            (root / name).unlink()
        make(root / name)
        assert list(named(root, models["two"])) == [name]
        assert released(root, models["two"])["failed"] is False
        assert call(root, "proven")["failed"] is False
        assert difference(root, models["two"]) == []
        assert content(root) == b"two"


def test_a_put_back_goes_to_a_release_whose_record_was_cut_off(root: Path, models: dict[str, dict[str, Any]]) -> None:
    whole = record(root, 2).read_text()
    tear(record(root, 2))
    tear(root / "history.jsonl")
    assert sorted(named(root, models["two"])) == ["history.jsonl", str(record(root, 2).relative_to(root))]
    assert released(root, models["three"])["failed"] is False
    assert record(root, 2).read_text() == whole
    assert content(root) == b"three"
    assert call(root, "restored", why="three answers wrong")["failed"] is False
    assert call(root, "proven")["failed"] is False
    assert content(root) == b"two"
    assert difference(root, models["two"]) == []


def test_a_put_back_goes_back_also_when_the_record_is_cut_off_meanwhile(root: Path, models: dict[str, dict[str, Any]]) -> None:
    released(root, models["three"])
    tear(record(root, 2))
    assert call(root, "restored")["failed"] is False
    assert content(root) == b"two"


def test_a_record_that_cannot_be_made_anew_makes_a_release_anew(root: Path, models: dict[str, dict[str, Any]]) -> None:
    edited = root / "releases/digits" / record(root, 2).stem / "3/model.py"
    edited.chmod(0o644)
    edited.write_text("edited")
    record(root, 2).unlink()
    record(root, 1).write_text("{")
    plan = difference(root, models["two"])
    assert [(item["name"], item["action"]) for item in plan] == [
        ("digits", "release"),
        (str(record(root, 1).relative_to(root)), "mend"),
        (f"releases/digits/{edited.parent.parent.name}.json", "mend"),
    ]
    assert "its damaged record cannot be restored: it is gone" in plan[0]["current"]
    ordinary(root, models["two"])
    assert content(root) == b"two"
    # It was of no use any more
    assert not edited.parent.parent.exists()


def test_a_release_that_nobody_needs_and_whose_record_is_lost_goes(root: Path, models: dict[str, dict[str, Any]]) -> None:
    lost = record(root, 1)
    other = root / "releases/digits" / lost.stem / "3/model.py"
    other.chmod(0o644)
    other.write_text("edited")
    lost.write_text("{")
    assert list(named(root, models["two"])) == [str(lost.relative_to(root))]
    assert released(root, models["two"])["failed"] is False
    assert difference(root, models["two"]) == []
    assert content(root) == b"two"


def test_a_transaction_that_is_lost_is_put_back_to_what_the_history_proves(root: Path, models: dict[str, dict[str, Any]]) -> None:
    released(root, models["three"])
    tear(root / "transaction.json")
    plan = difference(root, models["three"])
    assert [(item["name"], item["action"]) for item in plan] == [("transaction.json", "mend"), ("transaction", "prove")]
    assert plan[1]["current"] == "open, but unreadable: digits"
    assert call(root, "restored", why="three answers wrong")["failed"] is False
    assert content(root) == b"two"


# Holds


@pytest.fixture
def held(root: Path, models: dict[str, dict[str, Any]]) -> Path:
    """The inventory wants `two`, which was rolled back to `one`."""
    assert call(root, "rolled_back", why="wrong")["failed"] is False
    assert call(root, "proven")["failed"] is False
    return root


@pytest.mark.parametrize("text", ["{", "7", '{"digits": []}', ""])
def test_a_hold_is_kept_when_its_file_is_damaged(held: Path, models: dict[str, dict[str, Any]], text: str) -> None:
    whole = json.loads((held / "holds.json").read_text())
    (held / "holds.json").write_text(text)
    desired = {"models": {"root": str(held), "models": json.loads(json.dumps(models["two"]))}}
    assert store.apply_holds(desired)["digits"]["why"] == "wrong"
    assert desired["models"]["models"]["digits"]["source"] == models["one"]["digits"]["source"]
    # Also of a plan that was made before
    assert released(held, models["two"])["failed"] is False
    assert content(held) == b"one"
    assert call(held, "proven")["failed"] is False
    kept = json.loads((held / "holds.json").read_text())
    assert {**kept["digits"], "label": ""} == {**whole["digits"], "label": "", "when": kept["digits"]["when"]}
    # Another source ends it, as ever
    ordinary(held, models["three"])
    assert content(held) == b"three"
    assert not (held / "holds.json").exists()


@pytest.mark.parametrize("history", [None, "{"])
def test_holds_that_nothing_tells_are_refused_until_they_are_ended(
    held: Path, models: dict[str, dict[str, Any]], history: str | None
) -> None:
    (held / "holds.json").write_text("{")
    (held / "history.jsonl").unlink() if history is None else (held / "history.jsonl").write_text(history)
    for state, more in (("released", {"models": ["digits"], "releases": models["two"]}), ("forgotten", {"models": ["digits"]})):
        result = call(held, state, **more)
        assert result["failed"] is True
        for words in (f"{held}/holds.json cannot be used (", "and history.jsonl ", "rollback_forget=true"):
            assert words in result["msg"]
    asked = {"root": str(held), "models": models["two"]}
    refused = preflight.refusals({"downloads": None, "disk": {}}, {"models": concern.read(asked)}, [], [], {})
    assert len(refused) == 1 and "rollback_forget=true" in refused[0]
    assert content(held) == b"one"
    assert call(held, "forgotten")["failed"] is False
    ordinary(held, models["two"])
    assert content(held) == b"two"


def test_a_switch_that_is_open_is_put_back_whatever_is_held(held: Path, models: dict[str, dict[str, Any]]) -> None:
    released(held, models["three"])
    for name in ("holds.json", "history.jsonl"):
        (held / name).write_text("{")
    assert call(held, "restored")["failed"] is False
    assert call(held, "proven")["failed"] is False
    assert content(held) == b"one"
    # What nobody knows is still asked for
    assert (held / "holds.json").read_text() == "{"
    assert released(held, models["two"])["failed"] is True


def test_the_host_itself_puts_back_over_damage(root: Path, models: dict[str, dict[str, Any]]) -> None:
    released(root, models["three"])
    tear(record(root, 2))
    tear(root / "transaction.json")
    assert "digits serves 000" in resume._roll_back(str(root), None, {}, "a run")  # type: ignore[arg-type]
    assert content(root) == b"two"
    assert difference(root, models["two"]) == []


def test_a_hold_that_was_ended_by_hand_does_not_come_back(held: Path, models: dict[str, dict[str, Any]]) -> None:
    assert call(held, "forgotten", why="it was the camera")["forgotten"] == ["digits"]
    last = store.read_history(str(held))[-1]
    assert (last["what"], last["result"], last["who"], last["why"]) == ("forget", "done", "alice@ops1", "it was the camera")
    (held / "holds.json").write_text("{")
    ordinary(held, models["two"])
    assert content(held) == b"two"


def test_rolled_back_twice_the_history_tells_the_first_source(root: Path, models: dict[str, dict[str, Any]]) -> None:
    ordinary(root, models["three"])
    for to, why in (("previous", "one"), ("0001", "two")):
        label = to if to == "previous" else record(root, 1).stem
        assert call(root, "rolled_back", to=label, why=why)["failed"] is False
        assert call(root, "proven")["failed"] is False
    whole = store.read_holds(str(root))
    assert whole["digits"]["source"] == models["three"]["digits"]["source"]
    (root / "holds.json").write_text("{")
    told = store.read_holds(str(root))
    assert {**told["digits"], "when": ""} == {**whole["digits"], "when": ""}
