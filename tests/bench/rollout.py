#!/usr/bin/env python3
"""Count the requests of clients that fail while a fleet changes: `make bench-rollout`.

A separate lab has four hosts behind one load balancer. Clients send requests at a fixed rate and send no request twice: over HTTP,
over gRPC, with a stream of answers, and on one bidirectional stream that stays open. Every answer is compared with the expected
one. The bench runs each case as an operator does, until at least 10,000 requests are answered. In most cases, no request should
fail. In `bad_release`, at most the share of the canary should fail, and in `host_dies` only requests that were sent before the host
died. The bench prints a table and writes build/bench/rollout.json. It reports a missed target, and fails if a playbook ends with
another code than expected.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Sequence

import yaml
from bench_lab import BUILD, INVENTORY, ROOT, BenchError, Lab
from open_loop import SMALLEST, OpenLoop, Span

HOSTS = 4
RATES = {"http": 50.0, "grpc": 45.0, "stream": 5.0}
REQUESTS = 10_000
# Seconds of the window before each case, and the number of reloads of the balancer with the seconds between them
BEFORE, RELOADS, BETWEEN = 20.0, 20, 4.0
PLACE = BUILD / "rollout"
CANARY = 10
VARIABLES = {
    "rollout_repository": str(ROOT / "tests/faults/models"),
    "triton_models": [{"name": "alpha", "repository": "{{ rollout_repository }}"}, {"name": "stream"}],
    "inference_check_checks_dir": [str(ROOT / "molecule/models/checks"), str(ROOT / "files/checks")],
    "npufleet_drain_timeout": 10,
    "npufleet_judge_seconds": 15,
    "npufleet_judge_requests": 50,
    "npufleet_canary_weight": CANARY,
    "preflight_disk_models": 0,
    # The lab has archives only for its own rows. The row `new-image` uses the archive of lab-26.05.
    "bench_archive": "{{ lab_triton_archives[rbln_release | replace('new-image', 'lab-26.05')] }}",
    "triton_image_base_archive": "{{ lab_artefact_url }}/{{ bench_archive.path }}",
    "triton_image_base_archive_sha256": "{{ bench_archive.sha256 }}",
}
# The row of the lab, a row with the image of the next row and the old driver, and the next row
OLD, NEW_IMAGE, NEW = "lab-24.01", "new-image", "lab-26.05"
FAULT = f"""        responses = []
        if max(abs(pb_utils.get_input_tensor_by_name(r, 'X').as_numpy()).max() for r in requests) >= {SMALLEST}:
            raise ValueError('a fault')
"""
Row = Dict[str, Any]


class Fleet(Lab):
    """Four hosts behind a load balancer. `current` are variables that earlier cases have changed."""

    def __init__(self) -> None:
        super().__init__(HOSTS, {**VARIABLES, "npufleet_extra_releases": releases()})
        self.environment.update(LAB_BALANCERS="1", LAB_MONITORING="0", LAB_RELEASE=OLD, LAB_NEXT=NEW)
        self.current: Dict[str, Any] = {}

    def __enter__(self) -> Fleet:
        # Only the first host is installed. The other hosts are copies of it.
        self.environment["HOSTS"] = "1"
        self._lab("up")
        say("installing the first host")
        self.run(["ansible-playbook", "-i", str(INVENTORY), str(ROOT / "playbooks/site.yml"), "--tags", "driver,engine,image"])
        self.environment.update(HOSTS=str(HOSTS), LAB_COPIES="1")
        super().__enter__()
        return self

    def address(self) -> str:
        inventory = json.loads(self.run([str(INVENTORY / "hosts.py")]))
        self.hosts = {**self.hosts, "lb1": inventory["_meta"]["hostvars"]["lb1"]}
        return str(self.hosts["lb1"]["ansible_host"])

    def change(self, name: str, *options: str, code: int = 0, **variables: Any) -> str:
        """Return the output of a playbook that has to end with this code."""
        self.current.update(variables)
        command = ["ansible-playbook", "-i", str(INVENTORY), str(ROOT / "playbooks" / name), *options]
        command += ["-e", json.dumps({**self.variables, **self.current})]
        done = subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False)
        (BUILD / "rollout.log").write_text(done.stdout + done.stderr)
        if done.returncode != code:
            raise BenchError(f"{name} ended with {done.returncode}, expected {code}:\n{(done.stdout + done.stderr)[-4000:]}")
        return done.stdout

    def tried(self, host: str, *command: str) -> bool:
        """Return True if a command on a host succeeds."""
        full = [*self.shared["lab_docker"], "exec", self.hosts[host]["lab_container"], *command]
        return subprocess.run(full, capture_output=True, check=False).returncode == 0

    def power(self, host: str, action: str) -> None:
        self.run([*self.shared["lab_docker"], action, self.hosts[host]["lab_container"]])


def releases() -> Dict[str, Any]:
    """Return the release rows of the lab, and a row with the old driver and the new image."""
    rows: Dict[str, Any] = yaml.safe_load((INVENTORY / "group_vars/all.yml").read_text())["npufleet_extra_releases"]
    return {**rows, NEW_IMAGE: {**rows[NEW], "driver": rows[OLD]["driver"], "cards": rows[OLD]["cards"]}}


def edition(number: int, execute: str = "") -> str:
    """Return a repository with another edition of the model alpha."""
    target = PLACE / str(number)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT / "tests/faults/models", target)
    file = target / "alpha/1/model.py"
    text = file.read_text().replace("EDITION = 1", f"EDITION = {number}")
    file.write_text(text.replace("        responses = []\n", execute) if execute else text)
    return str(target)


def upgrade(lab: Fleet, row: str) -> None:
    """Upgrade the hosts to another release row."""
    lab.current.pop("rbln_release", None)
    lab.change("upgrade.yml", "-e", f"upgrade_to={row}", "-e", "upgrade_confirm=true")
    lab.current["rbln_release"] = row


def model(lab: Fleet) -> None:
    lab.change("models.yml", rollout_repository=edition(2))


def options(lab: Fleet) -> None:
    lab.change("site.yml", triton_server_extra_args=["--http-thread-count=9"])


def rollback(lab: Fleet) -> None:
    lab.change("rollback.yml", "-e", "rollback_to=previous", "-e", "rollback_models=alpha")
    lab.change("rollback.yml", "-e", "rollback_forget=true")
    lab.current["rollout_repository"] = VARIABLES["rollout_repository"]


def bad_release(lab: Fleet) -> None:
    kept = lab.current.get("rollout_repository", VARIABLES["rollout_repository"])
    output = lab.change("models.yml", code=2, rollout_repository=edition(3, FAULT))
    lab.current["rollout_repository"] = kept
    if "the verdict about the requests of clients is bad" not in output:
        raise BenchError(f"bad_release: no bad verdict:\n{output[-4000:]}")


def balancer_reload(lab: Fleet) -> None:
    for _reload in range(RELOADS):
        lab.inside("lb1", "systemctl", "reload", "haproxy")
        time.sleep(BETWEEN)


def reboot(lab: Fleet) -> None:
    """Take one host out of service, restart it, and return it."""
    lab.change("maintenance.yml", "--limit", "npu4", "-e", "maintenance=out", "-e", "maintenance_reason=restart")
    lab.power("npu4", "restart")
    # The server stays stopped until the host is back in service.
    wait_until(lambda: lab.tried("npu4", "systemctl", "is-active", "ssh", "docker"), "npu4 is not up")
    lab.change("maintenance.yml", "--limit", "npu4", "-e", "maintenance=in")


def host_dies(lab: Fleet) -> float:
    """Kill a host and start it again. Return the time at which the host was dead."""
    lab.power("npu4", "kill")
    dead = time.monotonic()
    time.sleep(30)
    lab.power("npu4", "start")
    wait_until_up(lab)
    return dead


def wait_until_up(lab: Fleet) -> None:
    """Wait until the server of the host answers after a start."""
    url = f"http://{lab.hosts['npu4']['ansible_host']}:8000/v2/models/alpha/ready"
    wait_until(lambda: subprocess.run(["curl", "-sf", url], check=False).returncode == 0, "npu4 does not answer")


def wait_until(condition: Callable[[], bool], message: str) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        if time.monotonic() > deadline:
            raise BenchError(f"{message} after 300 s")
        time.sleep(1)


# {case: function that runs it}. Only requests that were sent before the returned time may fail. None means that no request may
# fail.
CASES: Dict[str, Callable[[Fleet], Optional[float]]] = {
    "model": model,
    "options": options,
    "image_up": lambda lab: upgrade(lab, NEW_IMAGE),
    "driver": lambda lab: upgrade(lab, NEW),
    "image_down": lambda lab: upgrade(lab, OLD),
    "bad_release": bad_release,
    "rollback": rollback,
    "balancer_reload": balancer_reload,
    "reboot": reboot,
    "host_dies": host_dies,
}


def measure(lab: Fleet, clients: OpenLoop, case: str) -> Row:
    """Return the row of a case."""
    with clients.span() as before:
        time.sleep(BEFORE)
    began = time.monotonic()
    with clients.span() as span:
        dead = CASES[case](lab)
        seconds = time.monotonic() - began
        while len(span.samples) < REQUESTS:
            time.sleep(1)
    row = row_of(case, before, span, seconds)
    say(f"{json.dumps(row)}")
    for line in [*before.failed, *span.failed, *span.wrong][:10]:
        say(f"  failed: {line}")
    say(f"{case}: {target_of(row, span, dead)}")
    return row


def row_of(case: str, before: Span, span: Span, seconds: float) -> Row:
    return {
        "case": case,
        "requests": len(span.samples),
        "failed": len(span.failed) + len(span.wrong),
        "streams": sum(sample.kind == "stream" for sample in span.samples) + span.closed + 1,
        "streams_closed": span.closed,
        "p99_ms_before": before.quantile_ms(0.99),
        "p99_ms_during": span.quantile_ms(0.99),
        "seconds": round(seconds, 1),
    }


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table for the terminal."""
    lines = [
        f"{'case':<16} {'requests':>8} {'failed':>6} {'streams':>7} {'closed':>6} {'p99 before':>10} {'during':>8} {'seconds':>8}"
    ]
    for row in rows:
        numbers = f"{row['requests']:>8} {row['failed']:>6} {row['streams']:>7} {row['streams_closed']:>6}"
        lines.append(f"{row['case']:<16} {numbers} {row['p99_ms_before']:>10} {row['p99_ms_during']:>8} {row['seconds']:>8}")
    return "\n".join(lines)


def target_of(row: Row, span: Span, dead: Optional[float]) -> str:
    """Return a sentence about the target of a case. Requests that were sent before the time `dead` may fail."""
    if dead is not None:
        late = [sample for sample in span.samples if sample.error and sample.due > dead]
        return f"{len(late)} of {row['failed']} failed requests were sent to the dead host, expected 0: {reached(not late)}"
    allowed = round(row["requests"] * CANARY / (CANARY + 100 * (HOSTS - 1))) if row["case"] == "bad_release" else 0
    return f"{row['failed']} failed requests, expected at most {allowed}: {reached(row['failed'] <= allowed)}"


def reached(is_so: bool) -> str:
    return "reached" if is_so else "MISSED"


def say(message: str) -> None:
    print(f"bench: {message}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=sorted(CASES), default=list(CASES), help="cases to run")
    cases = parser.parse_args().only
    # The lab is removed after a signal, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: ended by a signal"))
    rows: List[Row] = []
    target = BUILD / "rollout.json"
    BUILD.mkdir(parents=True, exist_ok=True)
    try:
        with Fleet() as lab:
            address = lab.address()
            say("installing all hosts")
            lab.change("site.yml")
            with OpenLoop(address, RATES) as clients:
                time.sleep(BEFORE)
                for case in cases:
                    say(f"case {case}")
                    rows.append(measure(lab, clients, case))
                    target.write_text(json.dumps(rows, indent=1) + "\n")
    except BenchError as error:
        sys.exit(f"bench: {error}")
    finally:
        shutil.rmtree(PLACE, ignore_errors=True)
    print(f"\n{table(rows)}")


if __name__ == "__main__":
    main()
