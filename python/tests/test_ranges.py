"""Objects that are written and read in ranges."""

import pytest

import lunette


def test_an_object_is_written_in_ranges_and_read_in_ranges(store, key):
    value = bytes(range(256)) * 800
    with store.reserve(key, len(value)) as room:
        room.write(100_000, value[100_000:])
        assert store.get(key) is None
        with pytest.raises(lunette.Invalid):
            room.commit()
        room.write(0, bytearray(value[:100_000]))
        assert room.commit()
        with pytest.raises(lunette.Invalid):
            room.write(0, b"late")
        with pytest.raises(lunette.Invalid):
            room.commit()
    assert store.get(key) == value
    assert store.reserve(key, 10) is None
    some, others = bytearray(7), bytearray(100_000)
    assert store.get_ranges_into(key, [(5, some), (90_000, others)]) == 100_007
    assert some == value[5:12] and others == value[90_000:190_000]
    assert store.get_ranges_into(key + "/none", [(0, some)]) is None
    with pytest.raises(lunette.Invalid):
        store.get_ranges_into(key, [(len(value) - 3, some)])
    with pytest.raises(ValueError):
        store.get_ranges_into(key, [(0, b"read-only")])


def test_a_long_object_is_written_layer_by_layer():
    layer = bytes(range(256)) * (80 << 10)
    some = bytearray(10)
    with lunette.Coordinator() as coordinator:
        with lunette.Store.member([coordinator.address], memory_bytes=512 << 20) as store:
            with store.reserve("long", 4 * len(layer)) as room:
                for index in (2, 0, 3, 1):
                    room.write(index * len(layer), layer)
                assert store.get("long") is None
                assert room.commit()
            assert store.size("long") == 4 * len(layer)
            for index in range(4):
                end = (index + 1) * len(layer)
                assert store.get_ranges_into("long", [(end - 10, some)]) == 10
                assert some == layer[-10:]


def test_what_is_not_committed_is_nothing(store, key):
    with store.reserve(key, 100) as room:
        room.write(0, bytes(100))
    assert store.get(key) is None
    room.close()
    with pytest.raises(ZeroDivisionError), store.reserve(key, 100) as room:
        room.write(0, bytes(100))
        1 / 0
    assert store.get(key) is None
    # Somebody else was first.
    with store.reserve(key, 3) as room:
        room.write(0, b"abc")
        assert store.put(key, b"other")
        assert not room.commit()
    assert store.get(key) == b"other"


def test_rooms_that_make_no_sense_are_refused(store, key):
    with store.reserve(key, 10) as room:
        for offset, value in ((5, bytes(6)), (11, b"a"), (1 << 40, b"a")):
            with pytest.raises(lunette.Invalid):
                room.write(offset, value)
        with pytest.raises((OverflowError, TypeError)):
            room.write(-1, b"a")
    for wrong in (-1, "10"):
        with pytest.raises((OverflowError, TypeError)):
            store.reserve(key, wrong)
    with pytest.raises(lunette.Invalid):
        store.reserve(key, 10, keep_s=-1.0)
