"""Transfers from and to memory of a CUDA device, by both faces. Run by `test_devices.py`, where the driver is."""

import ctypes
import gc
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import lunette
import pytest
from lunette.engine import Engine
from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode, Write
from on_device import MIB, Memory, Tensor, cuda, done, nothing_is_kept, side_by_side

__all__ = ["nothing_is_kept"]


def engine():
    begun = TransferEngine()
    assert begun.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    return begun, f"127.0.0.1:{begun.get_rpc_port()}"


class Room:
    """Memory of the host, with the face of `Memory`."""

    def __init__(self, size):
        self.room, self.size = ctypes.create_string_buffer(size), size
        self.at = ctypes.addressof(self.room)

    def free(self):
        self.room = None

    def set(self, value, offset=0):
        ctypes.memmove(self.at + offset, value, len(value))

    def get(self, size, offset=0):
        return ctypes.string_at(self.at + offset, size)


KINDS = {"device": Memory, "host": Room}


@pytest.mark.parametrize("near", KINDS)
@pytest.mark.parametrize("far", KINDS)
def test_bytes_go_between_devices_and_hosts_both_ways(near, far):
    size = 5 * MIB + 7
    value, back = random.Random(1).randbytes(size), random.Random(2).randbytes(size)
    mine, other = KINDS[near](size + 100), KINDS[far](size + 100)
    here, there = engine(), engine()
    assert here[0].register_memory(mine.at, mine.size) == 0
    assert there[0].register_memory(other.at, other.size) == 0
    mine.set(value, 3)
    assert here[0].transfer_sync_write(there[1], mine.at + 3, other.at + 50, size) == 0
    assert other.get(size, 50) == value
    other.set(back, 1)
    assert here[0].transfer_sync_read(there[1], mine.at + 100, other.at + 1, size) == 0
    assert mine.get(size, 100) == back
    assert here[0].unregister_memory(mine.at) == 0 and there[0].unregister_memory(other.at) == 0
    assert here[0].transfer_sync_write(there[1], mine.at, other.at, 1) == -1
    # What was logged keeps this test's memory.
    mine.free()
    other.free()


def test_batches_and_transfers_that_are_asked_after():
    mine, other, room = Memory(MIB), Memory(MIB), Room(MIB)
    here, there = engine(), engine()
    assert here[0].batch_register_memory([mine.at, room.at], [MIB, MIB]) == 0
    assert there[0].batch_register_memory([other.at], [MIB]) == 0
    value = random.Random(3).randbytes(MIB)
    mine.set(value)
    room.set(value)
    # Layers, each a part of two tensors; some of the host's.
    lengths = [4096, 1, 70_000, 0, 300_000, 65_536]
    begins = [sum(lengths[:index]) for index in range(len(lengths))]
    ours = [(room if index % 3 == 2 else mine).at + at for index, at in enumerate(begins)]
    theirs = [other.at + at for at in begins]
    total = sum(lengths)
    assert here[0].batch_transfer_sync_write(there[1], ours, theirs, lengths) == 0
    assert other.get(total) == value[:total]
    other.set(value[::-1])
    number = here[0].batch_transfer_async_read(there[1], ours, theirs, lengths)
    assert number > 0 and here[0].get_batch_transfer_status([number]) == 0
    for index, (at, length) in enumerate(zip(begins, lengths)):
        side = room if index % 3 == 2 else mine
        assert side.get(length, at) == value[::-1][at : at + length]
    number = here[0].transfer_submit_write(there[1], mine.at, other.at, MIB)
    deadline = time.monotonic() + 20
    while (code := here[0].transfer_check_status(number)) == 0:
        assert time.monotonic() < deadline
    assert code == 1 and other.get(MIB) == mine.get(MIB)
    note = TransferNotify("layer", "3")
    assert here[0].batch_transfer_sync(there[1], ours, theirs, lengths, Write, notify=note) == 0
    while not (told := there[0].get_notifies()):
        assert time.monotonic() < deadline
    assert told == [note]
    assert here[0].batch_unregister_memory([mine.at, room.at]) == 0
    assert there[0].batch_unregister_memory([other.at]) == 0


def test_what_cannot_be_used_has_a_code():
    (here, _), (_, there) = engine(), engine()
    memory = Memory(5000)
    assert here.register_memory(memory.at, 5001) == -1
    # Behind the engine's own memory, which would come to lie there.
    gone = Memory(5000).at
    assert here.register_memory(memory.at + 4999, 2) == -1
    assert here.register_memory(gone, 1) == -1
    assert here.register_memory(memory.at, 5000) == 0
    assert here.register_memory(memory.at + 16, 16) == -1, "it overlaps"
    assert here.batch_register_memory([gone], [10]) == -1
    assert here.transfer_sync_write(there, memory.at, memory.at, 10) == -1, "nothing is registered there"
    assert here.transfer_sync_write(there, memory.at + 1, memory.at, 5000) == -1
    # The processor has no part in it.
    assert here.write_bytes_to_buffer(memory.at, b"abc", 3) == -1
    assert here.read_bytes_from_buffer(memory.at, 3) == b""
    assert here.unregister_memory(memory.at) == 0 and here.unregister_memory(memory.at) == -1
    # What was logged keeps this test's memory.
    memory.free()


def test_allocations_side_by_side_are_one_range():
    """As allocators have them whose segments grow: requests go across, on both sides."""
    unit = 2 * MIB
    (here, _), (there, name) = engine(), engine()
    with side_by_side(3) as mine, side_by_side(2) as other:
        assert here.register_memory(mine, 3 * unit) == 0
        assert there.register_memory(other, 2 * unit) == 0
        assert there.register_memory(other + unit, 10) == -1, "it overlaps"
        value = random.Random(4).randbytes(3 * unit)
        for at in range(0, 3 * unit, unit):
            done(cuda.cuMemcpyHtoD_v2(mine + at, value[at : at + unit], unit))
        length = 2 * unit - 10
        assert here.transfer_sync_write(name, mine + unit // 2, other + 5, length) == 0
        found = b""
        for at in range(0, 2 * unit, unit):
            room = ctypes.create_string_buffer(unit)
            done(cuda.cuMemcpyDtoH_v2(room, other + at, unit))
            found += room.raw
        assert found[5 : 5 + length] == value[unit // 2 : unit // 2 + length]
        assert here.transfer_sync_read(name, mine, other + 5, 2 * unit - 5) == 0
        assert here.transfer_sync_read(name, mine, other + 5, 2 * unit - 4) == -1
        assert here.unregister_memory(mine) == 0 and there.unregister_memory(other) == 0


@pytest.mark.parametrize("is_array", [False, True])
def test_tensors_are_registered(is_array):
    mine, other = Memory(4000), Memory(4000)
    shown = lambda memory: memory.shown((1000,)) if is_array else Tensor(memory, 4000)
    value = random.Random(5).randbytes(4000)
    mine.set(value)
    with Engine() as here, Engine() as there:
        with here.register(shown(mine)) as source, there.register(shown(other)) as target:
            assert source.address == mine.at and source.size == 4000
            here.write(there.address, [(source.address + 6, target.address, 3000)], note=b"kv")
            assert other.get(3000) == value[6:3006]
            assert [note for _, note in there.notifications()] == [b"kv"]
            other.set(value)
            reading = here.begin_read(there.address, [(source.address, target.address, 4000)])
            reading.wait()
            assert mine.get(4000) == value
        strided = (ctypes.c_int64 * 1)(2)
        with pytest.raises(ValueError):
            here.register(Tensor(mine, 50, strides=strided))
        with pytest.raises(lunette.Invalid):
            here.register(Tensor(mine, 4001))


def test_a_tensor_is_kept_until_it_is_taken_back():
    tensor = Tensor(Memory(100), 100)
    engine = Engine()
    kept = engine.register(tensor)
    gc.collect()
    assert tensor.deleted == 0
    kept.close()
    del kept
    assert tensor.deleted == 1
    again = engine.register(Tensor(Memory(100), 100))
    engine.close()
    again.close()


def test_copies_come_behind_what_streams_had_to_do_when_it_was_registered():
    size, last = 4 * MIB, random.Random(9).randbytes(4 * MIB)
    memory, room = Memory(size), bytearray(size)
    filled = [ctypes.create_string_buffer(bytes([n]) * size, size) for n in range(20)]
    filled.append(ctypes.create_string_buffer(last, size))
    with Engine() as here, Engine() as there, there.register(room) as target:
        for source in filled:
            done(cuda.cuMemcpyAsync(memory.at, source, size, 1))
        with here.register(Tensor(memory, size)) as mine:
            here.write(there.address, [(mine.address, target.address, size)])
    assert room == last


PEER = """
import json, sys
from mooncake.engine import TransferEngine
from on_device import Memory
engine = TransferEngine()
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
memory = Memory(3_000_000)
memory.set(b"peer" * 750_000)
assert engine.batch_register_memory([memory.at], [memory.size]) == 0
print(json.dumps([engine.get_rpc_port(), memory.at]), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked[0] == "bytes":
        print(json.dumps(memory.get(*asked[1:]).hex()), flush=True)
    else:
        _, name, mine, other, size = asked
        codes = [
            engine.transfer_sync_write(name, memory.at + mine, other, size),
            engine.transfer_sync_read(name, memory.at + mine, other + size, size),
        ]
        print(json.dumps(codes), flush=True)
assert engine.unregister_memory(memory.at) == 0
"""


@pytest.mark.parametrize("near", KINDS)
def test_processes(near):
    mine = KINDS[near](6_000_000)
    here, name = engine()
    assert here.register_memory(mine.at, mine.size) == 0
    pipe, folder = subprocess.PIPE, Path(__file__).parent
    command = [sys.executable, "-c", PEER]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=folder) as peer:

        def asked(*question):
            print(json.dumps(question), file=peer.stdin, flush=True)
            return json.loads(peer.stdout.readline())

        port, at = json.loads(peer.stdout.readline())
        other = f"localhost:{port}"
        size = 3_000_000
        assert here.transfer_sync(other, mine.at, at, size, TransferOpcode.Read) == 0
        assert mine.get(size) == b"peer" * 750_000
        value = random.Random(6).randbytes(size)
        mine.set(value)
        assert len(value[7:]) % 4 == 1
        assert here.transfer_sync(other, mine.at + 7, at, size - 7, TransferOpcode.Write) == 0
        assert bytes.fromhex(asked("bytes", size)) == value[7:] + (b"peer" * 2)[1:]
        # The other one does the same with memory here: it writes, and reads what comes behind.
        half = size // 2
        mine.set(value[::-1])
        assert asked("move", name, 0, mine.at, half) == [0, 0]
        assert mine.get(half) == value[7 : 7 + half]
        assert bytes.fromhex(asked("bytes", half)) == value[::-1][half : 2 * half]
        peer.stdin.close()
        assert peer.wait() == 0
    assert here.unregister_memory(mine.at) == 0
