#!/usr/bin/env python3
"""Measure what a run costs the controller on fleets of 50, 200 and 1,000 hosts: `make bench-scale`.

The hosts are simulated (connection/simulated.py) and answer at once. ansible-playbook, the playbooks and the actions are the real
ones. A real fleet adds the time of ssh, which docs/scale.md calculates. With BEFORE=<commit>, each case also runs the playbooks of
that commit. The bench prints a table and writes build/bench/scale.json. It reports a missed target, and fails if an exit code is
wrong or if the summary of a run does not name exactly the bad hosts.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from bench_lab import BUILD, ROOT, BenchError
from converge import checkout_of, remove_checkout
from machine import descendants

HOSTS = (50, 200, 1000)
# Targets for 1,000 hosts: {case: seconds of CPU}, and MiB of memory of the controller in each case
CPU_TARGETS = {"site": 60.0, "status": 60.0, "site_bad": 60.0, "status_bad": 60.0}
MEMORY_TARGET = 512.0
TARGET_HOSTS = 1000
# A rollout takes about 15 times as long as a plan, and grows linearly.
LARGEST_ROLLOUT = 200
# Seconds between two measurements of the memory
INTERVAL = 0.25
# Lines at the end of the output in which an operator must find the bad hosts
LAST_LINES = 30
DIGEST = "0123456789abcdef" * 4
FLOOR = [{"name": "Call one module", "hosts": "npu_hosts", "gather_facts": False, "tasks": [{"ansible.builtin.ping": {}}]}]
Row = Dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A playbook, whether three hosts are bad, whether each host has a plan, and the expected exit code."""

    playbook: str
    bad: bool = False
    plan: bool = False
    code: int = 0


CASES = {
    "floor": Case("floor.yml"),
    "site": Case("site.yml"),
    "site_bad": Case("site.yml", bad=True, code=4),
    "status": Case("status.yml"),
    "status_bad": Case("status.yml", bad=True, code=4),
    "models": Case("models.yml", plan=True),
}


def names(hosts: int) -> List[str]:
    """Return the names of the hosts."""
    return [f"npu-{number:04}" for number in range(1, hosts + 1)]


def bad_hosts(hosts: int, case: Case) -> Dict[str, str]:
    """Return {host: what is wrong with it} for three hosts of a case, none of which is the first or the last."""
    every = names(hosts)
    third = "drift" if case.playbook == "status.yml" else "refused"
    return {every[hosts // 5]: "unreachable", every[hosts // 2]: third, every[hosts - 9]: "broken"} if case.bad else {}


def inventory(hosts: int, directory: Path) -> Row:
    """Return an inventory of simulated hosts that serve the seven models of the recorded state."""
    compiled = {"CA12/0.6": {"url": "https://artefacts.example.com/model.rbln", "sha256": DIGEST, "size": 100 << 20}}
    models: List[Row] = [{"name": name, "artefacts": compiled} for name in ("digits", "digits_guide", "resnet50", "resnet50_guide")]
    models += [{"name": name} for name in ("image_decode", "image_labels", "text")]
    variables = {
        "ansible_connection": "simulated",
        "ansible_become": False,
        "ansible_python_interpreter": sys.executable,
        "rbln_release": "24.01",
        "npufleet_npus": 2,
        "npufleet_card": "RBLN-CA12",
        "npufleet_rollout_serial": [1, "25%", "100%"],
        "npufleet_build_host": "elsewhere",
        "npufleet_lock_file": str(directory / "lock.json"),
        "npufleet_output_dir": str(directory / "output"),
        "inference_check_image": "sha256:1",
        "triton_models": models,
    }
    return {"npu_hosts": {"hosts": {name: {} for name in names(hosts)}, "vars": variables}, "monitoring_hosts": {"hosts": {}}}


class Memory(threading.Thread):
    """A thread that samples the memory of a process and its descendants. `peak` is in MiB, and counts each shared page once."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.peak = pid, 0.0
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(INTERVAL):
            self.peak = max(self.peak, sum(proportional(pid) for pid in descendants(self.pid)) / 1024)

    def stop(self) -> float:
        """Return the peak."""
        self._over.set()
        self.join()
        return self.peak


def proportional(pid: int) -> int:
    """Return the proportional set size of a process in KiB, or 0 for a process that has ended."""
    with suppress(OSError):
        size = re.search(r"^Pss: +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
        return int(size[1]) if size else 0
    return 0


def run(case: Case, hosts: int, checkout: Path) -> Row:
    """Run a playbook of a checkout. Return its exit code, its output, and the time and memory that it needed."""
    directory = Path(tempfile.mkdtemp(prefix="bench-scale-"))
    try:
        return _run(case, hosts, checkout, directory)
    finally:
        shutil.rmtree(directory)


def _run(case: Case, hosts: int, checkout: Path, directory: Path) -> Row:
    bench = ROOT / "tests/bench"
    labels = {"current": "0001-7ef9c828d9bd", "desired": "0002-04b87ec34adc"}
    model = {"concern": "models", "name": "digits", **labels, "action": "release"}
    fleet = {
        "actual": json.loads((bench / "fleet/actual.json").read_text()),
        "bad": bad_hosts(hosts, case),
        "plan": [model] if case.plan else [],
    }
    (directory / "fleet.json").write_text(json.dumps(fleet))
    (directory / "hosts.json").write_text(json.dumps(inventory(hosts, directory)))
    (directory / "floor.yml").write_text(json.dumps(FLOOR))
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")},
        "ANSIBLE_CONFIG": str(checkout / "ansible.cfg"),
        "ANSIBLE_HOME": str(directory / "ansible"),
        "ANSIBLE_CACHE_PLUGIN": "memory",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_CONNECTION_PLUGINS": str(bench / "connection"),
        "ANSIBLE_COLLECTIONS_PATH": str(checkout / "collections"),
        "NPUFLEET_SIMULATION": str(directory),
    }
    playbook = directory / case.playbook if case.playbook == "floor.yml" else checkout / "playbooks" / case.playbook
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    began = time.monotonic()
    with (directory / "log").open("wb") as log:
        actions = [(os.POSIX_SPAWN_DUP2, log.fileno(), 1), (os.POSIX_SPAWN_DUP2, log.fileno(), 2)]
        os.chdir(checkout)
        pid = os.posix_spawn(program, [program, "-i", f"{directory}/hosts.json", str(playbook)], environment, file_actions=actions)
    memory = Memory(pid)
    memory.start()
    _pid, status, used = os.wait4(pid, 0)
    seconds = time.monotonic() - began
    output = (directory / "log").read_text()
    return {
        "code": os.waitstatus_to_exitcode(status),
        "output": output,
        # The times of a process that was waited for include those of its own children.
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "seconds": round(seconds, 1),
        "peak_mib": round(memory.stop()),
        "lines": len(output.splitlines()),
    }


def wrong_names(output: str, bad: Sequence[str]) -> List[str]:
    """Return the hosts that the summary after the recap names although they are not bad, and the bad hosts that are missing."""
    summary = output.rpartition("\nSUMMARY")[2] if "\nSUMMARY" in output else ""
    named = set(re.findall(r"npu-\d{4}", summary))
    tail = set(re.findall(r"npu-\d{4}", "\n".join(output.splitlines()[-LAST_LINES:])))
    return sorted(named.symmetric_difference(bad) | (set(bad) - tail))


def measure(name: str, hosts: int, before: Optional[Path]) -> Row:
    """Return the row of a case. Raises BenchError for a wrong exit code or wrong names."""
    case = CASES[name]
    row: Row = {"case": name, "hosts": hosts}
    if before and name != "floor":
        earlier = run(case, hosts, before)
        row.update({f"before_{key}": earlier[key] for key in ("cpu_seconds", "peak_mib", "lines", "code")})
    found = run(case, hosts, ROOT)
    if found["code"] != case.code:
        raise BenchError(f"{name}, {hosts} hosts: exit code {found['code']}, expected {case.code}:\n{found['output'][-3000:]}")
    wrong = wrong_names(found["output"], list(bad_hosts(hosts, case))) if case.bad else []
    if wrong:
        raise BenchError(f"{name}, {hosts} hosts: wrong or missing in the summary: {', '.join(wrong)}:\n{found['output'][-3000:]}")
    return {**row, **{key: value for key, value in found.items() if key != "output"}}


def verdicts(rows: Sequence[Row]) -> List[Tuple[str, bool]]:
    """Return (target in words, True if it was reached) for each target."""
    results = []
    for row in rows:
        target = CPU_TARGETS.get(row["case"])
        if row["hosts"] == TARGET_HOSTS and target is not None:
            words = f"{row['case']}, {row['hosts']} hosts"
            results.append((f"{words}: {row['cpu_seconds']} CPU-s, expected under {target:.0f}", row["cpu_seconds"] < target))
            results.append((f"{words}: {row['peak_mib']} MiB, expected under {MEMORY_TARGET:.0f}", row["peak_mib"] < MEMORY_TARGET))
    return results


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table. The column `floor` is the CPU time as a multiple of one module call in the same fleet."""
    floors = {row["hosts"]: row["cpu_seconds"] for row in rows if row["case"] == "floor"}
    lines = [f"{'case':<11} {'hosts':>5} {'CPU-s':>7} {'before':>7} {'ms/host':>8} {'floor':>6} {'s':>7} {'MiB':>6} {'lines':>6}"]
    for row in rows:
        before = f"{row['before_cpu_seconds']:>7.1f}" if "before_cpu_seconds" in row else f"{'-':>7}"
        floor = floors.get(row["hosts"])
        times = f"{row['cpu_seconds'] / floor:>6.1f}" if floor else f"{'-':>6}"
        each = row["cpu_seconds"] * 1000 / row["hosts"]
        lines.append(
            f"{row['case']:<11} {row['hosts']:>5} {row['cpu_seconds']:>7.1f} {before} {each:>8.0f} {times} {row['seconds']:>7.1f} "
            f"{row['peak_mib']:>6} {row['lines']:>6}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, action="append", help=f"only with this number of hosts, {HOSTS[0]} or more")
    parser.add_argument("--case", choices=CASES, action="append", help="only this case")
    arguments = parser.parse_args()
    commit = os.environ.get("BEFORE")
    rows: List[Row] = []
    try:
        before = checkout_of(commit) if commit else None
        for hosts in arguments.hosts or HOSTS:
            for name in arguments.case or CASES:
                if CASES[name].plan and hosts > LARGEST_ROLLOUT:
                    continue
                print(f"bench: {name}, {hosts} hosts", flush=True)
                rows.append(measure(name, hosts, before))
    except BenchError as error:
        sys.exit(f"bench: {error}")
    finally:
        remove_checkout()
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / "scale.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(f"\n{table(rows)}\n")
    for words, reached in verdicts(rows):
        print(f"{words}: {'reached' if reached else 'MISSED'}")


if __name__ == "__main__":
    main()
