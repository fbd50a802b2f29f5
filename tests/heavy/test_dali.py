"""Tests that the DALI form of `image_decode`, on DALI's CPU pipeline, gives the same pixels as the form with Pillow."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from nvidia.dali import Pipeline
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "files/golden/resnet50"
STEP = ROOT / "files/dali/image_decode"
# The tolerance: one of 255 levels, because decoders and resizers round to a level. After normalisation, it is 1 / 255 / std.
LEVEL = 1.01 / 255


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


preprocess = load(ROOT / "model_repository/image_decode/1/preprocess.py")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that pipeline.py writes."""
    path = tmp_path_factory.mktemp("dali") / "1" / "model.dali"
    load(STEP / "pipeline.py").main(path)
    return path


@pytest.fixture
def pipeline(written: Path) -> Any:
    """The pipeline as the backend loads it from the file."""
    pipe = Pipeline.deserialize(filename=str(written), batch_size=4, num_threads=2, device_id=None)
    pipe.build()
    return pipe


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def by_dali(pipe: Any, *images: bytes, pad: int = 0) -> list[np.ndarray]:
    """Return PIXELS of each image. With `pad`, fill up the images with zeros to this length."""
    pipe.feed_input("IMAGE", [np.frombuffer(image.ljust(pad, b"\0"), np.uint8) for image in images])
    (pixels,) = pipe.run()
    return [np.asarray(pixels.at(number)) for number in range(len(images))]


def assert_same(actual: np.ndarray, image: bytes) -> None:
    expected = preprocess.pixels(image)
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    difference = np.abs(actual - expected) * np.float32(preprocess.DEFAULTS.std)[:, None, None]
    assert difference.max() <= LEVEL, f"{difference.max() * 255:.2f} levels"


CAT = Image.open(GOLDEN / "chelsea.jpg")
TURNED = Image.Exif()
TURNED[0x0112] = 6
SIZES = [(256, 256), (333, 256), (335, 256), (255, 401), (900, 700), (123, 77), (256, 259), (224, 224), (640, 481)]


@pytest.mark.parametrize("name", ["chelsea.jpg", "coffee.png"])
def test_photographs(pipeline: Any, name: str) -> None:
    image = (GOLDEN / name).read_bytes()
    (found,) = by_dali(pipeline, image)
    assert_same(found, image)


@pytest.mark.parametrize("size", SIZES)
def test_every_size_is_resized_and_cut_at_the_same_pixels(pipeline: Any, size: tuple[int, int]) -> None:
    image = encoded(CAT.resize(size), "PNG")
    (found,) = by_dali(pipeline, image)
    assert_same(found, image)


@pytest.mark.parametrize(
    "image",
    [
        encoded(CAT, "JPEG", quality=75, subsampling=2),
        encoded(CAT, "JPEG", quality=90, progressive=True),
        encoded(CAT, "JPEG", quality=90, exif=TURNED),
        encoded(CAT.convert("L"), "JPEG", quality=90),
        encoded(CAT.convert("L"), "PNG"),
        encoded(CAT.convert("P"), "PNG"),
        encoded(CAT.convert("RGBA"), "PNG"),
        encoded(CAT.convert("CMYK"), "JPEG", quality=90),
    ],
    ids=["subsampled", "progressive", "turned", "grey JPEG", "grey PNG", "palette", "opaque alpha", "CMYK"],
)
def test_kinds_of_images(pipeline: Any, image: bytes) -> None:
    (found,) = by_dali(pipeline, image)
    assert_same(found, image)


def test_different_sizes_in_one_batch_filled_up_with_zeros(pipeline: Any) -> None:
    images = [(GOLDEN / name).read_bytes() for name in ("chelsea.jpg", "coffee.png")]
    for image, found in zip(images, by_dali(pipeline, *images, pad=150_000)):
        assert_same(found, image)


def test_names_are_those_of_the_config(pipeline: Any) -> None:
    config = (STEP / "config.pbtxt").read_text()
    assert 'name: "IMAGE"' in config
    assert 'name: "PIXELS"' in config
    with pytest.raises(Exception, match="OTHER"):
        pipeline.feed_input("OTHER", [np.zeros(3, np.uint8)])


def test_a_broken_image_fails_its_batch(pipeline: Any) -> None:
    """The docstring of pipeline.py documents this difference from the form with Pillow."""
    with pytest.raises(RuntimeError, match="decode"):
        by_dali(pipeline, (GOLDEN / "coffee.png").read_bytes(), b"nonsense")
