"""The record of rollouts on a host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.change import lease
from ansible_collections.npufleet.triton.plugins.module_utils.change import rollouts as subject
from ansible_collections.npufleet.triton.plugins.modules import host_lease
from ansible_collections.npufleet.triton.plugins.plugin_utils.rollout import record
from helpers import run_module

BEGIN = {"playbook": "site.yml", "commit": None, "release": "25.08", "concerns": ["models"], "batch": 1, "batches": 3}
END = {"failure": "", "verdict": {"verdict": "good", "text": "0 of 200 requests failed"}, "in_flight": 3, "closed": 0}


@pytest.fixture(autouse=True)
def watchdog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "WATCHDOG", str(tmp_path / "watchdog.lock"))


def call(root: Path, run: str = "run-1", **arguments: Any) -> dict[str, Any]:
    return run_module(host_lease, {"root": str(root), "run": run, "by": "kim@ops1", "host": "npu1", "install": False, **arguments})


def test_entry_begins_with_the_lease_and_ends_with_it(tmp_path: Path) -> None:
    assert call(tmp_path, rollout=BEGIN)["taken"] is True
    (opened,) = subject.read(str(tmp_path))
    assert (opened["by"], opened["batch"], opened["ended"], opened["verdict"]) == ("kim@ops1", 1, None, None)
    # The lease is renewed in the same rollout.
    assert call(tmp_path, rollout=BEGIN)["taken"] is False
    assert call(tmp_path, state="released", rollout=END)["released"] is True
    (ended,) = subject.read(str(tmp_path))
    assert ended["ended"] is not None
    assert {name: ended[name] for name in END} == END
    assert (tmp_path / subject.RECORD).stat().st_mode & 0o777 == 0o644


def test_change_that_releases_its_host_ends_the_entry(tmp_path: Path) -> None:
    call(tmp_path, rollout=BEGIN)
    assert lease.release(str(tmp_path), lease.Holder("run-1", "kim@ops1"))
    (ended,) = subject.read(str(tmp_path))
    assert (ended["failure"], ended["ended"] is None) == ("", False)


def test_entry_of_a_killed_run_has_no_end(tmp_path: Path) -> None:
    call(tmp_path, rollout=BEGIN, patience=0)
    call(tmp_path, "run-2", rollout=BEGIN, ended="run-1")
    assert call(tmp_path, state="released", rollout=END)["released"] is False
    assert [(entry["run"], entry["ended"]) for entry in subject.read(str(tmp_path))] == [("run-2", None), ("run-1", None)]
    call(tmp_path, "run-2", state="released", rollout=END)
    assert [entry["ended"] is None for entry in subject.read(str(tmp_path))] == [False, True]


def test_number_and_size_of_the_entries_are_bounded(tmp_path: Path) -> None:
    text = "\u00e9" * 500
    for number in range(subject.MAX_ENTRIES + 3):
        subject.begin(str(tmp_path), f"run-{number}", text, {**BEGIN, "concerns": [text] * 40})
    entries = subject.read(str(tmp_path))
    assert 0 < len(entries) <= subject.MAX_ENTRIES
    assert entries[0]["run"] == f"run-{subject.MAX_ENTRIES + 2}"
    assert (tmp_path / subject.RECORD).stat().st_size <= subject.MAX_SIZE


@pytest.mark.parametrize("content", ["", "{", "{}", "[1]", '[{"run": 1}]', "[" * 100, "\udcff"])
def test_damaged_record_is_replaced_by_the_next_entry(tmp_path: Path, content: str) -> None:
    (tmp_path / subject.RECORD).write_text(content, errors="surrogateescape")
    assert subject.read(str(tmp_path)) == []
    subject.begin(str(tmp_path), "run-1", "kim@ops1", BEGIN)
    assert len(subject.read(str(tmp_path))) == 1


def test_invalid_entries_are_skipped_and_unknown_fields_removed(tmp_path: Path) -> None:
    subject.begin(str(tmp_path), "run-1", "kim@ops1", BEGIN)
    (valid,) = subject.read(str(tmp_path))
    content = [{**valid, "batch": "1"}, {**valid, "note": "x"}, {**valid, "by": "x" * 501}]
    (tmp_path / subject.RECORD).write_text(json.dumps(content))
    assert subject.read(str(tmp_path)) == [valid]


def test_record_that_cannot_be_written_does_not_stop_the_change(tmp_path: Path) -> None:
    (tmp_path / subject.RECORD).mkdir()
    assert call(tmp_path, rollout=BEGIN)["taken"] is True
    assert call(tmp_path, state="released", rollout=END)["released"] is True


def test_invalid_end_does_not_keep_the_lease_without_a_message(tmp_path: Path) -> None:
    call(tmp_path, rollout=BEGIN)
    failed = call(tmp_path, state="released", rollout={**END, "closed": "many"})
    assert failed["msg"] == "npu1: the entry of the rollout is invalid: closed is text, expected a whole number or null"


def test_controller_sends_an_end_that_hosts_accept(tmp_path: Path) -> None:
    verdict = {**END["verdict"], "numbers": {}}  # type: ignore[dict-item]
    known = {"load_balancer_verdict": verdict, "load_balancer_drained_requests": [{"in_flight": 3, "closed": 0}]}
    call(tmp_path, rollout=BEGIN)
    call(tmp_path, state="released", rollout=record.end_on_host(record.host_entry(known, [], 0.0)))
    (ended,) = subject.read(str(tmp_path))
    assert {name: ended[name] for name in END} == END
