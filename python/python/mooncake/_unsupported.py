"""Methods that are refused, each by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

# Serving engines call none of them; see `COMPATIBILITY.md`.
REFUSED = (
    "_get_pyclient_capsule allocate_and_mount_segment batch_get_tensor "
    "batch_get_tensor_into batch_get_tensor_into_cuda batch_get_tensor_with_parallelism "
    "batch_get_tensor_with_parallelism_into batch_get_tensor_with_tp batch_get_tensor_with_tp_into batch_pub_tensor "
    "batch_pub_tensor_with_tp "
    "batch_put_tensor batch_put_tensor_from batch_put_tensor_with_parallelism "
    "batch_put_tensor_with_parallelism_from batch_put_tensor_with_tp batch_put_tensor_with_tp_from "
    "batch_replica_clear batch_upsert_pub_tensor batch_upsert_tensor batch_upsert_tensor_from "
    "batch_upsert_tensor_with_parallelism batch_upsert_tensor_with_parallelism_from create_copy_task "
    "create_move_task get_offload_rpc_read_count get_tensor get_tensor_into get_tensor_into_cuda "
    "get_tensor_with_parallelism get_tensor_with_parallelism_into get_tensor_with_tp get_tensor_with_tp_into init_all "
    "load_tensor_from_safetensor mount_segment pub_tensor pub_tensor_with_tp put_tensor put_tensor_from "
    "put_tensor_with_parallelism put_tensor_with_parallelism_from put_tensor_with_tp put_tensor_with_tp_from "
    "query_task save_tensor_to_safetensor unmount_and_free_segment "
    "unmount_local_disk_segment unmount_segment upsert_pub_tensor upsert_tensor upsert_tensor_from "
    "upsert_tensor_with_parallelism upsert_tensor_with_parallelism_from"
).split()


def _refused(name: str) -> Callable[..., NoReturn]:
    def refused(self: object, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"{name} is not supported by Lunette: see COMPATIBILITY.md")

    refused.__name__ = name
    refused.__doc__ = "Refused: `NotImplementedError`."
    return refused


class Unsupported:
    """Each method of `REFUSED` raises `NotImplementedError`, which names it."""


for _name in REFUSED:
    setattr(Unsupported, _name, _refused(_name))
