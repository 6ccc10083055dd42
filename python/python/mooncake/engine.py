"""`mooncake.engine`: bytes between memory of this process and of others, both named by their addresses."""

from __future__ import annotations

import atexit
import ctypes
import enum
import json
import logging
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from lunette._native import Closed, NativeEngine, StoreError, TimedOut, is_of_device

from ._setup import SettingError, adapters_of, address_of
from ._types import MooncakeHostMemAllocator

__all__ = [
    "Read",
    "SUPPORT_CUDA",
    "SUPPORT_EFA",
    "SUPPORT_HIP",
    "SUPPORT_INTRA_NVLINK",
    "SUPPORT_MNNVL",
    "SUPPORT_MUSA",
    "TransferEngine",
    "TransferNotify",
    "TransferOpcode",
    "Write",
]

LOG = logging.getLogger("mooncake")

SUPPORT_CUDA = SUPPORT_EFA = SUPPORT_HIP = SUPPORT_INTRA_NVLINK = SUPPORT_MNNVL = SUPPORT_MUSA = False

OK = 0
FAILED = -1
# Of a transfer that is asked after.
DONE, PENDING, TIMED_OUT = 1, 0, -2

# What a transfer may take, and more for each byte.
TIMEOUT_S = 30.0
TIMEOUT_S_PER_BYTE = 1e-9


class TransferOpcode(enum.IntEnum):
    """Which way bytes go: from the peer, or to it."""

    Read = 0
    Write = 1


Read, Write = TransferOpcode.Read, TransferOpcode.Write


@dataclass
class TransferNotify:
    """What a peer is told when its bytes are there."""

    name: str = ""
    msg: str = ""


# Their threads are ended while there is an interpreter.
_open: weakref.WeakSet[TransferEngine] = weakref.WeakSet()


def _close_all() -> None:
    for engine in list(_open):
        engine._close()


atexit.register(_close_all)


def _numbers(*lists: Sequence[int]) -> None:
    for numbers in lists:
        for number in numbers:
            if not isinstance(number, int) or number < 0:
                raise TypeError(f"{number!r} is no address or length")


class TransferEngine:
    """Memory that is registered is the peers' to read and to write, until it is unregistered: when that has returned,
    nobody does any more. No method raises for what could not be done: codes tell it.

    A peer is named by `host:port`, with the port that its `get_rpc_port` tells.
    """

    TransferOpcode = TransferOpcode

    def __init__(self) -> None:
        self._native: NativeEngine | None = None
        self._peers: dict[str, str] = {}
        self._managed = MooncakeHostMemAllocator()

    # --- Beginning ---

    def initialize(self, local_hostname: str, metadata_server: str, protocol: str, device_name: str) -> int:
        """Begins to listen at that host, and port if it has one. `metadata_server` is not needed.
        With the protocol rdma, bytes go over the devices that are named, or all."""
        if self._native is not None:
            LOG.error("initialize: it has been initialized")
            return FAILED
        if protocol not in ("tcp", "rdma"):
            LOG.error("initialize: protocol %r is not supported: tcp is", protocol)
            return FAILED
        try:
            secret_file = os.environ.get("LUNETTE_SECRET_FILE")
            adapters = adapters_of(protocol, device_name, "initialize")
            self._native = NativeEngine(address_of(local_hostname, 0), secret_file, adapters)
        except (SettingError, StoreError, ValueError) as error:
            LOG.error("initialize: %s", error)
            return FAILED
        _open.add(self)
        return OK

    def initialize_ext(
        self, local_hostname: str, metadata_server: str, protocol: str, device_name: str, metadata_type: str
    ) -> int:
        """As `initialize`."""
        return self.initialize(local_hostname, metadata_server, protocol, device_name)

    def get_rpc_port(self) -> int:
        """The port at which it listens; -1 if it is not initialized."""
        if self._native is None:
            return FAILED
        return int(self._native.address.rpartition(":")[2])

    def get_engine(self) -> TransferEngine:
        """What a store takes as its `engine`."""
        return self

    def _close(self) -> None:
        native, self._native = self._native, None
        if native is not None:
            try:
                native.close()
            except Closed:
                pass  # A child of a fork has none of its threads.

    # --- Memory ---

    def register_memory(self, buffer_addr: int, capacity: int, location: str = "*") -> int:
        """Lets peers read and write it: memory of the host, or of a CUDA device. `location` is not needed.

        What streams of a device have still to do with its memory is to be waited for before bytes of it are moved.
        """
        _numbers([buffer_addr, capacity])
        native = self._native
        if native is None:
            return FAILED
        try:
            native.register(buffer_addr, capacity)
        except StoreError as error:
            LOG.error("register_memory: %s", error)
            return FAILED
        return OK

    def unregister_memory(self, buffer_addr: int) -> int:
        """Takes that back, and waits until nobody uses it any more."""
        _numbers([buffer_addr])
        native = self._native
        try:
            return OK if native is not None and native.unregister(buffer_addr) else FAILED
        except StoreError as error:
            LOG.error("unregister_memory: %s", error)
            return FAILED

    def batch_register_memory(
        self, buffer_addresses: list[int], capacities: list[int], location: str = "*"
    ) -> int:
        """As `register_memory`, of all or none."""
        if len(buffer_addresses) != len(capacities):
            return FAILED
        done: list[int] = []
        for address, capacity in zip(buffer_addresses, capacities):
            if self.register_memory(address, capacity, location) != OK:
                self.batch_unregister_memory(done)
                return FAILED
            done.append(address)
        return OK

    def batch_unregister_memory(self, buffer_addresses: list[int]) -> int:
        """As `unregister_memory`, of all; -1 if one was not registered."""
        codes = [self.unregister_memory(address) for address in buffer_addresses]
        return OK if all(code == OK for code in codes) else FAILED

    def allocate_managed_buffer(self, length: int) -> int:
        """Memory that is registered; 0 if there is none."""
        _numbers([length])
        address = self._managed.alloc(length) if length else 0
        if address and self.register_memory(address, length) != OK:
            self._managed.free(address)
            return 0
        return address

    def free_managed_buffer(self, address: int, length: int) -> int:
        """Gives it back."""
        if self.unregister_memory(address) != OK:
            return FAILED
        return self._managed.free(address)

    def write_bytes_to_buffer(self, address: int, data: str | bytes, length: int) -> int:
        """Copies bytes into registered memory of this engine, of the host's."""
        value = (data.encode() if isinstance(data, str) else bytes(data))[:length]
        if not self._has(address, len(value)):
            return FAILED
        ctypes.memmove(address, value, len(value))
        return OK

    def read_bytes_from_buffer(self, address: int, length: int) -> bytes:
        """Bytes of registered memory of this engine, of the host's; none, if it is not that."""
        return ctypes.string_at(address, length) if self._has(address, length) else b""

    def _has(self, address: int, length: int) -> bool:
        _numbers([address, length])
        return self._native is not None and self._native.has(address, length) and not is_of_device(address)

    # --- Transfers that are waited for ---

    def transfer_sync_write(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int:
        """Moves bytes to the peer."""
        return self._transfer(target_hostname, [buffer], [peer_buffer_address], [length], Write)

    def transfer_sync_read(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int:
        """Moves bytes from the peer."""
        return self._transfer(target_hostname, [buffer], [peer_buffer_address], [length], Read)

    def transfer_sync(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        opcode: TransferOpcode,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int:
        """Moves bytes, and tells the peer then."""
        moves = ([buffer], [peer_buffer_address], [length])
        return self._transfer(target_hostname, *moves, opcode, notify)

    def batch_transfer_sync_write(
        self,
        target_hostname: str,
        buffers: list[int],
        peer_buffer_addresses: list[int],
        lengths: list[int],
        transport_hint: str = "",
    ) -> int:
        """Moves bytes to the peer: 0 if all are there."""
        return self._transfer(target_hostname, buffers, peer_buffer_addresses, lengths, Write)

    def batch_transfer_sync_read(
        self,
        target_hostname: str,
        buffers: list[int],
        peer_buffer_addresses: list[int],
        lengths: list[int],
        transport_hint: str = "",
    ) -> int:
        """Moves bytes from the peer: 0 if all are here."""
        return self._transfer(target_hostname, buffers, peer_buffer_addresses, lengths, Read)

    def batch_transfer_sync(
        self,
        target_hostname: str,
        buffers: list[int],
        peer_buffer_addresses: list[int],
        lengths: list[int],
        opcode: TransferOpcode,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int:
        """Moves bytes, and tells the peer when all are there."""
        return self._transfer(
            target_hostname, buffers, peer_buffer_addresses, lengths, opcode, notify
        )

    def _transfer(
        self,
        peer: str,
        buffers: list[int],
        addresses: list[int],
        lengths: list[int],
        opcode: TransferOpcode,
        notify: TransferNotify | None = None,
    ) -> int:
        _numbers(buffers, addresses, lengths)
        native = self._native
        if native is None:
            return FAILED
        moves = (opcode == Write, buffers, addresses, lengths)
        try:
            native.transfer(self._address(peer), moves, _note(notify), _timeout_s(lengths))
        except (SettingError, StoreError) as error:
            LOG.error("transfer with %s: %s", peer, error)
            return FAILED
        return OK

    # --- Transfers that are asked after ---

    def transfer_submit_write(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int:
        """Begins to move bytes to the peer: a number to ask after it, or -1."""
        moves = ([buffer], [peer_buffer_address], [length])
        return self._post(target_hostname, *moves, Write) or FAILED

    def batch_transfer_async_write(
        self,
        target_hostname: str,
        buffers: list[int],
        peer_buffer_addresses: list[int],
        lengths: list[int],
        transport_hint: str = "",
    ) -> int:
        """Begins to move bytes to the peer: a number to ask after them, or 0."""
        return self._post(target_hostname, buffers, peer_buffer_addresses, lengths, Write)

    def batch_transfer_async_read(
        self,
        target_hostname: str,
        buffers: list[int],
        peer_buffer_addresses: list[int],
        lengths: list[int],
        transport_hint: str = "",
    ) -> int:
        """Begins to move bytes from the peer: a number to ask after them, or 0."""
        return self._post(target_hostname, buffers, peer_buffer_addresses, lengths, Read)

    def batch_transfer_async(
        self,
        target_hostname: str,
        buffers: list[int],
        peer_buffer_addresses: list[int],
        lengths: list[int],
        opcode: TransferOpcode,
        transport_hint: str = "",
    ) -> int:
        """Begins to move bytes: a number to ask after them, or 0."""
        return self._post(target_hostname, buffers, peer_buffer_addresses, lengths, opcode)

    def _post(
        self,
        peer: str,
        buffers: list[int],
        addresses: list[int],
        lengths: list[int],
        opcode: TransferOpcode,
    ) -> int:
        _numbers(buffers, addresses, lengths)
        native = self._native
        if native is None:
            return 0
        moves = (opcode == Write, buffers, addresses, lengths)
        try:
            return native.post(self._address(peer), moves, None, _timeout_s(lengths))
        except (SettingError, StoreError) as error:
            LOG.error("transfer with %s: %s", peer, error)
            return 0

    def transfer_check_status(self, batch_id: int) -> int:
        """1 if all bytes of it are there, 0 while they are not, -1 if it failed, -2 if time was over. After 1, -1 and -2
        the number is forgotten, and nothing of it is under way."""
        _numbers([batch_id])
        native = self._native
        if native is None:
            return FAILED
        try:
            return DONE if native.is_done(batch_id) else PENDING
        except TimedOut:
            return TIMED_OUT
        except StoreError as error:
            LOG.error("transfer %d: %s", batch_id, error)
            return FAILED

    def get_batch_transfer_status(self, batch_ids: list[int]) -> int:
        """Waits for all of them: 0 if their bytes are there."""
        _numbers(batch_ids)
        native = self._native
        code = OK
        for number in batch_ids:
            try:
                if native is None:
                    return FAILED
                native.finish(number)
            except StoreError as error:
                LOG.error("transfer %d: %s", number, error)
                code = FAILED
        return code

    # --- Peers ---

    def send_probe(self, peer_server_name: str) -> int:
        """0 if the peer answers."""
        native = self._native
        if native is None:
            return FAILED
        try:
            native.probe(self._address(peer_server_name))
        except (SettingError, StoreError) as error:
            LOG.warning("send_probe: %s", error)
            return FAILED
        return OK

    def get_notifies(self) -> list[TransferNotify]:
        """What peers have told since it was asked last."""
        native = self._native
        if native is None:
            return []
        notes = []
        for _, note in native.notifications():
            try:
                name, message = json.loads(note)
                notes.append(TransferNotify(str(name), str(message)))
            except ValueError:
                LOG.warning("get_notifies: a peer tells what is no notification")
        return notes

    def _address(self, peer: str) -> str:
        """Where the peer listens. What a name means is looked up once."""
        if peer not in self._peers:
            self._peers[peer] = address_of(peer, 0)
        return self._peers[peer]

    # --- Refused ---

    def get_first_buffer_address(self, segment_name: str) -> int:
        """Refused: `NotImplementedError`."""
        raise NotImplementedError("get_first_buffer_address is not supported by Lunette")

    def get_local_topology(self, device_name: str | None = None) -> str:
        """Refused: `NotImplementedError`."""
        raise NotImplementedError("get_local_topology is not supported by Lunette")

    def get_engine_ptr(self) -> int:
        """Refused: `NotImplementedError`."""
        raise NotImplementedError("get_engine_ptr is not supported by Lunette")

    def warmup_efa_segment(self, segment_name: str) -> int:
        """Refused: `NotImplementedError`."""
        raise NotImplementedError("warmup_efa_segment is not supported by Lunette")


def _note(notify: TransferNotify | None) -> bytes | None:
    return None if notify is None else json.dumps([notify.name, notify.msg]).encode()


def _timeout_s(lengths: Sequence[int]) -> float:
    return TIMEOUT_S + sum(lengths) * TIMEOUT_S_PER_BYTE
