# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The processes that use cards, with their names, containers and cards.

The vendor's tool lists contexts. A context is one process on one NPU. If NPUs are in groups, several cards have the same number, so
the number does not identify a card. The device nodes that the process has open identify the card.
"""

from __future__ import annotations

import glob
import os
import re
import stat
import time
from typing import Any, Dict, Iterator, List, Mapping, Optional, Set, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.driver.vendor_tool import query_tool
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine
from ansible_collections.npufleet.triton.plugins.module_utils.system import read_text

# The cgroup path of a container is /docker/<id> or, with the systemd driver, docker-<id>.scope below a slice.
CONTAINER = re.compile(r"docker[-/]([0-9a-f]{64})")
POLL_SECONDS = 0.5
NODES = "/dev/rbln[0-9]*"
PROC = "/proc"
# The kernel truncates the name of a process to 15 characters.
MAX_COMM_LENGTH = 15


def read_use(container: str, ignore_gone: bool = False) -> Dict[str, Any]:
    """Return {"running": True if the container runs, "reasons": messages about contexts of other processes on the cards}.

    Contexts of the running container itself are left out. With `ignore_gone`, contexts of ended processes are left out, too.
    """
    engine = Engine()
    own = _inspect(engine, container)
    running = bool(own and own["State"]["Running"])
    tool = query_tool()
    if "error" in tool:
        return {"running": running, "reasons": ["cannot read which processes have the cards open: " + tool["error"]]}
    foreign = []
    for holder in tool["holders"]:
        owner = owner_of(holder)
        # The tool can list a process of the container by its ID in the container's PID namespace. The host has no process with
        # this ID, so the process looks like an ended one. Therefore, while the container runs, such processes count as its own.
        if not (ignore_gone and owner["gone"]) and not (own and running and (owner["gone"] or owner["container"] == own["Id"])):
            foreign.append({**holder, **owner, "open": open_cards(holder["pid"]) if not owner["gone"] else set()})
    names = {}
    for identity in {holder["container"] for holder in foreign if holder["container"]}:
        found = _inspect(engine, identity)
        names[identity] = found["Name"].lstrip("/") if found else identity[:12]
    return {"running": running, "reasons": describe(foreign, names)}


def wait_until_free(container: str, timeout: float, ignore_gone: bool = False) -> List[str]:
    """Wait until the cards are free or the container runs, and return the reasons that remain.

    With `ignore_gone`, reasons about ended processes are left out after the timeout: a reload of the module removes such contexts.
    """
    deadline = time.monotonic() + timeout
    use = read_use(container)
    while use["reasons"] and not use["running"] and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        use = read_use(container)
    if use["reasons"] and ignore_gone:
        use = read_use(container, ignore_gone)
    return list(use["reasons"])


def _inspect(engine: Engine, container: str) -> Optional[Dict[str, Any]]:
    try:
        return engine.container(container)
    except OSError:
        return None


def owner_of(holder: Mapping[str, Any]) -> Dict[str, Any]:
    """Return {"gone": True if the process of a context has ended, "container": the ID of its container or None}."""
    pid = holder["pid"]
    name = (read_text(f"/proc/{pid}/comm") or "").strip()
    if not name or name != holder["process"][:MAX_COMM_LENGTH]:
        return {"gone": True, "container": None}
    found = CONTAINER.search(read_text(f"/proc/{pid}/cgroup") or "")
    return {"gone": False, "container": found.group(1) if found else None}


def open_cards(pid: int) -> Set[str]:
    """Return the host's names of the NPU nodes that a process has open. A container can have other names for them."""
    nodes = {status.st_rdev: os.path.basename(path) for path, status in _devices(NODES)}
    return {nodes[status.st_rdev] for _path, status in _devices(f"{PROC}/{pid}/fd/*") if status.st_rdev in nodes}


def _devices(pattern: str) -> Iterator[Tuple[str, os.stat_result]]:
    """Yield (path, status) of each character device whose path matches the pattern. Paths that vanish meanwhile are skipped."""
    for path in glob.glob(pattern):
        try:
            status = os.stat(path)
        except OSError:
            continue
        if stat.S_ISCHR(status.st_mode):
            yield path, status


def _natural_order(name: str) -> Tuple[str, int]:
    number = re.search(r"\d+\Z", name)
    return (name[: number.start()], int(number[0])) if number else (name, 0)


def _cards(holder: Mapping[str, Any]) -> str:
    """Return the card of a context, or all cards that it can be on, as text."""
    cards = [card for card in holder["cards"] if card in holder["open"]] or holder["cards"]
    if not cards:
        return "an NPU that the tool does not list (number {})".format(holder["npu"])
    return cards[0] if len(cards) == 1 else "one of " + ", ".join(cards)


def describe(holders: List[Dict[str, Any]], names: Mapping[str, str]) -> List[str]:
    """Return a message for each process, with its cards, its name, and the command that ends it."""
    contexts: Dict[int, List[Dict[str, Any]]] = {}
    for holder in holders:
        contexts.setdefault(holder["pid"], []).append(holder)
    sentences = []
    for pid, (holder, *others) in contexts.items():
        cards = sorted({_cards(context) for context in (holder, *others)}, key=lambda card: (" " in card, *_natural_order(card)))
        found = f"{', '.join(cards)} held by {holder['process']} (pid {pid})"
        if holder["gone"]:
            found += ", which has ended: reload the module (`modprobe -r rebellions && modprobe rebellions`), or reboot the host"
        elif holder["container"]:
            found += " in container {0}: stop it (`docker stop {0}`)".format(names[holder["container"]])
        else:
            found += f": end it (`kill {pid}`)"
        sentences.append(found)
    return sentences
