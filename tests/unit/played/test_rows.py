"""Remarks of playbooks about the release row of the hosts, on simulated hosts."""

from __future__ import annotations

import json
from pathlib import Path

from stage import run

UNTESTED = "26.07-sdk0.9"


def test_status_reports_an_untested_row_without_drift(tmp_path: Path) -> None:
    ran = run(tmp_path, "status.yml", {"npu-1": {}, "npu-2": {}}, rbln_release=UNTESTED)
    assert ran.code == 0, ran.output
    assert ran.words.count(f"release {UNTESTED} is untested: the vendor pairs SDK 0.9.4 with Triton 25.08") == 1
    hosts = json.loads((tmp_path / "status.json").read_text())["hosts"]
    assert [(host["state"], "SDK 0.9.4" in host["untested"]) for host in hosts] == [("in sync", True)] * 2


def test_preflight_reports_an_untested_row_without_refusal(tmp_path: Path) -> None:
    ran = run(tmp_path, "preflight.yml", {"npu-1": {}}, rbln_release=UNTESTED)
    assert ran.code == 0, ran.output
    assert f"release {UNTESTED} is untested" in ran.words
