"""From readings to rows, and from rows to verdicts and a table. Nothing here measures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence

from ledger import Use
from network import LARGEST
from perf import Reading

Row = Dict[str, Any]
# device_ms -> share of the device's limit
THROUGHPUT = {4: 0.97, 2: 0.90}
LATENCY = {4: 0.90, 2: 0.85}
# overhead of one request over device time, in times of the empty model's
OVERHEAD = 1.1
NPUS = 1.8
GROWTH_MIB = 5.0
# cases without an NPU: the second waits as long as one, for comparison, and is no row of serving.json
NO_NPU = ("empty", "waiting")
# perf_analyzer's clocks give whole microseconds
ROUNDING_MS = 0.001


@dataclass(frozen=True)
class Verdict:
    """One target: what was measured, found and wanted in words, and whether it was reached."""

    what: str
    found: str
    wanted: str
    reached: bool


def limit(device_ms: float) -> float:
    """Inferences per second of an NPU that is never idle and whose batches are all full."""
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
    """A row of serving.json. `other` is how many cores the rest of the machine used meanwhile."""
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


def impossible(found: Row) -> List[str]:
    """Why a row of a case that uses the NPU cannot be true, whatever the ledger says."""
    if found["case"] != "empty" and found["p50_ms"] < found["device_ms"] - ROUNDING_MS:
        return [f"half of the answers came within {found['p50_ms']} ms, before the {found['device_ms']} ms of the NPU were over"]
    return []


def floor(rows: Sequence[Row], release: str, device_ms: float) -> Optional[float]:
    """The empty model's overhead at one client, on this Triton, in milliseconds."""
    for entry in rows:
        if (entry["case"], entry["triton"], entry["device_ms"], entry["concurrency"]) == ("empty", release, device_ms, 1):
            return float(entry["overhead_ms"])
    return None


def wanted_share(found: Row) -> Optional[float]:
    """The share that this row has to reach, None where there is no target."""
    if found["case"] not in ("rbln", "rbln-24.10"):
        return None
    if found["profile"] == "latency":
        return LATENCY.get(found["device_ms"]) if found["concurrency"] == 16 else None
    if found["concurrency"] in (8, 16):
        return THROUGHPUT.get(found["device_ms"])
    return None


def wanted_overhead(found: Row, rows: Sequence[Row]) -> Optional[float]:
    """The overhead in milliseconds that this row may have, None where there is no target or no floor was measured."""
    if found["concurrency"] != 1 or found["case"] not in ("rbln", "rbln-24.10") or found["profile"] != "latency":
        return None
    least = floor(rows, found["triton"], found["device_ms"])
    return None if least is None else round(OVERHEAD * least, 3)


def verdicts(rows: Sequence[Row]) -> List[Verdict]:
    """The targets of the rows, in their order."""
    return [verdict for entry in rows for verdict in verdicts_of(entry, rows)]


def verdicts_of(entry: Row, rows: Sequence[Row]) -> List[Verdict]:
    """The targets of one row among `rows`, which have its floor."""
    found = []
    what = f"{entry['case']} {entry['profile']}, {entry['device_ms']:g} ms, {entry['concurrency']} clients"
    share, overhead = wanted_share(entry), wanted_overhead(entry, rows)
    if share is not None:
        mine = entry["share_of_device_limit"]
        found.append(Verdict(f"{what}: share of the device's limit", f"{mine:.3f}", f">= {share:.2f}", mine >= share))
    if overhead is not None:
        mine = entry["overhead_ms"]
        found.append(Verdict(f"{what}: overhead", f"{mine:.3f} ms", f"<= {overhead:.3f} ms", mine <= overhead))
    return found


def npus_verdict(alone: float, both: float) -> Verdict:
    """Two NPUs over one, of inferences per second."""
    ratio = both / alone if alone else 0.0
    return Verdict("two NPUs over one", f"{ratio:.2f} ({both:.0f} over {alone:.0f}/s)", f">= {NPUS}", ratio >= NPUS)


def memory_verdicts(before: Row, after: Row) -> List[Verdict]:
    """Growth between two samples {"requests", "mib", "shm_mib"}."""
    span = f"between request {before['requests']:,} and {after['requests']:,}"
    grown, shm = after["mib"] - before["mib"], after["shm_mib"] - before["shm_mib"]
    return [
        Verdict(f"memory {span}", f"{grown:+.1f} MiB", f"< {GROWTH_MIB:g} MiB", grown < GROWTH_MIB),
        Verdict(f"/dev/shm {span}", f"{shm:+.1f} MiB", "no growth", shm <= 0),
    ]


def table(rows: Sequence[Row]) -> str:
    """The rows for a screen, with their targets beside."""
    head = (
        "case",
        "profile",
        "ms",
        "clients",
        "infer/s",
        "share",
        "wanted",
        "p50",
        "p99",
        "over",
        "at most",
        "busy",
        "rows/run",
        "noise",
    )
    lines = [head]
    for entry in sorted(rows, key=lambda found: (-found["device_ms"], found["case"], found["profile"] or "", found["concurrency"])):
        share, overhead = wanted_share(entry), wanted_overhead(entry, rows)
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
    """How far the figures can be trusted, in one line."""
    others = [entry["other_cores"] for entry in rows if entry["other_cores"] is not None]
    unstable = sum(not entry["stable"] for entry in rows)
    spread = max((entry["noise_percent"] for entry in rows), default=0.0)
    busy = f"others used up to {max(others):.1f} cores, {sum(others) / len(others):.1f} on average" if others else "others unknown"
    return f"noise: windows differ by up to {spread:.0f}%, {unstable} of {len(rows)} points are unstable; {busy}"
