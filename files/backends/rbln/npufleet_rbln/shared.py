"""What the stub and its device process share: the memory of the tensors, and the messages about it."""

from __future__ import annotations

import mmap
import os
import struct
from typing import List, Sequence

import numpy as np

from .compiled import Plan, Tensor, memory_dtype

PAGE = 4096
# To a lane: run this bucket, as the one of this number: they start in order.
# From it: 0 and when the run began and ended (CLOCK_MONOTONIC, s), or 1 and an error as JSON.
START = struct.Struct("<IQ")
ENDED = struct.Struct("<Bdd")


class Views:
    """Arrays of one lane over the shared memory: `inputs[bucket][position]`, `outputs[bucket][position]`.

    All buckets of a tensor begin at one place, so the rows of a smaller one are the first of a larger one.
    """

    def __init__(self, memory: mmap.mmap, plan: Plan, lane: int) -> None:
        offset = lane * lane_bytes(plan)
        self.inputs: List[List[np.ndarray]] = [[] for _bucket in plan.buckets]
        self.outputs: List[List[np.ndarray]] = [[] for _bucket in plan.buckets]
        for views, sides in (
            (self.inputs, [bucket.inputs for bucket in plan.buckets]),
            (self.outputs, [bucket.outputs for bucket in plan.buckets]),
        ):
            for tensors in zip(*sides):
                for into, entry in zip(views, tensors):
                    into.append(np.ndarray(entry.shape, memory_dtype(entry.dtype), memory, offset))
                offset += _room(tensors)


def _room(tensors: Sequence[Tensor]) -> int:
    """Bytes for a tensor in any bucket, in whole pages."""
    largest = max(int(np.prod(tensor.shape, dtype=np.int64)) * memory_dtype(tensor.dtype).itemsize for tensor in tensors)
    return max(PAGE, -(-largest // PAGE) * PAGE)


def lane_bytes(plan: Plan) -> int:
    """Bytes that one lane takes."""
    sides = [*zip(*(bucket.inputs for bucket in plan.buckets)), *zip(*(bucket.outputs for bucket in plan.buckets))]
    return sum(_room(tensors) for tensors in sides)


def allot(plan: Plan, lanes: int) -> int:
    """Descriptor of new memory for all lanes; it has no name, so nothing of it can be left in /dev/shm."""
    descriptor = os.memfd_create("rbln-tensors", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, lanes * lane_bytes(plan))
    return descriptor


def attach(descriptor: int) -> mmap.mmap:
    """The memory behind a descriptor, which is closed; all pages are there from the start."""
    try:
        return mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0x8000))
    finally:
        os.close(descriptor)
