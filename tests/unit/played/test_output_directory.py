"""The playbooks read and write their results in the directory that the inventory sets for the hosts with NPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stage import HOSTS, Run, run

GOOD: dict[str, Any] = {"plan": []}
FLEET = dict.fromkeys(HOSTS[:2], GOOD)


def report(directory: Path, *options: str, **more: Any) -> Run:
    """Run status.yml and then report.yml, which renders its results. `stage.run` sets the directory in the group of the hosts."""
    assert run(directory, "status.yml", FLEET).code == 0
    (directory / "report/index.html").unlink()
    return run(directory, "report.yml", FLEET, *options, **more)


def test_report_uses_the_directory_of_the_hosts(tmp_path: Path) -> None:
    ran = report(tmp_path)
    assert ran.code == 0, ran.output
    assert f"report: {tmp_path}/report/index.html" in ran.words
    page = (tmp_path / "report/index.html").read_text()
    assert all(host in page for host in FLEET)
    assert ran.calls == [], "no host was called"


def test_report_is_rendered_with_a_limit(tmp_path: Path) -> None:
    ran = report(tmp_path, "--limit", "npu-2")
    assert ran.code == 0, ran.output
    assert all(host in (tmp_path / "report/index.html").read_text() for host in FLEET)


def test_report_uses_the_directory_of_the_check_results(tmp_path: Path) -> None:
    results = tmp_path / "answers"
    results.mkdir()
    answer = {"name": "add/http/sum", "model": "add", "protocol": "http", "ok": False, "why": "OUTPUT0 is 3, expected 4", "ms": 1}
    document = {"host": "npu-1", "when": "2026-01-01T00:00:00Z", "msg": "", "checks": [answer]}
    (results / "npu-1.json").write_text(json.dumps(document))
    ran = report(tmp_path, inference_check_results_dir=str(results))
    assert ran.code == 0, ran.output
    assert answer["why"] in (tmp_path / "report/index.html").read_text()
