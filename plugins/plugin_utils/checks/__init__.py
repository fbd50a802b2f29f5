"""Check files: the requests to each model, the expected responses, and the arrays of both."""

from __future__ import annotations
