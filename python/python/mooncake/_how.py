"""How objects are to be written."""

from __future__ import annotations

import socket

from . import _codes
from ._codes import INVALID_PARAMS
from ._types import ReplicateConfig, SoftPinAction

# Most copies of an object, and most nodes that one may prefer.
COPIES_MAX = 8
PREFERRED_MAX = 4

# Whether over what is there, copies, whether all of a batch on one node, nodes that are preferred.
How = tuple[bool, int, bool, list[str]]


def how_of(config: ReplicateConfig | None, is_upsert: bool, objects: int) -> How | int:
    """How to write so many objects; a code, if that makes no sense."""
    if config is None:
        return (is_upsert, 1, False, [])
    if not isinstance(config, ReplicateConfig):
        raise TypeError(f"a ReplicateConfig, not {type(config).__name__}")
    is_timed = config.soft_pin_ttl_ms is not None
    if (
        config.replica_num < 1
        or config.nof_replica_num
        or is_timed and config.soft_pin_action != SoftPinAction.ENABLE
        or config.group_ids is not None and len(config.group_ids) != objects
    ):
        return INVALID_PARAMS
    if config.dfs_replica_num:
        return _codes.DFS_UNAVAILABLE
    names = [*config.preferred_segments, config.preferred_segment]
    preferred = [name for name in names if _is_address(name)][:PREFERRED_MAX]
    copies = min(config.replica_num, COPIES_MAX)
    return (is_upsert, copies, bool(config.prefer_alloc_in_same_node), preferred)


def _is_address(name: str) -> bool:
    """Whether it is of the kind that `get_hostname` tells: others are nobody's here."""
    host, _, port = name.rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    try:
        socket.inet_pton(family, host.strip("[]"))
    except OSError:
        return False
    return port.isdigit() and int(port) < 1 << 16
