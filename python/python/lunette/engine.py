"""Bytes from memory to memory, between engines of this wheel.

>>> with Engine() as here, Engine() as there:
...     room = bytearray(5)
...     with there.register(room) as target, here.register(bytearray(b"hello")) as source:
...         here.write(there.address, [(source.address, target.address, 5)], note=b"it is there")
...         room, [note for _, note in there.notifications()]
(bytearray(b'hello'), [b'it is there'])

A peer is named by where it listens, its memory by the addresses that it has there: both are for the programs to tell each
other. What is moved lies in memory that is registered on both sides; who has a cluster's secret may read and write all
that is registered.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING

from . import Devices, Path, _Closing, _names, _open
from ._memory import streams, writable
from ._native import NativeEngine

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._memory import Memory

__all__ = ["Engine", "Move", "Registration", "Transfer"]

# An address here, one there, and how many bytes.
Move = tuple[int, int, int]


class Registration:
    """Memory that peers may read and write, until it is closed."""

    def __init__(self, native: NativeEngine, memory: Memory) -> None:
        lent = writable(memory, of_devices=True)
        self.address, self.size, self._kept = lent
        native.register(self.address, self.size, streams([lent]))
        self._native: NativeEngine | None = native

    def close(self) -> None:
        """Takes it back, and waits until nobody uses it any more. Again, it does nothing."""
        native, self._native = self._native, None
        if native is not None:
            native.unregister(self.address)
            self._kept = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Transfer:
    """A transfer that has been begun."""

    def __init__(self, native: NativeEngine, number: int) -> None:
        self._native = native
        self._number: int | None = number

    def is_done(self) -> bool:
        """Whether all bytes are there. `StoreError` if they will not be."""
        if self._number is None:
            return True
        number, self._number = self._number, None
        if not self._native.is_done(number):
            self._number = number
        return self._number is None

    def wait(self) -> None:
        """Waits until all bytes are there. `StoreError` if they will not be. Again, it does nothing."""
        number, self._number = self._number, None
        if number is not None:
            self._native.finish(number)


class Engine(_Closing):
    """Moves bytes between registered memory here and at its peers. Asked from any thread.

    Beyond loopback it listens only with a secret, which both sides prove to know, or if `LUNETTE_INSECURE=1`. Where
    both ends have RDMA devices of the names in `rdma` (`"all"`: all that there are), bytes go over these.
    """

    def __init__(
        self,
        listen: str = "127.0.0.1:0",
        *,
        secret_file: Path | None = None,
        rdma: Devices = (),
    ) -> None:
        self._native = NativeEngine(listen, secret_file, _names(rdma))
        self._registrations: list[Registration] = []
        _open.add(self)

    @property
    def address(self) -> str:
        """Where peers find it, as `ADDRESS:PORT`."""
        return self._native.address

    def register(self, memory: Memory) -> Registration:
        """Lets peers read and write memory, which is kept until that is taken back or the engine is closed.

        Memory of a CUDA device too: copies come after what its producer had to do with it until now. What streams do with
        it later is to be waited for before bytes are moved from or to it, here or at a peer.

        `ValueError` if it is read-only or not in one piece, `Invalid` if it overlaps what is registered.
        """
        registration = Registration(self._native, memory)
        self._registrations = [each for each in self._registrations if each._native is not None]
        self._registrations.append(registration)
        return registration

    def write(
        self, peer: str, moves: Iterable[Move], *, note: bytes | None = None, timeout_s: float = 30.0
    ) -> None:
        """Moves bytes to the peer, and waits until they are there. Then it is told the note, if there is one.

        When it has ended, however it did, nothing of it is under way.
        """
        self._native.transfer(peer, _moves(True, moves), note, timeout_s)

    def read(self, peer: str, moves: Iterable[Move], *, timeout_s: float = 30.0) -> None:
        """As `write`, from the peer."""
        self._native.transfer(peer, _moves(False, moves), None, timeout_s)

    def begin_write(
        self, peer: str, moves: Iterable[Move], *, note: bytes | None = None, timeout_s: float = 30.0
    ) -> Transfer:
        """As `write`, without waiting for the bytes."""
        number = self._native.post(peer, _moves(True, moves), note, timeout_s)
        return Transfer(self._native, number)

    def begin_read(self, peer: str, moves: Iterable[Move], *, timeout_s: float = 30.0) -> Transfer:
        """As `read`, without waiting for the bytes."""
        number = self._native.post(peer, _moves(False, moves), None, timeout_s)
        return Transfer(self._native, number)

    def notifications(self) -> list[tuple[int, bytes]]:
        """What peers have told since it was asked last, each with the number of the session that told it."""
        return self._native.notifications()

    def close(self) -> None:
        """Ends it: transfers under way raise `StoreError`, and nothing is registered any more. Again, it does nothing."""
        self._native.close()
        for registration in self._registrations:
            registration._native = None
        self._registrations = []


def _moves(is_write: bool, moves: Iterable[Move]) -> tuple[bool, list[int], list[int], list[int]]:
    here, there, lengths = [], [], []
    for address, other, length in moves:
        here.append(address)
        there.append(other)
        lengths.append(length)
    return is_write, here, there, lengths
