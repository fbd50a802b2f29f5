"""A real server as a host starts it, in explicit mode with its key, and a model whose load lasts until a test ends it."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import time
from pathlib import Path
from typing import Any

from ansible_collections.npufleet.triton.plugins.module_utils.triton import keys
from ansible_collections.npufleet.triton.plugins.module_utils.triton.served import read_served
from host import Host
from pytriton_wheel import tritonserver

HERE = Path(__file__).parent
WHEELS = {"24.01": "0.5.1", "24.10": "0.7.0"}
# Seconds after which an event counts as missing, even on a slow machine
TIMEOUT = 600
# Twice the number of Triton's HTTP threads
CONNECTIONS = 16
INFER = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [3]}]})


class BareServer:
    """A server in explicit mode that serves `alpha`. A load of the model `slow` lasts until the file `go` exists."""

    def __init__(self, directory: Path, release: str) -> None:
        self.host = Host("explicit", directory, tritonserver(HERE.parents[1] / "build/faults", WHEELS[release]))
        self.go = directory / "go"
        served = Path(self.host.seen, "served")
        shutil.copytree(HERE / "models/alpha", served / "alpha")
        self.host.start()
        self.wait(lambda: self.ask("GET", "/v2/models/alpha/ready")[0] == 200)
        shutil.copytree(HERE / "models/alpha", served / "slow")
        model = served / "slow/1/model.py"
        waits = f'        import os, time\n        while not os.path.exists("{self.go}"):\n            time.sleep(0.05)\n'
        nothing = '        """There is nothing to load."""\n'
        assert nothing in model.read_text()
        model.write_text(model.read_text().replace(nothing, nothing + waits))

    def wait(self, condition: Any) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            assert time.monotonic() < deadline, self.host.log.read_text()[-2000:]
            time.sleep(0.05)

    def key(self) -> dict[str, str]:
        return keys.headers(self.host.key)

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.host.port, timeout=TIMEOUT)

    def ask(self, method: str, resource: str, body: str = "", headers: dict[str, str] | None = None) -> tuple[int, str]:
        connection = self.connection()
        with contextlib.closing(connection):
            try:
                connection.request(method, resource, body or None, headers or {})
                answer = connection.getresponse()
                return answer.status, answer.read().decode("utf-8", "replace")
            except OSError as error:
                return 0, str(error)

    def state(self, model: str) -> str:
        served = read_served({"address": "127.0.0.1", "http_port": self.host.port, "key": self.host.key}) or {}
        return ", ".join(entry["state"] for entry in served.get(model, {}).values())
