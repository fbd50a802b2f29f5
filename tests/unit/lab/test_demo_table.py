"""What the demo draws of photographs: as many as were answered, and none that is not there."""

from __future__ import annotations

import base64
import io
import sys
from typing import Any

import pytest
from helpers import ROOT
from PIL import Image

sys.path.insert(0, str(ROOT / "lab"))

import demo_table


def sent(image: Image.Image, *labels: str, protocol: str = "http", ok: bool = True) -> dict[str, Any]:
    """A result of `image_classifier` as build/check/<host>.json has it."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    uri = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    return {"model": "image_classifier", "protocol": protocol, "picture": uri, "got": " | ".join(labels), "ok": ok, "ms": 9.87}


WHITE, BLACK = Image.new("RGB", (64, 32), "white"), Image.new("RGB", (64, 64), "black")


def test_photographs_stand_side_by_side_over_their_labels() -> None:
    lines = demo_table.photographs([sent(WHITE, "cup", "mug", "pot", "jug"), sent(BLACK, "cat", "lynx", "puma", "lion")], False)
    assert lines[0] == ""
    # 32 characters wide; a character is twice as tall as it is wide.
    assert lines[1:9] == [f"{'':8}{'█' * 32}"] * 8
    assert lines[9:17] == [""] * 8
    assert [line.split() for line in lines[17:20]] == [["read", "cup", "cat"], ["mug", "lynx"], ["pot", "puma"]]
    assert [line.index(word) for line, word in zip(lines[17:20], ("cat", "lynx", "puma"))] == [8 + 32 + 2] * 3
    assert lines[20] == "  is    the same by onnxruntime alone: this network's weights are random"
    assert lines[21].split() == ["ms", "9.9", "9.9"]


def test_in_colours_a_character_is_two_pixels() -> None:
    line = demo_table.photographs([sent(WHITE, "cup", "mug")], True)[1]
    assert line == f"{'':8}" + "\033[38;2;255;255;255;48;2;255;255;255m▀" * 32 + "\033[0m"


def test_one_protocol_is_enough_and_a_wrong_answer_shows() -> None:
    lines = demo_table.photographs([sent(WHITE, "cup", "mug", ok=False), sent(WHITE, "cup", "mug", protocol="grpc")], False)
    assert "  read  cup !" in lines
    assert not [line for line in lines if line.startswith("  is")]


@pytest.mark.parametrize("change", [{"picture": None}, {"got": "cup"}, {"got": None}, {"model": "digits"}])
def test_where_nothing_can_be_drawn_nothing_is(change: dict[str, Any]) -> None:
    assert demo_table.photographs([{**sent(WHITE, "cup", "mug"), **change}], False) == []
