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
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from . import Key, Path, Store, _all, _each, _key, _keys, p2p, updates
from ._memory import Lent, readable, streams, writable
from ._native import Invalid, NativeHeld, NativeQueue
from ._tensors import fresh

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._memory import Memory
    from ._native import _How

__all__ = ["AsyncHeld", "AsyncObjectStore", "AsyncStore", "AsyncUpdate"]


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

    async def put(
        self,
        key: Key,
        value: Memory,
        *,
        copies: int = 1,
        pin_s: float = 0.0,
        group: Key | None = None,
        behind: Key | None = None,
    ) -> bool:
        """Writes an object unless there is one. Whether it was written."""
        how = (False, copies, False, [], pin_s, _each([group]), _each([behind]))
        return (await self._put([(key, value)], how))[0]

    async def upsert(
        self,
        key: Key,
        value: Memory,
        *,
        copies: int = 1,
        pin_s: float = 0.0,
        group: Key | None = None,
        behind: Key | None = None,
    ) -> bool:
        """Writes an object, also where there is one."""
        how = (True, copies, False, [], pin_s, _each([group]), _each([behind]))
        return (await self._put([(key, value)], how))[0]

    async def put_all(
        self,
        objects: Iterable[tuple[Key, Memory]],
        *,
        copies: int = 1,
        pin_s: float = 0.0,
        groups: Iterable[Key | None] = (),
        behind: Iterable[Key | None] = (),
    ) -> list[bool]:
        """As `put`, of many objects in one question."""
        return await self._put(objects, (False, copies, False, [], pin_s, _each(groups), _each(behind)))

    async def _put(
        self, objects: Iterable[tuple[Key, Memory]], how: _How
    ) -> list[bool]:
        keys, lent = _lent(objects, readable)
        here = _running()
        number = self._native.begin_put_from(
            here.queue, _objects(keys, lent), how, lent, streams(lent)
        )
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
        number = self._native.begin_get_into(
            here.queue, _objects(keys, lent), lent, streams(lent)
        )
        return _all(await here.answer(number))

    async def size(self, key: Key) -> int | None:
        """Length of the value in bytes, or `None`."""
        here = _running()
        return _all(await here.answer(self._native.begin_sizes(here.queue, [_key(key)])))[0]

    async def exists(self, keys: Iterable[Key]) -> list[bool]:
        """Whether there is an object, for each key: a hint."""
        here = _running()
        names = _keys(keys)
        return _all(await here.answer(self._native.begin_exists(here.queue, names)))

    async def remove(self, keys: Iterable[Key]) -> list[bool]:
        """Removes objects. Whether there was one, for each key."""
        here = _running()
        names = _keys(keys)
        return _all(await here.answer(self._native.begin_remove(here.queue, names)))

    async def keys(self, prefix: Key = b"") -> AsyncIterator[bytes]:
        """The keys that begin with `prefix`, as `lunette.Store.keys`."""
        beginning, after = _key(prefix), None
        while True:
            here = _running()
            number = self._native.begin_list(here.queue, beginning, after)
            keys, after = _all(await here.answer(number))[0]
            for key in keys:
                yield key
            if after is None:
                return


class AsyncHeld:
    """A `lunette.p2p.Held` for tasks, of any number of event loops: what it has is the same."""

    def __init__(self, held: p2p.Held) -> None:
        self.held = held

    def __getitem__(self, name: str) -> Any:
        """A tensor that is here. See `Held`."""
        return self.held[name]

    async def progress(self) -> p2p.Progress:
        """How far it has come."""
        here = _running()
        return p2p.Progress(*await here.answer(self.held._native.progress(here.queue)))

    async def wait(self, timeout_s: float | None = None) -> None:
        """Waits until all of it that is wanted is here. `TimedOut` if that takes longer."""
        here = _running()
        patience_s = p2p._FOREVER_S if timeout_s is None else timeout_s
        await here.answer(self.held._native.wait(here.queue, patience_s))

    async def sync(self) -> None:
        """Waits until what has come into files is on the disk."""
        here = _running()
        await here.answer(self.held._native.sync(here.queue))

    async def close(self) -> None:
        """Serves it no more, and waits until nobody reads or writes its memory. Cancelled, that goes on."""
        here = _running()
        if self.held._is_open:
            await here.answer(self.held._native.close(here.queue))
            self.held._ended()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self.close()


class AsyncObjectStore:
    """The questions of a `lunette.p2p.ObjectStore` for tasks, of any number of event loops. It ends with the store.

    Each method is as the store's of the same name. A task that is cancelled while it begins to hold an object does not hold
    it; the memory that it gave is kept alive, and may be written to, until nothing is under way.
    """

    def __init__(self, store: p2p.ObjectStore) -> None:
        self._store, self._native = store, store._native

    async def register(
        self,
        name: str,
        source: p2p.Registered,
        *,
        tensors: Iterable[p2p.Tensor] = (),
        chunk_bytes: int = p2p.CHUNK_BYTES,
        replace: bool = False,
    ) -> AsyncHeld:
        """Registers an object, and serves it from then on."""
        here, lent = _running(), p2p._lent(source, tensors)
        number = self._native.register(
            here.queue, name, lent.memory, lent.kept, lent.told, chunk_bytes, replace
        )
        return self._held(await here.answer(number), lent)

    async def register_files(
        self,
        name: str,
        paths: Iterable[Path],
        *,
        tensors: Iterable[p2p.Tensor] | None = None,
        chunk_bytes: int = p2p.CHUNK_BYTES,
        replace: bool = False,
    ) -> AsyncHeld:
        """Registers an object of files, and serves it from then on without having them in memory."""
        here, paths = _running(), list(paths)
        told = p2p._files_tensors(paths, tensors)
        number = self._native.register_files(here.queue, name, paths, told, chunk_bytes, replace)
        return self._held(await here.answer(number), p2p._nothing(), paths)

    async def find(self, name: str) -> p2p.Found | None:
        """An object that somebody holds, or `None`."""
        here = _running()
        found = await here.answer(self._native.find(here.queue, name))
        return None if found is None else p2p.Found(*found)

    async def objects(self, beginning: str = "") -> list[p2p.Found]:
        """The objects whose names begin so, in the order of their names."""
        here = _running()
        found = await here.answer(self._native.list(here.queue, beginning))
        return [p2p.Found(*each) for each in found]

    async def layout(self, name: str) -> list[p2p.Tensor] | None:
        """The tensors of an object, or `None` if nobody holds it."""
        here = _running()
        told = await here.answer(self._native.layout(here.queue, name))
        return None if told is None else [p2p._tensor(each) for each in told[1]]

    async def begin_receive(
        self,
        name: str,
        into: Iterable[Memory] | None = None,
        *,
        version: int | None = None,
        resume: bool = False,
    ) -> AsyncHeld:
        """As `receive`, without waiting for it."""
        if into is None:
            found = p2p._found(await self.find(name), name, version)
            into, version = [fresh(size) for size in found.buffers], found.version
        here, lent = _running(), p2p._room(into)
        number = self._native.receive(here.queue, name, lent.memory, lent.kept, version, resume)
        return self._held(await here.answer(number), lent)

    async def receive(
        self,
        name: str,
        into: Iterable[Memory] | None = None,
        *,
        version: int | None = None,
        resume: bool = False,
        timeout_s: float | None = None,
    ) -> AsyncHeld:
        """Receives an object into buffers as long as its own, or into fresh memory, and serves what has come."""
        begun = await self.begin_receive(name, into, version=version, resume=resume)
        return await _whole(begun, timeout_s)

    async def begin_receive_files(
        self,
        name: str,
        paths: Iterable[Path],
        *,
        version: int | None = None,
        resume: bool = False,
    ) -> AsyncHeld:
        """As `receive_files`, without waiting for it."""
        here, paths = _running(), list(paths)
        number = self._native.receive_files(here.queue, name, paths, version, resume)
        return self._held(await here.answer(number), p2p._nothing(), paths)

    async def receive_files(
        self,
        name: str,
        paths: Iterable[Path],
        *,
        version: int | None = None,
        resume: bool = False,
        timeout_s: float | None = None,
    ) -> AsyncHeld:
        """Receives an object into files, one for each of its buffers, and serves what has come from there."""
        begun = await self.begin_receive_files(name, paths, version=version, resume=resume)
        return await _whole(begun, timeout_s)

    async def begin_receive_tensors(
        self,
        name: str,
        into: p2p.Wanted,
        *,
        version: int | None = None,
        keep: bool = True,
        resume: bool = False,
    ) -> AsyncHeld:
        """As `receive_tensors`, without waiting for it."""
        here = _running()
        told = await here.answer(self._native.layout(here.queue, name))
        found = p2p._found(None if told is None else p2p.Found(*told[0]), name, version)
        lent = p2p._wanted([p2p._tensor(each) for each in told[1]], into)
        number = self._native.receive_slices(
            here.queue, name, lent.memory, lent.kept, lent.told, found.version, keep, resume
        )
        return self._held(await here.answer(number), lent)

    async def receive_tensors(
        self,
        name: str,
        into: p2p.Wanted,
        *,
        version: int | None = None,
        keep: bool = True,
        resume: bool = False,
        timeout_s: float | None = None,
    ) -> AsyncHeld:
        """Receives tensors of an object, or a `Part` of each, to where they are to lie."""
        begun = await self.begin_receive_tensors(name, into, version=version, keep=keep, resume=resume)
        return await _whole(begun, timeout_s)

    def _held(
        self, native: NativeHeld, lent: p2p._Lent, paths: Sequence[Path] = ()
    ) -> AsyncHeld:
        return AsyncHeld(p2p.Held(self._store, native, lent, paths))


class AsyncUpdate:
    """The buckets of a `lunette.updates.Update` for a task: `async for bucket in AsyncUpdate(update)`."""

    def __init__(self, update: updates.Update) -> None:
        self.update = update

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> updates.Bucket:
        """The next bucket. Cancelled, it is had by asking again."""
        here = _running()
        told = await here.answer(self.update._native.next(here.queue, self.update._copied()))
        if told is None:
            raise StopAsyncIteration
        return self.update._next(told)

    async def close(self) -> None:
        """Ends it, and waits until nobody has its slots. Cancelled, that goes on."""
        here = _running()
        await here.answer(self.update._native.close(here.queue))
        self.update._ended()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self.close()


async def _whole(held: AsyncHeld, timeout_s: float | None) -> AsyncHeld:
    try:
        await held.wait(timeout_s)
    except BaseException:
        await held.close()
        raise
    return held


def _lent(objects: Iterable[tuple[Key, Memory]], lend: Any) -> tuple[list[bytes], list[Lent]]:
    keys, lent = [], []
    for key, buffer in objects:
        keys.append(_key(key))
        lent.append(lend(buffer, True))
    return keys, lent


def _objects(
    keys: list[bytes], lent: list[Lent]
) -> tuple[list[bytes], list[list[int]], list[list[int]]]:
    return keys, [[at] for at, _, _ in lent], [[length] for _, length, _ in lent]
