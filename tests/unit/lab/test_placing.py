"""What the lab's inventory places, by the set of models that the lab was brought up with."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import manifest
from helpers import ROOT, fleet

DIGITS = ["digits", "digits_guide"]
IMAGES = ["image_classifier", "image_decode", "image_labels", "resnet50", "resnet50_guide"]


def lab(placing: str) -> Any:
    """Variables of a host of the lab."""
    inventory = DataLoader().load_from_file(str(ROOT / "inventories/lab/group_vars/all.yml"), trusted_as_template=True)
    entry = {"sha256": "a" * 64, "record": None}
    made = {name: {"CA12/0.6": {**entry, "url": f"http://127.0.0.1/models/{name}.rbln"}} for name in ("digits", "resnet50")}
    return fleet(
        **{name: inventory[name] for name in ("triton_models", "lab_models_of", "lab_digits", "lab_resnet50")},
        lab_model_set=placing,
        lab_artefacts=made,
    )


@pytest.mark.parametrize(("placing", "models"), [("digits", DIGITS), ("images", DIGITS + IMAGES)])
def test_every_model_of_a_set_can_be_wanted(placing: str, models: list[str]) -> None:
    found, reasons = manifest.manifests(lab(placing))
    assert (list(found), reasons) == (models, [])
    assert all((ROOT / "files/checks" / f"{name}.yml").is_file() for name in found)


def test_the_sets_are_those_that_the_lab_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "lab"))
    import lab as program

    assert list(program.MODEL_SETS) == list(lab("digits")["lab_models_of"])
