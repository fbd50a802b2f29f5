"""Makes the checkout importable as ansible_collections.npufleet.triton, as Ansible itself sees it."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "collections"))
