#!/usr/bin/env python3
"""Save a picture of the report of a small invented fleet for the README, and a picture of its charts for docs/monitoring.md."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/monitoring"))

import fleet_series  # noqa: E402
from browser import Browser  # noqa: E402
from fleet import make  # noqa: E402
from prometheus_server import prometheus  # noqa: E402

FLEET = ["", "drift", "", "", "wrong answer", "unreachable", "", "sick card"]


def main() -> int:
    report, charts = (Path(name) for name in sys.argv[1:3])
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        hosts = [f"npu{number}" for number in range(1, len(FLEET) + 1)]
        series = fleet_series.Fleet(float(int(time.time())), hosts, sick=["npu8"], seconds=6 * 3600, step=150)
        with prometheus(place / "prometheus", fleet_series.series(series)) as server:
            charted = make(place / "charted", FLEET, monitoring=[server.port])
        browser = Browser()
        try:
            browser.open(make(place / "fleet", FLEET), height=1080)
            browser.element("#host-npu5 .host button").click()
            browser.picture(report)
            browser.open(charted, height=1000)
            browser.element("#charts summary").click()
            browser.picture(charts)
        finally:
            browser.close()
    for target in (report, charts):
        print(f"{target}: {target.stat().st_size // 1024} KB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
