"""Quotas of tenants over HTTP, as Mooncake's master answers for them.

What it says of a tenant: `requested_quota_bytes` is the quota, and so is `effective_quota_bytes`, since a quota is not scaled to what
members lend; `charged_bytes` is what the tenant's objects take of all members' memory, also while that is being evicted down to a
quota that was lowered (`over_quota`). Puts are never closed: what is put beyond a quota takes the place of something of the tenant's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import parse_qs

import lunette

from ._admin import JSON, Answer, json_of, refused
from ._codes import INVALID_PARAMS, OBJECT_NOT_FOUND

PATH = "/api/v1/tenant_quotas"
# Longest body of a request.
BODY_BYTES_MAX = 64 * 1024
QUOTA_BYTES_MAX = (1 << 63) - 1
TENANT_BYTES_MAX = 64


def answer(store: lunette.Store, method: str, query: str, body: bytes) -> Answer:
    """What comes of a request."""
    tenant = parse_qs(query, keep_blank_values=True).get("tenant_id", [""])[0]
    if method == "GET" and not tenant:
        quotas = store.quotas()
        return _done([_told(name, of) for name, of in sorted(quotas.items())])
    if not 0 < len(tenant.encode()) <= TENANT_BYTES_MAX:
        return refused(400, INVALID_PARAMS, "Missing or invalid tenant_id")
    known = store.quotas().get(tenant)
    if method == "PUT":
        return _set(store, tenant, known, body)
    if known is None:
        return refused(404, OBJECT_NOT_FOUND, "OBJECT_NOT_FOUND")
    if method == "DELETE":
        store.set_quota(tenant, None)
        return _done(None)
    return _done(_told(tenant, known))


def _set(store: lunette.Store, tenant: str, known: lunette.Quota | None, body: bytes) -> Answer:
    try:
        wanted = json.loads(body)
    except ValueError as why:
        return refused(400, INVALID_PARAMS, f"Invalid JSON body: {why}")
    quota_bytes = wanted.get("requested_quota_bytes") if isinstance(wanted, Mapping) else None
    is_number = isinstance(quota_bytes, int) and not isinstance(quota_bytes, bool)
    if not is_number or not 0 < quota_bytes <= QUOTA_BYTES_MAX:
        return refused(400, INVALID_PARAMS, "Tenant quota must be in [1, 2^63 - 1] bytes")
    try:
        store.set_quota(tenant, quota_bytes)
    except lunette.Invalid as why:
        return refused(400, INVALID_PARAMS, str(why))
    used_bytes, lent_bytes = (known.used_bytes, known.lent_bytes) if known else (0, 0)
    return _done(_told(tenant, lunette.Quota(quota_bytes, used_bytes, lent_bytes)))


def _told(tenant: str, of: lunette.Quota) -> dict[str, object]:
    return {
        "tenant_id": tenant,
        "requested_quota_bytes": of.quota_bytes,
        "effective_quota_bytes": of.quota_bytes,
        "charged_bytes": of.used_bytes,
        "admission_closed": False,
        "over_quota": of.used_bytes > of.quota_bytes,
        "has_explicit_policy": True,
    }


def _done(data: object) -> Answer:
    return 200, JSON, json_of({"success": True, "data": data})
