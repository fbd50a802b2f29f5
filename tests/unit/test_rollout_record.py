"""The records of rollouts on the controller."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.plugin_utils.report import page, view
from ansible_collections.npufleet.triton.plugins.plugin_utils.rollout import record as subject

OWNER = subject.Owner("run-1", "kim@ops1", "site.yml")
VERDICT = {"verdict": "good", "text": "0 of 200 requests failed", "numbers": {"requests": 200, "p50_ms": None}}


def entry(**known: Any) -> dict[str, Any]:
    return subject.host_entry({"npufleet_began": "100.0", **known}, ["models"], 112.0)


def test_batches_of_a_run_are_in_one_record(tmp_path: Path) -> None:
    subject.begin(str(tmp_path), OWNER, [["npu-1"], ["npu-2"], ["npu-4"]], "", 1000.0)
    subject.add(str(tmp_path), OWNER, {"npu-1": entry()}, 1002.0)
    subject.add(str(tmp_path), OWNER, {"npu-2": entry(npufleet_failed="Prove: no")}, 1005.0)
    subject.add(str(tmp_path), OWNER._replace(run="run-2"), {"npu-3": entry()}, 1000.0)
    # Two runs that began in the same second
    assert [path.name[:21] for path in tmp_path.iterdir()] == ["1970-01-01T00:16:40Z-"] * 2
    found = {record["run"]: record for record in subject.latest(str(tmp_path))}
    assert [list(batch["hosts"]) for batch in found["run-1"]["batches"]] == [["npu-1"], ["npu-2"]]
    assert found["run-1"]["batches"][1]["hosts"]["npu-2"]["failure"] == "Prove: no"
    assert subject.left(found["run-1"]) == ["npu-4"]


def test_second_rollout_of_a_run_replaces_the_batches_that_are_left(tmp_path: Path) -> None:
    subject.begin(str(tmp_path), OWNER, [["npu-1"], ["npu-2"]], "", 1000.0)
    subject.add(str(tmp_path), OWNER, {"npu-1": entry()}, 1001.0)
    record = subject.begin(str(tmp_path), OWNER, [["npu-3"]], "60", 1002.0)
    assert (record["planned"], record["pause"], subject.left(record)) == ([["npu-1"], ["npu-3"]], "60", ["npu-3"])


def test_host_has_its_verdict_and_all_requests_of_its_drains() -> None:
    drains = [{"in_flight": 7, "closed": 1}, {"in_flight": 2, "closed": 2}]
    found = entry(load_balancer_verdict=VERDICT, load_balancer_drained_requests=drains, rbln_release="25.08")
    assert (found["verdict"], found["in_flight"], found["closed"], found["seconds"]) == (VERDICT, 7, 3, 12.0)
    assert subject.host_entry({}, [], 0.0, lost=True)["failure"] == "became unreachable during the change"


@pytest.mark.parametrize(
    "lie", [{"verdict": 5}, "good", {**VERDICT, "numbers": {"requests": []}}, {**VERDICT, "numbers": {"p50_ms": float("inf")}}]
)
def test_verdict_of_another_shape_is_left_out(lie: Any) -> None:
    assert entry(load_balancer_verdict=lie)["verdict"] is None


def test_values_of_a_host_that_lies_are_bounded() -> None:
    verdict = {**VERDICT, "text": "x" * 9000}
    lies = {"npufleet_began": "soon", "load_balancer_drained_requests": {"in_flight": 1}, "load_balancer_verdict": verdict}
    found = subject.host_entry({**lies, "npufleet_failed": "y" * 9000}, ["z" * 9000] * 9000, 112.0)
    assert (found["seconds"], found["in_flight"]) == (None, None)
    assert len(json.dumps(found)) < 3000
    assert not shapes.mismatch(found, subject.HOST)


def test_only_the_newest_records_are_kept(tmp_path: Path) -> None:
    for number in range(subject.MAX_RECORDS + 3):
        subject.add(str(tmp_path), OWNER._replace(run=f"run-{number}"), {}, 1000.0 + number)
    records = subject.latest(str(tmp_path))
    assert len(records) == len(list(tmp_path.iterdir())) == subject.MAX_RECORDS
    assert (records[0]["run"], records[-1]["run"]) == ("run-102", "run-3")
    # The clock was set back.
    subject.add(str(tmp_path), OWNER, {}, 900.0)
    assert "run-1" in {record["run"] for record in subject.latest(str(tmp_path))}


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"run": 1}', "{" * 100])
def test_damaged_records_are_skipped(tmp_path: Path, content: str) -> None:
    (tmp_path / "1970-01-01T00:16:41Z-0123456789ab.json").write_text(content)
    (tmp_path / "notes.txt").write_text("not a record")
    assert subject.latest(str(tmp_path)) == []
    subject.add(str(tmp_path), OWNER, {"npu-1": entry()}, 1000.0)
    assert [record["run"] for record in subject.latest(str(tmp_path))] == ["run-1"]


def test_table_names_batches_and_reasons(tmp_path: Path) -> None:
    assert subject.table([]) == ["no rollout is recorded"]
    subject.begin(str(tmp_path), OWNER, [["npu-1"], ["npu-2", "npu-3"]], "60", 1000.0)
    subject.add(str(tmp_path), OWNER, {"npu-1": entry(load_balancer_verdict=VERDICT, npufleet_failed="Prove: no")}, 1012.0)
    assert subject.table(subject.latest(str(tmp_path))) == [
        "1970-01-01T00:16:40Z site.yml by kim@ops1: 1 host in 1 batch, 1 failed, 2 hosts not changed, pause 60",
        "  batch 1: npu-1: failed: Prove: no; models; 12 s; good: 0 of 200 requests failed",
        "  not changed: npu-2, npu-3",
    ]


def test_commit_is_that_of_the_inventory(tmp_path: Path) -> None:
    assert subject.commit("") is subject.commit(str(tmp_path)) is None
    (tmp_path / "hosts.yml").write_text("all:\n")
    name = ("-c", "user.name=kim", "-c", "user.email=kim@ops1")
    for command in (("init", "-q"), ("add", "."), (*name, "commit", "-q", "-m", "Add hosts")):
        subprocess.run(("git", *command), cwd=tmp_path, check=True)
    found = subject.commit(str(tmp_path))
    assert found is not None and len(found) == 40
    (tmp_path / "hosts.yml").write_text("other:\n")
    assert subject.commit(str(tmp_path)) == f"{found}-dirty"


def test_report_shows_failed_hosts_of_a_large_rollout_first(tmp_path: Path) -> None:
    names = [f"npu-{number:03}" for number in range(subject.MAX_HOSTS + 3)]
    hosts = {name: entry() for name in names[:-1]} | {names[-1]: entry(npufleet_failed="<b>no</b>")}
    subject.begin(str(tmp_path), OWNER, [names, ["npu-x"]], "", 1000.0)
    subject.add(str(tmp_path), OWNER, hosts, 1012.0)
    (card,) = subject.cards(subject.latest(str(tmp_path)))
    assert (card["level"], card["more"], card["left"]) == ("wrong", 3, "npu-x")
    assert card["hosts"][0] == {"host": names[-1], "batch": 1, "text": "failed: <b>no</b>; models; 12 s", "level": "wrong"}
    text = page.page(view.escaped(view.view([], [], {}, {}, 1772409600.0, None, [card])))
    assert "failed: &lt;b&gt;no&lt;/b&gt;; models; 12 s" in text and "and 3 more hosts" in text


@pytest.mark.parametrize("lie", [None, "x", [1], [{"run": 1}], {"a": 1}])
def test_invalid_records_of_hosts_are_not_shown(lie: Any) -> None:
    assert subject.host_table(lie) == []
