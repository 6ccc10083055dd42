"""Weights from a trainer to ranks in buckets: an update needs staging memory for a few of them, and not for all.

>>> import array, lunette
>>> from lunette.p2p import ObjectStore
>>> with lunette.Coordinator() as coordinator:
...     with ObjectStore([coordinator.address]) as trainer, ObjectStore([coordinator.address]) as rank:
...         weights = {f"layer.{n}": array.array("f", [n] * 1000) for n in range(8)}
...         with Offer(trainer, "model/step-1", weights, bucket_bytes=8192) as offer:
...             with Update(rank, "model/step-1") as update:
...                 taken = [(bucket.index, sorted(bucket)) for bucket in update]
...                 offer.buckets, taken[0], taken[-1]
(4, (0, ['layer.0', 'layer.1']), (3, ['layer.6', 'layer.7']))

While a rank copies a bucket to where it belongs, the next is fetched, and what was copied last is served on to other ranks.
Ranks feed each other, and wait for none: one that fails, or is slow, stops nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Union

from . import _Closing
from ._cuda_array import DeviceView
from ._native import NativeOffer, NativeUpdate
from ._tensors import bytes_of, device_view, fresh, on_device, shaped
from .p2p import CHUNK_BYTES, ObjectStore, Part, Registered, Tensor, _Lent, _lent, _room, _tensor, _Told

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._memory import Memory

__all__ = ["BUCKET_BYTES", "Bucket", "Offer", "Update"]

# About how long buckets are, unless it is told otherwise.
BUCKET_BYTES = 256 << 20


class Offer(_Closing):
    """Weights that ranks take in buckets: until it is closed or dropped, or its store is closed. They are not to change
    before."""

    def __init__(
        self,
        store: ObjectStore,
        name: str,
        source: Registered,
        *,
        tensors: Iterable[Tensor] = (),
        bucket_bytes: int = BUCKET_BYTES,
        chunk_bytes: int = CHUNK_BYTES,
        replace: bool = False,
    ) -> None:
        """Offers tensors by their names, or buffers in which they lie, as `ObjectStore.register` takes them. Checksums are
        computed first.

        `NameTaken` unless it may `replace` what has the name: ranks that take that go on with it. A tensor that is longer than
        `bucket_bytes` has a bucket of its own.
        """
        lent = _lent(source, tensors)
        how = bucket_bytes, chunk_bytes, replace
        self._store, self._lent = store, lent
        self._native = NativeOffer.offer(
            store._native, None, name, lent.memory, lent.kept, lent.told, *how
        )
        self.name = name

    @property
    def buckets(self) -> int:
        """How many there are."""
        buckets: int = self._native.buckets
        return buckets

    def close(self) -> None:
        """Withdraws them, and waits until nobody reads their memory: no rank begins any more, and those that have begun go
        on with what others of them have. Again, it does nothing."""
        self._native.close(None)
        self._lent.kept.clear()


# A slot of memory: of the host, or, as its first address and what has it, of a device.
_Slot = Union[memoryview, "tuple[int, object]"]
View = Union[memoryview, DeviceView]


class Bucket(Mapping[str, View]):
    """What is here of an update, until the next bucket is asked for: tensors by their names, as `Held` has them."""

    def __init__(self, index: int, told: Iterable[_Told], slots: Sequence[_Slot]) -> None:
        self.index = index
        """Which bucket it is, from 0 on."""
        self.tensors: list[Tensor] = []
        """What is here. `start` and `size` tell which part, where it is not all."""
        self._bytes: list[View] = []
        self._views: dict[str, View] = {}
        for name, dtype, shape, start, size, slot, offset in told:
            self.tensors.append(_tensor((name, dtype, shape, start, size, 0, offset)))
            lies = slots[slot]
            if isinstance(lies, tuple):
                address, keeps = lies[0] + offset, lies[1]
                self._bytes.append(device_view(address, "U8", (bytes_of(dtype, size),), keeps))
                self._views[name] = device_view(address, dtype, size, keeps)
                continue
            view = lies[offset : offset + bytes_of(dtype, size)]
            self._bytes.append(view)
            self._views[name] = shaped(view, dtype, size)

    def __getitem__(self, name: str) -> View:
        """A tensor, or the part of it that is here: in its shape if buffers have its type of elements, and bytes if not. Of
        several parts of one tensor the last: `parts` has all."""
        return self._views[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)

    @property
    def parts(self) -> list[tuple[Tensor, View]]:
        """All that is here, and its bytes."""
        return list(zip(self.tensors, self._bytes))

    def _release(self) -> None:
        """Has who looks at it later be told, and not see what comes next."""
        for view in [*self._views.values(), *self._bytes]:
            try:
                view.release()
            except BufferError:
                pass  # An array is left over it.


class Update(_Closing):
    """An update that a rank takes, bucket by bucket. It is begun, and fetches on by itself as far as there are slots.

    A store takes an update once at a time, and not one that it offers.
    """

    def __init__(
        self,
        store: ObjectStore,
        name: str,
        *,
        parts: Mapping[str, Part] | None = None,
        keep: bool = False,
        slots: int = 3,
        staging: Iterable[Memory] | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        """Takes all, or `parts` of tensors, each with its `start` and `size`: then what is fetched are the chunks that these
        are in, which are served to others if they are kept beside (`keep`).

        `slots` is how many buckets' memory there is: 2 to 16; from 3 on one of them is for what was copied last, and is
        served on. `staging` is memory for them, each as long as the longest bucket: on CUDA devices too, and then buckets are
        there, as arrays of CUDA's interface, which `torch.as_tensor` takes. What is queued with one is to be waited for before
        the next is asked for. `timeout_s` is how long a bucket may
        take, each time that it is tried. `NotFound` if nobody offers it, `Invalid` if it is no update.
        """
        told = NativeUpdate.offered(store._native, None, name, timeout_s)
        longest = max(size for _, size in told[1])
        self.buckets = len(told[1])
        """How many there are, of which a rank that takes parts is lent those that have some."""
        self._store = store
        self._slots = [fresh(longest) for _ in range(slots)] if staging is None else list(staging)
        self._lent: _Lent = _room(self._slots)
        self._views: list[_Slot] = [_slot(*lent) for lent in zip(self._slots, self._lent.ranges, self._lent.kept)]
        self._native = NativeUpdate.follow(
            store._native,
            None,
            name,
            told,
            self._lent.memory,
            self._lent.kept,
            None if parts is None else (_blocks(parts), keep),
            timeout_s,
        )
        self._bucket: Bucket | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Bucket:
        """The next bucket that has something that is wanted, when it is here. What was lent before is not to be looked at
        any more.

        `TimedOut`, `NotFound` or another `StoreError` if a bucket is not to be had; `Closed` if it was closed.
        """
        return self._next(self._native.next(None, self._copied()))

    def _copied(self) -> int | None:
        """What is not looked at any more. What is asked for again is told again."""
        if self._bucket is None:
            return None
        self._bucket._release()
        return self._bucket.index

    def _next(self, told: tuple[int, list[_Told]] | None) -> Bucket:
        if told is None:
            raise StopIteration
        self._bucket = Bucket(*told, self._views)
        return self._bucket

    def close(self) -> None:
        """Ends it, and waits until nobody has its slots: what is in them is not served on. Again, it does nothing."""
        self._native.close(None)
        self._ended()

    def _ended(self) -> None:
        if self._bucket is not None:
            self._bucket._release()
        for view in self._views:
            try:
                if isinstance(view, memoryview):
                    view.release()
            except BufferError:
                pass  # An array is left over it.
        self._lent.kept.clear()


def _slot(memory: Memory, lies: tuple[int, int], kept: object) -> _Slot:
    if on_device(kept):
        return lies[0], memory
    return memoryview(memory).cast("B")  # type: ignore[arg-type]


def _blocks(parts: Mapping[str, Part]) -> dict[str, tuple[Sequence[int], Sequence[int]]]:
    blocks: dict[str, tuple[Sequence[int], Sequence[int]]] = {}
    for name, part in parts.items():
        if part.start is None or part.size is None:
            raise ValueError(f"{name!r}: give the part's start and size")
        blocks[name] = (part.start, part.size)
    return blocks
