"""What a support bundle holds, read on the host."""

from __future__ import annotations
