"""What tests/production.py puts in the place of the page's values has to stand on the page, or the lab would get the example's."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT

FACTS = {
    "lab_models": {"digits": {"path": "models/digits.rbln", "key": "CA12/0.6", "sha256": "a" * 64}},
    "lab_drivers": {"1.1.67": {"path": "drivers/rebellions_1.1.67_amd64.deb", "sha256": "b" * 64}},
    "lab_artefact_url": "http://198.51.100.1:8090",
    "lab_artefact_user": "lab",
    "lab_release": "lab-24.01",
    "lab_npus": 2,
    "ansible_user": "fleet",
}
LAB = {
    "all": {"vars": FACTS},
    "_meta": {"hostvars": {name: {"ansible_host": f"198.51.100.{number}"} for number, name in enumerate(("ops1", "npu1", "npu2"))}},
}


@pytest.fixture
def values(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    subject: Any = importlib.import_module("production")
    package = tmp_path / "build/lab/artefacts" / FACTS["lab_drivers"]["1.1.67"]["path"]  # type: ignore[index]
    package.parent.mkdir(parents=True)
    package.touch()
    monkeypatch.setattr(subject, "ROOT", tmp_path)
    return dict(subject.values(LAB, {"become": "one", "artefact": "two"}))


@pytest.mark.parametrize("page", ["production.md", "production.ko.md"])
def test_every_value_of_the_example_is_on_the_page(page: str, values: dict[str, str]) -> None:
    text = (ROOT / "docs" / page).read_text()
    assert [found for found in values if found not in text] == []


def test_nothing_of_the_example_is_left_in_its_files(values: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    page: Any = importlib.import_module("page")
    files = "\n".join(step.text for step in page.steps(ROOT / "docs/production.md") if step.path)
    for found, here in values.items():
        files = files.replace(found, here)
    for word in ("CA25", "26.05", "3.2.2", "192.0.2.", "0.11", "resnet50", ".run"):
        assert word not in files, word
    assert 'rbln_release: "lab-24.01"' in files and "npufleet_npus: 2" in files and "npufleet_card: RBLN-CA12" in files
