"""The program `mooncake_master`: a Lunette coordinator under the flags of Mooncake's master.

It runs in the foreground, as one process, until SIGINT or SIGTERM. It keeps who is a member of the cluster, and no
objects: those who restart it lose none.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NoReturn

import lunette

LOG = logging.getLogger("mooncake_master")

# Flags that are heeded, and what they are without being given. What Mooncake's master has besides is ignored.
DEFAULTS = {
    "rpc_address": "0.0.0.0",
    "rpc_port": "50051",
    "metrics_host": "0.0.0.0",
    "metrics_port": "9003",
    "secret_file": "",
}


class FlagError(ValueError):
    """A flag that makes no sense."""


def flags_of(arguments: Sequence[str]) -> dict[str, str]:
    """Flags as `--name=value`, `--name value` or `-name=value`. Those that are ignored are named in a warning."""
    flags = dict(DEFAULTS)
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("-"):
            raise FlagError(f"{argument!r} is no flag")
        name, is_given, value = argument.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if not is_given and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        if name not in DEFAULTS:
            LOG.warning("--%s is ignored", name)
            continue
        if not value:
            raise FlagError(f"--{name} wants a value")
        flags[name] = value
    return flags


def listening(address: str, secret_file: str | None) -> str:
    """Where to listen: on loopback only, unless those who ask prove who they are, or need not."""
    is_open = secret_file or os.environ.get("LUNETTE_INSECURE") == "1"
    if address != "0.0.0.0" or is_open:
        return address
    LOG.warning(
        "listening on 127.0.0.1: give --secret_file or LUNETTE_SECRET_FILE to be reached from other hosts, "
        "or set LUNETTE_INSECURE=1"
    )
    return "127.0.0.1"


class Answers(BaseHTTPRequestHandler):
    """What those who wait for a master ask it over HTTP."""

    coordinator = ""
    secret_file: str | None = None

    def do_GET(self) -> None:  # noqa: N802
        """Health, and the members: what a cluster has in place of segments."""
        path = self.path.partition("?")[0]
        if path == "/health":
            self._answer(200, "text/plain", "OK")
        elif path in ("/get_all_segments", "/role"):
            text = "leader\n" if path == "/role" else "\n".join([*self._members(), ""])
            self._answer(200, "text/plain", text)
        elif path == "/ha_status":
            self._answer(200, "application/json", json.dumps({"role": "leader"}))
        else:
            self._answer(404, "text/plain", "not found\n")

    def _members(self) -> list[str]:
        return lunette.members(
            [self.coordinator], cluster="mooncake", secret_file=self.secret_file
        )

    def _answer(self, status: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        LOG.debug(format, *args)


def run(arguments: Sequence[str]) -> None:
    """Runs it until a signal ends it."""
    flags = flags_of(arguments)
    secret_file = flags["secret_file"] or os.environ.get("LUNETTE_SECRET_FILE")
    address = listening(flags["rpc_address"], secret_file)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with lunette.Coordinator(f"{address}:{flags['rpc_port']}", secret_file=secret_file) as coordinator:
        port = coordinator.address.rpartition(":")[2]
        host = "127.0.0.1" if address == "0.0.0.0" else address
        Answers.coordinator, Answers.secret_file = f"{host}:{port}", secret_file
        metrics = (listening(flags["metrics_host"], secret_file), int(flags["metrics_port"]))
        with ThreadingHTTPServer(metrics, Answers) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            print(f"mooncake_master: {coordinator.address}, HTTP at {server.server_port}", flush=True)
            while not ended.wait(0.2):
                pass
            server.shutdown()


def main() -> NoReturn:
    """The program."""
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    try:
        run(sys.argv[1:])
    except (FlagError, OSError, ValueError, lunette.StoreError) as error:
        print(f"mooncake_master: {error}", file=sys.stderr)
        sys.exit(1)
    sys.exit(0)


if __name__ == "__main__":
    main()
