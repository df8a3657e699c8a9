"""Who may ask the explorer's server: the holder of its token or password, from its own page."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import secrets
import socket
from dataclasses import dataclass, field
from functools import cache
from urllib.parse import parse_qs

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
EVERYWHERE = ("0.0.0.0", "::", "")
CSP = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "worker-src 'self' blob:; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
SECONDS_AFTER_WRONG = 0.5  # before the next password of the same machine is looked at
MAX_WAITING = 20  # passwords of one machine that wait for that: its next ones are refused unseen
MAX_PARAMETERS = 100  # of a URL: no query has more than ten
OPEN_THE_URL = "this page is for who started the explorer: open the URL that `embstore explore` printed\n"


@dataclass(frozen=True)
class Access:
    """How a server is reached: its `host` and `port`, and the secrets, of which one is enough.

    `token`: in the URL at first, then in a cookie, or in the header `Authorization: Bearer TOKEN`; with a `password`
    browsers ask for that instead.
    """

    host: str = "127.0.0.1"
    port: int = 0
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    password: str | None = field(default=None, repr=False)

    @property
    def cookie(self) -> str:
        """The name of the cookie: browsers send cookies to all ports of a host."""
        return f"embstore-{self.port}"

    @property
    def url(self) -> str:
        """The address to open."""
        host = "127.0.0.1" if self.host in EVERYWHERE else self.host
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}/" + ("" if self.password else f"?token={self.token}")

    def is_host(self, given: str) -> bool:
        """Return whether a Host header is one of this server's: other names may lead to it by an attacker's DNS."""
        name, _, port = given.rpartition(":") if not given.endswith("]") and ":" in given else (given, "", "80")
        name = name.removeprefix("[").removesuffix("]").lower()
        if port != str(self.port):
            return False
        if self.host in EVERYWHERE:
            return name in (*LOOPBACK, *_own_names()) or _is_address(name)
        return name in (LOOPBACK if self.host in LOOPBACK else (self.host.lower(),))

    def is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())

    def is_password(self, given: str) -> bool:
        own, other = (
            hashlib.sha256(text.encode(errors="surrogateescape")).digest() for text in (self.password or "", given)
        )
        return self.password is not None and hmac.compare_digest(own, other)


class Guard:
    """Refuses requests that are not allowed, and adds the headers of security to every response."""

    def __init__(self, app: ASGIApp, *, access: Access) -> None:
        self._app = app
        self._access = access
        self._guessing: dict[str, tuple[asyncio.Lock, list[None]]] = {}  # by address: passwords that wait

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # the start and end of the server; there are no web sockets
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
                if scope.get("embstore.welcome"):
                    cookie = f"{self._access.cookie}={self._access.token}"
                    headers.append("Set-Cookie", f"{cookie}; HttpOnly; SameSite=Strict; Path=/")
            await send(message)

        await (await self._refusal(scope) or self._app)(scope, receive, guarded)

    async def _refusal(self, scope: Scope) -> Response | None:
        if scope["query_string"].count(b"&") >= MAX_PARAMETERS:
            return PlainTextResponse(f"a query has at most {MAX_PARAMETERS} parameters\n", 400)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        if not self._access.is_host(host):
            return PlainTextResponse("this host is not served here\n", 403)
        if "origin" in headers and headers["origin"].lower() not in (
            f"http://{host}".lower(),
            f"https://{host}".lower(),
        ):
            return PlainTextResponse("other sites may not ask the explorer\n", 403)
        if scope["path"].startswith("/api/") and headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return PlainTextResponse("other sites may not ask the explorer\n", 403)
        kind, _, secret = headers.get("authorization", "").partition(" ")
        if self._access.is_token(_cookie(headers.get("cookie", ""), self._access.cookie)):
            return None
        tokens = [secret] if kind.lower() == "bearer" else []
        tokens += parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        if any(map(self._access.is_token, tokens)):
            scope["embstore.welcome"] = kind.lower() != "bearer"
            return None
        if not self._access.password:
            return PlainTextResponse(OPEN_THE_URL, 401)
        if kind.lower() == "basic":
            is_right = await self._is_password(secret, (scope.get("client") or ("",))[0])
            if is_right is None:
                return PlainTextResponse("too many passwords at the same time: wait a moment\n", 429)
            if is_right:
                scope["embstore.welcome"] = True
                return None
        return PlainTextResponse("a password is needed\n", 401, {"WWW-Authenticate": 'Basic realm="embstore"'})

    async def _is_password(self, secret: str, address: str) -> bool | None:
        """Return whether a secret has the password, None if it was not looked at.

        Passwords of one machine are looked at one after the other, half a second after a wrong one: nobody finds out
        more by many requests at the same time, and nobody else waits for them.
        """
        lock, waiting = self._guessing.setdefault(address, (asyncio.Lock(), []))
        if len(waiting) >= MAX_WAITING:
            return None
        waiting.append(None)
        try:
            async with lock:
                is_right = self._access.is_password(_password(secret))
                if not is_right:
                    await asyncio.sleep(SECONDS_AFTER_WRONG)
                return is_right
        finally:
            waiting.pop()
            if not waiting:
                self._guessing.pop(address, None)


def _cookie(header: str, name: str) -> str:
    """Return the value of a cookie; that of http.cookies takes minutes for a header made to be slow."""
    pairs = (pair.strip().partition("=") for pair in header.split(";"))
    return next((value for key, _, value in pairs if key == name), "")


def _password(secret: str) -> str:
    """Return the password of a Basic authorization, whatever the user's name is."""
    try:
        return base64.b64decode(secret, validate=True).decode().partition(":")[2]
    except (binascii.Error, ValueError):
        return ""


@cache
def _own_names() -> tuple[str, ...]:
    """Return the names of this machine: to ask DNS at each request would hold up all others."""
    return socket.gethostname().lower(), socket.getfqdn().lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
