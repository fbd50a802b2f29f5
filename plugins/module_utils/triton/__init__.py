"""Triton itself: its HTTP API, its loads by gRPC, its command line, its key."""

from __future__ import annotations
