# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""A deadline and a size limit for each answer that tritonclient reads.

The HTTP library of tritonclient has no deadline and no size limit. Its timeout restarts whenever bytes arrive, and a compressed
answer can have any size.
"""

from __future__ import annotations

import functools
import importlib
import queue
import sys
import threading
from contextlib import contextmanager
from typing import Any, Iterator, List, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.exchange import Budget

# MAX_RESPONSE_BYTES: largest size in bytes of an answer, and of all responses of a stream together
# RESPONSE_OVERHEAD: bytes that each response of a stream counts in addition to its size, for its memory in the queue
MAX_RESPONSE_BYTES, RESPONSE_OVERHEAD = 1 << 28, 1 << 10
# Options of gRPC channels: requests of any length, answers up to MAX_RESPONSE_BYTES, no compression
CHANNEL: List[Tuple[str, int]] = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
    ("grpc.compression_enabled_algorithms_bitset", 1),
]
_THREAD = threading.local()


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Limit the time and the answer size of HTTP requests in this context.

    Raises TimeoutError after `seconds`, and OSError for an answer that is too large.
    """
    _bound_responses()
    timeout = getattr(sys.modules.get("gevent"), "Timeout", None)
    limit = timeout.start_new(seconds, TimeoutError(f"no answer within {seconds:g} s")) if timeout else None
    _THREAD.budget = Budget(seconds, MAX_RESPONSE_BYTES)
    try:
        yield
    finally:
        _THREAD.budget = None
        if limit is not None:
            limit.close()


@functools.cache
def _bound_responses() -> None:
    """Replace the response class of geventhttpclient by a class that counts bytes, because the library has no size limit."""
    try:
        client = importlib.import_module("geventhttpclient.client")
    except ImportError:
        return
    original: Any = getattr(client, "HTTPSocketPoolResponse", None)
    if original is None:
        return

    class BoundedResponse(original):
        """A response whose bytes count against the budget of its thread, if the thread has a budget."""

        def feed(self, data: bytes) -> Any:
            """Parse received bytes."""
            budget: Optional[Budget] = getattr(_THREAD, "budget", None)
            if budget is not None:
                budget.remaining()
                budget.receive(len(data))
            return super().feed(data)

        def get(self, key: str, default: Any = None) -> Any:
            """Return a header. Raises OSError for a compressed answer, which could have any size after decompression."""
            found = super().get(key, default)
            if key.lower() == "content-encoding" and found not in (None, "identity"):
                raise OSError(f"the answer has the Content-Encoding {str(found)[:40]!a}, expected one that is not compressed")
            return found

    setattr(client, "HTTPSocketPoolResponse", BoundedResponse)  # noqa: B010 (no attribute that mypy knows)


class ResponseQueue:
    """A queue of the responses of one stream, each as (result, error). MAX_RESPONSE_BYTES limits all responses together."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Tuple[Any, Any]] = queue.Queue()
        self._left = MAX_RESPONSE_BYTES

    def put(self, result: Any, error: Any) -> None:
        """Add a response. The first response beyond the limit is replaced by an error, and all later responses are dropped."""
        left_before = self._left
        self._left -= RESPONSE_OVERHEAD + (0 if result is None else result.get_response().ByteSize())
        if self._left >= 0:
            self._queue.put((result, error))
        elif left_before >= 0:
            self._queue.put((None, OSError(f"the stream has more than {MAX_RESPONSE_BYTES} bytes")))

    def get(self, timeout: float) -> Tuple[Any, Any]:
        """Return the next response. Raises queue.Empty if none arrives within the timeout."""
        return self._queue.get(timeout=timeout)
