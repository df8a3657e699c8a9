"""A plain web host on loopback: files of a folder, whole or by one range of bytes, with what was asked counted."""

from __future__ import annotations

import asyncio
import mimetypes
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

_RANGE = re.compile(rb"\r\nrange: bytes=(\d*)-(\d*)", re.I)


@dataclass
class WebHost:
    """A running host: its address, and of the requests so far the paths with their bytes."""

    url: str
    requests: list[tuple[str, int]] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, nbytes in self.requests)


def _answer(host: WebHost, folder: Path, request: bytes) -> bytes:
    """The answer to a GET or HEAD request, as HTTP/1.1 without closing the connection."""
    address = request.split(b" ", 2)[1].decode()
    path = folder / unquote(urlsplit(address).path).lstrip("/")
    path = path / "index.html" if path.is_dir() else path
    if not path.is_file():
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    size = path.stat().st_size
    wanted = _RANGE.search(request)
    first, last = wanted.groups() if wanted else (b"0", b"")
    start = int(first) if first else max(0, size - int(last))
    stop = min(int(last) + 1, size) if first and last else size
    with path.open("rb") as file:
        file.seek(start)
        data = file.read(stop - start)
    host.requests.append((address, len(data)))
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    status = f"206 Partial Content\r\nContent-Range: bytes {start}-{stop - 1}/{size}" if wanted else "200 OK"
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    return head if request.startswith(b"HEAD") else head + data


async def _talk(host: WebHost, folder: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
        while True:
            writer.write(_answer(host, folder, await reader.readuntil(b"\r\n\r\n")))
            await writer.drain()
    writer.close()


async def _end(server: asyncio.Server) -> None:
    """Close the server and the connections that browsers hold open."""
    server.close()
    talks = asyncio.all_tasks() - {asyncio.current_task()}
    for talk in talks:
        talk.cancel()
    await asyncio.gather(*talks, return_exceptions=True)


@contextmanager
def web_host(folder: Path) -> Iterator[WebHost]:
    """Serve the files of a folder on a free port of loopback."""
    host, loop = WebHost(""), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    start = asyncio.start_server(partial(_talk, host, folder), "127.0.0.1", 0)
    server = asyncio.run_coroutine_threadsafe(start, loop).result()
    host.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield host
    finally:
        asyncio.run_coroutine_threadsafe(_end(server), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
