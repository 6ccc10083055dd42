"""Objects and weights that stores pass on, from and to memory of a CUDA device. Run by `test_devices.py`, where the driver
is."""

import asyncio
import ctypes
import random

import lunette
import pytest
from lunette.aio import AsyncObjectStore, AsyncUpdate
from lunette.p2p import ObjectStore, Part, Source
from lunette.p2p import Tensor as Told
from lunette.updates import Offer, Update
from on_device import MIB, Memory, Tensor, cuda, done, nothing_is_kept, side_by_side

__all__ = ["nothing_is_kept"]

CHUNK, LONG_S = 4096, 60.0


def filled(size, seed):
    value, memory = random.Random(seed).randbytes(size), Memory(size)
    memory.set(value)
    return value, memory


def bytes_of(shown):
    """What lies where an array of CUDA's interface tells."""
    told = shown.__cuda_array_interface__
    size = int(told["typestr"][2:])
    for length in told["shape"]:
        size *= length
    room = ctypes.create_string_buffer(size)
    done(cuda.cuMemcpyDtoH_v2(room, told["data"][0], size))
    return room.raw


@pytest.fixture(scope="module")
def third(coordinator):
    with ObjectStore([coordinator.address]) as store:
        yield store


@pytest.mark.parametrize("kind", ["device", "host"])
def test_objects_go_from_device_to_device_and_on(origin, other, third, name, kind):
    size = 2 * MIB + 777
    value, source = filled(size, 1)
    given = Tensor(source, size) if kind == "device" else bytearray(value)
    room = Memory(size)
    with origin.register(name, [given], chunk_bytes=CHUNK * 16):
        # Whoever has it passes it on, to the host too.
        with other.receive(name, [Tensor(room, size)], timeout_s=LONG_S) as held:
            assert held.buffers and room.get(size) == value
            with third.receive(name, timeout_s=LONG_S) as last:
                assert bytes(last.buffers[0]) == value
    assert origin.find(name) is None


def test_tensors_are_named_and_have_their_memory_there(origin, other, name):
    value, source = filled(24 * 4, 2)
    rooms = {"w": Memory(24 * 4), "part": Memory(4 * 4)}
    weights = {"w": source.shown((2, 3, 4)), "part": source.shown((24,))}
    into = {
        "w": rooms["w"].shown((2, 3, 4)),
        "part": Part(rooms["part"].shown((4,)), start=(8,), size=(4,)),
    }
    with origin.register(name, weights, chunk_bytes=CHUNK) as held:
        assert held["w"] is weights["w"]
        assert {tensor.name: (tensor.dtype, tensor.shape) for tensor in held.tensors} == {
            "w": ("F32", (2, 3, 4)),
            "part": ("F32", (24,)),
        }
        with other.receive_tensors(name, into, keep=False, timeout_s=LONG_S) as got:
            assert got["w"] is into["w"]
            assert rooms["w"].get(24 * 4) == value
            assert rooms["part"].get(4 * 4) == value[32:48]
        # Into the host's, and from there to a device.
        with other.receive_tensors(name, {"w": None}, timeout_s=LONG_S) as got:
            assert bytes(got["w"]) == value


def test_what_lies_in_buffers_is_had_as_arrays(origin, other, name):
    value, source = filled(1000, 3)
    told = [Told("a", "F32", (5, 2), 0, 16), Told("b", "BF16", (3,), 0, 100), Told("flags", "BOOL", (7,), 0, 0)]
    room = Memory(1000)
    with origin.register(name, Source([Tensor(source, 1000)], told), chunk_bytes=CHUNK):
        with other.receive(name, [Tensor(room, 1000)], timeout_s=LONG_S) as held:
            shown = {key: held[key].__cuda_array_interface__ for key in ("a", "b", "flags")}
            assert {key: (each["typestr"], each["shape"]) for key, each in shown.items()} == {
                "a": ("<f4", (5, 2)),
                "b": ("|u1", (6,)),
                "flags": ("|b1", (7,)),
            }
            assert shown["a"]["data"] == (room.at + 16, False)
            assert bytes_of(held["a"]) == value[16:56] and bytes_of(held["b"]) == value[100:106]


def test_what_is_there_already_is_not_fetched(origin, other, name):
    size = 40 * CHUNK
    value, source = filled(size, 4)
    room = Memory(size)
    room.set(value[: size // 2])
    with origin.register(name, [Tensor(source, size)], chunk_bytes=CHUNK):
        with other.receive(name, [Tensor(room, size)], resume=True, timeout_s=LONG_S) as held:
            assert held.progress().held_bytes == size
            assert room.get(size) == value


def test_tensors_without_elements_are_anywhere(origin, other, name):
    value, source = filled(100, 5)
    room, empty = Memory(100), Memory(8)
    weights = {"w": source.shown((25,)), "none": empty.shown((0, 3))}
    into = {"w": room.shown((25,)), "none": empty.shown((0, 3))}
    with origin.register(name, weights), other.receive_tensors(name, into, timeout_s=LONG_S):
        assert room.get(100) == value


def test_registering_comes_behind_what_streams_have_to_do(origin, other, name):
    size, last = 4 * MIB, random.Random(6).randbytes(4 * MIB)
    memory = Memory(size)
    sources = [ctypes.create_string_buffer(bytes([n]) * size, size) for n in range(20)]
    sources.append(ctypes.create_string_buffer(last, size))
    for source in sources:
        done(cuda.cuMemcpyAsync(memory.at, source, size, 1))
    with origin.register(name, [Tensor(memory, size)]), other.receive(name, timeout_s=LONG_S) as held:
        assert bytes(held.buffers[0]) == last


def test_what_cannot_be_used_is_refused(origin, other, name):
    _, source = filled(1000, 7)
    with pytest.raises(lunette.Invalid, match="of the host, and some of devices"):
        origin.register(name, [Tensor(source, 1000), bytearray(10)])
    with pytest.raises(lunette.Invalid):
        origin.register(name, [Tensor(source, 1001)])
    with side_by_side(2) as at:
        whole = type("Two", (), {"at": at})
        with pytest.raises(lunette.Invalid, match="several allocations"):
            origin.register(name, [Tensor(whole, 4 * MIB)])
    with origin.register(name, [Tensor(source, 1000)]):
        with pytest.raises(lunette.Invalid):
            other.receive(name, [Tensor(Memory(999), 999)], timeout_s=LONG_S)
    assert origin.find(name) is None


def test_a_tensor_is_kept_until_it_is_let_go_of(origin, name):
    value, source = filled(100, 8)
    tensor = Tensor(source, 100)
    held = origin.register(name, [tensor])
    assert tensor.deleted == 0
    held.close()
    del held
    assert tensor.deleted == 1 and source.get(100) == value


def test_tasks_lend_it_too(origin, other, name):
    value, source = filled(50_000, 9)
    room = Memory(50_000)

    async def asked():
        here, there = AsyncObjectStore(origin), AsyncObjectStore(other)
        async with await here.register(name, [Tensor(source, 50_000)], chunk_bytes=CHUNK):
            async with await there.receive(name, [Tensor(room, 50_000)], timeout_s=LONG_S):
                assert room.get(50_000) == value

    asyncio.run(asked())


ROWS, COLUMNS, LAYERS = 32, 64, 6
LAYER = ROWS * COLUMNS * 4


def offered(store, name):
    value, source = filled(LAYERS * LAYER, 10)

    def layer(n):
        part = type("Part", (), {"at": source.at + n * LAYER})
        return Memory.shown(part, (ROWS, COLUMNS))

    weights = {f"layer.{n}": layer(n) for n in range(LAYERS)}
    return value, source, Offer(store, name, weights, bucket_bytes=2 * LAYER, chunk_bytes=CHUNK)


@pytest.mark.parametrize("is_async", [False, True])
def test_updates_go_through_slots_on_a_device(origin, other, name, is_async):
    value, source, offer = offered(origin, name)
    staging = [Memory(4 * LAYER) for _ in range(3)]
    slots = [memory.shown((4 * LAYER // 4,)) for memory in staging]
    model, views = {}, []

    def take(bucket):
        for key in bucket:
            told = bucket[key].__cuda_array_interface__
            assert (told["typestr"], told["shape"]) == ("<f4", (ROWS, COLUMNS))
            model[key] = bytes_of(bucket[key])
            views.append(bucket[key])
        for tensor, view in bucket.parts:
            assert bytes_of(view) == model[tensor.name]

    async def take_all(update):
        async for bucket in AsyncUpdate(update):
            take(bucket)

    with offer:
        assert offer.buckets == 3
        with Update(other, name, staging=slots) as update:
            if is_async:
                asyncio.run(take_all(update))
            else:
                for bucket in update:
                    take(bucket)
    assert model == {f"layer.{n}": value[n * LAYER : (n + 1) * LAYER] for n in range(LAYERS)}
    # What is copied is looked at no more.
    for view in views:
        with pytest.raises(ValueError):
            view.__cuda_array_interface__


def test_parts_of_an_update_and_ranks_on_the_host(origin, other, third, name):
    value, source, offer = offered(origin, name)
    slots = [Tensor(memory, 4 * LAYER) for memory in (Memory(4 * LAYER), Memory(4 * LAYER))]
    parts = {f"layer.{n}": Part(start=(8, 0), size=(8, COLUMNS)) for n in (0, 5)}
    with offer:
        with Update(other, name, parts=parts, staging=slots) as update:
            for bucket in update:
                ((part, view),) = bucket.parts
                n = int(part.name.rpartition(".")[2])
                begin = n * LAYER + 8 * COLUMNS * 4
                assert bytes_of(view) == value[begin : begin + 8 * COLUMNS * 4]
        with Update(third, name) as update:
            taken = {key: bytes(bucket[key]) for bucket in update for key in bucket}
    assert taken == {f"layer.{n}": value[n * LAYER : (n + 1) * LAYER] for n in range(LAYERS)}
