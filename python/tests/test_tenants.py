"""Tenants of one cluster do not meet, from both faces."""

import math
import time
from collections.abc import Iterator

import pytest

import lunette
from mooncake.store import MooncakeDistributedStore, ReplicateConfig

# Memory holds some 250 of them.
VALUE = bytes(16_384)


@pytest.fixture
def alone() -> Iterator[lunette.Coordinator]:
    with lunette.Coordinator() as coordinator:
        yield coordinator


def test_the_same_key_is_another_object_for_each(alone):
    with (
        lunette.Store.member([alone.address], memory_bytes=64 << 20, tenant="a") as first,
        lunette.Store.join([alone.address], tenant="b") as second,
        lunette.Store.connect([first.address]) as third,
        lunette.Store.connect([first.address], tenant="default") as same,
    ):
        stores = {first: b"first", second: b"second", third: b"third" * 100_000}
        for store, value in stores.items():
            assert store.exists(["key"]) == [False]
            assert store.put("key", value)
        for store, value in stores.items():
            assert store.get("key") == value
            assert not store.put("key", b"again")
        assert same.get("key") == stores[third]
        assert first.remove(["key"]) == [True]
        assert [store.exists(["key"]) for store in stores] == [[False], [True], [True]]
        assert second.put("other", b"2")
        assert [sorted(store.keys()) for store in stores] == [[], [b"key", b"other"], [b"key"]]
        assert list(second.keys("o")) == [b"other"]
        second.clear()
        assert [list(store.keys()) for store in stores] == [[], [], [b"key"]]
        assert second.put("key", b"again")
        with pytest.raises(lunette.InvalidKey):
            third.get(b"\xfftenant\x01bkey")
        third.clear()
        assert second.exists(["key"]) == [False]


@pytest.mark.parametrize("name", ["", "n" * 65])
def test_names_are_bounded(alone, name):
    with pytest.raises(lunette.Invalid, match="1 to 64"):
        lunette.Store.connect(["127.0.0.1:1"], tenant=name)


def test_who_has_little_keeps_it(alone):
    with (
        lunette.Store.member([alone.address], memory_bytes=4 << 20) as many,
        lunette.Store.connect([many.address], tenant="few") as few,
    ):
        kept = [f"key/{number}" for number in range(60)]
        assert all(few.put(key, VALUE) for key in kept)
        for number in range(1000):
            many.put(f"key/{number}", VALUE)
        assert all(few.exists(kept))
        assert sum(many.exists([f"key/{number}" for number in range(1000)])) < 250


def test_tenants_as_mooncake_has_them(alone):
    def store_of(memory_bytes: int, *tenant: str) -> MooncakeDistributedStore:
        store = MooncakeDistributedStore()
        given = ("127.0.0.1", "", memory_bytes, 0, "tcp", "", alone.address, None, False, "", *tenant)
        assert store.setup(*given) == 0
        return store

    stores = [store_of(64 << 20, "a"), store_of(0, "b"), store_of(0, ""), store_of(0)]
    for number, store in enumerate(stores[:3]):
        assert store.put("key", b"%d" % number, ReplicateConfig()) == 0
    assert [store.get("key") for store in stores] == [b"0", b"1", b"2", b"2"]
    assert stores[1].remove_by_regex("^k") == 1
    assert stores[1].put("key", b"1") == 0
    assert stores[1].remove_all() == 1
    assert [store.is_exist("key") for store in stores] == [1, 0, 1, 1]
    for store in stores:
        store.close()


def eventually(holds) -> None:
    for _ in range(500):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("in time")


def test_a_tenant_has_no_more_than_its_quota(alone):
    with (
        lunette.Store.member([alone.address], cluster="mooncake", memory_bytes=64 << 20) as store,
        lunette.Store.connect([store.address], tenant="a") as tenant,
    ):
        assert store.quotas() == {}
        store.set_quota("a", 1 << 20)
        eventually(lambda: "a" in store.quotas())
        for number in range(200):
            assert tenant.put(f"key/{number}", VALUE)
        quota = store.quotas()["a"]
        assert quota.quota_bytes == 1 << 20
        assert 1 << 19 < quota.used_bytes <= quota.lent_bytes <= 1 << 20
        assert 30 < sum(tenant.exists([f"key/{number}" for number in range(200)])) < 64
        tenant.clear()
        with pytest.raises(lunette.OverQuota, match="OverQuota"):
            for number in range(200):
                tenant.put(f"pinned/{number}", VALUE, pin_s=math.inf)
        config = ReplicateConfig()
        config.with_hard_pin = True
        same = MooncakeDistributedStore()
        given = ("127.0.0.1", "", 0, 0, "tcp", "", alone.address, None, False, "", "a")
        assert same.setup(*given) == 0
        assert same.put("pinned", VALUE, config) == -1700
        same.close()
        store.set_quota("a", None)
        eventually(lambda: store.quotas() == {})
        assert tenant.put("more", VALUE, pin_s=math.inf)
        for name, quota_bytes in [("", 1), ("a", 0), ("a", -1), ("a", 1 << 64)]:
            with pytest.raises(lunette.Invalid):
                store.set_quota(name, quota_bytes)
        for refused in [tenant.quotas, lambda: tenant.set_quota("a", None)]:
            with pytest.raises(lunette.Invalid, match="all tenants"):
                refused()
