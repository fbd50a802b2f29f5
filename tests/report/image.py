#!/usr/bin/env python3
"""Saves a picture of the report of a small made-up fleet, for the README."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from browser import Browser
from fleet import make

FLEET = ["", "drift", "", "", "wrong answer", "unreachable", "", "sick card"]


def main() -> int:
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        page = make(Path(place) / "fleet", FLEET)
        browser = Browser()
        try:
            browser.open(page, height=1080)
            browser.element("#host-npu5 .host button").click()
            browser.picture(target)
        finally:
            browser.close()
    print(f"{target}: {target.stat().st_size // 1024} KB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
