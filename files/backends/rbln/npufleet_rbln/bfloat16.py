"""Exchange bfloat16 tensors between Triton and numpy through DLPack. numpy has no bfloat16, so it gets the elements as uint16.

Triton's Tensor.as_numpy() refuses bfloat16 and recommends DLPack (python_backend, from release 24.08 on), but numpy's DLPack
refuses bfloat16 too. A DLPack capsule is a struct with the address and the type of the memory. This module replaces only the type,
so it needs no copy.
"""

from __future__ import annotations

import ctypes
from typing import Any, Tuple

import numpy as np

# Offset of the type code in DLManagedTensor (dlpack.h), after the data pointer, device type, device id and number of dimensions
CODE_AT = 8 + 4 + 4 + 4
UNSIGNED, BFLOAT = 1, 4

# Name of a capsule whose memory was taken over. This text has to stay in memory as long as the capsule.
USED_NAME = ctypes.c_char_p(b"used_dltensor")

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_is_called = ctypes.pythonapi.PyCapsule_IsValid
_is_called.restype, _is_called.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.restype, _rename.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]


class _Exporter:
    """A capsule with the interface that numpy's from_dlpack requires."""

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
    return np.from_dlpack(_Exporter(_relabel(tensor.to_dlpack(), UNSIGNED)))


def tensor_of(utils: Any, name: str, bits: np.ndarray) -> Any:
    """Return a bfloat16 tensor of Triton with these bits (uint16). `utils` is Triton's module."""
    capsule = _relabel(np.ascontiguousarray(bits).__dlpack__(), BFLOAT)
    try:
        return utils.Tensor.from_dlpack(name, capsule)
    finally:
        # Triton renames the capsule to "used_dlpack", even if it then refuses the tensor. numpy knows only the name USED_NAME.
        if not _is_called(capsule, b"dltensor"):
            _rename(capsule, USED_NAME)


def supported(utils: Any) -> bool:
    """Return True if the python backend of this Triton supports bfloat16, as from release 24.08 on."""
    try:
        tensor_of(utils, "NONE", np.zeros(1, np.uint16))
    except utils.TritonModelException:
        return False
    return True
