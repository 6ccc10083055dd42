"""Objects and buffers."""

from __future__ import annotations

import atexit
import inspect
import re
import socket
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from lunette._memory import Lent, readable, streams, writable
from lunette._native import Closed, InvalidKey, NativeStore, StoreError

from . import _codes
from ._codes import (
    INVALID_PARAMS,
    OK,
    code_of,
    first_failure,
    of_reads,
    of_removals,
    of_writes,
)
from ._how import How, how_of, of_some
from ._patterns import searching
from ._pieces import are_unequal, with_few_pieces
from ._setup import LOG, SettingError, Settings, of_dictionary, open_store
from ._types import BufferHandle, ReplicateConfig

if TYPE_CHECKING:
    from typing_extensions import Buffer

# How long a coordinator may take to accept a connection, for `health_check`.
HEALTH_TIMEOUT_S = 1.0

# A store, who is asked whether it is well, and its name.
Opened = tuple[NativeStore, list[str], str]

# Their threads are ended while there is an interpreter.
_open: weakref.WeakSet[Objects] = weakref.WeakSet()


def _close_all() -> None:
    for store in list(_open):
        store.close()


atexit.register(_close_all)


def _key(key: str) -> bytes:
    if not isinstance(key, str):
        raise TypeError(f"a key is a str, not {type(key).__name__}")
    return key.encode()


def _keys(keys: Sequence[str]) -> list[bytes]:
    try:
        return list(map(str.encode, keys))
    except TypeError:
        return [_key(key) for key in keys]


def _numbers(*numbers: int) -> None:
    """Addresses and sizes are no negative numbers."""
    for number in numbers:
        if not isinstance(number, int) or number < 0:
            raise TypeError(f"{number!r} is no address or size")


class Objects:
    """Objects of one store. No method raises for what the store could not do: codes tell it.

    What is written to or read from an address, of the host or of a CUDA device, is the caller's to keep for as long as the
    call lasts. When a call has ended, whatever its code, nothing of it is under way. What streams have still to do with
    memory of a device that is given by address is to be waited for before.
    """

    def __init__(self) -> None:
        self._native: NativeStore | None = None
        self._masters: list[str] = []
        self._hostname = ""
        self._lock = threading.Lock()

    # --- Beginning and end ---

    def setup(self, *args: Any, **kwargs: Any) -> int:
        """Opens the store: with the settings of `_setup.Settings`, or a dictionary of them."""
        if len(args) == 1 and isinstance(args[0], dict) or "config" in kwargs:
            given = kwargs.pop("config") if "config" in kwargs else args[0]
            if kwargs:
                raise TypeError("setup: a dictionary, or arguments")
        else:
            bound = inspect.signature(Settings).bind(*args, **kwargs)
            given = Settings(**bound.arguments)
            _numbers(given.global_segment_size, given.local_buffer_size)
        with self._lock:
            if self._native is not None:
                return OK
            return self._open(lambda: self._of(given))

    @staticmethod
    def _of(given: Settings | dict[str, object]) -> Opened:
        settings = given if isinstance(given, Settings) else of_dictionary(given)
        return (*open_store(settings), settings.local_hostname)

    def _open(self, opening: Callable[[], Opened]) -> int:
        try:
            self._native, self._masters, hostname = opening()
        except SettingError as error:
            LOG.error("setup: %s", error)
            return INVALID_PARAMS
        except (StoreError, OSError, ValueError) as error:
            LOG.error("setup: %s", error)
            return _codes.INTERNAL_ERROR
        self._hostname = self._native.address or hostname
        _open.add(self)
        return OK

    def close(self) -> int:
        """Ends it. Again, it does nothing."""
        with self._lock:
            native, self._native = self._native, None
        if native is not None:
            try:
                native.close()
            except Closed:
                pass  # A child of a fork has none of its threads.
        return OK

    def health_check(self) -> int:
        """0; 1 if it is not open; 2 if no coordinator answers."""
        if self._native is None:
            return 1
        for master in self._masters:
            host, _, port = master.rpartition(":")
            try:
                address = (host.strip("[]"), int(port))
                socket.create_connection(address, HEALTH_TIMEOUT_S).close()
                return 0
            except OSError:
                continue
        return 2

    def get_hostname(self) -> str:
        """By what others prefer this store: where it listens, or the name that it was given."""
        return self._hostname

    # --- Buffers ---

    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """Vouches for memory until it is taken back. Not needed for a call to use it, and faster."""
        _numbers(buffer_ptr, size)
        native = self._native
        return OK if native is not None and native.register(buffer_ptr, size) else INVALID_PARAMS

    def unregister_buffer(self, buffer_ptr: int) -> int:
        """Takes that back."""
        _numbers(buffer_ptr)
        native = self._native
        return OK if native is not None and native.unregister(buffer_ptr) else INVALID_PARAMS

    # --- Writes ---

    def put(self, key: str, value: Buffer, config: ReplicateConfig | None = None) -> int:
        """Writes an object, unless there is one."""
        return self._write_one(key, value, config, False)

    def upsert(self, key: str, value: Buffer, config: ReplicateConfig | None = None) -> int:
        """Writes an object, also over one that is there."""
        return self._write_one(key, value, config, True)

    def put_batch(
        self, keys: list[str], values: list[Buffer], config: ReplicateConfig | None = None
    ) -> int:
        """As `put`, of several; the first code that is not 0."""
        return self._write_batch(keys, values, config, False)

    def upsert_batch(
        self, keys: list[str], values: list[Buffer], config: ReplicateConfig | None = None
    ) -> int:
        """As `upsert`, of several; the first code that is not 0."""
        return self._write_batch(keys, values, config, True)

    def put_parts(self, key: str, *parts: Buffer, config: ReplicateConfig | None = None) -> int:
        """As `put`, of the parts one after the other."""
        return self._write_values([key], [list(parts)], config, False)[0]

    def upsert_parts(self, key: str, *parts: Buffer, config: ReplicateConfig | None = None) -> int:
        """As `upsert`, of the parts one after the other."""
        return self._write_values([key], [list(parts)], config, True)[0]

    def put_from(
        self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig | None = None
    ) -> int:
        """As `put`, of what lies at an address."""
        return self._write_from([key], [[buffer_ptr]], [[size]], config, False)[0]

    def upsert_from(
        self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig | None = None
    ) -> int:
        """As `upsert`, of what lies at an address."""
        return self._write_from([key], [[buffer_ptr]], [[size]], config, True)[0]

    def put_from_with_metadata(
        self,
        key: str,
        buffer_ptr: int,
        metadata_buffer_ptr: int,
        size: int,
        metadata_size: int,
        config: ReplicateConfig | None = None,
    ) -> int:
        """As `put_from`, of the metadata and what follows it."""
        addresses, sizes = [metadata_buffer_ptr, buffer_ptr], [metadata_size, size]
        return self._write_from([key], [addresses], [sizes], config, False)[0]

    def batch_put_from(
        self,
        keys: list[str],
        buffer_ptrs: list[int],
        sizes: list[int],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """As `put_from`, of several; a code for each."""
        addresses, lengths = [[each] for each in buffer_ptrs], [[each] for each in sizes]
        return self._write_from(keys, addresses, lengths, config, False)

    def batch_upsert_from(
        self,
        keys: list[str],
        buffer_ptrs: list[int],
        sizes: list[int],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """As `upsert_from`, of several; a code for each."""
        addresses, lengths = [[each] for each in buffer_ptrs], [[each] for each in sizes]
        return self._write_from(keys, addresses, lengths, config, True)

    def batch_put_from_multi_buffers(
        self,
        keys: list[str],
        all_buffer_ptrs: list[list[int]],
        all_sizes: list[list[int]],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """As `batch_put_from`, of objects in several pieces each."""
        return self._write_from(keys, all_buffer_ptrs, all_sizes, config, False)

    def _write_batch(
        self,
        keys: list[str],
        values: list[Buffer],
        config: ReplicateConfig | None,
        is_upsert: bool,
    ) -> int:
        if len(keys) != len(values):
            return INVALID_PARAMS
        lent = [[readable(value, True)] for value in values]
        if any(size == 0 for [(_, size, _)] in lent):
            return INVALID_PARAMS
        return first_failure(self._write_lent(keys, lent, config, is_upsert))

    def _write_one(
        self, key: str, value: Buffer, config: ReplicateConfig | None, is_upsert: bool
    ) -> int:
        native = self._native
        # No address has to be found for `bytes`, and an object has at least one.
        if native is None or type(value) is not bytes or not value:
            return self._write_values([key], [[value]], config, is_upsert)[0]
        (name,) = _keys((key,))
        how = how_of(config, is_upsert, 1)
        if isinstance(how, int):
            return how
        try:
            native.put(name, value, how)
        except StoreError as error:
            return code_of(error)
        return OK

    def _write_values(
        self,
        keys: list[str],
        values: list[list[Buffer]],
        config: ReplicateConfig | None,
        is_upsert: bool,
    ) -> list[int]:
        lent: list[list[Lent]] = [[readable(part, True) for part in parts] for parts in values]
        return self._write_lent(keys, lent, config, is_upsert)

    def _write_lent(
        self,
        keys: list[str],
        lent: list[list[Lent]],
        config: ReplicateConfig | None,
        is_upsert: bool,
    ) -> list[int]:
        after = streams(part for parts in lent for part in parts)
        addresses = [[address for address, _, _ in parts] for parts in lent]
        sizes = [[size for _, size, _ in parts] for parts in lent]
        return self._write_from(keys, addresses, sizes, config, is_upsert, after)

    def _write_from(
        self,
        keys: Sequence[str],
        addresses: Sequence[Sequence[int]],
        sizes: Sequence[Sequence[int]],
        config: ReplicateConfig | None,
        is_upsert: bool,
        after: Sequence[int] = (),
    ) -> list[int]:
        names = _keys(keys)
        if not names:
            return []
        how = how_of(config, is_upsert, len(names))
        native = self._native
        if isinstance(how, int) or native is None:
            return [how if isinstance(how, int) else INVALID_PARAMS] * len(names)
        if len(addresses) == len(sizes) and any(map(are_unequal, addresses, sizes)):
            return [INVALID_PARAMS] * len(names)
        addresses, sizes, _joined = with_few_pieces(addresses, sizes)
        # An object has at least one byte.
        empty = [index for index, lengths in enumerate(sizes) if not any(lengths)]
        try:
            if not empty:
                return of_writes(native.put_from(names, addresses, sizes, how, after))
            return self._write_others(native, (names, addresses, sizes), how, set(empty), after)
        except OverflowError as error:
            raise TypeError("addresses and sizes are no negative numbers") from error
        except StoreError as error:
            return [code_of(error)] * len(names)

    @staticmethod
    def _write_others(
        native: NativeStore,
        objects: tuple[list[bytes], Sequence[Sequence[int]], Sequence[Sequence[int]]],
        how: How,
        empty: set[int],
        after: Sequence[int],
    ) -> list[int]:
        """Writes those that are not empty."""
        names, addresses, sizes = objects
        if not len(names) == len(addresses) == len(sizes):
            return [INVALID_PARAMS] * len(names)
        others = [index for index in range(len(names)) if index not in empty]
        chosen = [[each[index] for index in others] for each in (names, addresses, sizes)]
        codes = [INVALID_PARAMS] * len(names)
        written = of_writes(native.put_from(*chosen, of_some(how, others), after))
        for index, code in zip(others, written):
            codes[index] = code
        return codes

    # --- Reads ---

    def get(self, key: str) -> bytes:
        """The bytes; none if there is no object, or it cannot be had."""
        name, native = _key(key), self._native
        if native is None:
            return b""
        try:
            return native.get(name) or b""
        except StoreError as error:
            LOG.warning("get: %s", error)
            return b""

    def get_batch(self, keys: list[str]) -> list[bytes]:
        """As `get`, of several."""
        return [bytes(each) if each is not None else b"" for each in self.batch_get_buffer(keys)]

    def get_buffer(self, key: str) -> BufferHandle | None:
        """The bytes in memory of their own; `None` if there is no object, or it cannot be had."""
        return self.batch_get_buffer([key])[0]

    def batch_get_buffer(self, keys: list[str]) -> list[BufferHandle | None]:
        """As `get_buffer`, of several."""
        names, native = _keys(keys), self._native
        buffers: list[BufferHandle | None] = [None] * len(names)
        if native is None:
            return buffers
        try:
            sizes = native.sizes(names)
        except StoreError as error:
            LOG.warning("get_buffer: %s", error)
            return buffers
        present = [index for index, size in enumerate(sizes) if isinstance(size, int) and size > 0]
        rooms = [BufferHandle(sizes[index]) for index in present]
        got = self._read([keys[index] for index in present], rooms)
        for index, room, code in zip(present, rooms, got):
            if code == len(room):
                buffers[index] = room
            elif code >= 0 or code == INVALID_PARAMS:
                # Replaced meanwhile, by one of another length.
                value = self.get(keys[index])
                buffers[index] = BufferHandle(value) if value else None
        return buffers

    def _read(self, keys: list[str], rooms: Iterable[Buffer]) -> list[int]:
        lent = [writable(room) for room in rooms]
        addresses, sizes = [[at] for at, _, _ in lent], [[size] for _, size, _ in lent]
        return self._read_into(keys, addresses, sizes)

    def get_into(self, key: str, buffer_ptr: int, size: int) -> int:
        """Gets an object to an address: its length, which is at most `size`."""
        return self._read_into([key], [[buffer_ptr]], [[size]])[0]

    def batch_get_into(
        self, keys: list[str], buffer_ptrs: list[int], sizes: list[int]
    ) -> list[int]:
        """As `get_into`, of several; a length or a code for each."""
        return self._read_into(keys, [[each] for each in buffer_ptrs], [[each] for each in sizes])

    def batch_get_into_multi_buffers(
        self,
        keys: list[str],
        all_buffer_ptrs: list[list[int]],
        all_sizes: list[list[int]],
        prefer_alloc_in_same_node: bool = False,
    ) -> list[int]:
        """As `batch_get_into`, of objects in several pieces each."""
        return self._read_into(keys, all_buffer_ptrs, all_sizes)

    def _read_into(
        self,
        keys: Sequence[str],
        addresses: Sequence[Sequence[int]],
        sizes: Sequence[Sequence[int]],
    ) -> list[int]:
        names, native = _keys(keys), self._native
        if native is None:
            return [INVALID_PARAMS] * len(names)
        try:
            return of_reads(native.get_into(names, addresses, sizes))
        except OverflowError as error:
            raise TypeError("addresses and sizes are no negative numbers") from error
        except StoreError as error:
            return [code_of(error)] * len(names)

    # --- Lookups and removals ---

    def is_exist(self, key: str) -> int:
        """1 or 0; -1 if it cannot be told."""
        return self.batch_is_exist([key])[0]

    def batch_is_exist(self, keys: list[str]) -> list[int]:
        """As `is_exist`, of several."""
        names, native = _keys(keys), self._native
        if native is None:
            return [-1] * len(names)
        try:
            present = native.exists(names)
        except StoreError:
            return [-1] * len(names)
        return [1 if each is True else 0 if each is False else _presence(each) for each in present]

    def get_size(self, key: str) -> int:
        """The length of an object."""
        name, native = _key(key), self._native
        if native is None:
            return INVALID_PARAMS
        try:
            return of_reads(native.sizes([name]))[0]
        except StoreError as error:
            return code_of(error)

    def remove(self, key: str, force: bool = False) -> int:
        """Removes an object. There are no leases: `force` makes no difference."""
        return self.batch_remove([key], force)[0]

    def batch_remove(self, keys: list[str], force: bool = False) -> list[int]:
        """As `remove`, of several; a code for each."""
        names, native = _keys(keys), self._native
        if native is None:
            return [INVALID_PARAMS] * len(names)
        try:
            removed = native.remove(names)
        except StoreError as error:
            return [code_of(error)] * len(names)
        return of_removals(removed)

    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> int:
        """Removes the objects under whose keys the pattern is found, wherever in them. How many; the code of the first that
        could not be removed, and others may have been by then. There are no leases: `force` makes no difference."""
        native = self._native
        try:
            pattern = searching(regex_pattern)
        except re.error:
            return INVALID_PARAMS
        if native is None:
            return INVALID_PARAMS
        removed, after = 0, None
        try:
            while True:
                keys, after = native.list(b"", after)
                found = [key for key in keys if pattern.search(key.decode(errors="surrogateescape"))]
                for each in native.remove(found):
                    if isinstance(each, StoreError):
                        return code_of(each)
                    removed += each
                if after is None:
                    return removed
        except StoreError as error:
            return code_of(error)

    def remove_all(self, force: bool = False) -> int:
        """Removes every object of the cluster: about how many there were, since copies count. Of a tenant other than the
        default one, what that has."""
        native = self._native
        if native is None:
            return INVALID_PARAMS
        try:
            count = native.count()
            removed = native.clear()
        except StoreError as error:
            return code_of(error)
        return count if removed is None else removed


def _presence(told: bool | StoreError) -> int:
    """There is none under what is no key."""
    if isinstance(told, StoreError):
        return 0 if isinstance(told, InvalidKey) else -1
    return int(told)
