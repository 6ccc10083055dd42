"""Objects from and to memory of a CUDA device, by both faces. Run by `test_devices.py`, where a driver is."""

import asyncio
import contextlib
import ctypes
import gc
import math
import random
import time

import lunette
import pytest
from lunette._native import Given
from lunette.aio import AsyncStore
from mooncake.store import MooncakeDistributedStore
from producers import Producer, Versioned, exchange, table

cuda = ctypes.CDLL("libcuda.so.1")
for name, kinds in {
    "cuMemFree_v2": [ctypes.c_uint64],
    "cuMemcpyHtoD_v2": [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t],
    "cuMemcpyDtoH_v2": [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t],
    "cuMemcpyAsync": [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p],
    "cuEventRecord": [ctypes.c_void_p] * 2,
    "cuEventQuery": [ctypes.c_void_p],
    "cuEventDestroy_v2": [ctypes.c_void_p],
    "cuStreamWaitEvent": [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint],
    "cuStreamDestroy_v2": [ctypes.c_void_p],
    "cuMemMap": [ctypes.c_uint64, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_uint64],
    "cuMemUnmap": [ctypes.c_uint64, ctypes.c_size_t],
    "cuMemAddressReserve": [ctypes.c_void_p, *[ctypes.c_size_t] * 2, *[ctypes.c_uint64] * 2],
    "cuMemSetAccess": [ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t],
}.items():
    getattr(cuda, name).argtypes = kinds
MIB = 1 << 20


def done(code):
    assert code == 0, code


def _begin():
    context = ctypes.c_void_p()
    done(cuda.cuInit(0))
    done(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    done(cuda.cuCtxSetCurrent(context))


@contextlib.contextmanager
def event_in(stream):
    """An event behind what a stream has to do now."""
    event = ctypes.c_void_p()
    done(cuda.cuEventCreate(ctypes.byref(event), 2))
    done(cuda.cuEventRecord(event, stream))
    yield event
    done(cuda.cuEventDestroy_v2(event))


class Memory:
    """Memory of the device, as a program's allocator has it; also as an array, in the way of numba."""

    def __init__(self, size):
        _begin()
        at = ctypes.c_uint64()
        done(cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(size)))
        self.at, self.size = at.value, size

    def free(self):
        at, self.at = self.at, 0
        if at:
            done(cuda.cuMemFree_v2(at))

    __del__ = free

    def set(self, value, offset=0):
        done(cuda.cuMemcpyHtoD_v2(self.at + offset, value, len(value)))
        return self.at + offset

    def get(self, size, offset=0):
        room = ctypes.create_string_buffer(size)
        done(cuda.cuMemcpyDtoH_v2(room, self.at + offset, size))
        return room.raw

    def shown(self, shape, **differs):
        told = {"shape": shape, "typestr": "<f4", "data": (self.at, False), "version": 3}
        return type("Array", (), {"__cuda_array_interface__": told | differs})()


@contextlib.contextmanager
def side_by_side(count):
    """So many allocations of 2 MiB one behind the other, and nothing behind them: where they begin."""
    unit, at = 2 * MIB, ctypes.c_uint64()
    properties = (ctypes.c_int * 8)(1, 1, 1, 0)
    access = (ctypes.c_int * 3)(1, 0, 3)
    _begin()
    done(cuda.cuMemAddressReserve(ctypes.byref(at), (count + 1) * unit, 0, 0, 0))
    handles = []
    for index in range(count):
        handle = ctypes.c_uint64()
        done(cuda.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(unit), properties, ctypes.c_uint64(0)))
        done(cuda.cuMemMap(at.value + index * unit, unit, 0, handle, 0))
        done(cuda.cuMemSetAccess(at.value + index * unit, unit, access, 1))
        handles.append(handle)
    yield at.value
    for index, handle in enumerate(handles):
        done(cuda.cuMemUnmap(at.value + index * unit, unit))
        done(cuda.cuMemRelease(handle))


class Tensor(Producer):
    """A tensor of bytes on the device, and what it was asked for. Its stream is the default one, if not another."""

    def __init__(self, memory, size, offset=0, kind=2, current=1, **differs):
        super().__init__(memory.at, size, kind, offset=offset, **differs)
        self.kept, self.current, self.streams = memory, current, []

    def __dlpack__(self, *, stream=None):
        self.streams.append(stream)
        if stream != self.current:
            with event_in(self.current) as event:
                done(cuda.cuStreamWaitEvent(stream, event, 0))
        return super().__dlpack__()


def _working(kind, number, out):
    assert (kind, number) == (2, 0)
    out[0] = Exchanged.working
    return 0


class Exchanged(Tensor, Versioned):
    """One whose type has a table. Its stream is the one in which its library works now, whichever tensor is asked for."""

    working = 0
    __dlpack_c_exchange_api__ = exchange(table(working=_working))

    def __init__(self, *what, current=0, **differs):
        super().__init__(*what, current=current, **differs)
        type(self).working = current

    def delete(self):
        super().delete()
        Exchanged.working = 0


WAYS = pytest.mark.parametrize("tensor_of", [Tensor, Exchanged])


@pytest.fixture(autouse=True)
def nothing_is_kept():
    """All that a test has allocated is given back by its end."""
    _begin()
    gc.collect()
    # A real driver counts nothing.
    count = getattr(cuda, "stub_allocations", lambda: 0)
    before = count()
    yield
    gc.collect()
    assert count() == before


@pytest.fixture(scope="module")
def large(coordinator):
    with lunette.Store.member([coordinator.address], memory_bytes=512 * MIB) as store:
        # What a core has of a device for sums stays.
        memory = Memory(MIB)
        assert store.put("first", Tensor(memory, MIB))
        yield store


@pytest.fixture(scope="module")
def dropin(coordinator):
    store = MooncakeDistributedStore()
    settings = ["127.0.0.1", "P2PHANDSHAKE", 512 * MIB, 16 * MIB, "tcp", "", coordinator.address]
    assert store.setup(*settings) == 0
    memory = Memory(MIB)
    assert store.put_from("first of the drop-in", memory.at, MIB) == 0
    yield store
    assert store.close() == 0


@pytest.fixture(params=["member", "client"])
def store(request, large):
    if request.param == "member":
        yield large
    else:
        with lunette.Store.connect([large.address]) as client:
            yield client


def test_addresses_tell_whose_they_are():
    memory = Memory(5000)
    room = ctypes.create_string_buffer(10)
    of_device = lunette._native.is_of_device
    assert of_device(memory.at) and of_device(memory.at + 4999)
    assert not of_device(ctypes.addressof(room)) and not of_device(0)


@pytest.mark.parametrize("is_registered", [True, False])
def test_bytes_go_from_and_to_device_pointers(dropin, key, is_registered):
    sizes = [1, 4096, 70_000, 300_000, 5 * MIB]
    draw = random.Random(1)
    memory = Memory(sum(sizes))
    if is_registered:
        assert dropin.register_buffer(memory.at, memory.size) == 0
        assert dropin.register_buffer(memory.at + 16, 16) == -600, "it overlaps"
    offsets = [sum(sizes[:index]) for index in range(len(sizes))]
    values = [draw.randbytes(size) for size in sizes]
    pointers = [memory.set(value, offset) for offset, value in zip(offsets, values)]
    keys = [f"{key}/{size}" for size in sizes]
    assert dropin.batch_put_from(keys, pointers, sizes) == [0] * len(sizes)
    for name, value in zip(keys, values):
        assert dropin.get(name) == value
    memory.set(bytes(memory.size))
    got = dropin.batch_get_into([*keys, key + "/none"], [*pointers, memory.at], [*sizes, 1])
    assert got == [*sizes, -704]
    for offset, value in zip(offsets, values):
        assert memory.get(len(value), offset) == value
    assert dropin.put_from(key, pointers[2], 100) == 0 and dropin.get(key) == values[2][:100]
    assert dropin.upsert_from(key, pointers[1], 50) == 0 and dropin.get(key) == values[1][:50]
    assert dropin.get_into(key, pointers[4], sizes[4]) == 50, "more room than needed"
    assert memory.get(60, offsets[4]) == values[1][:50] + values[4][50:60]
    assert dropin.get_into(keys[2], memory.at, 100) == -600, "less"
    if is_registered:
        assert dropin.unregister_buffer(memory.at) == 0
        assert dropin.unregister_buffer(memory.at) == -600


def test_what_is_not_all_of_a_device_is_refused(dropin, key):
    memory, other = Memory(5000), Memory(100)
    other.set(bytes(range(100)))
    gone = Memory(5000).at
    assert dropin.register_buffer(memory.at, 5001) == -600
    assert dropin.register_buffer(memory.at + 4999, 2) == -600
    codes = dropin.batch_put_from([key, key + "/2", key + "/3"], [memory.at, other.at, gone], [5001, 100, 10])
    assert codes == [-600, 0, -600]
    assert dropin.get(key + "/2") == bytes(range(100))
    assert dropin.get_into(key + "/2", memory.at, 5001) == -600
    # Registered, and freed by a program that does not take it back.
    lost = Memory(5000)
    at = lost.at
    assert dropin.register_buffer(at, 5000) == 0
    del lost
    assert dropin.put_from(key, at, 5000) == -600
    assert dropin.unregister_buffer(at) == 0


def test_objects_are_in_pieces_here_and_there(dropin, key):
    value = random.Random(2).randbytes(60_000)
    memory, room = Memory(60_000), ctypes.create_string_buffer(60_000)
    memory.set(value)
    room[:60_000] = value
    here = ctypes.addressof(room)
    # More than one message holds; every third of the host.
    starts = list(range(0, 60_000, 100))
    pieces = [(here if index % 3 == 0 else memory.at) + at for index, at in enumerate(starts)]
    sizes = [[100] * len(starts)] * 2
    keys = [key + "/1", key + "/2"]
    device_only = [memory.at + at for at in starts]
    assert dropin.batch_put_from_multi_buffers(keys, [pieces, device_only], sizes) == [0, 0]
    assert dropin.get(keys[0]) == value and dropin.get(keys[1]) == value
    memory.set(bytes(60_000))
    room[:60_000] = bytes(60_000)
    assert dropin.batch_get_into_multi_buffers([keys[0]], [pieces], sizes[:1]) == [60_000]
    found = memory.get(60_000)
    for index, at in enumerate(starts):
        place = room.raw if index % 3 == 0 else found
        assert place[at : at + 100] == value[at : at + 100]
    metadata = ctypes.create_string_buffer(b"meta", 4)
    memory.set(value)
    put = dropin.put_from_with_metadata(key, memory.at, ctypes.addressof(metadata), 1000, 4)
    assert put == 0 and dropin.get(key) == b"meta" + value[:1000]


def test_ranges_go_to_devices_and_come_from_them(dropin, key):
    value = random.Random(3).randbytes(50_000)
    memory = Memory(50_000)
    memory.set(value)
    assert dropin.batch_put_session_start([key], [50_000]) == [0]
    halves = [[memory.at + 30_000, memory.at]], [[20_000, 30_000]]
    assert dropin.batch_put_from_multi_buffer_ranges([key], *halves, [[30_000, 0]]) == [50_000]
    assert dropin.batch_put_session_end([key]) == [0]
    assert dropin.get(key) == value
    memory.set(bytes(50_000))
    assert dropin.batch_get_session_start([key]) == [0]
    places = [[memory.at, memory.at + 1000]]
    got = dropin.batch_get_into_multi_buffer_ranges([key], places, [[500, 100]], [[49_000, 7]])
    assert got == [600] and dropin.batch_get_session_end([key]) == 0
    assert memory.get(1100) == value[49_000:49_500] + bytes(500) + value[7:107]


def test_objects_longer_than_a_chunk(dropin, large, key):
    size = 70 * MIB + 3
    value = random.Random(4).randbytes(MIB) * 71
    value = value[:size]
    memory = Memory(size + 10)
    memory.set(value)
    assert dropin.put_from(key, memory.at, size) == 0
    assert dropin.get(key) == value
    memory.set(bytes(size + 10))
    assert dropin.get_into(key, memory.at, size + 10) == size
    assert memory.get(size + 10) == value + bytes(10)
    assert large.put(key + "/tensor", Tensor(memory, size)) and large.size(key + "/tensor") == size
    assert dropin.get_into(key, memory.at, size - 1) == -600
    assert dropin.get_into(key + "/none", memory.at, size) == -704
    assert dropin.remove(key) == 0 and large.remove([key + "/tensor"]) == [True]


def test_allocations_side_by_side_are_one_range(dropin, key):
    """As allocators have them whose segments grow."""
    unit, value = 2 * MIB, random.Random(5).randbytes(4 * MIB)
    with side_by_side(2) as at:
        for index in range(2):
            part = value[index * unit : (index + 1) * unit]
            done(cuda.cuMemcpyHtoD_v2(at + index * unit, part, unit))
        for is_registered in (False, True):
            if is_registered:
                assert dropin.register_buffer(at, 2 * unit) == 0
            begin, end = unit - 1000, unit + 3000
            assert dropin.upsert_from(key, at + begin, end - begin) == 0
            assert dropin.get(key) == value[begin:end]
            assert dropin.upsert_from(key, at + begin, 2 * unit) == -600, "nothing is mapped there"
        assert dropin.unregister_buffer(at) == 0


@WAYS
def test_tensors_on_a_device_are_values_and_room(store, key, tensor_of):
    value = random.Random(6).randbytes(100_000)
    memory = Memory(100_000)
    memory.set(value)
    tensor = tensor_of(memory, 90_000, 10)
    assert store.put(key, tensor) and tensor.deleted == 1
    if tensor_of is Exchanged:
        assert (tensor.exported, tensor.streams) == (1, [])
    else:
        # The producer has put what it has still to do before a stream that is for nothing else.
        assert tensor.streams[-1] not in (0, 1, 2)
    assert store.get(key) == value[10:90_010]
    names = [f"{key}/{n}" for n in range(3)]
    parts = [tensor_of(memory, 1000), bytearray(value[:50]), tensor_of(memory, 7, 5)]
    assert store.put_all(zip(names, parts)) == [True] * 3
    memory.set(bytes(100_000))
    rooms = [tensor_of(memory, 1000, 1000), bytearray(50), tensor_of(memory, 8)]
    assert store.get_all_into(zip(names, rooms)) == [1000, 50, 7]
    assert memory.get(3000) == value[5:12] + bytes(993) + value[:1000] + bytes(1000)
    assert rooms[1] == value[:50]
    assert store.get_ranges_into(key, [(5, tensor_of(memory, 10)), (0, bytearray(3))]) == 13
    assert memory.get(10) == value[15:25]
    with store.reserve(key + "/reserved", 20) as room:
        room.write(10, tensor_of(memory, 10))
        room.write(0, bytes(10))
        assert room.commit()
    assert store.get(key + "/reserved") == bytes(10) + value[15:25]
    with store.register(tensor_of(memory, 100_000)):
        assert store.get_into(key, tensor_of(memory, 100_000)) == 90_000
    assert memory.get(90_000) == value[10:90_010]
    assert all(part.deleted == 1 for part in (*parts, *rooms) if not isinstance(part, bytearray))


def test_arrays_are_told_by_the_other_interface(store, key):
    value = random.Random(7).randbytes(24 * 4)
    memory = Memory(24 * 4)
    memory.set(value)
    for stream in (None, 1, 2):
        assert store.upsert(key, memory.shown((2, 3, 4), stream=stream)) and store.get(key) == value
    assert store.upsert(key, memory.shown((2, 3, 4), strides=(48, 16, 4))) and store.get(key) == value
    memory.set(bytes(24 * 4))
    assert store.get_into(key, memory.shown((24,))) == 24 * 4
    assert memory.get(24 * 4) == value
    room = ctypes.create_string_buffer(96)
    for wrong in ({"strides": (48, 4, 16)}, {"data": (ctypes.addressof(room), False)}, {"data": (8, False)}):
        with pytest.raises(ValueError):
            store.put(key, memory.shown((2, 3, 4), **wrong))
    with pytest.raises(ValueError):
        store.get_into(key, memory.shown((24,), data=(memory.at, True)))


def test_tasks_lend_it_too(large, key):
    value = random.Random(8).randbytes(70_000)
    memory = Memory(70_000)
    memory.set(value)

    async def asked():
        store = AsyncStore(large)
        assert await store.put(key, Tensor(memory, 70_000))
        memory.set(bytes(70_000))
        assert await store.get_into(key, Tensor(memory, 70_000)) == 70_000
        # Given up, it is kept until the device has let go.
        for _ in range(5):
            task = asyncio.ensure_future(store.get_into(key, Tensor(memory, 70_000)))
            await asyncio.sleep(0)
            task.cancel()
        assert await store.get(key) == value
        while asyncio_queue(store).under_way():
            await asyncio.sleep(0.001)

    asyncio.run(asked())
    assert memory.get(70_000) == value


def asyncio_queue(_store):
    return lunette.aio._running().queue


@pytest.fixture
def stream():
    stream = ctypes.c_void_p()
    done(cuda.cuStreamCreate(ctypes.byref(stream), 1))
    yield stream.value
    done(cuda.cuStreamDestroy_v2(stream))


@WAYS
@pytest.mark.parametrize("is_default", [True, False])
def test_copies_come_behind_what_streams_have_to_do(store, key, stream, tensor_of, is_default):
    size, last = 4 * MIB, random.Random(9).randbytes(4 * MIB)
    memory = Memory(size)
    filled = [ctypes.create_string_buffer(bytes([n]) * size, size) for n in range(20)]
    filled.append(ctypes.create_string_buffer(last, size))
    current = 1 if is_default else stream
    # A library tells the default stream by its other name.
    told = 0 if is_default and tensor_of is Exchanged else current
    for source in filled:
        done(cuda.cuMemcpyAsync(memory.at, source, size, current))
    assert store.put(key, tensor_of(memory, size, current=told))
    assert store.get(key) == last
    for source in filled:
        done(cuda.cuMemcpyAsync(memory.at, source, size, current))
    assert store.upsert(key + "/short", b"abc")
    assert store.get_into(key + "/short", tensor_of(memory, size, current=told)) == 3
    assert memory.get(size) == b"abc" + last[3:]


@WAYS
def test_copies_do_not_wait_for_what_other_streams_have_to_do(store, key, stream, tensor_of):
    size, count = 4 * MIB, 4000
    memory, others = Memory(size), Memory(size)
    value = random.Random(10).randbytes(size)
    memory.set(value)
    assert store.put(key + "/first", tensor_of(memory, size)), "what is needed once is there"
    # As a model that has the default stream. Of memory that is not pinned a driver copies much before it returns.
    beside = ctypes.c_void_p()
    done(cuda.cuMemHostAlloc(ctypes.byref(beside), ctypes.c_size_t(size), 0))
    for _ in range(count):
        done(cuda.cuMemcpyAsync(others.at, beside, size, 1))
    with event_in(1) as last:
        assert store.put(key, tensor_of(memory, size, current=stream))
        assert cuda.cuEventQuery(last) == 600, "the others are not done yet"
        assert store.get(key) == value
        while cuda.cuEventQuery(last) == 600:
            time.sleep(0.01)
    done(cuda.cuMemFreeHost(beside))


def test_the_stream_is_the_one_that_a_library_tells(stream):
    memory = Memory(100)
    # That of each thread would be another one where it is waited for.
    for told, expected in ((0, 1), (1, 1), (2, 1), (stream, stream)):
        for size in (100, 0):
            assert Given(Exchanged(memory, size, current=told), True).after == [expected]
    host = ctypes.create_string_buffer(100)
    here = type("Here", (), {"at": ctypes.addressof(host)})
    assert Given(Exchanged(here, 100, kind=1), True).after == []


def test_a_library_that_tells_no_stream_is_not_waited_for(store, key):
    memory = Memory(100)
    silent = table(working=lambda _kind, _number, _out: -1)
    tensor = type("Silent", (Exchanged,), {"__dlpack_c_exchange_api__": exchange(silent)})(memory, 100)
    with pytest.raises(SystemError):
        store.put(key, tensor)
    assert (tensor.exported, tensor.asked, tensor.deleted) == (1, 0, 1)


@WAYS
def test_what_cannot_be_used_is_refused(store, key, tensor_of):
    memory = Memory(100)
    host = ctypes.create_string_buffer(100)
    strided = (ctypes.c_int64 * 1)(2)
    here = type("Here", (), {"at": ctypes.addressof(host)})
    for differs in ((memory, 50, 0, 2, strided), (here, 50, 0, 2, None), (memory, 50, 0, 13, None)):
        *what, strides = differs
        for ask in (store.put, store.get_into):
            wrong = tensor_of(*what, strides=strides)
            with pytest.raises(ValueError):
                ask(key, wrong)
            assert wrong.deleted == wrong.asked + wrong.exported
    beyond = tensor_of(memory, 101)
    with pytest.raises(lunette.Invalid):
        store.put(key, beyond)
    gc.collect()
    assert beyond.deleted == 1


def test_what_fails_of_a_device_is_told(store, key):
    """As whatever else fails for good."""
    memory = Memory(100)
    assert store.put(key, Tensor(memory, 100))
    with pytest.raises(ValueError):
        store.get_into(key, Tensor(memory, 99))
    assert math.isclose(store.size(key), 100)
