# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The arrays of a check file: inputs, and the golden values with which outputs are compared."""

from __future__ import annotations

import math
import os
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ansible_collections.npufleet.triton.plugins.module_utils.inference import pictures, questions
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks import tensors
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks.fields import Fields, is_number, is_whole
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks.inputs import found_in, is_inside

DTYPES = tuple(questions.NUMPY)
# The keys that name the source of an array, for inputs and for expected values
SOURCES = ("npy", "raw", "text", "numbers", "file", "image", "generated")
GOLDEN_SOURCES = ("npy", "numbers", "file")
# Sources that need a dtype and a shape
SHAPED = ("raw", "generated")
# Sources that allow a dtype
TYPED = (*SHAPED, "numbers", "file", "image", "npy")
# Keys of the source `generated`, {key: True if required}
GENERATED_KEYS = {"seed": False, "low": False, "high": False}
# The most elements of an array, elements of an array of dtype BYTES, dimensions of an array, and bytes of a file
MAX_ELEMENTS, MAX_BYTES_ELEMENTS, MAX_DIMENSIONS, MAX_FILE_BYTES = 1 << 26, 1 << 20, 32, 1 << 30


class Arrays(Fields):
    """The arrays of one check file. A file of golden data is read from the first of `golden_dirs` that contains it."""

    def __init__(self, model: str, path: str, golden_dirs: Sequence[str]) -> None:
        super().__init__(path)
        self.model = model
        self.golden_dirs = golden_dirs
        # The directory of the golden data below `golden_dirs`
        self.golden = model
        # {path of an .npy file: array}, and {field: parameters of the generated array of this field}
        self.arrays: Dict[str, Any] = {}
        self.generated: Dict[str, Dict[str, Any]] = {}

    def array(self, entry: Mapping[str, Any], field: str, sources: Sequence[str]) -> Any:
        """Return the array of an input or of expected values, or None if its entry has errors."""
        error_count = len(self.errors)
        try:
            source = tensors.source_of(entry, sources)
        except tensors.ArrayError as error:
            self.error(field, error.actual, error.expected)
            return None
        dtype, shape = entry.get("dtype"), entry.get("shape", [])
        pixels = source == "image" and dtype == "FP32"
        if dtype is not None and source not in TYPED:
            self.error(f"{field}.dtype", dtype, f"no dtype together with {source}")
        elif dtype is not None and dtype not in DTYPES:
            self.error(f"{field}.dtype", dtype, f"one of {', '.join(DTYPES)}")
        if "shape" in entry:
            self._shape(shape, dtype, f"{field}.shape")
            if source not in SHAPED and not pixels:
                self.error(f"{field}.shape", shape, f"no shape together with {source}, which has its own")
        for key, needing_sources in (("dtype", (*SHAPED, "numbers")), ("shape", (*SHAPED, "image") if pixels else SHAPED)):
            if key not in entry and source in needing_sources and sources is SOURCES:
                self.error(f"{field}.{key}", "missing", f"a value, as {source} needs one")
        if len(self.errors) > error_count:
            return None
        try:
            return self._read(source, entry[source], dtype, shape, field)
        except tensors.ArrayError as error:
            self.error(f"{field}.{source}", error.actual, error.expected)
            return None

    def _shape(self, shape: Any, dtype: Any, field: str) -> None:
        max_elements = MAX_BYTES_ELEMENTS if dtype == "BYTES" else MAX_ELEMENTS
        if not all(is_whole(size) and size > 0 for size in self.as_list(shape, field)):
            self.error(field, shape, "whole numbers above 0")
        elif len(shape) > MAX_DIMENSIONS or math.prod(shape) > max_elements:
            self.error(field, shape, f"at most {MAX_DIMENSIONS} sizes, and at most {max_elements} values")

    def _read(self, source: str, value: Any, dtype: Optional[str], shape: List[int], field: str) -> Any:
        """Return the array of one source, or None if an error was recorded. Raises ArrayError for other errors."""
        source_field = f"{field}.{source}"
        if source == "npy":
            path = self._path(self.as_text(value, source_field), source_field)
            if path and path not in self.arrays:
                self.arrays[path] = tensors.from_npy(path)
            array = self.arrays[path] if path else None
            if array is not None and dtype and (dtype, array.dtype.name) != ("BF16", "float32"):
                self.error(f"{field}.dtype", f"{dtype} for {array.dtype} in {value}", "no dtype, or BF16 for float32")
            return array
        if source == "text":
            return tensors.from_text(value)
        if source == "numbers":
            return tensors.from_numbers(value, dtype)
        if source == "generated":
            return self._generated(value, str(dtype), shape, field)
        if source == "raw":
            path = self._path(self.as_text(value, source_field), source_field)
            return tensors.from_raw(_content(path), str(dtype), shape) if path else None
        if source == "image" and dtype == "FP32":
            return tensors.from_pictures(value, lambda name: self._file(name, source_field, True), shape)
        if dtype not in (None, "BYTES", "UINT8"):
            pixels = ", or FP32 and shape [3, H, W] for the pixels of a picture" * (source == "image")
            raise tensors.ArrayError(dtype, f"BYTES or UINT8 for the bytes of a file{pixels}")
        return tensors.from_files(value, lambda name: self._file(name, source_field, source == "image"), dtype or "BYTES")

    def _generated(self, value: Any, dtype: str, shape: List[int], field: str) -> Any:
        """Return a generated array, or None if its parameters have an error."""
        parameters = self.as_map(value, GENERATED_KEYS, f"{field}.generated")
        seed = parameters.get("seed", 0)
        if not (is_whole(seed) and 0 <= seed < 2**32):
            self.error(f"{field}.generated.seed", seed, "a whole number from 0 to 4294967295")
            return None
        for key in ("low", "high"):
            if key in parameters and not is_number(parameters[key]):
                self.error(f"{field}.generated.{key}", parameters[key], "a number")
                return None
        self.generated[field] = {"dtype": dtype, "shape": shape, **parameters}
        return tensors.generated(**self.generated[field])

    def _file(self, name: str, field: str, image: bool) -> bytes:
        """Return the bytes of a file, or b"" if it does not exist. If `image` is true, the file must be JPEG or PNG."""
        path = self._path(name, field)
        content = _content(path) if path else b""
        if path and image and not content.startswith(pictures.PICTURES):
            raise tensors.ArrayError(f"{path}, which has another format", "a JPEG or PNG file; use `file` for other formats")
        return content

    def _path(self, name: str, field: str) -> Optional[str]:
        """Return the path of a file of golden data, or None if it does not exist."""
        if not name:
            return None
        if not is_inside(name):
            self.error(field, ascii(name[:80]), "the name of a file of golden data, without ..")
            return None
        path = found_in(self.golden_dirs, self.golden, name)
        if path is None:
            candidates = " or ".join(os.path.join(directory, self.golden, name) for directory in self.golden_dirs)
            self.error(field, f"{name}, which does not exist", candidates)
        return path

    def golden_array(self, expectation: Dict[str, Any], key: str, field: str) -> Any:
        """Return the array of expected values of an output, or None for an error. Remove the source from the expectation."""
        if key == "text":
            text, expectation["text"] = expectation["text"], True
            if "values" in expectation:
                self.error(f"{field}.text", "set together with values", "one of the two")
            try:
                return tensors.from_text(text)
            except tensors.ArrayError as error:
                self.error(f"{field}.text", error.actual, error.expected)
                return None
        array = self.array(expectation["values"], f"{field}.values", GOLDEN_SOURCES)
        for source in GOLDEN_SOURCES[1:]:
            expectation["values"].pop(source, None)
        if array is not None:
            self._check_golden(array, expectation["values"], f"{field}.values")
        return array

    def _check_golden(self, golden: Any, values: Mapping[str, Any], field: str) -> None:
        """Record an error if no output can match the golden values, or if an output of zeros matches them."""
        import numpy as np

        if not golden.size:
            expected = "one value or more; set `shape` for an empty output"
            self.error(field, f"without a value in shape {list(golden.shape)}", expected)
        if golden.dtype.kind not in questions.NUMBERS:
            return
        numbers = np.abs(golden.astype(np.float64))
        if np.isnan(numbers).any():
            self.error(field, f"{int(np.isnan(numbers).sum())} values that are nan", "numbers, as nothing equals nan")
        atol, rtol = values.get("atol", 0), values.get("rtol", 0)
        if is_number(atol) and is_number(rtol) and numbers.any() and (numbers <= atol + rtol * numbers).all():
            tolerance = " and ".join(f"{limit:g}" for limit in (atol, rtol) if limit)
            self.error(f"{field}.{'atol' if atol else 'rtol'}", tolerance, "a tolerance that an output of zeros does not pass")


def _content(path: str) -> bytes:
    """Return the bytes of a file. Raises ArrayError."""
    if os.path.getsize(path) > MAX_FILE_BYTES:
        raise tensors.ArrayError(f"{path} of more than {MAX_FILE_BYTES} bytes", "a smaller file")
    return tensors.file_content(path)
