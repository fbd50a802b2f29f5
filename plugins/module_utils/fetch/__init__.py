"""The host's side of moving files: fetching them itself, and taking over what was sent."""

from __future__ import annotations
