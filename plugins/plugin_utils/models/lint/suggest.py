# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Suggestions for unknown words: the nearest known word."""

from __future__ import annotations

import difflib
from typing import Iterable

# {name that people know from numpy, PyTorch, Triton's protocol or the NPUs: the name in a config}
SYNONYMS = {
    "TYPE_BYTES": "TYPE_STRING",
    "TYPE_STR": "TYPE_STRING",
    "TYPE_FLOAT": "TYPE_FP32",
    "TYPE_FLOAT16": "TYPE_FP16",
    "TYPE_HALF": "TYPE_FP16",
    "TYPE_FLOAT32": "TYPE_FP32",
    "TYPE_FLOAT64": "TYPE_FP64",
    "TYPE_DOUBLE": "TYPE_FP64",
    "TYPE_BFLOAT16": "TYPE_BF16",
    "TYPE_INT": "TYPE_INT32",
    "TYPE_LONG": "TYPE_INT64",
    "KIND_NPU": "KIND_MODEL",
    "KIND_RBLN": "KIND_MODEL",
    "onnx": "onnxruntime",
    "trt": "tensorrt",
    "torch": "pytorch",
    "libtorch": "pytorch",
}


def nearest(word: str, candidates: Iterable[str]) -> str:
    """Return the nearest known word, or "". Case and a missing prefix, such as TYPE_, do not matter."""
    words = list(candidates)
    prefix = words[-1].partition("_")[0] + "_" if len(words) > 1 else ""
    prefix = prefix if all(entry.startswith(prefix) for entry in words) else ""
    for form in (word, word.upper(), word.lower(), prefix + word.upper()):
        if form in words or SYNONYMS.get(form) in words:
            return SYNONYMS.get(form, form)
    lower = {entry.lower(): entry for entry in words}
    matches = difflib.get_close_matches(word.lower(), lower, 1, 0.7)
    matches = matches or difflib.get_close_matches((prefix + word).lower(), lower, 1, 0.8)
    return lower[matches[0]] if matches else ""


def with_suggestion(word: str, candidates: Iterable[str], todo: str) -> str:
    """Return the next step for an unknown word, after a suggestion if a known word is near."""
    suggestion = nearest(word, candidates)
    return f"Did you mean {suggestion}? {todo}" if suggestion else todo
