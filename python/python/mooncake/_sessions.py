"""Sessions and ranges: parts of objects, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lunette._native import NativeReservation, NativeStore, StoreError

from ._codes import (
    INVALID_PARAMS,
    OBJECT_ALREADY_EXISTS,
    OBJECT_NOT_FOUND,
    OK,
    code_of,
    of_reads,
)
from ._how import how_of, of_some
from ._objects import Objects, _key, _keys, _numbers
from ._types import ReplicateConfig

# Most ranges of one question.
RANGES_MAX = 64
# How long room is kept to which nothing is written.
KEEP_S = 60.0


class Sessions(Objects):
    """Gets and puts of ranges. A session of gets tells which objects there are when it begins; it pins none of them, so
    that one that is evicted meanwhile is not found. A session of puts has room for objects that nobody sees until it
    ends."""

    def __init__(self) -> None:
        super().__init__()
        self._in_session: set[bytes] = set()
        self._reserved: dict[bytes, NativeReservation] = {}

    def batch_put_session_start(
        self, keys: list[str], sizes: list[int], config: ReplicateConfig | None = None
    ) -> list[int]:
        """Reserves room for objects: 0 for each, or -705 where there is one."""
        names, native = _keys(keys), self._native
        _numbers(*sizes)
        how = how_of(config, False, len(names)) if names else INVALID_PARAMS
        if native is None or isinstance(how, int) or len(names) != len(sizes):
            return [how if isinstance(how, int) else INVALID_PARAMS] * len(names)
        codes = []
        for index, (name, size) in enumerate(zip(names, sizes)):
            if size == 0 or name in self._reserved:
                codes.append(INVALID_PARAMS)
                continue
            try:
                room = NativeReservation.reserve(native, name, size, of_some(how, [index]), KEEP_S)
            except StoreError as error:
                codes.append(code_of(error))
                continue
            if room is not None:
                self._reserved[name] = room
            codes.append(OBJECT_ALREADY_EXISTS if room is None else OK)
        return codes

    def batch_put_from_multi_buffer_ranges(
        self,
        keys: list[str],
        all_buffer_ptrs: list[list[int]],
        all_sizes: list[list[int]],
        all_dst_offsets: list[list[int]],
    ) -> list[int]:
        """Writes what lies at addresses to ranges of objects of the session: how many bytes of each object, or a code."""
        names, native = _keys(keys), self._native
        if native is None or not (
            len(names) == len(all_buffer_ptrs) == len(all_sizes) == len(all_dst_offsets)
        ):
            return [INVALID_PARAMS] * len(names)
        codes = []
        for name, addresses, sizes, offsets in zip(
            names, all_buffer_ptrs, all_sizes, all_dst_offsets
        ):
            room = self._reserved.get(name)
            if room is None:
                codes.append(INVALID_PARAMS)
                continue
            try:
                room.write(native, addresses, sizes, offsets)
                codes.append(sum(sizes))
            except OverflowError as error:
                raise TypeError("addresses, sizes and offsets are no negative numbers") from error
            except StoreError as error:
                codes.append(code_of(error))
        return codes

    def batch_put_session_end(self, keys: list[str]) -> list[int]:
        """Lets others see the objects, all of whose bytes have been written: 0 for each."""
        return [self._end(name, NativeReservation.commit) for name in _keys(keys)]

    def batch_put_session_revoke(self, keys: list[str]) -> list[int]:
        """Gives the room back: 0 for each."""
        return [self._end(name, NativeReservation.revoke) for name in _keys(keys)]

    def _end(self, name: bytes, how: Callable[[NativeReservation], object]) -> int:
        room = self._reserved.get(name)
        if room is None or self._native is None:
            return INVALID_PARAMS
        try:
            how(room)
        except StoreError as error:
            return code_of(error)
        del self._reserved[name]
        return OK

    def batch_get_session_start(self, keys: list[str]) -> list[int]:
        """Begins with these objects: 0 for each that there is."""
        names, native = _keys(keys), self._native
        if native is None:
            return [INVALID_PARAMS] * len(names)
        try:
            codes = of_reads(native.sizes(names))
        except StoreError as error:
            return [code_of(error)] * len(names)
        self._in_session.update(name for name, code in zip(names, codes) if code >= 0)
        return [min(code, OK) for code in codes]

    def batch_get_into_multi_buffer_ranges(
        self,
        keys: list[str],
        all_buffer_ptrs: list[list[int]],
        all_sizes: list[list[int]],
        all_src_offsets: list[list[int]],
    ) -> list[int]:
        """Gets ranges of objects of the session, each to its address: how many bytes of each object, or a code."""
        names, native = _keys(keys), self._native
        if native is None or not (
            len(names) == len(all_buffer_ptrs) == len(all_sizes) == len(all_src_offsets)
        ):
            return [INVALID_PARAMS] * len(names)
        ranges = zip(names, all_buffer_ptrs, all_sizes, all_src_offsets)
        return [
            _ranges(native, name, addresses, sizes, offsets)
            if name in self._in_session
            else INVALID_PARAMS
            for name, addresses, sizes, offsets in ranges
        ]

    def batch_get_session_end(self, keys: list[str]) -> int:
        """Ends with these objects."""
        self._in_session.difference_update(_keys(keys))
        return OK if self._native is not None else INVALID_PARAMS

    def get_into_ranges(
        self,
        buffer_ptrs: list[int],
        all_keys: list[list[str]],
        all_dst_offsets: list[list[list[int]]],
        all_src_offsets: list[list[list[int]]],
        all_sizes: list[list[list[int]]],
    ) -> list[list[list[int]]]:
        """Gets ranges of objects to offsets from addresses: for each range how many bytes, or a code."""
        _numbers(*buffer_ptrs)
        native = self._native
        outcomes = []
        for pointer, keys, targets, offsets, sizes in zip(
            buffer_ptrs, all_keys, all_dst_offsets, all_src_offsets, all_sizes, strict=True
        ):
            of_buffer = []
            for key, into, begins, lengths in zip(keys, targets, offsets, sizes, strict=True):
                name = _key(key)
                addresses = [pointer + offset for offset in into]
                if native is None:
                    code = INVALID_PARAMS
                else:
                    code = _ranges(native, name, addresses, lengths, begins)
                of_buffer.append([min(code, length) for length in lengths])
            outcomes.append(of_buffer)
        return outcomes


def _ranges(
    native: NativeStore,
    name: bytes,
    addresses: Sequence[int],
    sizes: Sequence[int],
    offsets: Sequence[int],
) -> int:
    """All of them or a code, in questions of at most `RANGES_MAX`."""
    if not len(addresses) == len(sizes) == len(offsets) or not all(sizes):
        return INVALID_PARAMS
    total = 0
    for first in range(0, len(sizes), RANGES_MAX):
        part = slice(first, first + RANGES_MAX)
        try:
            got = native.get_ranges(name, addresses[part], sizes[part], offsets[part])
        except OverflowError as error:
            raise TypeError("addresses, sizes and offsets are no negative numbers") from error
        except StoreError as error:
            return code_of(error)
        if got is None:
            return OBJECT_NOT_FOUND
        total += got
    return total
