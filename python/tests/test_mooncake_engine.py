"""`mooncake.engine` as serving engines use it, between two engines and between two processes."""

import ctypes
import json
import random
import subprocess
import sys
import time

import pytest

from mooncake.engine import Read, TransferEngine, TransferNotify, TransferOpcode, Write


class Side:
    """An engine and memory that it has registered."""

    def __init__(self, size):
        self.engine = TransferEngine()
        assert self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        self.name = f"127.0.0.1:{self.engine.get_rpc_port()}"
        self.bytes = ctypes.create_string_buffer(size)
        self.at = ctypes.addressof(self.bytes)
        assert self.engine.register_memory(self.at, size) == 0

    def set(self, value, offset=0):
        ctypes.memmove(self.at + offset, value, len(value))

    def get(self, size, offset=0):
        return ctypes.string_at(self.at + offset, size)


SIZE = 8 << 20
# Most transfers that have not been asked after (`src/engine/mod.rs`).
TRANSFERS_MAX = 1 << 16


@pytest.fixture(scope="module")
def sides():
    sides = [Side(SIZE), Side(SIZE)]
    yield sides
    for side in sides:
        assert side.engine.unregister_memory(side.at) == 0


@pytest.fixture
def here(sides):
    ctypes.memset(sides[0].at, 0, SIZE)
    return sides[0]


@pytest.fixture
def there(sides):
    ctypes.memset(sides[1].at, 0, SIZE)
    return sides[1]


def test_bytes_are_written_and_read(here, there):
    value = random.Random(1).randbytes(5 << 20)
    here.set(value, 7)
    engine = here.engine
    assert engine.transfer_sync_write(there.name, here.at + 7, there.at + 100, len(value)) == 0
    assert there.get(len(value), 100) == value and there.get(100) == bytes(100)
    assert engine.transfer_sync_read(there.name, here.at, there.at + 1000, 10) == 0
    assert here.get(10) == value[900:910]
    assert engine.transfer_sync(there.name, here.at, there.at, 10, TransferOpcode.Write) == 0
    assert engine.transfer_sync(there.name, here.at + 50, there.at, 10, Read) == 0
    assert here.get(10, 50) == value[900:910]


def test_batches(here, there):
    value = random.Random(2).randbytes(100_000)
    here.set(value)
    lengths = [1, 4096, 30_000, 0, 65_000]
    begins = [0, 1, 4097, 0, 34_097]
    ours = [here.at + begin for begin in begins]
    theirs = [there.at + SIZE - 200_000 + begin for begin in begins]
    assert here.engine.batch_transfer_sync_write(there.name, ours, theirs, lengths) == 0
    assert there.get(99_097, SIZE - 200_000) == value[:99_097]
    ctypes.memset(here.at, 0, 100_000)
    assert here.engine.batch_transfer_sync_read(there.name, ours, theirs, lengths) == 0
    assert here.get(99_097) == value[:99_097]
    assert here.engine.batch_transfer_sync(there.name, ours, theirs, lengths, Write) == 0
    assert here.engine.batch_transfer_sync_write(there.name, [], [], []) == 0


def ended(engine, number):
    deadline = time.monotonic() + 20
    while (code := engine.transfer_check_status(number)) == 0:
        assert time.monotonic() < deadline
    return code


def test_transfers_are_asked_after(here, there):
    value = random.Random(3).randbytes(4 << 20)
    here.set(value)
    halves = [len(value) // 2] * 2
    ours, theirs = [here.at, here.at + halves[0]], [there.at, there.at + halves[0]]
    number = here.engine.batch_transfer_async_write(there.name, ours, theirs, halves)
    assert number > 0
    assert ended(here.engine, number) == 1
    assert there.get(len(value)) == value
    assert here.engine.transfer_check_status(number) == -1, "it is forgotten"
    ctypes.memset(here.at, 0, len(value))
    number = here.engine.batch_transfer_async_read(there.name, ours, theirs, halves)
    other = here.engine.transfer_submit_write(there.name, there.at and here.at, there.at + len(value), 5)
    assert here.engine.get_batch_transfer_status([number, other]) == 0
    assert here.get(len(value)) == value
    assert here.engine.get_batch_transfer_status([number]) == -1


def test_peers_are_told(here, there):
    note = TransferNotify("layer", "7")
    assert there.engine.get_notifies() == []
    moves = ([here.at], [there.at], [100])
    assert here.engine.batch_transfer_sync(there.name, *moves, Write, notify=note) == 0
    deadline = time.monotonic() + 20
    told = []
    while not told and time.monotonic() < deadline:
        told = there.engine.get_notifies()
    assert told == [note]
    assert there.engine.get_notifies() == []


def test_what_makes_no_sense_has_a_code(here, there):
    engine = here.engine
    other = Side(4096)
    assert engine.register_memory(here.at + 5, 10) == -1, "it overlaps"
    assert engine.register_memory(8, 10) == -1, "nothing is mapped there"
    assert engine.unregister_memory(other.at) == -1
    assert engine.transfer_sync_write(there.name, other.at, there.at, 10) == -1
    assert engine.transfer_sync_write(there.name, here.at, there.at + SIZE - 5, 10) == -1
    assert engine.transfer_sync_write(there.name, here.at + SIZE - 5, there.at, 10) == -1
    assert engine.transfer_sync_write(there.name, here.at, 8, 10) == -1
    assert engine.transfer_sync_write("no such host:1", here.at, there.at, 10) == -1
    assert engine.transfer_sync_write("127.0.0.1:1", here.at, there.at, 10) == -1
    assert engine.batch_transfer_sync_write(there.name, [here.at], [there.at], [1, 2]) == -1
    assert engine.batch_transfer_async_write(there.name, [other.at], [there.at], [1]) == 0
    assert engine.transfer_check_status(12345678) == -1
    assert engine.send_probe(there.name) == 0
    assert engine.send_probe("127.0.0.1:1") == -1
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == -1
    assert other.engine.unregister_memory(other.at) == 0
    fresh = TransferEngine()
    assert fresh.initialize("127.0.0.1", "P2PHANDSHAKE", "pigeon", "") == -1
    assert fresh.get_rpc_port() == -1 and fresh.register_memory(here.at, 10) == -1
    assert fresh.transfer_sync_write(there.name, here.at, there.at, 10) == -1
    for wrong in (
        lambda: engine.transfer_sync_write(there.name, -1, there.at, 10),
        lambda: engine.transfer_sync_write(there.name, here.at, there.at, -10),
        lambda: engine.register_memory("a", 1),
    ):
        with pytest.raises(TypeError):
            wrong()


def test_memory_that_is_unregistered_is_reached_no_more(here, there):
    other = Side(4096)
    peer = TransferEngine()
    assert peer.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    assert here.engine.transfer_sync_write(other.name, here.at, other.at, 10) == 0
    assert other.engine.unregister_memory(other.at) == 0
    assert here.engine.transfer_sync_write(other.name, here.at, other.at, 10) == -1
    # The same addresses again are another registration, which is found anew.
    assert other.engine.register_memory(other.at, 2048) == 0
    here.set(b"again")
    assert here.engine.transfer_sync_write(other.name, here.at, other.at, 5) == 0
    assert other.get(5) == b"again"
    assert here.engine.transfer_sync_write(other.name, here.at, other.at + 2040, 10) == -1


def test_transfers_that_nobody_asks_after_have_a_bound(here, there):
    numbers = [
        here.engine.batch_transfer_async_write(there.name, [], [], []) for _ in range(TRANSFERS_MAX)
    ]
    assert min(numbers) > 0
    assert here.engine.batch_transfer_async_write(there.name, [], [], []) == 0
    assert here.engine.get_batch_transfer_status(numbers[:1]) == 0
    assert here.engine.batch_transfer_async_write(there.name, [], [], []) > 0
    assert here.engine.get_batch_transfer_status(numbers[1:]) == 0


def test_memory_of_the_engine(here):
    address = here.engine.allocate_managed_buffer(10_000)
    assert here.engine.write_bytes_to_buffer(address + 5, "text", 4) == 0
    assert here.engine.read_bytes_from_buffer(address + 4, 6) == b"\0text\0"
    assert here.engine.write_bytes_to_buffer(address + 9_998, "text", 4) == -1
    assert here.engine.read_bytes_from_buffer(8, 4) == b""
    assert here.engine.free_managed_buffer(address, 10_000) == 0
    assert here.engine.free_managed_buffer(address, 10_000) == -1
    several = [here.engine.allocate_managed_buffer(4096) for _ in range(3)]
    assert here.engine.batch_unregister_memory(several) == 0
    assert here.engine.batch_register_memory([*several, 8], [4096, 4096, 4096, 1]) == -1
    assert here.engine.batch_register_memory(several, [4096] * 3) == 0
    assert here.engine.batch_unregister_memory([*several, 8]) == -1


PEER = """
import ctypes, json, sys
from mooncake.engine import TransferEngine
engine = TransferEngine()
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
memory = ctypes.create_string_buffer(b"peer" * 250_000, 1_000_000)
at = ctypes.addressof(memory)
assert engine.batch_register_memory([at], [1_000_000]) == 0
print(json.dumps([engine.get_rpc_port(), at]), flush=True)
for line in sys.stdin:
    print(json.dumps([memory.raw[:10].decode()]), flush=True)
"""


def test_processes(here):
    command = [sys.executable, "-c", PEER]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as peer:
        port, at = json.loads(peer.stdout.readline())
        name = f"localhost:{port}"
        assert here.engine.transfer_sync_read(name, here.at, at, 1_000_000) == 0
        assert here.get(1_000_000) == b"peer" * 250_000
        here.set(b"0123456789")
        assert here.engine.transfer_sync_write(name, here.at, at, 10) == 0
        print(file=peer.stdin, flush=True)
        assert json.loads(peer.stdout.readline()) == ["0123456789"]
        peer.kill()
        peer.wait()
        assert here.engine.send_probe(name) == -1
