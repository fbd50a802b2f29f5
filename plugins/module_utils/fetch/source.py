# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The limits of a download: a minimum rate, a time limit that depends on the size, and a maximum number of attempts."""

from __future__ import annotations

import time
from typing import Any, Callable, Optional

from ansible_collections.npufleet.triton.plugins.module_utils.exchange import FRAMING_FACTOR, MAX_LINE, MAX_LINES, Budget

BLOCK_BYTES = 1 << 20
# A download fails after this many interrupted attempts in a row that were slower than MIN_RATE. It also fails if it has to restart
# from the first byte more than this many times.
MAX_TRIES = 3
# A download fails after this many interrupted attempts, even if they were fast.
MAX_ATTEMPTS = 100
# A response has to begin within INTERVAL_SECONDS. In each interval of this length, the body needs MIN_RATE (bytes per second).
INTERVAL_SECONDS, MIN_RATE = 60.0, 1 << 16
# Largest number of bytes before the body, including redirects
MAX_HEAD = 8 << 20
# Largest file in bytes if the source does not announce the size
MAX_FILE = 1 << 36


class SourceError(Exception):
    """The reason why a file cannot be downloaded from its source."""


class ConnectionLost(Exception):
    """An error because the connection ended before the file was complete."""


class Source:
    """The size and ETag that a web server or object store announced for a file, and the interruptions of the download so far."""

    def __init__(self, size: Optional[int], check_cancelled: Callable[[], None] = lambda: None) -> None:
        self.size, self.tag, self.check_cancelled = size, "", check_cancelled
        self._began = self._attempt = time.monotonic()
        self._slow_attempts = self._attempts = self._restarts = 0

    @property
    def most(self) -> int:
        """The largest allowed size of the file in bytes."""
        return MAX_FILE if self.size is None else self.size

    @property
    def deadline(self) -> float:
        """The time of `time.monotonic` at which the download fails."""
        return self._began + MAX_TRIES * INTERVAL_SECONDS + self.most / MIN_RATE

    def announced(self, size: Optional[int]) -> None:
        """Record the size that the source announces. Raises SourceError if the source announced another size before."""
        if size is not None and self.size is not None and size != self.size:
            raise SourceError(
                f"it announces {size} bytes, expected the {self.size} that were announced before: see whether its file changed, "
                "then run again"
            )
        self.size = self.size if size is None else size

    def restart(self, sink: Any, why: str) -> None:
        """Empty the partial file to start from its first byte. Raises SourceError after too many restarts."""
        empty(sink)
        self._restarts += 1
        if self._restarts > MAX_TRIES:
            raise SourceError(f"it started the file more than {MAX_TRIES + 1} times ({why}): correct the source")

    def count_interruption(self, why: object, before: int, now: int) -> None:
        """Count an interrupted attempt. Raises SourceError if no further attempt is allowed."""
        time_now = time.monotonic()
        slow = now - before <= MIN_RATE * (time_now - self._attempt)
        self._attempt = time_now
        self._attempts += 1
        self._slow_attempts = self._slow_attempts + 1 if slow else 0
        interruption = f"after {now} bytes ({why}): run again to resume the download"
        if self._slow_attempts >= MAX_TRIES:
            raise SourceError(f"it broke off {interruption}")
        if self._attempts >= MAX_ATTEMPTS:
            raise SourceError(f"it broke off {MAX_ATTEMPTS} times, the last time {interruption}")
        if time_now >= self.deadline:
            raise SourceError(
                f"its {self.most} bytes did not arrive within {self.deadline - self._began:.0f} s, it broke off {interruption}"
            )


class FileBudget(Budget):
    """The limits of one attempt: INTERVAL_SECONDS and MAX_HEAD until the body begins, then MIN_RATE in each interval."""

    def __init__(self, source: Source) -> None:
        super().__init__(INTERVAL_SECONDS, MAX_HEAD)
        self._source = source
        self._body_begun = False
        self._received = 0

    def begin(self) -> None:
        """Apply the minimum rate from now on, because the body begins."""
        self._body_begun = True
        self._begin_interval(MAX_LINES * MAX_LINE + FRAMING_FACTOR * self._source.most)

    def _begin_interval(self, size: int) -> None:
        self._received = 0
        self.allow(max(min(INTERVAL_SECONDS, self._source.deadline - time.monotonic()), 0.0), size)

    def late(self) -> str:
        if not self._body_begun:
            return super().late()
        return f"{self._received} bytes arrived within {self.seconds:.0f} s, expected at least {MIN_RATE * self.seconds:.0f}"

    def receive(self, count: int) -> None:
        super().receive(count)
        self._received += count
        if self._body_begun and self._received >= MIN_RATE * INTERVAL_SECONDS:
            self._begin_interval(self._bytes_left)


def empty(sink: Any) -> None:
    """Truncate a file to zero bytes."""
    sink.seek(0)
    sink.truncate()


def copy(read: Callable[[int], bytes], sink: Any, source: Source, most: int, until: Optional[int] = None) -> None:
    """Copy a body into a file until the body ends or the file has `until` bytes. Raises SourceError above `most` bytes."""
    from http.client import HTTPException

    have = sink.tell()
    while have != until:
        source.check_cancelled()
        try:
            block = memoryview(read(BLOCK_BYTES if until is None else min(BLOCK_BYTES, until - have)))
        except (HTTPException, OSError) as error:
            raise ConnectionLost(str(error) or type(error).__name__) from None
        if not block:
            return
        have += len(block)
        if have > most:
            empty(sink)
            raise SourceError(f"it sends more than the announced {most} bytes: the partial file was removed. Correct the source")
        while block:
            block = block[sink.write(block) :]
