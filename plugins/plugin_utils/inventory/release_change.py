# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Remarks on the release row of a host, and descriptions of the changes that another row causes.

Preflight decides whether such a change is possible.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import http_probe
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.driver import CONCERN, INSTALLED_MODULE, PRESENT
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.registry import CONCERNS
from ansible_collections.npufleet.triton.plugins.module_utils.plan import short
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import manifest

Row = Mapping[str, Any]
# Concerns that `_other_concerns` omits: other functions describe image and models, and a row changes no balancer and no monitoring.
OMITTED_CONCERNS = ("image", "models", "balancer", "monitoring")
# Changes of behaviour: (part of the row, first version with the new behaviour, the new behaviour, the old behaviour).
# Sources: release notes of SDK 0.10.0, 0.10.4 and 0.11.0; NVIDIA's release notes of Triton 25.05, 25.06, 25.08, 26.01 and 26.04.
BEHAVIOUR = (
    ("driver", "3.0.0", "the driver's daemon reports power in uW and temperature in millidegrees", "in W and in degrees"),
    ("driver", "3.2.0", "the driver's service is rbln-smd.service", "rbln_daemon.service"),
    ("sdk", "0.11.0", "compiled files have another form, and the compile option is num_devices", "tensor_parallel_size"),
    ("triton", "2.58.0", "JSON of a request may be 100 levels deep", "of any depth"),
    ("triton", "2.59.0", "a request over HTTP may have 64 MiB or --http-max-input-size bytes", "any size"),
    ("triton", "2.60.0", "images have no TensorFlow backend", "they have it"),
    ("triton", "2.65.0", "--http-max-input-size counts decompressed bytes as well", "sent bytes only"),
)
# In this version of Triton (26.04) and in newer versions, the server needs this option so that clients can share memory with it.
SHM_VERSION, SHM_OPTION = "2.68.0", "--allow-client-shm"
# Cards that serve only models of backend vllm, according to the vendor's table of products
VLLM_ONLY = ("RBLN-CR13",)


class Release(NamedTuple):
    """A release row and its name. The row is {} for an unknown name."""

    name: str
    row: Row


def current_release(label: Optional[str], inventory: str, new: str, rows: Mapping[str, Row]) -> Optional[Release]:
    """Return the host's release from the `label` of its image, or else from the inventory. Return None if it is unknown.

    If the release in the inventory is already the new release, the inventory does not tell the current release.
    """
    name = label or (inventory if inventory != new else "")
    return Release(name, rows.get(name) or {}) if name else None


def row_changes(old: Optional[Release], new: Release) -> Iterator[str]:
    """Yield the differences between two rows."""
    if old is None or not old.row:
        parts = ", ".join(f"{name} {value}" for name, value in _facts(new.row).items())
        yield f"{'release ' + old.name if old else 'unknown release'} to {new.name}: {parts}"
    elif old.name != new.name:
        previous = _facts(old.row)
        steps = [
            f"{name} {value} as before" if previous[name] == value else f"{name} {previous[name]} to {value}"
            for name, value in _facts(new.row).items()
        ]
        yield f"release {old.name} to {new.name}: {', '.join(steps)}"
        yield from _support(old.row, new)
        yield from _behaviour(old.row, new.row)
    yield from _bulletins(old.row if old else {}, new)
    if new.row.get("untested"):
        yield f"release {new.name} is untested: {new.row['untested']}"


def _facts(row: Row) -> Dict[str, str]:
    triton = row["triton"]
    return {
        "SDK": row["sdk"]["version"],
        "Triton": triton["version"],
        "Python": triton["python"],
        "tritonclient": triton["tritonclient"],
        "base image": triton["image"],
    }


def _support(old: Row, new: Release) -> Iterator[str]:
    """Yield the cards and systems that the new row no longer supports, and the systems whose kernel rule differs."""
    for key in ("cards", "systems"):
        dropped = sorted(set(old[key]) - set(new.row[key]))
        if dropped:
            yield f"release {new.name} no longer supports {', '.join(dropped)}"
    for system, rule in sorted(new.row["systems"].items()):
        if old["systems"].get(system, rule) != rule:
            yield f"kernels of {system}: {old['systems'][system]} to {rule}"


def _behaviour(old: Row, new: Row) -> Iterator[str]:
    """Yield the changes of behaviour between the versions of two rows, for an upgrade or a downgrade."""
    for part, version, new_text, old_text in BEHAVIOUR:
        was_new, is_new = (reached(row[part]["version"], version) for row in (old, new))
        if is_new and not was_new:
            yield f"from {part} {version} on: {new_text} (before: {old_text}). Adapt your programs that depend on it."
        elif was_new and not is_new:
            yield f"before {part} {version}: {old_text} (no longer: {new_text}). Adapt your programs that depend on it."


def _bulletins(old: Row, new: Release) -> Iterator[str]:
    """Yield the known vulnerabilities that the new row fixes, keeps and adds."""
    vulnerabilities = new.row.get("vulnerabilities") or {}
    past, present = (list((row.get("vulnerabilities") or {}).get("bulletins") or []) for row in (old, new.row))
    for verb, bulletins in (
        ("fixes", [number for number in past if number not in present]),
        ("keeps", [number for number in past if number in present]),
        ("adds" if old else "has", [number for number in present if number not in past]),
    ):
        if bulletins:
            yield f"release {new.name} {verb} known vulnerabilities (NVIDIA security bulletins {', '.join(bulletins)})"
    if vulnerabilities and not present:
        as_of = vulnerabilities["as_of"]
        yield f"release {new.name} has no known vulnerabilities as of {as_of}. Look for newer bulletins of NVIDIA."


def reached(version: str, least: str) -> bool:
    """Return True if a version is `least` or newer. Only the numbers at the beginning count, such as 0.11.0 of `0.11.0.post1`."""
    return numbers(version) >= numbers(least)


def numbers(version: str) -> Tuple[int, ...]:
    """Return the numbers at the beginning of a version."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def host_changes(variables: Mapping[str, Any], state: Mapping[str, Any], old: Optional[Release], new: Release) -> Iterator[str]:
    """Yield the changes of a host. `state` is a result of host_state with the plan for the new row."""
    if state.get("maintenance"):
        yield "in maintenance: nothing is changed until maintenance ends"
        return
    plan = state["plan"]
    if not state["actual"]:
        # Preflight reports why the host was not queried.
        return
    yield from _models(variables, old, new)
    if old and old.row and SHM_OPTION not in " ".join(variables["triton_server_extra_args"]):
        was_new, is_new = (reached(release.row["triton"]["version"], SHM_VERSION) for release in (old, new))
        if is_new and not was_new:
            yield (
                f"Triton {SHM_VERSION} and newer refuse clients that share memory with the server. Add {SHM_OPTION}=true to "
                "triton_server_extra_args if you have such clients."
            )
    yield from _driver(variables, plan, new)
    yield from _image(variables, plan)
    yield from _other_concerns(plan)
    if not plan:
        yield f"runs release {new.name} and is in sync: nothing to do"


def _models(variables: Mapping[str, Any], old: Optional[Release], new: Release) -> Iterator[str]:
    """Yield the models that get another compiled file, and the models without a compiled file for the new row."""
    card = variables["npufleet_card"].replace("RBLN-", "")
    key = f"{card}/{new.row['sdk']['shape']}"
    previous = f"{card}/{old.row['sdk']['shape']}" if old and old.row else key
    artefacts_by_model = {entry["name"]: entry.get("artefacts") or {} for entry in manifest.placed_here(variables)}
    compiled = sorted(name for name, artefacts in artefacts_by_model.items() if artefacts)
    missing = [name for name in compiled if key not in artefacts_by_model[name]]
    if missing:
        yield f"no compiled file for {key}, compile first: {', '.join(missing)}"
    if key != previous and len(missing) < len(compiled):
        names = ", ".join(name for name in compiled if name not in missing)
        yield f"compiled files for {key} replace those for {previous}: {names}"


def _driver(variables: Mapping[str, Any], plan: List[Mapping[str, Any]], new: Release) -> Iterator[str]:
    desired, form = new.row["driver"]["version"], variables["rbln_driver_form"]
    reboot = "rebooted if its cards need that" if variables["rbln_driver_reboot"] else "not rebooted"
    for item in (entry for entry in plan if entry["concern"] == CONCERN):
        actual = short(item["current"]) if item["current"] else "none"
        if item["action"] == "install":
            source = variables["rbln_driver_package_file"] or http_probe.public_address(variables["rbln_driver_package_url"])
            yield (
                f"driver {actual} to {desired} (.{form}) from {source or 'a file that is not named yet'}: the server "
                f"stops meanwhile, the host is {reboot}"
            )
        elif item["name"] == INSTALLED_MODULE:
            yield f"driver {actual} to {desired}: install it manually first (rbln_driver_form: {PRESENT})"


def _image(variables: Mapping[str, Any], plan: List[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the ways in which the host gets its image."""
    actions = {item["action"] for item in plan if item["concern"] == "image"}
    builder = variables["npufleet_build_host"]
    if "build" in actions and builder == variables["inventory_hostname"]:
        yield f"image: built here from {variables['triton_image_base']}"
    elif "build" in actions:
        yield f"image: delivered after {builder} has built it"
    elif "deliver" in actions:
        yield "image: delivered as recorded in the lock file"
    if "publish" in actions:
        yield "image: published for the other hosts"


def _other_concerns(plan: List[Mapping[str, Any]]) -> Iterator[str]:
    for concern in (name for name in CONCERNS if name not in OMITTED_CONCERNS):
        names = [
            item["name"] for item in plan if item["concern"] == concern and item["action"] not in ("install", "load", "reload")
        ]
        if names:
            yield f"{concern} changes: {', '.join(dict.fromkeys(names))}"


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
