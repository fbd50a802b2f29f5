"""The Docker engine of a host, and what runs in it."""

from __future__ import annotations
