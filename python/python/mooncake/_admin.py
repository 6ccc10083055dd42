"""What Mooncake's master tells of objects over HTTP: which keys there are, and where the copies of one lie.

Of a copy it is told how long it is and which member has it (`transport_endpoint_`); where in that member's memory is not told
(`buffer_address_` is 0): nobody reads there without asking. Keys of tenants other than the default one are not told.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from urllib.parse import unquote_to_bytes

import lunette

from ._codes import INVALID_PARAMS, OBJECT_NOT_FOUND, RPC_FAIL

# Longest list of keys.
KEYS_BYTES_MAX = 256 << 20

TEXT = "text/plain; version=0.0.4"
PLAIN = "text/plain; charset=utf-8"
JSON = "application/json; charset=utf-8"
Answer = tuple[int, str, "str | bytes"]


def of_state(path: str) -> Answer | None:
    """What does not change: there is one coordinator, and it serves; `None` for any other path."""
    health = {
        "status": "ok",
        "role": "leader",
        "ha_state": "serving",
        "service_ready": True,
        "leader_address": None,
        "view_version": None,
    }
    leader = {"present": False, "leader_address": None, "view_version": None}
    answers: Mapping[str, Answer] = {
        "/health": (200, JSON, json_of(health)),
        "/role": (200, PLAIN, "leader"),
        "/ha_status": (200, PLAIN, "serving"),
        "/leader": (200, JSON, json_of(leader)),
    }
    return answers.get(path)


def of_objects(path: str) -> Callable[[lunette.Store, str], Answer] | None:
    """What answers there, of a store and a query."""
    return {
        "/get_all_keys": _all_keys,
        "/query_key": _query_key,
        "/batch_query_keys": _query_keys,
    }.get(path)


def json_of(data: object) -> str:
    """As the original has it."""
    return json.dumps(data, separators=(",", ":"))


def refused(status: int, code: int, why: str) -> Answer:
    """A request of which nothing comes."""
    return status, JSON, json_of({"success": False, "error_code": code, "error_message": why})


def forbidden(what: str) -> Answer:
    """To who is on another host: nobody has proved who they are."""
    return refused(403, INVALID_PARAMS, f"{what} from this host only")


def unavailable(why: lunette.StoreError) -> Answer:
    """No member can be asked, or none could do it."""
    return refused(503, RPC_FAIL, str(why))


def _all_keys(store: lunette.Store, query: str) -> Answer:
    lines = bytearray()
    for key in store.keys():
        lines += key + b"\n"
        if len(lines) > KEYS_BYTES_MAX:
            return refused(503, RPC_FAIL, "there are too many keys to be told at once")
    return 200, TEXT, bytes(lines)


def _query_key(store: lunette.Store, query: str) -> Answer:
    (key,) = _values(query, "key", "")
    copies = _copies(store, [key])[0]
    if copies is None:
        return refused(404, OBJECT_NOT_FOUND, "OBJECT_NOT_FOUND")
    return 200, JSON, json_of({"success": True, "data": copies})


def _query_keys(store: lunette.Store, query: str) -> Answer:
    keys = [key for key in _values(query, "keys", ",") if key]
    if not keys:
        error = "No keys provided. Use ?keys=key1,key2,..."
        return 400, JSON, json_of({"success": False, "error": error})
    found = zip(keys, _copies(store, keys))
    told = {key.decode(errors="replace"): _told(copies) for key, copies in found}
    return 200, JSON, json_of({"success": True, "data": told})


def _told(copies: list[dict[str, object]] | None) -> dict[str, object]:
    return {
        "ok": copies is not None,
        "error": None if copies is not None else "OBJECT_NOT_FOUND",
        "values": copies,
        "disk_values": None,
        "local_disk_values": None,
        "nof_values": None,
    }


def _copies(store: lunette.Store, keys: list[bytes]) -> list[list[dict[str, object]] | None]:
    """Of each key its copies; `None` where there is no object, or what is no key."""
    try:
        located = store.locate(keys)
    except lunette.InvalidKey as why:
        located = [None if isinstance(each, lunette.InvalidKey) else each for each in why.outcomes]
    return [place and [_copy(place[0], node) for node in place[1]] for place in located]


def _copy(size: int, node: str) -> dict[str, object]:
    return {
        "size_": size,
        "buffer_address_": 0,
        "protocol_": "tcp",
        "transport_endpoint_": node,
    }


def _values(query: str, name: str, separator: str) -> list[bytes]:
    """The values of a query's parameter, each with what is escaped in it; a plus stands for itself."""
    parameters = (each.partition("=") for each in query.split("&"))
    value = next((value for known, _, value in parameters if known == name), "")
    values = value.split(separator) if separator else [value]
    return [unquote_to_bytes(each) for each in values]
