"""The program `mooncake_http_metadata_server`: records by key, over HTTP, in memory.

`GET`, `PUT` and `DELETE` of `/metadata?key=KEY`, as transfer engines of Mooncake ask it. Lunette itself needs none.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NoReturn
from urllib.parse import parse_qs, urlsplit

# Longest key and record, in bytes, and most records.
KEY_BYTES_MAX = 4096
RECORD_BYTES_MAX = 8 << 20
RECORDS_MAX = 1 << 16


class Records:
    """Records by key, for threads."""

    def __init__(self) -> None:
        self._records: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def get(self, key: str) -> bytes | None:
        """The record."""
        with self._lock:
            return self._records.get(key)

    def put(self, key: str, record: bytes) -> bool:
        """Whether there was room for it."""
        with self._lock:
            if key not in self._records and len(self._records) >= RECORDS_MAX:
                return False
            self._records[key] = record
            return True

    def delete(self, key: str) -> bool:
        """Whether there was one."""
        with self._lock:
            return self._records.pop(key, None) is not None


class Server(ThreadingHTTPServer):
    """Answers from its records."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address, Answers)
        self.records = Records()


class Answers(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:  # noqa: N802
        """The record, or 404."""
        key = self._key()
        if key is None:
            return
        record = self.server.records.get(key)
        if record is None:
            self._answer(404, b"metadata not found")
        else:
            self._answer(200, record)

    def do_PUT(self) -> None:  # noqa: N802
        """Sets the record."""
        try:
            length = int(self.headers.get("Content-Length", ""))
        except ValueError:
            length = -1
        if not 0 <= length <= RECORD_BYTES_MAX:
            # What comes next on the connection is no request.
            self.close_connection = True
            self._answer(411 if length < 0 else 413, b"")
            return
        record = self.rfile.read(length)
        key = self._key()
        if key is None:
            return
        if self.server.records.put(key, record):
            self._answer(200, b"metadata updated")
        else:
            self._answer(507, b"too many records")

    def do_DELETE(self) -> None:  # noqa: N802
        """Removes the record, or 404."""
        key = self._key()
        if key is None:
            return
        if self.server.records.delete(key):
            self._answer(200, b"metadata deleted")
        else:
            self._answer(404, b"metadata not found")

    def _key(self) -> str | None:
        """The key that is asked for; without one, it has been answered."""
        asked = urlsplit(self.path)
        keys = parse_qs(asked.query, keep_blank_values=True).get("key", [""])
        if asked.path == "/metadata" and 0 < len(keys[0].encode()) <= KEY_BYTES_MAX:
            return keys[0]
        self._answer(404 if asked.path != "/metadata" else 400, b"no key")
        return None

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> NoReturn:
    """The program."""
    flags = argparse.ArgumentParser(prog="mooncake_http_metadata_server", description=__doc__)
    flags.add_argument("--host", default="0.0.0.0")
    flags.add_argument("--port", type=int, default=8080)
    given = flags.parse_args()
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    try:
        server = Server((given.host, given.port))
    except OSError as error:
        print(f"mooncake_http_metadata_server: {error}", file=sys.stderr)
        sys.exit(1)
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"mooncake_http_metadata_server: {given.host}:{server.server_port}", flush=True)
        while not ended.wait(0.2):
            pass
        server.shutdown()
    sys.exit(0)


if __name__ == "__main__":
    main()
