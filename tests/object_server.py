"""An S3 server on loopback (moto) behind a proxy that records every request and injects faults."""

from __future__ import annotations

import http.client
import logging
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import pytest

KEY, SECRET = "AKIAEXAMPLEEXAMPLE", "not/a/real/secret/of/anyone"
_HOP = {"connection", "keep-alive", "transfer-encoding", "date", "server", "content-length"}


@dataclass(frozen=True)
class Request:
    """One request that reached the proxy. `key`: without the bucket; `range`: the header, e.g. "bytes=0-99"."""

    method: str
    key: str
    query: str
    range: str | None
    status: int
    nbytes: int


@dataclass
class Fault:
    """What goes wrong with requests whose "METHOD key?query" holds the regular expression `match`, `times` times.

    `status`: answered instead of the server, with the S3 error `code` and the further XML `detail`. `cut`: this share
    of the body is sent, then the connection ends. `lose`: the server does what is asked, its answer is lost.
    `delay`: seconds before the request is passed on. `alter`: makes another body of the server's.
    """

    match: str
    times: int = 1
    status: int | None = None
    code: str = "SlowDown"
    detail: str = ""
    cut: float | None = None
    lose: bool = False
    delay: float = 0.0
    alter: Callable[[bytes], bytes] | None = None
    met: int = field(default=0, init=False)


class Server(ThreadingHTTPServer):
    """A server that many clients may call at once; with the usual queue of five some would wait for a second."""

    request_queue_size = 128
    daemon_threads = True


class Proxy:
    """A proxy in front of an HTTP server at `host`:`port`; `url` is its own address."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._faults: list[Fault] = []
        self._requests: list[Request] = []
        self._mutex = threading.Lock()
        self._conditional = threading.Lock()
        self._server = Server(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def break_next(self, fault: Fault) -> Fault:
        """Let a fault happen to the requests that it matches from now on; returns it, `met` counts them."""
        with self._mutex:
            self._faults.append(fault)
        return fault

    def reset(self) -> None:
        """Forget all faults and requests."""
        with self._mutex:
            self._faults.clear()
            self._requests.clear()

    @property
    def requests(self) -> list[Request]:
        with self._mutex:
            return list(self._requests)

    def _fault_of(self, line: str) -> Fault | None:
        with self._mutex:
            for fault in self._faults:
                if fault.met < fault.times and re.search(fault.match, line):
                    fault.met += 1
                    return fault
        return None

    def _ask(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Pass a request on. moto checks a condition and writes in two steps: conditional requests take turns."""
        conditional = method in ("PUT", "POST") and any(
            name.lower() in ("if-match", "if-none-match") for name in headers
        )
        with self._conditional if conditional else nullcontext():
            return self._pass(method, path, headers, body)

    def _pass(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(*self._target, timeout=600)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def _note(self, request: Request) -> None:
        with self._mutex:
            self._requests.append(request)


def _handler(proxy: Proxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def log_message(self, format: str, *arguments: object) -> None:
            pass

        def pass_on(self) -> None:
            sent = self.rfile.read(int(self.headers.get("content-length", 0)))
            path, _, query = self.path.partition("?")
            key = urllib.parse.unquote(path).lstrip("/").partition("/")[2]
            fault = proxy._fault_of(f"{self.command} {key}" + (f"?{query}" if query else ""))
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
            if fault is not None and fault.status is not None:
                status, fields, body = fault.status, {"content-type": "application/xml"}, _error(fault)
            else:
                if fault is not None:
                    time.sleep(fault.delay)
                status, fields, body = proxy._ask(self.command, self.path, headers, sent)
                if fault is not None and fault.alter is not None:
                    body = fault.alter(body)
            proxy._note(Request(self.command, key, query, self.headers.get("range"), status, len(body)))
            self.answer(status, fields, body, fault)

        def answer(self, status: int, fields: dict[str, str], body: bytes, fault: Fault | None) -> None:
            if fault is not None and fault.lose:
                self.close_connection = True
                return
            self.send_response_only(status)
            for name, value in fields.items():
                if name not in _HOP:
                    self.send_header(name, value)
            head = self.command == "HEAD"
            length = fields.get("content-length", "0") if head else str(len(body))
            if status not in (204, 304):
                self.send_header("content-length", length)
            self.end_headers()
            if fault is not None and fault.cut is not None:
                self.wfile.write(body[: int(len(body) * fault.cut)])
                self.close_connection = True
            elif not head:
                self.wfile.write(body)
            self.wfile.flush()

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = pass_on

    return Handler


def _error(fault: Fault) -> bytes:
    return f"<Error><Code>{fault.code}</Code><Message>as the test asked for</Message>{fault.detail}</Error>".encode()


@dataclass(frozen=True)
class Bucket:
    """An empty bucket for one test, reached through `proxy`; `url` is s3://NAME."""

    name: str
    proxy: Proxy
    held: Any  # what moto's server keeps

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    def upload(self, folder: Path, prefix: str) -> str:
        """Put every file of a folder, hidden ones too, below `prefix`, past the proxy; returns the s3:// address."""
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                self.put(f"{prefix}/{file.relative_to(folder).as_posix()}", file.read_bytes())
        return f"{self.url}/{prefix}"

    def put(self, key: str, data: bytes) -> None:
        """Put one object, past the proxy."""
        # moto computes the ETag when it is first asked for, from a buffer that other threads may be reading.
        assert self.held.put_object(self.name, key, data).etag

    def get(self, key: str) -> bytes:
        """Get one object, past the proxy."""
        found = self.held.get_object(self.name, key)
        assert found is not None, key
        value: bytes = found.value
        return value

    def delete(self, key: str) -> None:
        """Remove one object, past the proxy."""
        self.held.delete_object(self.name, key)

    def keys(self) -> list[str]:
        """Every key of the bucket, in order, past the proxy."""
        return sorted(self.held.get_bucket(self.name).keys)


def contents(name: str) -> dict[str, bytes]:
    """Every object of a bucket of the server in this process, by key, past the proxy."""
    return {key: held.value for key, held in sorted(_held().get_bucket(name).keys.items())}


def _held() -> Any:
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends

    return s3_backends[DEFAULT_ACCOUNT_ID]["aws"]


_numbers = count()


@pytest.fixture(scope="session")
def object_server() -> Iterator[tuple[Proxy, Any]]:
    """A proxy before an S3 server on a free port of loopback, and what that server keeps."""
    pytest.importorskip("obstore", reason="no obstore: pip install 'embstore[objects]'")
    server_of_moto = pytest.importorskip("moto.server", reason="no moto: pip install 'moto[s3,server]'")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = server_of_moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    proxy = Proxy(host, port)
    yield proxy, _held()
    proxy.close()
    server.stop()


@pytest.fixture
def bucket(object_server: tuple[Proxy, Any], monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty bucket, the environment set so that s3:// leads to it, few and quick retries."""
    proxy, held = object_server
    proxy.reset()
    for name, value in bucket_environment(proxy).items():
        monkeypatch.setenv(name, value)
    name = f"bucket-{next(_numbers)}"
    held.create_bucket(name, "us-east-1")
    return Bucket(name, proxy, held)


def bucket_environment(proxy: Proxy) -> dict[str, str]:
    """The variables with which s3:// leads through the proxy, for a process of its own too."""
    return {
        "AWS_ENDPOINT_URL": proxy.url, "AWS_ALLOW_HTTP": "true", "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1", "EMBSTORE_RETRIES": "3",
    }  # fmt: skip
