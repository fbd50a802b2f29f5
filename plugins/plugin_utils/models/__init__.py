"""Models as they lie on the controller: their files, manifests, compiled files."""

from __future__ import annotations
