"""The processes that have the cards open: the contexts that the vendor's tool lists, and the processes and containers behind them.

The number of a context names no card where NPUs are in groups. The device nodes that a process has open tell its cards apart.
"""

from __future__ import annotations

import glob
import os
import re
import stat
import time
from typing import Any, Dict, Iterator, List, Mapping, Optional, Set, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.driver.vendor_tool import ask_tool
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine
from ansible_collections.npufleet.triton.plugins.module_utils.system import read_text

# Both of the engine's cgroup drivers: /docker/<id>, and docker-<id>.scope below a slice
CONTAINER = re.compile(r"docker[-/]([0-9a-f]{64})")
POLL_SECONDS = 0.5
NODES = "/dev/rbln[0-9]*"
PROC = "/proc"
# The kernel keeps this much of a process' name.
COMM = 15


def look(container: str, ignore_gone: bool = False) -> Dict[str, Any]:
    """{"running": whether that container runs, "reasons": why the cards are not free}: its own contexts are none while it runs,
    nor with `ignore_gone` those of processes that are gone."""
    engine = Engine()
    own = _inspect(engine, container)
    running = bool(own and own["State"]["Running"])
    tool = ask_tool()
    if "error" in tool:
        return {"running": running, "reasons": ["cannot tell who has the cards open: " + tool["error"]]}
    strange = []
    for other in tool["holders"]:
        owner = whose(other)
        # A process that is not to be found may be the container's own, under a number of its own.
        if not (ignore_gone and owner["gone"]) and not (own and running and (owner["gone"] or owner["container"] == own["Id"])):
            strange.append({**other, **owner, "open": open_cards(other["pid"]) if not owner["gone"] else set()})
    names = {}
    for identity in {holder["container"] for holder in strange if holder["container"]}:
        found = _inspect(engine, identity)
        names[identity] = found["Name"].lstrip("/") if found else identity[:12]
    return {"running": running, "reasons": reasons(strange, names)}


def wait_until_free(container: str, timeout: float, ignore_gone: bool = False) -> List[str]:
    """Why the cards are not free: at once beside a running container, else of those that are left after these seconds.

    A context is waited for in any case; `ignore_gone` is for whoever loads the module anew, which ends those of gone processes.
    """
    deadline = time.monotonic() + timeout
    found = look(container)
    while found["reasons"] and not found["running"] and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        found = look(container)
    if found["reasons"] and ignore_gone:
        found = look(container, ignore_gone)
    reasons_left: List[str] = found["reasons"]
    return reasons_left


def _inspect(engine: Engine, container: str) -> Optional[Dict[str, Any]]:
    try:
        return engine.container(container)
    except OSError:
        return None


def whose(holder: Mapping[str, Any]) -> Dict[str, Any]:
    """{"gone": whether no process of this number and name is left, "container": the id of the one it runs in}."""
    pid = holder["pid"]
    name = (read_text(f"/proc/{pid}/comm") or "").strip()
    if not name or name != holder["process"][:COMM]:
        return {"gone": True, "container": None}
    found = CONTAINER.search(read_text(f"/proc/{pid}/cgroup") or "")
    return {"gone": False, "container": found.group(1) if found else None}


def open_cards(pid: int) -> Set[str]:
    """Return the device nodes of NPUs that a process has open, by their names on the host: a container may have other names."""
    nodes = {status.st_rdev: os.path.basename(path) for path, status in _devices(NODES)}
    return {nodes[status.st_rdev] for _path, status in _devices(f"{PROC}/{pid}/fd/*") if status.st_rdev in nodes}


def _devices(pattern: str) -> Iterator[Tuple[str, os.stat_result]]:
    """Each character device among these paths, which may go at any time."""
    for path in glob.glob(pattern):
        try:
            status = os.stat(path)
        except OSError:
            continue
        if stat.S_ISCHR(status.st_mode):
            yield path, status


def _natural(name: str) -> Tuple[str, int]:
    number = re.search(r"\d+\Z", name)
    return (name[: number.start()], int(number[0])) if number else (name, 0)


def _cards(holder: Mapping[str, Any]) -> str:
    """The card of a context, or those that it may be on."""
    cards = [card for card in holder["cards"] if card in holder["open"]] or holder["cards"]
    if not cards:
        return "an NPU that the tool does not list (number {})".format(holder["npu"])
    return cards[0] if len(cards) == 1 else "one of " + ", ".join(cards)


def reasons(holders: List[Dict[str, Any]], names: Mapping[str, str]) -> List[str]:
    """Return a sentence for each process: its cards, what it is, what to do about it."""
    cards: Dict[int, List[str]] = {}
    for holder in holders:
        cards.setdefault(holder["pid"], []).append(_cards(holder))
    sentences = []
    for pid, held in cards.items():
        holder = next(other for other in holders if other["pid"] == pid)
        found = "{} held by {} (pid {})".format(
            ", ".join(sorted(set(held), key=lambda card: (" " in card, *_natural(card)))), holder["process"], pid
        )
        if holder["gone"]:
            found += ", which is gone: load the module anew (`modprobe -r rebellions && modprobe rebellions`), or reboot the host"
        elif holder["container"]:
            found += " in container {0}: stop it (`docker stop {0}`)".format(names[holder["container"]])
        else:
            found += f": end it (`kill {pid}`)"
        sentences.append(found)
    return sentences
