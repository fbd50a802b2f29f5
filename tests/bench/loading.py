#!/usr/bin/env python3
"""Measure how long the clients of one model wait while another model loads: `make bench-loading`.

For each release, a real server runs on this machine in mode explicit. The clients send requests to a small model without a pause.
Twice as many clients as Triton has HTTP threads use HTTP and keep their connections, and one client uses gRPC. The bench measures
three spans of equal length. In `idle`, no model loads. In `grpc`, a model loads on a request over gRPC, as npufleet sends it. In
`http`, a model loads on a request over HTTP. The bench prints a table and writes build/bench/loading.json: milliseconds by span and
client, and the longest wait of each span as a multiple of the longest wait in `idle`.
"""

from __future__ import annotations

import http.client
import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / entry) for entry in ("collections", "tests", "tests/faults")]

from bare_server import CONNECTIONS, INFER, TIMEOUT, WHEELS, BareServer  # noqa: E402
from tritonclient import grpc as triton  # noqa: E402

# Seconds of each span, and seconds between two requests of a client
SPAN, PAUSE = 6.0, 0.05


class Client(threading.Thread):
    """A thread that sends requests to `alpha` over one connection, and records when each request began and ended."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.waits: List[tuple[float, float]] = []
        self.stopped = threading.Event()

    def run(self) -> None:
        while not self.stopped.wait(PAUSE):
            began = time.monotonic()
            self.send()
            self.waits.append((began, time.monotonic()))

    def send(self) -> None:
        """Send one request. Raises SystemExit if it fails."""
        raise NotImplementedError

    def of(self, began: float, ended: float) -> List[float]:
        """Return the milliseconds of each request that was sent in a span, even if its answer came after the span."""
        return [(answered - sent) * 1000 for sent, answered in self.waits if began <= sent <= ended]


class OverHttp(Client):
    """A client that keeps its HTTP connection."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)

    def send(self) -> None:
        self.connection.request("POST", "/v2/models/alpha/infer", INFER)
        answer = self.connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise SystemExit(f"bench: alpha answered {answer.status}: {body[:200]!r}")


class OverGrpc(Client):
    """A client with a gRPC channel."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.client = triton.InferenceServerClient(f"127.0.0.1:{port}")
        tensor = json.loads(INFER)["inputs"][0]
        self.inputs = [triton.InferInput(tensor["name"], tensor["shape"], tensor["datatype"])]
        self.inputs[0].set_data_from_numpy(np.array([tensor["data"]], np.float32))

    def send(self) -> None:
        self.client.infer("alpha", self.inputs, client_timeout=TIMEOUT)


def over_grpc(place: BareServer) -> None:
    """Request a load as npufleet does it, with the gRPC client of the image and the key."""
    asker = place.host.asker()
    asker.timeout = TIMEOUT
    asker.request("slow", "load")


def over_http(place: BareServer) -> None:
    """Request a load over HTTP. One of Triton's HTTP threads is busy until the load ends."""
    status, body = place.ask("POST", "/v2/repository/models/slow/load", "{}", place.key())
    if status != 200:
        raise SystemExit(f"bench: the load was answered {status}: {body}")


def held(place: BareServer, load: Callable[[BareServer], None]) -> None:
    """Keep `slow` loading for the time of a span, and unload it afterwards."""
    place.go.unlink(missing_ok=True)
    loading = threading.Thread(target=load, args=(place,))
    loading.start()
    place.wait(lambda: place.state("slow") == "LOADING")
    time.sleep(SPAN)
    place.go.touch()
    loading.join()
    place.wait(lambda: place.state("slow") == "READY")
    place.ask("POST", "/v2/repository/models/slow/unload", "{}", place.key())
    place.wait(lambda: place.state("slow") == "UNAVAILABLE")


SPANS: Dict[str, Callable[[BareServer], None]] = {
    "idle": lambda _place: time.sleep(SPAN),
    "grpc": lambda place: held(place, over_grpc),
    "http": lambda place: held(place, over_http),
}


def figures(waits: List[float]) -> Dict[str, float]:
    """Return the results of one kind of client in one span."""
    return {"requests": len(waits), "median_ms": round(statistics.median(waits), 2), "longest_ms": round(max(waits), 1)}


def measure(release: str) -> List[Dict[str, Any]]:
    """Return the rows of one release."""
    with tempfile.TemporaryDirectory() as directory:
        place = BareServer(Path(directory), release)
        try:
            clients: List[Client] = [OverHttp(place.host.port) for _number in range(CONNECTIONS)]
            clients.append(OverGrpc(place.host.grpc_port))
            for client in clients:
                client.start()
            times = {}
            for span, work in SPANS.items():
                began = time.monotonic()
                work(place)
                times[span] = (began, time.monotonic())
            for client in clients:
                client.stopped.set()
            for client in clients:
                client.join()
        finally:
            place.go.touch()
            place.host.stop(drain=False)
    rows = []
    for kind in (OverHttp, OverGrpc):
        idle = 0.0
        for span, (began, ended) in times.items():
            results = figures([wait for client in clients if isinstance(client, kind) for wait in client.of(began, ended)])
            idle = idle or results["longest_ms"]
            ratio = round(results["longest_ms"] / idle, 1)
            rows.append({"release": release, "clients": kind.__name__[4:].lower(), "load": span, **results, "ratio": ratio})
    return rows


def table(rows: List[Dict[str, Any]]) -> str:
    """Return the rows as a table for the terminal."""
    head = f"{'release':<8} {'clients':<8} {'load':<6} {'requests':>8} {'median ms':>10} {'longest ms':>11} {'to idle':>8}"
    line = "{release:<8} {clients:<8} {load:<6} {requests:>8} {median_ms:>10} {longest_ms:>11} {ratio:>8}"
    return "\n".join([head, *(line.format(**row) for row in rows)])


def main() -> None:
    rows = [row for release in sorted(WHEELS) for row in measure(release)]
    path = ROOT / "build/bench/loading.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
