"""The command line of perf_analyzer 2.41.1, and its output as a reading."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from typing import List

OUTPUT_BYTES = 16384
CSV = "/tmp/bench.csv"
# Seconds after the expected end at which perf_analyzer is stopped, because it would wait forever for a server that does not answer.
# The command `timeout` then ends with 124.
SECONDS = 60
PASS = re.compile(r"Pass \[\d+\] throughput: ([\d.]+) infer/sec")
COUNT = re.compile(r"Client:.*?Request count: (\d+)", re.DOTALL)
# The number of windows of a measurement. It is stable if the throughput of each window is within STABILITY percent of their mean.
WINDOWS = 3
STABILITY = 12
# perf_analyzer prints no results for a measurement that it judges as unstable. With these options, it judges every one as stable.
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
    """An output of perf_analyzer that is not a measurement."""


@dataclass(frozen=True)
class Reading:
    """A measurement: latencies of the client, and the average latency of each part of the server, in milliseconds."""

    infer_per_s: float
    p50: float
    p99: float
    avg: float
    queue: float
    input: float
    infer: float
    output: float
    network: float
    # Requests that the client completed in the windows of the measurement
    count: int
    # The largest difference of a window's throughput from the mean, in percent, and True if this is at most STABILITY
    noise: float
    stable: bool


def command(model: str, clients: int, window_ms: int) -> List[str]:
    """Return the command that measures with `clients` requests in flight, each of one row, with tensors in system shared memory."""
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
    """Return the command that sends at least `requests` requests, in three windows whose results may differ."""
    return [
        *("timeout", str(10 * SECONDS), "perf_analyzer", "-m", model, "-i", "grpc", "-u", "localhost:8001"),
        *("--shared-memory=system", f"--output-shared-memory-size={OUTPUT_BYTES}", f"--concurrency-range={clients}"),
        *("--measurement-mode=count_windows", f"--measurement-request-count={-(-requests // WINDOWS)}", *ANY),
    ]


def read(output: str, table: str) -> Reading:
    """Return the reading from the standard output (with -v) and the CSV file (with --verbose-csv). Raises Unreadable."""
    rows = list(csv.DictReader(io.StringIO(table)))
    missing = sorted(set(COLUMNS.values()) - set(rows[0])) if rows else []
    count = COUNT.search(output)
    passes = [float(word) for word in PASS.findall(output)]
    if len(rows) != 1 or missing or not count or not passes:
        raise Unreadable(
            f"perf_analyzer: its CSV file has {len(rows)} rows, columns missing: {', '.join(missing) or 'none'}, {len(passes)} "
            f"windows; expected one row with all columns and a request count. Its output ends with: {output.strip()[-300:]!r}"
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
    """Return the sum of a Prometheus counter over the versions of a model."""
    values = re.findall(rf'^{name}\{{[^}}]*model="{re.escape(model)}"[^}}]*\}} (\S+)$', text, re.MULTILINE)
    return round(sum(float(value) for value in values))
