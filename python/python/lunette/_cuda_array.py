"""Memory of arrays on a device that is told by `__cuda_array_interface__`: of others, and of this wheel.

Source: https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html, version 3.
"""

from __future__ import annotations

from typing import Any, Protocol

from ._native import is_of_device

# The default stream of a device.
DEFAULT_STREAM = 1
# The default stream of each thread, which the device's default stream waits for.
_OF_THREAD = 2


class Producer(Protocol):
    """An array of any library."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


class Shown:
    """An array's memory, until this is dropped."""

    def __init__(self, producer: Producer) -> None:
        told = producer.__cuda_array_interface__
        shape: tuple[int, ...] = tuple(told["shape"])
        self.shape = shape
        self.kind: str = told["typestr"][1:2]
        """What its elements are, as NumPy has it: `f`, `i`, `u`, `b`, ..."""
        item = int(told["typestr"][2:])
        self.item_bytes = item
        address, self.is_read_only = told["data"]
        self.size = item
        for length in shape:
            self.size *= length
        if self.size and not _is_in_one_piece(shape, told.get("strides"), item):
            raise ValueError("the array is not in one piece")
        if self.size and not is_of_device(address):
            raise ValueError("the array is in no memory of a device that this process can use")
        self.address: int = address if self.size else 0
        stream = told.get("stream")
        self.after: list[int] = [DEFAULT_STREAM if stream in (None, _OF_THREAD) else stream]
        self._kept = producer


class DeviceView:
    """Elements that lie in memory of a device: an array of any library is made of it, without a copy (`torch.as_tensor`,
    `cupy.asarray`). Their bytes are there: no stream is to be waited for."""

    def __init__(self, address: int, typestr: str, shape: tuple[int, ...], keeps: object) -> None:
        self.address = address
        self.shape = shape
        self._typestr, self._keeps, self._is_lent = typestr, keeps, True

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if not self._is_lent:
            raise ValueError("it is lent no more")
        return {
            "shape": self.shape,
            "typestr": self._typestr,
            "data": (self.address, False),
            "version": 3,
            "strides": None,
            "stream": None,
        }

    def release(self) -> None:
        """Has who looks at it later be told."""
        self._is_lent, self._keeps = False, None


def _is_in_one_piece(shape: tuple[int, ...], strides: tuple[int, ...] | None, item: int) -> bool:
    """Whether its elements follow each other in the order of its indices."""
    if strides is None:
        return True
    expected = item
    for length, stride in zip(reversed(shape), reversed(strides)):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True
