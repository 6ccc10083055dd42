"""Memory of tensors that are no buffers: given by DLPack.

A producer hands out a capsule with a description of its memory, and keeps the memory until the description's deleter is
called. Source: dlpack.h of DLPack 1.0, and its specification for Python.
"""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

from ._native import is_of_device as is_of_device_at
from ._native import meeting_stream

# Kinds of devices whose memory the processor reaches: its own, and what CUDA or ROCm has pinned of it.
OF_HOST = frozenset({1, 3, 11})
# CUDA's own.
OF_DEVICE = 2
READ_ONLY = 1
VERSION_MAX = (1, 0)
# Most dimensions of a tensor: what its arrays of lengths and strides are believed to have.
DIMENSIONS_MAX = 64

# Capsules keep no copy of their names: these stay.
_NAME, _USED = b"dltensor", b"used_dltensor"
_VERSIONED, _VERSIONED_USED = b"dltensor_versioned", b"used_dltensor_versioned"


class Producer(Protocol):
    """A tensor of any library."""

    def __dlpack__(self, **kwargs: Any) -> object: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_kind", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    ]


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER)]
    flags = 0


class _ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes, _is_valid.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.argtypes, _rename.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int


class Given:
    """A tensor's memory, until this is dropped."""

    def __init__(self, producer: Producer, of_devices: bool = False) -> None:
        self._managed: _Managed | _ManagedVersioned | None = None
        kind, number = producer.__dlpack_device__()
        is_of_device = of_devices and kind == OF_DEVICE
        if kind not in OF_HOST and not is_of_device:
            raise ValueError(f"the tensor is in the memory of a device of kind {kind}, not of the host")
        # There a producer puts what is still to be done: what others have put elsewhere is not waited for.
        self.after: list[int] = [meeting_stream(number)] if is_of_device else []
        stream = {"stream": self.after[0]} if is_of_device else {}
        try:
            capsule = producer.__dlpack__(max_version=VERSION_MAX, **stream)
        except TypeError:
            # It is older than versions.
            capsule = producer.__dlpack__(**stream)
        self._managed = _taken(capsule)
        self.is_read_only = bool(self._managed.flags & READ_ONLY)
        tensor = self._managed.tensor
        lengths = _lengths(tensor)
        self.shape = tuple(lengths)
        # What elements are: DLPack's code, bits, and how many of them are one.
        self.element: tuple[int, int, int] = (tensor.code, tensor.bits, tensor.lanes)
        elements = 1
        for length in lengths:
            elements *= length
        self.size = (elements * tensor.bits * tensor.lanes + 7) // 8
        if self.size and not _is_in_one_piece(tensor, lengths):
            raise ValueError("the tensor is not in one piece")
        self.address: int = (tensor.data or 0) + tensor.offset if self.size else 0
        if is_of_device and self.size and not is_of_device_at(self.address):
            raise ValueError("the tensor is in the memory of a device that this process cannot use")

    def __del__(self) -> None:
        managed, self._managed = self._managed, None
        if managed is not None and managed.deleter:
            managed.deleter(ctypes.addressof(managed))


def _taken(capsule: object) -> _Managed | _ManagedVersioned:
    """What the capsule has, which is ours from now on."""
    kinds: list[tuple[bytes, bytes, type[_Managed] | type[_ManagedVersioned]]] = [
        (_VERSIONED, _VERSIONED_USED, _ManagedVersioned),
        (_NAME, _USED, _Managed),
    ]
    for name, used, kind in kinds:
        if _is_valid(capsule, name):
            managed = kind.from_address(_pointer(capsule, name))
            if isinstance(managed, _ManagedVersioned) and managed.major != VERSION_MAX[0]:
                # It stays the capsule's.
                raise ValueError(f"DLPack {managed.major} is not known")
            _rename(capsule, used)
            return managed
    raise TypeError("__dlpack__ gave no capsule of a tensor, or one that is used")


def _lengths(tensor: _Tensor) -> list[int]:
    if not 0 <= tensor.dimensions <= DIMENSIONS_MAX:
        raise ValueError(f"a tensor of {tensor.dimensions} dimensions")
    return [tensor.shape[index] for index in range(tensor.dimensions)]


def _is_in_one_piece(tensor: _Tensor, lengths: list[int]) -> bool:
    """Whether its elements follow each other in the order of its indices."""
    if not tensor.strides:
        return True
    expected = 1
    for index in reversed(range(len(lengths))):
        if lengths[index] != 1 and tensor.strides[index] != expected:
            return False
        expected *= lengths[index]
    return True
