"""The import paths of the collection and of the shared helpers of tests."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "collections"), str(ROOT / "tests")]
