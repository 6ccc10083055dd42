"""vLLM's own modules around its two connectors, in a process that has no torch and no GPU.

Its connectors, workers, transfer threads, schedulers and cache coordinators are its own; what they ask of the model, of the
GPU and of HTTP is stood in for.
"""

import contextlib
import logging
import re
import sys
import urllib.parse
from dataclasses import asdict, dataclass
from types import SimpleNamespace

import engines
import pytest

BLOCK_TOKENS = 16
CONNECTORS = "vllm.distributed.kv_transfer.kv_connector"
MOONCAKE = f"{CONNECTORS}.v1.mooncake"
ENCODERS = "vllm.distributed.ec_transfer.ec_connector.mooncake_store_embedding"
ROOTS = {
    "fastapi",
    "huggingface_hub",
    "prometheus_client",
    "psutil",
    "pydantic",
    "regex",
    "torch",
    "urllib3",
    "uvicorn",
    "vllm",
}


class Device:
    """Where a tensor lies."""

    def __init__(self, kind):
        self.type = kind if isinstance(kind, str) else kind.type


class Dtype:
    """What a tensor is of."""

    def __init__(self, name, itemsize):
        self.name, self.itemsize = name, itemsize

    def __str__(self):
        return f"torch.{self.name}"


class Tensor:
    """As much of a tensor as its modules look at, over an array."""

    device = Device("cpu")

    def __init__(self, array, dtype=None):
        self.array, self.dtype = array, dtype
        self.shape, self.ndim, self.nbytes = array.shape, array.ndim, array.nbytes

    def __getitem__(self, index):
        return Tensor(self.array[index])

    def data_ptr(self):
        return self.array.ctypes.data

    def element_size(self):
        return self.array.itemsize

    def numel(self):
        return self.array.size

    def is_contiguous(self):
        return self.array.flags.c_contiguous

    def view(self, how):
        return Tensor(self.array.reshape(-1) if how == -1 else self.array.view("int8"))

    def copy_(self, other, non_blocking):
        self.array[...] = other.array

    def stride(self, dimension=None):
        strides = [each // self.array.itemsize for each in self.array.strides]
        return tuple(strides) if dimension is None else strides[dimension]

    def untyped_storage(self):
        array = self.array if self.array.base is None else self.array.base
        return SimpleNamespace(data_ptr=lambda: array.ctypes.data, nbytes=lambda: array.nbytes)


def empty(shape, dtype, **_kwargs):
    """A new tensor, of zeros."""
    import numpy

    return Tensor(numpy.zeros(shape, f"int{dtype.itemsize * 8}"), dtype)


class BlockStored(SimpleNamespace):
    """What a worker tells of a block that it has stored."""

    __hash__ = object.__hash__


@dataclass
class Payload:
    """By what a worker of the prefill side tells where it listens."""

    engine_id: str
    dp_rank: int
    tp_rank: int
    pp_rank: int
    addr: str

    def model_dump(self):
        return asdict(self)


class Bootstrap:
    """Where workers of the prefill side are looked up, without HTTP."""

    servers: dict[int, dict] = {}

    def __init__(self, _host, port):
        self.entry = self.servers[port] = {}

    def start(self):
        pass

    def shutdown(self):
        pass


class HttpClient:
    """Asks such a server."""

    def __init__(self, timeout):
        pass

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_error):
        pass

    async def post(self, url, json):
        entry = self.entry(url)
        entry["engine_id"] = json["engine_id"]
        entry["worker_addr"] = {str(json["tp_rank"]): {str(json["pp_rank"]): json["addr"]}}
        return SimpleNamespace(raise_for_status=lambda: None)

    async def get(self, url):
        found = {"0": self.entry(url)}
        return SimpleNamespace(raise_for_status=lambda: None, json=lambda: found)

    @staticmethod
    def entry(url):
        return Bootstrap.servers[int(re.search(r":(\d+)/", url)[1])]


def parse_url(text):
    parts = urllib.parse.urlsplit(text)
    return SimpleNamespace(
        scheme=parts.scheme, hostname=parts.hostname, port=parts.port, path=parts.path
    )


def init_logger(name):
    logger = logging.getLogger(name)
    logger.info_once, logger.warning_once = logger.info, logger.warning
    return logger


def names():
    """What its modules import, and is not theirs."""
    alone = SimpleNamespace(world_size=1, rank_in_group=0)
    ranks = {
        "get_tensor_model_parallel_rank": lambda: 0,
        "get_tensor_model_parallel_world_size": lambda: 1,
    }
    groups = {f"get_{name}_group": lambda: alone for name in ("dcp", "pcp", "pp")}
    return {
        "huggingface_hub.utils": {
            "httpx": SimpleNamespace(
                AsyncClient=HttpClient,
                ConnectError=ConnectionError,
                HTTPStatusError=ConnectionError,
                RequestError=ConnectionError,
                TimeoutException=TimeoutError,
            )
        },
        "psutil": {"virtual_memory": lambda: SimpleNamespace(total=1 << 33, available=1 << 32)},
        "regex": {"match": re.match},
        "torch": {
            "Tensor": Tensor,
            "bfloat16": Dtype("bfloat16", 2),
            "device": Device,
            "empty": empty,
            "uint8": Dtype("uint8", 1),
        },
        "urllib3.util": {"parse_url": parse_url},
        "vllm.distributed": {**ranks, **groups},
        "vllm.distributed.kv_events": {"BlockStored": BlockStored},
        "vllm.distributed.parallel_state": {**ranks, **groups},
        "vllm.logger": {"init_logger": init_logger},
        "vllm.model_executor.models.utils": {
            "extract_layer_index": lambda name: int(name.rpartition(".")[2])
        },
        "vllm.utils.torch_utils": {"get_dtype_size": lambda dtype: dtype.itemsize},
        "vllm.v1.attention.backends.utils": {"NULL_BLOCK_ID": 0},
        "vllm.v1.request": {"RequestStatus": SimpleNamespace(FINISHED_LENGTH_CAPPED=1)},
        "vllm.v1.worker.utils": {"select_common_block_size": lambda size, *_: size},
        f"{CONNECTORS}.utils": {
            "get_current_attn_backends": lambda _config: [],
            "get_current_attn_backends_and_specs": lambda *_: ([], []),
        },
        f"{MOONCAKE}.mooncake_utils": {
            "MooncakeBootstrapServer": Bootstrap,
            "RegisterWorkerPayload": Payload,
        },
    }


def keep_contexts(zmq):
    """One that is collected waits for its sockets. When a test has failed these are open still, and it would wait forever:
    contexts are kept until the interpreter ends, where they are not waited for."""
    if not hasattr(zmq.Context, "kept"):
        zmq.Context.kept = []
        init = zmq.Context.__init__

        def keep(self, *args, **kwargs):
            init(self, *args, **kwargs)
            zmq.Context.kept.append(self)

        zmq.Context.__init__ = keep


@contextlib.contextmanager
def importing():
    """While it lasts, vLLM's modules can be imported."""
    if sys.version_info < (3, 11):
        pytest.skip("vLLM 0.33 needs Python 3.11")
    for package in ("numpy", "msgspec"):
        pytest.importorskip(package)
    keep_contexts(pytest.importorskip("zmq"))
    with engines.importing("vllm", ("vllm/",), ROOTS, names()) as imported:
        yield imported


def config(role, engine_id, layers, **extra):
    """vLLM's configuration of one process of one GPU."""
    transfer = SimpleNamespace(
        kv_role=role,
        engine_id=engine_id,
        kv_connector_extra_config=extra,
        is_kv_producer=role != "kv_consumer",
        get_from_extra_config=extra.get,
    )
    parallel = SimpleNamespace(
        data_parallel_index=0,
        data_parallel_master_ip="127.0.0.1",
        data_parallel_rank_local=0,
        decode_context_parallel_size=1,
        local_engines_only=True,
        pipeline_parallel_size=1,
        prefill_context_parallel_size=1,
        rank=0,
        tensor_parallel_size=1,
        world_size=1,
    )
    model = SimpleNamespace(
        model="a/model",
        use_mla=False,
        get_num_layers=lambda _parallel: layers,
        get_total_num_kv_heads=lambda: 2,
    )
    cache = SimpleNamespace(
        block_size=BLOCK_TOKENS,
        enable_prefix_caching=True,
        num_gpu_blocks=None,
        prefix_match_unit=None,
        get_resolved_kv_cache_layout=lambda: None,
    )
    return SimpleNamespace(
        cache_config=cache,
        kv_events_config=SimpleNamespace(enable_kv_cache_events=True),
        kv_transfer_config=transfer,
        model_config=model,
        parallel_config=parallel,
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=True),
        speculative_config=None,
    )


def caches(seed, blocks, layers, layout="LBHNC"):
    """A cache for each layer: blocks, heads, tokens, and what there is of each. Noise, or zeros without a seed. Of the
    layouts, `LBNHC` has the heads of a token side by side."""
    import numpy

    shape = (blocks, 2, BLOCK_TOKENS, 128)
    order = (0, 1, 2, 3) if layout == "LBHNC" else (0, 2, 1, 3)
    made = {}
    for layer in range(layers):
        array = numpy.zeros([shape[axis] for axis in order], numpy.int16)
        if seed is not None:
            array[:] = numpy.random.default_rng([seed, layer]).integers(-99, 99, array.shape)
        made[f"layers.{layer}"] = Tensor(array.transpose(order))
    return made


def cache_config(imported, blocks, layers):
    """Its own description of such caches."""
    interface = imported("vllm.v1.kv_cache_interface")
    spec = interface.FullAttentionSpec(
        block_size=BLOCK_TOKENS, num_kv_heads=2, head_size=64, dtype=Dtype("bfloat16", 2)
    )
    names = [f"layers.{layer}" for layer in range(layers)]
    group = interface.KVCacheGroupSpec(names, spec)
    return interface.KVCacheConfig(blocks, [], [group])
