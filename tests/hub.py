"""The Hugging Face hub on loopback: it redirects each file to a signed URL elsewhere."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partialmethod
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest


@dataclass
class Hub:
    """Two servers on loopback: `resolve` redirects to `files`, each of whose URLs is signed for one request.

    The data set USER/NAME is the folder of this name in `folder`.
    """

    folder: Path
    signed: set[str] = field(default_factory=set)
    ranges: list[str] = field(default_factory=list)
    ports: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def resolve(self, request: BaseHTTPRequestHandler) -> None:
        named = re.fullmatch(r"/datasets/([^/]+/[^/]+)/resolve/main/(.+)", request.path)
        path = self.folder.joinpath(*named.groups()) if named else self.folder
        if not path.is_file():
            self._answer(request, 404)
            return
        with self._lock:
            signature = str(len(self.signed) + len(self.ranges))
            self.signed.add(signature)
        location = f"http://127.0.0.1:{self.ports['files']}/{path.relative_to(self.folder)}?signature={signature}"
        self._answer(request, 302, Location=location)

    def files(self, request: BaseHTTPRequestHandler) -> None:
        url = urlsplit(request.path)
        (signature,) = parse_qs(url.query)["signature"]
        with self._lock:
            if signature not in self.signed:
                self._answer(request, 403)  # expired
                return
            self.signed.remove(signature)
            self.ranges.append(request.headers.get("Range", ""))
        body = (self.folder / url.path[1:]).read_bytes()
        size, named = len(body), {"ETag": f'"{url.path}"', "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}
        if given := request.headers.get("Range"):
            first, last = given.removeprefix("bytes=").split("-")
            start = int(first) if first else max(0, size - int(last))
            stop = min(size, int(last) + 1) if first and last else size
            named["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
            body = body[start:stop]
        self._answer(request, 206 if given else 200, body, **named)

    @staticmethod
    def _answer(request: BaseHTTPRequestHandler, status: int, body: bytes = b"", **headers: str) -> None:
        request.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            request.send_header(name, value)
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(body)


def _handled(request: BaseHTTPRequestHandler, answer: Callable[[BaseHTTPRequestHandler], None]) -> None:
    answer(request)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub for which HF_ENDPOINT is set."""
    made = Hub(tmp_path / "hub")
    servers = []
    for name in ("resolve", "files"):

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            do_GET = do_HEAD = partialmethod(_handled, getattr(made, name))

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        made.ports[name] = server.server_address[1]
        servers.append(server)
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{made.ports['resolve']}/")
    yield made
    for server in servers:
        server.shutdown()
        server.server_close()
