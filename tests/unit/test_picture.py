"""Pictures of what was sent: which inputs are images, and the PNG that a report shows."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.inference import pictures, questions
from ansible_collections.npufleet.triton.plugins.plugin_utils.report import picture

ONE = questions.Request("x", "http", [0], [0])


def pixels_of(png: bytes) -> tuple[int, int, int, bytes]:
    """(width, height, colour type, pixels) of a PNG without filters; checks every chunk's sum."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, place = {}, 8
    while place < len(png):
        (length,) = struct.unpack(">I", png[place : place + 4])
        kind, data = png[place + 4 : place + 8], png[place + 8 : place + 8 + length]
        assert struct.unpack(">I", png[place + 8 + length : place + 12 + length]) == (zlib.crc32(kind + data),)
        chunks[kind] = data
        place += 12 + length
    width, height, depth, colour = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (depth, list(chunks)) == (8, [b"IHDR", b"IDAT", b"IEND"])
    raw = zlib.decompress(chunks[b"IDAT"])
    line = len(raw) // height
    return width, height, colour, b"".join(raw[start + 1 : start + line] for start in range(0, len(raw), line))


def test_grey_and_colour() -> None:
    assert pixels_of(picture.png(2, 2, 1, bytes([0, 1, 2, 255]))) == (2, 2, 0, bytes([0, 1, 2, 255]))
    assert pixels_of(picture.png(1, 2, 3, bytes(range(6)))) == (1, 2, 2, bytes(range(6)))


def test_pixels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="the picture has 3 bytes, expected 4"):
        picture.png(2, 2, 1, b"abc")


@pytest.mark.parametrize(
    "found",
    [
        None,
        "data:image/png;base64,AAAA",
        {"width": 65, "height": 1, "channels": 1, "pixels": base64.b64encode(bytes(65)).decode()},
        {"width": 2, "height": 2, "channels": 2, "pixels": base64.b64encode(bytes(8)).decode()},
        {"width": True, "height": 1, "channels": 1, "pixels": "AA=="},
        {"width": 1, "height": 1, "channels": 1, "pixels": "AAAA"},
        {"width": 1, "height": 1, "channels": 1, "pixels": "<b>"},
        {"width": 1, "height": 1, "channels": 1},
    ],
)
def test_what_is_no_picture_gives_none(found: Any) -> None:
    assert picture.data_uri(found) is None


def sent(array: Any) -> Any:
    """The picture of one row, None where it is none, as (width, height, channels, pixels)."""
    found = pictures.picture({"IN": np.asarray(array)[None]}, ONE)
    if found is None:
        return None
    assert str(picture.data_uri(found)).startswith("data:image/png;base64,")
    return found["width"], found["height"], found["channels"], base64.b64decode(found["pixels"])


def test_a_flat_square_spans_its_own_levels() -> None:
    assert sent(np.arange(64, dtype="float32") / 4) == (8, 8, 1, bytes(round(number * 255 / 63) for number in range(64)))


def test_bytes_stay_as_they_are() -> None:
    assert sent(np.full((4, 6), 7, dtype="uint8")) == (6, 4, 1, bytes([7] * 24))


@pytest.mark.parametrize("axis", [0, 2])
def test_colours_come_first_or_last(axis: int) -> None:
    image = np.arange(4 * 5 * 3, dtype="uint8").reshape(4, 5, 3)
    assert sent(np.moveaxis(image, 2, axis)) == (5, 4, 3, image.tobytes())


def test_a_large_image_is_thinned_out() -> None:
    width, height, channels, pixels = sent(np.zeros((3, 224, 200), dtype="float32"))
    assert (width, height, channels, len(pixels)) == (50, 56, 3, 50 * 56 * 3)
    assert sent(np.zeros((64, 64)))[:2] == (64, 64)
    assert sent(np.zeros((65, 64)))[:2] == (32, 33)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(63),
        np.zeros(49),
        np.zeros((2, 9)),
        np.zeros((4, 17)),
        np.zeros((4, 8, 8)),
        np.full((8, 8), np.nan),
        np.array([b"x"] * 64),
    ],
)
def test_what_is_no_image_is_not_sent(array: Any) -> None:
    assert sent(array) is None


def test_a_batch_and_two_inputs_are_not_drawn() -> None:
    image = np.zeros((2, 8, 8))
    assert pictures.picture({"IN": image}, questions.Request("x", "http", [0, 1], [0, 1])) is None
    assert pictures.picture({"A": image[:1], "B": image[:1]}, ONE) is None
