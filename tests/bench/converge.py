#!/usr/bin/env python3
"""Measure how long `site.yml` takes on a fleet in sync, compared with another tool: `make bench-converge`.

The bench uses separate, converged labs with eight hosts and with two hosts. In each of several rounds, it runs `site.yml`, a deploy
of pyinfra that reads the same facts (read_by_pyinfra.py), and one bare ssh to every host at once. The results are the medians. With
BEFORE=<commit>, it also runs the `site.yml` of that commit. The bench prints a table and writes build/bench/converge.json. It
reports a missed target, and fails if a playbook fails or changes a host.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from bench_lab import BUILD, INVENTORY, ROOT, BenchError, Lab

# {hosts: largest ratio of the time of site.yml to the time of pyinfra}
TARGETS = {8: 1.0, 2: 1.2}
ROUNDS = 7
PYINFRA = ROOT / "build/pyinfra/bin/python"
BEFORE = BUILD / "before"
Row = Dict[str, Any]


def middle(numbers: Sequence[float]) -> float:
    """Return the median. Of two middle numbers, return the lower one."""
    return sorted(numbers)[(len(numbers) - 1) // 2]


def verdicts(rows: Sequence[Row]) -> List[Tuple[str, bool]]:
    """Return (target in words, True if it was reached) for each target."""
    results = []
    for row in rows:
        limit = TARGETS[row["hosts"]]
        results.append((f"{row['hosts']} hosts: {row['ratio']} times pyinfra, expected at most {limit}", row["ratio"] <= limit))
        if "before_seconds" in row:
            times = round(row["seconds"] / row["before_seconds"], 2)
            results.append((f"{row['hosts']} hosts: {times} times the commit before, expected at most 1.05", times <= 1.05))
    return results


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table for the terminal."""
    lines = [f"{'hosts':>5} {'site.yml':>9} {'before':>7} {'pyinfra':>8} {'ssh':>6} {'ratio':>6} {'calls':>6}"]
    for row in rows:
        before = f"{row['before_seconds']:>7.2f}" if "before_seconds" in row else f"{'-':>7}"
        numbers = f"{row['seconds']:>9.2f} {before} {row['pyinfra_seconds']:>8.2f} {row['ssh_seconds']:>6.2f}"
        lines.append(f"{row['hosts']:>5} {numbers} {row['ratio']:>6.2f} {row['module_calls_per_host']:>6}")
    return "\n".join(lines)


class Fleet(Lab):
    """A converged lab whose state is read many times."""

    def __init__(self, hosts: int) -> None:
        super().__init__(hosts, {"npufleet_rollout_serial": ["100%"]})

    def ansible(self, checkout: Path, program: str, *arguments: str) -> Tuple[float, subprocess.CompletedProcess[str]]:
        """Run a program of Ansible with the settings and the code of a checkout. Return its seconds and its result."""
        environment = {**self.environment, "ANSIBLE_CONFIG": "ansible.cfg", "ANSIBLE_NOCOLOR": "1"}
        del environment["ANSIBLE_CALLBACKS_ENABLED"]
        began = time.monotonic()
        command = [program, "-i", str(INVENTORY), *arguments]
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
        return time.monotonic() - began, done

    def site(self, checkout: Path = ROOT) -> float:
        """Run `site.yml` of a checkout, and return its seconds. Raises BenchError if the playbook changes a host."""
        seconds, done = self.ansible(checkout, "ansible-playbook", "playbooks/site.yml", "-e", json.dumps(self.variables))
        if done.returncode or any("changed=0" not in line for line in done.stdout.splitlines() if " : ok=" in line):
            raise BenchError(f"site.yml of {checkout} ended with {done.returncode}, expected no change:\n{done.stdout[-3000:]}")
        return seconds

    def pyinfra(self, models: Sequence[str]) -> float:
        """Run the deploy of pyinfra, and return its seconds."""
        hosts = [
            [
                name,
                {
                    "ssh_hostname": variables["ansible_host"],
                    "ssh_user": self.shared["ansible_user"],
                    "ssh_key": self.shared["ansible_ssh_private_key_file"],
                    "ssh_strict_host_key_checking": "no",
                    "_sudo_password": self.shared["ansible_become_password"],
                },
            ]
            for name, variables in self.hosts.items()
        ]
        command = [str(PYINFRA), str(ROOT / "tests/bench/read_by_pyinfra.py"), *models]
        began = time.monotonic()
        done = subprocess.run(command, input=json.dumps(hosts), capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchError(f"pyinfra ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
        return time.monotonic() - began

    def ssh(self) -> float:
        """Open a new connection to every host at once, and return the seconds."""
        began = time.monotonic()
        running = []
        for variables in self.hosts.values():
            target = f"{self.shared['ansible_user']}@{variables['ansible_host']}"
            command = f"ssh -o ControlPath=none {self.ssh_options()} {target} true"
            running.append(subprocess.Popen(command, shell=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        if any(process.wait() for process in running):
            raise BenchError("ssh did not reach every host")
        return time.monotonic() - began


def measure(hosts: int, before: Optional[Path]) -> Row:
    """Return the row of a lab with this number of hosts. The lab exists only for this row."""
    with Fleet(hosts) as fleet:
        say(f"installing {hosts} hosts")
        fleet.playbook("site.yml")
        served = fleet.inside(next(iter(fleet.hosts)), "ls", "/var/lib/npufleet/served").split()
        # The first run of each program creates caches and connections, so it is not measured.
        for checkout in filter(None, (before, ROOT)):
            fleet.site(checkout)
        fleet.pyinfra(served)
        since = fleet.now()
        fleet.site()
        calls = fleet.calls(since)
        seconds: List[float] = []
        earlier: List[float] = []
        others: List[float] = []
        bare: List[float] = []
        for number in range(ROUNDS):
            # The order changes in each round, because each program profits from caches that the previous program has filled.
            programs = [lambda: seconds.append(fleet.site()), lambda: others.append(fleet.pyinfra(served))]
            if before:
                programs.append(lambda: earlier.append(fleet.site(before)))
            for program in programs[number % len(programs) :] + programs[: number % len(programs)]:
                program()
            bare.append(fleet.ssh())
    row = {
        "case": "no_change",
        "hosts": hosts,
        "seconds": round(middle(seconds), 2),
        "module_calls_per_host": calls,
        "pyinfra_seconds": round(middle(others), 2),
        "ssh_seconds": round(middle(bare), 2),
        "ratio": round(middle(seconds) / middle(others), 2),
    }
    return {**row, "before_seconds": round(middle(earlier), 2)} if before else row


def checkout_of(commit: str) -> Path:
    """Create a work tree of another commit, and return its directory."""
    remove_checkout()
    subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(BEFORE), commit], cwd=ROOT, check=True)
    return BEFORE


def remove_checkout() -> None:
    subprocess.run(["git", "worktree", "remove", "--force", str(BEFORE)], cwd=ROOT, capture_output=True, check=False)


def say(message: str) -> None:
    print(f"bench: {message}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, choices=TARGETS, action="append", help="only with this number of hosts")
    counts = parser.parse_args().hosts or list(TARGETS)
    # The lab is removed after a signal, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: ended by a signal"))
    commit = os.environ.get("BEFORE")
    try:
        before = checkout_of(commit) if commit else None
        rows = [measure(hosts, before) for hosts in counts]
    except BenchError as error:
        sys.exit(f"bench: {error}")
    finally:
        remove_checkout()
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / "converge.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(f"\n{table(rows)}\n")
    for words, reached in verdicts(rows):
        print(f"{words}: {'reached' if reached else 'MISSED'}")


if __name__ == "__main__":
    main()
