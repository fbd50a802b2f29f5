"""The example inventory, and every line of it that is commented out: each is one that an operator may take as it stands."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.vars.manager import VariableManager
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.registry import CONCERNS, NPU_HOSTS
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks import inputs
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import findings, preflight_inputs
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import variables as subject
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.values import inventory_specs
from helpers import ROOT, ansible_playbook, fleet
from linting import PYTHON

EXAMPLE = ROOT / "inventories/example"
KNOWN = inventory_specs()
NPU = [name for name, concern in CONCERNS.items() if NPU_HOSTS in concern.groups]
# `# name: value`, `#   name: value` of a list's element, `# - name: value`
LINE = re.compile(r"^(?P<indent> *)# ?(?P<code> *(?:- )?(?P<name>\w+): \S.*)$")
VAULT = "group_vars/all/vault.yml"
# What stands in the place of another line
INSTEAD = {"rbln_driver_package_url": "rbln_driver_package_file"}


class Block(NamedTuple):
    """Lines that belong together: the path of their file, the numbers of the first and of the one after the last."""

    path: str
    first: int
    end: int
    names: tuple[str, ...]


def blocks() -> Iterator[Block]:
    """Every run of lines that are commented out; in prose no line has this form."""
    for path in sorted(EXAMPLE.rglob("*.yml")):
        lines = path.read_text().splitlines()
        found = [(number, match) for number, line in enumerate(lines) if (match := LINE.match(line)) and code(match)]
        while found:
            run = [line for at, line in enumerate(found) if line[0] == found[0][0] + at]
            names = tuple(str(match["name"]) for _number, match in run)
            yield Block(path.relative_to(EXAMPLE).as_posix(), run[0][0], run[-1][0] + 1, names)
            found = found[len(run) :]


def code(match: re.Match[str]) -> bool:
    """Whether a comment sets something: a variable, one of the vault, or a key of a model."""
    models = KNOWN["triton_models"]["options"]
    return match["name"] in KNOWN or match["name"].startswith("vault_") or match["name"] in models


BLOCKS = list(blocks())


def site(place: Path, *taken: Block) -> Path:
    """A copy of the example in which these lines are no comments, and the files on the controller that it names."""
    copy = place / "inventory"
    shutil.copytree(EXAMPLE, copy)
    vault = {}
    for entry in taken:
        lines = (EXAMPLE / entry.path).read_text().splitlines()
        code = [re.sub(r"^( *)# ?", r"\1", line) for line in lines[entry.first : entry.end]]
        if entry.names[0].startswith("vault_"):
            vault.update(dict.fromkeys(entry.names, "of-the-vault"))
            continue
        instead = {INSTEAD[name] for name in entry.names if name in INSTEAD}
        now = (copy / entry.path).read_text().splitlines()
        now[entry.first : entry.end] = code
        (copy / entry.path).write_text("\n".join(line for line in now if line.split(":")[0] not in instead) + "\n")
    (copy / VAULT).write_text(yaml.safe_dump({"vault_index_password": "a", "vault_artefact_password": "b", **vault}))
    for name in ("models/resnet50/1", "models/words/1", "checks", "golden", "wheels", "images", "packages"):
        (place / "fleet" / name).mkdir(parents=True)
    for model in ("resnet50", "words"):
        (place / "fleet/models" / model / "config.pbtxt").write_text('backend: "python"\n')
        (place / "fleet/models" / model / "1/model.py").write_text(PYTHON)
    for path in copy.rglob("*.yml"):
        path.write_text(path.read_text().replace("/srv/fleet", str(place / "fleet")))
    return copy


def of_host(copy: Path, host: str, place: Path) -> tuple[Any, list[str]]:
    """(variables of a host as the action plugins see them, names that the inventory sets)."""
    loader = DataLoader()
    hosts = InventoryManager(loader=loader, sources=[str(copy)])
    manager = VariableManager(loader=loader, inventory=hosts)
    every = {name: manager.get_vars(host=hosts.get_host(name)) for name in ("npu-01", "npu-02", "npu-03", "ops-01")}
    mine = every[host]
    theirs = [name for name in mine if name in KNOWN]
    # Not in the inventory: the rows as they come with the collection, a place for what is remembered, no model of this checkout
    rows = yaml.safe_load((ROOT / "files/releases.yml").read_text())["npufleet_releases"]
    made = {
        "npufleet_release_rows": rows,
        "npufleet_release_row": rows[mine["rbln_release"]],
        "npufleet_cache": str(place / "cache"),
        "npufleet_model_repository": str(place / "fleet/models"),
        "hostvars": {name: {**variables, "npufleet_metrics_port": 8002} for name, variables in every.items()},
    }
    return fleet(**{**made, **mine}), theirs


def test_what_is_commented_out_is_found() -> None:
    names = {name for block in BLOCKS for name in block.names}
    assert {"triton_server_listen_address", "npufleet_http_port", "hosts", "monitoring_packages", "vault_index_password"} <= names
    assert len(names) >= 16
    # A comment in the form of a line that is none of these would be a slip of its name
    for path in EXAMPLE.rglob("*.yml"):
        for line in path.read_text().splitlines():
            match = LINE.match(line)
            assert match is None or code(match), line


@pytest.mark.parametrize("block", [None, *BLOCKS], ids=lambda entry: "as it stands" if entry is None else ", ".join(entry.names))
def test_each_of_its_lines_is_one_from_which_a_fleet_can_be_wanted(tmp_path: Path, block: Block | None) -> None:
    copy = site(tmp_path, *([block] if block else []))
    if block and not block.names[0].startswith("vault_"):
        assert (copy / block.path).read_text() != (EXAMPLE / block.path).read_text()
    for host in ("npu-01", "npu-03"):
        variables, given = of_host(copy, host, tmp_path)
        assert findings.findings(variables, given) == []
        wanted, _manifests, reasons = subject.collect_desired(variables, NPU)
        assert reasons == []
        address = wanted["server"]["address"]
        assert inputs.server_of(variables)["address"] == address
        assert preflight_inputs.conditions(variables, {})["listen"] in (address, "0.0.0.0")
        if block and "triton_server_listen_address" in block.names:
            assert address == variables["ansible_host"]
            assert wanted["server"]["published_ports"][0] == f"{address}:8000:8000"
        if block and "words" in (EXAMPLE / block.path).read_text().splitlines()[block.first]:
            assert ("words" in wanted["models"]["models"]) is (host == "npu-03")
    variables, given = of_host(copy, "ops-01", tmp_path)
    assert findings.findings(variables, given) == []
    wanted, _manifests, reasons = subject.collect_desired(variables, ["monitoring"])
    assert (reasons, wanted["monitoring"]["hosts"]["npufleet-triton"]) == ([], ["npu-01", "npu-02", "npu-03"])


def test_all_of_them_at_once_in_a_real_run(tmp_path: Path) -> None:
    """status.yml on this machine: every host of every group is read, and nothing of its inventory is refused."""
    copy = site(tmp_path, *sorted(BLOCKS, key=lambda entry: -entry.first))
    settings = {
        "ansible_connection": "local",
        "ansible_become": False,
        "ansible_python_interpreter": sys.executable,
        "npufleet_root": str(tmp_path / "root"),
        "npufleet_cache": str(tmp_path / "cache"),
        "npufleet_status_file": str(tmp_path / "status.json"),
        "npufleet_report_file": str(tmp_path / "report.html"),
        "inference_check_results_dir": str(tmp_path / "results"),
    }
    done = ansible_playbook(tmp_path, "-i", copy, ROOT / "playbooks/status.yml", "-e", json.dumps(settings))
    assert (tmp_path / "status.json").exists(), done.stdout + done.stderr
    hosts = {host["host"]: host for host in json.loads((tmp_path / "status.json").read_text())["hosts"]}
    assert sorted(hosts) == ["npu-01", "npu-02", "npu-03", "ops-01"]
    for name, host in hosts.items():
        assert host["plan"], (name, host, done.stdout, done.stderr)
    assert " is refused" not in done.stdout + done.stderr
