"""The program `mooncake_client`: a member of the cluster under the flags of Mooncake's client.

It lends memory, and a drive, to the cluster for as long as it runs: in the foreground, as one process, until SIGINT or
SIGTERM. Programs of its host that lend nothing ask it by `setup_dummy`.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing
from http.server import ThreadingHTTPServer
from typing import NoReturn

import lunette

from . import _programs
from ._programs import (
    FlagError,
    ended_by_signal,
    flags_of,
    is_open,
    is_true,
    listening,
    main_of,
    wait_for,
)
from ._setup import CLIENT_PORT, MASTER_DEFAULT, Settings, coordinators, open_store, size_of

LOG = logging.getLogger("mooncake_client")

# Flags that are heeded, and what they are without being given.
DEFAULTS = {
    "host": "0.0.0.0",
    "port": str(CLIENT_PORT),
    "master_server_address": MASTER_DEFAULT,
    "global_segment_size": "4 GB",
    "protocol": "tcp",
    "device_names": "",
    "enable_offload": "false",
    "enable_http_server": "false",
    "http_port": "9300",
    "tenant_id": "default",
    "secret_file": "",
}
# Flags that say nothing to this program, and are no mistake.
NOT_NEEDED = {"metadata_server": "", "local_buffer_size": "0", "threads": "1"}
# Where a drive's file is, unless MOONCAKE_OFFLOAD_FILE_STORAGE_PATH says otherwise.
DRIVE_DEFAULT = "/data/file_storage"


class Answers(_programs.Answers):
    """What those who wait for a client ask it over HTTP."""

    log = LOG

    def answer(self, path: str) -> tuple[int, str, str] | None:
        """Health."""
        return (200, "text/plain", "OK") if path == "/health" else None


def address_towards(master: str) -> str:
    """By which of its addresses this host speaks to the coordinator."""
    host, _, port = coordinators(master)[0][0].rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as towards:
        # Nothing is sent: the system chooses a route.
        towards.connect((host.strip("[]"), int(port)))
        address: str = towards.getsockname()[0]
    return f"[{address}]" if family == socket.AF_INET6 else address


def settings_of(flags: dict[str, str], secret_file: str | None) -> Settings:
    """What `setup` would be given."""
    host = listening(flags["host"], secret_file, LOG)
    if host == "0.0.0.0":
        host = address_towards(flags["master_server_address"])
    memory_bytes = size_of(flags["global_segment_size"])
    if memory_bytes == 0:
        raise FlagError("--global_segment_size: it lends no memory")
    if flags["tenant_id"] not in ("", lunette.DEFAULT_TENANT):
        # `setup_dummy` names no tenant, so whoever asks by it is the default one.
        raise FlagError("--tenant_id: programs that ask a client by setup_dummy are of the default tenant")
    return Settings(
        local_hostname=f"{host}:{flags['port']}",
        metadata_server="",
        global_segment_size=memory_bytes,
        local_buffer_size=0,
        protocol=flags["protocol"],
        rdma_devices=flags["device_names"],
        master_server_addr=flags["master_server_address"],
        enable_ssd_offload=is_true(flags["enable_offload"]),
        ssd_offload_path=os.environ.get("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", DRIVE_DEFAULT),
    )


def run(arguments: Sequence[str]) -> None:
    """Runs it until a signal ends it."""
    flags = flags_of(arguments, {**DEFAULTS, **NOT_NEEDED}, LOG)
    secret_file = flags["secret_file"] or os.environ.get("LUNETTE_SECRET_FILE")
    if secret_file:
        os.environ["LUNETTE_SECRET_FILE"] = secret_file
    ended = ended_by_signal()
    with ExitStack() as open_until_then:
        store, _ = open_store(settings_of(flags, secret_file))
        open_until_then.enter_context(closing(store))
        said = f"mooncake_client: {store.address}"
        if is_true(flags["enable_http_server"]):
            # Health is no secret, and asked for by those who watch over programs of a host.
            host = "0.0.0.0" if is_open(secret_file) else "127.0.0.1"
            server = ThreadingHTTPServer((host, int(flags["http_port"])), Answers)
            open_until_then.enter_context(server)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            open_until_then.callback(server.shutdown)
            said = f"{said}, HTTP at {server.server_port}"
        print(said, flush=True)
        wait_for(ended)


def main() -> NoReturn:
    """The program."""
    main_of("mooncake_client", run)


if __name__ == "__main__":
    main()
