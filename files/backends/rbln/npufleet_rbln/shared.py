"""The interface between the stub and its device process: shared memory for the tensors, and messages about runs."""

from __future__ import annotations

import mmap
import os
import struct
from typing import List, Sequence

import numpy as np

from .compiled import Plan, Tensor, memory_dtype

PAGE = 4096
# START is the message to the device process: the bucket to run. ENDED is its message after a run: 0 for success or 1 for an error,
# and the times when the run began and ended (seconds of CLOCK_MONOTONIC). After a 1, the error follows as JSON.
START = struct.Struct("<I")
ENDED = struct.Struct("<Bdd")


class Views:
    """Arrays in the shared memory: `inputs[bucket][position]` and `outputs[bucket][position]`.

    All buckets of a tensor begin at the same offset, so the rows of a smaller bucket are the first rows of a larger one.
    """

    def __init__(self, memory: mmap.mmap, plan: Plan) -> None:
        offset = 0
        self.inputs: List[List[np.ndarray]] = [[] for _bucket in plan.buckets]
        self.outputs: List[List[np.ndarray]] = [[] for _bucket in plan.buckets]
        for views, sides in (
            (self.inputs, [bucket.inputs for bucket in plan.buckets]),
            (self.outputs, [bucket.outputs for bucket in plan.buckets]),
        ):
            for tensors in zip(*sides):
                for into, entry in zip(views, tensors):
                    into.append(np.ndarray(entry.shape, memory_dtype(entry.dtype), memory, offset))
                offset += _pages_for(tensors)


def _pages_for(tensors: Sequence[Tensor]) -> int:
    """Return the size of the memory for a tensor in its largest bucket, in bytes of whole pages."""
    largest = max(int(np.prod(tensor.shape, dtype=np.int64)) * memory_dtype(tensor.dtype).itemsize for tensor in tensors)
    return max(PAGE, -(-largest // PAGE) * PAGE)


def allocate(plan: Plan) -> int:
    """Allocate memory for the tensors, and return its descriptor. The memory has no name that could remain in /dev/shm."""
    sides = [*zip(*(bucket.inputs for bucket in plan.buckets)), *zip(*(bucket.outputs for bucket in plan.buckets))]
    descriptor = os.memfd_create("rbln-tensors", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, sum(_pages_for(tensors) for tensors in sides))
    return descriptor


def attach(descriptor: int) -> mmap.mmap:
    """Map the memory of a descriptor with all pages present, and close the descriptor."""
    try:
        return mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0x8000))
    finally:
        os.close(descriptor)
