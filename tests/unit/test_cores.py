"""Cores of `make molecule-cores`: those that meta/runtime.yml supports, with the pins of the project and their own Ansible."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from helpers import ROOT


@pytest.fixture(scope="module")
def cores() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cores", ROOT / "tests/cores.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_supported_core_is_run(cores: ModuleType) -> None:
    oldest, newest = re.findall(r"2\.(\d+)\.0", yaml.safe_load((ROOT / "meta/runtime.yml").read_text())["requires_ansible"])
    assert list(cores.CORES) == [f"2.{minor}" for minor in range(int(oldest), int(newest))]
    assert all(core.pins["ansible-core"].startswith(f"{name}.") for name, core in cores.CORES.items())
    # The core of the project, and the one of `make sanity-newest`
    assert f"ansible-core=={cores.CORES['2.19'].pins['ansible-core']}\n" in (ROOT / "requirements.txt").read_text()
    assert f"ansible-core=={cores.CORES['2.21'].pins['ansible-core']}\n" in (ROOT / "tests/sanity/newest.txt").read_text()


def test_pins_of_a_core_replace_those_of_the_project(cores: ModuleType) -> None:
    text = (ROOT / "requirements.txt").read_text()
    found = cores.requirements(text, {"ansible": "14.0.0", "ansible-core": "2.21.0"})
    assert "ansible==14.0.0\nansible-core==2.21.0\n" in found
    assert len(found.splitlines()) == len(text.splitlines())
    with pytest.raises(SystemExit, match="pins nothing 0 times, expected once"):
        cores.requirements(text, {"nothing": "1"})


def test_a_machine_without_a_python_for_a_core_is_reported(
    cores: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    with pytest.raises(SystemExit, match=r"found no Python 3\.12 or newer with venv"):
        cores.python_for(cores.CORES["2.21"])
