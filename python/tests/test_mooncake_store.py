"""`mooncake.store` as serving engines use it. What the original answers was seen by running it."""

import ctypes
import os
import random
import threading

import lunette
import pytest

from mooncake.store import BufferHandle, MooncakeDistributedStore, MooncakeHostMemAllocator
from mooncake.store import ObjectDataType, ReplicaStatus, ReplicateConfig, SoftPinAction


def opened(coordinator, memory_bytes=64 << 20):
    store = MooncakeDistributedStore()
    code = store.setup(
        "127.0.0.1", "P2PHANDSHAKE", memory_bytes, 16 << 20, "tcp", "", coordinator.address
    )
    assert code == 0
    return store


@pytest.fixture(scope="module")
def owner(coordinator):
    store = opened(coordinator)
    yield store
    assert store.close() == 0


@pytest.fixture(scope="module", params=["member", "client"])
def store(request, coordinator, owner):
    if request.param == "member":
        yield owner
    else:
        client = opened(coordinator, 0)
        yield client
        assert client.close() == 0


class Memory:
    """Memory at an address."""

    def __init__(self, size):
        self.bytes = ctypes.create_string_buffer(size)
        self.at = ctypes.addressof(self.bytes)

    def set(self, value, offset=0):
        ctypes.memmove(self.at + offset, value, len(value))
        return self.at + offset

    def get(self, size, offset=0):
        return ctypes.string_at(self.at + offset, size)


def test_the_first_put_stays(store, key):
    assert store.put(key, b"abc") == 0
    assert store.put(key, b"other") == 0
    assert store.get(key) == b"abc"
    assert store.upsert(key, b"other") == 0
    assert store.get(key) == b"other"
    assert store.get_size(key) == 5
    assert store.is_exist(key) == 1
    assert store.remove(key) == 0
    assert store.remove(key, force=True) == -704
    assert store.get(key) == b""
    assert store.get_size(key) == -704
    assert store.is_exist(key) == 0


def test_what_makes_no_sense_has_a_code(store, key):
    memory = Memory(100)
    assert store.put("", b"abc") == -600
    assert store.put(key, b"") == -600
    assert store.put("k" * 5000, b"a") == -600
    assert store.put_batch([key, key + "2"], [b"1"]) == -600
    assert store.put_batch([key, key + "2"], [b"", b"1"]) == -600
    assert store.batch_put_from([key, key], [memory.at], [1]) == [-600, -600]
    assert store.batch_get_into([key, key], [memory.at], [1]) == [-600, -600]
    assert store.batch_put_from([key], [0], [5]) == [-600]
    assert store.batch_put_from([key, key + "0"], [memory.at] * 2, [5, 0]) == [0, -600]
    assert store.batch_get_into([key], [8], [5]) == [-600], "nothing is mapped there"
    assert store.batch_put_from_multi_buffers([key], [[memory.at] * 2], [[5]]) == [-600]
    assert store.batch_put_from([], [], []) == []
    assert store.batch_get_into([], [], []) == []
    assert store.batch_is_exist([]) == []
    for wrong in (
        lambda: store.put(1, b"a"),
        lambda: store.put(key, "text"),
        lambda: store.put_from(key, memory.at, -5),
        lambda: store.put_from(key, -1, 5),
        lambda: store.get_into(key, memory.at, -1),
        lambda: store.register_buffer(memory.at, -1),
        lambda: store.put(key, b"a", 7),
        lambda: store.setup("127.0.0.1"),
    ):
        with pytest.raises(TypeError):
            wrong()


def test_buffers_are_registered(store):
    memory = Memory(1 << 16)
    assert store.register_buffer(memory.at, 1 << 16) == 0
    assert store.register_buffer(memory.at, 1 << 16) == -600
    assert store.register_buffer(memory.at + 16, 16) == -600
    assert store.unregister_buffer(memory.at) == 0
    assert store.unregister_buffer(memory.at) == -600
    assert store.register_buffer(memory.at, 0) == -600
    assert store.register_buffer(8, 4096) == -600, "nothing is mapped there"
    assert store.register_buffer((1 << 64) - 1, 4096) == -600


@pytest.mark.parametrize("is_registered", [True, False])
def test_bytes_go_from_and_to_addresses(store, key, is_registered):
    sizes = [1, 4096, 70_000, 300_000, 5 << 20]
    draw = random.Random(1)
    memory = Memory(sum(sizes))
    if is_registered:
        assert store.register_buffer(memory.at, sum(sizes)) == 0
    offsets = [sum(sizes[:index]) for index in range(len(sizes))]
    values = [draw.randbytes(size) for size in sizes]
    for offset, value in zip(offsets, values):
        memory.set(value, offset)
    keys = [f"{key}/{size}" for size in sizes]
    pointers = [memory.at + offset for offset in offsets]
    assert store.batch_put_from(keys, pointers, sizes) == [0] * len(sizes)
    ctypes.memset(memory.at, 0, sum(sizes))
    wanted = [*keys, key + "/none"]
    got = store.batch_get_into(wanted, [*pointers, memory.at], [*sizes, 1])
    assert got == [*sizes, -704]
    for offset, value in zip(offsets, values):
        assert memory.get(len(value), offset) == value
    assert store.get_into(keys[1], memory.at, 100_000) == 4096, "more room than needed"
    assert store.get_into(keys[2], memory.at, 100) == -600, "less"
    assert store.upsert_from(keys[0], pointers[1], 10) == 0
    assert store.get(keys[0]) == values[1][:10] or store.get_size(keys[0]) == 10
    assert store.batch_upsert_from(keys[:2], pointers[:2], [1, 2]) == [0, 0]
    assert [store.get_size(each) for each in keys[:2]] == [1, 2]
    if is_registered:
        assert store.unregister_buffer(memory.at) == 0


def test_objects_in_pieces(store, key):
    memory = Memory(3000)
    value = random.Random(2).randbytes(3000)
    memory.set(value)
    pieces = [[memory.at + at for at in range(0, 3000, 100)], [memory.at + 5]]
    sizes = [[100] * 30, [7]]
    keys = [key + "/1", key + "/2"]
    assert store.batch_put_from_multi_buffers(keys, pieces, sizes) == [0, 0]
    assert store.get(keys[0]) == value and store.get(keys[1]) == value[5:12]
    ctypes.memset(memory.at, 0, 3000)
    backwards = [[*reversed(pieces[0])], [memory.at + 5], [memory.at]]
    got = store.batch_get_into_multi_buffers(
        [*keys[:1], key + "/none", keys[0]],
        [backwards[0], backwards[1], backwards[2]],
        [sizes[0], [7], [5]],
        prefer_alloc_in_same_node=True,
    )
    assert got == [3000, -704, -600]
    assert memory.get(100) == value[-100:] and memory.get(100, 2900) == value[:100]
    assert store.put_parts(key + "/3", b"ab", b"", bytearray(b"cd")) == 0
    assert store.get(key + "/3") == b"abcd"
    assert store.upsert_parts(key + "/3", b"e", b"f") == 0
    assert store.get(key + "/3") == b"ef"
    assert store.put_from_with_metadata(key + "/4", memory.at, memory.set(b"meta", 500), 9, 4) == 0
    assert store.get(key + "/4")[:4] == b"meta" and store.get_size(key + "/4") == 13


@pytest.mark.parametrize("pieces", [508, 509, 1280])
def test_objects_in_many_pieces(store, key, pieces):
    """As of layouts with a piece for each layer and token."""
    memory = Memory(pieces * 300)
    memory.set(random.Random(pieces).randbytes(pieces * 300))
    places = [memory.at + 300 * n for n in random.Random(1).sample(range(pieces), pieces)]
    sizes = [random.Random(n).randrange(1, 300) for n in range(pieces)]
    value = b"".join(ctypes.string_at(*piece) for piece in zip(places, sizes))
    keys = [key + "/1", key + "/2", key + "/3"]
    unmapped = [*places[:-1], 4096]
    codes = store.batch_put_from_multi_buffers(
        keys, [places, [memory.at], unmapped], [sizes, [5], sizes]
    )
    assert codes == [0, 0, -600]
    assert store.get(keys[0]) == value and store.get(keys[1]) == memory.get(5)
    codes = store.batch_put_from_multi_buffers(keys[2:], [[4096, *places[1:]]], [sizes])
    assert codes == [-600] and store.is_exist(keys[2]) == 0
    too_long = [[1 << 42] * pieces]
    assert store.batch_put_from_multi_buffers(keys[2:], [places], too_long) == [-600]
    ctypes.memset(memory.at, 0, pieces * 300)
    assert store.batch_get_into_multi_buffers(keys[:1], [places], [sizes]) == [len(value)]
    assert b"".join(ctypes.string_at(*piece) for piece in zip(places, sizes)) == value
    parts = [bytes([n % 256]) for n in range(pieces)]
    assert store.upsert_parts(key, *parts) == 0 and store.get(key) == b"".join(parts)


def test_batches_of_values(store, key):
    keys = [f"{key}/{n}" for n in range(3)]
    assert store.put_batch(keys[:2], [b"1", memoryview(bytearray(b"22"))]) == 0
    assert store.put_batch(keys, [b"9", b"9", b"333"]) == 0
    assert store.get_batch([*keys, key]) == [b"1", b"22", b"333", b""]
    assert store.upsert_batch(keys, [b"7", b"8", b"9"]) == 0
    handles = store.batch_get_buffer([keys[0], key])
    assert handles[1] is None
    assert bytes(handles[0]) == b"7" and len(handles[0]) == handles[0].size() == 1
    assert ctypes.string_at(handles[0].ptr(), 1) == b"7"
    assert store.get_buffer(key) is None
    assert isinstance(store.get_buffer(keys[2]), BufferHandle)
    assert store.batch_is_exist([*keys, key]) == [1, 1, 1, 0]
    assert store.batch_remove([keys[0], key]) == [0, -704]


def test_how_objects_are_written(store, owner, key):
    def code(**fields):
        config = ReplicateConfig()
        for name, value in fields.items():
            setattr(config, name, value)
        return store.put(f"{key}/{sorted(fields)}", b"abc", config)

    assert code(replica_num=3) == 0, "as many as there is room for"
    assert code(replica_num=0) == -600
    assert code(group_ids=["a"]) == 0
    assert code(group_ids=["a", "b"]) == -600
    assert code(soft_pin_ttl_ms=5) == -600
    assert code(soft_pin_ttl_ms=5, soft_pin_action=SoftPinAction.ENABLE) == 0
    assert code(nof_replica_num=1) == -600
    assert code(dfs_replica_num=1) == -1601
    assert code(preferred_segment=owner.get_hostname()) == 0
    assert code(preferred_segments=["nowhere:1", owner.get_hostname()]) == 0
    assert code(prefer_alloc_in_same_node=True, data_type=ObjectDataType.KVCACHE) == 0
    assert store.put(key, bytes(100 << 20)) == -200, "more than there is memory"


def test_sessions_and_ranges(store, key):
    memory = Memory(100)
    assert store.put(key, bytes(range(50))) == 0
    assert store.batch_get_into_multi_buffer_ranges([key], [[memory.at]], [[2]], [[1]]) == [-600]
    assert store.batch_get_session_start([key, key + "/none"]) == [0, -704]
    got = store.batch_get_into_multi_buffer_ranges(
        [key, key + "/none"], [[memory.at, memory.at + 10], [memory.at]], [[2, 5], [1]], [[1, 40], [0]]
    )
    assert got == [7, -600]
    assert memory.get(2) == bytes([1, 2]) and memory.get(5, 10) == bytes(range(40, 45))
    many = list(range(50))
    got = store.batch_get_into_multi_buffer_ranges(
        [key], [[memory.at + at for at in many]], [[1] * 50], [[49 - at for at in many]]
    )
    assert got == [50] and memory.get(50) == bytes(reversed(range(50)))
    beyond = store.batch_get_into_multi_buffer_ranges([key], [[memory.at]], [[2]], [[49]])
    assert beyond == [-600]
    assert store.batch_get_session_end([key]) == 0
    assert store.batch_get_into_multi_buffer_ranges([key], [[memory.at]], [[2]], [[1]]) == [-600]
    into = store.get_into_ranges(
        [memory.at], [[key, key + "/none"]], [[[0, 20], [10]]], [[[1, 3], [0]]], [[[2, 3], [1]]]
    )
    assert into == [[[2, 3], [-704]]]
    assert memory.get(2) == bytes([1, 2]) and memory.get(3, 20) == bytes([3, 4, 5])


def test_puts_in_ranges(store, key):
    memory = Memory(100)
    value = random.Random(4).randbytes(50)
    memory.set(value)
    assert store.put(key, b"there") == 0
    names = [key + "/1", key + "/2"]
    assert store.batch_put_session_start([names[0], key], [50, 10]) == [0, -705]
    assert store.batch_put_session_start(names, [50, 20]) == [-600, 0]
    assert store.is_exist(names[0]) == 0
    halves = [[memory.at, memory.at + 30]], [[30, 20]]
    assert store.batch_put_from_multi_buffer_ranges([names[0]], *halves, [[20, 0]]) == [50]
    assert store.batch_put_from_multi_buffer_ranges([names[0]], *halves, [[40, 0]]) == [-600]
    assert store.batch_put_from_multi_buffer_ranges([key], *halves, [[20, 0]]) == [-600]
    assert store.batch_put_session_end([names[1]]) == [-600], "not all is written"
    assert store.batch_put_from_multi_buffer_ranges([names[0]], *halves, [[20, 0]]) == [50]
    assert store.batch_put_session_end([names[0], key + "/none"]) == [0, -600]
    assert store.get(names[0]) == value[30:] + value[:30]
    assert store.batch_put_session_end([names[0]]) == [-600]
    assert store.batch_put_session_revoke([names[1], names[0]]) == [0, -600]
    assert store.is_exist(names[1]) == 0
    assert store.batch_put_session_start([key + "/3"], [0]) == [-600]
    with pytest.raises(TypeError):
        store.batch_put_session_start([key + "/4"], [-1])


def test_threads_share_a_store(store, key):
    failures = []

    def work(thread):
        memory = Memory(20_000)
        for step in range(30):
            name = f"{key}/{thread}/{step}"
            value = random.Random(step).randbytes(10_000)
            if store.put_from(name, memory.set(value), 10_000) != 0:
                failures.append(name)
            if store.get_into(name, memory.at + 10_000, 10_000) != 10_000:
                failures.append(name)
            if memory.get(10_000, 10_000) != value:
                failures.append(name)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a", ["1", "b"]),
        ("/a$", ["1", "b", "abc"]),
        (r"\d", ["a", "b", "abc"]),
        ("[[:digit:]]", ["a", "b", "abc"]),
        ("/[^[:alpha:]]", ["a", "b", "abc"]),
        ("/(?:b|1)$", ["a", "abc"]),
        ("/a(?=b)", ["1", "a", "b"]),
        ("/[{(?]", ["1", "a", "b", "abc"]),
        # No pattern there.
        ("(", -600),
        ("a{2", -600),
        ("(?i)A", -600),
        ("(?P<n>a)", -600),
        ("[[:dozen:]]", -600),
    ],
)
def test_objects_are_removed_by_patterns(store, pattern, expected):
    key = f"patterns-{os.urandom(8).hex()}"
    names = [f"{key}/{name}" for name in ["1", "a", "b", "abc"]]
    assert store.put_batch(names, [b"v"] * 4) == 0
    # Of this test alone.
    removed = store.remove_by_regex(f"^{key}.*{pattern}")
    left = [name.removeprefix(f"{key}/") for name in names if store.is_exist(name)]
    if isinstance(expected, list):
        assert (removed, left) == (4 - len(expected), expected)
    else:
        assert (removed, left) == (expected, ["1", "a", "b", "abc"])
    store.batch_remove(names)


def test_a_removal_by_a_pattern_that_fails_says_so():
    class Failing:
        def list(self, prefix, after):
            return [b"a", b"b"], None

        def remove(self, keys):
            return [True, lunette.Unavailable("a node is away")]

    store = MooncakeDistributedStore()
    assert store.remove_by_regex("a") == -600
    store._native = Failing()
    try:
        assert store.remove_by_regex("[ab]") == -900
    finally:
        store._native = None


def test_remove_all_empties_the_cluster(coordinator, owner):
    assert owner.put("one of several", b"x") == 0
    assert owner.remove_all(force=True) > 0
    assert owner.is_exist("one of several") == 0
    assert owner.remove_all() == 0


def test_a_store_that_is_closed_answers_with_codes(coordinator):
    memory = Memory(10)
    for store in (opened(coordinator), MooncakeDistributedStore()):
        assert store.close() == 0 and store.close() == 0
        assert store.health_check() == 1
        assert (store.put("k", b"v"), store.remove("k"), store.get_size("k")) == (-600, -600, -600)
        assert (store.get("k"), store.get_buffer("k"), store.is_exist("k")) == (b"", None, -1)
        assert store.batch_get_into(["k"], [memory.at], [10]) == [-600]
        assert store.batch_put_from(["k"], [memory.at], [10]) == [-600]
        assert store.register_buffer(memory.at, 10) == store.unregister_buffer(memory.at) == -600
        assert store.batch_get_session_start(["k"]) == [-600] and store.remove_all() == -600


def test_calls_during_close_end_with_codes(coordinator, owner):
    store = opened(coordinator)
    memory = Memory(1000)
    codes, begun = set(), threading.Event()

    def work():
        while True:
            code = store.put_from(f"during close/{len(codes)}", memory.at, 1000)
            codes.add(code)
            begun.set()
            if code == -600:
                return

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    begun.wait()
    assert store.close() == 0
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert codes <= {0, -600, -900}


def test_health(coordinator, owner):
    assert owner.health_check() == 0
    assert owner.get_hostname().startswith("127.0.0.1:")
    assert owner.setup("127.0.0.1", "", 1 << 20, 0, "tcp", "", coordinator.address) == 0


def test_settings_as_a_dictionary(coordinator, caplog):
    def code(**settings):
        store = MooncakeDistributedStore()
        given = {"local_hostname": "localhost", "master_server_addr": coordinator.address}
        result = store.setup({**given, "global_segment_size": "32MB", **settings})
        store.close()
        return result

    assert code() == 0
    assert code(global_segment_size=33554432, local_buffer_size="1GB") == 0
    assert code(global_segment_size="50%") == -600
    assert code(protocol="pigeon") == -600
    assert code(tenant_id="other") == 0
    assert code(tenant_id="n" * 65) == -600
    assert code(master_server_addr="redis://127.0.0.1:6379") == -600
    assert code(local_hostname="no such host") == -600
    assert MooncakeDistributedStore().setup({"master_server_addr": coordinator.address}) == -600
    caplog.clear()
    assert code(device_name="mlx5_0", colour="red", protocol="rdma") == 0
    assert "'device_name' is called 'rdma_devices'" in caplog.text
    assert "'colour' is no setting" in caplog.text
    assert "no device mlx5_0 here" in caplog.text and "over TCP" in caplog.text
    caplog.clear()
    assert code(rdma_devices="mlx5_0", protocol="tcp") == 0
    assert "rdma_devices are ignored" in caplog.text


def test_a_store_without_a_coordinator_is_refused(monkeypatch, caplog):
    monkeypatch.setenv("LUNETTE_TIMEOUT_S", "0.5")
    monkeypatch.setenv("MC_STORE_MEMCPY", "1")
    for memory in (1 << 25, 0):
        store = MooncakeDistributedStore()
        assert store.setup("127.0.0.1", "", memory, 0, "tcp", "", "127.0.0.1:1") == -1
    assert "MC_STORE_MEMCPY" in caplog.text
    monkeypatch.delenv("LUNETTE_INSECURE", raising=False)
    assert MooncakeDistributedStore().setup("0.0.0.0", "", 1 << 25, 0, "tcp", "", "127.0.0.1:1") == -1
    assert "not loopback" in caplog.text


def test_the_environment_says_how_many_cores_there_are(coordinator, key, monkeypatch, caplog):
    def setup(store, memory_bytes):
        return store.setup("127.0.0.1", "", memory_bytes, 0, "tcp", "", coordinator.address)

    monkeypatch.setenv("LUNETTE_CORES", "2")
    member, client = MooncakeDistributedStore(), MooncakeDistributedStore()
    assert (setup(member, 64 << 20), setup(client, 0)) == (0, 0)
    keys, values = [f"{key}/{n}" for n in range(40)], [bytes([n]) * 100_000 for n in range(40)]
    assert client.put_batch(keys, values) == 0
    assert [member.get(name) for name in keys] == values
    assert (client.close(), member.close()) == (0, 0)
    for wrong in ("many", "0", "-1", "1000"):
        monkeypatch.setenv("LUNETTE_CORES", wrong)
        assert setup(MooncakeDistributedStore(), 0) == -600
        assert f"LUNETTE_CORES={wrong}" in caplog.text


def test_with_a_secret_all_of_it_is_proved(tmp_path, monkeypatch):
    secret, other = tmp_path / "secret", tmp_path / "other"
    for file in (secret, other):
        file.write_text(f"{random.randbytes(40).hex()}\n")
        file.chmod(0o600)
    with lunette.Coordinator("127.0.0.1:0", secret_file=secret) as coordinator:

        def code(memory_bytes=32 << 20):
            store = MooncakeDistributedStore()
            code = store.setup("127.0.0.1", "", memory_bytes, 0, "tcp", "", coordinator.address)
            return code, store

        monkeypatch.setenv("LUNETTE_SECRET_FILE", str(secret))
        (opened, member), (joined, client) = code(), code(0)
        assert (opened, joined) == (0, 0)
        assert member.put("k", b"value") == 0 and client.get("k") == b"value"
        monkeypatch.setenv("LUNETTE_TIMEOUT_S", "1")
        monkeypatch.setenv("LUNETTE_SECRET_FILE", str(other))
        assert code()[0] == -1 and code(0)[0] == -1
        monkeypatch.delenv("LUNETTE_SECRET_FILE")
        assert code()[0] == -1 and code(0)[0] == -1
        other.chmod(0o644)
        monkeypatch.setenv("LUNETTE_SECRET_FILE", str(other))
        assert code()[0] == -1
        assert (client.close(), member.close()) == (0, 0)


def test_what_leaves_memory_goes_to_a_drive(coordinator, tmp_path, monkeypatch):
    monkeypatch.setenv("LUNETTE_DRIVE_SIZE", "256MB")
    store = MooncakeDistributedStore()
    code = store.setup(
        "127.0.0.1",
        "",
        32 << 20,
        0,
        "tcp",
        "",
        coordinator.address,
        enable_ssd_offload=True,
        ssd_offload_path=str(tmp_path / "drive"),
    )
    assert code == 0
    assert list((tmp_path / "drive").iterdir())
    assert store.close() == 0


def test_memory_by_its_address():
    allocator = MooncakeHostMemAllocator()
    address = allocator.alloc(10_000)
    ctypes.memset(address, 7, 10_000)
    assert ctypes.string_at(address, 10_000) == b"\x07" * 10_000
    assert allocator.free(address) == 0
    assert allocator.free(address) == -1
    assert allocator.alloc(1 << 60) == 0


def test_copies_are_told_by_their_members(store, owner, key):
    assert store.get_replica_desc(key) == []
    assert store.batch_put_from([], [], []) == [] and store.batch_get_replica_desc([]) == {}
    assert store.put(key, b"x" * 1000) == 0
    (replica,) = store.get_replica_desc(key)
    assert replica.status == ReplicaStatus.COMPLETE
    assert replica.is_memory_replica() and not replica.is_disk_replica() and not replica.is_local_disk_replica()
    placed = replica.get_memory_descriptor().buffer_descriptor
    assert (placed.size, placed.transport_endpoint) == (1000, owner.get_hostname())
    with pytest.raises(RuntimeError):
        replica.get_disk_descriptor()
    both = store.batch_get_replica_desc([key, "none", "k" * 2000])
    assert both == {key: [replica]}
    with pytest.raises(TypeError):
        store.get_replica_desc(b"bytes")


def test_a_closed_store_tells_of_no_copies():
    assert MooncakeDistributedStore().get_replica_desc("k") == []
    assert MooncakeDistributedStore().batch_get_replica_desc(["k"]) == {}
