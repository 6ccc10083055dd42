"""Tensors as values and as room."""

import asyncio
import ctypes
import gc

import pytest

import lunette
from lunette._native import Given
from lunette.aio import AsyncStore
from mooncake.store import MooncakeDistributedStore
from producers import Producer, Versioned, exchange, table

numpy = pytest.importorskip("numpy")


class Tensor:
    """An array that is no buffer, as tensors of other libraries are."""

    def __init__(self, array, device=(1, 0)):
        self.array = array
        self.device = device

    def __dlpack__(self, *, stream=None, **how):
        # Of the streams of devices it knows nothing, wherever it says that it is.
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.device


class Here:
    """A tensor of the host's memory, which it has by itself."""

    def __init__(self, size, **differs):
        self.room = ctypes.create_string_buffer(size)
        super().__init__(ctypes.addressof(self.room), size, **differs)


class Handmade(Here, Producer):
    pass


class Method(Here, Versioned):
    pass


class Exchanged(Method):
    """One whose type has a table."""

    __dlpack_c_exchange_api__ = exchange(table())


def test_tensors_are_put_and_got(store, key):
    numbers = numpy.arange(3 * 5 * 7, dtype="float16").reshape(3, 5, 7)
    assert store.put(key, Tensor(numbers))
    assert store.get(key) == numbers.tobytes()
    room = numpy.zeros((3, 5, 7), dtype="float16")
    assert store.get_into(key, Tensor(room)) == numbers.nbytes
    assert (room == numbers).all()
    assert store.put_all([(f"{key}/{n}", Tensor(numbers[n])) for n in range(3)]) == [True] * 3
    rooms = numpy.zeros_like(numbers)
    got = store.get_all_into((f"{key}/{n}", Tensor(rooms[n])) for n in range(3))
    assert got == [numbers[0].nbytes] * 3 and (rooms == numbers).all()
    # A part that is in one piece, and begins in the middle.
    assert store.upsert(key, Tensor(numbers[1:, :, :]))
    assert store.get(key) == numbers[1:].tobytes()


def test_tensors_are_lent_by_tasks_too(member, key):
    async def asked():
        numbers = numpy.arange(1000, dtype="int64")
        room = numpy.zeros_like(numbers)
        store = AsyncStore(member)
        assert await store.put(key, Tensor(numbers))
        assert await store.get_into(key, Tensor(room)) == numbers.nbytes
        assert (room == numbers).all()

    asyncio.run(asked())


def test_tensors_are_values_for_mooncakes_face(coordinator, key):
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "", 32 << 20, 0, "tcp", "", coordinator.address) == 0
    numbers = numpy.arange(100, dtype="int32")
    assert store.put(key, Tensor(numbers)) == 0
    assert store.get(key) == numbers.tobytes()
    store.close()


def test_what_is_not_in_one_piece_or_not_here_is_refused(store, key):
    numbers = numpy.arange(100).reshape(10, 10)
    read_only = numbers.copy()
    read_only.flags.writeable = False
    for wrong in (Tensor(numbers[:, :5]), Tensor(numbers.T), Tensor(numbers[::2]), Tensor(numbers, (2, 0)), Tensor(numbers, (10, 0))):
        with pytest.raises(ValueError):
            store.put(key, wrong)
        with pytest.raises(ValueError):
            store.get_into(key, wrong)
    assert store.put(key, Tensor(read_only))
    with pytest.raises(ValueError):
        store.get_into(key, Tensor(read_only))
    with pytest.raises(ValueError):
        store.get_into(key, Tensor(numbers[:1]))


def test_memory_is_given_back_once(store, key):
    tensor = Handmade(5000)
    tensor.room[:3] = b"abc"
    assert store.put(key, tensor)
    assert tensor.deleted == 1
    assert store.get(key) == b"abc" + bytes(4997)
    room = Handmade(6000)
    assert store.get_into(key, room) == 5000
    assert room.deleted == 1 and room.room.raw[:3] == b"abc"
    # What is not refused before it was taken is given back too.
    for differs in ({"dimensions": -1}, {"dimensions": 65}, {"strides": (ctypes.c_int64 * 1)(2)}):
        wrong = Handmade(100, **differs)
        with pytest.raises(ValueError):
            store.put(key + "/wrong", wrong)
        assert wrong.deleted == 1
    # Eight elements of four bits, from the third byte on.
    packed = Handmade(8, bits=4, offset=2)
    packed.room[2:6] = b"\x12\x34\x56\x78"
    assert store.upsert(key, packed) and store.get(key) == b"\x12\x34\x56\x78"


def test_a_capsule_is_used_once(store, key):
    class Same(Handmade):
        def __dlpack__(self):
            if not hasattr(self, "capsule"):
                self.capsule = super().__dlpack__()
            return self.capsule

    tensor = Same(10)
    assert store.put(key, tensor)
    with pytest.raises(TypeError):
        store.put(key + "/again", tensor)
    assert tensor.deleted == 1
    with pytest.raises(TypeError):
        lunette._memory.readable(type("None", (Handmade,), {"__dlpack__": lambda self: None})(1))


def test_a_table_is_the_way_where_a_type_has_one(store, key):
    value, room = Exchanged(5000), Exchanged(6000)
    value.room[:3] = b"abc"
    assert store.put(key, value) and store.get(key) == value.room.raw
    assert store.get_into(key, room) == 5000 and room.room.raw[:5000] == value.room.raw
    parts = [Exchanged(10), bytearray(b"abc"), Exchanged(0, shape=None, dimensions=0)]
    names = [f"{key}/{n}" for n in range(3)]
    assert store.put_all(zip(names, parts)) == [True] * 3
    rooms = [Exchanged(10), bytearray(3), Exchanged(1)]
    assert store.get_all_into(zip(names, rooms)) == [10, 3, 1]
    for tensor in (value, room, parts[0], parts[2], rooms[0], rooms[2]):
        assert (tensor.exported, tensor.asked, tensor.deleted) == (1, 0, 1)
    # Nothing else is looked for.
    lies = lunette._tensors.lying(Exchanged(7), is_written=True)
    assert (lies.size, lies.dtype, lies.shape, lies.is_plain) == (7, "I8", (7,), False)


def test_tasks_take_tensors_by_a_table(member, key):
    async def asked():
        value, room = Exchanged(5000), Exchanged(5000)
        value.room[:3] = b"abc"
        store = AsyncStore(member)
        assert await store.put(key, value) and await store.get_into(key, room) == 5000
        assert room.room.raw == value.room.raw
        return value, room

    assert [(tensor.exported, tensor.deleted) for tensor in asyncio.run(asked())] == [(1, 1)] * 2


def test_a_type_with_a_table_is_asked_for_no_buffer(monkeypatch):
    class Buffers:
        def __new__(cls, value):
            raise AssertionError("a buffer was asked for")

    monkeypatch.setattr(lunette._memory, "memoryview", Buffers, raising=False)
    assert lunette._memory.is_tensor(Exchanged(1))
    with pytest.raises(AssertionError):
        lunette._memory.is_tensor(Method(1))


@pytest.mark.parametrize(
    "differs",
    [
        {"strides": (ctypes.c_int64 * 1)(2)},
        {"dimensions": -1},
        {"dimensions": 65},
        {"shape": None},
        {"shape": (ctypes.c_int64 * 1)(-5)},
        {"shape": (ctypes.c_int64 * 1)(1 << 62)},
        {"offset": (1 << 64) - 1},
        {"device_kind": 2},
        {"device_kind": 13},
        {"major": 2},
    ],
)
def test_what_is_refused_is_given_back_once(store, key, differs):
    for ask in (store.put, store.get_into):
        wrong = Exchanged(100, **differs)
        with pytest.raises(ValueError):
            ask(key, wrong)
        assert (wrong.exported, wrong.asked, wrong.deleted) == (1, 0, 1)


def test_what_is_of_another_version_stays_its_capsules():
    wrong = Method(100, major=2)
    with pytest.raises(ValueError, match="DLPack 2 is not known"):
        Given(wrong)
    assert (wrong.asked, wrong.deleted) == (1, 0)


def test_what_is_read_only_is_a_value_and_no_room(store, key):
    for kind in (Method, Exchanged):
        assert store.upsert(key, kind(10, flags=1))
        room = kind(10, flags=1)
        with pytest.raises(ValueError, match="read-only"):
            store.get_into(key, room)
        assert room.deleted == 1


def test_memory_is_given_back_once_where_a_call_fails(store, key):
    assert store.put(key, bytes(100))
    for kind in (Handmade, Exchanged):
        room = kind(99)
        with pytest.raises(ValueError):
            store.get_into(key, room)
        gc.collect()
        assert room.deleted == 1


def test_what_a_deleter_runs_is_not_told_what_failed():
    """Where memory is let go of while an exception is on its way."""
    told = []

    class Asking(Exchanged):
        def delete(self):
            super().delete()
            told.append(bool(ctypes.pythonapi.PyErr_Occurred()))

    tensor = Asking(10)
    with pytest.raises(ZeroDivisionError):
        # What is not in a variable goes before anybody has caught it.
        [Given(tensor), 1 // len(told)]
    assert tensor.deleted == 1 and told == [False]


def test_what_learns_and_what_is_complex_goes_by_the_method(store, key):
    class Refusing(Exchanged):
        __dlpack_c_exchange_api__ = Exchanged.__dlpack_c_exchange_api__
        requires_grad = True

        def __dlpack__(self, **_how):
            raise BufferError("detach it")

    learns = Refusing(10)
    with pytest.raises(BufferError, match="detach it"):
        store.put(key, learns)
    assert (learns.exported, learns.deleted) == (0, 0)
    learns.requires_grad = False
    assert store.put(key, learns) and (learns.exported, learns.deleted) == (1, 1)
    conjugate = Refusing(80, code=5, bits=64)
    conjugate.requires_grad = False
    with pytest.raises(BufferError, match="detach it"):
        store.put(key, conjugate)
    assert (conjugate.exported, conjugate.deleted) == (1, 1)
    # One that may be given away is, in two descriptions.
    numbers = Exchanged(10, code=5, bits=64)
    assert Given(numbers).element == (5, 64, 1)
    assert (numbers.exported, numbers.asked, numbers.deleted) == (1, 1, 2)


def test_what_a_producer_raises_is_passed_on(store, key):
    # A function that C can call, of an object, and that fails as the object has it.
    size = ctypes.cast(ctypes.pythonapi.PyObject_Size, ctypes.c_void_p).value

    class Raising(Exchanged):
        __dlpack_c_exchange_api__ = exchange(table(export=size))

        def __len__(self):
            raise BufferError("it is elsewhere")

    for ask in (store.put, store.get_into):
        tensor = Raising(10)
        with pytest.raises(BufferError, match="it is elsewhere"):
            ask(key, tensor)
        assert (tensor.asked, tensor.deleted) == (0, 0)
    for export, error in ((lambda _object, _out: 0, TypeError), (lambda _object, _out: -1, SystemError)):
        silent = type("Silent", (Method,), {"__dlpack_c_exchange_api__": exchange(table(export=export))})
        with pytest.raises(error):
            store.put(key, silent(10))


def test_tables_that_are_not_known_are_left_alone():
    newer = lambda **how: table(export=0, working=0, major=2, **how)
    ring = newer()
    ring.previous = ctypes.addressof(ring)
    unknown = {
        "of another name": exchange(table(), b"dlpack_exchange"),
        "of another version": exchange(newer()),
        "of none but other versions": exchange(ring),
        "without functions": exchange(table(export=0)),
        "that tells no stream": exchange(table(working=0)),
        "no capsule": 5,
        "none": None,
    }
    for what, told in unknown.items():
        tensor = type("Newer", (Method,), {"__dlpack_c_exchange_api__": told})(10)
        assert Given(tensor).size == 10
        assert (tensor.exported, tensor.asked, tensor.deleted) == (0, 1, 1), what
    both = exchange(newer(previous=newer(previous=table())))
    tensor = type("Both", (Method,), {"__dlpack_c_exchange_api__": both})(10)
    assert Given(tensor).size == 10
    assert (tensor.exported, tensor.asked, tensor.deleted) == (1, 0, 1)


def test_tables_are_inherited_but_beside_a_method_of_its_own():
    class Same(Exchanged):
        requires_grad = False

    class Own(Exchanged):
        def __dlpack__(self):
            return super().__dlpack__()

    class Again(Own):
        __dlpack_c_exchange_api__ = Exchanged.__dlpack_c_exchange_api__

    class Without(Same):
        __dlpack_c_exchange_api__ = None

    for kind, exported in ((Same, 1), (Own, 0), (Again, 1), (Without, 0)):
        tensor = kind(10)
        assert Given(tensor).size == 10
        assert (tensor.exported, tensor.asked, tensor.deleted) == (exported, 1 - exported, 1), kind
    # It is the type's, whatever the object has.
    tensor = Method(10)
    tensor.__dlpack_c_exchange_api__ = Exchanged.__dlpack_c_exchange_api__
    assert Given(tensor).size == 10 and (tensor.exported, tensor.asked) == (0, 1)
