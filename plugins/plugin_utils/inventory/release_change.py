"""What another release row brings to a host, in sentences that are told before anything changes. Controller only.

What was found on the host is data: a sentence says it and nothing follows from it. What stands in the way is preflight's.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import http_probe
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.driver import BY_OTHERS, CONCERN, PRESENT
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.registry import CONCERNS
from ansible_collections.npufleet.triton.plugins.module_utils.plan import short
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import manifest

Row = Mapping[str, Any]
# Concerns that sentences of their own cover, or that a release row does not change
COVERED = ("image", "models", "monitoring")
# What a version changes for those who use it: (part of the row, from this version on, what is so from there on, what was before).
# Sources: release notes of SDK 0.10.0, 0.10.4 and 0.11.0; NVIDIA's release notes of Triton 25.05, 25.06, 25.08, 26.01 and 26.04.
TURNS = (
    ("driver", "3.0.0", "the driver's daemon tells power in uW and temperature in thousandths of a degree", "in W and in degrees"),
    ("driver", "3.2.0", "the driver's service is rbln-smd.service", "rbln_daemon.service"),
    ("sdk", "0.11.0", "compiled files have another form, and compile options say num_devices", "tensor_parallel_size"),
    ("triton", "2.58.0", "JSON of a request may be 100 levels deep", "of any depth"),
    ("triton", "2.59.0", "a request over HTTP may have 64 MiB, or what --http-max-input-size says", "any size"),
    ("triton", "2.60.0", "images have no TensorFlow backend", "one"),
    ("triton", "2.65.0", "--http-max-input-size counts decompressed bytes as well", "sent bytes only"),
)
# From Triton 26.04 on clients share memory with a server only where it is told so
CLIENT_MEMORY, ALLOWED = "2.68.0", "--allow-client-shm"


class Release(NamedTuple):
    """A row under its name; {} where nobody knows it."""

    name: str
    row: Row


def before(label: Optional[str], inventory: str, after: str, rows: Mapping[str, Row]) -> Optional[Release]:
    """What a host runs: what the image of its server says, or else what the inventory has; None where neither tells."""
    name = label or (inventory if inventory != after else "")
    return Release(name, rows.get(name) or {}) if name else None


def of_rows(old: Optional[Release], new: Release) -> Iterator[str]:
    """What differs between two rows, whatever host takes them."""
    if old is None or not old.row:
        yield f"{'release ' + old.name if old else 'unknown release'} to {new.name}: {', '.join(_parts(new.row))}"
    elif old.name != new.name:
        yield f"release {old.name} to {new.name}: {', '.join(_steps(old.row, new.row))}"
        yield from _support(old.row, new)
        yield from _turns(old.row, new.row)
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


def _parts(row: Row) -> List[str]:
    return [f"{name} {value}" for name, value in _facts(row).items()]


def _steps(old: Row, new: Row) -> List[str]:
    then = _facts(old)
    return [
        f"{name} {value} as before" if then[name] == value else f"{name} {then[name]} to {value}"
        for name, value in _facts(new).items()
    ]


def _support(old: Row, new: Release) -> Iterator[str]:
    """Cards, systems and kernels that the new row does not have any more, or has otherwise."""
    for what in ("cards", "systems"):
        gone = sorted(set(old[what]) - set(new.row[what]))
        if gone:
            yield f"release {new.name} no longer supports {', '.join(gone)}"
    for system, rule in sorted(new.row["systems"].items()):
        if old["systems"].get(system, rule) != rule:
            yield f"kernels of {system}: {old['systems'][system]} to {rule}"


def _turns(old: Row, new: Row) -> Iterator[str]:
    """Versions on the way from the one row to the other from which on something is otherwise, up or down."""
    for part, version, since, until in TURNS:
        then, now = reached(old[part]["version"], version), reached(new[part]["version"], version)
        if now and not then:
            yield f"from {part} {version} on {since}, {until} before: change whatever reads that"
        elif then and not now:
            yield f"before {part} {version} {until}, and no longer what is so from there on ({since}): change whatever reads that"


def _bulletins(old: Row, new: Release) -> Iterator[str]:
    """Known vulnerabilities that go, and that come or stay."""
    known = new.row.get("vulnerabilities") or {}
    then, now = (list((row.get("vulnerabilities") or {}).get("bulletins") or []) for row in (old, new.row))
    for verb, found in (
        ("closes", [number for number in then if number not in now]),
        ("keeps open", [number for number in then if number in now]),
        ("opens" if old else "has open", [number for number in now if number not in then]),
    ):
        if found:
            yield f"release {new.name} {verb} known vulnerabilities (NVIDIA security bulletins {', '.join(found)})"
    if known and not now:
        yield f"release {new.name} has no known vulnerabilities as of {known['as_of']}: look for newer bulletins of NVIDIA"


def reached(version: str, wanted: str) -> bool:
    """Whether `0.11.1.post1` is 0.11.0 or newer: the numbers alone count."""
    return numbers(version) >= numbers(wanted)


def numbers(version: str) -> Tuple[int, ...]:
    """Return the numbers that a version begins with."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def of_host(variables: Mapping[str, Any], state: Mapping[str, Any], old: Optional[Release], new: Release) -> Iterator[str]:
    """What would be done on this host, out of its plan under the new row (`state`, of host_state) and its variables."""
    if state.get("maintenance"):
        yield "in maintenance, left alone: it stays as it is until it is put back"
        return
    plan = state["plan"]
    if not state["actual"]:
        # Not asked: preflight says why
        return
    yield from _models(variables, old, new)
    if old and old.row and ALLOWED not in " ".join(variables["triton_server_extra_args"]):
        then, now = (reached(release.row["triton"]["version"], CLIENT_MEMORY) for release in (old, new))
        if now and not then:
            yield (
                f"clients that share memory with the server are refused from Triton {CLIENT_MEMORY} on: add {ALLOWED}=true to "
                "triton_server_extra_args where a client does"
            )
    yield from _driver(variables, plan, new)
    yield from _image(variables, plan)
    yield from _rest(plan)
    if not plan:
        yield f"runs release {new.name} and is as wanted: nothing to do"


def _models(variables: Mapping[str, Any], old: Optional[Release], new: Release) -> Iterator[str]:
    """Compiled files: which model gets another one, and which has none."""
    card = variables["npufleet_card"].replace("RBLN-", "")
    here = manifest.placed_here(variables)
    key = "{}/{}".format(card, new.row["sdk"]["shape"])
    last = "{}/{}".format(card, old.row["sdk"]["shape"]) if old and old.row else key
    listed = {entry["name"]: entry.get("artefacts") or {} for entry in here}
    compiled = sorted(name for name, artefacts in listed.items() if artefacts)
    missing = [name for name in compiled if key not in listed[name]]
    if missing:
        yield f"no compiled file for {key}, to be compiled anew: {', '.join(missing)}"
    if key != last and len(missing) < len(compiled):
        yield f"compiled files for {key} in the place of {last}: {', '.join(name for name in compiled if name not in missing)}"


def _driver(variables: Mapping[str, Any], plan: List[Mapping[str, Any]], new: Release) -> Iterator[str]:
    wanted, form = new.row["driver"]["version"], variables["rbln_driver_form"]
    reboot = "rebooted where only that brings its cards back" if variables["rbln_driver_reboot"] else "not rebooted"
    for item in (entry for entry in plan if entry["concern"] == CONCERN):
        there = short(item["current"]) if item["current"] else "none"
        if item["action"] == "install":
            source = variables["rbln_driver_package_file"] or http_probe.bare(variables["rbln_driver_package_url"])
            yield (
                f"driver {there} to {wanted} (.{form}) from {source or 'a file that nobody has named yet'}: the server "
                f"stops for it, the host is {reboot}"
            )
        elif item["name"] == BY_OTHERS:
            yield f"driver {there} to {wanted}: whoever looks after it installs it first (rbln_driver_form: {PRESENT})"


def _image(variables: Mapping[str, Any], plan: List[Mapping[str, Any]]) -> Iterator[str]:
    doing = [item["action"] for item in plan if item["concern"] == "image"]
    builder = variables["npufleet_build_host"]
    if "build" in doing and builder == variables["inventory_hostname"]:
        yield f"image built here out of {variables['triton_image_base']}"
    elif {"build", "deliver"} & set(doing):
        yield f"image brought, {'once ' + builder + ' has built it' if 'build' in doing else 'as the lock file pins it'}"
    if "publish" in doing:
        yield "the locked image is put where the other hosts get it"


def _rest(plan: List[Mapping[str, Any]]) -> Iterator[str]:
    """Every other part of the host that changes, with what in it."""
    for concern in (name for name in CONCERNS if name not in COVERED):
        names = [
            item["name"] for item in plan if item["concern"] == concern and item["action"] not in ("install", "load", "reload")
        ]
        if names:
            yield f"{concern} changes: {', '.join(dict.fromkeys(names))}"
