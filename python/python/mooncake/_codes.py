"""Return codes, as Mooncake's `types.h` numbers them."""

from __future__ import annotations

from collections.abc import Iterable

from lunette._native import (
    Closed,
    Corrupt,
    Invalid,
    InvalidKey,
    NoRoom,
    OverQuota,
    StoreError,
    Unavailable,
    Unknown,
)

OK = 0
INTERNAL_ERROR = -1
NO_AVAILABLE_HANDLE = -200
INVALID_PARAMS = -600
OBJECT_NOT_FOUND = -704
OBJECT_ALREADY_EXISTS = -705
TRANSFER_FAIL = -800
RPC_FAIL = -900
DFS_UNAVAILABLE = -1601
TENANT_QUOTA_EXCEEDED = -1700

# The first that fits. Whoever gets RPC_FAIL may use the buffers again: nothing is under way any more.
_CODES: tuple[tuple[type[StoreError], int], ...] = (
    (OverQuota, TENANT_QUOTA_EXCEEDED),
    (NoRoom, NO_AVAILABLE_HANDLE),
    (Invalid, INVALID_PARAMS),
    (Closed, INVALID_PARAMS),
    (Corrupt, TRANSFER_FAIL),
    (Unavailable, RPC_FAIL),
    (Unknown, RPC_FAIL),
)


def code_of(error: StoreError) -> int:
    """The code for what went wrong."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), INTERNAL_ERROR)


def of_writes(outcomes: Iterable[bool | StoreError]) -> list[int]:
    """Of puts: 0 also where there was an object, which stays."""
    return [code_of(each) if isinstance(each, StoreError) else OK for each in outcomes]


def of_reads(outcomes: Iterable[int | StoreError | None]) -> list[int]:
    """Of gets: lengths, or why there is none."""
    return [each if isinstance(each, int) else _of_miss(each) for each in outcomes]


def of_removals(outcomes: Iterable[bool | StoreError]) -> list[int]:
    """Of removals: whether there was one, or why that is not known."""
    return [OK if each is True else _of_miss(each) for each in outcomes]


def _of_miss(why: bool | StoreError | None) -> int:
    if isinstance(why, StoreError) and not isinstance(why, InvalidKey):
        return code_of(why)
    return OBJECT_NOT_FOUND


def first_failure(codes: Iterable[int]) -> int:
    """The first code that is not `OK`; that, if there is none."""
    return next((code for code in codes if code != OK), OK)
