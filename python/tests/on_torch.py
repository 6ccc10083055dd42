"""Torch's tensors on a GPU as values and room, and their addresses in the drop-in. Run by `test_devices.py`, where both are."""

import asyncio

import lunette
import pytest
import torch
from lunette.aio import AsyncStore
from lunette.engine import Engine
from mooncake.store import MooncakeDistributedStore

MIB = 1 << 20
KINDS = [torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32]
LONG_S = 60.0


@pytest.fixture(scope="module")
def large(coordinator):
    with lunette.Store.member([coordinator.address], memory_bytes=512 * MIB) as store:
        yield store


@pytest.fixture(scope="module")
def dropin(coordinator):
    store = MooncakeDistributedStore()
    settings = ["127.0.0.1", "P2PHANDSHAKE", 512 * MIB, 16 * MIB, "tcp", "", coordinator.address]
    assert store.setup(*settings) == 0
    yield store
    assert store.close() == 0


@pytest.fixture(params=["member", "client"])
def store(request, large):
    if request.param == "member":
        yield large
    else:
        with lunette.Store.connect([large.address]) as client:
            yield client


def anything(*shape, kind=torch.uint8, seed=1):
    """Numbers that differ, on the GPU."""
    draw = torch.Generator(device="cuda").manual_seed(seed)
    size = torch.empty(0, dtype=kind).element_size()
    count = size
    for length in shape:
        count *= length
    drawn = torch.randint(0, 255, (count,), dtype=torch.uint8, device="cuda", generator=draw)
    return drawn.view(kind).view(*shape)


def same(one, other):
    """Bit by bit: what is no number equals nothing."""
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def bytes_of(tensor):
    return tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_tensors_of_each_kind_are_values_and_room(store, key, kind):
    value = anything(3, 5, 64, kind=kind)
    assert store.put(key, value)
    assert store.get(key) == bytes_of(value)
    room = torch.zeros_like(value)
    assert store.get_into(key, room) == value.numel() * value.element_size()
    assert same(room, value)


def test_parts_of_tensors_are_where_they_lie(store, key):
    cache = anything(16, 4096)
    assert store.put(key, cache[3]) and store.get(key) == bytes_of(cache[3])
    rooms = torch.zeros_like(cache)
    assert store.get_into(key, rooms[7, 0:4096]) == 4096
    assert same(rooms[7], cache[3]) and not rooms[:7].any() and not rooms[8:].any()
    for wrong in (cache[:, 0:100], cache.t()):
        with pytest.raises(ValueError):
            store.put(key + "/wrong", wrong)
    learns = torch.ones(10, device="cuda", requires_grad=True)
    with pytest.raises(Exception, match="grad"):
        store.put(key + "/wrong", learns)
    assert store.put(key + "/right", learns.detach())
    numbers = torch.ones(10, dtype=torch.complex64, device="cuda")
    with pytest.raises(Exception, match="conjugate"):
        store.put(key + "/wrong", numbers.conj())
    assert store.put(key + "/numbers", numbers)
    # Of a type that inherits.
    learned = torch.nn.Parameter(anything(1000, kind=torch.float32), requires_grad=False)
    assert store.put(key + "/learned", learned) and store.get(key + "/learned") == bytes_of(learned)


def test_copies_come_behind_what_streams_have_to_do(store, key):
    """Of the stream that is current when they are asked for, whatever others do."""
    size, stream = 64 * MIB, torch.cuda.Stream()
    cache, last = torch.zeros(size, dtype=torch.uint8, device="cuda"), anything(size)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for value in range(100):
            cache.fill_(value)
        cache.copy_(last)
        assert store.put(key, cache)
    assert store.get(key) == bytes_of(last)
    short = anything(MIB, seed=2)
    assert store.put(key + "/short", short)
    with torch.cuda.stream(stream):
        for value in range(100):
            cache.fill_(value)
        assert store.get_into(key + "/short", cache[:MIB]) == MIB
        # What has been got is there for whatever is queued then.
        doubled = torch.cat([cache[:MIB], cache[:MIB]])
    stream.synchronize()
    assert same(doubled[MIB:], short) and bool((cache[MIB:] == 99).all())


def test_gets_do_not_wait_for_what_a_model_has_queued(store, key):
    value, room = anything(MIB), torch.zeros(MIB, dtype=torch.uint8, device="cuda")
    assert store.put(key, value) and store.get_into(key, room) == MIB, "what is needed once is there"
    room.zero_()
    factor = torch.ones((8192, 8192), dtype=torch.bfloat16, device="cuda")
    product, aside = torch.empty_like(factor), torch.cuda.Stream()
    torch.cuda.synchronize()
    # Some tenths of a second, in the default stream.
    for _ in range(300):
        torch.matmul(factor, factor, out=product)
    last = torch.cuda.Event()
    last.record()
    with torch.cuda.stream(aside):
        assert store.get_into(key, room) == MIB
    assert not last.query(), "the model is not done yet"
    torch.cuda.synchronize()
    assert same(room, value)


def test_memory_that_goes_back_to_its_allocator_was_kept(store, key):
    """What is put belongs to the store until the call has ended, and no longer."""
    for turn in range(20):
        value = anything(3 * MIB, seed=turn)
        expected = bytes_of(value)
        assert store.put(f"{key}/{turn}", value)
        del value
        other = torch.full((3 * MIB,), 255, dtype=torch.uint8, device="cuda")
        assert store.get(f"{key}/{turn}") == expected
        del other
    torch.cuda.empty_cache()
    assert store.put(key, anything(100))


def test_tasks_lend_them(large, key):
    value, rooms = anything(32, MIB), torch.zeros((32, MIB), dtype=torch.uint8, device="cuda")

    async def asked():
        store = AsyncStore(large)
        keys = [f"{key}/{n}" for n in range(32)]
        assert all(await asyncio.gather(*[store.put(k, value[n]) for n, k in enumerate(keys)]))
        got = await asyncio.gather(*[store.get_into(k, rooms[n]) for n, k in enumerate(keys)])
        assert got == [MIB] * 32

    asyncio.run(asked())
    assert same(rooms, value)


@pytest.mark.parametrize("is_registered", [True, False])
def test_pages_of_a_cache_of_many_layers(dropin, key, is_registered):
    """As a connector of an engine has them: a tensor for each layer, an object for each page, the layers' parts its pieces."""
    layers, pages, page = 24, 64, 16 * 8 * 128 * 2
    cache = [anything(pages, page, seed=layer) for layer in range(layers)]
    kept = [layer.clone() for layer in cache]
    torch.cuda.synchronize()
    if is_registered:
        for layer in cache:
            assert dropin.register_buffer(layer.data_ptr(), layer.numel()) == 0
    keys = [f"{key}/{n}" for n in range(pages)]
    places = [[layer.data_ptr() + n * page for layer in cache] for n in range(pages)]
    sizes = [[page] * layers] * pages
    assert dropin.batch_put_from_multi_buffers(keys, places, sizes) == [0] * pages
    assert dropin.get(keys[5]) == b"".join(bytes_of(layer[5]) for layer in kept)
    for layer in cache:
        layer.zero_()
    torch.cuda.synchronize()
    # To other pages than they were.
    turned = places[::-1]
    assert dropin.batch_get_into_multi_buffers(keys, turned, sizes) == [layers * page] * pages
    for layer, old in zip(cache, kept):
        assert same(layer, old.flip(0))
    if is_registered:
        for layer in cache:
            assert dropin.unregister_buffer(layer.data_ptr()) == 0


def test_segments_that_grow_are_one_range(dropin, key):
    """Where torch is told that segments may grow, an allocation is in pages of 2 MiB, side by side."""
    value = anything(9 * MIB)
    torch.cuda.synchronize()
    assert dropin.register_buffer(value.data_ptr(), value.numel()) == 0
    assert dropin.put_from(key, value.data_ptr() + 100, 8 * MIB) == 0
    assert dropin.get(key) == bytes_of(value[100 : 100 + 8 * MIB])
    assert dropin.unregister_buffer(value.data_ptr()) == 0


def test_weights_go_from_process_memory_to_a_gpu_and_on(origin, other, name):
    weights = {f"layer.{n}": anything(256, 1024, kind=torch.bfloat16, seed=n) for n in range(8)}
    into = {key: torch.zeros_like(tensor) for key, tensor in weights.items()}
    with origin.register(name, weights):
        with other.receive_tensors(name, into, timeout_s=LONG_S):
            for key, tensor in weights.items():
                assert same(into[key], tensor), key


def test_engines_move_between_tensors():
    value, room = anything(8 * MIB), torch.zeros(8 * MIB, dtype=torch.uint8, device="cuda")
    with Engine() as here, Engine() as there, there.register(room) as target:
        with here.register(value) as source:
            here.write(there.address, [(source.address, target.address, 8 * MIB)], note=b"there")
        assert same(room, value)
        assert [note for _, note in there.notifications()] == [b"there"]
