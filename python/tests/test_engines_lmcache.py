"""LMCache's own connector of its remote backend `mooncakestore://`, driven against this wheel."""

import asyncio
import ctypes
import math
import re
from types import SimpleNamespace

import engines
import pytest
from engines import Tensor, noise

CONNECTOR = "lmcache/v1/storage_backend/connector/"
OWN = (
    f"{CONNECTOR}base_connector.py",
    f"{CONNECTOR}mooncakestore_connector.py",
    "lmcache/utils.py",
    "lmcache/v1/lookup_client/mooncake_lookup_client.py",
    "lmcache/v1/memory_management.py",
    "lmcache/v1/metadata.py",
    "lmcache/v1/protocol.py",
)
TOKENS, HEADS, HEAD_SIZE, LAYERS = 16, 2, 32, 3
TOKEN_BYTES = LAYERS * 2 * HEADS * HEAD_SIZE * 2


class Chunk:
    """As much of an object in memory as the connector looks at: bytes of a backend's memory, and a shape."""

    def __init__(self, memory, offset, shape, dtype, form):
        self.raw_data, self.offset, self.dtype, self.form = self, offset, dtype, form
        self.memory, self.references = memory, 1
        self.meta = SimpleNamespace(shape=shape)
        self.size = math.prod(shape) * 2

    def __getitem__(self, part):
        self.size = part.stop
        return self

    @property
    def raw_tensor(self):
        return SimpleNamespace(copy_=self.fill)

    @property
    def data_ptr(self):
        return self.memory.data_ptr() + self.offset

    @property
    def byte_array(self):
        return memoryview((ctypes.c_ubyte * self.size).from_address(self.data_ptr))

    @property
    def value(self):
        return bytes(self.byte_array)

    def fill(self, value):
        assert len(value) == self.size
        ctypes.memmove(self.data_ptr, bytes(value), self.size)

    def get_size(self):
        return self.size

    def get_shapes(self):
        return [self.meta.shape]

    def get_dtypes(self):
        return [self.dtype]

    def get_memory_format(self):
        return self.form

    def ref_count_down(self):
        self.references -= 1


class Backend:
    """LMCache's memory, from which its objects come."""

    def __init__(self, metadata, extra):
        self.config = SimpleNamespace(extra_config=extra, use_layerwise=False)
        self.metadata, self.offset, self.given = metadata, 0, []
        self.memory = Tensor(bytes(1 << 20))
        self.memory_allocator = SimpleNamespace(
            pin_allocator=SimpleNamespace(buffer=self.memory),
            numa_mapping=SimpleNamespace(gpu_to_numa_mapping={0: 0}),
        )

    def allocate(self, shapes, dtypes, form):
        chunk = Chunk(self.memory, self.offset, shapes[0], dtypes[0], form)
        self.offset += chunk.size
        self.given.append(chunk)
        return chunk


def settings(coordinator):
    """Those of examples/README.md."""
    lines = engines.example("LMCache 0.5.6: the store", "yaml")
    given = dict(re.findall(r'^  (\w+): "(.*)"$', lines, re.MULTILINE))
    assert "10.0.0.1:50051" in given.values() and "64GB" in given.values()
    here = {"10.0.0.1:50051": coordinator.address, "10.0.0.2": "127.0.0.1", "64GB": "64MB"}
    return {name: here.get(value, value) for name, value in given.items()}


def frombuffer(buffer, dtype, offset, count):
    return memoryview(buffer)[offset : offset + count]


class TokenDatabase:
    """Takes keys for tokens: one is the key of a chunk."""

    def __init__(self, _config, _metadata):
        pass

    def process_tokens(self, keys):
        return [(n * TOKENS, (n + 1) * TOKENS, key) for n, key in enumerate(keys)]


@pytest.fixture
def imported():
    names = {
        "lmcache": {"torch_dev": SimpleNamespace(current_device=lambda: 0)},
        "lmcache.integration.vllm.utils": {
            "get_size_bytes": lambda shapes, _dtypes: sum(2 * math.prod(each) for each in shapes)
        },
        "lmcache.v1.token_database": {"ChunkedTokenDatabase": TokenDatabase},
        "torch": {"Size": tuple, "frombuffer": frombuffer},
    }
    roots = {"cachetools", "lmcache", "sortedcontainers", "torch"}
    with engines.importing("lmcache", OWN, roots, names) as imported:
        yield imported


class Side:
    """A process with the connector."""

    def __init__(self, imported, coordinator, save_chunk_meta):
        dtype = imported("torch").bfloat16
        metadata = imported("lmcache.v1.metadata").LMCacheMetadata(
            model_name=f"model/{save_chunk_meta}",
            world_size=1,
            local_world_size=1,
            worker_id=0,
            local_worker_id=0,
            kv_dtype=dtype,
            kv_shape=(LAYERS, 2, TOKENS, HEADS, HEAD_SIZE),
            chunk_size=TOKENS,
        )
        extra = {**settings(coordinator), "save_chunk_meta": save_chunk_meta, "transfer_timeout": 20}
        self.backend = Backend(metadata, extra)
        module = imported(f"{CONNECTOR}mooncakestore_connector".replace("/", "."))
        self.connector = module.MooncakestoreConnector(None, self.backend, self.backend.config)
        assert self.connector.registered_buffer_ptr == self.backend.memory.data_ptr()
        key = imported("lmcache.utils").CacheEngineKey
        self.keys = [key(metadata.model_name, 1, 0, n, dtype) for n in range(8)]

    def chunk(self, seed, tokens=TOKENS):
        """An object of so many tokens, full of noise."""
        connector = self.connector
        shape = connector.meta_shapes[0][:2] + (tokens,) + connector.meta_shapes[0][3:]
        made = self.backend.allocate([shape], connector.meta_dtypes, connector.meta_fmt)
        made.fill(noise(made.size, seed))
        return made


@pytest.mark.parametrize("save_chunk_meta", [True, False])
def test_chunks_are_stored_and_loaded_elsewhere(imported, coordinator, save_chunk_meta):
    async def scenario():
        one, two = (Side(imported, coordinator, save_chunk_meta) for _ in range(2))
        keys = one.keys
        chunks = [one.chunk(n) for n in range(4)] + [one.chunk(4, tokens=5)]
        assert not await two.connector.exists(keys[0])
        await one.connector.put(keys[0], chunks[0])
        await one.connector.batched_put(keys[1:5], chunks[1:])
        assert await two.connector.exists(keys[4]) and two.connector.exists_sync(keys[0])
        assert not two.connector.exists_sync(keys[5])
        assert await two.connector.batched_async_contains("look", keys) == 5
        got = await two.connector.batched_get([keys[3], keys[6], keys[0], keys[4]])
        assert got[1] is None
        for chunk, expected in zip([got[0], *got[2:]], [chunks[3], chunks[0], chunks[4]]):
            assert chunk.value == expected.value and chunk.meta.shape == expected.meta.shape
            assert chunk.references == 1
        assert got[3].size == 5 * TOKEN_BYTES
        lost = [each for each in two.backend.given if each not in got]
        assert len(lost) == (0 if save_chunk_meta else 1) and not any(each.references for each in lost)
        await one.connector.batched_put(keys[:1], chunks[1:2])
        (first,) = await two.connector.batched_get(keys[:1])
        assert first.value == chunks[0].value, "what is there stays"
        for side in (one, two):
            await side.connector.close()
            assert side.connector.registered_buffer_ptr is None

    asyncio.run(scenario())


def test_a_scheduler_looks_up(imported, coordinator):
    """Its client lends no memory, and is told of the coordinator only."""
    side = Side(imported, coordinator, False)
    asyncio.run(side.connector.batched_put(side.keys[2:4], [side.chunk(1), side.chunk(2)]))
    config = imported("lmcache.v1.config").LMCacheEngineConfig()
    config.enable_blending = False
    module = imported("lmcache.v1.lookup_client.mooncake_lookup_client")
    client = module.MooncakeLookupClient(config, None, coordinator.address)
    keys = [*side.keys[2:4], side.keys[7], side.keys[2]]
    assert client.lookup(keys) == 2 * TOKENS
    assert client.lookup(keys[:1]) == TOKENS and client.lookup(keys[2:]) == 0
    assert client.store.close() == 0
    asyncio.run(side.connector.close())
