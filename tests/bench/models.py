#!/usr/bin/env python3
"""How long a change of models takes beside what it cannot do without: `make bench-models`.

Ten models of 2 GiB together on a lab of its own with four hosts, in mode explicit. Cases: `first_sync`, `no_change`,
`one_changed` (the model of 100 MiB) and `rollback` of that. Each runs as an operator runs it; then one rsync a host, all at once,
brings the same bytes to a bare directory, where a digest is made of what changed, and Triton is asked to unload and to load the
model anew: the sum of what a case needs of that is its floor. `no_change` alternates with `status.yml`. Bytes moved are new files
in the hosts' stores, which models were loaded is read from the servers' own logs, and how many modules a host was called for from
its journal of sudo. Prints a table, writes build/bench/models.json. A missed target is shown; the run fails when a playbook does,
or when a host does not have what was brought to it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from bench_lab import BUILD, ROOT, BenchError, Lab

PLACE = BUILD / "models"
HOSTS = 4
MIB = 1 << 20
TOTAL, CHANGED = 2048 * MIB, 100 * MIB
NAMES = [f"bench{number}" for number in range(10)]
# The one that changes
ONE = NAMES[0]
STORE = "/var/lib/npufleet/blobs"
BARE = "bare"
# Seconds above the floor, calls of modules on each host, and times as long as status.yml
ABOVE = {"one_changed": 4.0, "rollback": 4.0}
CALLS = 6
STATUS = 1.2
# Runs of no_change and of status.yml, one after the other
ROUNDS = 3
# What Triton needs to load a model anew, asked from inside the host
RELOAD = """
import sys, urllib.request as u
key = {"npufleet-key": open("/etc/npufleet/server/key").read().strip()}
for what in ("unload", "load"):
    u.urlopen(u.Request(f"http://127.0.0.1:8000/v2/repository/models/{sys.argv[1]}/{what}", b"{}", key), timeout=300).read()
"""
Row = Dict[str, Any]


@dataclass(frozen=True)
class State:
    """What a host has: {inode: bytes} of its store, and how often its server, of this identity, loaded each model."""

    blobs: Mapping[int, int]
    server: str
    loads: Mapping[str, int]


def blobs_of(listing: str) -> Dict[int, int]:
    """{inode: bytes} out of `find -printf '%i %s\\n'`."""
    return {int(inode): int(size) for inode, size in (line.split() for line in listing.splitlines())}


def loads_of(log: str) -> Dict[str, int]:
    """How often each model of the bench was loaded, by Triton's log."""
    return {name: log.count(f"successfully loaded '{name}'") for name in NAMES}


def moved(before: Mapping[str, State], after: Mapping[str, State]) -> int:
    """Bytes that came into the stores of all hosts."""
    return sum(size for host, state in after.items() for inode, size in state.blobs.items() if inode not in before[host].blobs)


def reloaded(before: Mapping[str, State], after: Mapping[str, State]) -> List[str]:
    """Models that any server loaded meanwhile; those of a new server are all that it loaded."""
    names = set()
    for host, state in after.items():
        known = before[host].loads if before[host].server == state.server else {}
        names |= {name for name, count in state.loads.items() if count > known.get(name, 0)}
    return sorted(names)


def verdicts(rows: Sequence[Row]) -> List[Tuple[str, bool]]:
    """(target in words, whether it was reached)."""
    found = {row["case"]: row for row in rows}
    targets: List[Tuple[str, bool]] = []
    if "one_changed" in found:
        entry = found["one_changed"]
        calls = entry["module_calls_per_host"]
        targets.append((f"one_changed: {calls} calls of modules a host, wanted at most {CALLS}", calls <= CALLS))
        targets.append((f"one_changed: reloaded {entry['models_reloaded']}, wanted {[ONE]}", entry["models_reloaded"] == [ONE]))
    if "no_change" in found:
        entry = found["no_change"]
        quiet = not entry["bytes_moved"] and not entry["models_reloaded"]
        targets.append((f"no_change: {entry['bytes_moved']} bytes moved, reloaded {entry['models_reloaded']}, wanted none", quiet))
        times = round(entry["seconds"] / entry["status_seconds"], 2)
        targets.append((f"no_change: {times} times as long as status.yml, wanted at most {STATUS}", times <= STATUS))
    for case, seconds in ABOVE.items():
        if case in found:
            above = round(found[case]["seconds"] - found[case]["floor_seconds"], 2)
            targets.append((f"{case}: {above} s above the floor, wanted at most {seconds}", above <= seconds))
    if "rollback" in found:
        entry = found["rollback"]
        targets.append((f"rollback: {entry['bytes_moved']} bytes moved, wanted 0", not entry["bytes_moved"]))
        targets.append((f"rollback: reloaded {entry['models_reloaded']}, wanted {[ONE]}", entry["models_reloaded"] == [ONE]))
    return targets


def table(rows: Sequence[Row]) -> str:
    """The rows as a person reads them."""
    lines = [f"{'case':<12} {'seconds':>8} {'floor':>6} {'rsync':>6} {'status':>6} {'calls':>5} {'MiB moved':>10}  reloaded"]
    for row in rows:
        seconds = f"{row['seconds']:>8.1f} {row['floor_seconds']:>6.1f} {row['rsync_seconds']:>6.1f}"
        status = f"{row['status_seconds']:>6.1f}" if "status_seconds" in row else f"{'-':>6}"
        numbers = f"{seconds} {status} {row['module_calls_per_host']:>5} {row['bytes_moved'] / MIB:>10.1f}"
        lines.append(f"{row['case']:<12} {numbers}  {', '.join(row['models_reloaded']) or '-'}")
    return "\n".join(lines)


# The models


def make_models() -> Path:
    """A repository of ten models like `add`, with weights that no transfer can make smaller."""
    shutil.rmtree(PLACE, ignore_errors=True)
    for name in NAMES:
        shutil.copytree(ROOT / "model_repository/add", PLACE / name, ignore=shutil.ignore_patterns("__pycache__"))
        config = PLACE / name / "config.pbtxt"
        config.write_text(config.read_text().replace('name: "add"', f'name: "{name}"'))
        write_weights(name)
    return PLACE


def size_of(name: str) -> int:
    """Bytes of a model's weights."""
    return CHANGED if name == ONE else (TOTAL - CHANGED) // (len(NAMES) - 1)


def write_weights(name: str) -> None:
    """New weights of a model."""
    left = size_of(name)
    with (PLACE / name / "1/weights.bin").open("wb") as sink:
        while left:
            left -= sink.write(os.urandom(min(left, 16 * MIB)))


# The hosts


class Fleet(Lab):
    """The lab with these models."""

    def __init__(self) -> None:
        super().__init__(HOSTS, VARIABLES)

    def state(self) -> Dict[str, State]:
        """What every host has now."""
        found = {}
        for host in self.hosts:
            listing = self.inside(host, "sh", "-c", f"[ ! -d {STORE} ] || find {STORE} -type f -printf '%i %s\\n'")
            server = self.inside(host, "sh", "-c", "docker inspect --format '{{.Id}}' triton 2>/dev/null || true").strip()
            log = self.inside(host, "sh", "-c", "docker logs triton 2>&1 || true")
            found[host] = State(blobs_of(listing), server, loads_of(log))
        return found

    def rsync(self) -> float:
        """Seconds of a bare rsync of the repository to every host at once."""
        began = time.monotonic()
        running = []
        for host in self.hosts.values():
            target = f"{self.shared['ansible_user']}@{host['ansible_host']}:{BARE}/"
            command = ["rsync", "--archive", "--delete", "--whole-file", "-e", f"ssh {self.ssh_options()}", f"{PLACE}/", target]
            running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
        errors = [entry.communicate()[1] for entry in running]
        seconds = time.monotonic() - began
        if any(entry.returncode for entry in running):
            raise BenchError("rsync: " + "\n".join(error for error in errors if error))
        return seconds


VARIABLES = {
    "npufleet_model_repository": str(PLACE),
    "triton_server_model_control_mode": "explicit",
    # The bench asks nothing: what is proven here is what is served.
    "inference_check_require_checks": False,
    "npufleet_rollout_serial": ["100%"],
    "triton_models": [{"name": name} for name in NAMES],
}


def measure(
    lab: Fleet, case: str, name: str, *options: str, brings: Optional[int] = None, loads: Sequence[str] = (), transfers: bool = True
) -> Row:
    """One row. `brings` are the bytes that each host has to have got, None for any number; `loads` what is loaded anew."""
    before, since = lab.state(), lab.now()
    seconds, tasks = lab.playbook(name, *options)
    calls = lab.calls(since)
    after = lab.state()
    bare = lab.rsync()
    floor = bare if transfers else 0.0
    if brings:
        floor += lab.everywhere("sh", "-c", f"sha256sum {' '.join(f'/home/*/{BARE}/{load}/1/weights.bin' for load in loads)}")
    floor += sum(lab.everywhere("python3", "-c", RELOAD, load) for load in loads)
    came = moved(before, after)
    if brings is not None and came < brings * len(lab.hosts):
        raise BenchError(f"{case}: {came} bytes came into the stores, wanted {brings} on each of {len(lab.hosts)} hosts")
    row = {
        "case": case,
        "seconds": round(seconds, 2),
        "rsync_seconds": round(bare, 2),
        "floor_seconds": round(floor, 2),
        "ratio": round(seconds / bare, 2),
        "module_calls_per_host": calls,
        "bytes_moved": came,
        "models_reloaded": reloaded(before, after),
    }
    say(f"{case}: {seconds:.1f} s, floor {floor:.1f} s; the longest tasks:")
    for taken, task in tasks:
        print(f"  {taken:>6.1f} s  {task}")
    return row


def run(lab: Fleet) -> List[Row]:
    """All cases, one after the other: each starts from what the one before it left."""
    say("a server without models")
    lab.playbook("site.yml", "-e", '{"triton_models": []}')
    rows = [measure(lab, "first_sync", "models.yml", brings=sum(map(size_of, NAMES)), loads=NAMES)]
    rows.append(no_change(lab))
    kept = (PLACE / ONE / "1/weights.bin").rename(BUILD / "weights.kept")
    write_weights(ONE)
    rows.append(measure(lab, "one_changed", "models.yml", brings=CHANGED, loads=[ONE]))
    # What rsync brings back in this case are the bytes that the hosts still have.
    kept.rename(PLACE / ONE / "1/weights.bin")
    back = ["-e", "rollback_to=previous", "-e", f"rollback_models={ONE}"]
    rows.append(measure(lab, "rollback", "rollback.yml", *back, loads=[ONE], transfers=False))
    return rows


def no_change(lab: Fleet) -> Row:
    """The middle one of some runs, which alternate with status.yml."""
    runs: List[Row] = []
    statuses: List[float] = []
    for _round in range(ROUNDS):
        runs.append(measure(lab, "no_change", "models.yml", transfers=False))
        statuses.append(lab.playbook("status.yml")[0])
    middle = sorted(runs, key=lambda row: float(row["seconds"]))[ROUNDS // 2]
    return {**middle, "status_seconds": round(sorted(statuses)[ROUNDS // 2], 2)}


def say(message: str) -> None:
    print(f"bench: {message}", flush=True)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    # so that the lab is taken away
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: ended by a signal"))
    try:
        make_models()
        with Fleet() as lab:
            rows = run(lab)
    except BenchError as error:
        sys.exit(f"bench: {error}")
    finally:
        shutil.rmtree(PLACE, ignore_errors=True)
        (BUILD / "weights.kept").unlink(missing_ok=True)
    (BUILD / "models.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(f"\n{table(rows)}\n")
    for words, reached in verdicts(rows):
        print(f"{words}: {'reached' if reached else 'MISSED'}")


if __name__ == "__main__":
    main()
