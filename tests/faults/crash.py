"""Where Triton itself fails, and to ask once more is all that a test can do."""

from __future__ import annotations

import re

# Triton up to 24.11 may crash where a stream is cancelled (github.com/triton-inference-server/server/issues/7368): it does not
# answer that check any more, or breaks off in the midst of it
CRASHED = re.compile(r"stream/stream/cancelled: (no Triton answers|stream \d+, after \d+ were cancelled: Socket closed)")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def crashed(output: str) -> bool:
    """Whether a run's output tells of it, in whatever lines and colours."""
    return bool(CRASHED.search(" ".join(COLOUR.sub("", output).split())))
