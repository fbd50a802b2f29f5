"""The inputs of one request as a command line gives them, NAME=KIND:VALUE, in dtype and shape of the model that takes them.

For npufleet-infer. Everything that is wrong with them ends it before anything is asked.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import inference
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks import tensors
from ansible_collections.npufleet.triton.plugins.plugin_utils.run.command_line import MISTAKEN, End

KINDS = ("npy", "text", "numbers", "image", "file", "raw", "generated")
# Shorthands for the one input that is not named
SHORT = ("image", "text", "npy")


def inputs_of(
    given: Sequence[str], short: Sequence[Tuple[str, str]], takes: Sequence[Mapping[str, Any]]
) -> Dict[str, Tuple[str, Any]]:
    """{name: (dtype, array)} of what is given for a model that takes these inputs. Raises End with everything that is wrong.

    `given` are the texts of --input, `short` (kind, value) of the one input that is not named.
    """
    described = {str(take["name"]): take for take in takes}
    what = "; ".join(f"{name} {entry['datatype']} {entry['shape']}" for name, entry in described.items())
    named: Dict[str, List[Tuple[str, str]]] = {}
    wrong = []
    for element in given:
        name, equals, rest = element.partition("=")
        kind, colon, value = rest.partition(":")
        if not equals or not colon or kind not in KINDS:
            wrong.append(f"--input: found {element}, wanted NAME=KIND:VALUE with a KIND of {', '.join(KINDS)}")
        elif name not in described:
            wrong.append(f"--input: found {name}, the model takes {what}")
        else:
            named.setdefault(name, []).append((kind, value))
    left = [name for name in described if name not in named]
    if short and len(left) != 1:
        wrong.append(f"--{short[0][0]}: found {len(left)} inputs without a value, wanted one; the model takes {what}")
    elif short:
        named[left[0]] = list(short)
    if not named and not wrong:
        wrong.append(f"found no input, the model takes {what}")
    made = {}
    for name, sources in named.items() if not wrong else ():
        try:
            dtype = str(described[name]["datatype"])
            made[name] = (dtype, array_of(sources, dtype, described[name]["shape"]))
        except tensors.Unfit as unfit:
            wrong.append(f"{name}: {unfit}")
        except MemoryError:
            wrong.append(f"{name}: found more than this machine's memory holds, wanted less at once")
    if wrong:
        raise End(MISTAKEN, "; ".join(wrong))
    return made


def array_of(sources: Sequence[Tuple[str, str]], dtype: str, shape: Sequence[int]) -> Any:
    """The array of one input, in a shape that the model takes. Raises Unfit."""
    import numpy as np

    kinds = {kind for kind, _value in sources}
    kind, value = sources[0]
    if len(kinds) > 1 or (len(sources) > 1 and kind not in ("text", "image", "file")):
        raise tensors.Unfit(f"{len(sources)} values", "one, or several of text, image or file")
    values = [source for _kind, source in sources]
    if not all(values) and kind not in ("text",):
        raise tensors.Unfit(f"nothing after {kind}:", "a value")
    if kind == "text":
        array = elements(tensors.of_text(values), shape)
    elif kind in ("image", "file"):
        if dtype == "BYTES":
            array = elements(tensors.of_files(values, content), shape)
        elif dtype == "UINT8" and len([size for size in shape if size != 1]) <= 2 and shape[-1] == -1:
            array = tensors.of_files(values if len(values) > 1 else values[0], content, "UINT8")
        elif kind == "image" and dtype == "FP32" and len(shape) >= 3 and shape[-3] in (3, -1):
            pictures = tensors.of_pictures(values, content, shape[-3:])
            array = pictures if len(shape) == 4 else pictures[0]
        else:
            raise tensors.Unfit(
                f"{kind} for {dtype} {list(shape)}", "BYTES or UINT8 [-1]" + ", or FP32 [3, H, W]" * (kind == "image")
            )
    elif kind == "npy":
        array = tensors.of_npy(value)
    elif kind == "numbers":
        array = tensors.of_numbers(numbers(value), dtype)
    elif kind == "generated":
        if not (value.isascii() and value.isdecimal() and int(value) < 2**32):
            raise tensors.Unfit(value, "a whole number as the seed, from 0 to 4294967295")
        array = tensors.generated(dtype, [max(int(size), 1) for size in shape], int(value))
    else:
        data = content(value)
        array = tensors.of_raw(data, dtype, solved(shape, len(data) // np.dtype(inference.NUMPY[dtype]).itemsize))
    try:
        found = inference.triton_dtype(array)
    except ValueError as error:
        raise tensors.Unfit(str(error), dtype) from None
    if found != dtype and (found, dtype) != ("FP32", "BF16"):
        raise tensors.Unfit(found, dtype)
    # The batch dimension is the model's; a single row needs none.
    if array.ndim == len(shape) - 1 and shape[0] in (-1, 1):
        array = array[None]
    if array.ndim != len(shape) or any(wanted not in (-1, size) for wanted, size in zip(shape, array.shape)):
        raise tensors.Unfit(f"shape {list(array.shape)}", f"{list(shape)}, where -1 is any")
    return np.ascontiguousarray(array)


def elements(array: Any, shape: Sequence[int]) -> Any:
    """Texts [n] in the shape of an input: a row each where a row is one element, else all of them in one row."""
    if len(shape) == 2 and shape[1] == 1:
        return array[:, None]
    return array.reshape([1] * (len(shape) - 1) + [-1])


def solved(shape: Sequence[int], count: int) -> List[int]:
    """A shape for so many values: its first -1 becomes what is left, any other 1."""
    known = math.prod(size for size in shape if size > 0)
    first = next((number for number, size in enumerate(shape) if size < 0), None)
    return [max(count // known, 1) if number == first else max(int(size), 1) for number, size in enumerate(shape)]


def numbers(text: str) -> Any:
    """The numbers of a text, as JSON has them."""
    try:
        return json.loads(text if text.lstrip().startswith("[") else f"[{text}]")
    except (ValueError, RecursionError):
        raise tensors.Unfit(text, "numbers with commas between them, as 1,2.5 or [[1,2],[3,4]]") from None


def content(path: str) -> bytes:
    """The bytes of a file. Raises Unfit."""
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise tensors.Unfit(
            f"{path or 'no name'} ({getattr(error, 'strerror', None) or error})", "a file that can be read"
        ) from None
