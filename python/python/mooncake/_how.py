"""How objects are to be written."""

from __future__ import annotations

import math
import socket

from . import _codes
from ._codes import INVALID_PARAMS
from ._types import ReplicateConfig, SoftPinAction

# Most copies of an object, and most nodes that one may prefer.
COPIES_MAX = 8
PREFERRED_MAX = 4

# How long something is pinned that is to be pinned for no certain time, in milliseconds.
SOFT_PIN_TTL_MS = 30 * 60 * 1000

# Whether over what is there, copies, whether all of a batch on one node, nodes that are preferred, for how many seconds
# it outlasts others in memory, the group of each object, if they are in some, and the key that each is behind, of which
# Mooncake knows nothing.
How = tuple[bool, int, bool, list[str], float, list[bytes], list[bytes]]


def how_of(config: ReplicateConfig | None, is_upsert: bool, objects: int) -> How | int:
    """How to write so many objects; a code, if that makes no sense."""
    if config is None:
        return (is_upsert, 1, False, [], 0.0, [], [])
    if not isinstance(config, ReplicateConfig):
        raise TypeError(f"a ReplicateConfig, not {type(config).__name__}")
    is_timed = config.soft_pin_ttl_ms is not None
    if (
        config.replica_num < 1
        or config.nof_replica_num
        or is_timed and config.soft_pin_action != SoftPinAction.ENABLE
        or is_timed and config.soft_pin_ttl_ms < 0
        or config.group_ids is not None and len(config.group_ids) != objects
    ):
        return INVALID_PARAMS
    if config.dfs_replica_num:
        return _codes.DFS_UNAVAILABLE
    names = [*config.preferred_segments, config.preferred_segment]
    preferred = [name for name in names if _is_address(name)][:PREFERRED_MAX]
    copies = min(config.replica_num, COPIES_MAX)
    is_same_node = bool(config.prefer_alloc_in_same_node)
    groups = [name.encode() for name in config.group_ids or ()]
    return (is_upsert, copies, is_same_node, preferred, _pin_s(config), groups, [])


def of_some(how: How, chosen: list[int]) -> How:
    """The same for some of the objects."""
    *others, groups, behind = how
    return (*others, [groups[index] for index in chosen] if groups else [], behind)


def _pin_s(config: ReplicateConfig) -> float:
    """For how long it outlasts others."""
    if config.with_hard_pin:
        return math.inf
    if config.soft_pin_action != SoftPinAction.ENABLE:
        return 0.0
    ttl_ms = SOFT_PIN_TTL_MS if config.soft_pin_ttl_ms is None else config.soft_pin_ttl_ms
    return ttl_ms / 1000


def _is_address(name: str) -> bool:
    """Whether it is of the kind that `get_hostname` tells: others are nobody's here."""
    host, _, port = name.rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    try:
        socket.inet_pton(family, host.strip("[]"))
    except OSError:
        return False
    return port.isdigit() and int(port) < 1 << 16
