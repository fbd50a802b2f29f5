"""A known crash of Triton, after which a test can only be repeated."""

from __future__ import annotations

import re

# Triton up to 24.11 may crash when a client cancels a stream (github.com/triton-inference-server/server/issues/7368). Then the
# check of cancelled streams gets no answer, or its stream ends early.
CRASHED = re.compile(r"stream/stream/cancelled: (no Triton answers|stream \d+, after \d+ were cancelled: Socket closed)")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def crashed(output: str) -> bool:
    """Return True if the output of a run reports this crash. Line breaks and colours are ignored."""
    return bool(CRASHED.search(" ".join(COLOUR.sub("", output).split())))
