"""Figures of `make bench-alerts`: times at the receiver, rows and targets."""

from __future__ import annotations

import json
from typing import Any, Optional

import pytest
import yaml
from alert_faults import CASES, PROBED, SCRAPED, WARNING, Observation, received_at, resolved_at
from alerts import cpu_seconds, row_of, table
from helpers import ROOT
from webhook_receiver import alerts_in

LABELS = {"alertname": "NpufleetCheckFails", "host": "npu1"}
OBSERVATION = Observation("hang_device", "NpufleetCheckFails", "critical", 150, 95.2, 96.4, 42.0)


def entry(received: float, status: str, **labels: str) -> dict[str, Any]:
    return {"received": received, "status": status, "labels": {**LABELS, "severity": "critical", **labels}}


def test_notification_of_alertmanager_is_read() -> None:
    body = {"status": "firing", "alerts": [{"status": "firing", "labels": LABELS, "startsAt": "", "annotations": {}}]}
    assert alerts_in(json.dumps(body).encode(), 7.0) == [{"received": 7.0, "status": "firing", "labels": LABELS}]


def test_the_first_firing_alert_since_the_fault_counts() -> None:
    entries = [
        entry(5, "firing"),
        entry(12, "firing", host="npu2"),
        entry(14, "resolved"),
        entry(20, "firing"),
        entry(30, "firing"),
    ]
    assert received_at(entries, LABELS, 10) == 20
    assert received_at(entries, LABELS, 31) is None


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([], None),
        ([entry(5, "firing"), entry(6, "resolved")], None),
        ([entry(20, "firing"), entry(30, "resolved")], 30),
        ([entry(20, "firing", check="a"), entry(20, "firing", check="b"), entry(30, "resolved", check="a")], None),
        ([entry(20, "firing"), entry(30, "resolved"), entry(40, "firing")], None),
        ([entry(20, "firing", check="a"), entry(25, "resolved", check="a"), entry(30, "resolved", check="b")], 30),
    ],
)
def test_an_alert_is_resolved_when_none_of_its_series_fires(entries: list[dict[str, Any]], expected: Optional[float]) -> None:
    assert resolved_at(entries, LABELS, 10) == expected


def test_a_row_has_the_agreed_keys() -> None:
    assert row_of(OBSERVATION) == {
        "alert": "NpufleetCheckFails",
        "severity": "critical",
        "seconds_to_firing": 95.2,
        "seconds_to_receiver": 96.4,
        "seconds_to_resolve": 42.0,
    }


def test_the_table_shows_missed_targets() -> None:
    late = OBSERVATION._replace(to_firing=150.1)
    assert [line.rpartition(" ")[2] for line in table([OBSERVATION, late]).splitlines()[1:]] == ["reached", "MISSED"]


def test_each_expected_alert_exists_and_has_the_target_of_its_severity() -> None:
    files = sorted((ROOT / "files/monitoring/alerts").glob("*.yml"))
    rules = [rule for file in files for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]
    severities = {rule["alert"]: rule["labels"]["severity"] for rule in rules}
    for case in CASES:
        for expected in case.expected:
            targets = {"critical": (SCRAPED, PROBED), "warning": (WARNING,)}[severities[expected.alert]]
            assert expected.target in targets, (case.name, expected.alert)


def test_processor_time_counts_children_that_have_ended() -> None:
    stats = "1 (systemd) S 0 1 1 0 -1 4194560 10 20 30 40 100 50 1000 500 20 0 1 0 5\n"
    stats += "7 (a) b) R 1 1 1 0 -1 0 0 0 0 0 3 2 1 0 20 0 1 0 5\n"
    assert cpu_seconds(stats, 100) == pytest.approx(16.56)
