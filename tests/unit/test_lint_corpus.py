"""Comparison of the linter with the recorded verdicts of real Tritons on every repository of tests/lint_corpus."""

from __future__ import annotations

import sys

import pytest
from helpers import ROOT

sys.path.append(str(ROOT / "tests/lint_corpus"))

import compare
from cases import CASES
from compare import Comparison


@pytest.fixture(scope="module")
def comparisons() -> list[Comparison]:
    return compare.compare_all()


def test_every_case_has_a_verdict_for_its_current_content() -> None:
    assert len(CASES) >= 3500
    verdicts = compare.recorded()
    assert {name: verdict[0] for name, verdict in verdicts.items()} == {name: compare.digest(name) for name in CASES}
    assert {entry for _digest, *both in verdicts.values() for entry in both} <= {"loads", "refuses", "hangs", "ends"}


def test_cases_of_a_rule_are_reported_by_the_rule(comparisons: list[Comparison]) -> None:
    missed = [case for case in comparisons if not {CASES[case.name][0]} - {""} <= case.rules]
    assert [(case.name, case.release, set(case.rules)) for case in missed] == []


def test_only_policy_rules_refuse_models_that_triton_loads(comparisons: list[Comparison]) -> None:
    alarms = [case for case in comparisons if case.verdict == "loads" and case.rules - set(compare.POLICY)]
    assert [(alarm.name, alarm.release, set(alarm.rules)) for alarm in alarms] == []


def test_linter_and_triton_agree(comparisons: list[Comparison]) -> None:
    for release in compare.RELEASES:
        of_release = [case for case in comparisons if case.release == release]
        assert sum(entry.agrees for entry in of_release) / len(of_release) >= 0.99, compare.table()
