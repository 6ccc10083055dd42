"""Lunette: a store for KV caches, in the memory of many nodes.

>>> with Coordinator() as coordinator:
...     with Store.member([coordinator.address], memory_bytes=64 << 20) as store:
...         store.put("greeting", b"hello")
...         store.get("greeting")
True
b'hello'

Keys are `bytes`, or `str` that are sent as UTF-8. Values are whatever has the buffer protocol and lies in one
piece. What is given is copied before a call asks, and what was got is copied when it is there: a call that has
ended, however it did, leaves nothing behind that touches the caller's memory.

A call keeps the GIL for the first 20 us, and gives it up where that is not enough. Ctrl-C ends a call that waits;
what it asked for may be done all the same. Stores belong to the process that made them: in a child of a fork they
raise `Closed`.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Union

from ._native import (
    Closed,
    Corrupt,
    NativeCoordinator,
    NativeStore,
    StoreError,
    Unavailable,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

__all__ = ["Closed", "Coordinator", "Corrupt", "Store", "StoreError", "Unavailable"]

Key = Union[bytes, str]

# Their threads are ended while there is an interpreter.
_open: weakref.WeakSet[Coordinator | Store] = weakref.WeakSet()


def _close_all() -> None:
    for each in sorted(_open, key=lambda each: isinstance(each, Coordinator)):
        try:
            each.close()
        except Closed:
            pass  # A child of a fork has none of its threads.


atexit.register(_close_all)


def _key(key: Key) -> bytes:
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, bytes):
        return key
    raise TypeError(f"a key is bytes or str, not {type(key).__name__}")


def _bytes(value: Buffer) -> bytes:
    return value if isinstance(value, bytes) else memoryview(value).tobytes()


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

    It listens on a loopback address, since nobody is authenticated.
    """

    def __init__(self, listen: str = "127.0.0.1:0") -> None:
        self._native = NativeCoordinator(listen)
        _open.add(self)

    @property
    def address(self) -> str:
        """Where members find it, as `ADDRESS:PORT`."""
        return self._native.address

    def close(self) -> None:
        """Ends it. Again, it does nothing."""
        self._native.close()


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
        timeout_s: float = 5.0,
    ) -> Self:
        """Makes this process a member, which lends `memory_bytes`, and waits until it is one."""
        addresses = list(coordinators)
        return cls(NativeStore.member(cluster, addresses, listen, memory_bytes, timeout_s))

    @classmethod
    def connect(cls, nodes: Iterable[str], *, timeout_s: float = 5.0) -> Self:
        """Asks the cluster that `nodes`, one or more, are members of."""
        return cls(NativeStore.client(list(nodes), timeout_s))

    @property
    def address(self) -> str | None:
        """Where a member listens; `None` of a client."""
        return self._native.address

    def put(self, key: Key, value: Buffer, *, copies: int = 1) -> bool:
        """Writes an object unless there is one. Whether it was written."""
        return self._native.put(_key(key), _bytes(value), False, copies)

    def upsert(self, key: Key, value: Buffer, *, copies: int = 1) -> bool:
        """Writes an object, also where there is one."""
        return self._native.put(_key(key), _bytes(value), True, copies)

    def get(self, key: Key) -> bytes | None:
        """The value, or `None`."""
        return self._native.get(_key(key))

    def get_into(self, key: Key, into: Buffer) -> int | None:
        """Gets the value to the front of `into`: its length, or `None` if there is no object.

        `ValueError` if `into` is too short, is read-only, or is not in one piece; it is untouched then.
        """
        with memoryview(into) as view:
            if view.readonly or not view.c_contiguous:
                raise ValueError("the buffer is read-only, or not in one piece")
            value = self._native.get(_key(key))
            if value is None:
                return None
            if len(value) > view.nbytes:
                raise ValueError(f"an object of {len(value)} bytes for a buffer of {view.nbytes}")
            if value:
                with view.cast("B") as room:
                    room[: len(value)] = value
            return len(value)

    def size(self, key: Key) -> int | None:
        """Length of the value in bytes, or `None`."""
        return self._native.sizes([_key(key)])[0]

    def exists(self, keys: Iterable[Key]) -> list[bool]:
        """Whether there is an object, for each key: a hint, since it may be evicted before it is asked for."""
        return self._native.exists([_key(key) for key in keys])

    def remove(self, keys: Iterable[Key]) -> list[bool]:
        """Removes objects. Whether there was one, for each key."""
        return self._native.remove([_key(key) for key in keys])

    def close(self) -> None:
        """Ends it: calls under way raise `StoreError`. Again, it does nothing."""
        self._native.close()
