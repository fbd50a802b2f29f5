# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Comparison of a host's operating system and kernel with a release row, which is a row of the table files/releases.yml."""

from __future__ import annotations

import re
from typing import Any, List, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.system import read_text


def system_refusals(row: Mapping[str, Any], os_release: str, kernel: str) -> List[str]:
    """Return the reasons why the release row does not support the operating system and the running kernel.

    `row["rows"]` has the systems and cards of every release row. With it, the reasons name the rows that support this system.
    """
    found, supported = _system(os_release), row["systems"]
    release = f"for release {row['release']}"
    reasons = []
    if found not in supported:
        others = [name for name, other in row["rows"].items() if found in other["systems"]]
        choice = f", or choose release {' or '.join(others)}" if others else ""
        reasons.append(f"the system is {found}, expected {' or '.join(supported)} {release}. Install one of them{choice}")
    # On an unsupported system, a kernel is accepted if it matches the rule of any supported system.
    rules = [supported[found]] if found in supported else sorted(set(supported.values()))
    if rules and not any(kernel_fits(kernel, rule) for rule in rules):
        expected = f"expected {' or '.join(rules)} {release}"
        reasons.append(f"the kernel is {kernel}, {expected}. Install and boot such a kernel, and hold it")
    return reasons


def kernel_fits(kernel: str, rule: str) -> bool:
    """Return True if a kernel such as `6.8.0-49-generic` matches a rule such as `==6.8.0,<=6.8.0-138` or `<=5.14.0-570.116.1`.

    The conditions of a rule are separated by commas. Each condition compares only as many numbers as it has, so `==6.8.0` matches
    every build of 6.8.0.
    """
    version, _dash, rest = kernel.partition("-")
    build = re.match(r"\d+(?:\.\d+)*", rest)
    actual = [_numbers(version), _numbers(build[0] if build else "")]
    for condition in rule.split(","):
        sign, bounds = condition[:2], [_numbers(entry) for entry in condition[2:].split("-")]
        expected = [number for bound in bounds for number in bound]
        found = [number for bound, numbers in zip(bounds, actual) for number in (numbers + [0] * len(bound))[: len(bound)]]
        if not {"==": found == expected, ">=": found >= expected, "<=": found <= expected}[sign]:
            return False
    return True


def remarks(row: Mapping[str, Any], os_release: str = "/etc/os-release") -> List[str]:
    """Return a warning if the vendor has not fully tested the release row on this operating system."""
    found = _system(read_text(os_release) or "")
    if found not in row.get("untested_systems", []):
        return []
    return [f"{found} is listed as not fully tested by the vendor for release {row['release']}. Test one host first"]


def _system(os_release: str) -> str:
    """Return the name of the operating system as release rows write it, such as ubuntu-22.04."""
    facts = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', os_release, re.MULTILINE))
    return "{}-{}".format(facts.get("ID", "unknown"), facts.get("VERSION_ID", ""))


def _numbers(version: str) -> List[int]:
    return [int(number) for number in re.findall(r"\d+", version)]
