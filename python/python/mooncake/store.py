"""`mooncake.store`: objects in the memory of many nodes."""

from ._replicas import Descriptor, MemoryDescriptor, ReplicaDescriptor
from ._standalone import Standalone
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
    "Descriptor",
    "MemoryDescriptor",
    "MooncakeDistributedStore",
    "MooncakeHostMemAllocator",
    "ObjectDataType",
    "ReplicaDescriptor",
    "ReplicaStatus",
    "ReplicateConfig",
    "SoftPinAction",
    "bind_to_numa_node",
]


class MooncakeDistributedStore(Standalone, Unsupported):
    """A member of a cluster in this process, or a client of one, with Mooncake's methods and codes."""
