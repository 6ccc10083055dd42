"""The program `mooncake_master`: a Lunette coordinator under the flags of Mooncake's master.

It runs in the foreground, as one process, until SIGINT or SIGTERM. It keeps who is a member of the cluster, and no
objects: those who restart it lose none.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import threading
from collections.abc import Callable, Sequence
from http.server import ThreadingHTTPServer
from typing import NoReturn

import lunette

from . import _admin, _programs, _quotas
from ._programs import ended_by_signal, flags_of, listening, main_of, wait_for

LOG = logging.getLogger("mooncake_master")

# Flags that are heeded, and what they are without being given. What Mooncake's master has besides is ignored.
DEFAULTS = {
    "rpc_address": "0.0.0.0",
    "rpc_port": "50051",
    "metrics_host": "0.0.0.0",
    "metrics_port": "9003",
    "secret_file": "",
}


class Answers(_programs.Answers):
    """What those who wait for a master ask it over HTTP."""

    log = LOG
    coordinator = ""
    secret_file: str | None = None

    def answer(self, path: str) -> _admin.Answer | None:
        """Health, the members, which are what a cluster has in place of segments, objects and quotas."""
        if path == "/get_all_segments":
            return 200, _admin.TEXT, "\n".join([*self._members(), ""])
        if path == _quotas.PATH:
            return self._of_quotas(b"")
        of_objects, query = _admin.of_objects(path), self.path.partition("?")[2]
        if of_objects is not None and not self._is_here():
            return _admin.forbidden("objects are told of")
        if of_objects is not None:
            return self._asked(lambda store: of_objects(store, query))
        return _admin.of_state(path)

    def do_PUT(self) -> None:  # noqa: N802
        """A tenant's quota."""
        self._change()

    def do_DELETE(self) -> None:  # noqa: N802
        """That a tenant has none."""
        self._change()

    def _change(self) -> None:
        length = self.headers.get("Content-Length", "0")
        is_known = self.path.partition("?")[0] == _quotas.PATH
        if not is_known or not length.isdecimal() or int(length) > _quotas.BODY_BYTES_MAX:
            # What is left unread ends with the connection.
            self.close_connection = True
            self._send(None if not is_known else (413, "text/plain", "too long\n"))
            return
        body = self.rfile.read(int(length))
        forbidden = _admin.forbidden("quotas are changed")
        self._send(self._of_quotas(body) if self._is_here() else forbidden)

    def _is_here(self) -> bool:
        is_here = ipaddress.ip_address(self.client_address[0]).is_loopback
        return is_here or os.environ.get("LUNETTE_INSECURE") == "1"

    def _of_quotas(self, body: bytes) -> _admin.Answer:
        query = self.path.partition("?")[2]
        return self._asked(lambda store: _quotas.answer(store, self.command, query, body))

    def _asked(self, ask: Callable[[lunette.Store], _admin.Answer]) -> _admin.Answer:
        try:
            with lunette.Store.join(
                [self.coordinator], cluster="mooncake", secret_file=self.secret_file
            ) as store:
                return ask(store)
        except lunette.StoreError as why:
            return _admin.unavailable(why)

    def _members(self) -> list[str]:
        return lunette.members(
            [self.coordinator], cluster="mooncake", secret_file=self.secret_file
        )


def run(arguments: Sequence[str]) -> None:
    """Runs it until a signal ends it."""
    flags = flags_of(arguments, DEFAULTS, LOG)
    secret_file = flags["secret_file"] or os.environ.get("LUNETTE_SECRET_FILE")
    address = listening(flags["rpc_address"], secret_file, LOG)
    ended = ended_by_signal()
    with lunette.Coordinator(f"{address}:{flags['rpc_port']}", secret_file=secret_file) as coordinator:
        port = coordinator.address.rpartition(":")[2]
        host = "127.0.0.1" if address == "0.0.0.0" else address
        Answers.coordinator, Answers.secret_file = f"{host}:{port}", secret_file
        metrics = (listening(flags["metrics_host"], secret_file, LOG), int(flags["metrics_port"]))
        with ThreadingHTTPServer(metrics, Answers) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            print(f"mooncake_master: {coordinator.address}, HTTP at {server.server_port}", flush=True)
            wait_for(ended)
            server.shutdown()


def main() -> NoReturn:
    """The program."""
    main_of("mooncake_master", run)


if __name__ == "__main__":
    main()
