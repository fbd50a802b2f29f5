# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The limits of a source of a large file: a least rate, an overall limit that follows from its size, and so many attempts."""

from __future__ import annotations

import time
from typing import Any, Callable, Optional

from ansible_collections.npufleet.triton.plugins.module_utils.exchange import FRAMING, LINE, LINES, Budget

BLOCK = 1 << 20
# How often a source may break off in a row that is slower than RATE, and how often it may have the file begun again
TRIES = 3
# How often it may break off in all
ATTEMPTS = 100
# Seconds for an answer to begin, and of each span of its body; bytes in a second that each span and all of it have at least
SECONDS, RATE = 60.0, 1 << 16
# Bytes that an answer has before its body, its redirects included
HEAD = 8 << 20
# Bytes of a file whose source does not say how large it is
LARGEST = 1 << 36


class SourceError(Exception):
    """The reason why a file cannot be downloaded from its source."""


class BrokeOff(Exception):
    """The source ended before its file did."""


class Source:
    """The facts that a source reported of its file, and the number of its interruptions."""

    def __init__(self, size: Optional[int]) -> None:
        self.size, self.tag = size, ""
        self.ends = 0.0
        self._began = self._attempt = time.monotonic()
        self._idle = self._attempts = self._restarts = 0
        self._limit()

    @property
    def most(self) -> int:
        """The bytes that the file may have."""
        return LARGEST if self.size is None else self.size

    def _limit(self) -> None:
        self.ends = self._began + TRIES * SECONDS + self.most / RATE

    def announced(self, size: Optional[int]) -> None:
        """Keep the size that the source announces. Raises SourceError where it announced another one before."""
        if size is not None and self.size is not None and size != self.size:
            raise SourceError(
                f"it announces {size} bytes, expected the {self.size} that were announced before: see whether its file changed, "
                "then run again"
            )
        self.size = self.size if size is None else size
        self._limit()

    def restart(self, sink: Any, why: str) -> None:
        """Empty what there is of the file. Raises SourceError where that was done too often."""
        empty(sink)
        self._restarts += 1
        if self._restarts > TRIES:
            raise SourceError(f"it has the file begun again and again ({why}): correct the source")

    def broke_off(self, why: object, before: int, now: int) -> None:
        """Count an attempt that broke off. Raises SourceError where another one would be too many."""
        moment = time.monotonic()
        slow = now - before <= RATE * (moment - self._attempt)
        self._attempt = moment
        self._attempts += 1
        self._idle = self._idle + 1 if slow else 0
        again = f"after {now} bytes ({why}): run again, it goes on from there"
        if self._idle >= TRIES:
            raise SourceError(f"it broke off {again}")
        if self._attempts >= ATTEMPTS:
            raise SourceError(f"it broke off {ATTEMPTS} times, the last time {again}")
        if moment >= self.ends:
            raise SourceError(f"its {self.most} bytes did not come within {self.ends - self._began:.0f} s, it broke off {again}")


class FileBudget(Budget):
    """The budget of one attempt: that of an exchange until the file begins, and then a least rate in each span of time."""

    def __init__(self, source: Source) -> None:
        super().__init__(SECONDS, HEAD)
        self._source = source
        self._begun = False
        self._came = 0

    def begin(self) -> None:
        """From now on the file comes."""
        self._begun = True
        self._span(LINES * LINE + FRAMING * self._source.most)

    def _span(self, size: int) -> None:
        self._came = 0
        self.allow(max(min(SECONDS, self._source.ends - time.monotonic()), 0.0), size)

    def late(self) -> str:
        if not self._begun:
            return super().late()
        return f"{self._came} bytes came within {self.seconds:.0f} s, expected at least {RATE * self.seconds:.0f}"

    def receive(self, count: int) -> None:
        super().receive(count)
        self._came += count
        if self._begun and self._came >= RATE * SECONDS:
            self._span(self._left)


def empty(sink: Any) -> None:
    """Remove what a file has."""
    sink.seek(0)
    sink.truncate()


def copy(read: Callable[[int], bytes], sink: Any, alive: Callable[[], None], most: int, until: Optional[int] = None) -> None:
    """Copy what comes, to its end or until the file has so many bytes. Raises SourceError where it would have more than `most`."""
    from http.client import HTTPException

    have = sink.tell()
    while have != until:
        alive()
        try:
            block = memoryview(read(BLOCK if until is None else min(BLOCK, until - have)))
        except (HTTPException, OSError) as error:
            raise BrokeOff(str(error) or type(error).__name__) from None
        if not block:
            return
        have += len(block)
        if have > most:
            empty(sink)
            raise SourceError(f"it brings more than the {most} bytes that it announced: what came was removed; correct the source")
        while block:
            block = block[sink.write(block) :]
