#!/usr/bin/env python3
"""Run the demo, from a bare machine to hosts that recognize digits and classify photographs.

The steps are: start the lab, run site.yml, status.yml and check.yml, print a table, and name the report.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

from hosts import host_names
from settings import ROOT

INVENTORY = "inventories/lab"


def step(title: str, *command: str) -> int:
    """Run one step with its output on the screen, and return its exit code."""
    print(f"\ndemo: {title}", flush=True)
    began = time.monotonic()
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    print(f"demo: {title}: {time.monotonic() - began:.0f} s{'' if code == 0 else f', ended with {code}'}", flush=True)
    return code


def main() -> int:
    """Run the demo; return 0 if it succeeded."""
    os.environ.setdefault("LAB_MODELS", "images")
    hosts = host_names(int(os.environ.get("HOSTS", "2")))[1:]
    began = time.monotonic()
    for made in ("check", "report"):
        shutil.rmtree(ROOT / "build" / made, ignore_errors=True)
    playbook = ("ansible-playbook", "-i", INVENTORY)
    if code := step("a lab of bare hosts", sys.executable, "lab/lab.py", "up"):
        return code
    if code := step("from bare to serving", *playbook, "playbooks/site.yml"):
        return code
    drifted = step("status: the state of every host", *playbook, "playbooks/status.yml")
    failed = step("check: answers of every server", *playbook, "playbooks/check.yml")
    print(f"\ndemo: {time.monotonic() - began:.0f} s in all\n", flush=True)
    table = (sys.executable, "lab/demo_table.py", "--hosts", ",".join(hosts))
    shown = subprocess.run(table, cwd=ROOT, check=False).returncode
    # status.yml rendered the report, and check.yml rendered it again with the check results.
    report = ROOT / "build/report/index.html"
    print(f"demo: the report is {report}" if report.exists() else "demo: there is no report", flush=True)
    return drifted or failed or shown or not report.exists()


if __name__ == "__main__":
    sys.exit(main())
