"""The controller's side of moving files."""

from __future__ import annotations
