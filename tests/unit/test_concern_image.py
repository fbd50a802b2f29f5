"""The one image of a release: what its recipe covers, when a lock counts, and what differs on a host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import image
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import image as desired_image
from helpers import ROW, FakeEngine, fleet

RECIPE = {"base": "triton:base", "base_archive": "", "python": "3.10", "requirements": ["rebel-compiler==0.6.2", "numpy<2"]}
ID, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64


@pytest.fixture
def backends(tmp_path: Path) -> Path:
    """A directory of backends with one of two files."""
    (tmp_path / "backends/rbln").mkdir(parents=True)
    (tmp_path / "backends/rbln/model.py").write_text("one\n")
    (tmp_path / "backends/rbln/device.py").write_text("two\n")
    return tmp_path / "backends"


def wanted(backends: Path, **changes: Any) -> dict[str, Any]:
    return desired_image.desired(fleet(triton_image_backends=str(backends), triton_image_recipe=RECIPE, **changes))


# The recipe


@pytest.mark.parametrize("change", [{"base": "triton:other"}, {"base_archive": "c" * 64}, {"python": "3.12"}])
def test_another_ingredient_is_another_recipe(backends: Path, change: dict[str, Any]) -> None:
    assert desired_image.recipe_digest({**RECIPE, **change}, str(backends)) != desired_image.recipe_digest(RECIPE, str(backends))


def test_another_requirement_is_another_recipe(backends: Path) -> None:
    digests = {
        desired_image.recipe_digest({**RECIPE, "requirements": requirements}, str(backends))
        for requirements in (RECIPE["requirements"], ["rebel-compiler==0.6.3", "numpy<2"], ["rebel-compiler==0.6.2"])
    }
    assert len(digests) == 3


def test_every_backend_file_counts(backends: Path) -> None:
    seen = [desired_image.recipe_digest(RECIPE, str(backends))]

    def changed() -> bool:
        seen.append(desired_image.recipe_digest(RECIPE, str(backends)))
        return seen[-1] not in seen[:-1]

    (backends / "rbln/device.py").write_text("three\n")
    assert changed(), "content"
    (backends / "rbln/sub").mkdir()
    (backends / "rbln/sub/new.py").write_text("")
    assert changed(), "a new file below a new directory"
    (backends / "rbln/sub/new.py").rename(backends / "rbln/sub/newer.py")
    assert changed(), "a name"
    (backends / "rbln/sub/newer.py").rename(backends / "rbln/newer.py")
    assert changed(), "a directory"
    (backends / "rbln/model.py").unlink()
    assert changed(), "a file that is gone"


def test_contents_that_change_places_are_another_recipe(backends: Path) -> None:
    before = desired_image.recipe_digest(RECIPE, str(backends))
    (backends / "rbln/model.py").write_text("two\n")
    (backends / "rbln/device.py").write_text("one\n")
    assert desired_image.recipe_digest(RECIPE, str(backends)) != before


def test_a_backend_that_is_linked_counts(backends: Path, tmp_path: Path) -> None:
    before = wanted(backends)["recipe"]
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/model.py").write_text("1")
    (backends / "linked").symlink_to(tmp_path / "theirs")
    linked = wanted(backends)["recipe"]
    (tmp_path / "theirs/model.py").write_text("2")
    assert len({before, linked, wanted(backends)["recipe"]}) == 3


def test_bytecode_time_and_place_do_not_count(backends: Path, tmp_path: Path) -> None:
    before = desired_image.recipe_digest(RECIPE, str(backends))
    (backends / "rbln/__pycache__/deep").mkdir(parents=True)
    (backends / "rbln/__pycache__/model.cpython-310.pyc").write_bytes(b"bytecode")
    (backends / "rbln/__pycache__/deep/model.pyc").write_bytes(b"bytecode")
    (backends / "rbln/model.py").touch()
    elsewhere = backends.rename(tmp_path / "elsewhere")
    assert desired_image.recipe_digest(dict(reversed(RECIPE.items())), str(elsewhere)) == before


def test_the_order_of_the_file_system_does_not_count(backends: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("a/one.py", "b/two.py", "b/c/three.py"):
        (backends / path).parent.mkdir(parents=True, exist_ok=True)
        (backends / path).write_text(path)
    before = desired_image.recipe_digest(RECIPE, str(backends))
    real = os.walk

    def backwards(top: str, **options: Any) -> Any:
        for directory, names, files in real(top, **options):
            names.sort(reverse=True)
            yield directory, names, sorted(files, reverse=True)

    monkeypatch.setattr(os, "walk", backwards)
    assert desired_image.recipe_digest(RECIPE, str(backends)) == before


def test_the_roles_recipe_names_what_is_installed() -> None:
    assert fleet()["triton_image_recipe"] == {
        "base": "triton:base",
        "base_archive": "",
        "python": "3.10",
        "requirements": ["rebel-compiler==0.6.2", "tritonclient[http,grpc]==2.41.1", "numpy<2", "pillow==12.3.0"],
    }
    newer = fleet(npufleet_release_row={**ROW, "sdk": {**ROW["sdk"], "version": "0.9.4"}})
    assert newer["triton_image_recipe"]["requirements"][0] == "rebel-compiler==0.9.4"


@pytest.mark.parametrize(
    "image", ["docker.io/rebellions/tritonserver:25.08-vllm-python-py3", "nvcr.io/nvidia/tritonserver:25.08-py3"]
)
def test_a_base_without_vllm_is_a_choice(image: str) -> None:
    row = {**ROW, "triton": {**ROW["triton"], "image": image}}
    assert fleet(npufleet_release_row=row)["triton_image_recipe"]["base"] == image
    assert (
        fleet(npufleet_release_row=row, triton_image_plain=True)["triton_image_recipe"]["base"]
        == "nvcr.io/nvidia/tritonserver:25.08-py3"
    )
    assert (
        fleet(npufleet_release_row=row, triton_image_plain=True, triton_image_base="mine:1")["triton_image_recipe"]["base"]
        == "mine:1"
    )


# The lock


def test_nothing_is_locked_yet(backends: Path) -> None:
    digest = desired_image.recipe_digest(RECIPE, str(backends), fleet()["triton_image_instructions"])
    expected = {"reference": f"npufleet/triton:24.01-{digest[:12]}", "recipe": digest, "options": [], "delivery": "archive"}
    expected.update(dict.fromkeys(["id", "content", "archive", "repo_digest", "publish"]))
    assert wanted(backends) == expected
    assert wanted(backends, npufleet_lock={"25.08": {"recipe": digest, "id": ID}}) == expected


def test_lock_of_this_recipe_pins_the_image(backends: Path) -> None:
    digest = desired_image.recipe_digest(RECIPE, str(backends), fleet()["triton_image_instructions"])
    lock = {"24.01": {"recipe": digest, "id": ID, "archive": "sha256:" + "d" * 64}}
    pinned = wanted(backends, npufleet_lock=lock)
    assert (pinned["id"], pinned["archive"]) == (ID, "sha256:" + "d" * 64)
    # One that was proven before it was asked
    assert pinned["content"] is None
    assert pinned["options"] == []
    lock["24.01"]["options"] = ["allow-vertex-ai"]
    assert wanted(backends, npufleet_lock=lock)["options"] == ["allow-vertex-ai"]


def test_lock_of_another_recipe_is_not_used(backends: Path) -> None:
    digest = desired_image.recipe_digest(RECIPE, str(backends))
    lock = {"24.01": {"recipe": digest, "id": ID, "archive": "sha256:" + "d" * 64}}
    (backends / "rbln/model.py").write_text("a new version\n")
    pinned = wanted(backends, npufleet_lock=lock)
    assert pinned["recipe"] != digest
    assert (pinned["id"], pinned["archive"]) == (None, None)


# By which way it comes

REPOSITORY = "registry.example.com:5000/npufleet/triton"
ARCHIVE = {"archive": "sha256:" + "d" * 64}
HERE, ELSEWHERE = {"repo_digest": f"{REPOSITORY}@{OTHER}"}, {"repo_digest": f"other.example.com/npufleet/triton@{OTHER}"}
SAVED, PUSHED = "its archive on the controller", f"it in {REPOSITORY}"


@pytest.mark.parametrize(
    ("locked", "repository", "builder", "by", "publish"),
    [
        (ARCHIVE, "", "npu1", "archive", None),
        (HERE, REPOSITORY, "npu1", "registry", None),
        (HERE, REPOSITORY, "npu9", "registry", None),
        ({**ARCHIVE, **HERE}, REPOSITORY, "npu9", "registry", None),
        ({**ARCHIVE, **HERE}, "", "npu9", "archive", None),
        # The other way is wanted now: the build host puts the image there, and gets it as before where it lacks it
        (ARCHIVE, REPOSITORY, "npu1", "archive", PUSHED),
        ({**ARCHIVE, **ELSEWHERE}, REPOSITORY, "npu1", "archive", PUSHED),
        (HERE, "", "npu1", "registry", SAVED),
        # Another host waits for that
        (ARCHIVE, REPOSITORY, "npu9", "registry", None),
        (HERE, "", "npu9", "archive", None),
        # Neither: its push, or the archive's way to the controller, has failed
        ({}, REPOSITORY, "npu1", "registry", PUSHED),
        ({}, "", "npu1", "archive", SAVED),
        (ELSEWHERE, REPOSITORY, "npu1", "registry", PUSHED),
        # A repository whose name begins as that one's does
        ({"repo_digest": f"{REPOSITORY}-old@{OTHER}"}, REPOSITORY, "npu1", "registry", PUSHED),
    ],
)
def test_way_to_the_hosts(
    backends: Path, locked: dict[str, str], repository: str, builder: str, by: str, publish: str | None
) -> None:
    digest = desired_image.recipe_digest(RECIPE, str(backends), fleet()["triton_image_instructions"])
    lock = {"24.01": {"recipe": digest, "id": ID, **locked}}
    made = wanted(backends, npufleet_lock=lock, triton_image_delivery_repository=repository, npufleet_build_host=builder)
    assert (made["delivery"], made["publish"]) == (by, publish)
    assert made["repo_digest"] == (locked.get("repo_digest") if locked in (HERE, {**ARCHIVE, **HERE}) else None)


def test_before_there_is_an_image_nothing_is_published(backends: Path) -> None:
    made = wanted(backends, triton_image_delivery_repository=REPOSITORY)
    assert (made["id"], made["delivery"], made["publish"]) == (None, "registry", None)


@pytest.mark.parametrize(("here", "actions"), [(ID, ["publish"]), (None, ["deliver", "publish"])])
def test_what_the_other_hosts_do_not_get_is_a_difference(here: str | None, actions: list[str]) -> None:
    lock = {"reference": "npufleet/triton:24.01-0123", "id": ID, "content": None, "publish": PUSHED}
    plan = image.diff(lock, {"engine": True, "id": here, "content": None})
    assert [entry["action"] for entry in plan] == actions
    assert (plan[-1]["current"], plan[-1]["desired"]) == (None, PUSHED)


# The host


@pytest.mark.parametrize(
    ("labels", "contents"),
    [
        ({"io.npufleet.contents": "rebel-compiler==0.6.2 numpy==1.26.4"}, ["rebel-compiler==0.6.2", "numpy==1.26.4"]),
        ({"io.npufleet.release": "24.01"}, []),
        (None, []),
    ],
)
def test_read(monkeypatch: pytest.MonkeyPatch, labels: dict[str, str] | None, contents: list[str]) -> None:
    answers = {"/images/npufleet/triton:24.01-0123/json": {"Id": ID, "Config": {"Labels": labels}}}
    monkeypatch.setattr(image, "Engine", FakeEngine(answers))
    here = {"engine": True, "id": ID, "content": None, "contents": contents}
    assert image.read({"reference": "npufleet/triton:24.01-0123"}) == here
    nothing = {"engine": True, "id": None, "content": None, "contents": []}
    assert image.read({"reference": "npufleet/triton:24.01-4567"}) == nothing


def test_read_without_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "Engine", FakeEngine(None))
    actual = image.read({"reference": "npufleet/triton:24.01-0123"})
    assert (actual["engine"], actual["id"]) == (False, None)


@pytest.mark.parametrize(
    ("pinned", "here", "expected"),
    [
        (None, None, [(None, "an image of this recipe", "build")]),
        (None, OTHER, [(OTHER, "an image of this recipe", "build")]),
        (ID, None, [(None, ID, "deliver")]),
        (ID, OTHER, [(OTHER, ID, "deliver")]),
        (ID, ID, []),
    ],
)
def test_plan(pinned: str | None, here: str | None, expected: list[tuple[Any, ...]]) -> None:
    lock = {"reference": "npufleet/triton:24.01-0123", "id": pinned, "content": None, "publish": None}
    plan = image.diff(lock, {"engine": True, "id": here, "content": None})
    assert plan == [
        {"concern": "image", "name": "npufleet/triton:24.01-0123", "current": current, "desired": desired, "action": action}
        for current, desired, action in expected
    ]


@pytest.mark.parametrize(("content", "differs"), [("sha256:" + "c" * 64, False), ("sha256:" + "d" * 64, True), (None, True)])
def test_an_image_of_another_engine_is_known_by_its_content(content: str | None, differs: bool) -> None:
    lock = {"reference": "npufleet/triton:24.01-0123", "id": ID, "content": "sha256:" + "c" * 64, "publish": None}
    plan = image.diff(lock, {"engine": True, "id": OTHER, "content": content})
    assert [(entry["current"], entry["desired"], entry["action"]) for entry in plan] == (
        [(content, lock["content"], "deliver")] if differs else []
    )


def test_other_instructions_are_another_recipe(tmp_path: Path) -> None:
    (tmp_path / "backends").mkdir()
    digests = set()
    for words in ("FROM a", "FROM b"):
        (tmp_path / "Dockerfile").write_text(words)
        digests.add(desired_image.recipe_digest({}, str(tmp_path / "backends"), str(tmp_path / "Dockerfile")))
    assert len(digests) == 2
