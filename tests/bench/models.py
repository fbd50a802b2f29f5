#!/usr/bin/env python3
"""Measure how long a change of models takes, compared with the steps that it needs at least: `make bench-models`.

A separate lab has four hosts in mode explicit and ten models of 2 GiB together. The cases are `first_sync`, `no_change`,
`one_changed` (the model of 100 MiB) and `rollback` of this change. The bench runs the playbook of each case as an operator does.
Then it measures the floor, the sum of the necessary steps: rsync copies the same bytes to a plain directory of each host, all
hosts at once; each host computes the digests of the changed files; and Triton unloads and loads the changed models. `no_change`
alternates with `status.yml`. The bytes moved are the new files in the stores of the hosts. The logs of the servers show which
models were loaded. The journals show how many modules were called. The bench prints a table and writes build/bench/models.json. It
reports a missed target, and fails if a playbook fails, or if the files did not arrive on a host.
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

REPOSITORY = BUILD / "models"
HOSTS = 4
MIB = 1 << 20
TOTAL, CHANGED = 2048 * MIB, 100 * MIB
NAMES = [f"bench{number}" for number in range(10)]
# The model that changes
ONE = NAMES[0]
STORE = "/var/lib/npufleet/blobs"
BARE = "bare"
# Targets: seconds above the floor, calls of modules on each host, and time as a multiple of the time of status.yml
ABOVE = {"one_changed": 4.0, "rollback": 4.0}
CALLS = 6
STATUS = 1.2
# Number of runs of no_change and of status.yml, which alternate
ROUNDS = 3
# A program that runs on the host, and lets Triton unload and load a model
RELOAD = """
import sys, urllib.request as u
key = {"npufleet-key": open("/etc/npufleet/server/key").read().strip()}
for what in ("unload", "load"):
    u.urlopen(u.Request(f"http://127.0.0.1:8000/v2/repository/models/{sys.argv[1]}/{what}", b"{}", key), timeout=300).read()
"""
Row = Dict[str, Any]


@dataclass(frozen=True)
class State:
    """The state of a host: {inode: bytes} of its store, the ID of its container, and how often this server loaded each model."""

    blobs: Mapping[int, int]
    server: str
    loads: Mapping[str, int]


def blobs_of(listing: str) -> Dict[int, int]:
    """Return {inode: bytes} from the output of `find -printf '%i %s\\n'`."""
    return {int(inode): int(size) for inode, size in (line.split() for line in listing.splitlines())}


def loads_of(log: str) -> Dict[str, int]:
    """Return {model of the bench: how often Triton's log reports a load}."""
    return {name: log.count(f"successfully loaded '{name}'") for name in NAMES}


def moved(before: Mapping[str, State], after: Mapping[str, State]) -> int:
    """Return the new bytes in the stores of all hosts."""
    return sum(size for host, state in after.items() for inode, size in state.blobs.items() if inode not in before[host].blobs)


def reloaded(before: Mapping[str, State], after: Mapping[str, State]) -> List[str]:
    """Return the models that a server has loaded meanwhile. For a new server, all its loads count."""
    names = set()
    for host, state in after.items():
        known = before[host].loads if before[host].server == state.server else {}
        names |= {name for name, count in state.loads.items() if count > known.get(name, 0)}
    return sorted(names)


def verdicts(rows: Sequence[Row]) -> List[Tuple[str, bool]]:
    """Return (target in words, True if it was reached) for each target."""
    found = {row["case"]: row for row in rows}
    targets: List[Tuple[str, bool]] = []
    if "one_changed" in found:
        entry = found["one_changed"]
        calls = entry["module_calls_per_host"]
        targets.append((f"one_changed: {calls} calls of modules a host, expected at most {CALLS}", calls <= CALLS))
        targets.append((f"one_changed: reloaded {entry['models_reloaded']}, expected {[ONE]}", entry["models_reloaded"] == [ONE]))
    if "no_change" in found:
        entry = found["no_change"]
        quiet = not entry["bytes_moved"] and not entry["models_reloaded"]
        targets.append(
            (f"no_change: {entry['bytes_moved']} bytes moved, reloaded {entry['models_reloaded']}, expected none", quiet)
        )
        times = round(entry["seconds"] / entry["status_seconds"], 2)
        targets.append((f"no_change: {times} times as long as status.yml, expected at most {STATUS}", times <= STATUS))
    for case, seconds in ABOVE.items():
        if case in found:
            above = round(found[case]["seconds"] - found[case]["floor_seconds"], 2)
            targets.append((f"{case}: {above} s above the floor, expected at most {seconds}", above <= seconds))
    if "rollback" in found:
        entry = found["rollback"]
        targets.append((f"rollback: {entry['bytes_moved']} bytes moved, expected 0", not entry["bytes_moved"]))
        targets.append((f"rollback: reloaded {entry['models_reloaded']}, expected {[ONE]}", entry["models_reloaded"] == [ONE]))
    return targets


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table for the terminal."""
    lines = [f"{'case':<12} {'seconds':>8} {'floor':>6} {'rsync':>6} {'status':>6} {'calls':>5} {'MiB moved':>10}  reloaded"]
    for row in rows:
        seconds = f"{row['seconds']:>8.1f} {row['floor_seconds']:>6.1f} {row['rsync_seconds']:>6.1f}"
        status = f"{row['status_seconds']:>6.1f}" if "status_seconds" in row else f"{'-':>6}"
        numbers = f"{seconds} {status} {row['module_calls_per_host']:>5} {row['bytes_moved'] / MIB:>10.1f}"
        lines.append(f"{row['case']:<12} {numbers}  {', '.join(row['models_reloaded']) or '-'}")
    return "\n".join(lines)


# The models


def make_models() -> Path:
    """Create a repository of ten models like `add`, with random weights, which no transfer can compress."""
    shutil.rmtree(REPOSITORY, ignore_errors=True)
    for name in NAMES:
        shutil.copytree(ROOT / "model_repository/add", REPOSITORY / name, ignore=shutil.ignore_patterns("__pycache__"))
        config = REPOSITORY / name / "config.pbtxt"
        config.write_text(config.read_text().replace('name: "add"', f'name: "{name}"'))
        write_weights(name)
    return REPOSITORY


def size_of(name: str) -> int:
    """Return the number of bytes of a model's weights."""
    return CHANGED if name == ONE else (TOTAL - CHANGED) // (len(NAMES) - 1)


def write_weights(name: str) -> None:
    """Write new weights of a model."""
    left = size_of(name)
    with (REPOSITORY / name / "1/weights.bin").open("wb") as sink:
        while left:
            left -= sink.write(os.urandom(min(left, 16 * MIB)))


# The hosts


class Fleet(Lab):
    """The lab with these models."""

    def __init__(self) -> None:
        super().__init__(HOSTS, VARIABLES)

    def state(self) -> Dict[str, State]:
        """Return {host: its current state}."""
        states = {}
        for host in self.hosts:
            listing = self.inside(host, "sh", "-c", f"[ ! -d {STORE} ] || find {STORE} -type f -printf '%i %s\\n'")
            server = self.inside(host, "sh", "-c", "docker inspect --format '{{.Id}}' triton 2>/dev/null || true").strip()
            log = self.inside(host, "sh", "-c", "docker logs triton 2>&1 || true")
            states[host] = State(blobs_of(listing), server, loads_of(log))
        return states

    def rsync(self) -> float:
        """Copy the repository to every host at once with rsync, and return the seconds."""
        began = time.monotonic()
        running = []
        for host in self.hosts.values():
            target = f"{self.shared['ansible_user']}@{host['ansible_host']}:{BARE}/"
            command = [
                "rsync",
                "--archive",
                "--delete",
                "--whole-file",
                "-e",
                f"ssh {self.ssh_options()}",
                f"{REPOSITORY}/",
                target,
            ]
            running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
        errors = [entry.communicate()[1] for entry in running]
        seconds = time.monotonic() - began
        if any(entry.returncode for entry in running):
            raise BenchError("rsync: " + "\n".join(error for error in errors if error))
        return seconds


VARIABLES = {
    "npufleet_model_repository": str(REPOSITORY),
    "triton_server_model_control_mode": "explicit",
    # The bench sends no requests. The proof of a change only compares the served releases.
    "inference_check_require_checks": False,
    "npufleet_rollout_serial": ["100%"],
    "triton_models": [{"name": name} for name in NAMES],
}


def measure(
    lab: Fleet, case: str, name: str, *options: str, brings: Optional[int] = None, loads: Sequence[str] = (), transfers: bool = True
) -> Row:
    """Run a case, and return its row.

    `brings` is the number of bytes that each host must receive, or None for any number. `loads` are the models that are loaded.
    Without `transfers`, the floor does not include rsync.
    """
    before, since = lab.state(), lab.now()
    seconds, tasks = lab.playbook(name, *options)
    calls = lab.calls(since)
    after = lab.state()
    bare = lab.rsync()
    floor = bare if transfers else 0.0
    if brings:
        floor += lab.everywhere("sh", "-c", f"sha256sum {' '.join(f'/home/*/{BARE}/{load}/1/weights.bin' for load in loads)}")
    floor += sum(lab.everywhere("python3", "-c", RELOAD, load) for load in loads)
    received = moved(before, after)
    if brings is not None and received < brings * len(lab.hosts):
        raise BenchError(f"{case}: the stores have {received} new bytes, expected {brings} on each of {len(lab.hosts)} hosts")
    row = {
        "case": case,
        "seconds": round(seconds, 2),
        "rsync_seconds": round(bare, 2),
        "floor_seconds": round(floor, 2),
        "ratio": round(seconds / bare, 2),
        "module_calls_per_host": calls,
        "bytes_moved": received,
        "models_reloaded": reloaded(before, after),
    }
    say(f"{case}: {seconds:.1f} s, floor {floor:.1f} s; the longest tasks:")
    for taken, task in tasks:
        print(f"  {taken:>6.1f} s  {task}")
    return row


def run(lab: Fleet) -> List[Row]:
    """Run all cases, and return their rows. Each case starts with the result of the previous case."""
    say("installing servers without models")
    lab.playbook("site.yml", "-e", '{"triton_models": []}')
    rows = [measure(lab, "first_sync", "models.yml", brings=sum(map(size_of, NAMES)), loads=NAMES)]
    rows.append(no_change(lab))
    kept = (REPOSITORY / ONE / "1/weights.bin").rename(BUILD / "weights.kept")
    write_weights(ONE)
    rows.append(measure(lab, "one_changed", "models.yml", brings=CHANGED, loads=[ONE]))
    # The hosts still have the old release, so the floor of a rollback includes no transfer.
    kept.rename(REPOSITORY / ONE / "1/weights.bin")
    back = ["-e", "rollback_to=previous", "-e", f"rollback_models={ONE}"]
    rows.append(measure(lab, "rollback", "rollback.yml", *back, loads=[ONE], transfers=False))
    return rows


def no_change(lab: Fleet) -> Row:
    """Return the median of several runs, which alternate with status.yml."""
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
    # The lab is removed after a signal, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: ended by a signal"))
    try:
        make_models()
        with Fleet() as lab:
            rows = run(lab)
    except BenchError as error:
        sys.exit(f"bench: {error}")
    finally:
        shutil.rmtree(REPOSITORY, ignore_errors=True)
        (BUILD / "weights.kept").unlink(missing_ok=True)
    (BUILD / "models.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(f"\n{table(rows)}\n")
    for words, reached in verdicts(rows):
        print(f"{words}: {'reached' if reached else 'MISSED'}")


if __name__ == "__main__":
    main()
