"""What is pinned outlasts others in memory, from both faces."""

import math
from collections.abc import Iterator

import pytest

import lunette
from mooncake.store import MooncakeDistributedStore, ReplicateConfig, SoftPinAction

# Memory holds some 250 of them.
VALUE = bytes(16_384)
OTHERS = 1_000


@pytest.fixture
def alone() -> Iterator[lunette.Coordinator]:
    with lunette.Coordinator() as coordinator:
        yield coordinator


def flood(store: lunette.Store) -> None:
    for number in range(0, OTHERS, 50):
        store.put_all([(f"other/{number + at}", VALUE) for at in range(50)])


def test_what_is_pinned_outlasts_others(alone):
    with lunette.Store.member([alone.address], memory_bytes=4 << 20) as store:
        outlasts(store)


def outlasts(small):
    assert small.put("soft", VALUE, pin_s=3600.0)
    assert small.put("hard", VALUE, pin_s=math.inf)
    assert small.upsert("over", VALUE) and small.upsert("over", VALUE, pin_s=60.0)
    assert small.put_all([("none", VALUE), ("short", VALUE)], pin_s=0.0) == [True, True]
    with small.reserve("parts", len(VALUE), pin_s=math.inf) as reserved:
        reserved.write(0, VALUE)
        assert reserved.commit()
    flood(small)
    found = small.exists(["soft", "hard", "over", "parts", "none", "short"])
    assert found == [True, True, True, True, False, False]
    for wrong in [-1.0, math.nan]:
        with pytest.raises(ValueError):
            small.put("wrong", VALUE, pin_s=wrong)
    with pytest.raises(lunette.NoRoom):
        for number in range(OTHERS):
            small.put(f"hard/{number}", VALUE, pin_s=math.inf)
    assert 50 < number < 200, "half of what fits"
    assert small.put("after", VALUE)


def test_pins_as_mooncake_has_them(alone):
    store = MooncakeDistributedStore()
    addresses = ("127.0.0.1", "P2PHANDSHAKE")
    assert store.setup(*addresses, 4 << 20, 16 << 20, "tcp", "", alone.address) == 0
    wishes = {
        "hard": ReplicateConfig(with_hard_pin=True),
        "soft": ReplicateConfig(soft_pin_action=SoftPinAction.ENABLE),
        "long": ReplicateConfig(soft_pin_action=SoftPinAction.ENABLE, soft_pin_ttl_ms=10**9),
        "short": ReplicateConfig(soft_pin_action=SoftPinAction.ENABLE, soft_pin_ttl_ms=1),
        "none": ReplicateConfig(soft_pin_action=SoftPinAction.DISABLE),
    }
    for name, config in wishes.items():
        assert store.put(name, VALUE, config) == 0
    for number in range(OTHERS):
        assert store.put(f"other/{number}", VALUE) == 0
    assert store.batch_is_exist(list(wishes)) == [1, 1, 1, 0, 0]
    negative = ReplicateConfig(soft_pin_action=SoftPinAction.ENABLE, soft_pin_ttl_ms=-1)
    assert store.put("negative", VALUE, negative) == -600
    codes = [store.put(f"hard/{number}", VALUE, wishes["hard"]) for number in range(OTHERS)]
    assert set(codes) == {0, -200}
    assert 50 < codes.index(-200) < 200, "half of what fits"
    assert store.close() == 0
