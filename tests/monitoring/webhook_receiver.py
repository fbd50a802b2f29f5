#!/usr/bin/env python3
"""A webhook receiver for Alertmanager: webhook_receiver.py PORT. It answers GET with all alerts that it has received, as JSON.

An alert is {"received": seconds since 1970, "status": "firing" or "resolved", "labels": {...}}.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_alerts: list[dict[str, Any]] = []
_lock = threading.Lock()


def alerts_in(body: bytes, received: float) -> list[dict[str, Any]]:
    """Return the alerts in the body of a notification."""
    return [{"received": received, "status": alert["status"], "labels": alert["labels"]} for alert in json.loads(body)["alerts"]]


class Receiver(BaseHTTPRequestHandler):
    """The HTTP side of the receiver."""

    def do_POST(self) -> None:
        received = time.time()
        found = alerts_in(self.rfile.read(int(self.headers["Content-Length"])), received)
        with _lock:
            _alerts.extend(found)
        self._answer(b"{}")

    def do_GET(self) -> None:
        with _lock:
            body = json.dumps(_alerts).encode()
        self._answer(body)

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1])), Receiver).serve_forever()
