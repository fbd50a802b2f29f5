"""perf_analyzer 2.41.1: its command line, and what it says, as one reading."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from typing import List

OUTPUT_BYTES = 16384
CSV = "/tmp/bench.csv"
# So many seconds more than it needs it is given: a server that does not answer would keep it for ever. `timeout` ends with 124.
SECONDS = 60
PASS = re.compile(r"Pass \[\d+\] throughput: ([\d.]+) infer/sec")
COUNT = re.compile(r"Client:.*?Request count: (\d+)", re.DOTALL)
# Windows of a measurement; it is stable when each window's throughput is within so many percent of their mean.
WINDOWS = 3
STABILITY = 12
# perf_analyzer gives no figures at all when its own judgement of stability, which is the same, is no: here it is always yes.
ANY = ("--stability-percentage=999", f"--max-trials={WINDOWS}")
COLUMNS = {
    "infer_per_s": "Inferences/Second",
    "p50": "p50 latency",
    "p99": "p99 latency",
    "avg": "Avg latency",
    "queue": "Server Queue",
    "input": "Server Compute Input",
    "infer": "Server Compute Infer",
    "output": "Server Compute Output",
    "network": "Network+Server Send/Recv",
}


class Unreadable(Exception):
    """perf_analyzer said something else than a measurement."""


@dataclass(frozen=True)
class Reading:
    """One measurement; latencies as the client sees them, and the server's parts of them, in milliseconds on average."""

    infer_per_s: float
    p50: float
    p99: float
    avg: float
    queue: float
    input: float
    infer: float
    output: float
    network: float
    # Requests that the client saw completed in the windows that count.
    count: int
    # How far the throughput of a window is from their mean, in percent, and whether that is little enough.
    noise: float
    stable: bool


def command(model: str, clients: int, window_ms: int) -> List[str]:
    """Measure with `clients` requests in flight, each of one row, inputs and outputs in system shared memory."""
    return [
        *(
            "timeout",
            str(SECONDS + WINDOWS * window_ms // 1000),
            "perf_analyzer",
            "-v",
            "-m",
            model,
            "-i",
            "grpc",
            "-u",
            "localhost:8001",
        ),
        *("--shared-memory=system", f"--output-shared-memory-size={OUTPUT_BYTES}", f"--concurrency-range={clients}"),
        *(f"--measurement-interval={window_ms}", *ANY, "-f", CSV, "--verbose-csv"),
    ]


def requests_command(model: str, clients: int, requests: int) -> List[str]:
    """Send at least `requests` requests, in three windows whose figures may differ as they like."""
    return [
        *("timeout", str(10 * SECONDS), "perf_analyzer", "-m", model, "-i", "grpc", "-u", "localhost:8001"),
        *("--shared-memory=system", f"--output-shared-memory-size={OUTPUT_BYTES}", f"--concurrency-range={clients}"),
        *("--measurement-mode=count_windows", f"--measurement-request-count={-(-requests // WINDOWS)}", *ANY),
    ]


def read(said: str, table: str) -> Reading:
    """A reading out of the standard output (with -v) and the CSV file (with --verbose-csv)."""
    rows = list(csv.DictReader(io.StringIO(table)))
    missing = sorted(set(COLUMNS.values()) - set(rows[0])) if rows else []
    count = COUNT.search(said)
    passes = [float(word) for word in PASS.findall(said)]
    if len(rows) != 1 or missing or not count or not passes:
        raise Unreadable(
            f"perf_analyzer: found {len(rows)} rows in its CSV file, columns missing: {', '.join(missing) or 'none'}, "
            f"{len(passes)} windows; wanted one row with all columns and a request count. Its last words: {said.strip()[-300:]!r}"
        )
    value = {name: float(rows[0][column]) for name, column in COLUMNS.items()}
    rate = value.pop("infer_per_s")
    last = passes[-WINDOWS:]
    mean = sum(last) / len(last) or 1.0
    noise = 100 * max(abs(entry - mean) for entry in last) / mean
    return Reading(
        infer_per_s=rate,
        count=int(count[1]),
        noise=noise,
        stable=len(last) == WINDOWS and noise <= STABILITY,
        **{name: microseconds / 1000 for name, microseconds in value.items()},
    )


def counter(text: str, name: str, model: str) -> int:
    """Sum of a Prometheus counter over the versions of a model."""
    found = re.findall(rf'^{name}\{{[^}}]*model="{re.escape(model)}"[^}}]*\}} (\S+)$', text, re.MULTILINE)
    return round(sum(float(entry) for entry in found))
