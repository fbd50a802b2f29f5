#!/usr/bin/env python3
"""Preprocess encoded images for networks that were trained on ImageNet, with the same results as torchvision's transforms.

Run preprocess.py IMAGE.jpg PIXELS.npy to write the pixels of an image as golden data, a batch of one.
"""

import contextlib
import io
import sys
from pathlib import Path
from typing import NamedTuple, Tuple

import numpy as np
from PIL import Image, ImageOps

# Other formats are refused, because each format adds a parser for untrusted data.
FORMATS = ("JPEG", "PNG")
# A progressive JPEG has about ten scans. Each scan, even of a few bytes, makes the decoder process the whole picture.
MAX_SCANS, SCAN = 64, b"\xff\xda"
# `Settings.max_pixels` is a stricter limit than the limit of Pillow, which is turned off here.
Image.MAX_IMAGE_PIXELS = None


class ImageError(Exception):
    """An error of an image. The client that sent the image gets its text."""


class Settings(NamedTuple):
    """The settings of the preprocessing: `crop` is (height, width); `mean` and `std` are of red, green and blue between 0 and 1."""

    resize: int = 256
    crop: Tuple[int, int] = (224, 224)
    mean: Tuple[float, ...] = (0.485, 0.456, 0.406)
    std: Tuple[float, ...] = (0.229, 0.224, 0.225)
    max_pixels: int = 25_000_000
    max_bytes: int = 10_000_000


DEFAULTS = Settings()


def pixels(encoded: bytes, settings: Settings = DEFAULTS) -> np.ndarray:
    """Return the pixels of a JPEG or PNG as float32 [3, *crop]: upright, RGB, shorter side `resize`, centre cropped, normalised.

    Raises ImageError.
    """
    image = decode(encoded, settings)
    width, height = (side * settings.resize // min(image.size) for side in image.size)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    rows, columns = settings.crop
    top, left = round((height - rows) / 2), round((width - columns) / 2)
    levels = np.asarray(_on_white(image.crop((left, top, left + columns, top + rows))), np.float32)
    normal = (levels / 255 - np.float32(settings.mean)) / np.float32(settings.std)
    return np.ascontiguousarray(normal.transpose(2, 0, 1))


def decode(encoded: bytes, settings: Settings) -> Image.Image:
    """Return the image upright and in a mode that can be resized. Other conversions are cheaper after resizing."""
    if not encoded:
        raise ImageError("is empty, expected a JPEG or PNG image")
    if len(encoded) > settings.max_bytes:
        raise ImageError(f"has {len(encoded)} bytes, expected at most {settings.max_bytes}")
    try:
        image = Image.open(io.BytesIO(encoded), formats=FORMATS)
        _refuse_bombs(image, settings)
        if image.format != "PNG" and encoded.count(SCAN) > MAX_SCANS:
            raise ImageError(f"has {encoded.count(SCAN)} scans, expected at most {MAX_SCANS}")
        image.load()
        return _resizable(_upright(image))
    except ImageError:
        raise
    except Image.UnidentifiedImageError:
        raise ImageError(f"is no JPEG or PNG image that can be read: its first bytes are {encoded[:8].hex(' ')}") from None
    except Exception as error:  # Pillow's parsers raise any error for broken bytes
        lines = str(error).splitlines() or [""]
        raise ImageError(f"is broken and cannot be decoded: {lines[0] or type(error).__name__}") from None


def _refuse_bombs(image: Image.Image, settings: Settings) -> None:
    """Raise ImageError if the size in the header or the size after resizing is too large. Resizing enlarges a very thin image."""
    width, height = image.size
    resized = max(width, height) * settings.resize**2 // min(width, height)
    if max(width * height, resized) > settings.max_pixels:
        raise ImageError(
            f"has {width} x {height} pixels, expected at most {settings.max_pixels}, "
            f"also with its shorter side resized to {settings.resize}"
        )


def _upright(image: Image.Image) -> Image.Image:
    """Return the image rotated by its EXIF data. Ignore EXIF data that cannot be read."""
    with contextlib.suppress(Exception):  # The picture itself is valid.
        # The rotation in place does not copy a large picture.
        ImageOps.exif_transpose(image, in_place=True)
    return image


def _resizable(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        # Pillow would clip grey levels of 16 bits at 255.
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("RGBA", "LA"):
        return image
    if image.has_transparency_data:
        return image.convert("RGBA")
    if image.mode == "1":
        return image.convert("L")
    return image if image.mode in ("RGB", "L") else image.convert("RGB")


def _on_white(image: Image.Image) -> Image.Image:
    """Return the image in RGB, with a white background."""
    if image.mode not in ("RGBA", "LA"):
        return image.convert("RGB")
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


if __name__ == "__main__":
    try:
        np.save(sys.argv[2], pixels(Path(sys.argv[1]).read_bytes())[None])
    except ImageError as error:
        sys.exit(f"{sys.argv[1]} {error}")
