#!/usr/bin/env python3
"""Follow docs/models.md on the running, converged lab.

The site that the page describes is a separate checkout below build/models with the inventory of the lab.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

from page import ROOT, Reader, checkout, environment

PAGE = ROOT / "docs/models.md"
SITE = ROOT / "build/models"


def main() -> None:
    """Follow the page, and compare the answer of the model."""
    listing = subprocess.run([str(ROOT / "inventories/lab/hosts.py")], capture_output=True, text=True, check=True).stdout
    lab = json.loads(listing)
    if "all" not in lab:
        raise SystemExit("models.py: no lab runs, expected one that is converged: make lab converge")
    facts = lab["all"]["vars"]
    shutil.rmtree(SITE, ignore_errors=True)
    site = SITE / "checkout"
    checkout(site)
    prod = site / "inventories/prod"
    (prod / "group_vars/all").mkdir(parents=True)
    (prod / "hosts.py").write_text(f"#!{sys.executable}\nprint({listing!r})\n")
    (prod / "hosts.py").chmod(0o755)
    shutil.copy(ROOT / "inventories/lab/group_vars/all.yml", prod / "group_vars/all/lab.yml")
    values = {
        "192.0.2.11": lab["_meta"]["hostvars"][lab["npu_hosts"]["hosts"][0]]["ansible_host"],
        "CA22/0.9": facts["lab_models"]["digits"]["key"],
        "CA22-0.9": facts["lab_models"]["digits"]["key"].replace("/", "-"),
        "/srv/fleet/compiled": str(SITE / "compiled"),
    }
    shell = environment(facts, SITE / "home")
    # The page assumes that the virtual environment of the site is active.
    shell["PATH"] = f"{ROOT}/.venv/bin:{shell['PATH']}"
    reader = Reader(site, shell, SITE / "output.txt")
    try:
        reader.follow(PAGE, values, {})
    finally:
        reader.close()
    if reader.commands < 6 or reader.files < 5:
        raise SystemExit(f"{reader.commands} commands and {reader.files} files are too few: the page was not followed")
    answer = (SITE / "output.txt").read_text().rpartition("$ bin/npufleet-infer")[2]
    shares = [float(line.partition("probability ")[2].split()[0]) for line in answer.splitlines() if "probability " in line]
    if len(shares) != 3 or not 0.999 < sum(shares) < 1.001:
        raise SystemExit(f"the answer is {answer!r}, expected three probabilities whose sum is 1")
    print(f"{PAGE.name}: {reader.commands} commands and {reader.files} files as written; the model answered {shares}")


if __name__ == "__main__":
    main()
