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
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
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
SECONDS_AFTER_WRONG = 0.5
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
            return name in (*LOOPBACK, socket.gethostname().lower(), socket.getfqdn().lower()) or _is_address(name)
        return name in (LOOPBACK if self.host in LOOPBACK else (self.host.lower(),))

    def is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())

    def is_password(self, given: str) -> bool:
        own, other = (hashlib.sha256(each.encode()).digest() for each in (self.password or "", given))
        return self.password is not None and hmac.compare_digest(own, other)


class Guard:
    """Refuses requests that are not allowed, and adds the headers of security to every response."""

    def __init__(self, app: ASGIApp, *, access: Access) -> None:
        self._app = app
        self._access = access
        self._refusing = asyncio.Semaphore(1)

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

        refused = self._refusal(scope)
        if refused is not None and refused.status_code == 401:
            async with self._refusing:  # guesses wait for each other
                await asyncio.sleep(SECONDS_AFTER_WRONG if scope.get("embstore.guess") else 0)
        await (self._app if refused is None else refused)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> Response | None:
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
        if self._is_known(scope, headers):
            return None
        if self._access.password:
            return PlainTextResponse("a password is needed\n", 401, {"WWW-Authenticate": 'Basic realm="embstore"'})
        return PlainTextResponse(OPEN_THE_URL, 401)

    def _is_known(self, scope: Scope, headers: dict[str, str]) -> bool:
        access = self._access
        if any(map(access.is_token, _cookies(headers.get("cookie", ""), access.cookie))):
            return True
        kind, _, secret = headers.get("authorization", "").partition(" ")
        query = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=100).get("token", [])
        known = kind.lower() == "bearer" and access.is_token(secret)
        known = known or any(map(access.is_token, query))
        known = known or (kind.lower() == "basic" and access.is_password(_password(secret)))
        scope["embstore.guess"] = bool(secret or query) and not known
        scope["embstore.welcome"] = known and kind.lower() != "bearer"
        return known


def _cookies(header: str, name: str) -> Iterable[str]:
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return ()
    return () if found is None else (found.value,)


def _password(secret: str) -> str:
    """Return the password of a Basic authorization, whatever the user's name is."""
    try:
        return base64.b64decode(secret, validate=True).decode().partition(":")[2]
    except (binascii.Error, ValueError):
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
