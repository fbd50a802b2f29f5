"""The vendor's driver: its installer, its tool, and the files that a container needs of it."""

from __future__ import annotations
