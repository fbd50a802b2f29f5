"""One deadline and one limit of bytes for each answer that tritonclient reads.

Its library for HTTP has neither. A timeout of gevent's does not come while bytes do, and what is compressed has no size at all.
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

# Bytes of an answer, or of a stream of them; what each response takes beyond its own
LARGEST, EACH = 1 << 28, 1 << 10
# What gRPC's channels take: requests of any length, answers up to the limit, and none that is compressed
CHANNEL: List[Tuple[str, int]] = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", LARGEST),
    ("grpc.compression_enabled_algorithms_bitset", 1),
]
_OF_THREAD = threading.local()


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Keep all that is asked over HTTP in here to so many seconds. Raises TimeoutError, and OSError for an answer too large."""
    _bound_responses()
    timeout = getattr(sys.modules.get("gevent"), "Timeout", None)
    limit = timeout.start_new(seconds, TimeoutError(f"no answer within {seconds:g} s")) if timeout else None
    _OF_THREAD.budget = Budget(seconds, LARGEST)
    try:
        yield
    finally:
        _OF_THREAD.budget = None
        if limit is not None:
            limit.close()


@functools.cache
def _bound_responses() -> None:
    """Have the responses of geventhttpclient, of which nobody can be handed another kind, count what they are fed."""
    try:
        client = importlib.import_module("geventhttpclient.client")
    except ImportError:
        return
    plain: Any = getattr(client, "HTTPSocketPoolResponse", None)
    if plain is None:
        return

    class Bounded(plain):
        """A response within the budget of its thread."""

        def feed(self, data: bytes) -> Any:
            """Take what has come."""
            budget: Optional[Budget] = getattr(_OF_THREAD, "budget", None)
            if budget is not None:
                budget.remaining()
                budget.receive(len(data))
            return super().feed(data)

        def get(self, key: str, default: Any = None) -> Any:
            """A header. What is compressed is refused: nothing here asks for it, and it may be of any size."""
            found = super().get(key, default)
            if key.lower() == "content-encoding" and found not in (None, "identity"):
                raise OSError(f"the answer has the Content-Encoding {str(found)[:40]!a}, expected one that is not compressed")
            return found

    setattr(client, "HTTPSocketPoolResponse", Bounded)  # noqa: B010 (no attribute that mypy knows)


class Arrived:
    """The responses of a stream as they come, up to the limit of an answer: (result, error), as tritonclient calls back."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Tuple[Any, Any]] = queue.Queue()
        self._left = LARGEST

    def put(self, result: Any, error: Any) -> None:
        """Take a response; those that are too many are dropped, behind one error."""
        before = self._left
        self._left -= EACH + (0 if result is None else result.get_response().ByteSize())
        if self._left >= 0:
            self._queue.put((result, error))
        elif before >= 0:
            self._queue.put((None, OSError(f"the stream has more than {LARGEST} bytes")))

    def get(self, timeout: float) -> Tuple[Any, Any]:
        """The next one. Raises queue.Empty."""
        return self._queue.get(timeout=timeout)
