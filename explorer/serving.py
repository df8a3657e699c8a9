"""Run the explorer's server until it is interrupted."""

from __future__ import annotations

import os
import socket
import sys
import threading
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from types import FrameType

import uvicorn

from embstore.errors import InvalidValueError, quoted
from embstore_explorer.security import LOOPBACK, Access
from embstore_explorer.server import make_app
from embstore_explorer.stores import explored


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
    listening = _listening(host, port)
    stores = explored(paths, model=model, probes=probes)
    access = replace(Access(host=host, password=password), port=listening.getsockname()[1])
    app = make_app(stores, access)
    config = uvicorn.Config(
        app,
        log_level="critical",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="off",
        timeout_keep_alive=60,
        limit_concurrency=1000,
    )
    if host not in LOOPBACK and password is None:
        print("embstore: everyone with this URL who can reach this machine can read the stores", file=sys.stderr)
    print(f"exploring {', '.join(each.name for each in stores)} at {access.url} (Ctrl-C ends)", flush=True)
    if browser:
        threading.Thread(target=webbrowser.open, args=(access.url,), daemon=True).start()
    server = _Server(config)
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listening])
    sys.stdout.flush()
    os._exit(server.status)  # queries may still run: nothing but a cache is written, by renames


class _Server(uvicorn.Server):
    """Ends at once when it is interrupted, whatever is asked then."""

    status = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.status, self.force_exit = 128 + sig, True
        super().handle_exit(sig, frame)


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        listening = socket.socket(family, kind)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(1024)  # browsers wait from here on
        return listening
    except (OSError, UnicodeError) as error:  # a name that DNS cannot have
        reason = getattr(error, "strerror", None) or "not a name of a machine"
        hint = "choose another port" if port else "choose another address"
        raise InvalidValueError(f"host {quoted(host)}, port {port}: {reason}; {hint}") from None
