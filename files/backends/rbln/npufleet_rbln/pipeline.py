"""Answers from another thread: one batch runs, the next is with the NPU already, and one more is being joined.

Used where Triton lets a model answer after execute() returned. An idle NPU gets at once what is there; a busy one gets full
batches before the running one ends, and what has gathered by then when it ends.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Callable, Deque, List, Optional

from .batching import Batcher, Item
from .device import Backing, Device, Lane
from .errors import Fault, words

# With the NPU at a time: one that runs and one behind it.
IN_FLIGHT = 2
# One more is being joined, and one is being answered.
LANES = IN_FLIGHT + 2


@dataclass
class Batch:
    """Requests in a lane. `backing` is what the lane belongs to: after a restart it is another."""

    backing: Backing
    lane: Lane
    items: List[Item] = field(default_factory=list)
    rows: int = 0
    padding: int = 0
    bucket: int = 0


class Pipeline:
    """Batches of one instance, in order. `answered` and `failed` send the responses; both are called from its thread."""

    def __init__(
        self,
        device: Device,
        batcher: Batcher,
        answered: Callable[[Batch, float, float], None],
        failed: Callable[[List[Item], Fault], None],
        dropped: Callable[[Item], bool],
    ) -> None:
        self._device, self._batcher = device, batcher
        self._answered, self._failed, self._dropped = answered, failed, dropped
        self._changed = threading.Condition()
        self._open: Optional[Batch] = None
        self._flying: Deque[Batch] = deque()
        self._backing: Optional[Backing] = None
        self._free: List[Lane] = []
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="answers", daemon=True)
        self._thread.start()

    def add(self, items: List[Item]) -> None:
        """Take requests in. Waits while one full batch is behind those under way: then Triton's own queue holds the rest."""
        with self._changed:
            for item in items:
                try:
                    self._join(item)
                except Fault as error:
                    self._failed([item], error)
            self._next()

    def _join(self, item: Item) -> None:
        """Write a request into the open batch; one that is full leaves as soon as there is a place."""
        while self._open and self._open.rows + item.rows > self._batcher.limit and not self._launch():
            self._changed.wait()
        while self._open is None:
            backing = self._device.ready()
            if backing is not self._backing:
                self._backing, self._free = backing, list(backing.lanes)
            if self._free:
                self._open = Batch(backing, self._free.pop())
            else:
                self._changed.wait()
        batch = self._open
        self._batcher.put(batch.lane.inputs, item, batch.rows)
        batch.items.append(item)
        batch.rows += item.rows
        if batch.rows == self._batcher.limit:
            self._launch()

    def _next(self) -> None:
        """Keep the NPU busy: a full batch goes behind the one that runs, any batch goes when nothing runs."""
        if self._open and (not self._flying or self._open.rows == self._batcher.limit):
            self._launch()

    def _launch(self) -> bool:
        """Hand the open batch to the NPU; False when there is no place for it."""
        batch = self._open
        assert batch is not None
        if len(self._flying) == IN_FLIGHT:
            return False
        self._open = None
        kept = [item for item in batch.items if not self._dropped(item)]
        if len(kept) != len(batch.items):
            batch.items, batch.rows = kept, 0
            for entry in kept:
                self._batcher.put(batch.lane.inputs, entry, batch.rows)
                batch.rows += entry.rows
        try:
            if batch.backing is not self._device.backing:
                raise self._device.broke(batch.backing, "device")
            if kept:
                batch.bucket = self._batcher.bucket(kept, batch.rows)
                batch.padding = self._batcher.pad(batch.lane.inputs[batch.bucket], batch.bucket, batch.rows)
                batch.lane.submit(batch.bucket)
                self._flying.append(batch)
            else:
                self._release(batch)
        except OSError:
            self._failed(kept, self._device.broke(batch.backing, "device"))
        except Fault as error:
            self._failed(kept, error)
        self._changed.notify_all()
        return True

    def _release(self, batch: Batch) -> None:
        if batch.backing is self._backing:
            self._free.append(batch.lane)

    def _loop(self) -> None:
        """Wait for the batch that runs, hand out the next, then answer."""
        idle_since = 0.0
        while True:
            with self._changed:
                while not self._flying:
                    if self._closing:
                        return
                    self._changed.wait()
                batch = self._flying[0]
            fault: Optional[Fault] = None
            began = ended = 0.0
            try:
                # A batch that waited behind another one has its whole time from there on.
                began, ended = self._device.finish(batch.backing, batch.lane, max(batch.lane.since, idle_since))
            except Fault as error:
                fault = error
            except Exception as error:  # what escaped here would end the thread that answers
                fault = Fault(f"{type(error).__name__}: {words(error)}")
            idle_since = time.monotonic()
            with self._changed:
                self._flying.popleft()
                self._next()
                self._changed.notify_all()
            if fault is None:
                self._answered(batch, began, ended)
            else:
                self._failed(batch.items, fault)
            with self._changed:
                self._release(batch)
                self._changed.notify_all()

    def close(self) -> None:
        """Answer what is under way and end."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(self._device.timeout_s + 1)
