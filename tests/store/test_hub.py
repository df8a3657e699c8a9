"""Stores behind a server that redirects each file to a signed URL elsewhere, as the Hugging Face hub does."""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partialmethod
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

import embstore as es
from embstore.errors import InvalidValueError, StoreNotFoundError
from embstore.store import publish
from embstore.store.storage.location import ObjectPath, parse_location
from tests.store_making import make_store

REPOSITORY = "/datasets/user/name/resolve/main/"


@dataclass
class Hub:
    """Two servers on loopback: `resolve` redirects to `files`, each of whose URLs is signed for one request."""

    folder: Path
    signed: set[str] = field(default_factory=set)
    ranges: list[str] = field(default_factory=list)
    ports: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def resolve(self, request: BaseHTTPRequestHandler) -> None:
        path = self.folder / request.path.removeprefix(REPOSITORY)
        if not request.path.startswith(REPOSITORY) or not path.is_file():
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


@pytest.mark.parametrize("name", ["store.zarr", "some/x.zarr"])
def test_a_store_on_the_hub_is_read_by_ranges_of_signed_urls(hub: Hub, name: str) -> None:
    (hub.folder / name).parent.mkdir(parents=True)
    make_store(hub.folder / name)
    local = es.open(hub.folder / name)
    store = es.open("hf://datasets/user/name" + ("" if name == "store.zarr" else f"/{name}"))
    rows = np.arange(0, local.n_rows, 3)
    for layer in local.layers:
        np.testing.assert_array_equal(store.gather(rows, layer), local.gather(rows, layer))
    assert list(store.index.words) == list(local.index.words)
    assert any(each.startswith("bytes=") for each in hub.ranges)
    assert not hub.signed


def test_addresses_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    base = "https://huggingface.co/datasets/user/name/resolve"
    for address, url in {
        "hf://datasets/user/name": f"{base}/main/store.zarr",
        "hf://datasets/user/name@v1/": f"{base}/v1/store.zarr",
        "hf://datasets/user/name/a/b.zarr": f"{base}/main/a/b.zarr",
    }.items():
        assert parse_location(address) == ObjectPath(url)
    for wrong in ("hf://user/name", "hf://datasets/user", "hf://datasets/user/name?x", "hf://datasets/u/n/../x"):
        with pytest.raises(InvalidValueError) as raised:
            parse_location(wrong)
        assert "?x" not in str(raised.value)


def test_a_store_that_is_not_on_the_hub(hub: Hub) -> None:
    with pytest.raises(StoreNotFoundError):
        es.open("hf://datasets/user/name/gone.zarr")


class FakeApi:
    """The calls of huggingface_hub.HfApi that publishing makes, on a folder."""

    folder: Path
    created: ClassVar[list[tuple[str, bool]]] = []

    def __init__(self, endpoint: str | None) -> None:
        assert endpoint is not None

    def create_repo(self, repo_id: str, *, repo_type: str, private: bool, exist_ok: bool) -> None:
        assert (repo_type, exist_ok) == ("dataset", True)
        self.created.append((repo_id, private))

    def upload_folder(self, *, folder_path: Path, path_in_repo: str, **_: object) -> None:
        shutil.copytree(folder_path, self.folder / path_in_repo)

    def file_exists(self, repo_id: str, name: str, **_: object) -> bool:
        return (self.folder / name).exists()

    def upload_file(self, *, path_or_fileobj: bytes, path_in_repo: str, **_: object) -> None:
        (self.folder / path_in_repo).write_bytes(path_or_fileobj)


def test_what_is_published_is_opened(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi", FakeApi)
    monkeypatch.setattr(FakeApi, "folder", hub.folder, raising=False)
    monkeypatch.setenv("HF_TOKEN", "hf_secret_token")
    make_store(tmp_path / "made.zarr")
    local = es.open(tmp_path / "made.zarr")
    address = publish(local, "hf://datasets/user/name", license="cc-by-4.0", citation="Doe 2026")
    assert FakeApi.created == [("user/name", False)]
    np.testing.assert_array_equal(es.open(address).gather(np.arange(9), 5), local.gather(np.arange(9), 5))
    text = (hub.folder / "README.md").read_text()
    files = sorted(path for path in (tmp_path / "made.zarr").rglob("*") if path.is_file())
    names = sorted(files, key=lambda path: path.relative_to(tmp_path).as_posix())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in names)).hexdigest()
    for part in ('license: "cc-by-4.0"', "Doe 2026", digest, local.metadata.model["name"], 'es.open("hf://datasets'):
        assert part in text
    assert "hf_secret_token" not in text
    publish(local, "hf://datasets/user/name/other.zarr", private=True)
    assert FakeApi.created == [("user/name", False), ("user/name", True)]
    assert (hub.folder / "README.md").read_text() == text


def test_what_cannot_be_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_store(tmp_path / "made.zarr")
    local = es.open(tmp_path / "made.zarr")
    for address in (
        "hf://datasets/user",
        "hf://datasets/user/name@v1",
        "hf://datasets/user/name/x.h5",
        "s3://b/x.zarr",
    ):
        with pytest.raises(InvalidValueError, match="hf://datasets/USER/NAME"):
            publish(local, address)
    for limit, what in (("MAX_FILES", "files in"), ("MAX_ENTRIES", "entries in"), ("MAX_NBYTES", "bytes in")):
        with monkeypatch.context() as patch:
            patch.setattr(f"embstore.store.convert.publish.{limit}", 1)
            with pytest.raises(InvalidValueError, match=f"{what} a .*, and the hub takes 1: publish parts"):
                publish(local, "hf://datasets/user/name")
    with pytest.warns(es.errors.UnfinishedStoreWarning):
        make_store(tmp_path / "part.zarr", leave_out=(1,))
    with pytest.warns(es.errors.UnfinishedStoreWarning):
        unfinished = es.open(tmp_path / "part.zarr")
    with pytest.raises(InvalidValueError, match="is not finished"):
        publish(unfinished, "hf://datasets/user/name")
    FakeApi.created.clear()
