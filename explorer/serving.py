"""Run the explorer's server until it is interrupted."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from types import FrameType
from typing import Any, ClassVar

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from embstore.errors import InvalidValueError, quoted
from embstore_explorer.security import LOOPBACK, Access
from embstore_explorer.server import make_app
from embstore_explorer.stores import explored

SECONDS_FOR_HEADERS = 10  # of a request, from the beginning of its connection: those of a browser take some ms
SECONDS_KEPT = 60  # after an answer, for the next request: the page asks more often while it is looked at
MAX_WAITING = 500  # connections without a request: below the 1,024 files that a process may mostly have open


def serve(
    paths: Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    browser: bool = True,
    password: str | None = None,
    model: str | None = None,
    probes: str | None = None,
) -> None:
    """Serve some stores until the server is interrupted, then end the process; prints the URL, and opens the browser.

    `model`, `probes`: as of `explored`. With a `password` browsers ask for it, and there is no token.
    """
    if not 0 <= port < 2**16:
        raise InvalidValueError(f"port {port} is not allowed: give 0 to 65,535")
    listening = _listening(host, port)
    stores = explored(paths, model=model, probes=probes, takes_model=host in LOOPBACK)
    access = replace(Access(host=host, password=password), port=listening.getsockname()[1])
    app = make_app(stores, access)
    if host not in LOOPBACK and password is None:
        print("embstore: everyone with this URL who can reach this machine can read the stores", file=sys.stderr)
    print(f"exploring {', '.join(each.name for each in stores)} at {access.url} (Ctrl-C ends)", flush=True)
    # What the first word needs takes seconds to import, in which the reader looks at the page.
    threading.Thread(target=import_module, args=("embstore.analysis.geometry.measure",), daemon=True).start()
    if browser:
        threading.Thread(target=webbrowser.open, args=(access.url,), daemon=True).start()
    server = _Server(settings_of(app))
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listening])
    sys.stdout.flush()
    os._exit(server.status)  # queries may still run: nothing but a cache is written, by renames


def settings_of(app: Starlette) -> uvicorn.Config:
    """Return how the application is served: no log, no header that names the server, connections that are closed."""
    return uvicorn.Config(
        app,
        log_level="critical",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="off",
        timeout_keep_alive=SECONDS_KEPT,
        http=Connection,
    )


class Connection(H11Protocol):
    """A connection that is closed if it does not ask: the oldest of too many, and after a time.

    It waits from its beginning, and from the end of an answer, until the headers of the next request are there. So who
    opens many connections and sends half a request, or a body that is not read, keeps nobody else out.
    """

    waiting: ClassVar[dict[Connection, asyncio.TimerHandle]] = {}  # the oldest first

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait(SECONDS_FOR_HEADERS)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before and not self.cycle.response_complete:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        before = self.cycle
        super().on_response_complete()
        if self.cycle is before:  # not a pipelined request, which is answered already
            self._wait(SECONDS_KEPT)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        if self.transport.is_closing():
            return
        if len(self.waiting) >= MAX_WAITING:
            oldest = next(iter(self.waiting))
            oldest._stop_waiting()
            oldest.transport.abort()
        self.waiting[self] = self.loop.call_later(seconds, self.transport.abort)

    def _stop_waiting(self) -> None:
        timer = self.waiting.pop(self, None)
        if timer is not None:
            timer.cancel()


class _Server(uvicorn.Server):
    """Ends at once when it is interrupted, whatever is asked then."""

    status = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.status, self.force_exit = 128 + sig, True
        super().handle_exit(sig, frame)


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.socket(family, kind)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
        listening.listen(1024)  # browsers wait from here on
        return listening
    except (OSError, UnicodeError) as error:  # a name that DNS cannot have
        reason = getattr(error, "strerror", None) or "not a name of a machine"
        hint = "choose another port" if port else "choose another address"
        raise InvalidValueError(f"host {quoted(host)}, port {port}: {reason}; {hint}") from None
