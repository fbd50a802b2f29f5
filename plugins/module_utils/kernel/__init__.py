"""What the kernel of a host offers, without its traps: locks, a clock that does not step, directory trees of any depth."""

from __future__ import annotations
