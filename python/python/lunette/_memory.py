"""Where the bytes of what has the buffer protocol, or DLPack, lie."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Union

from ._dlpack import Given, Producer

if TYPE_CHECKING:
    from typing_extensions import Buffer, TypeGuard

# Address, length in bytes, and what has to be kept for as long as they are used.
Lent = tuple[int, int, object]
# What has bytes.
Memory = Union["Buffer", Producer]


def readable(value: Memory) -> Lent:
    """Bytes to be read. A buffer that is read-only and no `bytes`, or is not in one piece, is copied.

    `ValueError` if they are a tensor's that is not in one piece, or not in the host's memory.
    """
    if not isinstance(value, bytes):
        if is_tensor(value):
            given = Given(value)
            return given.address, given.size, given
        view = memoryview(value)
        if not view.readonly and view.c_contiguous:
            return _of(view)
        value = view.tobytes()
    pointer = ctypes.cast(ctypes.c_char_p(value), ctypes.c_void_p)
    return pointer.value or 0, len(value), value


def writable(into: Memory) -> Lent:
    """Bytes to be written.

    `ValueError` if they are read-only, or not in one piece, or not in the host's memory.
    """
    if is_tensor(into):
        given = Given(into)
        if given.is_read_only:
            raise ValueError("the tensor is read-only")
        return given.address, given.size, given
    view = memoryview(into)
    if view.readonly or not view.c_contiguous:
        raise ValueError("the buffer is read-only, or not in one piece")
    return _of(view)


def _of(view: memoryview) -> Lent:
    if view.nbytes == 0:
        return 0, 0, view
    first = ctypes.c_char.from_buffer(view)
    return ctypes.addressof(first), view.nbytes, first


def is_tensor(value: Memory) -> TypeGuard[Producer]:
    """Whether DLPack is the way to its memory: buffers have a shorter one."""
    if isinstance(value, (bytearray, memoryview)) or not hasattr(value, "__dlpack__"):
        return False
    try:
        memoryview(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        # Also arrays whose types of elements no buffer can have.
        return True
    return False
