"""Lookup fleet_group: whose hosts a play goes over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT, ansible_playbook

HOSTS = {"hosts": {"npu1": {}}}


@pytest.mark.parametrize(
    ("groups", "given", "listed"),
    [
        ({"npu_hosts": HOSTS}, [], "npu1"),
        ({"edge": HOSTS}, ["-e", "npufleet_group=edge"], "npu1"),
        ({"edge": HOSTS}, [], None),
        ({"npu_hosts": HOSTS}, ["-e", "npufleet_group=edge"], None),
        # As a check of syntax has it
        ({"all": {}}, [], ""),
    ],
)
def test_every_playbook_goes_over_that_group(tmp_path: Path, groups: Any, given: list[str], listed: str | None) -> None:
    (tmp_path / "hosts.json").write_text(json.dumps(groups))
    playbooks = [ROOT / f"playbooks/{name}.yml" for name in ("site", "status")]
    if listed is not None:
        done = ansible_playbook(tmp_path, "-i", tmp_path / "hosts.json", *playbooks, "--list-hosts", *given)
        assert done.returncode == 0, done.stdout + done.stderr
        _nothing, *each = done.stdout.split("playbook: ")
        assert [listed in words for words in each] == [True, True], done.stdout
        return
    for playbook in playbooks:
        done = ansible_playbook(tmp_path, "-i", tmp_path / "hosts.json", playbook, "--list-hosts", *given)
        assert done.returncode != 0
        words = " ".join((done.stdout + done.stderr).split())
        group = given[-1].rpartition("=")[2] if given else "npu_hosts"
        assert f"the inventory has no group {group}, expected the group of the hosts with NPUs" in words


@pytest.mark.parametrize("name", ["rack:a", "rack,a", "rack[0]", "~edge", "edge*", "a b"])
def test_a_group_that_a_pattern_reads_otherwise_is_refused(tmp_path: Path, name: str) -> None:
    """`~edge` would be every group with these letters in it, and `rack:a` none."""
    (tmp_path / "hosts.json").write_text(json.dumps({name: HOSTS, "edge2": {"hosts": {"npu2": {}}}}))
    given = ["-e", json.dumps({"npufleet_group": name})]
    done = ansible_playbook(tmp_path, "-i", tmp_path / "hosts.json", ROOT / "playbooks/status.yml", "--list-hosts", *given)
    assert done.returncode != 0, done.stdout
    assert f"npufleet_group is '{name}', expected a name without spaces" in " ".join((done.stdout + done.stderr).split())
