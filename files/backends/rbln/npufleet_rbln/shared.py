"""The interface between the stub (Triton's process of a model instance) and its device process, which uses the NPU.

It consists of shared memory for the tensors, and of messages about runs. A bucket is one set of shapes of a compiled file.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import List, Sequence

import numpy as np

from .compiled import Plan, Tensor, memory_dtype

PAGE = 4096
# START is the message to the device process: the index of the bucket to run. ENDED is the answer after the run: 0 for success or 1
# for an error, and the times when the run began and ended (seconds of CLOCK_MONOTONIC). After a 1, the error follows as JSON.
START = struct.Struct("<I")
ENDED = struct.Struct("<Bdd")


class Views:
    """Arrays in the shared memory: `inputs[bucket][position]` and `outputs[bucket][position]`.

    A tensor begins at the same offset in all buckets, so the rows of a smaller bucket are the first rows of a larger bucket.
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
