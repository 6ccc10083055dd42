"""Objects from peer to peer: checkpoints and weights from one program to many, in about the time of one.

>>> import array, lunette
>>> with lunette.Coordinator() as coordinator:
...     with ObjectStore([coordinator.address]) as trainer, ObjectStore([coordinator.address]) as rank:
...         weights = {"w": array.array("f", [1, 2, 3, 4]), "b": array.array("f", [5])}
...         with trainer.register("model/step-1", weights):
...             with rank.receive("model/step-1") as held:
...                 held["w"].tolist(), held["b"].tolist()
([1.0, 2.0, 3.0, 4.0], [5.0])

Who registers an object lends its memory, and who receives it serves each chunk on as soon as it is here and verified: so
receivers feed each other. Memory is what has the buffer protocol, or a tensor that tells its memory by DLPack or CUDA's array
interface, in one piece: in the host's memory, or in that of CUDA devices, where all that is lent for one object is. That of an object is kept, and read by others, until it is closed: nothing is to change it
before. `lunette.aio.AsyncObjectStore` asks the same for tasks of an event loop.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from . import Path, _Closing, _open
from ._native import (
    Invalid,
    NameTaken,
    NativeCluster,
    NativeHeld,
    NativeObjects,
    NotFound,
    safetensors_head_bytes,
    safetensors_tensors,
)
from ._memory import streams
from ._tensors import Lying, Shape, bytes_of, device_view, fresh, lying, on_device, shaped

if TYPE_CHECKING:
    from ._memory import Memory

__all__ = [
    "CHUNK_BYTES",
    "Found",
    "Held",
    "NameTaken",
    "NotFound",
    "ObjectStore",
    "Part",
    "Progress",
    "Source",
    "Tensor",
    "safetensors",
    "shard",
]

# How long chunks are, unless it is told otherwise.
CHUNK_BYTES = 8 << 20
# How long one waits who sets no limit.
_FOREVER_S = 365.0 * 24 * 3600
# Where tensors begin that share fresh memory.
_ALIGNED_BYTES = 64

# A tensor, or a part of one, as the store's core is told of it.
_Told = tuple[str, str, Sequence[int], Sequence[int], Sequence[int], int, int]


class Tensor(NamedTuple):
    """A tensor of an object, or one of its parts: then others of the same name have the rest."""

    name: str
    dtype: str
    """What its elements are, as safetensors names it: `F32`, `BF16`, `F8_E4M3`, ..."""
    shape: Shape
    """How many elements all of it has in each dimension. They lie row by row, without gaps."""
    buffer: int = 0
    """In which of the object's buffers it lies."""
    offset: int = 0
    """Where in it, in bytes."""
    start: Shape | None = None
    """The first element of the part that lies here; `None`: all of the tensor does."""
    size: Shape | None = None
    """How many elements the part has in each dimension."""

    def _told(self) -> _Told:
        start = (0,) * len(self.shape) if self.start is None else self.start
        size = self.shape if self.size is None else self.size
        return self.name, self.dtype, self.shape, start, size, self.buffer, self.offset


def _tensor(told: _Told) -> Tensor:
    name, dtype, shape, start, size, buffer, offset = told
    if not any(start) and list(size) == list(shape):
        return Tensor(name, dtype, tuple(shape), buffer, offset)
    return Tensor(name, dtype, tuple(shape), buffer, offset, tuple(start), tuple(size))


@dataclass(frozen=True)
class Part:
    """A part of a tensor and its memory, where memory alone does not say it."""

    memory: Memory | None = None
    """`None`, where it is received: fresh memory."""
    start: Shape | None = None
    """Its first element; `None`: that of the tensor."""
    size: Shape | None = None
    """How many elements it has in each dimension; `None`: as the memory tells, or all of the tensor."""
    shape: Shape | None = None
    """How many elements all of the tensor has, where it is registered; `None`: as the part."""
    dtype: str | None = None
    """What its elements are; `None`: as the memory tells."""


def shard(tensor: Tensor, rank: int, ranks: int, dimension: int = 0, memory: Memory | None = None) -> Part:
    """The part of a rank of so many along a dimension, as torch's `chunk` cuts: all but the last have as many elements,
    rounded up, and the last ones may have none. What has no such dimension is whole."""
    if not 0 <= rank < ranks:
        raise ValueError(f"{rank} is no rank of {ranks}")
    start, size = [0] * len(tensor.shape), list(tensor.shape)
    if dimension < len(tensor.shape):
        each = -(-tensor.shape[dimension] // ranks)
        start[dimension] = min(each * rank, tensor.shape[dimension])
        size[dimension] = min(each, tensor.shape[dimension] - start[dimension])
    return Part(memory, tuple(start), tuple(size))


class Source(NamedTuple):
    """What is registered: buffers, and the tensors in them."""

    buffers: list[Memory]
    tensors: list[Tensor]


def safetensors(*paths: Path) -> Source:
    """Safetensors files, each a buffer of an object, with their tensors. They are mapped, not read: nothing is to write to
    them while they are served.

    `Invalid` if one is no such file.
    """
    buffers: list[Memory] = []
    tensors: list[Tensor] = []
    for path in paths:
        tensors.extend(_file_tensors(path, len(buffers)))
        with open(path, "rb") as file:
            # Private to this process, and never written to.
            buffers.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    return Source(buffers, tensors)


def _file_tensors(path: Path, buffer: int) -> list[Tensor]:
    """The tensors of a safetensors file that is this buffer of an object."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < 8:
            raise Invalid(f"no safetensors file: {path} has {size} bytes")
        prefix = file.read(8)
        head = prefix + file.read(safetensors_head_bytes(prefix, size) - 8)
    return [_tensor(each) for each in safetensors_tensors(head, size, buffer)]


def _files_tensors(paths: Sequence[Path], tensors: Iterable[Tensor] | None) -> list[_Told]:
    """What is told of files: of no tensors, those that safetensors files have, as their names say that they are such."""
    if tensors is None:
        named = [(at, path) for at, path in enumerate(paths) if os.fspath(path).endswith(".safetensors")]
        tensors = [tensor for at, path in named for tensor in _file_tensors(path, at)]
    return [tensor._told() for tensor in tensors]


class Found(NamedTuple):
    """An object that somebody holds."""

    name: str
    version: int
    """Which registration has the name now. The bytes of one never change."""
    buffers: list[int]
    """How long its buffers are, in bytes."""
    chunk_bytes: int
    whole: int
    """Who has all of it."""
    holders: int
    """Who has it or some of it."""

    @property
    def size(self) -> int:
        """How long it is in all, in bytes."""
        return sum(self.buffers)


class Progress(NamedTuple):
    """How far an object has come."""

    held_bytes: int
    """Bytes that are here, and verified."""
    len_bytes: int
    """Of how many: of parts of tensors those of the chunks that they are in."""
    holders: int
    """Who is known and answers."""


# What is registered: tensors by their names, buffers, or both.
Registered = Union[Mapping[str, Union["Memory", Part]], Source, Iterable["Memory"]]
# Where tensors go, by their names.
Wanted = Mapping[str, Union["Memory", Part, None]]


class _Lent(NamedTuple):
    """Memory of an object on its way to the store's core."""

    ranges: list[tuple[int, int]]
    """Addresses and lengths."""
    kept: list[object]
    told: list[_Told]
    buffers: list[Memory]
    named: dict[str, Memory | tuple[memoryview, str, Shape]]
    """Tensors: their memory as it was given, or bytes of a buffer, and what they are."""

    @property
    def memory(self) -> tuple[list[tuple[int, int]], list[int]]:
        """Addresses and lengths, and streams of a device that have still to do with them."""
        return self.ranges, streams((*range, kept) for range, kept in zip(self.ranges, self.kept))

    def lend(self, memory: Memory, lies: Lying) -> int:
        """As which buffer it is lent."""
        self.ranges.append((lies.address, lies.size))
        self.kept.append(lies.kept)
        self.buffers.append(memory)
        return len(self.buffers) - 1

    def lend_named(self, name: str, part: Part) -> None:
        """A tensor that is a buffer of its own."""
        if part.memory is None:
            raise ValueError(f"{name!r} has no memory")
        lies = lying(part.memory, is_written=False)
        dtype = part.dtype or lies.dtype
        if dtype is None:
            raise ValueError(f"{name!r} does not tell what it is: give a Part with its dtype and size")
        size = lies.shape if part.size is None else part.size
        if bytes_of(dtype, size) != lies.size:
            raise ValueError(f"{name!r}: {tuple(size)} of {dtype} are not {lies.size} bytes")
        shape = size if part.shape is None else part.shape
        start = (0,) * len(shape) if part.start is None else part.start
        buffer = self.lend(part.memory, lies)
        self.told.append((name, dtype, shape, start, size, buffer, 0))
        self.named[name] = part.memory

    def name(self, tensors: Iterable[Tensor]) -> None:
        """Names those that lie in buffers, in one piece."""
        for tensor in tensors:
            size = tensor.shape if tensor.size is None else tensor.size
            if tensor.name in self.named or tensor.buffer >= len(self.buffers):
                continue
            if on_device(self.kept[tensor.buffer]):
                address = self.ranges[tensor.buffer][0] + tensor.offset
                keeps = self.buffers[tensor.buffer]
                self.named[tensor.name] = device_view(address, tensor.dtype, size, keeps)
                continue
            try:
                whole = memoryview(self.buffers[tensor.buffer]).cast("B")  # type: ignore[arg-type]
            except (TypeError, ValueError, BufferError):
                continue  # The library of that memory has its own ways to name it.
            view = whole[tensor.offset : tensor.offset + bytes_of(tensor.dtype, size)]
            self.named[tensor.name] = (view, tensor.dtype, tuple(size))


def _nothing() -> _Lent:
    return _Lent([], [], [], [], {})


def _lent(source: Registered, tensors: Iterable[Tensor]) -> _Lent:
    """What `register` is given."""
    lent, tensors = _nothing(), list(tensors)
    if isinstance(source, Mapping):
        for name, memory in source.items():
            lent.lend_named(name, memory if isinstance(memory, Part) else Part(memory))
    else:
        if isinstance(source, Source):
            tensors = [*source.tensors, *tensors]
        buffers = source.buffers if isinstance(source, Source) else source
        for memory in buffers:
            lent.lend(memory, lying(memory, is_written=False))
    lent.told.extend(tensor._told() for tensor in tensors)
    lent.name(tensors)
    return lent


def _room(into: Iterable[Memory]) -> _Lent:
    """What `receive` is given."""
    lent = _nothing()
    for memory in into:
        lent.lend(memory, lying(memory, is_written=True))
    return lent


def _wanted(tensors: Iterable[Tensor], into: Wanted) -> _Lent:
    """What `receive_tensors` is given, of an object with these tensors."""
    known: dict[str, Tensor] = {}
    for tensor in tensors:
        known.setdefault(tensor.name, tensor)
    lent, lacking = _nothing(), []
    for name, memory in into.items():
        if name not in known:
            raise Invalid(f"the object has no tensor {name!r}")
        tensor, part = known[name], memory if isinstance(memory, Part) else Part(memory)
        start = (0,) * len(tensor.shape) if part.start is None else part.start
        lies = None if part.memory is None else lying(part.memory, is_written=True)
        dtype, size = _form(tensor, part, lies)
        if part.memory is None or lies is None:
            lacking.append((name, dtype, tensor.shape, start, size))
            continue
        if bytes_of(dtype, size) > lies.size:
            raise ValueError(f"{name!r}: {size} of {dtype} do not fit into {lies.size} bytes")
        lent.told.append((name, dtype, tensor.shape, start, size, lent.lend(part.memory, lies), 0))
        lent.named[name] = part.memory
    _make_room(lent, lacking)
    return lent


def _form(tensor: Tensor, part: Part, lies: Lying | None) -> tuple[str, Shape]:
    """Type and shape of what is wanted: as it is said, as its memory tells, or as the tensor has."""
    dtype, size = part.dtype, part.size
    if lies is not None and not lies.is_plain and dtype is None:
        dtype = lies.dtype
        size = lies.shape if size is None else size
    if size is None and part.start is not None:
        raise ValueError(f"{tensor.name!r}: give the part's size too")
    return dtype or tensor.dtype, tensor.shape if size is None else tuple(size)


def _make_room(lent: _Lent, lacking: list[tuple[str, str, Shape, Shape, Shape]]) -> None:
    """Puts parts one behind the other into one fresh buffer."""
    if not lacking:
        return
    offsets, end = [], 0
    for _, dtype, _, _, size in lacking:
        offsets.append(end)
        end += -(-bytes_of(dtype, size) // _ALIGNED_BYTES) * _ALIGNED_BYTES
    room = fresh(end)
    buffer = lent.lend(room, lying(room, is_written=True))
    for (name, dtype, shape, start, size), offset in zip(lacking, offsets):
        lent.told.append((name, dtype, shape, start, size, buffer, offset))
        view = room[offset : offset + bytes_of(dtype, size)]
        lent.named[name] = (view, dtype, size)


class Held(_Closing):
    """An object that is held here, whole or in part, and served: until it is closed, or its store is."""

    def __init__(
        self, store: ObjectStore, native: NativeHeld, lent: _Lent, paths: Sequence[Path] = ()
    ) -> None:
        self._store, self._native, self._lent = store, native, lent
        self.paths: list[Path] = list(paths)
        """The files that its buffers are, if they are such: then it has no memory here."""
        self._is_open = True
        self.name: str = native.name
        self.version: int = native.version
        """Which registration it is."""
        self.tensors: list[Tensor] = [_tensor(told) for told in native.tensors()]
        """The tensors of the object, whether they are wanted here or not."""
        if not lent.named:
            lent.name(self.tensors)
        store._held[id(self)] = self

    @property
    def buffers(self) -> list[Memory]:
        """Its memory here."""
        return list(self._lent.buffers)

    def __getitem__(self, name: str) -> Any:
        """A tensor, or its part that is here: as it was given; of a buffer or of fresh memory a view, in its shape if buffers
        have its type of elements (as `numpy.asarray` takes it), and of bytes if not; on a device an array of CUDA's interface (as
        `torch.as_tensor` takes it). `KeyError` if it is not here in one
        piece."""
        named = self._lent.named[name]
        return shaped(*named) if isinstance(named, tuple) else named

    def __contains__(self, name: object) -> bool:
        return name in self._lent.named

    def progress(self) -> Progress:
        """How far it has come. `Closed` once it is closed."""
        return Progress(*self._native.progress(None))

    def wait(self, timeout_s: float | None = None) -> None:
        """Waits until all of it that is wanted is here. `TimedOut` if that takes longer: what came stays, and more comes.

        `NoRoom` or `StoreError` if a chunk is not written to its file meanwhile: what came stays, and that one is fetched and
        tried again, so one may wait on.
        """
        self._native.wait(None, _FOREVER_S if timeout_s is None else timeout_s)

    def sync(self) -> None:
        """Waits until what has come into files is on the disk. `StoreError` if it is not; `Closed` once it is closed."""
        self._native.sync(None)

    def close(self) -> None:
        """Serves it no more, and waits until nobody reads or writes its memory. Again, it does nothing.

        Readers to whom chunks are granted are waited for, ten seconds at most. Ctrl-C ends the waiting, and not what is
        waited for: until `close` has returned, its memory may still be written to.
        """
        if self._is_open:
            self._native.close(None)
            self._ended()

    def _ended(self) -> None:
        self._is_open = False
        self._store._held.pop(id(self), None)
        # Nobody has the memory any more.
        self._lent.kept.clear()


class ObjectStore(_Closing):
    """Holds objects, and finds those of others of its cluster. Asked from any thread.

    The catalogue of the cluster is at its coordinators: a `lunette.Coordinator`, `lunette cluster coordinator`, or etcd. Beyond
    loopback a store listens only with a secret, which others prove to know, or if `LUNETTE_INSECURE=1`.
    """

    def __init__(
        self,
        coordinators: Iterable[str],
        *,
        cluster: str = "lunette",
        listen: str = "127.0.0.1:0",
        advertise: str | None = None,
        rack: str | None = None,
        is_etcd: bool = False,
        secret_file: Path | None = None,
        lease_ttl_s: int = 10,
    ) -> None:
        """Others find it at `advertise`, or where it listens, for `lease_ttl_s` after it was last heard of. What another
        `rack` has comes from there about once. `Unavailable` if the coordinators do not answer."""
        of = NativeCluster(cluster, list(coordinators), is_etcd, secret_file, 5.0, [])
        self._native = NativeObjects(of, listen, advertise, rack, lease_ttl_s)
        self._held: dict[int, Held] = {}
        _open.add(self)

    @property
    def address(self) -> str:
        """Where it listens, as `ADDRESS:PORT`."""
        return self._native.address

    @property
    def held(self) -> list[Held]:
        """What it holds."""
        return list(self._held.values())

    def register(
        self,
        name: str,
        source: Registered,
        *,
        tensors: Iterable[Tensor] = (),
        chunk_bytes: int = CHUNK_BYTES,
        replace: bool = False,
    ) -> Held:
        """Registers an object, and serves it from then on: tensors by their names, or buffers, in which `tensors` lie.

        Its checksums are computed first. `NameTaken` unless it may `replace` what has the name: whoever holds that goes on
        with it. `Invalid` if the buffers make no object, or the tensors are none of it.
        """
        lent = _lent(source, tensors)
        native = self._native.register(
            None, name, lent.memory, lent.kept, lent.told, chunk_bytes, replace
        )
        return Held(self, native, lent)

    def register_files(
        self,
        name: str,
        paths: Iterable[Path],
        *,
        tensors: Iterable[Tensor] | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        replace: bool = False,
    ) -> Held:
        """Registers an object of files, each a buffer of it, and serves it from then on without having them in memory.

        They are read once for its checksums, and then chunk by chunk as others ask: nothing is to write to them until it is
        closed. If something does, it is served no more, and `progress` and `wait` raise `Corrupt`; receivers never take other
        bytes. `tensors` are those of the paths that end in `.safetensors`, unless they are given. Else as `register`.
        """
        paths = list(paths)
        told = _files_tensors(paths, tensors)
        native = self._native.register_files(None, name, paths, told, chunk_bytes, replace)
        return Held(self, native, _nothing(), paths)

    def find(self, name: str) -> Found | None:
        """An object that somebody holds, or `None`."""
        found = self._native.find(None, name)
        return None if found is None else Found(*found)

    def objects(self, beginning: str = "") -> list[Found]:
        """The objects whose names begin so, in the order of their names."""
        return [Found(*found) for found in self._native.list(None, beginning)]

    def layout(self, name: str) -> list[Tensor] | None:
        """The tensors of an object, or `None` if nobody holds it. None, if whoever registered it told of none."""
        told = self._native.layout(None, name)
        return None if told is None else [_tensor(each) for each in told[1]]

    def begin_receive(
        self,
        name: str,
        into: Iterable[Memory] | None = None,
        *,
        version: int | None = None,
        resume: bool = False,
    ) -> Held:
        """As `receive`, without waiting for it."""
        if into is None:
            found = _found(self.find(name), name, version)
            into, version = [fresh(size) for size in found.buffers], found.version
        lent = _room(into)
        native = self._native.receive(None, name, lent.memory, lent.kept, version, resume)
        return Held(self, native, lent)

    def receive(
        self,
        name: str,
        into: Iterable[Memory] | None = None,
        *,
        version: int | None = None,
        resume: bool = False,
        timeout_s: float | None = None,
    ) -> Held:
        """Receives an object into buffers as long as its own, or into fresh memory, and serves what has come.

        With `resume` chunks that the buffers have already are verified, and not fetched. `NotFound` if nobody holds it, or
        not this `version`; `Invalid` if the buffers are not as its own; `TimedOut` if it takes longer: what came is in the
        buffers then, and nothing is held.
        """
        return _whole(self.begin_receive(name, into, version=version, resume=resume), timeout_s)

    def begin_receive_files(
        self,
        name: str,
        paths: Iterable[Path],
        *,
        version: int | None = None,
        resume: bool = False,
    ) -> Held:
        """As `receive_files`, without waiting for it."""
        paths = list(paths)
        native = self._native.receive_files(None, name, paths, version, resume)
        return Held(self, native, _nothing(), paths)

    def receive_files(
        self,
        name: str,
        paths: Iterable[Path],
        *,
        version: int | None = None,
        resume: bool = False,
        timeout_s: float | None = None,
    ) -> Held:
        """Receives an object into files, one for each of its buffers, and serves what has come from there.

        A chunk is in memory only while it comes and is verified. Files that are not there are made, and what is behind the
        buffer in those that are is taken away; with `resume` chunks that they have already are verified, and not fetched.
        What has come may be lost with the host until `Held.sync`. `NotFound` and `TimedOut` as `receive`, what came is in the
        files then; `NoRoom` if the disk is full, at once where that can be told; `Invalid` if there are not as many files as
        buffers, or one cannot be opened: files that were made for it are gone then. `StoreError` if a chunk is not written.
        """
        begun = self.begin_receive_files(name, paths, version=version, resume=resume)
        return _whole(begun, timeout_s)

    def begin_receive_tensors(
        self,
        name: str,
        into: Wanted,
        *,
        version: int | None = None,
        keep: bool = True,
        resume: bool = False,
    ) -> Held:
        """As `receive_tensors`, without waiting for it."""
        told = self._native.layout(None, name)
        found = _found(None if told is None else Found(*told[0]), name, version)
        lent = _wanted([_tensor(each) for each in told[1]], into)
        native = self._native.receive_slices(
            None, name, lent.memory, lent.kept, lent.told, found.version, keep, resume
        )
        return Held(self, native, lent)

    def receive_tensors(
        self,
        name: str,
        into: Wanted,
        *,
        version: int | None = None,
        keep: bool = True,
        resume: bool = False,
        timeout_s: float | None = None,
    ) -> Held:
        """Receives tensors of an object, or a `Part` of each, to where they are to lie; `None` is fresh memory.

        However the object is sharded or laid out, what is fetched are the chunks that something wanted is in. Nothing is
        converted: memory that tells a type and a shape has those of the part, and bytes take what there is. The chunks
        are kept and served beside, unless `keep` is false: then nobody has anything from here. With `resume` what lies there
        already is verified where all of a chunk is wanted, and not fetched again.
        """
        begun = self.begin_receive_tensors(name, into, version=version, keep=keep, resume=resume)
        return _whole(begun, timeout_s)

    def close(self) -> None:
        """Lets all go that it holds, and ends it. Again, it does nothing."""
        self._native.close()
        for held in self.held:
            held._ended()


def _found(found: Found | None, name: str, version: int | None) -> Found:
    if found is None or version not in (None, found.version):
        raise NotFound(f"there is no object {name}" + ("" if version is None else " of that version"))
    return found


def _whole(held: Held, timeout_s: float | None) -> Held:
    try:
        held.wait(timeout_s)
    except BaseException:
        held.close()
        raise
    return held
