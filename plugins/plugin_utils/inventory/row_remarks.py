# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Remarks on the release row of a host: known vulnerabilities, and untested combinations. Controller only."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.release_change import numbers

# Cards that serve only models of backend vllm, according to the vendor's table of products
VLLM_ONLY = ("RBLN-CR13",)


def warnings(variables: Mapping[str, Any]) -> List[str]:
    """Return the warnings about a row: its known vulnerabilities with the smallest release that fixes each, and `untested`."""
    known = variables["npufleet_row"].get("vulnerabilities") or {}
    if not known.get("bulletins"):
        return untested(variables)
    steps = _steps(variables, known["bulletins"])
    return [
        "release {} runs a Triton with {} known vulnerabilities as of {} (NVIDIA security bulletins {}): {}. Until then keep its "
        "ports away from untrusted networks.".format(
            variables["rbln_release"], len(known["bulletins"]), known["as_of"], ", ".join(known["bulletins"]), "; ".join(steps)
        ),
        *untested(variables),
    ]


def _steps(variables: Mapping[str, Any], bulletins: Mapping[str, str]) -> List[str]:
    """Return texts that name, for each bulletin, the smallest release for these cards or else the first Triton that fixes it."""
    here = numbers(variables["npufleet_row"]["triton"]["version"])
    later = sorted(
        (numbers(row["triton"]["version"]), bool(row.get("untested")), name)
        for name, row in variables["npufleet_release_rows"].items()
        if row.get("vulnerabilities") and variables["npufleet_card"] in row["cards"]
    )
    rows = variables["npufleet_release_rows"]
    fixes: Dict[str, List[str]] = {}
    for bulletin, triton in bulletins.items():
        clear = [name for version, _untested, name in later if version > here and bulletin not in _open(rows[name])]
        step = f"release {clear[0]} clears" if clear else f"no release for {variables['npufleet_card']}, but Triton {triton} clears"
        fixes.setdefault(step, []).append(bulletin)
    return [f"{step} {'them' if len(fixes) == 1 else ', '.join(found)}" for step, found in fixes.items()]


def _open(row: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the bulletins that the Triton of a row is open to."""
    bulletins: Mapping[str, str] = row["vulnerabilities"]["bulletins"]
    return bulletins


def untested(variables: Mapping[str, Any]) -> List[str]:
    """Return the remarks on an untested row and on cards that serve one backend only."""
    why = variables["npufleet_row"].get("untested")
    remarks = [f"release {variables['rbln_release']} is untested: {why}"] if why else []
    if variables["npufleet_card"] in VLLM_ONLY:
        remarks.append(f"{variables['npufleet_card']} serves models of backend vllm only. Place no others on this host")
    return remarks
