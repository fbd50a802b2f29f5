"""The ledger of the emulated NPUs, which is the log of their runs, and an audit that compares it with the server's answers.

A run is the computation of one batch on one NPU. lab/sdk writes the ledger.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Mapping, Sequence, Tuple

# The ledger's times are floats of seconds since boot. This tolerance is above their rounding error and below all measured times.
ROUNDING = 1e-6
MAX_SHOWN = 3


@dataclass(frozen=True)
class Run:
    """A run on an NPU: its begin and end in seconds of CLOCK_MONOTONIC, and the rows of its batch, including padding."""

    npu: int
    begin: float
    end: float
    rows: int


@dataclass(frozen=True)
class Use:
    """The use of all NPUs together: runs, rows, busy seconds, and idle seconds between the first and the last run of each NPU."""

    runs: int
    rows: int
    busy: float
    idle: float


class Ledger:
    """A directory of `<pid>.jsonl` files, to which the processes only append lines."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._read: Dict[Path, int] = {}

    def new(self) -> List[Run]:
        """Return the runs whose lines were completed after the last call."""
        runs = []
        for path in sorted(self.directory.glob("*.jsonl")):
            with path.open("rb") as lines:
                lines.seek(self._read.get(path, 0))
                content = lines.read()
            complete = content[: content.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(complete)
            runs += [run_of(json.loads(line)) for line in complete.splitlines()]
        return runs


def run_of(line: Mapping[str, float]) -> Run:
    return Run(int(line["npu"]), float(line["begin"]), float(line["end"]), int(line["rows"]))


def audit(runs: Sequence[Run], device_s: float, largest: int, answered: int, npus: Sequence[int]) -> List[str]:
    """Return the reasons why these runs cannot be true. The list is empty if they can be true.

    `device_s` is the time of an NPU for a batch, and `largest` the most rows of a batch. `answered` is the number of rows that the
    server answered. `npus` are the NPUs that had to be used.
    """
    reasons = []
    used = sorted({run.npu for run in runs})
    if runs and used != sorted(npus):
        reasons.append(f"the runs were on NPUs {used}, expected {sorted(npus)}")
    short = [run for run in runs if run.end - run.begin < device_s - ROUNDING]
    if short:
        least = min(run.end - run.begin for run in short)
        reasons.append(
            f"{len(short)} of {len(runs)} intervals are shorter than set: the shortest has {least * 1000:.3f} ms, "
            f"expected {device_s * 1000:.3f} ms"
        )
    large = [run.rows for run in runs if not 1 <= run.rows <= largest]
    if large:
        reasons.append(
            f"{len(large)} of {len(runs)} intervals carry {sorted(set(large))[:MAX_SHOWN]} rows, expected 1 to {largest}"
        )
    over = overlaps(runs)
    if over:
        shown = ", ".join(f"NPU {earlier.npu} {earlier.end:.6f} > {later.begin:.6f}" for earlier, later in over[:MAX_SHOWN])
        reasons.append(f"{len(over)} intervals begin before the one before them on the same NPU ended: {shown}")
    rows = sum(run.rows for run in runs)
    if rows < answered:
        reasons.append(f"the NPUs carried {rows} rows, but {answered} were answered")
    return reasons


def overlaps(runs: Sequence[Run]) -> List[Tuple[Run, Run]]:
    """Return the pairs of runs on one NPU whose later run begins before the earlier run has ended."""
    pairs = []
    last: Dict[int, Run] = {}
    for run in sorted(runs, key=lambda entry: (entry.npu, entry.begin, entry.end)):
        before = last.get(run.npu)
        if before and run.begin < before.end - ROUNDING:
            pairs.append((before, run))
        if before is None or run.end > before.end:
            last[run.npu] = run
    return pairs


def use(runs: Sequence[Run]) -> Use:
    """Return the use of the NPUs on which these runs were."""
    busy = span = 0.0
    for npu in {run.npu for run in runs}:
        own = [run for run in runs if run.npu == npu]
        busy += sum(run.end - run.begin for run in own)
        span += max(run.end for run in own) - min(run.begin for run in own)
    return Use(len(runs), sum(run.rows for run in runs), busy, span - busy)
