"""Puts an object by Mooncake's interface and gets it back: `python put_get.py [COORDINATOR]`, 127.0.0.1:50051 by default."""

import ctypes
import sys

from mooncake.store import MooncakeDistributedStore

coordinator = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"
store = MooncakeDistributedStore()
if store.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", coordinator) != 0:
    sys.exit(f"no cluster at {coordinator}")
memory = ctypes.create_string_buffer(b"a block of a KV cache", 64)
address = ctypes.addressof(memory)
store.register_buffer(address, 64)
assert store.batch_put_from(["block/0"], [address], [64]) == [0]
ctypes.memset(address, 0, 64)
assert store.batch_get_into(["block/0"], [address], [64]) == [64]
print(memory.value.decode())
store.unregister_buffer(address)
store.close()
