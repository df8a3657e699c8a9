"""A plain web host on loopback: files of a folder, whole or by one range of bytes, with what was asked counted."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class WebHost:
    """A running host: its address, and of the requests so far the paths with their bytes."""

    url: str
    requests: list[tuple[str, int]] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, nbytes in self.requests)


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or a small answer waits for an acknowledgement
    extensions_map = {**SimpleHTTPRequestHandler.extensions_map, ".safetensors": "application/octet-stream"}  # noqa: RUF012

    def __init__(self, host: WebHost, *args: Any, **options: Any) -> None:
        self._host = host
        super().__init__(*args, **options)

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if wanted is None or not path.is_file():
            self._host.requests.append((self.path, path.stat().st_size if path.is_file() else 0))
            return super().do_GET()
        size = path.stat().st_size
        start, stop = int(wanted[1]), min(int(wanted[2]) + 1, size)
        self._host.requests.append((self.path, stop - start))
        if start >= stop:
            return self.send_error(416)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        with path.open("rb") as file:
            file.seek(start)
            self.wfile.write(file.read(stop - start))
        return None

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def web_host(folder: Path) -> Iterator[WebHost]:
    """Serve the files of a folder on a free port of loopback."""
    host = WebHost("")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, host, directory=str(folder)))
    server.daemon_threads = True
    host.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield host
    finally:
        server.shutdown()
        server.server_close()
