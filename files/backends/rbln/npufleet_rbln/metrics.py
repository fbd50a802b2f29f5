"""The metrics of an instance on Triton's metrics endpoint.

Each update of a metric is a message to the server and takes 0.1 ms, so counts are collected here and sent once a second.
"""

from __future__ import annotations

import threading
from typing import Any, Dict, Mapping

from .errors import CODES

COUNTERS = {
    "rbln_batches_total": "Batches run on the NPU",
    "rbln_requests_total": "Requests answered from a run on the NPU",
    "rbln_rows_total": "Rows of the requests answered from a run on the NPU",
    "rbln_padding_rows_total": "Rows run only to fill a batch up to a compiled size",
    "rbln_device_seconds_total": "Time in which at least one batch of the instance was on the NPU",
}
ERRORS = "rbln_errors_total"
FAULT = "rbln_device_fault"
INTERVAL_S = 1.0


class Metrics:
    """The metrics of one instance. `utils` is Triton's module, `source` and `release` are digests of the model's release."""

    def __init__(self, utils: Any, labels: Mapping[str, str], source: str, release: str) -> None:
        family = utils.MetricFamily
        self._families: list[Any] = []  # the server removes the metrics of a family when the family is deleted
        self._unsent: Dict[str, float] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()

        def make(name: str, text: str, kind: Any, **more: str) -> Any:
            made = family(name=name, description=text, kind=kind)
            self._families.append(made)
            return made.Metric(labels={**labels, **more})

        self._metrics = {name: make(name, text, family.COUNTER) for name, text in COUNTERS.items()}
        errors = family(name=ERRORS, description="Requests that were not answered, by kind of error", kind=family.COUNTER)
        self._families.append(errors)
        for kind in CODES:
            self._metrics[kind] = errors.Metric(labels={**labels, "kind": kind})
        self._fault = make(FAULT, "1 while the NPU of the instance does not answer", family.GAUGE)
        self._fault.set(0)
        self._info = make("rbln_model_info", "Release that an instance serves", family.GAUGE, source=source, release=release)
        self._info.set(1)
        self._thread = threading.Thread(target=self._send_counts, name="metrics", daemon=True)
        self._thread.start()

    def batch(self, requests: int, rows: int, padding: int, seconds: float) -> None:
        """Count a batch that was run and answered."""
        counts = zip(COUNTERS, (1, requests, rows, padding, seconds))
        with self._lock:
            for name, count in counts:
                self._unsent[name] = self._unsent.get(name, 0) + count

    def error(self, kind: str, requests: int = 1) -> None:
        """Count requests that were answered with an error of this kind."""
        with self._lock:
            self._unsent[kind] = self._unsent.get(kind, 0) + requests

    def fault(self, fault: bool) -> None:
        """Set the gauge of a fault immediately, because the watchdog waits for it."""
        gauge = self._fault
        if gauge is not None:
            gauge.set(int(fault))

    def flush(self) -> None:
        """Send the counts since the last call to the server."""
        with self._lock:
            counts, self._unsent = self._unsent, {}
        for name, count in counts.items():
            if count:
                self._metrics[name].increment(count)

    def _send_counts(self) -> None:
        while not self._closing.wait(INTERVAL_S):
            self.flush()

    def close(self) -> None:
        """Send the remaining counts, and delete the metric objects, so that the server removes the metrics."""
        self._closing.set()
        self._thread.join()
        self.flush()
        self._metrics.clear()
        self._fault = self._info = None
        self._families.clear()
