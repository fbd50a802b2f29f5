# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Arrays from the sources of a check file or a command line: files, texts, numbers, generated values.

Every function raises ArrayError if the source does not fit an array. Texts and the bytes of files become arrays of dtype object,
with one `bytes` for each element. This is the form of Triton's BYTES.
"""

from __future__ import annotations

import importlib
import io
import math
import zipfile
from pathlib import Path
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.inference import packing
from ansible_collections.npufleet.triton.plugins.module_utils.inference.packing import of_bytes
from ansible_collections.npufleet.triton.plugins.module_utils.inference.questions import NUMPY

# The first bytes of an .npy file
NPY = b"\x93NUMPY"
# The preprocessing of ImageNet's models: resize the shorter side to 256, crop 224 from the center, normalise each channel
RESIZE_SIDE, CROP_SIDE = 256, 224
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class ArrayError(Exception):
    """An error of the source of an array, with the actual and the expected value."""

    def __init__(self, actual: Any, expected: str) -> None:
        super().__init__(f"is {actual}, expected {expected}")
        self.actual, self.expected = actual, expected


def from_npy(path: str) -> Any:
    """Return the array of an .npy file. Numbers are mapped into memory, and read from the file only when they are used."""
    import numpy as np

    expected = "an array of rows, as numpy.save writes it"
    try:
        with open(path, "rb") as source:
            start = source.read(len(NPY))
        if start[:2] == b"PK":
            with np.load(path, allow_pickle=False) as arrays:
                names = ", ".join(arrays.files)
            raise ArrayError(
                f"{path}, an .npz of the arrays {names}", "one array in an .npy. Run numpy.save('x.npy', numpy.load(path)[name])"
            )
        if start != NPY:
            raise ArrayError(f"{path}, which is not an .npy file", expected)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise ArrayError(f"{path} ({error.strerror or error})", expected) from None
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ArrayError(f"{path}, which contains Python objects or is truncated ({error})", expected) from None
    if array.ndim == 0:
        raise ArrayError(f"{path}, a single value without rows", expected)
    if array.dtype.kind in "SU":
        return of_bytes([element.encode() if isinstance(element, str) else bytes(element) for element in array.flat], array.shape)
    if array.dtype.kind not in "fiub":
        raise ArrayError(f"{array.dtype} in {path}", "numbers or bytes")
    return array


def from_text(value: Any) -> Any:
    """Return the UTF-8 bytes of a text or of nested lists of texts. For one text, the shape is [1]."""
    flat, shape = _nested(value if isinstance(value, list) else [value], lambda part: isinstance(part, str), "texts")
    try:
        return of_bytes([element.encode() for element in flat], shape)
    except UnicodeEncodeError:
        raise ArrayError("a text that is not UTF-8", "a text in UTF-8, or a file of bytes") from None


def from_numbers(value: Any, dtype: Optional[str] = None) -> Any:
    """Return nested lists of numbers as an array. Each number must fit into Triton's `dtype`. By default, numpy chooses a type."""
    import numpy as np

    if dtype == "BYTES":
        raise ArrayError(dtype, "a dtype of numbers, or text")
    nested = value if isinstance(value, list) else [value]
    flat, shape = _nested(nested, lambda part: isinstance(part, (bool, int, float)), "numbers")
    numpy_type = np.dtype(NUMPY[dtype]) if dtype else np.array(flat).dtype
    kind = numpy_type.kind
    if kind not in "fiub":
        raise ArrayError(f"a list that becomes {numpy_type}", "numbers of one kind")
    limits = {"b": (0, 1), "f": (-math.inf, math.inf)}
    low, high = limits[kind] if kind in limits else (np.iinfo(numpy_type).min, np.iinfo(numpy_type).max)
    unfit = [element for element in flat if not (low <= element <= high and (kind == "f" or element == int(element)))]
    if not unfit:
        with np.errstate(over="ignore"):
            array = np.array(flat, dtype=numpy_type).reshape(shape)
        # A float may be rounded, but must not become infinite.
        if kind == "f":
            unfit = [entry for entry, rounded in zip(flat, array.flat) if abs(entry) < math.inf == abs(float(rounded))]
    if unfit:
        raise ArrayError(unfit[0], f"numbers that {dtype or numpy_type} can represent")
    return array


def from_raw(data: bytes, dtype: str, shape: Sequence[int]) -> Any:
    """Return the array in the raw bytes of a file: little endian, row by row. BF16 and BYTES are not possible."""
    import numpy as np

    if dtype in ("BF16", "BYTES"):
        raise ArrayError(dtype, "another dtype, as raw files cannot have this dtype")
    numpy_type = np.dtype(NUMPY[dtype]).newbyteorder("<")
    size = int(np.prod(shape, dtype=np.int64))
    if len(data) != size * numpy_type.itemsize:
        raise ArrayError(f"{len(data)} bytes", f"{size * numpy_type.itemsize}, {size} values of {dtype} for shape {list(shape)}")
    return np.frombuffer(data, numpy_type).reshape(shape).astype(NUMPY[dtype])


def file_content(path: str) -> bytes:
    """Return the bytes of a file."""
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ArrayError(f"{path or 'no name'} ({why})", "a file that can be read") from None


def from_files(value: Any, read: Callable[[str], bytes], dtype: str = "BYTES") -> Any:
    """Return the bytes of files, each as an element of BYTES or a row of UINT8. `value` is a name or nested lists of names."""
    import numpy as np

    single = not isinstance(value, list)
    flat, shape = _nested([value] if single else value, lambda part: isinstance(part, str) and bool(part.strip()), "names of files")
    contents = [read(name) for name in flat]
    if dtype == "BYTES":
        return of_bytes(contents, shape)
    lengths = sorted({len(content) for content in contents})
    if len(lengths) > 1:
        raise ArrayError(
            f"a list of files of {' and '.join(map(str, lengths))} bytes", "one length for rows of UINT8, or dtype BYTES"
        )
    array = np.frombuffer(b"".join(contents), np.uint8).reshape([*shape, lengths[0]])
    return array[0] if single else array


def from_pictures(value: Any, read: Callable[[str], bytes], shape: Sequence[int]) -> Any:
    """Return the pixels of pictures as FP32, preprocessed as for ImageNet's models. A size of -1 becomes 224.

    `value` is one name, for an array [3, H, W], or a list of n names, for an array [n, 3, H, W].
    """
    import numpy as np

    if len(shape) != 3 or shape[0] not in (3, -1):
        raise ArrayError(f"shape {list(shape)}", "[3, H, W] for the pixels of a picture")
    single = not isinstance(value, list)
    flat, outer = _nested([value] if single else value, lambda part: isinstance(part, str) and bool(part.strip()), "names of files")
    rows = np.stack([_pixels(name, read(name), shape[1], shape[2]) for name in flat])
    return rows[0] if single else rows.reshape([*outer, *rows.shape[1:]])


def _pixels(name: str, data: bytes, height: int, width: int) -> Any:
    import numpy as np

    try:
        pillow = importlib.import_module("PIL.Image")
    except ImportError:
        raise ArrayError("a picture, and Pillow is not installed", "Pillow. Run python3 -m pip install pillow") from None
    height, width = (size if size > 0 else CROP_SIDE for size in (height, width))
    try:
        with pillow.open(io.BytesIO(data)) as file:
            image = file.convert("RGB")
    except Exception as error:
        # Pillow raises many types of exceptions for files that it cannot read.
        raise ArrayError(f"{name} ({type(error).__name__})", "a picture that Pillow reads, such as JPEG or PNG") from None
    shorter_side = round(max(height, width) * RESIZE_SIDE / CROP_SIDE)
    sides = [int(shorter_side * side / min(image.size)) for side in image.size]
    image = image.resize((max(sides[0], width), max(sides[1], height)), pillow.Resampling.BILINEAR)
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    levels = np.asarray(image.crop((left, top, left + width, top + height)), np.float32) / 255
    return ((levels - np.array(MEAN, np.float32)) / np.array(DEVIATION, np.float32)).transpose(2, 0, 1)


def generated(dtype: str, shape: Sequence[int], seed: int = 0, low: Optional[float] = None, high: Optional[float] = None) -> Any:
    """Return the array of `packing.generated`. Raises ArrayError if `low` and `high` are not within the dtype."""
    import numpy as np

    numpy_type = np.dtype(NUMPY[dtype])
    if numpy_type.kind in "iu":
        limits = np.iinfo(numpy_type)
        least, most = packing.whole_limits(dtype, low, high)
        if not limits.min <= least < most <= limits.max + 1:
            raise ArrayError(f"low {least} and high {most}", f"low below high, both within {dtype}")
    return packing.generated(dtype, shape, seed, low, high)


def source_of(entry: Mapping[str, Any], sources: Sequence[str]) -> str:
    """Return the key of an array's source. Raises ArrayError unless exactly one of `sources` is set."""
    present = [key for key in sources if key in entry]
    if len(present) != 1:
        raise ArrayError(f"set with {' and '.join(present)}" if present else "empty", f"exactly one of {', '.join(sources)}")
    return present[0]


def _nested(value: Any, fits: Callable[[Any], bool], what: str) -> Tuple[List[Any], List[int]]:
    """Return (elements, shape) of nested lists. Raises ArrayError if lists at the same depth have different lengths."""
    if not isinstance(value, list):
        if not fits(value):
            raise ArrayError(repr(value), what)
        return [value], []
    parts = [_nested(part, fits, what) for part in value]
    shapes = {tuple(shape) for _flat, shape in parts}
    if not parts or len(shapes) > 1:
        raise ArrayError("nested lists of different lengths" if parts else "an empty list", f"{what} in lists of equal lengths")
    return [element for flat, _shape in parts for element in flat], [len(parts), *shapes.pop()]
