#!/usr/bin/env python3
"""The lab: lab.py base | up | down. `base` makes the images of the hosts, and needs only Python.

Environment variables, with their defaults in parentheses. If a variable marked with * is not set, an existing lab keeps its value:
  HOSTS (2)        number of NPU hosts
  NPUS             number of NPUs of each host (2, or the NPUs of one card if a card has more)
  LAB (lab), LAB_SUBNET, LAB_RELEASE (lab-24.01), LAB_CPU_SHARES (1024)
  LAB_NEXT*        a second release row for upgrades. The hosts then have cards that both rows support
  SYSTEMS*         operating systems that the NPU hosts get in turn (debian-12), such as debian-12,debian-13
  LAB_COPIES       1: new hosts with the same system as npu1 are copies of the current npu1
  LAB_MODELS*      models to create: digits (the default), or images, which also creates an image classifier
  LAB_MONITORING*  0: create no monitoring host. By default, ops1 monitors the other hosts
  LAB_BALANCERS*   number of load balancers (0)
  LAB_BALANCER_SYSTEMS*  operating systems that the load balancers get in turn (debian-12)
  LAB_FAULTS       faults by host as JSON, such as {"npu2": [{"kind": "no_rsd0"}]}
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import engine
import hosts
import images
import standins
from settings import ARTEFACT_PORT, ARTEFACTS, BUILD, FIRST_SYSTEM, OPS_USER, SYSTEMS, Lab, LabError, current_lab, die, say

# Name of the file, in the state directory of a lab, that inventories/lab/hosts.py prints
INVENTORY = "inventory.json"
# The environment variables with the systems of the NPU hosts and of the load balancers
NPU_SYSTEMS, BALANCER_SYSTEMS = "SYSTEMS", "LAB_BALANCER_SYSTEMS"
# The sets of models that inventories/lab can place on the hosts
MODEL_SETS = ("digits", "images")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("base", "up", "down"))
    command = parser.parse_args().command
    try:
        with lab_lock():
            {"base": base, "up": up, "down": down}[command](current_lab())
    except LabError as error:
        die(error)


@contextmanager
def lab_lock() -> Iterator[None]:
    """Run the block while no other lab of this checkout starts or stops. The labs of a checkout share one engine and its images."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def base(_lab: Lab) -> None:
    """Start the engine and build the images of the hosts. `make` runs this while pip installs the packages that `up` needs."""
    engine.start()
    for system in sorted(chosen_systems()):
        images.ensure_host(system)


def up(lab: Lab) -> None:
    """Make the artefacts and images, and start the hosts. A second call changes nothing."""
    count = int(os.environ.get("HOSTS", "2"))
    row = os.environ.get("LAB_RELEASE", "lab-24.01")
    if row not in standins.RELEASE_ROWS:
        raise LabError(f"LAB_RELEASE is {row}, expected one of {', '.join(standins.RELEASE_ROWS)}")
    known = facts_of(lab)
    following = os.environ.get("LAB_NEXT") or known.get("next")
    if following and following not in standins.RELEASE_ROWS:
        raise LabError(f"LAB_NEXT is {following}, expected one of {', '.join(standins.RELEASE_ROWS)}")
    card = standins.card_of(row, following)
    model_set = os.environ.get("LAB_MODELS") or known.get("model_set") or "digits"
    if model_set not in MODEL_SETS:
        raise LabError(f"LAB_MODELS is {model_set}, expected one of {', '.join(MODEL_SETS)}")
    if not 1 <= count <= 200:
        raise LabError(f"HOSTS is {count}, expected 1 to 200")
    monitored = os.environ["LAB_MONITORING"] != "0" if os.environ.get("LAB_MONITORING") else known.get("monitored", True)
    balancers = int(os.environ.get("LAB_BALANCERS") or known.get("balancers", 0))
    if not 0 <= balancers <= hosts.MAX_BALANCERS:
        raise LabError(f"LAB_BALANCERS is {balancers}, expected 0 to {hosts.MAX_BALANCERS}")
    systems = systems_of(count, balancers, known.get("systems", {}))
    engine.start()
    hosts.refuse_conflicts(lab, list(systems))
    drivers = standins.ensure_drivers()
    toolkit = standins.ensure_toolkit()
    rows = [row, *([following] if following else [])]
    with ThreadPoolExecutor(1) as image_builder:
        built = image_builder.submit(images_of, systems, rows)
        for name in rows:
            standins.ensure_index(name)
        # A host keeps its cards during an upgrade to the row LAB_NEXT, so the models of both rows are for the same type of card.
        models = {name: standins.ensure_models(name, card) for name in rows}
    triton_archives = built.result()
    hosts.prepare_state(lab)
    faults = json.loads(os.environ.get("LAB_FAULTS") or "{}")
    npus, cards_each = standins.npus_of(card, os.environ.get("NPUS"))
    cards = {name: {"type": card, "count": cards_each, "faults": faults.get(name, [])} for name in hosts.host_names(count)[1:]}
    login = f"lab:{(lab.state / 'artefact_password').read_text()}"
    changed = hosts.up(lab, systems, cards, login, os.environ.get("LAB_COPIES") == "1")
    facts = {"row": row, "count": count, "npus": npus, "models": models, "triton_archives": triton_archives, "drivers": drivers}
    facts["next"], facts["card"], facts["toolkit"] = following, card, toolkit
    facts["sdk"] = {name: standins.sdk_version(name) for name in standins.RELEASE_ROWS}
    facts["model_set"], facts["monitored"], facts["balancers"] = model_set, monitored, balancers
    facts["systems"] = systems
    if known != facts:
        facts_path(lab).write_text(json.dumps(facts, indent=2))
        changed = True
    changed |= write_inventory(lab, facts)
    message = f"{count} NPU hosts, 1 operations host and {balancers} load balancers are up"
    say(message if changed else "nothing changed: the lab is up")


def images_of(systems: dict[str, str], rows: list[str]) -> dict[str, dict[str, str]]:
    """Build the images of the hosts and of Triton, and return the archives of Triton by row."""
    for system in sorted(set(systems.values())):
        images.ensure_host(system)
    return {name: images.ensure_triton(standins.RELEASE_ROWS[name]["triton"]) for name in rows}


def systems_of(count: int, balancers: int, known: dict[str, str]) -> dict[str, str]:
    """Return {host: system}. An existing host keeps its system, which `known` contains."""
    first, *npu_hosts = hosts.host_names(count)
    systems = {first: FIRST_SYSTEM}
    for variable, names in ((NPU_SYSTEMS, npu_hosts), (BALANCER_SYSTEMS, hosts.balancer_names(balancers))):
        setting, chosen = os.environ.get(variable), chosen_systems(variable)
        systems.update({name: chosen[number % len(chosen)] for number, name in enumerate(names)})
        kept = [f"{name} ({known[name]})" for name in names if setting and known.get(name, systems[name]) != systems[name]]
        if kept:
            raise LabError(f"{variable} is {setting}, but the lab has {', '.join(kept)}: stop the lab first (make lab-down)")
    return {**systems, **{name: known[name] for name in systems if name in known}}


def chosen_systems(variable: str = NPU_SYSTEMS) -> list[str]:
    """Return the systems of an environment variable, in its order."""
    chosen = (os.environ.get(variable) or FIRST_SYSTEM).split(",")
    unknown = sorted(set(chosen) - set(SYSTEMS))
    if unknown:
        raise LabError(f"{variable} has {', '.join(unknown)}, expected some of {', '.join(SYSTEMS)}")
    return chosen


def facts_path(lab: Lab) -> Path:
    """Return the path of the file with the facts of a running lab."""
    return lab.state / "facts.json"


def facts_of(lab: Lab) -> dict[str, Any]:
    """Return the facts of a lab, or {} if it does not run."""
    path = facts_path(lab)
    return json.loads(path.read_text()) if path.exists() else {}


def artefacts_of(facts: dict[str, Any], model: str, address: str) -> dict[str, dict[str, str]]:
    """Return the compiled files of a model for each row of the lab, in the form of `artefacts` in `triton_models`."""
    built = [models[model] for models in facts["models"].values()]
    return {
        entry["key"]: {
            "url": f"{address}/{entry['path']}",
            "sha256": entry["sha256"],
            "record": f"{ARTEFACTS / entry['path']}.json",
        }
        for entry in built
    }


def down(lab: Lab) -> None:
    """Remove this lab, and stop the engine if the lab started it and no other lab uses it."""
    if engine.is_ours() or engine.answers():
        hosts.down(lab)
        engine.stop_if_unused()
    else:
        hosts.remove_state(lab)
    say(f"{lab.name} is down")


def write_inventory(lab: Lab, facts: dict[str, Any]) -> bool:
    """Write the file that inventories/lab/hosts.py prints for the running lab. Return True if it changed."""
    path, text = lab.state / INVENTORY, json.dumps(inventory(lab, facts))
    if path.exists() and path.read_text() == text:
        return False
    # The file contains passwords.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as sink:
        sink.write(text)
    return True


def inventory(lab: Lab, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the Ansible inventory of the lab."""
    names, balancers = hosts.host_names(facts["count"]), hosts.balancer_names(facts["balancers"])
    hostvars = {
        name: {"ansible_host": lab.address(hosts.number_of(name)), "lab_container": lab.container(name)}
        for name in [*names, *balancers]
    }
    for name, system in facts["systems"].items():
        hostvars[name]["lab_system"] = system
        if system != FIRST_SYSTEM:
            # Without this variable, Ansible would use the interpreter that it has cached for the name of the host. Another lab can
            # have a host with the same name and another interpreter.
            hostvars[name]["ansible_python_interpreter"] = "/usr/bin/python3"
    address = f"http://{lab.address(0)}:{ARTEFACT_PORT}"
    everywhere = {
        "ansible_user": OPS_USER,
        "ansible_ssh_private_key_file": str(lab.state / "id_ed25519"),
        "ansible_ssh_common_args": f"-o UserKnownHostsFile={lab.state}/known_hosts -o GlobalKnownHostsFile=/dev/null",
        "ansible_become_password": (lab.state / "become_password").read_text(),
        "npufleet_output_dir": str(lab.output),
        "lab_cache": str(lab.cache),
        "lab_docker": engine.client(),
        "lab_release": facts["row"],
        "lab_next": facts["next"],
        "lab_card": facts["card"],
        "lab_npus": facts["npus"],
        "lab_artefact_url": address,
        "lab_artefact_user": "lab",
        "lab_artefact_password": (lab.state / "artefact_password").read_text(),
        "lab_models": facts["models"][facts["row"]],
        "lab_artefacts": {name: artefacts_of(facts, name, address) for name in standins.MODELS},
        "lab_model_set": facts["model_set"],
        "lab_drivers": facts["drivers"],
        "lab_toolkit": f"{address}/{facts['toolkit']}",
        "lab_sdk": facts["sdk"],
        "lab_triton_archives": facts["triton_archives"],
    }
    groups: dict[str, dict[str, Any]] = {
        "all": {"vars": everywhere, "children": ["npu_hosts", "monitoring_hosts"]},
        "npu_hosts": {"hosts": names[1:]},
        "monitoring_hosts": {"hosts": names[:1] if facts["monitored"] else []},
    }
    if balancers:
        groups["all"]["children"].append("load_balancer_hosts")
        groups["load_balancer_hosts"] = {"hosts": balancers}
    return {**groups, "_meta": {"hostvars": hostvars}}


if __name__ == "__main__":
    main()
