"""The inventory: its variables, their types, what is wrong with them, and what a host needs before its change."""

from __future__ import annotations
