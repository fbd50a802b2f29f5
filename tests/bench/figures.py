"""The results of bench-serving: rows from readings of perf_analyzer, and verdicts and a table from rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence

from ledger import Use
from network import LARGEST
from perf import Reading

Row = Dict[str, Any]
# {milliseconds of the NPU for a batch: smallest share of the device's limit}, for each profile
THROUGHPUT = {4: 0.97, 2: 0.90}
LATENCY = {4: 0.90, 2: 0.85}
# The largest overhead of a request beyond the device's time, as a multiple of the empty model's overhead
OVERHEAD = 1.1
# The smallest throughput of two NPUs, as a multiple of the throughput of one NPU
NPUS = 1.8
GROWTH_MIB = 5.0
# Cases without an NPU. The model of `waiting` waits as long as an NPU would compute. It is not in serving.json.
NO_NPU = ("empty", "waiting")
# The clocks of perf_analyzer have a resolution of one microsecond.
ROUNDING_MS = 0.001


@dataclass(frozen=True)
class Verdict:
    """The result of one target: what was measured, the actual and the expected value in words, and whether it was reached."""

    what: str
    found: str
    wanted: str
    reached: bool


def limit(device_ms: float) -> float:
    """Return the inferences per second of an NPU that is never idle and whose batches are all full."""
    return LARGEST * 1000 / device_ms


def row(
    case: str,
    profile: Optional[str],
    release: str,
    device_ms: float,
    clients: int,
    reading: Reading,
    used: Use,
    other: Optional[float],
) -> Row:
    """Return a row of serving.json. `other` is the number of cores that the rest of the machine used meanwhile."""
    on_device = case != "empty"
    return {
        "device_ms": device_ms,
        "concurrency": clients,
        "case": case,
        "profile": profile,
        "triton": release,
        "infer_per_s": round(reading.infer_per_s, 1),
        "p50_ms": round(reading.p50, 3),
        "p99_ms": round(reading.p99, 3),
        "avg_ms": round(reading.avg, 3),
        "share_of_device_limit": round(reading.infer_per_s / limit(device_ms), 4),
        "overhead_ms": round(reading.p50 - (device_ms if on_device else 0), 3) if clients == 1 else None,
        "device_busy": round(used.busy / (used.busy + used.idle), 4) if used.runs else None,
        "rows_per_run": round(used.rows / used.runs, 3) if used.runs else None,
        "idle_ms_per_run": round(used.idle * 1000 / used.runs, 3) if used.runs else None,
        "server_ms": {name: round(getattr(reading, name), 3) for name in ("queue", "input", "infer", "output", "network")},
        "noise_percent": round(reading.noise, 1),
        "stable": reading.stable,
        "other_cores": None if other is None else round(other, 2),
    }


def impossible(entry: Row) -> List[str]:
    """Return the reasons why a row cannot be true: answers that are faster than the NPU."""
    if entry["case"] != "empty" and entry["p50_ms"] < entry["device_ms"] - ROUNDING_MS:
        return [f"half of the answers came within {entry['p50_ms']} ms, before the {entry['device_ms']} ms of the NPU were over"]
    return []


def floor(rows: Sequence[Row], release: str, device_ms: float) -> Optional[float]:
    """Return the overhead of the empty model with one client on this Triton, in milliseconds."""
    for entry in rows:
        if (entry["case"], entry["triton"], entry["device_ms"], entry["concurrency"]) == ("empty", release, device_ms, 1):
            return float(entry["overhead_ms"])
    return None


def expected_share(entry: Row) -> Optional[float]:
    """Return the share that a row has to reach, or None if the row has no such target."""
    if entry["case"] not in ("rbln", "rbln-24.10"):
        return None
    if entry["profile"] == "latency":
        return LATENCY.get(entry["device_ms"]) if entry["concurrency"] == 16 else None
    if entry["concurrency"] in (8, 16):
        return THROUGHPUT.get(entry["device_ms"])
    return None


def expected_overhead(entry: Row, rows: Sequence[Row]) -> Optional[float]:
    """Return the largest allowed overhead of a row in milliseconds, or None without a target or a floor."""
    if entry["concurrency"] != 1 or entry["case"] not in ("rbln", "rbln-24.10") or entry["profile"] != "latency":
        return None
    least = floor(rows, entry["triton"], entry["device_ms"])
    return None if least is None else round(OVERHEAD * least, 3)


def verdicts(rows: Sequence[Row]) -> List[Verdict]:
    """Return the verdicts about the rows, in their order."""
    return [verdict for entry in rows for verdict in verdicts_of(entry, rows)]


def verdicts_of(entry: Row, rows: Sequence[Row]) -> List[Verdict]:
    """Return the verdicts about one row. `rows` has the row of the empty model, which is the floor of the overhead."""
    results = []
    what = f"{entry['case']} {entry['profile']}, {entry['device_ms']:g} ms, {entry['concurrency']} clients"
    share, overhead = expected_share(entry), expected_overhead(entry, rows)
    if share is not None:
        actual = entry["share_of_device_limit"]
        results.append(Verdict(f"{what}: share of the device's limit", f"{actual:.3f}", f">= {share:.2f}", actual >= share))
    if overhead is not None:
        actual = entry["overhead_ms"]
        results.append(Verdict(f"{what}: overhead", f"{actual:.3f} ms", f"<= {overhead:.3f} ms", actual <= overhead))
    return results


def npus_verdict(alone: float, both: float) -> Verdict:
    """Return the verdict about the inferences per second of two NPUs, compared with one NPU."""
    ratio = both / alone if alone else 0.0
    return Verdict("two NPUs over one", f"{ratio:.2f} ({both:.0f} over {alone:.0f}/s)", f">= {NPUS}", ratio >= NPUS)


def memory_verdicts(before: Row, after: Row) -> List[Verdict]:
    """Return the verdicts about the growth of memory between two samples {"requests", "mib", "shm_mib"}."""
    span = f"between request {before['requests']:,} and {after['requests']:,}"
    grown, shm = after["mib"] - before["mib"], after["shm_mib"] - before["shm_mib"]
    return [
        Verdict(f"memory {span}", f"{grown:+.1f} MiB", f"< {GROWTH_MIB:g} MiB", grown < GROWTH_MIB),
        Verdict(f"/dev/shm {span}", f"{shm:+.1f} MiB", "no growth", shm <= 0),
    ]


def table(rows: Sequence[Row]) -> str:
    """Return the rows and their targets as a table for the terminal."""
    head = (
        "case",
        "profile",
        "ms",
        "clients",
        "infer/s",
        "share",
        "target",
        "p50",
        "p99",
        "over",
        "at most",
        "busy",
        "rows/run",
        "noise",
    )
    lines = [head]
    for entry in sorted(rows, key=lambda row_: (-row_["device_ms"], row_["case"], row_["profile"] or "", row_["concurrency"])):
        share, overhead = expected_share(entry), expected_overhead(entry, rows)
        lines.append(
            (
                f"{entry['case']} {entry['triton']}" if entry["case"] in NO_NPU else entry["case"],
                entry["profile"] or "-",
                f"{entry['device_ms']:g}",
                str(entry["concurrency"]),
                f"{entry['infer_per_s']:.0f}",
                f"{entry['share_of_device_limit']:.3f}",
                "" if share is None else mark(entry["share_of_device_limit"] >= share, f"{share:.2f}"),
                f"{entry['p50_ms']:.2f}",
                f"{entry['p99_ms']:.2f}",
                "" if entry["overhead_ms"] is None else f"{entry['overhead_ms']:.3f}",
                "" if overhead is None else mark(entry["overhead_ms"] <= overhead, f"{overhead:.3f}"),
                "-" if entry["device_busy"] is None else f"{entry['device_busy']:.3f}",
                "-" if entry["rows_per_run"] is None else f"{entry['rows_per_run']:.2f}",
                f"{entry['noise_percent']:.0f}%" + ("" if entry["stable"] else "!"),
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) if column < 2 else cell.rjust(width) for column, (cell, width) in enumerate(zip(line, widths)))
        for line in lines
    )


def mark(reached: bool, text: str) -> str:
    return f"{text} {'ok' if reached else 'MISSED'}"


def noise(rows: Sequence[Row]) -> str:
    """Return a line about the reliability of the results."""
    others = [entry["other_cores"] for entry in rows if entry["other_cores"] is not None]
    unstable = sum(not entry["stable"] for entry in rows)
    spread = max((entry["noise_percent"] for entry in rows), default=0.0)
    busy = f"others used up to {max(others):.1f} cores, {sum(others) / len(others):.1f} on average" if others else "others unknown"
    return f"noise: windows differ by up to {spread:.0f}%, {unstable} of {len(rows)} points are unstable; {busy}"
