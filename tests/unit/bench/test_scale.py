"""Figures of bench-scale: names in a summary, targets and the table. No fleet is simulated here."""

from __future__ import annotations

from typing import Any

import pytest
import scale

OUTPUT = """PLAY RECAP ****
npu-0001                   : ok=1
npu-0002                   : ok=1

SUMMARY ****
3 hosts: 1 ok, 1 failed, 1 unreachable
  - npu-0002: x
  - npu-0003: unreachable: y
"""


def row(case: str, hosts: int = 1000, cpu: float = 50.0, mib: int = 200, **more: Any) -> dict[str, Any]:
    return {"case": case, "hosts": hosts, "cpu_seconds": cpu, "seconds": 30.0, "peak_mib": mib, "lines": 2000, **more}


@pytest.mark.parametrize(
    ("bad", "output", "wrong"),
    [
        (["npu-0002", "npu-0003"], OUTPUT, []),
        (["npu-0002"], OUTPUT, ["npu-0003"]),
        (["npu-0002", "npu-0003", "npu-0004"], OUTPUT, ["npu-0004"]),
        (["npu-0002", "npu-0003"], OUTPUT.partition("SUMMARY")[0], ["npu-0002", "npu-0003"]),
        (["npu-0002", "npu-0003"], OUTPUT + "x\n" * 30, ["npu-0002", "npu-0003"]),
    ],
)
def test_the_summary_must_name_the_bad_hosts_and_no_other(bad: list[str], output: str, wrong: list[str]) -> None:
    assert scale.wrong_names(output, bad) == wrong


@pytest.mark.parametrize(
    ("found", "reached"),
    [
        (row("site"), [True, True]),
        (row("status", cpu=60.0), [False, True]),
        (row("status_bad", mib=512), [True, False]),
        (row("site", hosts=200, cpu=100.0), []),
        (row("floor", cpu=100.0), []),
    ],
)
def test_targets_are_for_the_largest_fleet(found: dict[str, Any], reached: list[bool]) -> None:
    assert [reached for _words, reached in scale.verdicts([found])] == reached


def test_three_different_hosts_are_bad() -> None:
    for name, case in scale.CASES.items():
        for hosts in scale.HOSTS:
            assert len(scale.bad_hosts(hosts, case)) == (3 if name.endswith("_bad") else 0)


def test_the_table_compares_with_one_call_of_a_module() -> None:
    lines = scale.table([row("floor", cpu=20.0), row("site", before_cpu_seconds=90.0)]).splitlines()
    assert lines[2].split() == ["site", "1000", "50.0", "90.0", "50", "2.5", "30.0", "200", "2000"]
    assert lines[1].split()[3] == "-"
