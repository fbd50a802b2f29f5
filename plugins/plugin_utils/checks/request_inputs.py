# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Conversion of npufleet-infer's options NAME=KIND:VALUE to arrays with the model's dtypes and shapes."""

from __future__ import annotations

import json
import math
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.inference import questions
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks import tensors
from ansible_collections.npufleet.triton.plugins.plugin_utils.run.command_line import USAGE_ERROR, CommandError

KINDS = ("npy", "text", "numbers", "image", "file", "raw", "generated")
# Options that do not name an input. They set the only input for which there is no --input.
SHORT_OPTIONS = ("image", "text", "npy")


def inputs_of(
    options: Sequence[str], short: Sequence[Tuple[str, str]], inputs: Sequence[Mapping[str, Any]]
) -> Dict[str, Tuple[str, Any]]:
    """Return {name: (dtype, array)} for a model with these inputs. Raises CommandError with all errors.

    `options` are the values of --input. `short` has (kind, value) of the options that name no input.
    """
    by_name = {str(entry["name"]): entry for entry in inputs}
    model_inputs = "; ".join(f"{name} {entry['datatype']} {entry['shape']}" for name, entry in by_name.items())
    sources_of: Dict[str, List[Tuple[str, str]]] = {}
    errors = []
    for option in options:
        name, equals, rest = option.partition("=")
        kind, colon, value = rest.partition(":")
        if not equals or not colon or kind not in KINDS:
            errors.append(f"--input is {option}, expected NAME=KIND:VALUE with a KIND of {', '.join(KINDS)}")
        elif name not in by_name:
            errors.append(f"--input is for {name}, expected one of the model's inputs: {model_inputs}")
        else:
            sources_of.setdefault(name, []).append((kind, value))
    unset = [name for name in by_name if name not in sources_of]
    if short and len(unset) != 1:
        errors.append(
            f"--{short[0][0]} is for the only input without a value, but {len(unset)} inputs have no value: {model_inputs}"
        )
    elif short:
        sources_of[unset[0]] = list(short)
    if not sources_of and not errors:
        errors.append(f"no input is set, expected the inputs of the model: {model_inputs}")
    arrays = {}
    for name, sources in sources_of.items() if not errors else ():
        try:
            dtype = str(by_name[name]["datatype"])
            arrays[name] = (dtype, array_of(sources, dtype, by_name[name]["shape"]))
        except tensors.ArrayError as error:
            errors.append(f"{name} {error}")
        except MemoryError:
            errors.append(f"{name} is larger than the memory of this machine, expected smaller data")
    if errors:
        raise CommandError(USAGE_ERROR, "; ".join(errors))
    return arrays


def array_of(sources: Sequence[Tuple[str, str]], dtype: str, shape: Sequence[int]) -> Any:
    """Return the array of one input. Its shape fits `shape`, where -1 is any size. Raises ArrayError."""
    import numpy as np

    kinds = {kind for kind, _value in sources}
    kind, value = sources[0]
    if len(kinds) > 1 or (len(sources) > 1 and kind not in ("text", "image", "file")):
        raise tensors.ArrayError(f"set with {len(sources)} values", "one value, or several of text, image or file")
    values = [source for _kind, source in sources]
    if not all(values) and kind != "text":
        raise tensors.ArrayError(f"empty after {kind}:", "a value")
    if kind == "text":
        array = elements(tensors.from_text(values), shape)
    elif kind in ("image", "file"):
        if dtype == "BYTES":
            array = elements(tensors.from_files(values, tensors.file_content), shape)
        elif dtype == "UINT8" and len([size for size in shape if size != 1]) <= 2 and shape[-1] == -1:
            array = tensors.from_files(values if len(values) > 1 else values[0], tensors.file_content, "UINT8")
        elif kind == "image" and dtype == "FP32" and len(shape) >= 3 and shape[-3] in (3, -1):
            pictures = tensors.from_pictures(values, tensors.file_content, shape[-3:])
            array = pictures if len(shape) == 4 else pictures[0]
        else:
            raise tensors.ArrayError(
                f"{kind} for {dtype} {list(shape)}", "BYTES or UINT8 [-1]" + ", or FP32 [3, H, W]" * (kind == "image")
            )
    elif kind == "npy":
        array = tensors.from_npy(value)
    elif kind == "numbers":
        array = tensors.from_numbers(numbers(value), dtype)
    elif kind == "generated":
        if not (value.isascii() and value.isdecimal() and int(value) < 2**32):
            raise tensors.ArrayError(value, "a whole number as the seed, from 0 to 4294967295")
        array = tensors.generated(dtype, [max(int(size), 1) for size in shape], int(value))
    else:
        data = tensors.file_content(value)
        array = tensors.from_raw(data, dtype, complete_shape(shape, len(data) // np.dtype(questions.NUMPY[dtype]).itemsize))
    try:
        actual = questions.triton_dtype(array)
    except ValueError as error:
        raise tensors.ArrayError(str(error), dtype) from None
    if actual != dtype and (actual, dtype) != ("FP32", "BF16"):
        raise tensors.ArrayError(actual, dtype)
    # A single row can lack the model's batch dimension.
    if array.ndim == len(shape) - 1 and shape[0] in (-1, 1):
        array = array[None]
    if array.ndim != len(shape) or any(expected not in (-1, size) for expected, size in zip(shape, array.shape)):
        raise tensors.ArrayError(f"of shape {list(array.shape)}", f"{list(shape)}, where -1 is any size")
    return np.ascontiguousarray(array)


def elements(array: Any, shape: Sequence[int]) -> Any:
    """Return n texts in the shape of an input: one text in each row if a row has one element, else all texts in one row."""
    if len(shape) == 2 and shape[1] == 1:
        return array[:, None]
    return array.reshape([1] * (len(shape) - 1) + [-1])


def complete_shape(shape: Sequence[int], count: int) -> List[int]:
    """Return a shape without -1 for `count` values. The first -1 becomes the size that remains, each other -1 becomes 1."""
    fixed = math.prod(size for size in shape if size > 0)
    open_index = next((number for number, size in enumerate(shape) if size < 0), None)
    return [max(count // fixed, 1) if number == open_index else max(int(size), 1) for number, size in enumerate(shape)]


def numbers(text: str) -> Any:
    """Return the numbers of a text such as 1,2.5 or a JSON list. Raises ArrayError."""
    try:
        return json.loads(text if text.lstrip().startswith("[") else f"[{text}]")
    except (ValueError, RecursionError):
        raise tensors.ArrayError(text, "numbers with commas between them, such as 1,2.5 or [[1,2],[3,4]]") from None
