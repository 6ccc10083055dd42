"""Lunette: a store for KV caches, in the memory of many nodes.

>>> with Coordinator() as coordinator:
...     with Store.member([coordinator.address], memory_bytes=64 << 20) as store:
...         store.put("greeting", b"hello")
...         store.get("greeting")
True
b'hello'

Keys are `bytes`, or `str` that are sent as UTF-8. Values are whatever has the buffer protocol, or is a tensor that tells
its memory by DLPack or by `__cuda_array_interface__`, and lies in one piece in the host's memory or in that of a CUDA device.
They are put from where they lie, and got to where they belong: nothing is to change or free that memory while a call
lasts. Of a tensor on a device that is what its stream has been given before the call: copies come behind it. A call that has ended, however it did, leaves nothing behind that touches it.

A call keeps the GIL for the first 20 us, and gives it up where that is not enough. Ctrl-C ends a call that waits
for objects to come or go, and one that removes when that is done, or its time is over; what it asked for may be done all
the same. Stores belong to the process that made them: in a child of a fork they
raise `Closed`.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, TypeVar, Union, cast

from ._memory import readable, streams, writable
from ._native import (
    Closed,
    Corrupt,
    Invalid,
    InvalidKey,
    NativeCluster,
    NativeCoordinator,
    NativeReservation,
    NativeStore,
    NoRoom,
    OverQuota,
    StoreError,
    TimedOut,
    Unavailable,
    Unknown,
    rdma_devices,
)

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._memory import Memory
    from ._native import _How

__all__ = [
    "Closed",
    "Coordinator",
    "Corrupt",
    "Invalid",
    "InvalidKey",
    "Landing",
    "Location",
    "NoRoom",
    "OverQuota",
    "Quota",
    "Reservation",
    "Store",
    "StoreError",
    "TimedOut",
    "Unavailable",
    "Unknown",
    "members",
    "rdma_devices",
]

Key = Union[bytes, str]
Path = Union[str, "os.PathLike[str]"]
# Whose keys and groups are named, where none is.
DEFAULT_TENANT = "default"
# Names of RDMA devices, also in one text with commas between them.
Devices = Union[str, Iterable[str]]
T = TypeVar("T")

# Their threads are ended while there is an interpreter.
_open: weakref.WeakSet[_Closing] = weakref.WeakSet()


def _close_all() -> None:
    for each in sorted(_open, key=lambda each: isinstance(each, Coordinator)):
        try:
            each.close()
        except Closed:
            pass  # A child of a fork has none of its threads.


atexit.register(_close_all)


def _names(devices: Devices) -> list[str]:
    parts = devices.split(",") if isinstance(devices, str) else devices
    return [name.strip() for name in parts if name.strip()]


def _each(names: Iterable[Key | None]) -> list[bytes]:
    """The names of groups, or keys, if there is one."""
    each = [b"" if name is None else _key(name) for name in names]
    return each if any(each) else []


def _key(key: Key) -> bytes:
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, bytes):
        return key
    raise TypeError(f"a key is bytes or str, not {type(key).__name__}")


def _keys(keys: Iterable[Key]) -> list[bytes]:
    if isinstance(keys, (str, bytes)):
        # Each letter of it would be one.
        raise TypeError(f"keys are several, such as [{keys!r}], not one of type {type(keys).__name__}")
    return [_key(key) for key in keys]


def _all(outcomes: Sequence[T | StoreError]) -> list[T]:
    """The values. If some are exceptions, the first is raised, and has all of them as its `outcomes`."""
    for outcome in outcomes:
        if isinstance(outcome, StoreError):
            outcome.outcomes = outcomes  # type: ignore[attr-defined]
            raise outcome
    return cast("list[T]", list(outcomes))


class Location(NamedTuple):
    """Where an object is."""

    size: int
    """Length of the value in bytes."""
    nodes: list[str]
    """The members that have a copy, as `ADDRESS:PORT`, the best first. Of a long object, which is in parts, those that
    have parts, most of them first."""


class Quota(NamedTuple):
    """How much memory of all members a tenant may have, and has."""

    quota_bytes: int
    """What its objects may take, all copies counted, in bytes."""
    used_bytes: int
    """What they take."""
    lent_bytes: int
    """What of the quota is lent to cores, which use it without asking."""


class _Closing:
    """Closed at the end of a `with`, and of the interpreter."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Coordinator(_Closing):
    """Keeps the map of one or more clusters, in this process and in its memory only.

    Beyond loopback it listens only with a secret, which members and clients prove to know, or if
    `LUNETTE_INSECURE=1`.
    """

    def __init__(self, listen: str = "127.0.0.1:0", *, secret_file: Path | None = None) -> None:
        self._native = NativeCoordinator(listen, secret_file)
        _open.add(self)

    @property
    def address(self) -> str:
        """Where members find it, as `ADDRESS:PORT`."""
        return self._native.address

    def close(self) -> None:
        """Ends it. Again, it does nothing."""
        self._native.close()


def members(
    coordinators: Iterable[str],
    *,
    cluster: str = "lunette",
    secret_file: Path | None = None,
    timeout_s: float = 1.0,
) -> list[str]:
    """Where the members of a cluster listen. Empty if it has none within `timeout_s`, or nobody tells."""
    try:
        return NativeCluster(cluster, list(coordinators), False, secret_file, timeout_s, []).members()
    except Unavailable:
        return []


class Reservation(_Closing):
    """Room for an object, of which nobody knows before it is committed."""

    def __init__(self, store: NativeStore, native: NativeReservation) -> None:
        self._store = store
        self._native: NativeReservation | None = native

    def write(self, offset: int, value: Memory) -> None:
        """Writes a range of it, that begins at the offset."""
        lent = readable(value, True)
        address, length, _kept = lent
        self._of_use().write(self._store, [address], [length], [offset], streams([lent]))

    def commit(self) -> bool:
        """Makes it the key's value, all of whose bytes have been written. Whether it was: not if there is an object by
        now. `Invalid` if some are missing: it can be written on then."""
        committed = self._of_use().commit()
        self._native = None
        return committed

    def close(self) -> None:
        """Gives the room back, unless it is committed. Again, it does nothing."""
        native, self._native = self._native, None
        if native is not None:
            native.revoke()

    def _of_use(self) -> NativeReservation:
        if self._native is None:
            raise Invalid("it is committed, or given back")
        return self._native


class Landing(_Closing):
    """Memory that what is got may be written to by adapters, until it is closed."""

    def __init__(self, native: NativeStore, memory: Memory) -> None:
        self.address, self.size, self._kept = writable(memory, True)
        if not native.register(self.address, self.size):
            raise Invalid("it is empty, or overlaps memory that is registered")
        self._native: NativeStore | None = native

    def close(self) -> None:
        """Takes it back, and waits until nobody writes there any more. Again, it does nothing."""
        native, self._native = self._native, None
        if native is not None:
            native.unregister(self.address)
            self._kept = None


class Store(_Closing):
    """Objects under keys, of a cluster. Made by `Store.member` or `Store.connect`, asked from any thread."""

    def __init__(self, native: NativeStore) -> None:
        self._native = native
        _open.add(self)

    @classmethod
    def member(
        cls,
        coordinators: Iterable[str],
        *,
        memory_bytes: int,
        cluster: str = "lunette",
        listen: str = "127.0.0.1:0",
        drives: Iterable[Path] = (),
        drive_bytes: int = 0,
        secret_file: Path | None = None,
        timeout_s: float = 5.0,
        rdma: Devices = (),
        tenant: str = DEFAULT_TENANT,
        cores: int = 1,
    ) -> Self:
        """Makes this process a member, which lends `memory_bytes`, and waits until it is one.

        What leaves the memory goes to files in the folders `drives`, `drive_bytes` in all. Where both ends have RDMA
        devices of the names in `rdma` (`"all"`: all that `rdma_devices` tells), long objects go over these. Keys and groups
        are those of `tenant`, a name of 1 to 64 bytes: tenants of a cluster do not see each other's objects, and where
        memory is scarce the one that has most of it gives first. The memory is divided among `cores` threads, wherever the
        process may run: with more of them, many bytes of many objects are moved at the same time.
        `Unavailable` if the coordinators do not take it in within `timeout_s`.
        """
        of = NativeCluster(cluster, list(coordinators), False, secret_file, timeout_s, _names(rdma))
        folders = list(drives)
        tier = (folders, drive_bytes) if folders else None
        return cls(NativeStore.member(of.of_tenant(tenant).of_cores(cores), listen, memory_bytes, tier))

    @classmethod
    def join(
        cls,
        coordinators: Iterable[str],
        *,
        cluster: str = "lunette",
        secret_file: Path | None = None,
        timeout_s: float = 5.0,
        rdma: Devices = (),
        tenant: str = DEFAULT_TENANT,
        cores: int = 1,
    ) -> Self:
        """Asks the cluster whose members the coordinators tell, by `cores` threads, and lends nothing."""
        of = NativeCluster(cluster, list(coordinators), False, secret_file, timeout_s, _names(rdma))
        return cls(NativeStore.client(of.of_tenant(tenant).of_cores(cores), []))

    @classmethod
    def connect(
        cls,
        nodes: Iterable[str],
        *,
        secret_file: Path | None = None,
        timeout_s: float = 5.0,
        rdma: Devices = (),
        tenant: str = DEFAULT_TENANT,
        cores: int = 1,
    ) -> Self:
        """Asks the cluster that `nodes`, one or more, are members of, by `cores` threads."""
        addresses = list(nodes)
        of = NativeCluster("lunette", addresses, False, secret_file, timeout_s, _names(rdma))
        return cls(NativeStore.client(of.of_tenant(tenant).of_cores(cores), addresses))

    @property
    def address(self) -> str | None:
        """Where a member listens; `None` of a client."""
        return self._native.address

    def put(
        self,
        key: Key,
        value: Memory,
        *,
        copies: int = 1,
        pin_s: float = 0.0,
        group: Key | None = None,
        behind: Key | None = None,
    ) -> bool:
        """Writes an object unless there is one. Whether it was written.

        For `pin_s` seconds it leaves memory only if all else that may leave has; if that is `math.inf`, it never does.
        Half of what fits may be pinned for ever: `NoRoom` then.

        Objects of one `group`, whoever writes them, are of use together only: when one leaves memory to make room, the
        others leave before what is in no such group. Objects of several copies are in none.

        What is `behind` another key is of no use without the object there, as a block of a prompt is without the one before:
        when that is gone, it leaves before what is of use, unless it is used first.
        """
        return self._put(key, value, (False, copies, False, [], pin_s, _each([group]), _each([behind])))

    def upsert(
        self,
        key: Key,
        value: Memory,
        *,
        copies: int = 1,
        pin_s: float = 0.0,
        group: Key | None = None,
        behind: Key | None = None,
    ) -> bool:
        """Writes an object, also where there is one, and pins it as `put` does, whatever was there."""
        return self._put(key, value, (True, copies, False, [], pin_s, _each([group]), _each([behind])))

    def _put(self, key: Key, value: Memory, how: _How) -> bool:
        if isinstance(value, bytes):
            return self._native.put(_key(key), value, how)
        lent = readable(value, True)
        address, length, _kept = lent
        put = self._native.put_from([_key(key)], [[address]], [[length]], how, streams([lent]))
        return _all(put)[0]

    def put_all(
        self,
        objects: Iterable[tuple[Key, Memory]],
        *,
        copies: int = 1,
        pin_s: float = 0.0,
        groups: Iterable[Key | None] = (),
        behind: Iterable[Key | None] = (),
    ) -> list[bool]:
        """As `put`, of many objects in one call, in no order, each in its group, if there are `groups`, and `behind` its key,
        if there are such.

        If some fail, the first exception is raised; its `outcomes` tell of each object.
        """
        keys, lent = [], []
        for key, value in objects:
            keys.append(_key(key))
            lent.append(readable(value, True))
        addresses, lengths = [[at] for at, _, _ in lent], [[length] for _, length, _ in lent]
        how = (False, copies, False, [], pin_s, _each(groups), _each(behind))
        return _all(self._native.put_from(keys, addresses, lengths, how, streams(lent)))

    def get(self, key: Key) -> bytes | None:
        """The value, or `None`."""
        return self._native.get(_key(key))

    def get_into(self, key: Key, into: Memory) -> int | None:
        """Gets the value to the front of `into`: its length, or `None` if there is no object.

        `ValueError` if `into` is too short, is read-only, or is not in one piece; it is untouched then.
        """
        try:
            return self.get_all_into([(key, into)])[0]
        except Invalid as error:
            raise ValueError(str(error)) from error

    def get_ranges_into(self, key: Key, ranges: Iterable[tuple[int, Memory]]) -> int | None:
        """Gets ranges of one value, each from an offset on to a buffer that it fills: how many bytes, or `None` if there
        is no object.

        `Invalid` if a range does not lie inside the value.
        """
        offsets, lent = [], []
        for offset, into in ranges:
            offsets.append(offset)
            lent.append(writable(into, True))
        addresses, lengths = [at for at, _, _ in lent], [length for _, length, _ in lent]
        return self._native.get_ranges(_key(key), addresses, lengths, offsets, streams(lent))

    def register(self, memory: Memory) -> Landing:
        """Memory that is used again and again: owners' RDMA adapters write what is got there, where there are such.

        It is kept until that is taken back. `ValueError` if it is read-only or not in one piece.
        """
        return Landing(self._native, memory)

    def reserve(
        self,
        key: Key,
        size: int,
        *,
        copies: int = 1,
        keep_s: float = 60.0,
        pin_s: float = 0.0,
        group: Key | None = None,
        behind: Key | None = None,
    ) -> Reservation | None:
        """Room for an object of so many bytes, that is written in ranges; `None` if there is an object.

        It is given back when nothing has been written to it for `keep_s`.
        """
        how = (False, copies, False, [], pin_s, _each([group]), _each([behind]))
        native = NativeReservation.reserve(self._native, _key(key), size, how, keep_s)
        return Reservation(self._native, native) if native is not None else None

    def get_all_into(self, objects: Iterable[tuple[Key, Memory]]) -> list[int | None]:
        """As `get_into`, of many objects in one call.

        If some fail, the first exception is raised, `Invalid` where a buffer is too short; its `outcomes` tell of
        each object.
        """
        keys, lent = [], []
        for key, into in objects:
            keys.append(_key(key))
            lent.append(writable(into, True))
        addresses, lengths = [[at] for at, _, _ in lent], [[length] for _, length, _ in lent]
        return _all(self._native.get_into(keys, addresses, lengths, streams(lent)))

    def size(self, key: Key) -> int | None:
        """Length of the value in bytes, or `None`."""
        return _all(self._native.sizes([_key(key)]))[0]

    def locate(self, keys: Iterable[Key]) -> list[Location | None]:
        """Where objects are, for each key, or `None`: a hint, since copies come and go."""
        located = _all(self._native.locate(_keys(keys)))
        return [Location(*each) if each is not None else None for each in located]

    def exists(self, keys: Iterable[Key]) -> list[bool]:
        """Whether there is an object, for each key: a hint, since it may be evicted before it is asked for."""
        return _all(self._native.exists(_keys(keys)))

    def remove(self, keys: Iterable[Key]) -> list[bool]:
        """Removes objects. Whether there was one, for each key."""
        return _all(self._native.remove(_keys(keys)))

    def keys(self, prefix: Key = b"") -> Iterator[bytes]:
        """The keys that begin with `prefix`, each once, in no order: those that have an object all the while this goes on. What
        comes and goes meanwhile may be among them or not. All members are asked, some of their keys at a time."""
        beginning, after = _key(prefix), None
        while True:
            keys, after = self._native.list(beginning, after)
            yield from keys
            if after is None:
                return

    def set_quota(self, tenant: str, quota_bytes: int | None) -> None:
        """How much memory of all members a tenant's objects may take, all copies counted, in bytes; `None`: whatever others leave
        it. What it puts beyond that takes the place of something of its own. It is kept at the coordinator, and holds until it is
        set again. For stores of the default tenant; `Invalid` for others, and where 31 tenants have one."""
        if quota_bytes is not None and not 0 < quota_bytes < 1 << 64:
            raise Invalid(f"a quota is above 0, and {quota_bytes} is not what memory can be")
        self._native.set_quota(tenant, quota_bytes)

    def quotas(self) -> dict[str, Quota]:
        """The quotas of all tenants that have one, and what they have of it. For stores of the default tenant."""
        return {name: Quota(*of) for name, *of in self._native.quotas()}

    def clear(self) -> None:
        """Removes every object, on all members, whoever wrote it. Of a tenant other than the default one: what that has, key
        by key; what it puts meanwhile may stay."""
        self._native.clear()

    def close(self) -> None:
        """Ends it: calls under way raise `StoreError`. Again, it does nothing."""
        self._native.close()
