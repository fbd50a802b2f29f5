"""A real Prometheus with series that were written beforehand, or with targets, for the tests of dashboards, charts and jobs."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# A series is its name and labels, and its samples as (seconds since 1970, value).
Series = tuple[str, Mapping[str, str], Iterable[tuple[float, float]]]


# The environment variable with the directory of another release of these programs. By default, the programs of this machine run.
PROGRAMS = "PROMETHEUS_PROGRAMS"
RELEASED = ("prometheus", "promtool")


def program(name: str) -> str:
    """Return the path of a program."""
    directory = os.environ.get(PROGRAMS) or None if name in RELEASED else None
    found = shutil.which(name, path=directory)
    assert found, f"{name} is not in {directory}" if directory else f"{name} is not installed: make unit-packages"
    return found


def version() -> tuple[int, ...]:
    """Return the version of Prometheus, which is also that of promtool."""
    pages = [subprocess.run([program(name), "--version"], capture_output=True, text=True, check=True) for name in RELEASED]
    ours, of_promtool = (re.findall(r"version (\d+)\.(\d+)", done.stdout + done.stderr)[0] for done in pages)
    assert ours == of_promtool, f"promtool is {of_promtool}, Prometheus {ours}"
    return tuple(map(int, ours))


def store(home: Path, series: Iterable[Series]) -> None:
    """Write the series as blocks of Prometheus' database."""
    page = home / "series.txt"
    home.mkdir(parents=True, exist_ok=True)
    with page.open("w") as target:
        for name, labels, samples in series:
            text = ",".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in labels.items())
            target.writelines(f"{name}{{{text}}} {value:.10g} {at:.3f}\n" for at, value in samples if not math.isnan(value))
        target.write("# EOF\n")
    command = [program("promtool"), "tsdb", "create-blocks-from", "openmetrics", "--quiet", str(page), str(home / "data")]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    page.unlink()


class Prometheus:
    """A running Prometheus and its port."""

    def __init__(self, port: int) -> None:
        self.port = port

    def get(self, path: str, **parameters: Any) -> Any:
        """Return the data of a query of the HTTP API. Raises AssertionError with Prometheus' message if it fails or warns."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters, doseq=True)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None
        # Prometheus 2.53 also reports infos here, for example about counters whose name does not end in _total.
        warnings = [warning for warning in answer.get("warnings", ()) if not warning.startswith("PromQL info:")]
        assert warnings == [], parameters
        return answer["data"]

    def ready(self) -> bool:
        """Return True if Prometheus answers queries."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5) as response:
                return response.status == 200
        except OSError:
            return False


@contextmanager
def prometheus(home: Path, series: Iterable[Series] = (), config: str = "scrape_configs: []\n") -> Iterator[Prometheus]:
    """Run a Prometheus that has these series. With its default configuration, it scrapes nothing."""
    if series:
        store(home, series)
    (home / "prometheus.yml").write_text(config)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        program("prometheus"),
        f"--config.file={home / 'prometheus.yml'}",
        f"--storage.tsdb.path={home / 'data'}",
        "--storage.tsdb.retention.time=30d",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (home / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    server = Prometheus(port)
    try:
        deadline = time.monotonic() + 60
        while not server.ready():
            assert process.poll() is None and time.monotonic() < deadline, (home / "prometheus.log").read_text()
            time.sleep(0.05)
        yield server
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
