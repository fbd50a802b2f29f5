"""Models on the controller: their files, manifests and compiled files."""

from __future__ import annotations
