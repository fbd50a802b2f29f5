"""What a host must have, concern by concern: what is wanted, how it is read, and the difference."""

from __future__ import annotations
