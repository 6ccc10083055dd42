"""`mooncake.store`: objects in the memory of many nodes."""

from ._sessions import Sessions
from ._types import (
    BufferHandle,
    MooncakeHostMemAllocator,
    ObjectDataType,
    ReplicaStatus,
    ReplicateConfig,
    SoftPinAction,
    bind_to_numa_node,
)
from ._unsupported import Unsupported

__all__ = [
    "BufferHandle",
    "MooncakeDistributedStore",
    "MooncakeHostMemAllocator",
    "ObjectDataType",
    "ReplicaStatus",
    "ReplicateConfig",
    "SoftPinAction",
    "bind_to_numa_node",
]


class MooncakeDistributedStore(Sessions, Unsupported):
    """A member of a cluster in this process, or a client of one, with Mooncake's methods and codes."""
