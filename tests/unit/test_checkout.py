"""Tests look at the checkout that they stand in, whatever the environment has Ansible load."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHOW = "import checkout; from ansible_collections.npufleet.triton.plugins.module_utils import plan; print(plan.__file__)"


def test_the_collection_of_another_checkout_is_not_taken(tmp_path: Path) -> None:
    other = tmp_path / "ansible_collections/npufleet/triton/plugins/module_utils"
    other.mkdir(parents=True)
    (other / "plan.py").write_text("")
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(tmp_path), "PYTHONPATH": str(ROOT / "tests/unit")}
    done = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, check=True, env=environment)
    assert Path(done.stdout.strip()).resolve() == ROOT / "plugins/module_utils/plan.py"
