#!/usr/bin/env python3
"""The hosts of the running lab (LAB names which), as an Ansible inventory."""

import runpy
import sys
from pathlib import Path

LAB = Path(__file__).resolve().parents[2] / "lab"
sys.path.insert(0, str(LAB))
sys.dont_write_bytecode = True
sys.argv = ["lab.py", "inventory"]
runpy.run_path(str(LAB / "lab.py"), run_name="__main__")
