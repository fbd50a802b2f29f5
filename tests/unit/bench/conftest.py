"""The modules of the bench by their names, as `make bench-serving` finds them."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / path) for path in ("tests/bench", "lab", "lab/models")]
