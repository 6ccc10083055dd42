"""What tensors are made of: types of elements, shapes, and memory that tells its own."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ._cuda_array import DeviceView, Shown
from ._memory import readable, writable
from ._native import Given

if TYPE_CHECKING:
    from ._memory import Memory

# Bits of an element, and the format to which memory of such can be cast: types by the names that safetensors has for them.
DTYPES: dict[str, tuple[int, str | None]] = {
    "BOOL": (8, "?"),
    "U8": (8, "B"),
    "I8": (8, "b"),
    "F4": (4, None),
    "F6_E2M3": (6, None),
    "F6_E3M2": (6, None),
    "F8_E4M3": (8, None),
    "F8_E5M2": (8, None),
    "F8_E8M0": (8, None),
    "U16": (16, "H"),
    "I16": (16, "h"),
    "F16": (16, None),
    "BF16": (16, None),
    "U32": (32, "I"),
    "I32": (32, "i"),
    "F32": (32, "f"),
    "U64": (64, "Q"),
    "I64": (64, "q"),
    "F64": (64, "d"),
    "C64": (64, None),
}

# By DLPack's code and bits. Source: DLDataTypeCode of dlpack.h 1.1.
_OF_DLPACK = {
    (0, 8): "I8",
    (0, 16): "I16",
    (0, 32): "I32",
    (0, 64): "I64",
    (1, 8): "U8",
    (1, 16): "U16",
    (1, 32): "U32",
    (1, 64): "U64",
    (2, 16): "F16",
    (2, 32): "F32",
    (2, 64): "F64",
    (4, 16): "BF16",
    (5, 64): "C64",
    (6, 8): "BOOL",
    (10, 8): "F8_E4M3",
    (12, 8): "F8_E5M2",
    (14, 8): "F8_E8M0",
}
# Kinds of elements of buffers: with their lengths they are types.
_KINDS = {"?": "BOOL", **dict.fromkeys("bhilq", "I"), **dict.fromkeys("BHILQ", "U"), **dict.fromkeys("efd", "F")}

Shape = tuple[int, ...]


class Lying(NamedTuple):
    """Memory, and what it tells of its elements."""

    address: int
    size: int
    kept: object
    dtype: str | None
    """`None` if it does not tell."""
    shape: Shape
    is_plain: bool
    """Whether it is bytes in one dimension, as that of a `bytearray`: it may have elements of any type."""


def lying(value: Memory, *, is_written: bool) -> Lying:
    """Where it lies, and of what it is. `ValueError` as of `readable` and `writable`."""
    address, size, kept = (writable if is_written else readable)(value, of_devices=True)
    if isinstance(kept, Shown):
        dtype = _of_kind(kept.kind, kept.item_bytes)
        return Lying(address, size, kept, dtype, kept.shape, False)
    if isinstance(kept, Given):
        code, bits, lanes = kept.element
        dtype = _OF_DLPACK.get((code, bits)) if lanes == 1 else None
        return Lying(address, size, kept, dtype, kept.shape, False)
    view = memoryview(value)  # type: ignore[arg-type]
    dtype = _of_format(view)
    is_plain = dtype == "U8" and view.ndim == 1 and not hasattr(value, "__array_interface__")
    return Lying(address, size, kept, dtype, view.shape or (), is_plain)


def _of_format(view: memoryview) -> str | None:
    kind = _KINDS.get(view.format.lstrip("@=<"))
    if kind is None or kind == "BOOL":
        return kind
    return f"{kind}{view.itemsize * 8}"


def _of_kind(kind: str, item_bytes: int) -> str | None:
    """The type of elements that NumPy names so."""
    names = {"b": "BOOL", "i": "I", "u": "U", "f": "F", "c": "C"}
    name = names.get(kind)
    if name is None or name == "BOOL":
        return name
    return name if (name := f"{name}{item_bytes * 8}") in DTYPES else None


def on_device(kept: object) -> bool:
    """Whether what has been lent is memory of a device."""
    return isinstance(kept, (Given, Shown)) and bool(kept.after)


def device_view(address: int, dtype: str, shape: Sequence[int], keeps: object) -> DeviceView:
    """Elements on a device, in their shape if NumPy has their type; else their bytes."""
    bits, letter = DTYPES[dtype]
    kinds = {"B": "b", "U": "u", "I": "i", "F": "f", "C": "c"}
    if letter is None and dtype != "C64":
        return DeviceView(address, "|u1", (bytes_of(dtype, shape),), keeps)
    order = "|" if bits == 8 else "<"
    return DeviceView(address, f"{order}{kinds[dtype[0]]}{bits // 8}", tuple(shape), keeps)


def bytes_of(dtype: str, shape: Sequence[int]) -> int:
    """How many bytes so many elements have. `ValueError` if the type is not known, or that is no number of bytes."""
    if dtype not in DTYPES:
        raise ValueError(f"{dtype!r} is no type of elements: {', '.join(DTYPES)} are")
    bits = prod(shape) * DTYPES[dtype][0]
    if bits % 8:
        raise ValueError(f"{tuple(shape)} of {dtype} are no whole number of bytes")
    return bits // 8


def shaped(view: memoryview, dtype: str, shape: Sequence[int]) -> memoryview:
    """Bytes as elements of a type that buffers have, in their shape; else as they are."""
    view = view.cast("B") if view.format != "B" or view.ndim != 1 else view
    letter = DTYPES[dtype][1]
    if letter is None or 0 in shape:
        return view
    typed: memoryview = view.cast(letter, shape=list(shape))  # type: ignore[call-overload]
    return typed


def fresh(size: int) -> memoryview:
    """Memory of the program's own, zeroed, that the system gives when it is written to."""
    if size == 0:
        return memoryview(bytearray())
    room = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE") and size >= 4 << 20:
        try:
            room.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            pass  # The system has none.
    return memoryview(room)
