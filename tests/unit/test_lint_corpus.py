"""The linter beside real Tritons: every repository of tests/lint_corpus against their recorded verdicts."""

from __future__ import annotations

import sys

import pytest
from helpers import ROOT

sys.path.append(str(ROOT / "tests/lint_corpus"))

import compare
from cases import CASES
from compare import Judged


@pytest.fixture(scope="module")
def judged() -> list[Judged]:
    return compare.judged()


def test_every_case_has_a_verdict_of_what_it_is_today() -> None:
    assert len(CASES) >= 3500
    verdicts = compare.recorded()
    assert {name: verdict[0] for name, verdict in verdicts.items()} == {name: compare.digest(name) for name in CASES}
    assert {entry for _digest, *both in verdicts.values() for entry in both} <= {"loads", "refuses", "hangs", "ends"}


def test_cases_of_a_rule_are_found_by_it(judged: list[Judged]) -> None:
    assert [(case.name, case.release, set(case.rules)) for case in judged if not {CASES[case.name][0]} - {""} <= case.rules] == []


def test_what_triton_loads_is_not_refused_but_for_a_named_policy(judged: list[Judged]) -> None:
    alarms = [case for case in judged if case.verdict == "loads" and case.rules - set(compare.POLICY)]
    assert [(alarm.name, alarm.release, set(alarm.rules)) for alarm in alarms] == []


def test_linter_and_triton_agree(judged: list[Judged]) -> None:
    for release in compare.RELEASES:
        here = [case for case in judged if case.release == release]
        assert sum(entry.agrees for entry in here) / len(here) >= 0.99, compare.table()
