"""The store for programs with an event loop.

>>> import asyncio, lunette
>>> from lunette.aio import AsyncStore
>>> async def main():
...     with lunette.Coordinator() as coordinator:
...         with lunette.Store.member([coordinator.address], memory_bytes=64 << 20) as store:
...             aio = AsyncStore(store)
...             await aio.put("greeting", b"hello")
...             return await aio.get("greeting")
>>> asyncio.run(main())
b'hello'

Answers wake the loop by one descriptor: no thread waits for them. A task that is cancelled waits for its answer no
more. What it was to get is not asked for any longer, what it was to put may be put all the same, and memory that it
gave is kept alive, and may be written to, until nothing is under way.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from . import Key, Store, _all, _key
from ._memory import Lent, readable, writable
from ._native import Invalid, NativeQueue

if TYPE_CHECKING:
    from ._memory import Memory

__all__ = ["AsyncStore"]


class _Loop:
    """The questions of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._queue = NativeQueue()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        loop.add_reader(self._queue.fileno(), self._take)

    @property
    def queue(self) -> NativeQueue:
        return self._queue

    def _take(self) -> None:
        for number, is_answer, answer in self._queue.take():
            future = self._waiting.pop(number, None)
            if future is None or future.done():
                continue
            if is_answer:
                future.set_result(answer)
            else:
                future.set_exception(answer)

    async def answer(self, number: int) -> Any:
        """What the queue has for that number. Cancelled, the question is given up."""
        future = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            return await future
        finally:
            if self._waiting.pop(number, None) is not None:
                self._queue.give_up(number)


_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Loop] = weakref.WeakKeyDictionary()


def _running() -> _Loop:
    loop = asyncio.get_running_loop()
    if loop not in _loops:
        _loops[loop] = _Loop(loop)
    return _loops[loop]


class AsyncStore:
    """The questions of a `Store` for tasks, of any number of event loops. It ends with the store.

    Each method is as the store's of the same name.
    """

    def __init__(self, store: Store) -> None:
        self._native = store._native

    async def put(self, key: Key, value: Memory, *, copies: int = 1) -> bool:
        """Writes an object unless there is one. Whether it was written."""
        return (await self._put([(key, value)], False, copies))[0]

    async def upsert(self, key: Key, value: Memory, *, copies: int = 1) -> bool:
        """Writes an object, also where there is one."""
        return (await self._put([(key, value)], True, copies))[0]

    async def put_all(self, objects: Iterable[tuple[Key, Memory]], *, copies: int = 1) -> list[bool]:
        """As `put`, of many objects in one question."""
        return await self._put(objects, False, copies)

    async def _put(
        self, objects: Iterable[tuple[Key, Memory]], is_upsert: bool, copies: int
    ) -> list[bool]:
        keys, lent = _lent(objects, readable)
        how = (is_upsert, copies, False, [])
        here = _running()
        number = self._native.begin_put_from(here.queue, _objects(keys, lent), how, lent)
        return _all(await here.answer(number))

    async def get(self, key: Key) -> bytes | None:
        """The value, or `None`."""
        here = _running()
        return await here.answer(self._native.begin_get(here.queue, _key(key)))

    async def get_into(self, key: Key, into: Memory) -> int | None:
        """Gets the value to the front of `into`: its length, or `None` if there is no object."""
        try:
            return (await self.get_all_into([(key, into)]))[0]
        except Invalid as error:
            raise ValueError(str(error)) from error

    async def get_all_into(self, objects: Iterable[tuple[Key, Memory]]) -> list[int | None]:
        """As `get_into`, of many objects in one question."""
        keys, lent = _lent(objects, writable)
        here = _running()
        number = self._native.begin_get_into(here.queue, _objects(keys, lent), lent)
        return _all(await here.answer(number))

    async def size(self, key: Key) -> int | None:
        """Length of the value in bytes, or `None`."""
        here = _running()
        return _all(await here.answer(self._native.begin_sizes(here.queue, [_key(key)])))[0]

    async def exists(self, keys: Iterable[Key]) -> list[bool]:
        """Whether there is an object, for each key: a hint."""
        here = _running()
        names = [_key(key) for key in keys]
        return _all(await here.answer(self._native.begin_exists(here.queue, names)))

    async def remove(self, keys: Iterable[Key]) -> list[bool]:
        """Removes objects. Whether there was one, for each key."""
        here = _running()
        names = [_key(key) for key in keys]
        return _all(await here.answer(self._native.begin_remove(here.queue, names)))


def _lent(objects: Iterable[tuple[Key, Memory]], lend: Any) -> tuple[list[bytes], list[Lent]]:
    keys, lent = [], []
    for key, buffer in objects:
        keys.append(_key(key))
        lent.append(lend(buffer))
    return keys, lent


def _objects(
    keys: list[bytes], lent: list[Lent]
) -> tuple[list[bytes], list[list[int]], list[list[int]]]:
    return keys, [[at] for at, _, _ in lent], [[length] for _, length, _ in lent]
