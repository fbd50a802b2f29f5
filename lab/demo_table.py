#!/usr/bin/env python3
"""Draws what the demo read back: versions, cards, models with digests, and ten digits with the labels they got.

Reads build/status.json and build/check/<host>.json. The last line counts what is true; exit 1 unless all of it is good.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, Mapping, Sequence

BUILD = Path(__file__).resolve().parents[1] / "build"
SIDE = 8
LEVELS = 16
GREYS = (232, 255)
COLUMN = SIDE + 2


def read(path: Path) -> Any:
    """A JSON file, None where there is none."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def facts(status: Mapping[str, Any]) -> list[str]:
    """Lines on a host: versions, cards, and each model with the digests that the server gave back."""
    actual = status.get("actual", {})
    tool = actual.get("driver", {}).get("tool", {})
    contents = actual.get("image", {}).get("contents") or []
    versions = {
        "driver": actual.get("driver", {}).get("module"),
        "engine": (actual.get("engine", {}).get("running") or {}).get("version"),
        "image": (actual.get("image", {}).get("id") or "").removeprefix("sha256:")[:12] or None,
        "Triton": actual.get("server", {}).get("version"),
        "SDK": next((one.split("==")[1] for one in contents if one.startswith("rebel-compiler==")), None),
        "release": status.get("release"),
    }
    lines = ["  " + "   ".join(f"{name} {version or 'unknown'}" for name, version in versions.items())]
    cards = [f"{one['device']} {one['name']} {one['status']}" for one in tool.get("devices", [])]
    lines.append(f"  cards   {', '.join(cards) or 'none'}")
    for model, found in sorted((actual.get("server", {}).get("served") or {}).items()):
        for version, one in sorted(found.items()):
            lines.append(f"  model   {model} version {version} {one['state']}, release {(one['release'] or 'unknown')[:12]}")
    return lines


def draw(image: Sequence[int], colour: bool) -> list[str]:
    """An 8 x 8 image in four lines of eight characters: an upper and a lower half block are two pixels."""
    rows = [image[start : start + SIDE] for start in range(0, SIDE * SIDE, SIDE)]
    lines = []
    for upper, lower in zip(rows[::2], rows[1::2]):
        if colour:
            low, high = GREYS
            grey = [[low + value * (high - low) // LEVELS for value in row] for row in (upper, lower)]
            lines.append("".join(f"\033[38;5;{a};48;5;{b}m▀" for a, b in zip(*grey)) + "\033[0m")
        else:
            lines.append("".join(" ▄▀█"[(a > LEVELS // 2) * 2 + (b > LEVELS // 2)] for a, b in zip(upper, lower)))
    return lines


def digits(checks: Sequence[Mapping[str, Any]], colour: bool) -> list[str]:
    """Rows of drawn requests with the label that each got and its latency; a wrong one says what was expected."""
    shown = [one for one in checks if one.get("image") and one["protocol"] == "http" and "label" in one]
    if not shown:
        return ["  no answer to draw"]
    first = shown[0]["model"]
    shown = [one for one in shown if one["model"] == first][:10]
    drawn = [draw(one["image"], colour) for one in shown]
    lines = ["  " + "  ".join(column[number] for column in drawn) for number in range(SIDE // 2)]
    said = [str(one["label"]) if one["ok"] else f"{one['label']}, not {one['expected']}" for one in shown]
    took = [f"{one['ms']:.1f} ms" for one in shown]
    return [*lines, *("  " + "".join(f"{word:^{SIDE}}  " for word in words).rstrip() for words in (said, took))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", required=True, help="the hosts that have to serve, such as npu1,npu2")
    hosts = parser.parse_args().hosts.split(",")
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    statuses = {one["host"]: one for one in read(BUILD / "status.json") or []}
    serving, passed, total = 0, 0, 0
    for host in hosts:
        checks = (read(BUILD / "check" / f"{host}.json") or {}).get("checks", [])
        status = statuses.get(host, {})
        good = [one for one in checks if one["ok"]]
        passed, total = passed + len(good), total + len(checks)
        serving += bool(good) and status.get("plan") == []
        print(host)
        print("\n".join(facts(status)))
        print("\n".join(digits(checks, colour)))
        for one in checks:
            if not one["ok"]:
                print(f"  WRONG   {one['name']}: {one['why']}")
        for line in status.get("report") or []:
            print(f"  DRIFT   {line}")
        print()
    print(f"demo: {serving} hosts serving, {passed} of {total} checks passed")
    return 0 if serving == len(hosts) and passed == total and total else 1


if __name__ == "__main__":
    sys.exit(main())
