"""The modules of the bench by their names, as `make bench-serving` finds them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
