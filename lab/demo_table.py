#!/usr/bin/env python3
"""Print the state of the demo hosts: versions, cards, models with digests, and ten digits and two photographs with their labels.

The input is build/status.json and build/check/<host>.json. The last line counts the serving hosts and the passed checks. After any
failure, the exit code is 1.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import math
import os
import sys
from itertools import zip_longest
from pathlib import Path
from typing import Any, Mapping, Sequence

import numpy as np
from PIL import Image

BUILD = Path(__file__).resolve().parents[1] / "build"
MOST_DIGITS = 10  # Number of digits to print
LEVELS = 16  # Highest grey level of a digit's pixels
GREYS = (232, 255)  # First and last grey of the 256-colour palette
PHOTOGRAPH_WIDTH = 32  # Width of a photograph in characters
LABELS = 3  # Number of labels to print for each photograph
# Separator between the labels of one answer in a check result
SEPARATOR = " | "
# Characters from dark to light, for photographs on terminals without colours
SHADES = " ░▒▓█"
# Grey level above which a pixel of a digit is drawn on terminals without colours
INK = 5
GAP = "  "


def read(path: Path) -> Any:
    """Return the content of a JSON file, or None if it cannot be read."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def value_at(value: Any, *keys: str) -> Any:
    """Return the value at this path of keys, or None if a key is missing."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def facts(status: Mapping[str, Any]) -> list[str]:
    """Return the lines about a host: versions, cards, and each model with the digests that were read back."""
    actual = status.get("actual")
    contents = value_at(actual, "image", "contents") or []
    versions = {
        "driver": value_at(actual, "driver", "module"),
        "engine": value_at(actual, "engine", "running", "version"),
        "Triton": value_at(actual, "server", "version"),
        "SDK": next((package.split("==")[1] for package in contents if package.startswith("rebel-compiler==")), None),
        "release": status.get("release"),
        "image": short(value_at(actual, "image", "id")),
    }
    cards = value_at(actual, "driver", "tool", "devices") or []
    card_texts = [" ".join(str(card.get(key, "?")) for key in ("device", "name", "status")) for card in cards]
    lines = ["  " + "   ".join(f"{name} {version or 'unknown'}" for name, version in versions.items())]
    lines.append(f"  cards   {', '.join(card_texts) or 'none'}")
    for model, served_versions in sorted((value_at(actual, "server", "served") or {}).items()):
        for version, entry in sorted(served_versions.items()):
            digests = "".join(f", {name} {short(entry[name])}" for name in ("source", "release") if entry.get(name))
            lines.append(f"  model   {model} version {version} {entry.get('state')}{digests or ', digest unknown'}")
    return lines


def short(digest: str | None) -> str:
    """Return the first 12 digits of a digest, or an empty string without a digest."""
    return (digest or "").removeprefix("sha256:")[:12]


def draw(image: Sequence[int], colour: bool) -> list[str]:
    """Return the lines of a square image. Each character shows two pixels as half blocks, in grey if the terminal has colours."""
    side = math.isqrt(len(image))
    image = [min(max(value, 0), LEVELS) for value in image]
    rows = [image[start : start + side] for start in range(0, side * side, side)]
    lines = []
    for upper, lower in zip(rows[::2], rows[1::2]):
        if colour:
            low, high = GREYS
            grey = [[low + value * (high - low) // LEVELS for value in row] for row in (upper, lower)]
            lines.append("".join(f"\033[38;5;{a};48;5;{b}m▀" for a, b in zip(*grey)) + "\033[0m")
        else:
            lines.append("".join(" ▄▀█"[(a > INK) * 2 + (b > INK)] for a, b in zip(upper, lower)))
    return lines


def digits(checks: Sequence[Mapping[str, Any]], colour: bool) -> list[str]:
    """Return the lines for ten requests: image, actual label, expected label, and latency in the client."""
    drawable = [check for check in checks if len(check.get("image") or []) >= 4 and "label" in check]
    if not drawable:
        return ["  no answer to draw"]
    # Only requests to one model over one protocol are shown. HTTP comes first in the results.
    kind = (drawable[0].get("model"), drawable[0].get("protocol"), len(drawable[0]["image"]))
    shown = [check for check in drawable if (check.get("model"), check.get("protocol"), len(check["image"])) == kind][:MOST_DIGITS]
    drawn = [draw(check["image"], colour) for check in shown]
    wide = math.isqrt(kind[2])
    words = {
        "read": [f"{check['label']}{'' if check['ok'] else ' !'}" for check in shown],
        "is": [str(check.get("expected", "?")) for check in shown],
        "ms": [f"{check['ms']:.1f}" for check in shown],
    }
    lines = [f"{'':8}" + GAP.join(column[number] for column in drawn) for number in range(len(drawn[0]))]
    lines += [f"  {name:6}" + GAP.join(f"{word:^{wide}}" for word in row).rstrip() for name, row in words.items()]
    return lines


def paint(picture: Image.Image, colour: bool) -> list[str]:
    """Return the lines of a photograph. A character shows two pixels if the terminal has colours, otherwise one pixel."""
    height = max(1, round(picture.height * PHOTOGRAPH_WIDTH / picture.width / 2))
    if colour:
        pixels = np.asarray(picture.convert("RGB").resize((PHOTOGRAPH_WIDTH, 2 * height)))
        cells = [
            ["\033[38;2;{};{};{};48;2;{};{};{}m▀".format(*a, *b) for a, b in zip(*two)] for two in zip(pixels[::2], pixels[1::2])
        ]
        return ["".join(row) + "\033[0m" for row in cells]
    levels = np.asarray(picture.convert("L").resize((PHOTOGRAPH_WIDTH, height)), np.int64)
    return ["".join(SHADES[level * len(SHADES) // 256] for level in row) for row in levels]


def photographs(checks: Sequence[Mapping[str, Any]], colour: bool) -> list[str]:
    """Return the lines for the photographs that were sent as JPEG or PNG, with their likeliest labels and the latency."""
    shown = [
        check
        for check in checks
        if check.get("model") == "image_classifier" and check.get("picture") and SEPARATOR in str(check.get("got"))
    ]
    # Only one protocol is shown. HTTP comes first in the results.
    shown = [check for check in shown if check["protocol"] == shown[0]["protocol"]]
    if not shown:
        return []
    labels = [check["got"].split(SEPARATOR)[:LABELS] for check in shown]
    pictures = [Image.open(io.BytesIO(base64.b64decode(check["picture"].partition(",")[2]))) for check in shown]
    painted = zip_longest(*(paint(picture, colour) for picture in pictures), fillvalue=" " * PHOTOGRAPH_WIDTH)
    lines = ["", *((" " * 8 + GAP.join(row)).rstrip() for row in painted)]
    for number in range(min(map(len, labels))):
        words = [f"{names[number]}{'' if check['ok'] else ' !'}" for names, check in zip(labels, shown)]
        lines.append(f"  {'read' if number == 0 else '':6}" + GAP.join(f"{word:<{PHOTOGRAPH_WIDTH}}" for word in words).rstrip())
    if all(check["ok"] for check in shown):
        lines.append(f"  {'is':6}the same by onnxruntime alone: this network's weights are random")
    lines.append(f"  {'ms':6}" + GAP.join(f"{check['ms']:<{PHOTOGRAPH_WIDTH}.1f}" for check in shown).rstrip())
    return lines


def main() -> int:
    """Print the table; return 0 if every host serves and every check passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", required=True, help="the hosts that have to serve, such as npu1,npu2")
    hosts = [name for name in parser.parse_args().hosts.split(",") if name]
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    statuses = {host.get("host"): host for host in value_at(read(BUILD / "status.json"), "hosts") or []}
    serving, passed, total = 0, 0, 0
    for host in hosts:
        result = read(BUILD / "check" / f"{host}.json") or {}
        checks, status = result.get("checks") or [], statuses.get(host, {})
        good = [check for check in checks if check["ok"]]
        passed, total = passed + len(good), total + len(checks)
        serving += bool(good) and status.get("state") == "in sync"
        print(host)
        print("\n".join([*facts(status), *digits(checks, colour), *photographs(checks, colour)]))
        for check in checks:
            if not check["ok"]:
                print(f"  WRONG   {check['name']}: {check['why']}")
        if not checks:
            print(f"  WRONG   no check was made: {result.get('msg') or 'there is no result'}")
        for line in status.get("report") or ([] if status else ["its status was not read"]):
            print(f"  DRIFT   {line}")
        print()
    print(f"demo: {serving} hosts serving, {passed} of {total} checks passed")
    return 0 if serving == len(hosts) and passed == total and total else 1


if __name__ == "__main__":
    sys.exit(main())
