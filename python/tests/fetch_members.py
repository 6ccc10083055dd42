"""Fetches some members of a wheel that is too large to fetch whole, by ranges of its zip.

    python fetch_members.py PACKAGE VERSION FOLDER PREFIX...

writes `PACKAGE-VERSION-members.whl` into the folder, with the members whose names begin with one of the prefixes. The
wheel is looked for where pip is configured to look. `zipfile` checks their CRCs; how much is fetched and written is
bounded, whatever the index and the zip's directory say.
"""

import ast
import html.parser
import http.client
import io
import json
import re
import ssl
import subprocess
import sys
import urllib.parse
import urllib.request
import zipfile
import zlib
from pathlib import Path

INDEX_DEFAULT = "https://pypi.org/simple"
# JSON (PEP 691) where the index has it, HTML (PEP 503) elsewhere.
ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.1"
TIMEOUT_S = 60
# Of the index's page of one package.
PAGE_MAX_BYTES = 16 << 20
# Of the wheel, in all: its directory, and the members.
FETCHED_MAX_BYTES = 16 << 20
# Of the members together, when they are no longer compressed.
MEMBERS_MAX_BYTES = 16 << 20
# Members that lie side by side come in one request.
READ_AHEAD_BYTES = 256 << 10


class NotToBeHad(Exception):
    """Why the members cannot be fetched."""


# What reading an answer of an index or of a server may come to.
UNBELIEVABLE = (
    NotToBeHad,
    OSError,
    ValueError,
    KeyError,
    TypeError,
    NotImplementedError,
    http.client.HTTPException,
    zipfile.BadZipFile,
    zlib.error,
)


class Links(html.parser.HTMLParser):
    """The links of a page."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        place = dict(attributes).get("href")
        if tag == "a" and place:
            self.found.append(place)


class Ranges(io.RawIOBase):
    """A file of a server as one that can be read anywhere, which fetches what is read of it."""

    def __init__(self, place, context):
        self.place, self.context = place, context
        self.left, self.position, self.size = FETCHED_MAX_BYTES, 0, None
        self.fetch(0, 1)

    def seekable(self):
        return True

    def readable(self):
        return True

    def tell(self):
        return self.position

    def seek(self, offset, whence=io.SEEK_SET):
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.size}[whence]
        if start + offset < 0:
            raise OSError("before the beginning")
        self.position = start + offset
        return self.position

    def readinto(self, room):
        length = min(len(room), max(0, self.size - self.position))
        if length:
            room[:length] = self.fetch(self.position, length)
            self.position += length
        return length

    def fetch(self, start, length):
        """Those bytes. A server that answers with any others is not believed."""
        self.left -= length
        if self.left < 0:
            raise NotToBeHad("more bytes would be fetched than are allowed")
        end = start + length - 1
        with opened(self.place, self.context, {"Range": f"bytes={start}-{end}"}) as answer:
            told = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", answer.headers.get("Content-Range", ""))
            if answer.status != 206 or told is None:
                raise NotToBeHad("the server has no ranges")
            first, last, size = map(int, told.groups())
            value = answer.read(length + 1)
        if (first, last) != (start, end) or len(value) != length or self.size not in (None, size):
            raise NotToBeHad("the server answers with another range")
        self.size = size
        return value


def opened(place, context, headers):
    """The answer of a server."""
    if urllib.parse.urlsplit(place).scheme not in ("http", "https"):
        raise NotToBeHad(f"{place} is no address of a server")
    request = urllib.request.Request(place, headers=headers)
    return urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context)


def settings_of_pip():
    """What pip is configured with: the environment before files."""
    asked = [sys.executable, "-m", "pip", "config", "list"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    settings = {}
    for line in told.splitlines():
        where, _, value = line.partition("=")
        section, _, name = where.rpartition(".")
        if section in (":env:", "global") and (section == ":env:" or name not in settings):
            settings[name] = ast.literal_eval(value)
    return settings


def wheel_at(index, package, version, context):
    """Where the index has a wheel of that version. Which one makes no difference: members in Python are the same."""
    page = f"{index.rstrip('/')}/{re.sub('[-_.]+', '-', package).lower()}/"
    with opened(page, context, {"Accept": ACCEPT}) as answer:
        text = answer.read(PAGE_MAX_BYTES + 1)
        kind, base = answer.headers.get_content_type(), answer.url
    if len(text) > PAGE_MAX_BYTES:
        raise NotToBeHad("the index's page is too long")
    if kind.endswith("json"):
        links = [file["url"] for file in json.loads(text)["files"]]
    else:
        parser = Links()
        parser.feed(text.decode())
        links = parser.found
    stem = f"{re.sub('[-_.]+', '_', package)}-{version}-".lower()
    for link in sorted(links):
        place = urllib.parse.urldefrag(urllib.parse.urljoin(base, link)).url
        name = urllib.parse.unquote(place.rpartition("/")[2]).lower()
        if name.startswith(stem) and name.endswith(".whl"):
            return place
    raise NotToBeHad("the index has no wheel of that version")


def chosen(directory, prefixes):
    """The members to be fetched: of each prefix some, and not too much in all."""
    found = [each for each in directory if each.filename.startswith(prefixes) and not each.is_dir()]
    for prefix in prefixes:
        if not any(each.filename.startswith(prefix) for each in found):
            raise NotToBeHad(f"the wheel has nothing at {prefix}")
    if sum(each.file_size for each in found) > MEMBERS_MAX_BYTES:
        raise NotToBeHad("the members are too long")
    return found


def copy_members(file, prefixes, target):
    """Writes the members of a wheel into one of their own."""
    unfinished = target.with_suffix(".unfinished")
    buffered = io.BufferedReader(file, READ_AHEAD_BYTES)
    with zipfile.ZipFile(buffered) as wheel, zipfile.ZipFile(
        unfinished, "w", zipfile.ZIP_DEFLATED
    ) as written:
        for member in chosen(wheel.infolist(), prefixes):
            written.writestr(member.filename, wheel.read(member))
        written.comment = _comment(prefixes)
    unfinished.replace(target)


def is_there(target, prefixes):
    """Whether those members have been fetched before."""
    try:
        with zipfile.ZipFile(target) as written:
            return written.comment == _comment(prefixes)
    except (OSError, zipfile.BadZipFile):
        return False


def _comment(prefixes):
    return " ".join(prefixes).encode()


def main(package, version, folder, *prefixes):
    target = Path(folder) / f"{package}-{version}-members.whl"
    if is_there(target, prefixes):
        return None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        settings = settings_of_pip()
        context = ssl.create_default_context(cafile=settings.get("cert"))
        place = wheel_at(settings.get("index-url", INDEX_DEFAULT), package, version, context)
        copy_members(Ranges(place, context), prefixes, target)
    except UNBELIEVABLE as error:
        return f"{package} {version}: {error}"
    return None


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
