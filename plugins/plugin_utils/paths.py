"""Where this collection lies, in a checkout or installed."""

from __future__ import annotations

import os

COLLECTION = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
