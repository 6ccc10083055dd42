"""vLLM's own connectors, driven against this wheel."""

import asyncio
import contextlib
import itertools
import json
import logging
import random
import tempfile
import time
from types import SimpleNamespace

import engines
import pytest
import vllm_modules
from vllm_modules import BLOCK_TOKENS, ENCODERS, MOONCAKE

from mooncake.store import MooncakeDistributedStore

LAYERS, BLOCKS = 3, 32
TIMEOUT_S = 20
# Where workers of the prefill side are looked up: nothing listens there.
PORT = 8998


@pytest.fixture
def imported(monkeypatch):
    monkeypatch.setenv("VLLM_HOST_IP", "127.0.0.1")
    monkeypatch.setenv("VLLM_MOONCAKE_BOOTSTRAP_PORT", str(PORT))
    with vllm_modules.importing() as imported:
        yield imported


@pytest.fixture
def closed_later(imported):
    """Closes what it is given, also when the test has failed."""
    with contextlib.ExitStack() as stack:
        yield lambda sides: stack.enter_context(contextlib.closing(sides))


def until(condition):
    """What it yields, when that is something."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return found


class Request(SimpleNamespace):
    """A request of so many tokens, whose blocks have hashes of the caller's choice."""

    def __init__(self, name, tokens, hashes, **kwargs):
        ids = list(range(tokens))
        super().__init__(
            request_id=name,
            num_tokens=tokens,
            num_prompt_tokens=tokens,
            prompt_token_ids=ids,
            all_token_ids=ids,
            block_hashes=hashes,
            num_computed_tokens=0,
            **kwargs,
        )


class Blocks:
    """The GPU's blocks, and which of them a connector holds."""

    def __init__(self):
        self.blocks = list(range(BLOCKS))
        self.held = []

    def touch(self, blocks):
        self.held.extend(blocks)

    def free_blocks(self, blocks):
        for block in list(blocks):
            self.held.remove(block)


def step(request, blocks, is_new):
    """What vLLM's scheduler has decided for one step, in which the request is computed, or else waits."""
    data = SimpleNamespace(
        req_id=request.request_id,
        num_computed_tokens=0,
        block_ids=(blocks,),
        prefill_token_ids=None,
        prompt_token_ids=request.prompt_token_ids,
    )
    nothing = SimpleNamespace(
        req_ids=[], new_block_ids=[], resumed_req_ids=set(), num_computed_tokens=[]
    )
    state = SimpleNamespace(boundary_state_offloads=[], get_block_ids=lambda _name: (blocks,))
    return SimpleNamespace(
        finished_req_ids=set(),
        preempted_req_ids=set(),
        scheduled_new_reqs=[data] if is_new else [],
        scheduled_cached_reqs=nothing,
        num_scheduled_tokens={request.request_id: request.num_tokens},
        kv_connector_block_state=state,
    )


class StoreSides:
    """A process of vLLM with the store's connector: the scheduler's side and the worker's."""

    number = itertools.count(1)

    def __init__(self, imported, caches, layout="LBHNC", **extra):
        connector = imported(f"{MOONCAKE}.store.connector")
        roles = imported("vllm.distributed.kv_transfer.kv_connector.v1.base").KVConnectorRole
        config = vllm_modules.config(
            "kv_both", "engine", len(caches), lookup_rpc_port=next(self.number), **extra
        )
        config.cache_config.num_gpu_blocks = BLOCKS
        kv = vllm_modules.cache_config(imported, BLOCKS, len(caches))
        layouts = imported("vllm.v1.kv_cache_layout").KVCacheLayout
        config.cache_config.get_resolved_kv_cache_layout = lambda: layouts[layout]
        self.caches, self.pool = caches, Blocks()
        self.worker = connector.MooncakeStoreConnector(config, roles.WORKER, kv)
        self.scheduler = connector.MooncakeStoreConnector(config, roles.SCHEDULER, kv)
        self.scheduler.bind_gpu_block_pool(self.pool)
        # Where the worker's side has failed, it would wait for ever.
        self.scheduler.connector_scheduler.client.socket.rcvtimeo = TIMEOUT_S * 1000
        self.worker.register_kv_caches(caches)

    def save(self, request, blocks):
        """Computes a request, whose blocks are stored then."""
        assert self.scheduler.get_num_new_matched_tokens(request, 0) == (0, False)
        self.scheduler.update_state_after_alloc(request, None, 0)
        self.run(step(request, blocks, True))
        assert self.pool.held, "blocks are held while they are read"
        output = until(self.worker.build_connector_worker_meta)
        told = SimpleNamespace(kv_connector_worker_meta=output, kv_cache_events=None)
        self.scheduler.update_connector_output(told)
        assert not self.pool.held and not self.scheduler.has_pending_push_work()

    def plan_load(self, request, blocks):
        """Looks a request up, and finds blocks for what is stored of it: the tokens."""
        tokens, is_async = self.scheduler.get_num_new_matched_tokens(request, 0)
        if tokens:
            assert is_async
            found = SimpleNamespace(get_block_ids=lambda group_ids: (blocks,))
            self.scheduler.update_state_after_alloc(request, found, tokens)
        return tokens

    def load(self, request, blocks):
        """Loads what has been planned: the blocks that could not be."""
        self.run(step(request, blocks, False))
        until(lambda: request.request_id in self.worker.get_finished(set())[1])
        return self.worker.get_block_ids_with_load_errors()

    def run(self, decided):
        self.worker.bind_connector_metadata(self.scheduler.build_connector_meta(decided))
        self.worker.start_load_kv(None)
        self.worker.wait_for_save()

    def close(self):
        worker, client = self.worker.connector_worker, self.scheduler.connector_scheduler.client
        server, lookup = worker.lookup_server, worker.lookup

        def the_last(*asked):
            server.running = False
            return lookup(*asked)

        worker.lookup = the_last
        if server.thread.is_alive():
            client.lookup("the last", 0, [])
        server.thread.join(TIMEOUT_S)
        server.close()
        client.close()
        self.worker.shutdown()


class TransferSides:
    """A process of vLLM of one role, with the connector that moves blocks from prefill to decode: the scheduler's side and
    the worker's."""

    def __init__(self, imported, role, caches):
        module = imported(f"{MOONCAKE}.mooncake_connector")
        roles = imported("vllm.distributed.kv_transfer.kv_connector.v1.base").KVConnectorRole
        config = vllm_modules.config(role, f"engine of a {role}", LAYERS, mooncake_protocol="tcp")
        kv = vllm_modules.cache_config(imported, BLOCKS, LAYERS)
        # It would shut down where a test has failed, and wait for ever.
        module.MooncakeConnectorWorker.__del__ = lambda _self: None
        self.caches = caches
        self.worker = module.MooncakeConnector(config, roles.WORKER, kv)
        self.scheduler = module.MooncakeConnector(config, roles.SCHEDULER, kv)
        self.finished = imported("vllm.v1.request").RequestStatus.FINISHED_LENGTH_CAPPED
        self.worker.register_kv_caches(caches)

    def prefill(self, name, blocks):
        """Computes a request, whose blocks wait then for the other side."""
        params = {"do_remote_decode": True, "transfer_id": f"{name} moves"}
        request = Request(name, 70, [], kv_transfer_params=params, status=self.finished)
        assert self.scheduler.get_num_new_matched_tokens(request, 0) == (0, False)
        self.scheduler.update_state_after_alloc(request, None, 0)
        self.run()
        assert self.scheduler.request_finished(request, blocks) == (True, None)
        self.run()

    def decode(self, name, blocks, source):
        """Asks the other side for as many blocks of that request: what could not be had."""
        params = {
            "do_remote_prefill": True,
            "remote_bootstrap_addr": f"http://127.0.0.1:{PORT}",
            "remote_engine_id": source.worker.engine_id,
            "transfer_id": f"{name} moves",
        }
        request = Request(name, 70, [], kv_transfer_params=params)
        assert self.scheduler.get_num_new_matched_tokens(request, 0) == (70, True)
        found = SimpleNamespace(get_unhashed_block_ids_all_groups=lambda: [blocks])
        self.scheduler.update_state_after_alloc(request, found, 70)
        self.run()
        told = until(lambda: self.worker.get_transfer_results(set()).finished_recving)
        assert told == {name}
        return self.worker.get_block_ids_with_load_errors()

    def run(self):
        self.worker.bind_connector_metadata(self.scheduler.build_connector_meta(None))
        self.worker.start_load_kv(None)

    def close(self):
        worker = self.worker.connector_worker
        if not worker.is_kv_consumer:
            asyncio.run_coroutine_threadsafe(end_tasks(), worker.sender_loop).result(TIMEOUT_S)
        worker.shutdown()


async def end_tasks():
    """Ends what listens: `shutdown` waits for its sockets."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def are_equal(some, others, blocks):
    """Whether blocks of two caches are of the same bytes, in all layers; pairs of numbers."""
    blocks = list(blocks)
    return bool(blocks) and all(
        (some[layer].array[ours] == others[layer].array[theirs]).all()
        for layer in some
        for ours, theirs in blocks
    )


@pytest.fixture
def settings(coordinator, monkeypatch, tmp_path):
    """vLLM's file of settings, as examples/README.md has it."""
    path = tmp_path / "mooncake.json"
    given = json.loads(engines.example("vLLM 0.33: MooncakeStoreConnector", "json"))
    assert given["master_server_address"] and given["global_segment_size"] == "64GB"

    def write(**changes):
        path.write_text(json.dumps({**given, **changes}))

    write(master_server_address=coordinator.address, global_segment_size="64MB")
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", str(path))
    # A socket's name is short.
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("VLLM_RPC_BASE_PATH", folder)
        yield write


@pytest.mark.parametrize("group_semantics", ["False", "True"])
def test_blocks_are_stored_and_loaded_elsewhere(imported, settings, closed_later, group_semantics):
    extra = {"enable_group_semantics": group_semantics, "cache_prefix": group_semantics}
    one = closed_later(StoreSides(imported, vllm_modules.caches(1, BLOCKS, LAYERS), **extra))
    two = closed_later(StoreSides(imported, vllm_modules.caches(None, BLOCKS, LAYERS), **extra))
    hashes = [random.Random(n).randbytes(32) for n in range(7)]
    saved, loaded = [9, 3, 4, 5, 20, 1], [30, 2, 8, 7, 6]
    one.save(Request("first", 5 * BLOCK_TOKENS + 3, hashes[:5]), saved)
    assert len(one.worker.get_kv_connector_kv_cache_events().get_all_events()) == 5
    # Two more blocks are not stored, and the last token of what is stored is computed again.
    again = Request("second", 7 * BLOCK_TOKENS, hashes)
    assert two.plan_load(again, loaded) == 5 * BLOCK_TOKENS
    assert not are_equal(two.caches, one.caches, zip(loaded, saved))
    assert two.load(again, loaded) == set()
    assert are_equal(two.caches, one.caches, zip(loaded, saved))
    untouched = [block for block in range(BLOCKS) if block not in loaded]
    assert not any(two.caches[layer].array[untouched].any() for layer in two.caches)
    other = Request("other", 3 * BLOCK_TOKENS, hashes[4:])
    assert two.plan_load(other, loaded) == BLOCK_TOKENS
    third = Request("third", 5 * BLOCK_TOKENS + 3, hashes[:5])
    assert two.plan_load(third, loaded) == 5 * BLOCK_TOKENS
    assert one.scheduler.reset_cache()
    assert two.load(third, loaded) == set(loaded), "what is gone meanwhile is told"
    assert two.plan_load(Request("fourth", 90, hashes[:5]), loaded) == 0


@pytest.mark.parametrize("layout, pieces", [("LBHNC", 40), ("LBNHC", 640)])
def test_blocks_are_in_shards_for_other_numbers_of_gpus(imported, settings, closed_later, layout, pieces):
    """With the heads of a token side by side, each layer and token is a piece of the object."""
    layers = 40
    caches = [vllm_modules.caches(seed, BLOCKS, layers, layout) for seed in (1, None)]
    one, two = (
        closed_later(StoreSides(imported, each, layout, store_tp_size=2)) for each in caches
    )
    hashes = [bytes([n]) * 32 for n in range(3)]
    one.save(Request("first", 3 * BLOCK_TOKENS + 1, hashes), [7, 3, 4])
    again = Request("second", 3 * BLOCK_TOKENS + 1, hashes)
    assert two.plan_load(again, [1, 9, 5]) == 3 * BLOCK_TOKENS
    assert two.load(again, [1, 9, 5]) == set()
    assert are_equal(two.caches, one.caches, [(1, 7), (9, 3), (5, 4)])
    shards = two.worker.connector_worker.token_dbs[0].store_layout
    (places,), _, _ = shards.prepare_values([(0, BLOCK_TOKENS)], [1], [0])
    assert len(places) == pieces


def test_blocks_are_in_a_node_of_its_own(
    imported, settings, closed_later, coordinator, monkeypatch, caplog
):
    """The workers lend nothing, and name the node."""
    node = MooncakeDistributedStore()
    master = coordinator.address
    assert node.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 0, "tcp", "", master) == 0
    settings(master_server_address=master, global_segment_size=0, mode="standalone-store")
    monkeypatch.setenv("VLLM_HOST_IP", "192.0.2.1")
    monkeypatch.setenv("MOONCAKE_REQUESTER_LOCAL_HOSTNAME", "127.0.0.1")
    monkeypatch.setenv("MOONCAKE_PREFERRED_SEGMENT", node.get_hostname())
    monkeypatch.setenv("VLLM_MOONCAKE_STORE_TIER_LOG", "1")
    caplog.set_level(logging.INFO, logger="vllm")
    caches = [vllm_modules.caches(seed, BLOCKS, LAYERS) for seed in (1, None)]
    one, two = (closed_later(StoreSides(imported, each)) for each in caches)
    assert "settings of the environment" not in caplog.text, "vLLM heeds them"
    hashes = [bytes([n]) * 32 for n in (100, 200)]
    one.save(Request("first", 2 * BLOCK_TOKENS + 1, hashes), [4, 7])
    again = Request("second", 2 * BLOCK_TOKENS + 1, hashes)
    assert two.plan_load(again, [1, 2]) == 2 * BLOCK_TOKENS
    assert two.load(again, [1, 2]) == set()
    assert are_equal(two.caches, one.caches, [(1, 4), (2, 7)])
    assert "memory_keys=2 disk_keys=0 unknown_keys=0 success_keys=2" in caplog.text
    assert node.close() == 0


def test_blocks_are_moved_from_prefill_to_decode(imported, closed_later):
    caches = [vllm_modules.caches(seed, BLOCKS, LAYERS) for seed in (1, None)]
    source = closed_later(TransferSides(imported, "kv_producer", caches[0]))
    target = closed_later(TransferSides(imported, "kv_consumer", caches[1]))
    source.prefill("first", [4, 5, 6, 20, 3])
    assert target.decode("first", [30, 31, 7, 1, 2], source) == set()
    moved = [(30, 4), (31, 5), (7, 6), (1, 20), (2, 3)]
    assert are_equal(target.caches, source.caches, moved)
    assert until(lambda: source.worker.get_finished(set())[0]) == {"first"}
    # The decode side has the first ones of these already.
    source.prefill("second", [8, 9, 10, 11, 12])
    assert target.decode("second", [18, 17], source) == set()
    assert are_equal(target.caches, source.caches, [*moved, (18, 11), (17, 12)])
    untouched = [block for block in range(BLOCKS) if block not in (30, 31, 7, 1, 2, 18, 17)]
    assert not any(target.caches[layer].array[untouched].any() for layer in target.caches)
    stats = source.worker.get_kv_connector_stats().data
    block_bytes = target.caches["layers.0"].array[0].nbytes
    assert sum(stats["bytes_transferred"]) == 7 * LAYERS * block_bytes, stats
    source.prefill("third", [8])
    target.worker.unregister_kv_caches()
    assert target.decode("third", [19], source) == {19}, "its memory is no longer the peer's"
    target.worker.restore_kv_caches()
    source.prefill("fourth", [8])
    assert target.decode("fourth", [19], source) == set()
    assert are_equal(target.caches, source.caches, [(19, 8)])


def test_outputs_of_encoders_are_stored_and_loaded_elsewhere(imported, settings):
    """Its client takes some codes only for a sign that buffers are free again, and after others asks to be ended."""
    import numpy

    module = imported(f"{ENCODERS}.store_client")
    data = imported(f"{ENCODERS}.data")
    backend = imported(f"{ENCODERS}.backend").MooncakeEmbeddingStoreBackend
    one, two = (module.create_mooncake_embedding_store_client(1 << 20) for _ in range(2))
    ours, theirs = (
        backend(client, "a/model", max_pending_items=8, max_pending_bytes=1 << 24)
        for client in (one, two)
    )
    arrays = [numpy.random.default_rng(n).integers(-99, 99, (n + 1, 700), "int16") for n in range(6)]
    dtype = vllm_modules.Dtype("bfloat16", 2)
    outputs = {f"{n}": vllm_modules.Tensor(array, dtype) for n, array in enumerate(arrays)}
    specs = {
        name: data.TensorSpec(each.shape, str(dtype), each.nbytes) for name, each in outputs.items()
    }
    assert ours.resolve_inputs(specs, {}, "cpu") == set()
    for name, output in outputs.items():
        ours.save_output(name, output)
    until(lambda: ours.reap() or not ours._pending)
    specs["none"] = specs["0"]
    cache = {}
    assert theirs.resolve_inputs(specs, cache, "cpu") == set(outputs) == set(cache)
    assert all((cache[name].array == outputs[name].array).all() for name in outputs)
    shorter = data.TensorSpec((1, 500), "torch.bfloat16", 1000)
    assert theirs.resolve_inputs({"3": shorter}, {}, "cpu") == set(), "there is not room enough"
    key = data.make_embedding_key("a/model", "3")
    assert two.load_tensors({key: specs["3"], "gone": specs["3"]}, "cpu").keys() == {key}
    for each in (ours, theirs):
        each.shutdown()
