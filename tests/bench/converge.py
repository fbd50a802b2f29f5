#!/usr/bin/env python3
"""How long `site.yml` takes on a fleet that is as wanted, beside another tool that reads the same: `make bench-converge`.

On labs of their own with eight hosts and with two, converged once. Then `site.yml`, a deploy of pyinfra that reads the same facts
(read_by_pyinfra.py) and one bare ssh to every host at once take turns; the middle of each is the figure. With BEFORE=<commit> the
`site.yml` of that commit takes its turn, too. Prints a table, writes build/bench/converge.json. A missed target is shown; the run
fails when a playbook does, or when it changes anything.
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

# {hosts: how many times as long as pyinfra}
TARGETS = {8: 1.0, 2: 1.2}
ROUNDS = 7
PYINFRA = ROOT / "build/pyinfra/bin/python"
BEFORE = BUILD / "before"
Row = Dict[str, Any]


def middle(numbers: Sequence[float]) -> float:
    """The median; of an even number the lower one."""
    return sorted(numbers)[(len(numbers) - 1) // 2]


def verdicts(rows: Sequence[Row]) -> List[Tuple[str, bool]]:
    """(target in words, whether it was reached)."""
    found = []
    for row in rows:
        wanted = TARGETS[row["hosts"]]
        found.append((f"{row['hosts']} hosts: {row['ratio']} times pyinfra, wanted at most {wanted}", row["ratio"] <= wanted))
        if "before_seconds" in row:
            times = round(row["seconds"] / row["before_seconds"], 2)
            found.append((f"{row['hosts']} hosts: {times} times the commit before, wanted at most 1.05", times <= 1.05))
    return found


def table(rows: Sequence[Row]) -> str:
    """The rows as a person reads them."""
    lines = [f"{'hosts':>5} {'site.yml':>9} {'before':>7} {'pyinfra':>8} {'ssh':>6} {'ratio':>6} {'calls':>6}"]
    for row in rows:
        before = f"{row['before_seconds']:>7.2f}" if "before_seconds" in row else f"{'-':>7}"
        numbers = f"{row['seconds']:>9.2f} {before} {row['pyinfra_seconds']:>8.2f} {row['ssh_seconds']:>6.2f}"
        lines.append(f"{row['hosts']:>5} {numbers} {row['ratio']:>6.2f} {row['module_calls_per_host']:>6}")
    return "\n".join(lines)


class Fleet(Lab):
    """A converged lab, which is read again and again."""

    def __init__(self, hosts: int) -> None:
        super().__init__(hosts, {"npufleet_rollout_serial": ["100%"]})

    def ansible(self, checkout: Path, program: str, *arguments: str) -> Tuple[float, subprocess.CompletedProcess[str]]:
        """Seconds and end of a program of Ansible with the settings and the code of a checkout."""
        environment = {**self.environment, "ANSIBLE_CONFIG": "ansible.cfg", "ANSIBLE_NOCOLOR": "1"}
        del environment["ANSIBLE_CALLBACKS_ENABLED"]
        began = time.monotonic()
        command = [program, "-i", str(INVENTORY), *arguments]
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
        return time.monotonic() - began, done

    def site(self, checkout: Path = ROOT) -> float:
        """Seconds of `site.yml` of a checkout, which must not change anything."""
        seconds, done = self.ansible(checkout, "ansible-playbook", "playbooks/site.yml", "-e", json.dumps(self.variables))
        if done.returncode or any("changed=0" not in line for line in done.stdout.splitlines() if " : ok=" in line):
            raise BenchError(f"site.yml of {checkout} ended with {done.returncode}, wanted no change:\n{done.stdout[-3000:]}")
        return seconds

    def pyinfra(self, models: Sequence[str]) -> float:
        """Seconds of the deploy."""
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
        """Seconds of one new connection to every host at once."""
        began = time.monotonic()
        running = []
        for variables in self.hosts.values():
            target = f"{self.shared['ansible_user']}@{variables['ansible_host']}"
            command = f"ssh -o ControlPath=none {self.ssh_options()} {target} true"
            running.append(subprocess.Popen(command, shell=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        if any(process.wait() for process in running):
            raise BenchError("ssh reached not every host")
        return time.monotonic() - began


def measure(hosts: int, before: Optional[Path]) -> Row:
    """One row, of a lab that comes and goes with it."""
    with Fleet(hosts) as fleet:
        say(f"{hosts} hosts from nothing")
        fleet.playbook("site.yml")
        served = fleet.inside(next(iter(fleet.hosts)), "ls", "/var/lib/npufleet/served").split()
        # Whatever is only there from the second run on, such as connections and caches
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
            # Whoever comes first in a round changes: what one leaves in caches helps each of them
            turns = [lambda: seconds.append(fleet.site()), lambda: others.append(fleet.pyinfra(served))]
            if before:
                turns.append(lambda: earlier.append(fleet.site(before)))
            for turn in turns[number % len(turns) :] + turns[: number % len(turns)]:
                turn()
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
    """A work tree of another commit."""
    remove_checkout()
    subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(BEFORE), commit], cwd=ROOT, check=True)
    return BEFORE


def remove_checkout() -> None:
    subprocess.run(["git", "worktree", "remove", "--force", str(BEFORE)], cwd=ROOT, capture_output=True, check=False)


def say(message: str) -> None:
    print(f"bench: {message}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, choices=TARGETS, action="append", help="only with that many")
    wanted = parser.parse_args().hosts or list(TARGETS)
    # so that the lab is taken away
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: ended by a signal"))
    commit = os.environ.get("BEFORE")
    try:
        before = checkout_of(commit) if commit else None
        rows = [measure(hosts, before) for hosts in wanted]
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
