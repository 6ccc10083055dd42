"""Tensors made by hand: DLPack's structs, and types that have its table of functions.

Source: dlpack.h of DLPack 1.3.
"""

import ctypes
from weakref import WeakValueDictionary

DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
EXPORT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
WORKING = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
# What begins with a name keeps no copy of it, and what has a table has it for as long as the process lives.
TABLE = b"dlpack_exchange_api"
_kept = []


class Described(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_kind", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    NAME = b"dltensor"
    _fields_ = [("tensor", Described), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class ManagedVersioned(ctypes.Structure):
    NAME = b"dltensor_versioned"
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", Described),
    ]


class Table(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("export", ctypes.c_void_p),
        ("imported", ctypes.c_void_p),
        ("describe", ctypes.c_void_p),
        ("working", ctypes.c_void_p),
    ]


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
new_capsule.restype = ctypes.py_object


# By the addresses of what is described: those that there are, and, as often as it is lent, those that stay for that.
_made = WeakValueDictionary()
_lent = {}


@DELETER
def _delete(address):
    producer = _made[address]
    producer.delete()
    _lent[address].pop()


class Producer:
    """A tensor of bytes at an address, from before versions, and how often its memory was given back."""

    STRUCT = Managed

    def __init__(self, at, size, kind=1, **differs):
        self.kind, self.deleted, self.asked, self.exported = kind, 0, 0, 0
        self.shape = (ctypes.c_int64 * 1)(size)
        self.managed = self.STRUCT(deleter=_delete)
        _made[ctypes.addressof(self.managed)] = self
        tensor = self.managed.tensor
        tensor.data, tensor.dimensions, tensor.shape = at, 1, self.shape
        tensor.device_kind, tensor.bits, tensor.lanes = kind, 8, 1
        for name, value in differs.items():
            setattr(self.managed if hasattr(self.managed, name) else tensor, name, value)

    def delete(self):
        self.deleted += 1

    def __dlpack_device__(self):
        return (self.kind, 0)

    def __dlpack__(self):
        self.asked += 1
        return new_capsule(self._lend(), self.STRUCT.NAME, None)

    def export(self):
        self.exported += 1
        return self._lend()

    def _lend(self):
        address = ctypes.addressof(self.managed)
        _lent.setdefault(address, []).append(self)
        return address


class Versioned(Producer):
    """One of version 1."""

    STRUCT = ManagedVersioned

    def __init__(self, *what, **differs):
        super().__init__(*what, **{"major": 1, **differs})


def _exported(address, out):
    out[0] = ctypes.cast(address, ctypes.py_object).value.export()
    return 0


def _at_work(_kind, _number, out):
    out[0] = None
    return 0


def table(export=_exported, working=_at_work, major=1, previous=None):
    """A table of the functions, or of those of C whose addresses are given."""
    made = [kind(it) if callable(it) else it for kind, it in ((EXPORT, export), (WORKING, working))]
    at = [it if isinstance(it, int) else ctypes.cast(it, ctypes.c_void_p) for it in made]
    previous = ctypes.addressof(previous) if previous else None
    told = Table(major=major, minor=3, previous=previous, export=at[0], working=at[1])
    _kept.append((told, made))
    return told


def exchange(told, name=TABLE):
    """What a type has of that table."""
    return new_capsule(ctypes.addressof(told), name, None)
