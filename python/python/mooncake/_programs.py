"""What the programs have in common: flags, where they listen, signals, HTTP."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler
from typing import NoReturn

import lunette


class FlagError(ValueError):
    """A flag that makes no sense."""


def flags_of(
    arguments: Sequence[str], defaults: Mapping[str, str], log: logging.Logger
) -> dict[str, str]:
    """Flags as `--name=value`, `--name value` or `-name=value`; one whose default is `false` may have no value, which is
    `true`. Those that are not among `defaults` are ignored, and named in a warning."""
    flags = dict(defaults)
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("-"):
            raise FlagError(f"{argument!r} is no flag")
        name, is_given, value = argument.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if not is_given and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        if name not in defaults:
            log.warning("--%s is ignored", name)
            continue
        if not value and defaults[name] == "false":
            value = "true"
        if not value:
            raise FlagError(f"--{name} wants a value")
        flags[name] = value
    return flags


def is_true(value: str) -> bool:
    """Of a flag that is either."""
    return value.strip().lower() in ("1", "true", "yes", "on")


def is_open(secret_file: str | None) -> bool:
    """Whether those who are on other hosts may ask: they prove who they are, or need not."""
    return bool(secret_file) or os.environ.get("LUNETTE_INSECURE") == "1"


def listening(address: str, secret_file: str | None, log: logging.Logger) -> str:
    """Where to listen: on loopback only, unless others may ask."""
    if address != "0.0.0.0" or is_open(secret_file):
        return address
    log.warning(
        "listening on 127.0.0.1: give --secret_file or LUNETTE_SECRET_FILE to be reached from other hosts, "
        "or set LUNETTE_INSECURE=1"
    )
    return "127.0.0.1"


class Answers(BaseHTTPRequestHandler):
    """Answers over HTTP that are made of a path."""

    log: logging.Logger

    def do_GET(self) -> None:  # noqa: N802
        """What `answer` has for the path."""
        self._send(self.answer(self.path.partition("?")[0]))

    def _send(self, answer: tuple[int, str, str | bytes] | None) -> None:
        status, kind, text = answer or (404, "text/plain", "not found\n")
        body = text.encode() if isinstance(text, str) else text
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer(self, path: str) -> tuple[int, str, str | bytes] | None:
        """Status, type and text; `None` where there is nothing."""
        raise NotImplementedError

    def log_message(self, format: str, *args: object) -> None:
        self.log.debug(format, *args)


def ended_by_signal() -> threading.Event:
    """Set by SIGINT or SIGTERM."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    return ended


def wait_for(ended: threading.Event) -> None:
    """Waits, so that handlers of signals run."""
    while not ended.wait(0.2):
        pass


def main_of(name: str, run: Callable[[Sequence[str]], None]) -> NoReturn:
    """Runs a program: status 1 and one line where it cannot."""
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    try:
        run(sys.argv[1:])
    except (OSError, ValueError, lunette.StoreError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(1)
    sys.exit(0)
