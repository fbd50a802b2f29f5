"""Model `image_decode`: what becomes of a picture, and that whoever sends no picture is told so, alone."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from helpers import ROOT
from PIL import Image
from served import REPOSITORY, TritonError, TritonModelException, answers, config_of, module_of, start

GOLDEN = ROOT / "files/golden/resnet50"
MEAN, STD = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return module_of("image_decode", monkeypatch)


@pytest.fixture
def preprocess(module: ModuleType) -> ModuleType:
    return sys.modules[module.pixels.__module__]


def encoded(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def levels(pixels: np.ndarray) -> np.ndarray:
    """Levels 0 to 255 [rows, columns, 3] of a normalised picture."""
    return (pixels.transpose(1, 2, 0) * STD + MEAN) * 255


def noise(height: int, width: int) -> Image.Image:
    return Image.fromarray(np.random.RandomState(1).randint(0, 256, (height, width, 3), np.uint8))


def of_colour(pixels: np.ndarray) -> list[int]:
    """The one colour of a picture."""
    found = levels(pixels)
    assert np.ptp(found, axis=(0, 1)).max() < 0.01
    return found[0, 0].round().astype(int).tolist()


# What a picture becomes


def test_the_centre_is_cut_out_and_normalised(preprocess: ModuleType) -> None:
    image = noise(256, 300)
    found = preprocess.pixels(encoded(image))
    wanted = (np.asarray(image, np.float32)[16:240, 38:262] / 255 - MEAN) / STD
    assert (found.shape, found.dtype, found.flags["C_CONTIGUOUS"]) == ((3, 224, 224), np.float32, True)
    np.testing.assert_allclose(found, wanted.transpose(2, 0, 1), atol=1e-6)


@pytest.mark.parametrize("size", [(512, 400), (400, 512), (100, 333), (1, 1), (257, 256)])
def test_the_shorter_side_becomes_256_and_the_other_keeps_its_share(preprocess: ModuleType, size: tuple[int, int]) -> None:
    image = noise(*reversed(size))
    width, height = (side * 256 // min(size) for side in size)
    resized = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR), np.float32)
    top, left = round((height - 224) / 2), round((width - 224) / 2)
    np.testing.assert_allclose(levels(preprocess.pixels(encoded(image))), resized[top : top + 224, left : left + 224], atol=1e-3)


def test_other_weights_want_other_pictures(preprocess: ModuleType) -> None:
    settings = preprocess.Settings(resize=64, crop=(32, 48), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    found = preprocess.pixels(encoded(Image.new("RGB", (200, 100), (255, 0, 51))), settings)
    assert found.shape == (3, 32, 48)
    np.testing.assert_allclose(found[:, 0, 0], [1, 0, 0.2], atol=1e-6)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_exif_orientation_stands_upright(preprocess: ModuleType, orientation: int) -> None:
    turned = {
        2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE, 8: Image.Transpose.ROTATE_270,
    }  # fmt: skip
    upright = noise(256, 320)
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = upright.transpose(turned[orientation]) if orientation in turned else upright
    found = preprocess.pixels(encoded(stored, exif=exif))
    np.testing.assert_array_equal(found, preprocess.pixels(encoded(upright)))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_exif_data_that_cannot_be_read_says_nothing(preprocess: ModuleType) -> None:
    image = noise(256, 256)
    found = preprocess.pixels(encoded(image, exif=b"Exif\x00\x00MM\x00*\x00\x00\xff\xff"))
    np.testing.assert_array_equal(found, preprocess.pixels(encoded(image)))


GREY16 = Image.fromarray(np.full((9, 9), 0x80FF, np.uint16))


@pytest.mark.parametrize(
    ("image", "form", "colour"),
    [
        (Image.new("L", (9, 9), 77), "PNG", [77, 77, 77]),
        (Image.new("L", (16, 16), 77), "JPEG", [77, 77, 77]),
        (Image.new("1", (9, 9), 1), "PNG", [255, 255, 255]),
        (GREY16, "PNG", [128, 128, 128]),
        (Image.new("RGB", (9, 9), (1, 2, 3)).quantize(), "PNG", [1, 2, 3]),
        (Image.new("RGBA", (9, 9), (10, 20, 30, 255)), "PNG", [10, 20, 30]),
        (Image.new("RGBA", (9, 9), (10, 20, 30, 0)), "PNG", [255, 255, 255]),
        (Image.new("RGBA", (9, 9), (0, 100, 200, 51)), "PNG", [204, 224, 244]),
        (Image.new("LA", (9, 9), (0, 0)), "PNG", [255, 255, 255]),
        (Image.new("CMYK", (16, 16), (255, 0, 0, 0)), "JPEG", [0, 255, 255]),
    ],
)
def test_every_kind_of_image_becomes_rgb(preprocess: ModuleType, image: Image.Image, form: str, colour: list[int]) -> None:
    assert of_colour(preprocess.pixels(encoded(image, form))) == pytest.approx(colour, abs=1)


def test_the_command_writes_the_data_of_a_check(tmp_path: Path) -> None:
    command = [sys.executable, str(REPOSITORY / "image_decode/1/preprocess.py")]
    subprocess.run([*command, str(GOLDEN / "coffee.png"), str(tmp_path / "cup.npy")], check=True)
    np.testing.assert_allclose(np.load(tmp_path / "cup.npy"), np.load(GOLDEN / "pixels.npy"), atol=1e-5)
    failed = subprocess.run([*command, __file__, str(tmp_path / "x.npy")], capture_output=True, text=True, check=False)
    assert (failed.returncode, failed.stderr.count("\n")) == (1, 1)
    assert "test_image_decode.py is no JPEG or PNG image that can be read" in failed.stderr


# What is refused

UNREADABLE = "is no JPEG or PNG image that can be read: its first bytes are "
CAT = (GOLDEN / "chelsea.jpg").read_bytes()
CUP = (GOLDEN / "coffee.png").read_bytes()


def header_only(width: int, height: int) -> bytes:
    """A PNG that ends where its pixels would begin."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head)) + struct.pack(">I", 9) + b"IDAT"
    )


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"", "is empty, expected a JPEG or PNG image"),
        (b"hello", f"{UNREADABLE}68 65 6c 6c 6f"),
        (
            encoded(Image.new("L", (9, 9)), "GIF"),
            f"{UNREADABLE}47 49 46 38 37 61 09 00",
        ),
        (encoded(Image.new("L", (9, 9)), "TIFF"), f"{UNREADABLE}49 49 2a 00"),
        (CAT[:20000], "is broken and cannot be decoded: image file is truncated"),
        (CUP[:20000], "is broken and cannot be decoded: "),
        (CUP[:5000] + bytes(100) + CUP[5100:], "is broken and cannot be decoded: "),
        (header_only(0, 5), "is "),
    ],
)
def test_what_is_no_image_is_refused_in_one_line(preprocess: ModuleType, sent: bytes, words: str) -> None:
    with pytest.raises(preprocess.ImageError) as failure:
        preprocess.pixels(sent)
    assert str(failure.value).startswith(words)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("size", [(8000, 7000), (25_000_001, 1), (5001, 5000), (60000, 1), (1, 60000)])
def test_bombs_are_refused_by_their_header(preprocess: ModuleType, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]) -> None:
    monkeypatch.setattr(Image.Image, "resize", None)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", None)
    with pytest.raises(preprocess.ImageError, match=f"has {size[0]} x {size[1]} pixels, expected at most 25000000, also with"):
        preprocess.pixels(header_only(*size))


def scans(count: int) -> bytes:
    """A progressive JPEG whose last scan comes again and again: a few bytes each, and each goes over the whole picture."""
    image = encoded(Image.new("L", (64, 64), 200), "JPEG", progressive=True)
    last, end = image.rindex(b"\xff\xda"), image.rindex(b"\xff\xd9")
    return image[:end] + image[last:end] * (count - image.count(b"\xff\xda")) + image[end:]


def test_more_scans_than_any_encoder_makes_are_refused_before_anything_is_decoded(
    preprocess: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert of_colour(preprocess.pixels(scans(64))) == [200, 200, 200]
    assert of_colour(preprocess.pixels(encoded(Image.new("RGB", (64, 64), (9, 9, 9)), "JPEG", progressive=True))) == [9, 9, 9]
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", None)
    with pytest.raises(preprocess.ImageError, match="has 65 scans, expected at most 64"):
        preprocess.pixels(scans(65))


def test_more_bytes_than_the_limit_are_not_even_looked_at(preprocess: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    image = encoded(noise(300, 300))
    assert preprocess.pixels(image, preprocess.Settings(max_bytes=len(image))).shape == (3, 224, 224)
    monkeypatch.setattr(Image, "open", None)
    with pytest.raises(preprocess.ImageError, match=f"has {len(image)} bytes, expected at most {len(image) - 1}"):
        preprocess.pixels(image, preprocess.Settings(max_bytes=len(image) - 1))
    with pytest.raises(preprocess.ImageError, match="has 10000001 bytes, expected at most 10000000"):
        preprocess.pixels(bytes(10_000_001))


LARGEST = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import preprocess
encoded = sys.stdin.buffer.read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
preprocess.pixels(encoded)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize(
    ("width", "height", "mode"), [(5000, 5000, "1"), (5000, 5000, "P"), (5000, 5000, "RGBA"), (5000, 5000, "LA"), (381, 1, "RGB")]
)
def test_largest_image_takes_the_memory_of_its_pixels_twice_at_most(width: int, height: int, mode: str) -> None:
    """Four bytes a pixel is what Pillow keeps one in: what comes after decoding works on the small picture."""
    image = Image.new(mode, (width, height))
    sent = encoded(image, compress_level=1, **({"transparency": 0} if mode == "P" else {}))
    command = [sys.executable, "-c", LARGEST, str(REPOSITORY / "image_decode/1")]
    done = subprocess.run(command, input=sent, capture_output=True, check=True)
    assert int(done.stdout) < 260, f"{len(sent)} bytes take {int(done.stdout)} MiB"


def test_the_limit_of_pixels_is_the_operators(preprocess: ModuleType) -> None:
    small = encoded(noise(300, 300))
    assert preprocess.pixels(small, preprocess.Settings(max_pixels=90_000)).shape == (3, 224, 224)
    with pytest.raises(preprocess.ImageError, match="has 300 x 300 pixels, expected at most 89999"):
        preprocess.pixels(small, preprocess.Settings(max_pixels=89_999))


# The model


def load(module: ModuleType, **parameters: str) -> Any:
    config = config_of("image_decode")
    for name, value in parameters.items():
        config.parameters[name].string_value = value
    return start(module, config, REPOSITORY / "image_decode")


def request(*images: bytes) -> dict[str, np.ndarray]:
    return {"IMAGE": np.array(images, np.object_).reshape(-1, 1)}


def test_images_of_different_sizes_in_one_batch(module: ModuleType) -> None:
    (response,) = load(module).execute([request(CAT, CUP)])
    found = answers(response)["PIXELS"]
    assert (found.shape, found.dtype) == ((2, 3, 224, 224), np.float32)
    for number, image in enumerate((CAT, CUP)):
        np.testing.assert_array_equal(found[number], module.pixels(image))


def test_a_corrupt_image_is_its_senders_error_alone(module: ModuleType) -> None:
    responses = load(module).execute([request(CAT), request(b"x"), request(CUP), request(CUP, CAT[:9000]), request(CUP)])
    assert [response.error is None for response in responses] == [True, False, True, False, True]
    np.testing.assert_array_equal(answers(responses[4])["PIXELS"][0], module.pixels(CUP))
    assert {response.error.code for response in responses if response.error} == {TritonError.INVALID_ARG}
    assert responses[1].error.message == f"image_decode: the image {UNREADABLE}78"
    assert responses[3].error.message.startswith("image_decode: image 2 of 2 is broken and cannot be decoded: image file is trunc")


def test_parameters_decide(module: ModuleType) -> None:
    model = load(module, resize="232", mean="0,0,0", std="1,1,1", max_pixels="1000", max_bytes="99")
    assert model.settings == (232, (224, 224), (0, 0, 0), (1, 1, 1), 1000, 99)
    assert load(module).settings == module.Settings()


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"resize": "small"}, "resize is 'small', expected a number"),
        ({"resize": "200"}, "resize is 200, expected a whole number of at least 224, the side that is cut out"),
        ({"resize": "256.5"}, "resize is 256.5, expected a whole number"),
        ({"mean": "0,0"}, "mean is '0,0', expected 3 numbers"),
        ({"std": "1,1,0"}, "std is '1,1,0', expected numbers above 0"),
        ({"std": "1,1,nan"}, "std is '1,1,nan', expected 3 numbers"),
        ({"max_pixels": "0"}, "max_pixels is 0, expected at least 1"),
        ({"max_bytes": "0.5"}, "max_bytes is 0.5, expected at least 1"),
        ({"mean": "a", "max_pixels": "b"}, "max_pixels is 'b', expected a number; mean is 'a', expected 3 numbers"),
    ],
)
def test_mistakes_keep_it_from_loading(module: ModuleType, parameters: dict[str, str], words: str) -> None:
    with pytest.raises(TritonModelException) as failure:
        load(module, **parameters)
    assert str(failure.value).startswith("model image_decode: ")
    assert words in str(failure.value)


def test_an_output_that_is_no_picture_keeps_it_from_loading(module: ModuleType) -> None:
    config = config_of("image_decode")
    config.output[0].dims[:] = [224, 224, 3]
    with pytest.raises(TritonModelException, match=r"output PIXELS has dims \[224, 224, 3\], expected 3, height, width"):
        start(module, config, REPOSITORY / "image_decode")


def test_without_pillow_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "preprocess", raising=False)
    with pytest.raises(TritonModelException, match="model image_decode needs Pillow in the image: "):
        module_of("image_decode", monkeypatch)


def test_the_photographs_are_small_and_of_different_sizes() -> None:
    paths = [path for path in Path(GOLDEN).iterdir() if path.suffix in (".jpg", ".png")]
    assert all(path.stat().st_size < 300_000 for path in paths)
    assert len({Image.open(path).size for path in paths}) == len(paths) == 2
