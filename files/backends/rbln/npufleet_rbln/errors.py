"""The errors of the backend. Each has a kind for the metrics, and a message of one line with the next step."""

from __future__ import annotations

import re

# {kind in rbln_errors_total: code of the error that a client of Triton gets}
CODES = {
    "bad_request": "INVALID_ARG",
    "too_large": "INVALID_ARG",
    "no_memory": "UNAVAILABLE",
    "device": "UNAVAILABLE",
    "timeout": "UNAVAILABLE",
    "internal": "INTERNAL",
}


class Fault(Exception):
    """The reason why a model cannot be loaded or a request cannot be answered. The message is for operators and clients."""

    def __init__(self, message: str, kind: str = "internal", trace: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.trace = trace


def first_line(text: object) -> str:
    """Return the first line of an error, without the directories of paths."""
    found = str(text).strip()
    if not found:
        return type(text).__name__
    return re.sub(r"(?<![\w.])/(?:[^\s/]+/)+", "", found.splitlines()[0])


def vendor(error: BaseException, npu: str) -> Fault:
    """Return an error of the SDK as a Fault: a message with the next step, followed by the vendor's text."""
    if isinstance(error, Fault):
        return error
    line = first_line(error)
    if isinstance(error, MemoryError) or re.search(r"lack of (device )?memory|out of memory", line, re.I):
        return Fault(
            f"NPU {npu} has no memory left: free some, or give the model fewer instances or smaller batches ({line})",
            "no_memory",
        )
    if re.search(r"inference failed: 50[13]\b", line, re.I):
        return Fault(
            f"NPU {npu} refuses to run: the card may be wedged, end other processes that use the card or reset it ({line})",
            "device",
        )
    if isinstance(error, TimeoutError) or re.search(r"time[d -]*out", line, re.I):
        return Fault(f"NPU {npu} did not answer in time ({line})", "timeout")
    return Fault(f"NPU {npu}: {line}", "device")
