"""A host that hangs does not block a plan or a batch: each query has a time limit. The message names the host and the limit."""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import ROOT
from stage import HOSTS, differs, run

MODEL = [differs("models", "release", name="add", until="server_change")]
QUERIES = {
    "ansible.builtin.ping",
    *(f"npufleet.triton.{name}" for name in ("host_state", "inference_check", "support_bundle")),
}
LIMIT = {"npufleet_query_timeout": 2}


class Loader(yaml.SafeLoader):
    """A loader that reads a value with the tag `!unsafe` as text."""


Loader.add_constructor("!unsafe", lambda loader, node: loader.construct_scalar(node))


def tasks_of(node: Any) -> Iterator[dict[str, Any]]:
    for entry in node if isinstance(node, list) else []:
        yield entry
        for section in ("tasks", "block", "rescue", "always"):
            yield from tasks_of(entry.get(section))


def test_every_query_has_a_limit() -> None:
    found = []
    for path in [*ROOT.glob("playbooks/**/*.yml"), *ROOT.glob("roles/*/tasks/*.yml")]:
        for task in tasks_of(yaml.load(path.read_text(), Loader)):
            for _query in QUERIES & set(task):
                found.append((task["name"], "npufleet_query_timeout" in str(task.get("timeout"))))
    assert [name for name, limited in found if not limited] == []
    assert len(found) > 40


@pytest.mark.parametrize("path", ["ansible.cfg", "inventories/example/group_vars/all/main.yml"])
def test_a_dead_connection_is_detected(path: str) -> None:
    text = (ROOT / path).read_text()
    if path.endswith(".cfg"):
        parser = configparser.ConfigParser()
        parser.read_string(text)
        text = parser["ssh_connection"]["ssh_args"]
    assert re.search(r"-o ServerAliveInterval=\d+ -o ServerAliveCountMax=\d+", text)


@pytest.mark.parametrize("playbook", ["models.yml", "site.yml"])
def test_a_host_that_hangs_in_the_plan_is_refused(tmp_path: Path, playbook: str) -> None:
    scenario = {"npu-1": {"plan": MODEL, "hangs": "host_state"}, "npu-2": {"plan": MODEL}}
    ran = run(tmp_path, playbook, scenario, **LIMIT)
    assert ran.code == 2, ran.output
    assert "1 of 2 hosts refused, 1 reason" in ran.words
    assert "npu-1: the query has no answer within 2 s (npufleet_query_timeout). Check the host" in ran.words
    assert ran.touched() == []


def test_a_host_that_hangs_in_its_batch_fails_the_gate(tmp_path: Path) -> None:
    scenario = {host: {"plan": MODEL} for host in HOSTS}
    scenario["npu-2"]["hangs"] = "^npu-2 host_state models probe server"
    ran = run(tmp_path, "models.yml", scenario, **LIMIT)
    assert ran.code == 2, ran.output
    assert re.search(r"npu-2 failed the gate, no further batch starts\. .*Timed out after 2 second", ran.words), ran.output
    assert ran.calls_on("npu-4") == []


def test_status_fails_if_a_host_hangs(tmp_path: Path) -> None:
    ran = run(tmp_path, "status.yml", {"npu-1": {"hangs": "host_state"}, "npu-2": {}}, **LIMIT)
    assert ran.code == 2, ran.output
    assert re.search(r"npu-1 was not read: .*Timed out after 2 second", ran.words), ran.output
