"""What an image is: the same on every engine, whichever store it keeps images in."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible.errors import AnsibleError
from ansible_collections.npufleet.triton.plugins.filter.image_content import FilterModule
from ansible_collections.npufleet.triton.plugins.module_utils.engine.images import content_digest
from helpers import fixture

# The same image, in the engine's own store (Docker 20.10) and in containerd's (Docker 26.1), as each inspects it
OWN, CONTAINERD = fixture("inspect_image_own_store.json"), fixture("inspect_image_containerd_store.json")
DIGEST = content_digest(OWN)


def test_the_same_image_of_two_engines_has_one_content() -> None:
    assert OWN["Id"] != CONTAINERD["Id"]
    assert DIGEST is not None and DIGEST.startswith("sha256:")
    assert content_digest(CONTAINERD) == DIGEST


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("RootFS", "Layers"), ["sha256:" + "0" * 64]),
        (("Config", "Env"), ["PATH=/elsewhere"]),
        (("Config", "Cmd"), ["other"]),
        (("Config", "Entrypoint"), ["/bin/other"]),
        (("Config", "Labels"), {"io.npufleet.recipe": "other"}),
        (("Config", "User"), "1000"),
        (("Config", "WorkingDir"), "/elsewhere"),
        (("Architecture",), "arm64"),
    ],
)
def test_what_a_container_would_run_with_is_content(place: tuple[str, ...], value: Any) -> None:
    other = copy.deepcopy(OWN)
    at = other
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    assert content_digest(other) != DIGEST


def test_who_made_it_and_when_is_none() -> None:
    other = copy.deepcopy(OWN)
    other.update(
        {"Created": "2026-01-01T00:00:00Z", "RepoTags": ["other:1"], "Parent": "sha256:1", "Size": 1, "DockerVersion": "x"}
    )
    other["Config"].update({"Image": "sha256:2", "Hostname": "builder", "Cmd": OWN["Config"].get("Cmd"), "OnBuild": None})
    assert content_digest(other) == DIGEST


def test_layers_that_are_not_told_are_no_content() -> None:
    image_content = FilterModule().filters()["image_content"]
    assert image_content(OWN) == DIGEST
    for lacking in ({}, {"RootFS": {}}, {"RootFS": {"Layers": []}}):
        assert content_digest(lacking) is None
        with pytest.raises((ValueError, AnsibleError), match=r"the image has no layers, expected RootFS\.Layers"):
            image_content(lacking)
