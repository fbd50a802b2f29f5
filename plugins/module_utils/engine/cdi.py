"""The vendor's container toolkit, and its spec of the host's NPUs, by which an engine gives them to a container (CDI).

As in the toolkit's source (github.com/RBLN-SW/rbln-container-toolkit, 0.2.0): an entry for each NPU has its node and that of its
group, each under the host's own name; the spec as a whole mounts the driver's libraries and tools and makes their links.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.driver import driver_files
from ansible_collections.npufleet.triton.plugins.module_utils.plan import INSPECT, Item, item
from ansible_collections.npufleet.triton.plugins.module_utils.system import candidate_version, read_text, run

PACKAGE, TOOLKIT = "rbln-container-toolkit", "/usr/bin/rbln-ctk"
# Before it a spec has no name for a single NPU
OLDEST = "0.2"
# The toolkit is linked to a library that the driver has from this version on
OLDEST_DRIVER = 3
# Where the vendor's own unit writes it too. An engine reads /etc/cdi as well, in which the package leaves the spec of the day it
# was installed: of two that name the same NPU this one counts. It is gone with each boot
SPEC = "/var/run/cdi/rbln.yaml"
KIND = "rebellions.ai/npu"
# The node of a group of NPUs, which the SDK looks for under this name alone: without it no NPU is seen
GROUP_NODE = "/dev/rsd0"
UNIT, START = "npufleet-cdi.service", "npufleet-cdi-start.service"
SYSTEMD = "/etc/systemd/system"
# By what each is started: the second one with each start of the engine, at boot or later
WANTED_BY = {UNIT: "multi-user.target", START: "docker.service"}
GENERATE = (TOOLKIT, "cdi", "generate", "--output")
UNIT_TEXT = f"""# Written by npufleet
[Unit]
Description=Spec of the NPUs for containers (CDI)
After=npufleet-cards.service
Before=docker.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={" ".join(GENERATE)} {SPEC} --format yaml

[Install]
WantedBy=multi-user.target
"""
# Engines, 27.5 among them, start their containers before they know of CDI, so that one with cards by name stays down
# (github.com/moby/moby/issues/49989, repaired since). What the engine did not try to start, as it was stopped, has no such error
START_TEXT = """# Written by npufleet
[Unit]
Description=The Triton server that the engine could not start while it started itself
After=docker.service

[Service]
Type=oneshot
ExecStart=/bin/sh -c '\\
    docker inspect --format "{{.State.Error}}" "CONTAINER" 2>/dev/null | grep --quiet "device driver .cdi." || exit 0; \\
    exec docker start "CONTAINER"'

[Install]
WantedBy=docker.service
"""
# What is done about a difference
BRING, LINK, GENERATED, REMOVE = "toolkit", "link", "generate", "remove"


def names(npus: int) -> List[str]:
    """The NPUs of a host as an engine is asked for them."""
    return [f"{KIND}={number}" for number in range(npus)]


def units(container: str) -> Dict[str, str]:
    """The units of systemd by name, of a server in this container."""
    return {UNIT: UNIT_TEXT, START: START_TEXT.replace("CONTAINER", container)}


def read(npus: Optional[int]) -> Dict[str, Any]:
    """What is there: {"units", "enabled"}, and for so many NPUs beside it {"version", "spec", "flaws", "error", "link"}.

    "units" has the text of each, None for one that is not there; "version" is None without a toolkit; "spec" is "current", "another
    one", or None; "flaws" is what the toolkit's spec of this moment lacks, "error" why it makes none; "link" is {"path", "to"} of a
    name that the driver has to have and has not.
    """
    there: Dict[str, Any] = {
        "units": {name: read_text(f"{SYSTEMD}/{name}") for name in WANTED_BY},
        "enabled": [name for name, by in WANTED_BY.items() if os.path.islink(f"{SYSTEMD}/{by}.wants/{name}")],
    }
    if npus is None:
        return there
    facts: Dict[str, Any] = {**there, "version": version(), "spec": None, "flaws": [], "error": None, "link": _link()}
    if facts["version"] is None:
        return facts
    (code, now), (failed, told) = (run(*GENERATE, "-", "--format", form) for form in ("yaml", "json"))
    spec = read_text(SPEC)
    if code or failed:
        facts["error"] = f"{TOOLKIT} cdi generate ended with {code or failed}: {(now if code else told)[-200:]}"
    else:
        facts["flaws"] = list(flaws(told, npus, facts["link"] is not None))
    if spec is not None:
        facts["spec"] = "current" if not code and spec.strip() == now else "another one"
    return facts


def version() -> Optional[str]:
    """Version of the toolkit, empty where it does not say a number; None where there is none."""
    if not os.access(TOOLKIT, os.X_OK):
        return None
    found = re.search(r"version v?(\d+\.\d[\w.+~-]*)", run(TOOLKIT, "version")[1])
    return found[1] if found else ""


def too_old(found: str) -> bool:
    """Whether such a version names no single NPU. One without a number is of somebody who builds it himself: its spec is judged."""
    numbers = [[int(part) for part in re.findall(r"\d+", words.rpartition(":")[2])[:2]] for words in (found, OLDEST)]
    return bool(numbers[0]) and numbers[0] < numbers[1]


def unavailable(found: Optional[str]) -> Iterator[str]:
    """Why there can be no toolkit where none is brought: neither the one `found` nor what the host's repositories have will do."""
    if found is not None and not too_old(found):
        return
    offered = candidate_version(PACKAGE)
    if offered is None or too_old(offered):
        yield (
            f"found {PACKAGE} {found or 'nowhere'}, and {offered or 'none'} in the host's repositories, wanted {OLDEST} or newer, "
            "which names each NPU: set rbln_driver_toolkit_repository, or install it"
        )


def _link() -> Optional[Dict[str, str]]:
    """The plain name of a library that the SDK opens, where the driver has none: the toolkit makes links that a host has."""
    inside = f"{driver_files.INSIDE}/{driver_files.NEEDED}"
    for bind in driver_files.find({"libraries": True, "driver": ""})["binds"]:
        path, name, _rights = bind.split(":")
        if name == inside and os.path.basename(path) != driver_files.NEEDED:
            return {"path": os.path.join(os.path.dirname(path), driver_files.NEEDED), "to": os.path.basename(path)}
    return None


def flaws(told: str, npus: int, unlinked: bool = False) -> Iterator[str]:
    """What a spec, as the toolkit prints it in JSON, lacks of the host's NPUs, nodes, libraries and tool."""
    try:
        spec = shapes.parse(told)
        entries = {
            str(entry["name"]): {
                str(node["path"]): str(node.get("hostPath") or node["path"])
                for node in entry["containerEdits"].get("deviceNodes") or []
            }
            for entry in spec["devices"]
        }
        edits = spec["containerEdits"]
        mounts = {str(mount["containerPath"]): str(mount["hostPath"]) for mount in edits.get("mounts") or []}
        hooked = [str(word) for hook in edits.get("hooks") or [] for word in hook.get("args") or []]
        kind = spec["kind"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        yield f"a spec in a shape that is not known ({error!r})"
        return
    if kind != KIND:
        yield f"the kind {kind}"
    for number in range(npus):
        nodes = entries.get(str(number))
        if nodes is None:
            yield f"no NPU {number}"
            continue
        yield from (f"no {node} for NPU {number}" for node in (f"/dev/rbln{number}", GROUP_NODE) if nodes.get(node) != node)
    yield from _lacking(mounts, [word.rpartition("::")[2] for word in hooked if "::" in word], unlinked)


def _lacking(mounts: Mapping[str, str], links: Sequence[str], unlinked: bool) -> Iterator[str]:
    """What of the driver's files a spec does not bring into a container, and what it would mount that is not there."""
    yield from (f"a mount of {path}, which is not there" for path in sorted(set(mounts.values())) if not os.path.exists(path))
    brought = {os.path.realpath(path) for path in mounts.values()}
    of_driver = {bind.split(":")[0] for bind in driver_files.find({"libraries": True, "driver": ""})["binds"]}
    yield from (f"no {path}" for path in sorted(of_driver) if os.path.realpath(path) not in brought)
    inside = [*mounts, *links]
    if driver_files.TOOL not in inside:
        yield f"no {driver_files.TOOL} inside"
    if not unlinked and driver_files.NEEDED not in map(os.path.basename, inside):
        yield f"no {driver_files.NEEDED} inside"


def diff(concern: str, found: Mapping[str, Any], wanted: Mapping[str, str], loaded: bool) -> List[Item]:
    """The differences to these units, none where nothing is to be found by name. What a spec holds is judged under a driver that is
    `loaded` and has not lost its cards."""
    if not wanted:
        return [item(concern, name, "there", None, REMOVE) for name, there in found["units"].items() if there is not None]
    plan = []
    if found["version"] is None or too_old(found["version"]):
        plan.append(item(concern, PACKAGE, found["version"], f"{OLDEST} or newer", BRING))
    for name, unit in wanted.items():
        if found["units"][name] != unit:
            plan.append(item(concern, name, found["units"][name], unit, "configure"))
        elif name not in found["enabled"]:
            plan.append(item(concern, name, "disabled", "enabled", "configure"))
    if found["link"]:
        plan.append(item(concern, found["link"]["path"], None, "a link to {}".format(found["link"]["to"]), LINK))
    if not loaded or found["version"] is None:
        return plan
    if found["error"]:
        plan.append(item(concern, SPEC, found["error"], "a spec of the NPUs", INSPECT))
        return plan
    if found["spec"] != "current":
        plan.append(item(concern, SPEC, found["spec"], "what the toolkit says of this host", GENERATED))
    if found["flaws"]:
        whole = f"each NPU with its node and {GROUP_NODE}, and the driver's files"
        plan.append(item(concern, SPEC, "; ".join(found["flaws"]), whole, INSPECT))
    return plan
