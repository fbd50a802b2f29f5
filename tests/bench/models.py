#!/usr/bin/env python3
"""How long a change of models takes beside a bare rsync of the same bytes: `make bench-models`.

Ten models of 2 GiB together on a lab of its own with four hosts, in mode explicit. Cases: `first_sync`, `no_change`,
`one_changed` (the model of 100 MiB) and `rollback` of that. Each runs as an operator runs it; then one rsync a host, all at once,
brings the same bytes to a bare directory. Bytes moved are new files in the hosts' stores, and which models were loaded is read
from the servers' own logs. Prints a table, writes build/bench/models.json. A missed target is shown; the run fails when a
playbook does, or when a host does not have what was brought to it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/bench"
PLACE = BUILD / "models"
INVENTORY = ROOT / "inventories/lab"
HOSTS = 4
MIB = 1 << 20
TOTAL, CHANGED = 2048 * MIB, 100 * MIB
NAMES = [f"bench{number}" for number in range(10)]
# The one that changes
ONE = NAMES[0]
STORE = "/var/lib/npufleet/blobs"
BARE = "bare"
RATIO = 1.3
Row = Dict[str, Any]


class BenchError(Exception):
    """Why there is no figure."""


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
    return sum(size for host, one in after.items() for inode, size in one.blobs.items() if inode not in before[host].blobs)


def reloaded(before: Mapping[str, State], after: Mapping[str, State]) -> List[str]:
    """Models that any server loaded meanwhile; those of a new server are all that it loaded."""
    names = set()
    for host, one in after.items():
        known = before[host].loads if before[host].server == one.server else {}
        names |= {name for name, count in one.loads.items() if count > known.get(name, 0)}
    return sorted(names)


def verdicts(rows: Sequence[Row]) -> List[Tuple[str, bool]]:
    """(target in words, whether it was reached)."""
    found = {row["case"]: row for row in rows}
    targets: List[Tuple[str, bool]] = []
    if "one_changed" in found:
        one = found["one_changed"]
        targets.append((f"one_changed: ratio {one['ratio']}, wanted at most {RATIO}", one["ratio"] <= RATIO))
        targets.append((f"one_changed: reloaded {one['models_reloaded']}, wanted {[ONE]}", one["models_reloaded"] == [ONE]))
    if "no_change" in found:
        one = found["no_change"]
        quiet = not one["bytes_moved"] and not one["models_reloaded"]
        targets.append((f"no_change: {one['bytes_moved']} bytes moved, reloaded {one['models_reloaded']}, wanted none", quiet))
    if "rollback" in found:
        one = found["rollback"]
        targets.append((f"rollback: {one['bytes_moved']} bytes moved, wanted 0", not one["bytes_moved"]))
        targets.append((f"rollback: reloaded {one['models_reloaded']}, wanted {[ONE]}", one["models_reloaded"] == [ONE]))
    return targets


def table(rows: Sequence[Row]) -> str:
    """The rows as a person reads them."""
    lines = [f"{'case':<12} {'seconds':>8} {'rsync':>8} {'ratio':>6} {'MiB moved':>10}  reloaded"]
    for row in rows:
        numbers = f"{row['seconds']:>8.1f} {row['rsync_seconds']:>8.1f} {row['ratio']:>6.2f} {row['bytes_moved'] / MIB:>10.1f}"
        lines.append(f"{row['case']:<12} {numbers}  {', '.join(row['models_reloaded']) or '-'}")
    return "\n".join(lines)


def longest(output: str) -> List[Tuple[float, str]]:
    """(seconds, task) of what `profile_tasks` lists at the end of a playbook, longest first."""
    found = re.findall(r"^(\S.*?) -{2,} *([\d.]+)s$", output, re.MULTILINE)
    return [(float(seconds), name.rpartition(" : ")[2]) for name, seconds in found]


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


class Lab:
    """The lab of the bench, which goes when it ends."""

    def __init__(self) -> None:
        self.environment = {**os.environ, "LAB": "bench", "HOSTS": str(HOSTS), "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
        self.environment.update(ANSIBLE_CALLBACKS_ENABLED="ansible.posix.profile_tasks", PROFILE_TASKS_TASK_OUTPUT_LIMIT="6")
        self.hosts: Dict[str, Mapping[str, Any]] = {}
        self.shared: Mapping[str, Any] = {}

    def __enter__(self) -> Lab:
        self._lab("up")
        said = json.loads(self._run([str(INVENTORY / "hosts.py")]))
        self.shared = said["all"]["vars"]
        self.hosts = {name: said["_meta"]["hostvars"][name] for name in said["npu_hosts"]["hosts"]}
        return self

    def __exit__(self, *_why: object) -> None:
        self._lab("down")

    def _lab(self, command: str) -> None:
        self._run([sys.executable, str(ROOT / "lab/lab.py"), command])

    def _run(self, command: Sequence[str]) -> str:
        done = subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchError(f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
        return done.stdout

    def playbook(self, name: str, *options: str) -> Tuple[float, List[Tuple[float, str]]]:
        """(seconds that a playbook takes, as its operator sees it, its longest tasks)."""
        command = ["ansible-playbook", "-i", str(INVENTORY), str(ROOT / "playbooks" / name)]
        began = time.monotonic()
        output = self._run([*command, "-e", json.dumps(VARIABLES), *options])
        return time.monotonic() - began, longest(output)

    def inside(self, host: str, *command: str) -> str:
        """Output of a command on a host, as root, through the engine under the lab."""
        return self._run([*self.shared["lab_docker"], "exec", self.hosts[host]["lab_container"], *command])

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
        options = f"ssh -i {self.shared['ansible_ssh_private_key_file']} {self.shared['ansible_ssh_common_args']}"
        began = time.monotonic()
        running = []
        for host in self.hosts.values():
            target = f"{self.shared['ansible_user']}@{host['ansible_host']}:{BARE}/"
            command = ["rsync", "--archive", "--delete", "--whole-file", "-e", options, f"{PLACE}/", target]
            running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
        errors = [one.communicate()[1] for one in running]
        seconds = time.monotonic() - began
        if any(one.returncode for one in running):
            raise BenchError("rsync: " + "\n".join(one for one in errors if one))
        return seconds


VARIABLES = {
    "npufleet_model_repository": str(PLACE),
    "triton_server_model_control_mode": "explicit",
    # The bench asks nothing: what is proven here is what is served.
    "inference_check_require_checks": False,
    "npufleet_rollout_serial": ["100%"],
    "triton_models": [{"name": name} for name in NAMES],
}


def measure(lab: Lab, case: str, name: str, *options: str, brings: Optional[int] = None) -> Row:
    """One row. `brings` are the bytes that each host has to have got, None for any number."""
    before = lab.state()
    seconds, tasks = lab.playbook(name, *options)
    after = lab.state()
    bare = lab.rsync()
    came = moved(before, after)
    if brings is not None and came < brings * len(lab.hosts):
        raise BenchError(f"{case}: {came} bytes came into the stores, wanted {brings} on each of {len(lab.hosts)} hosts")
    row = {
        "case": case,
        "seconds": round(seconds, 2),
        "rsync_seconds": round(bare, 2),
        "ratio": round(seconds / bare, 2),
        "bytes_moved": came,
        "models_reloaded": reloaded(before, after),
    }
    say(f"{case}: {seconds:.1f} s, rsync {bare:.1f} s; the longest tasks:")
    for taken, task in tasks:
        print(f"  {taken:>6.1f} s  {task}")
    return row


def run(lab: Lab) -> List[Row]:
    """All cases, one after the other: each starts from what the one before it left."""
    say("a server without models")
    lab.playbook("site.yml", "-e", '{"triton_models": []}')
    rows = [measure(lab, "first_sync", "models.yml", brings=sum(map(size_of, NAMES)))]
    rows.append(measure(lab, "no_change", "models.yml"))
    kept = (PLACE / ONE / "1/weights.bin").rename(BUILD / "weights.kept")
    write_weights(ONE)
    rows.append(measure(lab, "one_changed", "models.yml", brings=CHANGED))
    # What rsync brings back in this case are the bytes that the hosts still have.
    kept.rename(PLACE / ONE / "1/weights.bin")
    rows.append(measure(lab, "rollback", "rollback.yml", "-e", "rollback_to=previous", "-e", f"rollback_models={ONE}"))
    return rows


def say(message: str) -> None:
    print(f"bench: {message}", flush=True)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    # so that the lab is taken away
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: ended by a signal"))
    try:
        make_models()
        with Lab() as lab:
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
