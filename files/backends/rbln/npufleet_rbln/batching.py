"""Join the requests of several clients into batches of the compiled sizes, and split the outputs of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Sequence

import numpy as np

from .compiled import Plan, memory_dtype
from .errors import Fault


@dataclass(eq=False)
class Item:
    """A valid request: its inputs in the order of the compiled file, its number of rows (entries of a batch), and its bucket.

    A bucket is one set of shapes that the file was compiled for. With a batch dimension, `bucket` is the largest bucket. Without a
    batch dimension, it is the bucket with the shapes of the request.
    """

    request: Any
    tensors: List[np.ndarray]
    rows: int
    bucket: int
    index: int
    arrived: float


class Batcher:
    """The assignment of requests to the buckets of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.limit = plan.limit
        self._expected = [
            (tensor.name, tensor.shape[1:], tensor.dtype, memory_dtype(tensor.dtype)) for tensor in plan.buckets[0].inputs
        ]
        order = sorted(range(len(plan.sizes)), key=plan.sizes.__getitem__)
        # The index is a number of rows. The value is the smallest bucket with at least that many rows.
        self._by_rows = [next(index for index in order if plan.sizes[index] >= rows) for rows in range(self.limit + 1)]

    def item(self, request: Any, tensors: List[np.ndarray], index: int = 0, arrived: float = 0.0) -> Item:
        """Check the inputs of a request, and return it as an item. Raises Fault."""
        if not self.plan.batched:
            return Item(request, tensors, 1, self._by_shape(tensors), index, arrived)
        rows = len(tensors[0]) if tensors[0].ndim else 0
        for (name, dims, dtype, in_memory), tensor in zip(self._expected, tensors):
            if tensor.shape[1:] != dims or tensor.dtype != in_memory:
                actual = f"{dtype if tensor.dtype == in_memory else tensor.dtype}{list(tensor.shape)}"
                raise Fault(f"input {name} is {actual}, expected {dtype}[rows, {', '.join(map(str, dims))}]", "bad_request")
            if len(tensor) != rows:
                sizes = sorted({len(array) for array in tensors})
                raise Fault(f"inputs have different batch sizes: {sizes}", "bad_request")
        if rows > self.limit:
            raise Fault(f"a batch of {rows} is larger than the largest compiled batch, {self.limit}", "too_large")
        if not rows:
            raise Fault("the batch has 0 rows, expected at least 1", "bad_request")
        return Item(request, tensors, rows, self._by_rows[self.limit], index, arrived)

    def _by_shape(self, tensors: List[np.ndarray]) -> int:
        for index, bucket in enumerate(self.plan.buckets):
            if all(
                entry.shape == tensor.shape and memory_dtype(entry.dtype) == tensor.dtype
                for entry, tensor in zip(bucket.inputs, tensors)
            ):
                return index
        found = [f"{tensor.dtype}{list(tensor.shape)}" for tensor in tensors]
        expected = [[f"{tensor.dtype}{list(tensor.shape)}" for tensor in bucket.inputs] for bucket in self.plan.buckets]
        raise Fault(f"inputs are {found}, compiled is {' or '.join(map(str, expected))}", "bad_request")

    def groups(self, items: Sequence[Item]) -> List[List[Item]]:
        """Join requests, in their order, into batches that do not exceed the largest compiled size."""
        joined: List[List[Item]] = []
        rows = 0
        for item in items:
            if not joined or not self.plan.batched or rows + item.rows > self.limit:
                joined.append([])
                rows = 0
            joined[-1].append(item)
            rows += item.rows
        return joined

    def bucket(self, items: Sequence[Item], rows: int) -> int:
        """Return the bucket for a batch of these requests, which have `rows` rows in total."""
        return self._by_rows[rows] if self.plan.batched else items[0].bucket

    def put(self, inputs: Sequence[Sequence[np.ndarray]], item: Item, first: int) -> None:
        """Write the rows of a request into the inputs of a batch, from row `first` on."""
        for into, tensor in zip(inputs[item.bucket], item.tensors):
            if self.plan.batched:
                into[first : first + item.rows] = tensor
            else:
                np.copyto(into, tensor)

    def pad(self, inputs: Sequence[np.ndarray], bucket: int, rows: int) -> int:
        """Fill the rest of a bucket with zeros. Return the number of filled rows."""
        padding = self.plan.sizes[bucket] - rows
        if padding:
            for into in inputs:
                into[rows:] = 0
        return padding

    def cut(self, outputs: Sequence[np.ndarray], first: int, item: Item) -> List[np.ndarray]:
        """Return the rows of a request, from row `first` on, as views of the outputs of a batch."""
        return [tensor[first : first + item.rows] for tensor in outputs] if self.plan.batched else list(outputs)
