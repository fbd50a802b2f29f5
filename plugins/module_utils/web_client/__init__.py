"""Requests to servers beyond this host."""

from __future__ import annotations
