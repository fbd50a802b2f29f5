# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Remarks on the release row of a host: known vulnerabilities, and untested combinations."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.release_change import numbers

# Cards that serve only models of backend vllm, according to the vendor's table of products
VLLM_ONLY = ("RBLN-CR13",)


def warnings(variables: Mapping[str, Any]) -> List[str]:
    """Return the warnings about the release row of a host: its known vulnerabilities, and the result of `untested_remarks`."""
    vulnerabilities = variables["npufleet_release_row"].get("vulnerabilities") or {}
    bulletins = vulnerabilities.get("bulletins")
    if not bulletins:
        return untested_remarks(variables)
    return [
        f"release {variables['rbln_release']} runs a Triton with {len(bulletins)} known vulnerabilities as of "
        f"{vulnerabilities['as_of']} (NVIDIA security bulletins {', '.join(bulletins)}): "
        f"{'; '.join(_fixes(variables, bulletins))}. Until this host runs such a version, keep its ports away from untrusted "
        "networks.",
        *untested_remarks(variables),
    ]


def _fixes(variables: Mapping[str, Any], bulletins: Mapping[str, str]) -> List[str]:
    """Return texts with the fix of each bulletin: the oldest fixed release for the cards of the host, or a version of Triton."""
    rows, card = variables["npufleet_release_rows"], variables["npufleet_card"]
    current = numbers(variables["npufleet_release_row"]["triton"]["version"])
    newer = sorted(
        (numbers(row["triton"]["version"]), bool(row.get("untested")), name)
        for name, row in rows.items()
        if row.get("vulnerabilities") and card in row["cards"] and numbers(row["triton"]["version"]) > current
    )
    fixes: Dict[str, List[str]] = {}
    for bulletin, triton in bulletins.items():
        fixing = [name for _version, _untested, name in newer if bulletin not in rows[name]["vulnerabilities"]["bulletins"]]
        fix = f"release {fixing[0]} fixes" if fixing else f"Triton {triton}, which no release row for {card} has, fixes"
        fixes.setdefault(fix, []).append(bulletin)
    return [f"{fix} {'them' if len(fixes) == 1 else ', '.join(fixed)}" for fix, fixed in fixes.items()]


def untested_remarks(variables: Mapping[str, Any]) -> List[str]:
    """Return the remarks on an untested release row, and on cards that serve only one backend."""
    why = variables["npufleet_release_row"].get("untested")
    remarks = [f"release {variables['rbln_release']} is untested: {why}"] if why else []
    if variables["npufleet_card"] in VLLM_ONLY:
        remarks.append(f"{variables['npufleet_card']} serves models of backend vllm only. Place no other models on this host")
    return remarks
