# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""A parser of Triton's metrics, which are in the text format of Prometheus."""

from __future__ import annotations

import re
from typing import Dict, Iterator, Tuple

# Limits: lines of a page, and characters of a line. Longer lines are skipped.
MAX_LINES, MAX_LINE = 100_000, 16_384
SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
# Without the lookbehind, the search would start again at each character of a long word, which takes very long.
LABEL = re.compile(r'(?<!\w)(\w+)="((?:[^"\\]|\\.)*)"')

Labels = Dict[str, str]


def samples(page: str, prefix: str = "") -> Iterator[Tuple[str, Labels, float]]:
    """Yield (name, labels, value) of each sample whose name begins with `prefix`.

    Lines that are too long or that do not parse are skipped. Raises ValueError if the page has too many lines.
    """
    # splitlines() would also split at other characters, which the name of a model can contain.
    lines = page.split("\n", MAX_LINES)
    if len(lines) > MAX_LINES:
        raise ValueError(f"the page of metrics has more than {MAX_LINES} lines")
    for line in lines:
        match = SAMPLE.match(line) if line.startswith(prefix) and len(line) <= MAX_LINE else None
        if match:
            try:
                yield match[1], {name: _unescape(value) for name, value in LABEL.findall(match[2] or "")}, float(match[3])
            except ValueError:
                continue


def _unescape(value: str) -> str:
    return re.sub(r"\\(.)", lambda sign: "\n" if sign[1] == "n" else sign[1], value)
