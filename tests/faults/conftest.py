"""Where the collection is found, and what tests share."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "collections"), str(ROOT / "tests")]
