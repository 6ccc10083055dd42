"""Settings of a store, and how one is opened."""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from lunette import DEFAULT_TENANT, Invalid
from lunette._native import NativeCluster, NativeStore, rdma_devices

LOG = logging.getLogger("mooncake")

# The cluster's name at its coordinators.
CLUSTER = "mooncake"
MASTER_DEFAULT = "127.0.0.1:50051"
# Where a member listens that is a program of its own.
CLIENT_PORT = 50052
# How long an operation may take, unless LUNETTE_TIMEOUT_S says otherwise.
TIMEOUT_S = 10.0

# Names of earlier versions, which some programs still give.
LEGACY_KEYS = {"device_name": "rdma_devices", "master_server_address": "master_server_addr"}
# Settings of the environment that are heeded.
ENVIRONMENT = frozenset(
    "LUNETTE_" + name for name in "CORES DRIVE_SIZE INSECURE ONE_SIDED SECRET_FILE TIMEOUT_S".split()
)

# Settings of the environment that engines read themselves, and give to `setup` as arguments.
OF_ENGINES = frozenset(
    "MOONCAKE_" + name
    for name in (
        "CHECK_SERVER CLIENT CONFIG_PATH DEVICE DISK_STAGING_BUFFER_BYTES DISK_STAGING_USABLE_RATIO ENABLE_SSD_OFFLOAD "
        "GLOBAL_SEGMENT_SIZE LOAD_RECV_THREADS LOCAL_HOSTNAME MASTER MASTER_METRICS_PORT OFFLOAD_FILE_STORAGE_PATH "
        "PREFERRED_SEGMENT PROTOCOL REQUESTER_LOCAL_HOSTNAME STANDALONE_STORAGE STORE_TIER_LOG TENANT_ID TE_META_DATA_SERVER"
    ).split()
) | {"MC_TE_PROTOCOL", "MC_TE_DEVICE"}

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


class SettingError(ValueError):
    """A setting that is refused: which, and why."""


@dataclass
class Settings:
    """What `setup` is given, under the names that it has there."""

    local_hostname: str
    metadata_server: str
    global_segment_size: int
    local_buffer_size: int
    protocol: str
    rdma_devices: str
    master_server_addr: str
    engine: object = None
    enable_ssd_offload: bool = False
    ssd_offload_path: str = ""
    tenant_id: str = "default"
    enable_client_http_server: bool = False
    client_http_port: int = 9300


_DICTIONARY_DEFAULTS: dict[str, object] = {
    "metadata_server": "P2PHANDSHAKE",
    "global_segment_size": 16 << 20,
    "local_buffer_size": 16 << 20,
    "protocol": "tcp",
    "rdma_devices": "",
    "master_server_addr": MASTER_DEFAULT,
}


def size_of(text: object) -> int:
    """Bytes, as a number or as in `16MB`."""
    if isinstance(text, int) and not isinstance(text, bool):
        if text < 0:
            raise SettingError(f"a size of {text}")
        return text
    spelt = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?\s*", str(text).upper())
    if spelt is None:
        raise SettingError(f"{text!r} is no size")
    return int(float(spelt[1]) * (1 << _UNITS[spelt[2]]))


def of_dictionary(given: Mapping[str, object]) -> Settings:
    """The form of one dictionary. Keys that are not known are named in a warning."""
    known = {each.name for each in fields(Settings)}
    values: dict[str, Any] = dict(_DICTIONARY_DEFAULTS)
    for key, value in given.items():
        name = LEGACY_KEYS.get(key, key)
        if name not in known:
            LOG.warning("setup: %r is no setting and is ignored", key)
            continue
        if name != key:
            LOG.warning("setup: %r is called %r", key, name)
        values[name] = value
    if "local_hostname" not in values:
        raise SettingError("local_hostname is missing")
    for name in ("global_segment_size", "local_buffer_size"):
        values[name] = size_of(values[name])
    for name in ("enable_ssd_offload", "enable_client_http_server"):
        if name in values:
            values[name] = str(values[name]).strip().lower() in ("1", "true", "yes", "on")
    return Settings(**values)


def coordinators(master: str) -> tuple[list[str], bool]:
    """Where the coordinators are, and whether they are etcds."""
    scheme, separator, rest = master.rpartition("://")
    if separator and scheme != "etcd":
        raise SettingError(f"master_server_addr: {scheme} is not supported: etcd is, or a coordinator")
    parts = [part.strip() for part in re.split("[,;]", rest) if part.strip()]
    if not parts:
        raise SettingError("master_server_addr: no address")
    return [address_of(part, 0) for part in parts], bool(separator)


def address_of(name: str, port: int) -> str:
    """An address and a port, of `host` or `host:port`."""
    host, colon, number = name.rpartition(":")
    if not colon or name.count(":") > 1 and not name.startswith("["):
        host, number = name, str(port)
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(number), type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        raise SettingError(f"{name!r}: {error}") from error
    found.sort(key=lambda each: each[0] != socket.AF_INET)
    address = found[0][4]
    return f"[{address[0]}]:{address[1]}" if found[0][0] == socket.AF_INET6 else f"{address[0]}:{address[1]}"


def warn_of_what_is_ignored(settings: Settings) -> None:
    """Names what was asked for and does nothing."""
    if settings.protocol not in ("tcp", "rdma"):
        raise SettingError(f"protocol: {settings.protocol!r} is not supported: tcp is")
    if settings.protocol != "rdma" and settings.rdma_devices:
        LOG.warning("setup: rdma_devices are ignored, as the protocol is %s", settings.protocol)
    if settings.engine is not None:
        LOG.warning("setup: the store has connections of its own: engine is ignored")
    if settings.enable_client_http_server:
        LOG.warning("setup: enable_client_http_server is ignored")
    ours = [name for name in sorted(os.environ) if name.startswith(("MC_", "MOONCAKE_"))]
    ignored = [name for name in ours if name not in OF_ENGINES]
    if ignored:
        LOG.warning("setup: settings of the environment are ignored: %s", ", ".join(ignored))


def drives(settings: Settings) -> tuple[list[str], int] | None:
    """Folder and size of the drive, if there is to be one: half of what is free, unless LUNETTE_DRIVE_SIZE."""
    if not settings.enable_ssd_offload:
        return None
    if not settings.ssd_offload_path:
        raise SettingError("ssd_offload_path is missing")
    os.makedirs(settings.ssd_offload_path, exist_ok=True)
    size = os.environ.get("LUNETTE_DRIVE_SIZE")
    if size is not None:
        return [settings.ssd_offload_path], size_of(size)
    return [settings.ssd_offload_path], shutil.disk_usage(settings.ssd_offload_path).free // 2


def adapters_of(protocol: str, names: str, what: str) -> list[str]:
    """The RDMA devices to use, by their names with commas between them: all that are there, if none is named."""
    if protocol != "rdma":
        return []
    wanted = [name.strip() for name in names.split(",") if name.strip()] or ["all"]
    present = rdma_devices()
    missing = [name for name in wanted if name not in present and name != "all"]
    if missing or not present:
        LOG.warning(
            "%s: protocol rdma: no device %s here: what it would carry goes over TCP and shared memory",
            what,
            ", ".join(missing) or "at all",
        )
    return wanted


def cluster_of(coordinators: list[str], is_etcd: bool, adapters: list[str]) -> NativeCluster:
    """The cluster at its coordinators, with what the environment says of secrets, time and cores."""
    timeout_s = float(os.environ.get("LUNETTE_TIMEOUT_S", TIMEOUT_S))
    secret_file = os.environ.get("LUNETTE_SECRET_FILE")
    cluster = NativeCluster(CLUSTER, coordinators, is_etcd, secret_file, timeout_s, adapters)
    cores = os.environ.get("LUNETTE_CORES", "1")
    try:
        return cluster.of_cores(int(cores))
    except (ValueError, OverflowError) as error:
        raise SettingError(f"LUNETTE_CORES={cores}: {error}") from error


def open_beside(member: str) -> tuple[NativeStore, list[str], str]:
    """A client of the cluster of that member, who is to be asked whether all is well, and the client's name."""
    member = address_of(member, CLIENT_PORT)
    # It asks no coordinator: the member tells who the others are.
    store = NativeStore.client(cluster_of([member], False, []), [member])
    return store, [member], socket.gethostname()


def open_store(settings: Settings) -> tuple[NativeStore, list[str]]:
    """The store, and where its coordinators are: a member if it lends memory, and else a client."""
    warn_of_what_is_ignored(settings)
    masters, is_etcd = coordinators(settings.master_server_addr)
    adapters = adapters_of(settings.protocol, settings.rdma_devices, "setup")
    cluster = cluster_of(masters, is_etcd, adapters)
    try:
        cluster = cluster.of_tenant(settings.tenant_id or DEFAULT_TENANT)
    except Invalid as error:
        raise SettingError(f"tenant_id: {error}") from error
    if settings.global_segment_size == 0:
        return NativeStore.client(cluster, []), masters
    listen = address_of(settings.local_hostname, 0)
    if settings.engine is not None:
        # Then the name is the engine's, which has that port.
        listen = f"{listen.rpartition(':')[0]}:0"
    store = NativeStore.member(cluster, listen, settings.global_segment_size, drives(settings))
    return store, masters
