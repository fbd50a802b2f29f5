"""The collection as people have it: installed from its archive into an empty directory, and called by its name."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.npufleet.triton.plugins.lookup import output_dir
from helpers import ROOT, ansible_playbook, load_program
from packaging.requirements import Requirement

installed = load_program("tests/installed.py")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Any:
    where = tmp_path_factory.mktemp("collections")
    return installed.install(where)


def test_what_travels(place: Path) -> None:
    names = {path.name for path in place.iterdir()}
    assert {"plugins", "roles", "playbooks", "files", "inventories", "model_repository", "docs", "bin", "meta"} <= names
    assert (
        names & {"lab", "molecule", "tests", "build", "collections", ".venv", "Makefile", "ansible.cfg", "pyproject.toml"} == set()
    )
    assert [path.name for path in (place / "inventories").iterdir()] == ["example"]


def test_a_playbook_is_called_by_its_name_and_writes_where_it_was_started(place: Path, tmp_path: Path) -> None:
    before = installed.content(place)
    collections = str(place.parents[2])
    here = tmp_path / "site"
    here.mkdir()
    (here / "ansible.cfg").write_text("")
    inventory = ("-i", place / "inventories/example")
    environment = {"ANSIBLE_COLLECTIONS_PATH": collections, "ANSIBLE_CONFIG": str(here / "ansible.cfg")}
    for playbook, output in (("lint_models", ""), ("report", "build/report/index.html")):
        done = ansible_playbook(tmp_path, *inventory, f"npufleet.triton.{playbook}", cwd=here, **environment)
        assert done.returncode == 0, done.stdout + done.stderr
        assert str(ROOT) not in done.stdout + done.stderr
        assert not output or (here / output).is_file()
    assert installed.content(place) == before


def test_a_checkout_keeps_what_was_found_in_its_own_build() -> None:
    assert output_dir.LookupModule().run([]) == [str(ROOT / "build")]


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_each_python_of_a_controller_has_one_pin_of_everything(version: str) -> None:
    lines = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if line and not line.startswith("#")]
    wanted = [Requirement(line) for line in lines]
    mine = [
        requirement
        for requirement in wanted
        if requirement.marker is None or requirement.marker.evaluate({"python_version": version})
    ]
    assert sorted(entry.name for entry in mine) == sorted({requirement.name for requirement in wanted})
    assert all(str(entry.specifier).startswith("==") for entry in mine)
    # The page of production says the same
    assert version in (ROOT / "docs/production.md").read_text()


def test_an_execution_environment_has_what_the_controller_needs() -> None:
    """The same pins as requirements.txt and requirements.yml, in the files that ansible-builder reads."""
    meta = yaml.safe_load((ROOT / "meta/execution-environment.yml").read_text())["dependencies"]
    pinned = set((ROOT / "requirements.txt").read_text().splitlines())
    python = [line for line in (ROOT / meta["python"]).read_text().splitlines() if "==" in line]
    assert set(python) == {line for line in pinned if "==" in line and not line.startswith("ansible")}
    assert (ROOT / meta["system"]).is_file()
    definition = yaml.safe_load((ROOT / "execution-environment.yml").read_text())["dependencies"]["galaxy"]["collections"]
    galaxy = yaml.safe_load((ROOT / "galaxy.yml").read_text())
    assert definition[0] == {"name": f"{galaxy['namespace']}-{galaxy['name']}-{galaxy['version']}.tar.gz", "type": "file"}
    assert definition[1:] == yaml.safe_load((ROOT / "requirements.yml").read_text())["collections"]


# Options of modules

PREFIX = "npufleet.triton."


class Loader(yaml.SafeLoader):
    """Reads values with unknown tags, such as `!unsafe`, as their text."""


Loader.add_multi_constructor("!", lambda _loader, _tag, node: node.value)


def module_calls(content: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the options of each task that calls a module of the collection."""
    entries = content if isinstance(content, list) else [content] if isinstance(content, dict) else []
    for entry in entries:
        if isinstance(entry, dict):
            for name, value in entry.items():
                if name.startswith(PREFIX) and isinstance(value, dict):
                    yield name[len(PREFIX) :], value
                yield from module_calls(value)


def test_tasks_give_modules_only_options_that_they_have() -> None:
    """Ansible finds a wrong option only when the task runs, which may be after a rare failure."""
    unknown, modules = [], set()
    for path in [*ROOT.glob("playbooks/**/*.yml"), *ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("molecule/**/*.yml")]:
        for name, options in module_calls(yaml.load(path.read_text(), Loader)):
            module = import_module(f"ansible_collections.npufleet.triton.plugins.modules.{name}")
            documented = yaml.safe_load(module.DOCUMENTATION).get("options", {})
            known = {*documented, *getattr(module, "OPTIONS", {})}
            modules.add(name)
            unknown += [f"{path.relative_to(ROOT)}: {name} has no option {option}" for option in options if option not in known]
    assert unknown == []
    assert {"host_lease", "host_state", "server_change", "triton_container"} <= modules
