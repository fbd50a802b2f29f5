# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The limits of a download: a minimum rate, a time limit that depends on the size, and a maximum number of attempts."""

from __future__ import annotations

import time
from typing import Any, Callable, Optional

from ansible_collections.npufleet.triton.plugins.module_utils.exchange import FRAMING, LINE, LINES, Budget

BLOCK = 1 << 20
# A download fails if this many attempts in a row were slower than RATE and were interrupted. It also fails if it has to restart
# from the first byte more often than this.
TRIES = 3
# A download fails after this many interrupted attempts, even if they were fast
ATTEMPTS = 100
# INTERVAL: seconds within which a response has to begin. Its body is then divided into intervals of this length. RATE: bytes per
# second that have to arrive in each interval of the body.
INTERVAL, RATE = 60.0, 1 << 16
# Largest number of bytes before the body, including redirects
HEAD = 8 << 20
# Largest file in bytes if the source does not announce the size
LARGEST = 1 << 36


class SourceError(Exception):
    """The reason why a file cannot be downloaded from its source."""


class ConnectionLost(Exception):
    """An error because the connection ended before the file was complete."""


class Source:
    """The size and ETag that a source announced for a file, and its interruptions so far."""

    def __init__(self, size: Optional[int]) -> None:
        self.size, self.tag = size, ""
        self.deadline = 0.0
        self._began = self._attempt = time.monotonic()
        self._idle = self._attempts = self._restarts = 0
        self._limit()

    @property
    def most(self) -> int:
        """The largest allowed size of the file in bytes."""
        return LARGEST if self.size is None else self.size

    def _limit(self) -> None:
        self.deadline = self._began + TRIES * INTERVAL + self.most / RATE

    def announced(self, size: Optional[int]) -> None:
        """Record the size that the source announces. Raises SourceError if it announced another size before."""
        if size is not None and self.size is not None and size != self.size:
            raise SourceError(
                f"it announces {size} bytes, expected the {self.size} that were announced before: see whether its file changed, "
                "then run again"
            )
        self.size = self.size if size is None else size
        self._limit()

    def restart(self, sink: Any, why: str) -> None:
        """Empty the partial file to start from its first byte. Raises SourceError after too many restarts."""
        empty(sink)
        self._restarts += 1
        if self._restarts > TRIES:
            raise SourceError(f"it started the file more than {TRIES + 1} times ({why}): correct the source")

    def count_interruption(self, why: object, before: int, now: int) -> None:
        """Count an interrupted attempt. Raises SourceError if no further attempt is allowed."""
        time_now = time.monotonic()
        slow = now - before <= RATE * (time_now - self._attempt)
        self._attempt = time_now
        self._attempts += 1
        self._idle = self._idle + 1 if slow else 0
        again = f"after {now} bytes ({why}): run again to resume the download"
        if self._idle >= TRIES:
            raise SourceError(f"it broke off {again}")
        if self._attempts >= ATTEMPTS:
            raise SourceError(f"it broke off {ATTEMPTS} times, the last time {again}")
        if time_now >= self.deadline:
            raise SourceError(
                f"its {self.most} bytes did not arrive within {self.deadline - self._began:.0f} s, it broke off {again}"
            )


class FileBudget(Budget):
    """The limits of one attempt. Before the body, the limits of an exchange apply. In the body, every interval needs RATE."""

    def __init__(self, source: Source) -> None:
        super().__init__(INTERVAL, HEAD)
        self._source = source
        self._body_begun = False
        self._received = 0

    def begin(self) -> None:
        """Apply the minimum rate from now on, because the body begins."""
        self._body_begun = True
        self._span(LINES * LINE + FRAMING * self._source.most)

    def _span(self, size: int) -> None:
        self._received = 0
        self.allow(max(min(INTERVAL, self._source.deadline - time.monotonic()), 0.0), size)

    def late(self) -> str:
        if not self._body_begun:
            return super().late()
        return f"{self._received} bytes arrived within {self.seconds:.0f} s, expected at least {RATE * self.seconds:.0f}"

    def receive(self, count: int) -> None:
        super().receive(count)
        self._received += count
        if self._body_begun and self._received >= RATE * INTERVAL:
            self._span(self._left)


def empty(sink: Any) -> None:
    """Truncate a file to zero bytes."""
    sink.seek(0)
    sink.truncate()


def copy(
    read: Callable[[int], bytes], sink: Any, check_cancelled: Callable[[], None], most: int, until: Optional[int] = None
) -> None:
    """Copy a body into a file until the body ends or the file has `until` bytes. Raises SourceError if it gets more than `most`."""
    from http.client import HTTPException

    have = sink.tell()
    while have != until:
        check_cancelled()
        try:
            block = memoryview(read(BLOCK if until is None else min(BLOCK, until - have)))
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
