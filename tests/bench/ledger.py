"""The ledger of the emulated NPUs: what they did, by their own clock, and whether that can carry the answers that were given."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Mapping, Sequence, Tuple

# The ledger's times are floats of seconds since boot: this is well above their rounding and below anything measured.
ROUNDING = 1e-6
SHOWN = 3


@dataclass(frozen=True)
class Run:
    """One run on an NPU: seconds of CLOCK_MONOTONIC, and the rows of its batch, padding included."""

    npu: int
    begin: float
    end: float
    rows: int


@dataclass(frozen=True)
class Use:
    """What the NPUs did: runs, rows, seconds busy and seconds idle between their first run and their last, summed over NPUs."""

    runs: int
    rows: int
    busy: float
    idle: float


class Ledger:
    """A directory of `<pid>.jsonl` files that only grow. `since` the last call, what is new."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._read: Dict[Path, int] = {}

    def new(self) -> List[Run]:
        """Runs whose line became whole since the last call."""
        found = []
        for path in sorted(self.directory.glob("*.jsonl")):
            with path.open("rb") as lines:
                lines.seek(self._read.get(path, 0))
                content = lines.read()
            whole = content[: content.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            found += [run_of(json.loads(line)) for line in whole.splitlines()]
        return found


def run_of(line: Mapping[str, float]) -> Run:
    return Run(int(line["npu"]), float(line["begin"]), float(line["end"]), int(line["rows"]))


def audit(runs: Sequence[Run], device_s: float, largest: int, answered: int, npus: Sequence[int]) -> List[str]:
    """Every reason why these runs cannot be what `npus` did that take `device_s` for a batch of at most `largest` rows, and
    whose rows went into `answered` answers of one row. None is the empty list."""
    reasons = []
    used = sorted({run.npu for run in runs})
    if runs and used != sorted(npus):
        reasons.append(f"the runs were on NPUs {used}, wanted {sorted(npus)}")
    short = [run for run in runs if run.end - run.begin < device_s - ROUNDING]
    if short:
        least = min(run.end - run.begin for run in short)
        reasons.append(
            f"{len(short)} of {len(runs)} intervals are shorter than set: the shortest has {least * 1000:.3f} ms, "
            f"wanted {device_s * 1000:.3f} ms"
        )
    large = [run.rows for run in runs if not 1 <= run.rows <= largest]
    if large:
        reasons.append(f"{len(large)} of {len(runs)} intervals carry {sorted(set(large))[:SHOWN]} rows, wanted 1 to {largest}")
    over = overlaps(runs)
    if over:
        shown = ", ".join(f"NPU {earlier.npu} {earlier.end:.6f} > {later.begin:.6f}" for earlier, later in over[:SHOWN])
        reasons.append(f"{len(over)} intervals begin before the one before them on the same NPU ended: {shown}")
    rows = sum(run.rows for run in runs)
    if rows < answered:
        reasons.append(f"the NPUs carried {rows} rows, but {answered} were answered")
    return reasons


def overlaps(runs: Sequence[Run]) -> List[Tuple[Run, Run]]:
    """Pairs of runs on one NPU of which the later begins before an earlier one ended."""
    found = []
    last: Dict[int, Run] = {}
    for run in sorted(runs, key=lambda entry: (entry.npu, entry.begin, entry.end)):
        before = last.get(run.npu)
        if before and run.begin < before.end - ROUNDING:
            found.append((before, run))
        if before is None or run.end > before.end:
            last[run.npu] = run
    return found


def use(runs: Sequence[Run]) -> Use:
    """What the NPUs that appear here did."""
    busy = span = 0.0
    for npu in {run.npu for run in runs}:
        here = [run for run in runs if run.npu == npu]
        busy += sum(run.end - run.begin for run in here)
        span += max(run.end for run in here) - min(run.begin for run in here)
    return Use(len(runs), sum(run.rows for run in runs), busy, span - busy)
