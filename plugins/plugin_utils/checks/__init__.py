"""Check files: what each model is asked, read and validated, and the arrays that they name."""

from __future__ import annotations
