"""Where the copies of objects are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

from lunette._native import StoreError

from ._objects import _keys
from ._sessions import Sessions
from ._setup import LOG
from ._types import ReplicaStatus


@dataclass(frozen=True)
class Descriptor:
    """What a copy takes of a member."""

    size: int = 0
    """Length of the object in bytes."""
    transport_endpoint: str = ""
    """Where the member listens."""
    buffer_address: int = 0
    """No address: where a member has an object is its own business."""


@dataclass(frozen=True)
class MemoryDescriptor:
    """A copy that a member has."""

    buffer_descriptor: Descriptor = field(default_factory=Descriptor)


@dataclass(frozen=True)
class ReplicaDescriptor:
    """A copy. That a member keeps it on a drive is not told: it is one in memory to those who ask."""

    _memory: MemoryDescriptor
    status: ReplicaStatus = ReplicaStatus.COMPLETE

    def is_memory_replica(self) -> bool:
        """True."""
        return True

    def is_disk_replica(self) -> bool:
        """False."""
        return False

    def is_local_disk_replica(self) -> bool:
        """False."""
        return False

    def get_memory_descriptor(self) -> MemoryDescriptor:
        """Which member has it."""
        return self._memory

    def get_disk_descriptor(self) -> NoReturn:
        """`RuntimeError`: it is none of a file system."""
        raise RuntimeError("a copy that a member has, and not one of a file system")


class Replicas(Sessions):
    """Where the copies of objects are: hints, since they come and go."""

    def get_replica_desc(self, key: str) -> list[ReplicaDescriptor]:
        """The copies of an object, the best first; none if there is no object, or nobody tells."""
        return self.batch_get_replica_desc([key]).get(key, [])

    def batch_get_replica_desc(self, keys: list[str]) -> dict[str, list[ReplicaDescriptor]]:
        """As `get_replica_desc`, of several: those that there are."""
        names, native = _keys(keys), self._native
        if native is None:
            return {}
        try:
            located = native.locate(names)
        except StoreError as error:
            LOG.warning("get_replica_desc: %s", error)
            return {}
        return {
            key: [_copy(told[0], node) for node in told[1]]
            for key, told in zip(keys, located)
            if isinstance(told, tuple)
        }


def _copy(size: int, node: str) -> ReplicaDescriptor:
    return ReplicaDescriptor(MemoryDescriptor(Descriptor(size, node)))
