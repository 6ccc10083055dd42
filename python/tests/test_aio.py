"""The store from event loops: answers come by one descriptor, tasks may be cancelled."""

import asyncio
import gc
import os
import random
import subprocess
import sys
import threading

import pytest

import lunette
from lunette._native import NativeQueue
from lunette.aio import AsyncStore, _loops

# Most questions under way on one queue (`src/queue.rs`).
QUESTIONS_MAX = 1 << 16


def test_tasks_ask_side_by_side(store, key):
    aio = AsyncStore(store)

    async def one(n):
        value = random.Random(n).randbytes(1 + n * 997)
        name = f"{key}/{n}"
        assert await aio.put(name, value)
        assert not await aio.put(name, b"other")
        assert await aio.get(name) == value
        room = bytearray(len(value) + 3)
        assert await aio.get_into(name, room) == len(value)
        assert room == value + b"\0\0\0"
        assert await aio.size(name) == len(value)
        assert await aio.upsert(name, b"other")
        assert await aio.get(name) == b"other"
        assert await aio.remove([name]) == [True]
        assert await aio.get(name) is None and await aio.get_into(name, room) is None

    async def all_of_them():
        before = threading.active_count()
        await asyncio.gather(*(one(n) for n in range(100)))
        assert threading.active_count() == before
        assert _loops[asyncio.get_running_loop()].queue.under_way() == 0

    asyncio.run(all_of_them())


def test_batches_and_failures(store, key):
    aio = AsyncStore(store)

    async def ask():
        values = {f"{key}/{n}": bytes([n]) * (n + 1) for n in range(50)}
        assert await aio.put_all(values.items()) == [True] * 50
        assert await aio.exists([*values, key]) == [True] * 50 + [False]
        rooms = {name: bytearray(50) for name in values}
        assert await aio.get_all_into(rooms.items()) == list(range(1, 51))
        assert all(rooms[name][: len(value)] == value for name, value in values.items())
        with pytest.raises(ValueError):
            await aio.get_into(f"{key}/7", bytearray(3))
        with pytest.raises(lunette.Invalid) as failed:
            await aio.get_all_into([(f"{key}/3", bytearray(4)), (f"{key}/7", bytearray(3))])
        assert failed.value.outcomes[0] == 4
        with pytest.raises(lunette.Invalid):
            await aio.put("", b"x")
        with pytest.raises(ValueError):
            await aio.get_into(key, b"read-only")
        with pytest.raises(TypeError):
            await aio.get(7)
        for one in (key, key.encode()):
            for batched in (aio.exists, aio.remove):
                with pytest.raises(TypeError, match="keys are several"):
                    await batched(one)

    asyncio.run(ask())


def test_keys_are_listed(store, key):
    aio = AsyncStore(store)

    async def ask():
        names = {f"{key}/{n}".encode() for n in range(1000)}
        stored = await aio.put_all((name, b"v") for name in names)
        assert stored == [True] * 1000
        listed = [name async for name in aio.keys(key)]
        assert len(listed) == 1000 and set(listed) == names
        assert sorted(store.keys(f"{key}/99")) == sorted(name for name in names if b"/99" in name)
        assert [name async for name in aio.keys(f"{key}/none")] == []
        with pytest.raises(lunette.InvalidKey):
            await aio.keys("k" * 1025).__anext__()
        with pytest.raises(TypeError):
            next(store.keys(7))
        await aio.remove(names)

    asyncio.run(ask())


def test_a_queue_has_a_bound(member, key):
    native, queue = member._native, NativeQueue()
    for _ in range(QUESTIONS_MAX):
        native.begin_exists(queue, [])
    assert queue.under_way() == QUESTIONS_MAX
    put = ([key.encode()], [[0]], [[0]])
    for begin in (
        lambda: native.begin_exists(queue, []),
        lambda: native.begin_sizes(queue, []),
        lambda: native.begin_remove(queue, []),
        lambda: native.begin_get(queue, key.encode()),
        lambda: native.begin_get_into(queue, put, None),
        lambda: native.begin_put_from(queue, put, (False, 1, False, [], 0.0, [], []), None),
    ):
        with pytest.raises(lunette.Unavailable, match="under way"):
            begin()
    taken = 0
    while taken < QUESTIONS_MAX:
        taken += len(queue.take())
    assert queue.under_way() == 0
    assert member.exists([key]) == [False], "nothing was asked"
    native.begin_exists(queue, [])


def test_several_loops_share_a_store(store, key):
    aio = AsyncStore(store)

    async def ask(thread):
        for n in range(50):
            assert await aio.put(f"{key}/{thread}/{n}", b"x" * n + b"y")
            assert len(await aio.get(f"{key}/{thread}/{n}")) == n + 1

    failures = []

    def run(thread):
        try:
            asyncio.run(ask(thread))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    gc.collect()
    assert len(_loops) == 0, "loops that have ended are forgotten"


CANCELLED = """
import asyncio, lunette, os, signal, sys
from lunette.aio import AsyncStore, _loops
store = lunette.Store.connect([sys.argv[1]], timeout_s=30)
aio = AsyncStore(store)

def state(path):
    with open(path) as stat:
        return stat.read().rpartition(")")[2].split()[0]

async def main():
    assert await aio.put("key", b"value" * 1000)
    os.kill(int(sys.argv[2]), signal.SIGSTOP)
    tasks = f"/proc/{sys.argv[2]}/task"
    while any(state(f"{tasks}/{task}/stat") != "T" for task in os.listdir(tasks)):
        await asyncio.sleep(0.001)
    queue = _loops[asyncio.get_running_loop()].queue
    room = bytearray(5000)
    questions = (
        lambda: aio.get("key"),
        lambda: aio.get_into("key", room),
        lambda: aio.upsert("other", bytes(100_000)),
    )
    for question in questions:
        try:
            await asyncio.wait_for(question(), 0.2)
        except asyncio.TimeoutError:
            pass
        else:
            raise AssertionError("it has an answer")
    # Nobody answers for half a minute, and yet nothing is under way any more.
    for _ in range(200):
        if queue.under_way() == 0:
            break
        await asyncio.sleep(0.01)
    assert queue.under_way() == 0
    room.append(0)
    os.kill(int(sys.argv[2]), signal.SIGCONT)
    assert await aio.get("key") == b"value" * 1000
    print("cancelled")

try:
    asyncio.run(main())
finally:
    os.kill(int(sys.argv[2]), signal.SIGCONT)
"""

MEMBER = """
import lunette, sys
with lunette.Coordinator() as coordinator:
    with lunette.Store.member([coordinator.address], memory_bytes=64 << 20) as store:
        print(store.address, flush=True)
        sys.stdin.read()
"""


def test_a_task_that_is_cancelled_lets_go():
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", MEMBER], stdin=pipe, stdout=pipe, text=True) as member:
        address = member.stdout.readline().strip()
        command = [sys.executable, "-c", CANCELLED, address, str(member.pid)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (ran.returncode, ran.stdout) == (0, "cancelled\n"), ran.stderr
        member.stdin.close()
        assert member.wait(20) == 0


def test_a_store_that_is_closed_ends_what_waits(coordinator):
    async def ask():
        store = lunette.Store.member([coordinator.address], memory_bytes=16 << 20)
        aio = AsyncStore(store)
        tasks = [asyncio.create_task(aio.put(f"{n}", b"x" * 100_000)) for n in range(20)]
        await asyncio.sleep(0)
        store.close()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert outcome is True or isinstance(outcome, lunette.StoreError)
        with pytest.raises(lunette.Closed):
            await aio.get("0")

    asyncio.run(ask())


def test_a_child_of_a_fork_is_refused(member):
    aio = AsyncStore(member)
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(aio.get("key"))
        except lunette.Closed:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
