"""The report of a fleet: what it shows."""

from __future__ import annotations
