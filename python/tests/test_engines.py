"""Serving engines' own modules, driven against this wheel."""

import random
import time
from types import SimpleNamespace

import engines
import pytest
from engines import Tensor, noise


def test_checkpoint_engine_reads_weights_of_a_peer(monkeypatch):
    module = engines.load(
        "checkpoint_engine",
        "checkpoint_engine/p2p_store.py",
        {"torch", "loguru", "checkpoint_engine"},
        get_ip=lambda: "127.0.0.1",
        logger=engines.Anything(),
    )
    monkeypatch.setenv("RANK", "3")
    manager = SimpleNamespace(
        device_module=SimpleNamespace(device_count=lambda: 8),
        rdma_device=lambda rank: f"mlx5_{rank}",
        transfer_engine_protocol="rdma",
    )
    owner, reader = module.P2PStore(manager), module.P2PStore(manager)
    weights = {name: Tensor(noise(size, size)) for name, size in (("a", 5000), ("b", 3 << 20))}
    rooms = {name: Tensor(bytes(weights[name].nbytes)) for name in weights}
    owner.register_named_tensors(weights)
    reader.register_named_tensors(rooms)
    reader.batch_transfer_sync_read(
        owner.addr,
        [rooms[name].data_ptr() for name in weights],
        [weights[name].data_ptr() for name in weights],
        [weights[name].nbytes for name in weights],
    )
    assert all(rooms[name].value == weights[name].value for name in weights)
    assert owner.unregister_named_tensors(["a", "b"]) == 2
    with pytest.raises(AssertionError):
        reader.batch_transfer_sync_read(
            owner.addr, [rooms["a"].data_ptr()], [weights["a"].data_ptr()], [10]
        )
    assert reader.unregister_named_tensors(["a", "b"]) == 2


class Settings:
    """SGLang's settings of the environment: none is set."""

    VALUES = {
        "MOONCAKE_PROTOCOL": "tcp",
        "SGLANG_DISAGGREGATION_ENGINE_INIT_TIMEOUT": 60,
        "MOONCAKE_MASTER": None,
    }

    def __getattr__(self, name):
        value = self.VALUES.get(name)
        return SimpleNamespace(default=value, get=lambda: value, is_set=lambda: False)


def sglang_transfer_engine():
    address = SimpleNamespace
    return engines.load(
        "sglang",
        "sglang/srt/distributed/device_communicators/mooncake_transfer_engine.py",
        {"sglang"},
        envs=Settings(),
        run_with_deadline=lambda run, timeout_s, what: run(),
        NetworkAddress=lambda host, port: address(to_host_port_str=lambda: f"{host}:{port}"),
    )


def test_sglang_moves_pages_from_prefill_to_decode():
    module = sglang_transfer_engine()
    prefill = module.MooncakeTransferEngine("127.0.0.1", 0, "mlx5_0")
    decode = module.MooncakeTransferEngine("127.0.0.1", 1, '{"1": "mlx5_1"}')
    pages, rooms = Tensor(noise(1 << 20)), Tensor(bytes(1 << 20))
    prefill.register(pages.data_ptr(), pages.nbytes)
    assert decode.batch_register([rooms.data_ptr()], [rooms.nbytes]) == 0
    assert prefill.send_probe(decode.get_session_id()) == 0
    page = 1 << 16
    order = random.Random(1).sample(range(16), 16)
    moved = prefill.batch_transfer_sync(
        decode.get_session_id(),
        [pages.data_ptr() + page * n for n in range(16)],
        [rooms.data_ptr() + page * n for n in order],
        [page] * 16,
    )
    assert moved == 0
    for n, place in enumerate(order):
        assert rooms.value[place * page :][:page] == pages.value[n * page :][:page]
    one = prefill.transfer_sync(decode.get_session_id(), pages.data_ptr(), rooms.data_ptr(), 10)
    assert one == 0 and rooms.value[:10] == pages.value[:10]
    gone = rooms.data_ptr()
    assert decode.batch_deregister([gone]) == 0
    assert prefill.batch_transfer_sync(decode.get_session_id(), [pages.data_ptr()], [gone], [10]) < 0
    prefill.deregister(pages.data_ptr())
    with pytest.raises(RuntimeError, match="deregistration"):
        prefill.deregister(pages.data_ptr())


@pytest.mark.parametrize("group_semantics", [False, True])
def test_sglang_keeps_pages_in_the_store(coordinator, group_semantics):
    module = engines.load(
        "sglang",
        "sglang/srt/mem_cache/storage/mooncake_store/mooncake_store.py",
        {"sglang", "torch", "requests"},
        envs=Settings(),
    )
    settings = {
        "master_server_address": coordinator.address,
        "local_hostname": "127.0.0.1",
        "metadata_server": "P2PHANDSHAKE",
        "global_segment_size": 64 << 20,
        "protocol": "tcp",
        "device_name": "",
        "check_server": False,
        "enable_group_semantics": group_semantics,
    }
    names = "tp_rank tp_size pp_rank pp_size dp_rank attn_cp_rank attn_cp_size dcp_rank dcp_size"
    ranks = {name: int(name.endswith("size")) for name in names.split()}
    config = SimpleNamespace(
        extra_config=settings,
        model_name=f"a/model/{group_semantics}",
        is_mla_model=False,
        should_split_heads=False,
        enable_storage_metrics=False,
        **ranks,
    )
    store = module.MooncakeStore(config)
    pages, rooms = Tensor(noise(1 << 20)), Tensor(bytes(1 << 20))
    store.register_buffer(pages)
    store.register_buffer(rooms)
    size = 1 << 15
    store.mem_pool_host = SimpleNamespace(
        kv_buffer=pages,
        layout="page_first",
        page_size=1,
        get_page_buffer_meta=lambda indices: (
            [memory.data_ptr() + size * part for n in indices for part in (2 * n, 2 * n + 1)],
            [size] * (2 * len(indices)),
        ),
    )
    memory = pages
    keys = [f"page-{n}" for n in range(8)]
    assert store.batch_exists(keys) == 0
    assert store.batch_set_v1(keys[:5], list(range(5))) == [True] * 5
    assert store.batch_exists(keys) == 5
    assert store.batch_set_v1(keys, list(range(8))) == [True] * 8, "those that are there stay"
    memory = rooms
    assert store.batch_get_v1(keys, list(range(8))) == [True] * 8
    assert rooms.value[: 16 * size] == pages.value[: 16 * size]
    assert store.batch_get_v1(["none", keys[0]], [0, 1]) == [False, True]
    place, other = pages.data_ptr(), rooms.data_ptr()
    assert store.batch_set(["k", "v"], None, [place, place + 100], [100, 50])
    assert store.exists("k") and not store.exists("x")
    assert store.batch_get(["k", "v"], [other, other + 500], [100, 50]) == 1
    assert rooms.value[500:550] == pages.value[100:150]
    assert store.set("m", None, [place, place + 7], [7, 9])
    assert store.get("m", [other, other + 1000], [7, 9])
    assert rooms.value[1000:1009] == pages.value[7:16]
    store.clear()
    assert store.batch_exists(keys) == 0
    assert store.store.close() == 0


def test_lmcache_reads_from_a_peer():
    class Result(SimpleNamespace):
        pass

    module = engines.load(
        "lmcache",
        "lmcache/v1/distributed/transfer_channel/impl/mooncake_te_impl.py",
        {"lmcache", "msgspec", "zmq"},
        TransferChannelReadResult=Result,
        logger=engines.Anything(),
    )
    from mooncake.engine import TransferEngine

    sides = []
    for memory in (Tensor(noise(1 << 20)), Tensor(bytes(1 << 20))):
        engine = TransferEngine()
        assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", *module.collect_env_var()) == 0
        assert engine.register_memory(memory.data_ptr(), memory.nbytes) == 0
        sides.append((engine, memory))
    (owner, objects), (reader, rooms) = sides
    context = SimpleNamespace(
        l1_memory_desc=SimpleNamespace(ptr=rooms.data_ptr()), mooncake_te_engine=reader
    )
    client = module.MooncakeTeTransferChannelClient(
        context, f"127.0.0.1:{owner.get_rpc_port()}", objects.data_ptr()
    )

    def read(ours, theirs):
        places = [[SimpleNamespace(offset=at, size=40_000) for at in side] for side in (ours, theirs)]
        task = client.submit_read(*places)
        deadline = time.monotonic() + 20
        while not (result := client.query_read_status(task)).finished:
            assert time.monotonic() < deadline
        return result.succeeded_mask

    assert read([0, 500_000], [900_000, 7]) == [True, True]
    assert rooms.value[:40_000] == objects.value[900_000:940_000]
    assert rooms.value[500_000:540_000] == objects.value[7:40_007]
    with pytest.raises(RuntimeError, match="Failed to submit"):
        read([0], [objects.nbytes])
    client.close()
