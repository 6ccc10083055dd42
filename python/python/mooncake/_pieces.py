"""Objects in more pieces than the store takes at once."""

from __future__ import annotations

import os
from collections.abc import Sequence

from lunette._memory import writable
from lunette._native import is_of_device

# Most pieces of an object that is put: what one message to a node can hold.
PIECES_MAX = 508

Numbers = Sequence[Sequence[int]]


def are_unequal(some: Sequence[int], others: Sequence[int]) -> bool:
    """Whether there are not as many of each."""
    return len(some) != len(others)


def with_few_pieces(addresses: Numbers, sizes: Numbers) -> tuple[Numbers, Numbers, list[bytearray]]:
    """Addresses and sizes of the same bytes, in at most `PIECES_MAX` pieces for each object, and what has to be kept for
    as long as they are used. The first pieces of an object with more are copied into one. One that cannot be read is left
    as it is, for the store to refuse; and one that has some of a device, of which it takes any number."""
    if all(len(each) <= PIECES_MAX for each in addresses):
        return addresses, sizes, []
    places, lengths, kept = list(addresses), list(sizes), []
    for index, (at, size) in enumerate(zip(addresses, sizes)):
        copied = len(at) - PIECES_MAX + 1
        is_joined = copied > 1 and not any(map(is_of_device, at))
        room = _joined(at[:copied], size[:copied]) if is_joined else None
        if room is not None:
            address, length, _ = writable(room)
            places[index] = [address, *at[copied:]]
            lengths[index] = [length, *size[copied:]]
            kept.append(room)
    return places, lengths, kept


def _joined(addresses: Sequence[int], sizes: Sequence[int]) -> bytearray | None:
    """A copy of those bytes, one piece after the other. It is the system that reads them: to it, an address that is
    nobody's is an error, and not the end of the process."""
    try:
        room = memoryview(bytearray(sum(sizes)))
        descriptor = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except (MemoryError, OSError, OverflowError, ValueError):
        return None
    try:
        end = 0
        for address, size in zip(addresses, sizes):
            begin, end = end, end + size
            if size and os.preadv(descriptor, [room[begin:end]], address) != size:
                return None
    except (OSError, OverflowError):
        return None
    finally:
        os.close(descriptor)
    return room.obj
