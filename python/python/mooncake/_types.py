"""What is given to a store beside keys and bytes, and what it tells."""

from __future__ import annotations

import ctypes
import enum
import mmap
import os
from dataclasses import dataclass, field


class ObjectDataType(enum.IntEnum):
    """What an object is for. It is taken, and makes no difference."""

    UNKNOWN = 0
    KVCACHE = 1
    TENSOR = 2
    WEIGHT = 3
    SAMPLE = 4
    ACTIVATION = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    METADATA = 8
    GENERAL = 9


class SoftPinAction(enum.IntEnum):
    """What becomes of an object's soft pin."""

    PRESERVE = 0
    ENABLE = 1
    DISABLE = 2


class ReplicaStatus(enum.IntEnum):
    """How far a copy is."""

    UNDEFINED = 0
    INITIALIZED = 1
    PROCESSING = 2
    COMPLETE = 3
    REMOVED = 4
    FAILED = 5


@dataclass
class ReplicateConfig:
    """How an object is to be written. `COMPATIBILITY.md` tells what each field does here."""

    replica_num: int = 1
    nof_replica_num: int = 0
    dfs_replica_num: int = 0
    soft_pin_action: SoftPinAction = SoftPinAction.PRESERVE
    soft_pin_ttl_ms: int | None = None
    with_hard_pin: bool = False
    preferred_segments: list[str] = field(default_factory=list)
    preferred_segment: str = ""
    preferred_nof_segments: list[str] = field(default_factory=list)
    prefer_alloc_in_same_node: bool = False
    data_type: ObjectDataType = ObjectDataType.UNKNOWN
    group_ids: list[str] | None = None


class BufferHandle(bytearray):
    """An object's bytes, in memory of their own. It has the buffer protocol."""

    def ptr(self) -> int:
        """Where they begin. They stay for as long as the handle."""
        if not self:
            return 0
        if not hasattr(self, "_first"):
            # It also keeps the handle from being resized, which would move the bytes.
            self._first = ctypes.c_char.from_buffer(self)
        return ctypes.addressof(self._first)

    def size(self) -> int:
        """Their length."""
        return len(self)


class MooncakeHostMemAllocator:
    """Memory by its address, in whole pages, zeroed."""

    def __init__(self) -> None:
        self._allocated: dict[int, tuple[mmap.mmap, ctypes.c_char]] = {}

    def alloc(self, size: int) -> int:
        """So many bytes; 0 if there are none."""
        if not isinstance(size, int) or size < 0:
            raise TypeError("a size is a positive number")
        try:
            memory = mmap.mmap(-1, size)
        except (OSError, OverflowError, ValueError):
            return 0
        first = ctypes.c_char.from_buffer(memory)
        address = ctypes.addressof(first)
        self._allocated[address] = (memory, first)
        return address

    def free(self, address: int) -> int:
        """Gives it back; -1 if it is not of this allocator."""
        if address not in self._allocated:
            return -1
        memory, first = self._allocated.pop(address)
        del first
        memory.close()
        return 0


def bind_to_numa_node(node: int) -> None:
    """Lets the calling thread run on the processors of a NUMA node only.

    `OSError` if the system knows no such node.
    """
    with open(f"/sys/devices/system/node/node{int(node)}/cpulist", encoding="ascii") as listed:
        ranges = [part.split("-") for part in listed.read().strip().split(",") if part]
    cpus = {cpu for part in ranges for cpu in range(int(part[0]), int(part[-1]) + 1)}
    if cpus:
        os.sched_setaffinity(0, cpus)
