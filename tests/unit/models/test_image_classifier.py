"""The ensemble `image_classifier`: its steps fit together, can be placed together, and in no other way."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks import check_files, inputs
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import manifest
from helpers import ROOT, fleet
from manifests import parse_config
from served import REPOSITORY, config_of

ARTEFACTS = {"CA12/0.6": {"url": "https://models.example.com/resnet50.rbln", "sha256": "a" * 64}}
STEPS = ("image_decode", "resnet50", "image_labels")
OF_BYTES = ("image_bytes", "image_decode", "resnet50")


def placed(*names: str, **hosts: list[str]) -> tuple[dict[str, Any], list[str]]:
    entries = [{"name": name, "hosts": hosts.get(name, [])} for name in names]
    return manifest.manifests(
        fleet(triton_models=[{**entry, "artefacts": ARTEFACTS if entry["name"] == "resnet50" else {}} for entry in entries])
    )


def ensembles() -> list[tuple[str, Any, dict[str, Any]]]:
    """(where, ensemble, its steps by name) of the repository, and of the one for DALI with the steps that it replaces."""
    usual = {name: config_of(name) for name in STEPS}
    of_bytes = {name: config_of(name) for name in OF_BYTES}
    dali = {name: config_of(name, ROOT / "files/dali") for name in ("image_decode", "image_classifier")}
    return [
        ("model_repository", config_of("image_classifier"), usual),
        ("of bytes", config_of("image_classifier_uint8"), of_bytes),
        ("files/dali", dali["image_classifier"], {**usual, "image_decode": dali["image_decode"]}),
    ]


@pytest.mark.parametrize(("_where", "ensemble", "steps"), ensembles(), ids=lambda entry: entry if isinstance(entry, str) else "")
def test_what_a_step_gives_is_what_the_next_one_takes(_where: str, ensemble: Any, steps: dict[str, Any]) -> None:
    known = {entry.name: (entry.data_type, list(entry.dims)) for entry in ensemble.input}
    for step in ensemble.ensemble_scheduling.step:
        config = steps[step.model_name]
        assert config.max_batch_size >= ensemble.max_batch_size
        assert set(step.input_map) == {entry.name for entry in config.input}
        for entry in config.input:
            assert known[step.input_map[entry.name]] == (entry.data_type, list(entry.dims)), entry.name
        known.update({step.output_map[entry.name]: (entry.data_type, list(entry.dims)) for entry in config.output})
    assert {entry.name: known[entry.name] for entry in ensemble.output} == {
        entry.name: (entry.data_type, list(entry.dims)) for entry in ensemble.output
    }
    assert [step.model_name for step in ensemble.ensemble_scheduling.step] == list(steps)


def test_labels_are_the_same_wherever_a_client_asks_for_them() -> None:
    copies = [(REPOSITORY / name / "labels.txt").read_bytes() for name in ("resnet50", "image_labels", "image_classifier_uint8")]
    assert len(set(copies)) == 1
    labels = (REPOSITORY / "resnet50/labels.txt").read_text().splitlines()
    assert len(labels) == len(set(labels)) == 1000
    assert (labels[0], labels[281], labels[967], labels[999]) == ("tench", "tabby", "espresso", "toilet tissue")


def test_it_is_placed_with_its_steps() -> None:
    found, reasons = placed("image_classifier", *STEPS)
    assert reasons == []
    assert {name: model["versions"] for name, model in found.items()} == {name: ["1"] for name in ("image_classifier", *STEPS)}
    rendered = {name: parse_config(model["contents"]["config.pbtxt"].decode(), name) for name, model in found.items()}
    # Two NPUs: two instances of what uses one. What runs on the CPU stays as it is, and an ensemble may have none.
    assert {name: sum(group.count for group in config.instance_group) for name, config in rendered.items()} == {
        "image_classifier": 0,
        "image_decode": 2,
        "image_labels": 1,
        "resnet50": 2,
    }
    assert rendered["image_classifier"].parameters["npufleet_release"].string_value == found["image_classifier"]["release"]
    assert [path for path in found["image_classifier"]["files"] if path.startswith("1/")], "Triton wants a version directory"


def test_without_a_step_it_is_refused() -> None:
    head = f"model image_classifier: {REPOSITORY}/image_classifier/config.pbtxt:"
    words = "which is not placed on this host, expected a model placed on this host. "
    words += "Add it to `triton_models` for the same hosts. Triton refuses the model."
    network = f"{head}22: ensemble_scheduling.step[1].model_name is resnet50, {words}"
    labels = f"{head}28: ensemble_scheduling.step[2].model_name is image_labels, {words}"
    assert placed("image_classifier", "image_decode")[1] == [network, labels]
    assert placed("image_classifier", *STEPS, image_labels=["npu2"])[1] == [labels]


def test_a_step_that_is_refused_itself_is_told_once() -> None:
    entries = [{"name": name} for name in ("image_classifier", *STEPS)]
    (reason,) = manifest.manifests(fleet(triton_models=entries))[1]
    assert reason.startswith("model resnet50: ")
    assert "is without a version directory" in reason


def test_no_build_product_lies_in_the_repository() -> None:
    found = [path for path in REPOSITORY.rglob("*") if path.suffix in (".rbln", ".dali", ".onnx")]
    assert found == []
    assert str(ROOT / "model_repository") == str(REPOSITORY)


def test_the_dali_step_differs_in_its_input_alone() -> None:
    for name in ("image_decode", "image_classifier"):
        usual, dali = config_of(name), config_of(name, ROOT / "files/dali")
        assert (usual.max_batch_size, usual.output) == (dali.max_batch_size, dali.output)
        assert (dali.input[0].name, list(dali.input[0].dims)) == ("IMAGE", [-1])
    assert (
        config_of("image_classifier").ensemble_scheduling == config_of("image_classifier", ROOT / "files/dali").ensemble_scheduling
    )


# The check files


def checks(*models: str, before: Path | None = None, golden: Path | None = None) -> dict[str, Any]:
    """The checks of these models; in `before` and `golden` files are looked for first."""
    checks_dirs = [str(before)] if before else []
    golden_dirs = [str(golden)] if golden else []
    return check_files.read_checks(models, [*checks_dirs, inputs.CHECKS_DIR], [*golden_dirs, inputs.GOLDEN_DIR], 0)


def test_every_model_has_a_check_file_without_a_finding() -> None:
    models = ("image_classifier", *STEPS, "resnet50_guide")
    found = checks(*models)
    assert found["no_check_file"] == []
    assert [check["model"] for check in found["checks"]] == list(models)
    lab = checks(*models, before=ROOT / "lab/checks", golden=ROOT / "lab/golden")
    assert [check["model"] for check in lab["checks"]] == list(models)
    assert "values" in lab["checks"][0]["checks"][0]["expect"]["PROBABILITIES"]


def test_the_guides_photograph_can_be_asked_for(tmp_path: Path) -> None:
    (tmp_path / "resnet50").mkdir()
    shutil.copy(ROOT / "files/golden/resnet50/chelsea.jpg", tmp_path / "resnet50/tabby.jpg")
    shutil.copy(ROOT / "files/golden/resnet50/pixels.npy", tmp_path / "resnet50/tabby.npy")
    found = checks("resnet50", "image_classifier", before=ROOT / "files/checks/tabby", golden=tmp_path)
    assert [check["checks"][0]["name"] for check in found["checks"]] == ["tabby", "tabby"]


def test_labels_of_the_checks_are_their_places() -> None:
    """What a check wants by number and what it wants by name is one class, and for the lab that of the golden scores."""
    labels = (REPOSITORY / "resnet50/labels.txt").read_text().splitlines()
    for path in [*ROOT.glob("files/checks/**/*.yml"), *ROOT.glob("lab/checks/*.yml")]:
        found = {"argmax": set(), "label": set()}
        for check in yaml.safe_load(path.read_text())["checks"]:
            for wanted in check.get("expect", {}).values():
                for key, named in found.items():
                    named.update(wanted.get(key, []))
        if found["label"]:
            assert {labels[place] for place in found["argmax"]} <= found["label"] or path.parent.name == "tabby", path
    document = yaml.safe_load((ROOT / "lab/checks/image_classifier.yml").read_text())
    scores = np.load(ROOT / "lab/golden/resnet50/scores.npy")
    best = [[labels[place] for place in np.argsort(-row)[:5]] for row in scores]
    assert document["checks"][0]["expect"]["LABELS"]["text"] == best
