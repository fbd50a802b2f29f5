"""The variables of the inventory: types, bounds, errors, and the inputs of preflight."""

from __future__ import annotations
