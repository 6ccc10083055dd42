"""Members of a wheel that are fetched by ranges, from servers that behave and that do not."""

import http.server
import io
import json
import random
import threading
import zipfile
from collections.abc import Iterator

import fetch_members
import pytest

WANTED = {"pkg/a/one.py": random.Random(1).randbytes(200_000), "pkg/a/two.py": b"two", "pkg/b.py": b"three"}
PREFIXES = ("pkg/a/", "pkg/b.py")


def wheel_of(members, compression=zipfile.ZIP_DEFLATED):
    """A wheel with these members, and much that nobody asks for before them."""
    room = io.BytesIO()
    with zipfile.ZipFile(room, "w") as wheel:
        wheel.writestr("pkg/large.so", bytes(3 << 20))
        for name, value in members.items():
            wheel.writestr(name, value, compression)
    return room.getvalue()


WHEEL = wheel_of(WANTED)


class Index(http.server.BaseHTTPRequestHandler):
    """An index with one package, and the file that it names."""

    def do_GET(self):
        server = self.server
        if self.path == "/simple/the-pkg/":
            self.page()
        elif self.path == "/files/the_pkg-1.0-py3-none-any.whl":
            self.file(server.wheel)
        else:
            self.send_error(404)

    def page(self):
        place = "../../files/the_pkg-1.0-py3-none-any.whl#sha256=00"
        if self.server.is_html:
            kind, text = "text/html", f'<a class="x" href="{place}">it</a><a>none</a>'
        else:
            kind, text = "application/vnd.pypi.simple.v1+json", json.dumps({"files": [{"url": place}]})
        self.answer(200, text.encode(), {"Content-Type": kind})

    def file(self, wheel):
        server = self.server
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        value = wheel[first : last + 1]
        server.served += len(value)
        if not server.has_ranges:
            self.answer(200, wheel, {})
            return
        told = f"bytes {first + server.shift}-{last + server.shift}/{len(wheel)}"
        self.answer(206, value[: len(value) - server.short], {"Content-Range": told})

    def answer(self, status, value, headers):
        self.send_response(status)
        for name, told in {"Content-Length": str(len(value)), **headers}.items():
            self.send_header(name, told)
        self.end_headers()
        try:
            self.wfile.write(value)
        except ConnectionError:
            pass  # Who asked has read as much as it wanted.

    def log_message(self, *_args):
        pass


@pytest.fixture
def server(monkeypatch) -> Iterator[http.server.ThreadingHTTPServer]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index)
    server.wheel, server.served = wheel_of(WANTED), 0
    server.is_html, server.has_ranges, server.shift, server.short = False, True, 0, 0
    place = f"http://127.0.0.1:{server.server_port}/simple/"
    monkeypatch.setattr(fetch_members, "settings_of_pip", lambda: {"index-url": place})
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def fetch(folder, version="1.0", prefixes=PREFIXES):
    return fetch_members.main("the-pkg", version, folder, *prefixes)


@pytest.mark.parametrize("is_html", [False, True])
def test_only_what_is_asked_for_is_fetched(server, tmp_path, is_html):
    server.is_html = is_html
    assert fetch(tmp_path) is None
    (path,) = tmp_path.iterdir()
    with zipfile.ZipFile(path) as written:
        assert {name: written.read(name) for name in written.namelist()} == WANTED
    assert 0 < server.served < len(server.wheel) // 3
    served = server.served
    assert fetch(tmp_path) is None
    assert server.served == served, "what is there is not fetched again"
    assert fetch(tmp_path, prefixes=("pkg/b.py",)) is None
    assert server.served > served, "what was asked for has changed"


@pytest.mark.parametrize(
    "ill, reason",
    [
        ({"has_ranges": False}, "no ranges"),
        ({"shift": 1}, "another range"),
        ({"short": 1}, "another range|IncompleteRead"),
        ({"wheel": b"no zip" * 1000}, "not a zip"),
        ({"wheel": wheel_of({})}, "has nothing at pkg/a/"),
        ({"wheel": wheel_of({"pkg/a/x": bytes(fetch_members.MEMBERS_MAX_BYTES), "pkg/b.py": b"x"})}, "too long"),
        ({"wheel": wheel_of(WANTED, zipfile.ZIP_STORED).replace(b"three", b"theft")}, "CRC"),
        ({"wheel": WHEEL[:3_300_000] + bytes(100) + WHEEL[3_300_100:]}, "CRC|decompress"),
    ],
)  # fmt: skip
def test_a_server_is_not_believed(server, tmp_path, ill, reason):
    vars(server).update(ill)
    with pytest.raises(AssertionError, match=reason):
        told = fetch(tmp_path)
        assert told is None, told
    assert not list(tmp_path.glob("*.whl"))


def test_how_much_is_fetched_is_bounded(server, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch_members, "FETCHED_MAX_BYTES", 100_000)
    assert "more bytes" in fetch(tmp_path)
    assert server.served <= 100_000 and not list(tmp_path.glob("*.whl"))


def test_what_the_index_has_not_cannot_be_had(server, tmp_path):
    assert "no wheel" in fetch(tmp_path, version="1.1")
    assert "404" in fetch_members.main("other", "1.0", tmp_path, *PREFIXES)
    assert server.served == 0


def test_pip_says_where(monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/a=b/simple")
    assert fetch_members.settings_of_pip()["index-url"] == "http://127.0.0.1:1/a=b/simple"
