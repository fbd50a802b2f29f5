"""What can go wrong, as a kind that metrics count by and one line that says what to do."""

from __future__ import annotations

import re

# The kinds of rbln_errors_total, and the code of Triton's error that a client gets for each.
CODES = {
    "bad_request": "INVALID_ARG",
    "too_large": "INVALID_ARG",
    "no_memory": "UNAVAILABLE",
    "device": "UNAVAILABLE",
    "timeout": "UNAVAILABLE",
    "internal": "INTERNAL",
}


class Fault(Exception):
    """Why a model cannot be loaded or a request not be answered, in words for who sent it."""

    def __init__(self, message: str, kind: str = "internal", trace: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.trace = trace


def words(text: object) -> str:
    """An error as one line: the first line of its text, without the directories of paths."""
    found = str(text).strip()
    if not found:
        return type(text).__name__
    return re.sub(r"(?<![\w.])/(?:[^\s/]+/)+", "", found.splitlines()[0])


def vendor(error: BaseException, npu: str) -> Fault:
    """The SDK's error in words that say what to do about it; the vendor's own come last."""
    if isinstance(error, Fault):
        return error
    said = words(error)
    if isinstance(error, MemoryError) or re.search(r"lack of (device )?memory|out of memory", said, re.I):
        return Fault(
            f"NPU {npu} has no memory left: free some, or give the model fewer instances or smaller batches ({said})", "no_memory"
        )
    if re.search(r"inference failed: 50[13]\b", said, re.I):
        return Fault(f"NPU {npu} refuses to run: the card may be wedged, end what else uses it or reset it ({said})", "device")
    if isinstance(error, TimeoutError) or re.search(r"time[d -]*out", said, re.I):
        return Fault(f"NPU {npu} did not answer in time ({said})", "timeout")
    return Fault(f"NPU {npu}: {said}", "device")
