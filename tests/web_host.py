"""A web host on loopback: files of a folder, whole or by ranges, as a plain server or as the Hugging Face hub does."""

from __future__ import annotations

import mimetypes
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest


@dataclass
class WebHost:
    """A running host: its address, the paths and bytes of its answers, and the ranges that were asked for.

    A hub redirects each file of the data set USER/NAME to an address elsewhere that is `signed` for one request.
    """

    folder: Path
    is_hub: bool = False
    url: str = ""
    requests: list[tuple[str, int]] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    signed: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, nbytes in self.requests)

    def answer(self, address: str, asked: str | None) -> tuple[int, dict[str, str], bytes]:
        """Return the status, headers and body for an address and a Range header."""
        url = urlsplit(address)
        path = self.folder / unquote(url.path).lstrip("/")
        if self.is_hub and (named := re.fullmatch(r"/datasets/([^/]+/[^/]+)/resolve/main/(.+)", url.path)):
            path = self.folder.joinpath(*named.groups())
            if path.is_file():
                signature = str(len(self.signed) + len(self.ranges))
                self.signed.add(signature)
                elsewhere = self.url.replace("127.0.0.1", "localhost")
                return 302, {"Location": f"{elsewhere}/{path.relative_to(self.folder)}?signature={signature}"}, b""
        path = path / "index.html" if path.is_dir() else path
        if not path.is_file():
            return 404, {}, b""
        if self.is_hub:
            (signature,) = parse_qs(url.query)["signature"]
            if signature not in self.signed:
                return 403, {}, b""  # expired
            self.signed.remove(signature)
        self.ranges.append(asked or "")
        body = path.read_bytes()
        size, headers = len(body), {"Content-Type": mimetypes.guess_type(path.name)[0] or "application/octet-stream"}
        if asked:
            first, last = asked.removeprefix("bytes=").split("-")
            start = int(first) if first else max(0, size - int(last))
            stop = min(size, int(last) + 1) if first and last else size
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
            body = body[start:stop]
        self.requests.append((address, len(body)))
        return 206 if asked else 200, headers, body


@contextmanager
def web_host(folder: Path, *, is_hub: bool = False) -> Iterator[WebHost]:
    """Serve the files of a folder on a free port of loopback."""
    host = WebHost(folder, is_hub)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            with host._lock:
                status, headers, body = host.answer(self.path, self.headers.get("Range"))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    host.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield host
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[WebHost]:
    with web_host(tmp_path / "hub", is_hub=True) as host:
        yield host
