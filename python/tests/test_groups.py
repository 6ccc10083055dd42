"""Objects that are of use together only leave memory together, from both faces."""

import asyncio
import ctypes
from collections.abc import Callable, Iterator

import pytest

import lunette
from lunette.aio import AsyncStore
from mooncake.store import MooncakeDistributedStore, ReplicateConfig

# Memory holds some 250 of them.
VALUE = bytes(16_384)
# Objects that are older than the second one of a group, and younger than the first.
BETWEEN = 100
OTHERS = 1_000


@pytest.fixture
def alone() -> Iterator[lunette.Coordinator]:
    with lunette.Coordinator() as coordinator:
        yield coordinator


def leave_together(store: lunette.Store, put: Callable[[str, str | None], None]) -> None:
    """The second one of a group leaves when the first has, before what is older."""
    put("first", "together")
    between = [f"between/{number}" for number in range(BETWEEN)]
    for key in between:
        put(key, None)
    put("second", "together")
    put("apart", "another")
    for number in range(OTHERS):
        if store.exists(["first", "second"]) == [False, False]:
            break
        put(f"other/{number}", None)
    assert sum(store.exists(between)) > BETWEEN // 2
    assert store.exists(["apart"]) == [True]


def test_objects_of_a_group_leave_together(alone):
    with lunette.Store.member([alone.address], memory_bytes=4 << 20) as store:
        leave_together(store, lambda key, group: store.put(key, VALUE, group=group))
        written = store.put_all([("a", VALUE), ("b", VALUE)], groups=[b"together", None])
        assert written == [True, True]
        assert store.upsert("a", VALUE, group="together")
        with store.reserve("reserved", len(VALUE), group="together") as reserved:
            reserved.write(0, VALUE)
            assert reserved.commit()
        with pytest.raises(lunette.Invalid, match="groups"):
            store.put_all([("c", VALUE), ("d", VALUE)], groups=["one"])
        assert store.exists(["c", "d"]) == [False, False]


def test_batches_have_a_group_for_each(alone):
    with lunette.Store.member([alone.address], memory_bytes=4 << 20) as store:
        leave_together(store, lambda key, group: store.put_all([(key, VALUE)], groups=[group]))


def test_tasks_put_into_groups(alone):
    with lunette.Store.member([alone.address], memory_bytes=4 << 20) as store:
        tasks = AsyncStore(store)
        leave_together(store, lambda key, group: asyncio.run(tasks.put(key, VALUE, group=group)))
        put_all = tasks.put_all([("a", VALUE), ("b", VALUE)], groups=["one", "two"])
        assert asyncio.run(put_all) == [True, True]
        assert asyncio.run(tasks.upsert("a", VALUE, group="one"))


def test_groups_as_mooncake_has_them(alone):
    drop_in = MooncakeDistributedStore()
    addresses = ("127.0.0.1", "P2PHANDSHAKE")
    assert drop_in.setup(*addresses, 4 << 20, 16 << 20, "tcp", "", alone.address) == 0

    memory = ctypes.create_string_buffer(VALUE, len(VALUE))
    at = ctypes.addressof(memory)
    assert drop_in.register_buffer(at, len(VALUE)) == 0

    def put(key: str, group: str | None) -> None:
        # An empty name is none, and an object without a byte is none: the groups of the others are theirs all the same.
        config = ReplicateConfig(group_ids=["", "of nothing", group or ""])
        keys, sizes = [f"{key}/0", f"{key}/1", key], [1, 0, len(VALUE)]
        assert drop_in.batch_put_from(keys, [at] * 3, sizes, config) == [0, -600, 0]

    with lunette.Store.join([alone.address], cluster="mooncake") as store:
        leave_together(store, put)
    assert drop_in.close() == 0


def test_what_is_behind_another_leaves_when_that_is_gone(alone):
    with lunette.Store.member([alone.address], memory_bytes=4 << 20) as store:
        older = [f"older/{number}" for number in range(BETWEEN)]
        for key in older:
            store.put(key, VALUE)
        store.put("first", VALUE)
        written = store.put_all([("second", VALUE), ("third", VALUE)], behind=["first", "second"])
        assert written == [True, True]
        store.put("alone", VALUE, behind=older[0])
        assert store.remove(["first"]) == [True]
        for number in range(OTHERS):
            if store.exists(["second"]) == [False]:
                break
            store.put(f"other/{number}", VALUE)
        assert sum(store.exists(older)) > BETWEEN // 2
        assert store.exists(["alone"]) == [True]
        with pytest.raises(lunette.Invalid, match="before"):
            store.put_all([("a", VALUE), ("b", VALUE)], behind=["one"])
