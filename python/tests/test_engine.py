"""Transfers by the wheel's own interface."""

import doctest
import gc

import pytest

import lunette
from lunette import engine
from lunette.engine import Engine


def test_the_example_of_the_module_holds():
    assert doctest.testmod(engine).failed == 0


def test_the_example_of_the_package_holds():
    assert doctest.testmod(lunette).failed == 0


@pytest.fixture
def pair():
    with Engine() as here, Engine() as there:
        yield here, there


def test_bytes_are_moved_both_ways(pair):
    here, there = pair
    mine, other = bytearray(b"abcdef" * 1000), bytearray(6000)
    with here.register(mine) as source, there.register(other) as target:
        here.write(there.address, [(source.address + 6, target.address, 6), (source.address, target.address + 10, 3)])
        assert other[:13] == b"abcdef" + bytes(4) + b"abc"
        other[:] = b"x" * 6000
        reading = here.begin_read(there.address, [(source.address, target.address, 6000)])
        reading.wait()
        reading.wait()
        assert reading.is_done() and mine == other
        writing = here.begin_write(there.address, [(source.address, target.address, 1)], note=b"note")
        while not writing.is_done():
            pass
        told = there.notifications()
        assert [note for _, note in told] == [b"note"] and there.notifications() == []
        here.write(there.address, [])


def test_what_is_not_registered_is_refused(pair):
    here, there = pair
    mine, other = bytearray(100), bytearray(100)
    source = here.register(mine)
    target = there.register(other)
    for wrong in (
        (source.address, target.address, 101),
        (source.address - 1, target.address, 1),
        (source.address, target.address + 100, 1),
    ):
        with pytest.raises(lunette.StoreError):
            here.write(there.address, [wrong], timeout_s=2)
    with pytest.raises(lunette.Invalid):
        here.register(memoryview(mine)[50:])
    with pytest.raises(ValueError):
        here.register(b"read-only")
    target.close()
    target.close()
    with pytest.raises(lunette.StoreError):
        here.write(there.address, [(source.address, target.address, 1)], timeout_s=2)
    # It can be registered anew.
    with there.register(other) as target:
        here.write(there.address, [(source.address, target.address, 100)])


def test_registered_memory_is_kept(pair):
    here, there = pair
    source = here.register(bytearray(b"kept" * 1000))
    target = there.register(bytearray(4000))
    gc.collect()
    here.write(there.address, [(source.address, target.address, 4000)])


def test_a_closed_engine_refuses():
    here = Engine()
    kept = here.register(bytearray(10))
    here.close()
    here.close()
    kept.close()
    with pytest.raises(lunette.Closed):
        here.write("127.0.0.1:1", [])
    with pytest.raises(lunette.Closed):
        here.register(bytearray(10))


def test_a_peer_that_is_not_there_is_told(pair):
    here, there = pair
    source = here.register(bytearray(10))
    address = there.address
    there.close()
    with pytest.raises(lunette.StoreError):
        here.write(address, [(source.address, 1, 1)], timeout_s=2)
