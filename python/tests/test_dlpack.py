"""Tensors as values and as room."""

import asyncio
import ctypes

import pytest

import lunette
from lunette import _dlpack
from lunette.aio import AsyncStore
from mooncake.store import MooncakeDistributedStore

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


_new = ctypes.pythonapi.PyCapsule_New
_new.argtypes, _new.restype = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p), ctypes.py_object


class Handmade:
    """A tensor of bytes from before versions, and how often its memory was given back."""

    def __init__(self, size, **differs):
        self.room = ctypes.create_string_buffer(size)
        self.shape = (ctypes.c_int64 * 1)(size)
        self.deleted = 0
        self.deleter = _dlpack._DELETER(self.delete)
        self.managed = _dlpack._Managed(deleter=self.deleter)
        tensor = self.managed.tensor
        tensor.data, tensor.dimensions, tensor.shape = ctypes.addressof(self.room), 1, self.shape
        tensor.device_kind, tensor.bits, tensor.lanes = 1, 8, 1
        for name, value in differs.items():
            setattr(tensor, name, value)

    def delete(self, _managed):
        self.deleted += 1

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self):
        return _new(ctypes.addressof(self.managed), b"dltensor", None)


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
