#!/usr/bin/env python3
"""Measure how fast models of the backend `rbln` are served: `make bench-serving`.

The bench needs lab/ and collections/ on the Python path. It runs real Triton servers, 24.01 and 24.10, with the backend of this
checkout. An emulated NPU takes 2 or 4 ms for a batch of at most 4 rows. perf_analyzer runs in the server's container. The bench
prints a table with the targets, and writes build/bench/serving.json (the rows) and build/bench/serving-summary.json (targets, two
NPUs, memory). It reports a missed target. It fails if a result cannot be true, which means that an answer is wrong, or that the
ledger of the NPUs has fewer rows than the server answered.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import engine
import figures
import perf
import repository
from figures import Row, Verdict
from ledger import Ledger, audit, use
from machine import Others, memory
from network import LARGEST
from server import BUILD, RELEASES, Server, ensure_image
from settings import LabError

from lab import lab_lock

DEVICE_MS = (4, 2)
CLIENTS = (1, 4, 8, 16)
PARTS = ("24.01", "24.10", "npus", "memory")
# {release: {model in the repository: (case, profile)}}
MODELS: Dict[str, Dict[str, Tuple[str, Optional[str]]]] = {
    "24.01": {
        "empty": ("empty", None),
        "naive": ("naive", None),
        "rbln-throughput": ("rbln", "throughput"),
        "rbln-latency": ("rbln", "latency"),
    },
    "24.10": {
        "empty": ("empty", None),
        "rbln-throughput": ("rbln-24.10", "throughput"),
        "rbln-latency": ("rbln-24.10", "latency"),
    },
}
NPU_MODELS = {"one": ("throughput", [0]), "two": ("throughput", [0, 1])}
MEMORY_DEVICE_MS = 1
MEMORY_FROM, MEMORY_TO = 10_000, 100_000


class Bench:
    """A run of the bench: its rows, its verdicts, and the reasons why it fails."""

    def __init__(self, window_ms: int, attempts: int) -> None:
        self.window_ms, self.attempts = window_ms, attempts
        self.rows: List[Row] = []
        self.waiting: List[Row] = []
        self.more: List[Verdict] = []
        self.summary: Dict[str, Any] = {}
        self.reasons: List[str] = []

    def measure(
        self, server: Server, model: str, case: str, profile: Optional[str], clients: int, npus: Sequence[int] = (0,)
    ) -> Row:
        """Measure and audit one combination of model and clients. Return its row, and add errors of the audit to `reasons`."""
        ledger = Ledger(server.ledger)
        ledger.new()
        before, others = server.answered(model), Others(server.pid)
        server.execute("rm", "-f", perf.CSV)
        output = server.execute(*perf.command(model, clients, self.window_ms))
        other = others.cores()
        reading = perf.read(output, server.execute("cat", perf.CSV))
        after = server.answered(model)
        answered = after[1] - before[1]
        runs = ledger.new()
        row = figures.row(case, profile, server.release, server.device_ms, clients, reading, use(runs), other)
        reasons = figures.impossible(row)
        if reading.count > after[0] - before[0]:
            reasons.append(f"perf_analyzer counts {reading.count} completed requests, the server only {after[0] - before[0]}")
        if case not in figures.NO_NPU:
            reasons += audit(runs, server.device_ms / 1000, LARGEST, answered, npus)
        self.reasons += [
            f"Triton {server.release}, {model}, {server.device_ms:g} ms, {clients} clients: {reason}" for reason in reasons
        ]
        return row

    def point(self, server: Server, model: str, case: str, profile: Optional[str], clients: int) -> Row:
        """Return a row of the table. A measurement that misses its target or is unstable is repeated, and the best row counts."""
        best: Optional[Row] = None
        for attempt in range(1, self.attempts + 1):
            row = {**self.measure(server, model, case, profile, clients), "attempts": attempt}
            if best is None or better(row, best):
                best = row
            best["attempts"] = attempt
            if best["stable"] and all(entry.reached for entry in figures.verdicts_of(best, [*self.rows, best])):
                break
        assert best is not None
        say(
            f"{server.release} {model}, {server.device_ms:g} ms, {clients} clients: {best['infer_per_s']:.0f}/s, "
            f"share {best['share_of_device_limit']:.3f}, p50 {best['p50_ms']:.3f} ms"
        )
        return best

    def validate(self, server: Server, model: str, npus: Sequence[int] = (0,)) -> None:
        """Check that the answers of requests in batches are those of onnxruntime. Add differences to `reasons`."""
        ledger = Ledger(server.ledger)
        ledger.new()
        network = str(Path("/models") / model / "1" / "network.onnx")
        result = json.loads(server.execute("python3", "/opt/bench/answers.py", model, network))
        runs = ledger.new()
        name = f"Triton {server.release}, {model}, {server.device_ms:g} ms, answers"
        self.reasons += [
            f"{name}: {entry}" for entry in result["wrong"] + audit(runs, server.device_ms / 1000, LARGEST, result["rows"], npus)
        ]
        if len(runs) >= result["requests"]:
            self.reasons.append(f"{name}: {len(runs)} runs for {result['requests']} requests, expected batches of several requests")

    def release(self, release: str) -> None:
        """Measure all cases of one Triton release, with both times of the device."""
        models = MODELS[release]
        rbln = {name: (profile, [0]) for name, (_case, profile) in models.items() if profile}
        directory = repository.make(release, release, rbln, DEVICE_MS, [name for name in models if name not in rbln])
        for device_ms in DEVICE_MS:
            with Server(release, directory, device_ms) as server:
                for model in rbln:
                    self.validate(server, model)
                self.waiting.append(self.point(server, repository.waiting(device_ms), "waiting", None, 1))
                for clients in CLIENTS:
                    for model, (case, profile) in models.items():
                        # On 24.10, the empty model is only measured with one client (the floor) and with 8 and 16 (the limit).
                        if case != "empty" or clients != 4 or release == "24.01":
                            self.rows.append(self.point(server, model, case, profile, clients))

    def npus(self) -> None:
        """Compare instances on two NPUs with one instance, with the same number of clients for each NPU."""
        directory = repository.make("npus", "24.01", NPU_MODELS)
        with Server("24.01", directory, max(DEVICE_MS), npus=2) as server:
            for model, (_profile, npus) in NPU_MODELS.items():
                self.validate(server, model, npus)
            attempts = []
            for _attempt in range(self.attempts):
                alone, both = (
                    self.measure(server, model, "rbln", profile, len(npus) * max(CLIENTS), npus)["infer_per_s"]
                    for model, (profile, npus) in NPU_MODELS.items()
                )
                attempts.append((both / alone, figures.npus_verdict(alone, both)))
                if attempts[-1][1].reached:
                    break
        self.more.append(max(attempts, key=lambda attempt: attempt[0])[1])
        self.summary["npus"] = asdict(self.more[-1])

    def memory(self) -> None:
        """Measure how the memory of the server and its stubs grows between request MEMORY_FROM and request MEMORY_TO."""
        directory = repository.make("memory", "24.01", {"rbln": ("throughput", [0])})
        samples: List[Row] = []
        with Server("24.01", directory, MEMORY_DEVICE_MS) as server:
            ledger = Ledger(server.ledger)
            command = perf.requests_command("rbln", max(CLIENTS), MEMORY_TO)
            client = subprocess.Popen(
                [*engine.client(), "exec", server.name, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            while client.poll() is None:
                samples.append(sample(server))
                time.sleep(0.5)
            output = client.communicate()[0]
            samples.append(sample(server))
            requests, rows = server.answered("rbln")
            reasons = audit(ledger.new(), MEMORY_DEVICE_MS / 1000, LARGEST, rows, [0])
        if client.returncode or requests < MEMORY_TO:
            raise LabError(f"memory: perf_analyzer ended with {client.returncode} after {requests} requests:\n{output[-800:]}")
        self.reasons += [f"memory: {reason}" for reason in reasons]
        before = next(entry for entry in samples if entry["requests"] >= MEMORY_FROM)
        # Both samples are from the time in which the client runs, because they include the client's region in /dev/shm.
        after = next((entry for entry in samples if entry["requests"] >= MEMORY_TO), samples[-1])
        self.more += figures.memory_verdicts(before, after)
        self.summary["memory"] = {"samples": samples, "verdicts": [asdict(entry) for entry in self.more[-2:]]}


def sample(server: Server) -> Row:
    """Return a sample: the number of requests answered so far, and the memory."""
    requests = server.counted("rbln")[0]
    mib, shm = memory(server.pid)
    return {"requests": requests, "mib": round(mib, 2), "shm_mib": round(shm, 3)}


def better(first: Row, second: Row) -> bool:
    """Return True if `first` is the better of two measurements: with one client by latency, otherwise by throughput."""
    if first["concurrency"] == 1:
        return first["p50_ms"] < second["p50_ms"]
    return first["infer_per_s"] > second["infer_per_s"]


def say(message: str) -> None:
    print(f"bench: {message}", flush=True)


@contextmanager
def an_engine() -> Iterator[None]:
    """Start the lab's engine with the images of both releases, and stop it after the block unless a lab uses it."""
    with lab_lock():
        engine.start()
    try:
        with lab_lock():
            for release in RELEASES:
                ensure_image(release)
        yield
    finally:
        with lab_lock():
            engine.stop_if_unused()


def report(bench: Bench, seconds: float) -> None:
    """Write the files of results, and print the table and the targets."""
    BUILD.mkdir(parents=True, exist_ok=True)
    verdicts = figures.verdicts(bench.rows) + bench.more
    summary = {
        "machine": {"cores": os.cpu_count(), "kernel": platform.release(), "seconds": round(seconds)},
        "targets": [asdict(entry) for entry in verdicts],
        "reasons": bench.reasons,
        "waiting": bench.waiting,
        **bench.summary,
    }
    if bench.rows:
        (BUILD / "serving.json").write_text(json.dumps(bench.rows, indent=1) + "\n")
    (BUILD / "serving-summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    if bench.rows:
        print(f"\n{figures.table([*bench.rows, *bench.waiting])}\n\n{figures.noise(bench.rows)}")
    for entry in bench.more:
        print(f"{entry.what}: {entry.found}, expected {entry.wanted} {'ok' if entry.reached else 'MISSED'}")
    missed = [entry for entry in verdicts if not entry.reached]
    print(f"{len(verdicts) - len(missed)} of {len(verdicts)} targets reached in {seconds:.0f} s; see build/bench")
    for entry in missed:
        print(f"  missed: {entry.what}: {entry.found}, expected {entry.wanted}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--window", type=int, default=1500, metavar="MS", help="length of one of three windows (1500)")
    parser.add_argument("--attempts", type=int, default=2, metavar="N", help="measurements of a point that misses its target (2)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to run (all)")
    arguments = parser.parse_args()
    # The container and the engine are removed after a signal, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: ended by a signal"))
    began = time.monotonic()
    bench = Bench(arguments.window, arguments.attempts)
    try:
        with an_engine():
            for release in RELEASES:
                if release in arguments.only:
                    bench.release(release)
            if "npus" in arguments.only:
                bench.npus()
            if "memory" in arguments.only:
                bench.memory()
    except (LabError, perf.Unreadable) as error:
        sys.exit(f"bench: {error}")
    report(bench, time.monotonic() - began)
    if bench.reasons:
        sys.exit("bench: these figures cannot be true:\n  - " + "\n  - ".join(bench.reasons))


if __name__ == "__main__":
    main()
