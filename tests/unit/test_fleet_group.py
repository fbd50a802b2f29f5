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
    for playbook in ("site", "status"):
        done = ansible_playbook(tmp_path, "-i", tmp_path / "hosts.json", ROOT / f"playbooks/{playbook}.yml", "--list-hosts", *given)
        if listed is not None:
            assert (done.returncode, listed in done.stdout) == (0, True), done.stdout + done.stderr
        else:
            assert done.returncode != 0
            words = " ".join((done.stdout + done.stderr).split())
            group = given[-1].rpartition("=")[2] if given else "npu_hosts"
            assert f"found no group {group} in the inventory, wanted the hosts with NPUs in it" in words
