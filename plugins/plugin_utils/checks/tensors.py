"""Arrays out of what a check file or a command line names: files, texts, numbers, made-up values. Controller only.

Every function raises Unfit where there is no array, with what was found and what was wanted. Texts and the bytes of files
become arrays of dtype object, one `bytes` for each element, as Triton's BYTES are.
"""

from __future__ import annotations

import importlib
import io
import math
import zipfile
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import inference
from ansible_collections.npufleet.triton.plugins.module_utils.inference import NUMPY, of_bytes

# How an .npy file begins
NPY = b"\x93NUMPY"
# How ImageNet's models are fed: the shorter side to 256, the 224 in the middle, and the channels around 0
RESIZED, CROPPED = 256, 224
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Unfit(Exception):
    """What was found where an array was to come from, and what was wanted."""

    def __init__(self, found: Any, wanted: str) -> None:
        super().__init__(f"found {found}, wanted {wanted}")
        self.found, self.wanted = found, wanted


def of_npy(path: str) -> Any:
    """The array of an .npy file, numbers read as far as they are used."""
    import numpy as np

    wanted = "an array of rows, as numpy.save writes it"
    try:
        with open(path, "rb") as source:
            start = source.read(len(NPY))
        if start[:2] == b"PK":
            with np.load(path, allow_pickle=False) as several:
                names = ", ".join(several.files)
            raise Unfit(
                f"{path}, an .npz of the arrays {names}", "one array in an .npy: numpy.save('x.npy', numpy.load(path)[name])"
            )
        if start != NPY:
            raise Unfit(f"{path}, which is no .npy file", wanted)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise Unfit(f"{path} ({error.strerror or error})", wanted) from None
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        # Objects instead of numbers, or a file that ends too early
        raise Unfit(f"{path}, which holds Python objects or is cut short ({error})", wanted) from None
    if array.ndim == 0:
        raise Unfit(f"{path}, a single value without rows", wanted)
    if array.dtype.kind in "SU":
        return of_bytes([element.encode() if isinstance(element, str) else bytes(element) for element in array.flat], array.shape)
    if array.dtype.kind not in "fiub":
        raise Unfit(f"{array.dtype} in {path}", "numbers or bytes")
    return array


def of_text(value: Any) -> Any:
    """UTF-8 of one text, shape [1], or of nested lists of texts."""
    flat, shape = _nested(value if isinstance(value, list) else [value], lambda part: isinstance(part, str), "texts")
    try:
        return of_bytes([element.encode() for element in flat], shape)
    except UnicodeEncodeError:
        raise Unfit("bytes that are no UTF-8", "a text in UTF-8, or a file of bytes") from None


def of_numbers(value: Any, dtype: Optional[str] = None) -> Any:
    """Nested lists of numbers as a Triton dtype that holds each of them, or as numpy takes them."""
    import numpy as np

    if dtype == "BYTES":
        raise Unfit(dtype, "a dtype of numbers, or text")
    flat, shape = _nested(
        value if isinstance(value, list) else [value], lambda part: isinstance(part, (bool, int, float)), "numbers"
    )
    kind = np.dtype(NUMPY[dtype]) if dtype else np.array(flat).dtype
    if kind.kind not in "fiub":
        raise Unfit(f"numbers that become {kind}", "numbers of one kind")
    low, high = (
        (np.iinfo(kind).min, np.iinfo(kind).max) if kind.kind in "iu" else (0, 1) if kind.kind == "b" else (-math.inf, math.inf)
    )
    lost = [element for element in flat if not (low <= element <= high and (kind.kind == "f" or element == int(element)))]
    if not lost:
        with np.errstate(over="ignore"):
            array = np.array(flat, dtype=kind).reshape(shape)
        # A float is as near as its dtype allows, but not infinite.
        lost = [entry for entry, kept in zip(flat, array.flat) if kind.kind == "f" and abs(entry) < math.inf == abs(float(kept))]
    if lost:
        raise Unfit(lost[0], f"numbers that {dtype or kind} holds")
    return array


def of_raw(data: bytes, dtype: str, shape: Sequence[int]) -> Any:
    """Values as they lie in a file: little endian, row by row. BF16 and BYTES have no form of their own there."""
    import numpy as np

    if dtype in ("BF16", "BYTES"):
        raise Unfit(dtype, "another dtype: a file of raw values has none of this one")
    kind = np.dtype(NUMPY[dtype]).newbyteorder("<")
    size = int(np.prod(shape, dtype=np.int64))
    if len(data) != size * kind.itemsize:
        raise Unfit(f"{len(data)} bytes", f"{size * kind.itemsize}, {size} values of {dtype} for shape {list(shape)}")
    return np.frombuffer(data, kind).reshape(shape).astype(NUMPY[dtype])


def of_files(value: Any, read: Callable[[str], bytes], dtype: str = "BYTES") -> Any:
    """The bytes of files, one name or nested lists of them: an element each or a row of UINT8. One name is [1] or [n]."""
    import numpy as np

    single = not isinstance(value, list)
    flat, shape = _nested([value] if single else value, lambda part: isinstance(part, str) and bool(part.strip()), "names of files")
    contents = [read(name) for name in flat]
    if dtype == "BYTES":
        return of_bytes(contents, shape)
    lengths = sorted({len(content) for content in contents})
    if len(lengths) > 1:
        raise Unfit(f"files of {' and '.join(map(str, lengths))} bytes", "one length, as rows of UINT8 have, or dtype BYTES")
    array = np.frombuffer(b"".join(contents), np.uint8).reshape([*shape, lengths[0]])
    return array[0] if single else array


def of_pictures(value: Any, read: Callable[[str], bytes], shape: Sequence[int]) -> Any:
    """FP32 [3, H, W] of pictures as ImageNet's models take them, one name or nested lists; a size of -1 is 224.

    One name is [3, H, W], a list of n is [n, 3, H, W].
    """
    import numpy as np

    if len(shape) != 3 or shape[0] not in (3, -1):
        raise Unfit(f"shape {list(shape)}", "[3, H, W] for the pixels of a picture")
    single = not isinstance(value, list)
    flat, found = _nested([value] if single else value, lambda part: isinstance(part, str) and bool(part.strip()), "names of files")
    rows = np.stack([_pixels(name, read(name), shape[1], shape[2]) for name in flat])
    return rows[0] if single else rows.reshape([*found, *rows.shape[1:]])


def _pixels(name: str, data: bytes, height: int, width: int) -> Any:
    import numpy as np

    try:
        pillow = importlib.import_module("PIL.Image")
    except ImportError:
        raise Unfit("no Pillow, which reads pictures", "it installed: python3 -m pip install pillow") from None
    height, width = (size if size > 0 else CROPPED for size in (height, width))
    try:
        with pillow.open(io.BytesIO(data)) as file:
            image = file.convert("RGB")
    except Exception as error:
        # Pillow has errors of many kinds for what it cannot read.
        raise Unfit(f"{name} ({type(error).__name__})", "a picture that Pillow reads, such as JPEG or PNG") from None
    short = round(max(height, width) * RESIZED / CROPPED)
    sides = [int(short * side / min(image.size)) for side in image.size]
    image = image.resize((max(sides[0], width), max(sides[1], height)), pillow.Resampling.BILINEAR)
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    levels = np.asarray(image.crop((left, top, left + width, top + height)), np.float32) / 255
    return ((levels - np.array(MEAN, np.float32)) / np.array(DEVIATION, np.float32)).transpose(2, 0, 1)


def generated(dtype: str, shape: Sequence[int], seed: int = 0, low: Optional[float] = None, high: Optional[float] = None) -> Any:
    """Made-up values, as `inference.generated` makes them. Raises Unfit for limits that the dtype does not have."""
    import numpy as np

    kind = np.dtype(NUMPY[dtype])
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        least, most = inference.whole_limits(dtype, low, high)
        if not limits.min <= least < most <= limits.max + 1:
            raise Unfit(f"low {least} and high {most}", f"low below high, both within {dtype}")
    return inference.generated(dtype, shape, seed, low, high)


def source_of(entry: Mapping[str, Any], sources: Sequence[str]) -> str:
    """The one of these keys that says where an array comes from."""
    named = [key for key in sources if key in entry]
    if len(named) != 1:
        raise Unfit(" and ".join(named) or "none", f"exactly one of {', '.join(sources)}")
    return named[0]


def _nested(value: Any, fits: Callable[[Any], bool], what: str) -> Tuple[List[Any], List[int]]:
    """(elements, shape) of lists in lists, all of one length at each depth."""
    if not isinstance(value, list):
        if not fits(value):
            raise Unfit(repr(value), what)
        return [value], []
    parts = [_nested(part, fits, what) for part in value]
    shapes = {tuple(shape) for _flat, shape in parts}
    if not parts or len(shapes) > 1:
        raise Unfit("lists of different lengths" if parts else "an empty list", f"{what} in lists of one length")
    return [element for flat, _shape in parts for element in flat], [len(parts), *shapes.pop()]
