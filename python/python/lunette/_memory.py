"""Where the bytes of what has the buffer protocol lie."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Address, length in bytes, and what has to be kept for as long as they are used.
Lent = tuple[int, int, object]


def readable(value: Buffer) -> Lent:
    """Bytes to be read. What is read-only and no `bytes`, or is not in one piece, is copied."""
    if not isinstance(value, bytes):
        view = memoryview(value)
        if not view.readonly and view.c_contiguous:
            return _of(view)
        value = view.tobytes()
    pointer = ctypes.cast(ctypes.c_char_p(value), ctypes.c_void_p)
    return pointer.value or 0, len(value), value


def writable(into: Buffer) -> Lent:
    """Bytes to be written.

    `ValueError` if they are read-only, or not in one piece.
    """
    view = memoryview(into)
    if view.readonly or not view.c_contiguous:
        raise ValueError("the buffer is read-only, or not in one piece")
    return _of(view)


def _of(view: memoryview) -> Lent:
    if view.nbytes == 0:
        return 0, 0, view
    first = ctypes.c_char.from_buffer(view)
    return ctypes.addressof(first), view.nbytes, first
