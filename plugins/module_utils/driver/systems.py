"""The operating system and the kernel of a host, compared with a release row."""

from __future__ import annotations

import re
from typing import Any, List, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.system import read_text


def system_refusals(wanted: Mapping[str, Any], os_release: str, kernel: str) -> List[str]:
    """Return the reasons why the release row does not support the operating system and the running kernel."""
    found = _system(os_release)
    reasons = []
    if found not in wanted["systems"]:
        fitting = [name for name, row in wanted["rows"].items() if found in row["systems"]]
        other = f", or choose release {' or '.join(fitting)}" if fitting else ""
        reasons.append(
            "found {}, wanted {} for release {}: install one of them{}".format(
                found, " or ".join(wanted["systems"]), wanted["release"], other
            )
        )
    # For an unsupported system, the kernel is compared with the rules of all supported ones.
    rules = [wanted["systems"][found]] if found in wanted["systems"] else sorted(set(wanted["systems"].values()))
    if rules and not any(kernel_fits(kernel, rule) for rule in rules):
        reasons.append(
            "found kernel {}, wanted {} for release {}: install and boot such a kernel, and hold it".format(
                kernel, " or ".join(rules), wanted["release"]
            )
        )
    return reasons


def kernel_fits(kernel: str, rule: str) -> bool:
    """Return True if a kernel such as `6.8.0-49-generic` matches a rule such as `==6.8.0,<=6.8.0-138` or `<=5.14.0-570.116.1`.

    Each part of the rule compares as many numbers of version and build as it has.
    """
    version, _dash, rest = kernel.partition("-")
    build = re.match(r"\d+(?:\.\d+)*", rest)
    actual = [_numbers(version), _numbers(build[0] if build else "")]
    for part in rule.split(","):
        sign, bounds = part[:2], [_numbers(entry) for entry in part[2:].split("-")]
        wanted = [number for bound in bounds for number in bound]
        found = [number for bound, numbers in zip(bounds, actual) for number in (numbers + [0] * len(bound))[: len(bound)]]
        if not {"==": found == wanted, ">=": found >= wanted, "<=": found <= wanted}[sign]:
            return False
    return True


def remarks(wanted: Mapping[str, Any], os_release: str = "/etc/os-release") -> List[str]:
    """Return warnings about the operating system under the release row."""
    found = _system(read_text(os_release) or "")
    if found not in wanted.get("untested_systems", []):
        return []
    return [f"{found} is listed as not fully tested by the vendor for release {wanted['release']}. Prove a host of it first"]


def _system(os_release: str) -> str:
    """Return the name of the operating system in release rows, such as ubuntu-22.04."""
    facts = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', os_release, re.MULTILINE))
    return "{}-{}".format(facts.get("ID", "unknown"), facts.get("VERSION_ID", ""))


def _numbers(version: str) -> List[int]:
    return [int(number) for number in re.findall(r"\d+", version)]
