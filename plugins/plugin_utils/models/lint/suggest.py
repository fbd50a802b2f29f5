"""What somebody may have meant: the known word that is nearest to one that is not."""

from __future__ import annotations

import difflib
from typing import Iterable

# Names of the same things elsewhere: in numpy, in PyTorch, in Triton's protocol, on NPUs
ALSO = {
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


def near(word: str, known: Iterable[str]) -> str:
    """The known word that was meant, or "". Prefixes such as TYPE_ may be missing, and capitals wrong."""
    words = list(known)
    prefix = words[-1].partition("_")[0] + "_" if len(words) > 1 else ""
    prefix = prefix if all(entry.startswith(prefix) for entry in words) else ""
    for element in (word, word.upper(), word.lower(), prefix + word.upper()):
        if element in words or ALSO.get(element) in words:
            return ALSO.get(element, element)
    lower = {entry.lower(): entry for entry in words}
    found = difflib.get_close_matches(word.lower(), lower, 1, 0.7) or difflib.get_close_matches(
        (prefix + word).lower(), lower, 1, 0.8
    )
    return lower[found[0]] if found else ""


def meant(word: str, known: Iterable[str], do: str) -> str:
    """What to do about a word that is not known: `do`, after the one that was meant."""
    entry = near(word, known)
    return f"did you mean {entry}? {do}" if entry else do
