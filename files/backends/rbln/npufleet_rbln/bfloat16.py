"""bfloat16 between Triton and numpy, which has none: both lend it as DLPack, and here its elements are 16 bits without a meaning.

Triton's Tensor.as_numpy() refuses bfloat16 and points at DLPack (python_backend, since release 24.08); numpy's DLPack refuses it
too. A capsule is a struct with the address and the type of the memory. Only the type is replaced; nothing is copied.
"""

from __future__ import annotations

import ctypes
from typing import Any, Tuple

import numpy as np

# DLManagedTensor (dlpack.h): pointer to the data, device type and id, number of dimensions, then the type's code, bits and lanes
CODE_AT = 8 + 4 + 4 + 4
UNSIGNED, BFLOAT = 1, 4

# What a capsule is called whose memory somebody took: the name has to live as long as it.
TAKEN = ctypes.c_char_p(b"used_dltensor")

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_is_called = ctypes.pythonapi.PyCapsule_IsValid
_is_called.restype, _is_called.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.restype, _rename.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]


class _Lent:
    """A capsule as numpy's from_dlpack takes it."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> Tuple[int, int]:
        return 1, 0  # the CPU


def _relabel(capsule: Any, code: int) -> Any:
    ctypes.c_uint8.from_address(_pointer(capsule, b"dltensor") + CODE_AT).value = code
    return capsule


def read(tensor: Any) -> np.ndarray:
    """Return the bits of Triton's bfloat16 tensor as uint16, without a copy."""
    return np.from_dlpack(_Lent(_relabel(tensor.to_dlpack(), UNSIGNED)))


def tensor_of(utils: Any, name: str, bits: np.ndarray) -> Any:
    """Triton's bfloat16 tensor of these bits, uint16. `utils` is Triton's module."""
    capsule = _relabel(np.ascontiguousarray(bits).__dlpack__(), BFLOAT)
    try:
        return utils.Tensor.from_dlpack(name, capsule)
    finally:
        # Triton calls one that it took "used_dlpack", also where it then refuses it; numpy does not know that for taken.
        if not _is_called(capsule, b"dltensor"):
            _rename(capsule, TAKEN)


def known(utils: Any) -> bool:
    """Return True if the python backend of this Triton has bfloat16, which is from 24.08 on."""
    try:
        tensor_of(utils, "NONE", np.zeros(1, np.uint16))
    except utils.TritonModelException:
        return False
    return True
