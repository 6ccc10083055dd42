"""Where the bytes of what has the buffer protocol, DLPack or CUDA's array interface lie."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, Union

from ._cuda_array import Producer as ShownProducer
from ._cuda_array import Shown
from ._native import Given

if TYPE_CHECKING:
    from typing_extensions import Buffer, TypeGuard


class Producer(Protocol):
    """A tensor of any library."""

    def __dlpack__(self, **kwargs: Any) -> object: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...


# Address, length in bytes, and what has to be kept for as long as they are used.
Lent = tuple[int, int, object]
# What has bytes.
Memory = Union["Buffer", Producer, ShownProducer]


def readable(value: Memory, of_devices: bool = False) -> Lent:
    """Bytes to be read. A buffer that is read-only and no `bytes`, or is not in one piece, is copied.

    `ValueError` if they are a tensor's that is not in one piece, or not in the host's memory, nor in that of a device where
    that may be.
    """
    if not isinstance(value, bytes):
        given = _given(value, of_devices)
        if given is not None:
            return given.address, given.size, given
        view = memoryview(value)  # type: ignore[arg-type]
        if not view.readonly and view.c_contiguous:
            return _of(view)
        value = view.tobytes()
    pointer = ctypes.cast(ctypes.c_char_p(value), ctypes.c_void_p)
    return pointer.value or 0, len(value), value


def writable(into: Memory, of_devices: bool = False) -> Lent:
    """Bytes to be written.

    `ValueError` if they are read-only, or not in one piece, or not in the host's memory, nor in that of a device where that
    may be.
    """
    given = _given(into, of_devices)
    if given is not None:
        if given.is_read_only:
            raise ValueError("the tensor is read-only")
        return given.address, given.size, given
    view = memoryview(into)  # type: ignore[arg-type]
    if view.readonly or not view.c_contiguous:
        raise ValueError("the buffer is read-only, or not in one piece")
    return _of(view)


def streams(lent: Iterable[Lent]) -> list[int]:
    """The streams of devices that have still to do with the memory."""
    found = {stream for _, _, kept in lent for stream in getattr(kept, "after", ())}
    return sorted(found)


def _given(value: Memory, of_devices: bool) -> Given | Shown | None:
    """A tensor's or an array's memory."""
    if is_tensor(value):
        return Given(value, of_devices)
    if of_devices and hasattr(value, "__cuda_array_interface__"):
        return Shown(value)
    return None


def _of(view: memoryview) -> Lent:
    if view.nbytes == 0:
        return 0, 0, view
    first = ctypes.c_char.from_buffer(view)
    return ctypes.addressof(first), view.nbytes, first


def is_tensor(value: Memory) -> TypeGuard[Producer]:
    """Whether DLPack is the way to its memory: buffers have a shorter one."""
    if isinstance(value, (bytearray, memoryview)):
        return False
    if hasattr(type(value), "__dlpack_c_exchange_api__"):
        # As a rule it is no buffer: to be told so would be an exception, raised and caught, which takes longer than this way.
        return True
    if not hasattr(value, "__dlpack__"):
        return False
    try:
        memoryview(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        # Also arrays whose types of elements no buffer can have.
        return True
    return False
