"""A store that lends nothing, beside a member in another process of the host."""

from __future__ import annotations

from ._codes import OK
from ._objects import _numbers
from ._replicas import Replicas
from ._setup import open_beside
from ._types import MooncakeHostMemAllocator


class Standalone(Replicas):
    """What the original calls a dummy client. Objects are copied to and from the member's memory, which the host's
    processes share, wherever the program has its own."""

    def __init__(self) -> None:
        super().__init__()
        self._pool = MooncakeHostMemAllocator()
        self._pool_left = 0

    def setup_dummy(self, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int:
        """Opens the store, which asks the member at that address: a `mooncake_client`, or a node."""
        _numbers(mem_pool_size, local_buffer_size)
        if not isinstance(server_address, str):
            raise TypeError(f"an address is a str, not {type(server_address).__name__}")
        with self._lock:
            if self._native is not None:
                return OK
            code = self._open(lambda: open_beside(server_address))
            if code == OK:
                self._pool_left = mem_pool_size
            return code

    def alloc_from_mem_pool(self, size: int) -> int:
        """So much memory of the pool, by its address; 0 if there is not so much left. It stays while there is the store,
        also after it was closed."""
        _numbers(size)
        with self._lock:
            address = self._pool.alloc(size) if 0 < size <= self._pool_left else 0
            self._pool_left -= size if address else 0
        return address
