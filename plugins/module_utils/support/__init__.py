"""The content of a support bundle, read on the host."""

from __future__ import annotations
