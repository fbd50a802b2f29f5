#!/usr/bin/env python3
"""Measure the seconds from a fault to its alert: `make bench-alerts`.

A separate lab has two hosts behind a load balancer. Its monitoring host runs Prometheus and Alertmanager with the default intervals
(molecule/monitoring/inventory). Clients send requests at a fixed rate. The bench injects one fault after the other. It waits until
the alerts have reached a webhook receiver, and then repairs the fault. The times to firing and to the receiver begin with the
fault. The time to resolve begins with the repair. Targets: critical alerts fire within 60 s, alerts from the probe within 150 s,
and warnings within 5 minutes. The bench prints a table and writes build/bench/alerts.json. It reports a missed target, and fails if
an alert is missing. With --idle, the bench first waits for some time without a fault, in which no alert should fire. With --cost,
it first compares the processor time of a host with monitoring and without. Monitoring should take at most 2 % of a core.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from typing import Any, Dict, List, Sequence, Tuple

from alert_faults import CASES, DISK_ALERTS, AlertLab, NotObserved, Observation, play, wait_for_value
from balancer_certificate import CERTIFICATE, certificate
from bench_lab import BUILD, INVENTORY, ROOT, BenchError, Lab
from open_loop import OpenLoop

HOSTS = 2
RATES = {"http": 20.0, "grpc": 20.0, "stream": 1.0}
MONITORING_UNITS = "npufleet-metrics.timer npufleet-probe.timer prometheus-node-exporter.service"
# The largest share of a core of a host that monitoring should take
MAX_COST = 0.02
FLEET = ROOT / "molecule/monitoring/inventory/hosts.yml"
TARGET = BUILD / "alerts.json"
Row = Dict[str, Any]


class Fleet(Lab):
    """Two hosts behind a load balancer, with a monitoring host."""

    def __init__(self) -> None:
        super().__init__(HOSTS, {})
        self.environment.update(LAB_BALANCERS="1", LAB_RELEASE="lab-24.10")

    def __enter__(self) -> Fleet:
        # Only the first host is installed. The other host is a copy of it.
        self.environment["HOSTS"] = "1"
        self._lab("up")
        say("installing the first host")
        self.site("--tags", "driver,engine,image")
        self.environment.update(HOSTS=str(HOSTS), LAB_COPIES="1")
        super().__enter__()
        return self

    def site(self, *options: str) -> None:
        self.run(["ansible-playbook", "-i", str(INVENTORY), *options, str(ROOT / "playbooks/site.yml")])

    def inventory(self) -> Dict[str, Any]:
        inventory: Dict[str, Any] = json.loads(self.run([str(INVENTORY / "hosts.py")]))
        return inventory


def row_of(observation: Observation) -> Row:
    """Return the row of an alert in the file of results."""
    return {
        "alert": observation.alert,
        "severity": observation.severity,
        "seconds_to_firing": observation.to_firing,
        "seconds_to_receiver": observation.to_receiver,
        "seconds_to_resolve": observation.to_resolve,
    }


def table(observations: Sequence[Observation]) -> str:
    """Return the observations as a table for the terminal."""
    lines = [f"{'fault':<20} {'alert':<30} {'severity':<9} {'firing':>7} {'receiver':>9} {'resolve':>8}  target"]
    for entry in observations:
        times = f"{entry.to_firing:>7} {entry.to_receiver:>9} {entry.to_resolve:>8}"
        verdict = "reached" if entry.to_firing <= entry.target else "MISSED"
        lines.append(f"{entry.fault:<20} {entry.alert:<30} {entry.severity:<9} {times}  {entry.target} s: {verdict}")
    return "\n".join(lines)


def say(message: str) -> None:
    print(f"bench: {message}", flush=True)


def measure_idle(lab: AlertLab, seconds: float) -> None:
    """Print which alerts fire while no fault is injected."""
    lab.wait_until_quiet(f'ALERTS{{alertname!~"{DISK_ALERTS}"}}')
    began = time.time()
    say(f"no fault for {seconds:.0f} s")
    wait_for_value(lambda: time.time() > began + seconds or None, 2 * seconds, "the end of the idle time")
    names = {found["labels"]["alertname"] for found in lab.firing_since(began, {})} - set(DISK_ALERTS.split("|"))
    fired = ", ".join(sorted(names)) or "no alert"
    say(f"idle: {fired} fired, expected no alert: {'MISSED' if names else 'reached'}")


def cpu_seconds(stats: str, ticks_per_second: int) -> float:
    """Return the processor time of all processes from their lines of /proc/PID/stat, including children that have ended."""
    total = 0
    for line in stats.splitlines():
        # The name of a program may have spaces and parentheses. After it come the state and ten more fields.
        total += sum(int(field) for field in line.rpartition(") ")[2].split()[11:15])
    return total / ticks_per_second


def measure_cost(lab: AlertLab, host: str, seconds: float) -> None:
    """Print the share of a core that monitoring takes from a host without requests, including scrapes and the probe's container."""

    def share() -> float:
        def read() -> float:
            # A process may end while its file is read.
            return cpu_seconds(
                lab.shell(host, "cat /proc/[0-9]*/stat 2> /dev/null || true"), int(lab.shell(host, "getconf CLK_TCK"))
            )

        began, before = time.monotonic(), read()
        wait_for_value(lambda: time.monotonic() > began + seconds or None, 2 * seconds, "the end of the measurement")
        return (read() - before) / (time.monotonic() - began)

    with_monitoring = share()
    try:
        lab.shell(lab.monitor, "systemctl stop prometheus")
        lab.shell(host, f"systemctl stop {MONITORING_UNITS}")
        without = share()
    finally:
        lab.shell(host, f"systemctl start {MONITORING_UNITS}")
        lab.shell(lab.monitor, "systemctl start prometheus")
    cost = with_monitoring - without
    verdict = "reached" if cost <= MAX_COST else "MISSED"
    say(
        f"monitoring takes {cost:.1%} of a core of {host} ({with_monitoring:.1%} with, {without:.1%} without), "
        f"expected at most {MAX_COST:.0%}: {verdict}"
    )


def measure(fleet: Fleet, cases: Sequence[str], idle: float, cost: float) -> Tuple[List[Observation], List[str]]:
    """Return the alerts of all cases, and the errors of cases without an alert. Write the results after each case."""
    CERTIFICATE.write_text(certificate(365))
    say("installing all hosts")
    fleet.site("-i", str(FLEET))
    lab = AlertLab(fleet.inventory())
    lab.install()
    observations: List[Observation] = []
    errors: List[str] = []
    if cost:
        measure_cost(lab, "npu1", cost)
    with OpenLoop(lab.addresses["lb1"], RATES, CERTIFICATE):
        if idle:
            measure_idle(lab, idle)
        for case in CASES:
            if case.name not in cases:
                continue
            say(f"fault {case.name} on {case.host}")
            try:
                observations += play(lab, case)
            except NotObserved as error:
                errors.append(str(error))
                say(errors[-1])
            TARGET.write_text(json.dumps([row_of(found) for found in observations], indent=1) + "\n")
    return observations, errors


def main() -> None:
    names = [case.name for case in CASES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=names, default=names, help="faults to inject")
    parser.add_argument("--idle", type=float, default=0, metavar="SECONDS", help="seconds without a fault before the faults (0)")
    parser.add_argument(
        "--cost", type=float, default=0, metavar="SECONDS", help="measure the cost of monitoring for twice this time (0)"
    )
    arguments = parser.parse_args()
    # The lab is removed after a signal, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: ended by a signal"))
    BUILD.mkdir(parents=True, exist_ok=True)
    try:
        with Fleet() as fleet:
            observations, errors = measure(fleet, arguments.only, arguments.idle, arguments.cost)
    except (BenchError, NotObserved) as error:
        sys.exit(f"bench: {error}")
    print(f"\n{table(observations)}")
    if errors:
        sys.exit("bench: " + "\n".join(errors))


if __name__ == "__main__":
    main()
