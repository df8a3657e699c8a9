"""Only who has the token or password may ask the explorer's server, from its own page, and it serves nothing else."""

from __future__ import annotations

import asyncio
import base64
import csv
import io
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpx
import numpy as np
import pytest
from starlette.testclient import TestClient

import embstore as es
from embstore.errors import InvalidValueError, MissingRowsError, StoreDamagedError
from embstore_explorer import answer, explored, security, server, serving
from embstore_explorer.answers import Arrays
from embstore_explorer.notebook import CODE
from embstore_explorer.queries.registry import CancelledQueryError
from embstore_explorer.security import Access
from embstore_explorer.stores import Explored
from tests.explorer.conftest import EMOJI, HOSTILE, RIGHT_TO_LEFT, RUN
from tests.store_making import make_store, make_text_store

BASE = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> list[Explored]:
    return explored([make_store(tmp_path_factory.mktemp("made") / "s.zarr").store])


@pytest.fixture(autouse=True)
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "SECONDS_AFTER_WRONG", 0)


@pytest.fixture
def access() -> Access:
    return Access(port=8000)


@pytest.fixture
def client(opened: list[Explored], access: Access) -> Iterator[TestClient]:
    with TestClient(server.make_app(opened, access), base_url=BASE, follow_redirects=False) as client:
        yield client


@pytest.fixture
def known(client: TestClient, access: Access) -> TestClient:
    assert client.get(f"/?token={access.token}").status_code == 200
    return client


def test_the_token_of_the_url_becomes_a_cookie(client: TestClient, access: Access) -> None:
    assert client.get("/").status_code == 401
    assert client.get("/api/stores").status_code == 401
    page = client.get(f"/?token={access.token}&view=word")
    assert page.status_code == 200
    assert page.headers["set-cookie"] == f"embstore-8000={access.token}; HttpOnly; SameSite=Strict; Path=/"
    assert client.get("/api/stores").status_code == 200
    assert "set-cookie" not in client.get("/api/stores").headers
    assert client.get(f"/api/stores?token={access.token}").status_code == 200, "the token is no parameter of the query"
    bearer = client.get("/", headers={"authorization": f"Bearer {access.token}", "cookie": ""})
    assert (bearer.status_code, "set-cookie" in bearer.headers) == (200, False)
    assert page.headers["cache-control"] == "no-cache", "a new version of the page is seen"


@pytest.mark.parametrize(
    "path", ["/", "/api/stores", "/api/nothing", "/api/export/word.csv", "/explorer.js", "/x/../y"]
)
@pytest.mark.parametrize(
    "headers",
    [
        {}, {"authorization": "Bearer wrong"}, {"authorization": "Bearer "}, {"authorization": "Bearer é".encode()},
        {"authorization": "Basic !!!"}, {"authorization": "Basic " + base64.b64encode(b"user:None").decode()},
        {"authorization": "Basic " + base64.b64encode(b"user:").decode()}, {"cookie": "embstore-8000=wrong"},
        {"cookie": "embstore-8001=TOKEN"}, {"cookie": "=;;\x01"},
    ],
)  # fmt: skip
@pytest.mark.quick(20)
def test_strangers_are_served_nothing(client: TestClient, access: Access, path: str, headers: dict[str, Any]) -> None:
    given = {**headers}
    if str(headers.get("cookie", "")).startswith("embstore-8001"):
        given["cookie"] = f"embstore-8001={access.token}"  # of another server on this machine
    for url in (path, f"{path}?token=wrong", f"{path}?token={access.token[:-1]}"):
        answer = client.get(url, headers=given)
        assert answer.status_code == 401
        assert access.token not in answer.text
        assert "set-cookie" not in answer.headers


def basic(text: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(text.encode()).decode()}


def test_wrong_passwords_wait_and_nobody_else(opened: list[Explored], monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong passwords wait, so that they are not tried fast; a first visit, other machines and cookies do not."""
    access = Access(port=8000, password="long enough")
    app = server.make_app(opened, access)
    ends = asyncio.Event()
    asleep: list[float] = []

    async def sleep(seconds: float) -> None:
        asleep.append(seconds)
        await ends.wait()

    monkeypatch.setattr(security, "SECONDS_AFTER_WRONG", 7)
    monkeypatch.setattr(security, "asyncio", SimpleNamespace(sleep=sleep, Lock=asyncio.Lock))

    async def ask(address: str, headers: dict[str, str]) -> int:
        transport = httpx.ASGITransport(app, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            return (await client.get("/", headers=headers)).status_code

    async def attack() -> None:
        guesses = [asyncio.ensure_future(ask("10.0.0.9", basic(f"a:{n}"))) for n in range(security.MAX_WAITING)]
        while not asleep:
            await asyncio.sleep(0.01)
        assert await ask("10.0.0.9", {}) == 401, "a first visit is answered at once"
        assert await ask("10.0.0.9", {"authorization": "Bearer wrong"}) == 401, "a token cannot be guessed"
        assert await ask("10.0.0.8", basic("a:long enough")) == 200, "another machine does not wait"
        assert await ask("10.0.0.9", {"cookie": f"embstore-8000={access.token}"}) == 200
        assert await ask("10.0.0.9", basic("a:long enough")) == 429, "too many wait: it is not looked at"
        assert asleep == [7], "one after the other"
        ends.set()
        assert [await guess for guess in guesses] == [401] * security.MAX_WAITING
        assert await ask("10.0.0.9", basic("a:long enough")) == 200

    asyncio.run(attack())
    assert asleep == [7] * security.MAX_WAITING


@pytest.mark.parametrize("token", [True, False])
def test_many_parameters_are_refused_as_all_else(client: TestClient, access: Access, token: bool) -> None:
    for path in ("/", "/api/stores", "/api/export/word.csv"):
        query = "&".join(f"p{number}=1" for number in range(101)) + (f"&token={access.token}" if token else "")
        answer = client.get(f"{path}?{query}")
        assert (answer.status_code, answer.text) == (400, "a query has at most 100 parameters\n")
        assert answer.headers["x-frame-options"] == "DENY"


def test_a_cookie_made_to_be_slow_is_not(client: TestClient) -> None:
    slow = 'embstore-8000="' + '\\"' * 30_000 + '"'
    began = time.perf_counter()
    assert client.get("/", headers={"cookie": slow}).status_code == 401
    assert time.perf_counter() - began < 2


@contextmanager
def served(app: Any) -> Iterator[int]:
    """Run a server as the command does, in a thread; gives its port."""
    listening = serving._listening("127.0.0.1", 0)
    running = serving._Server(serving.settings_of(app))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        running.should_exit = running.force_exit = True
        thread.join(60)
        assert not thread.is_alive()


def ended(connection: socket.socket) -> bool:
    """Return whether the server has closed a connection; waits for it."""
    connection.settimeout(60)
    try:
        while connection.recv(4096):
            pass
        return True
    except ConnectionError:
        return True


def test_requests_that_never_end_lock_nobody_out(opened: list[Explored], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MAX_WAITING", 20)
    with served(server.make_app(opened, Access(port=1))) as port:
        half = [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]
        for connection in half:
            with suppress(ConnectionError):
                connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1:1\r\nX: ")
        with socket.create_connection(("127.0.0.1", port)) as own:
            own.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n")
            assert own.recv(4096).startswith(b"HTTP/1.1 401")
        assert all(map(ended, half[:30])), "the oldest make room"
        for connection in half:
            connection.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost:",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\nGET / HTTP/1.1\r\n",
        b"POST /api/stores HTTP/1.1\r\nHost: 127.0.0.1:1\r\nContent-Length: 9\r\n\r\n{",
    ],
)
def test_idle_connections_are_closed(opened: list[Explored], monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(serving, "SECONDS_FOR_HEADERS", 0.3)
    monkeypatch.setattr(serving, "SECONDS_KEPT", 0.6)
    monkeypatch.setattr(serving.Connection, "timeout_keep_alive", 60, raising=False)
    with served(server.make_app(opened, Access(port=1))) as port, socket.create_connection(("127.0.0.1", port)) as own:
        own.sendall(sent)
        stop = threading.Event()

        def drip() -> None:
            while not stop.wait(0.1):
                with suppress(OSError):
                    own.sendall(b"x")

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            assert ended(own), "one byte after the other does not keep it open"
        finally:
            stop.set()
            dripping.join()


def test_only_names_of_loopback_are_served(client: TestClient, access: Access) -> None:
    given = {"authorization": f"Bearer {access.token}"}
    for host in ("evil.example:8000", "127.0.0.1", "127.0.0.1:80", "127.0.0.1:8000.evil", "", "[::2]:8000"):
        assert client.get("/api/stores", headers={**given, "host": host}).status_code == 403
    for host in ("127.0.0.1:8000", "localhost:8000", "LOCALHOST:8000", "[::1]:8000"):
        headers = {**given, "host": host, "origin": f"http://{host.lower()}"}
        assert client.get("/api/stores", headers=headers).status_code == 200


def test_on_all_addresses_only_numbers_and_own_names_are_hosts() -> None:
    access = Access(host="0.0.0.0", port=80)
    assert all(map(access.is_host, ("192.168.1.7", "192.168.1.7:80", "localhost:80", "[fe80::1]:80")))
    assert not any(map(access.is_host, ("evil.example", "192.168.1.7.evil.example:80", "192.168.1.7:81", "")))
    named = Access(host="lab.example", port=81)
    assert named.is_host("LAB.example:81")
    assert not named.is_host("localhost:81")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": BASE}, 200), ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:8001"}, 403), ({"origin": "http://localhost:8000"}, 403),
        ({"origin": "null"}, 403), ({"origin": ""}, 403), ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403), ({"sec-fetch-site": "same-origin"}, 200),
    ],
)  # fmt: skip
def test_other_sites_may_not_ask(known: TestClient, headers: dict[str, str], status: int) -> None:
    for method in ("GET", "POST"):
        answer = known.request(method, "/api/stores", headers=headers, **({"json": {}} if method == "POST" else {}))
        assert answer.status_code == status
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_every_answer_has_the_headers_of_security(known: TestClient) -> None:
    for path in ("/", "/api/stores", "/api/nothing", "/nothing"):
        headers = known.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert re.search(r"script-src 'self';", policy), "no inline scripts, no eval, no other host"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers
    assert known.get("/api/stores").headers["cache-control"] == "no-store"
    assert known.options("/api/stores").status_code == 405
    assert known.delete("/api/stores").status_code == 405


def test_the_page_is_one_module_that_evaluates_no_text_and_asks_no_other_host() -> None:
    code = CODE.read_text("utf-8")
    assert "export{" in code
    assert not re.search(r"\bimport\b(?! polars as pl\n)|\beval\(|new Function|https?://(?!www\.w3\.org/)", code)
    assert "explorer.js" in (CODE.parent / "page.js").read_text("utf-8")


def test_hostile_words_come_back_as_they_are(tmp_path: Path, access: Access) -> None:
    words = [HOSTILE, RIGHT_TO_LEFT, EMOJI, "\x01", "a/../b", "%2e&x=1#", "';--", '"', "=1+1", "é" * 2000]
    tags = [tag for word in words for tag in (None, word, None)]
    store = make_text_store(tmp_path / "s.zarr", [["we", word, "there"] for word in words], tag=tags)
    with TestClient(server.make_app(explored([store]), access), base_url=BASE) as client:
        client.headers["authorization"] = f"Bearer {access.token}"
        for number, word in enumerate(words):
            where = "tag = '{}'".format(word[:1000].replace("'", "''"))
            for params in ({"word": word}, *([{"where": where}] if len(word) < 1000 else [])):
                answer = client.get("/api/occurrences", params=params)
                assert answer.headers["content-type"] == "application/json"
                (row,) = answer.json()["rows"]
                assert (row["row"], row["left"], row["word"], row["right"]) == (3 * number + 1, "we ", word, " there")
                assert row["labels"] == {"tag": word}
            table = client.post("/api/export/occurrences.csv", json={"rows": [3 * number + 1]})
            assert table.headers["content-disposition"] == 'attachment; filename="occurrences.csv"'
            assert [each["word"] for each in csv.DictReader(io.StringIO(table.text, newline=""))] == [word]
            assert client.get("/api/complete", params={"prefix": word}).json()["words"] == [{"word": word, "count": 1}]
            refused = client.get("/api/word", params={"word": f"{word}?"[-2000:]})
            assert (refused.status_code, len(refused.text.splitlines())) == (404, 1)


@pytest.mark.parametrize(
    "path",
    [
        "/../server.py", "/..%2fserver.py", "/%2e%2e/%2e%2e/pyproject.toml", "/assets/../../server.py",
        "//etc/passwd", "/%2fetc%2fpasswd", "/index.html%00", "/C:%5cWindows", "/api/../server.py",
        "/api/export/..%2f..%2fx.csv", "/api/export/word.csv%00",
    ],
)  # fmt: skip
def test_only_files_of_the_page_are_served(known: TestClient, path: str) -> None:
    assert known.get(path).status_code == 404


def test_a_password_takes_the_place_of_the_token(opened: list[Explored]) -> None:
    access = Access(port=8000, password="long enough é")
    assert access.token not in access.url
    assert "long" not in repr(access)
    client = TestClient(server.make_app(opened, access), base_url=BASE)
    asked = client.get("/")
    assert asked.status_code == 401
    assert asked.headers["www-authenticate"].startswith("Basic ")
    assert client.get("/", headers=basic("anyone:wrong")).status_code == 401
    assert client.get("/", headers=basic("anyone:long enough é")).status_code == 200
    assert client.get("/api/stores").status_code == 200, "the cookie holds"


def test_errors_are_one_line_of_json(known: TestClient, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for path, status in [
        ("/api/nothing", 404),
        ("/api/word?word=nothing", 404),
        ("/api/word", 400),
        ("/api/word?word=a&word=b", 400),
        ("/api/occurrences?where=;", 400),
        ("/api/export/word.exe?word=bank", 404),
    ]:
        answer = known.get(path)
        assert answer.status_code == status, path
        assert "\n" not in answer.json()["error"]
    for body in (b"", b"[1]", b"{" * 100_000, b"\xff"):
        assert known.post("/api/stores", content=body).status_code == 400
    assert known.post("/api/occurrences", json={"rows": [3, 5]}).json()["total"] == 2
    monkeypatch.setattr(server, "MAX_BODY", 10)
    assert "more than 10 bytes" in known.post("/api/occurrences", json={"rows": [3, 5]}).json()["error"]
    whole = known.get("/api/export/occurrences.csv?where=position >= 0&limit=1")
    assert len(whole.text.splitlines()) == 1 + known.get("/api/occurrences").json()["total"]
    monkeypatch.delenv("EMBSTORE_DEBUG", raising=False)
    for error, status, said in (
        (StoreDamagedError("a file is gone"), 500, "a file is gone"),
        (MissingRowsError("row 5 is not written yet"), 409, "row 5 is not written yet"),
        (ZeroDivisionError("one\ntwo"), 500, "ZeroDivisionError: one two"),
    ):
        monkeypatch.setattr(server, "answer", Mock(side_effect=error))
        answer = known.get("/api/stores")
        needs = {"needs": "reopen"} if isinstance(error, StoreDamagedError) else {}
        assert (answer.status_code, answer.json()) == (status, {"error": said} | needs)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("EMBSTORE_DEBUG", "1")
    known.get("/api/stores")
    assert "Traceback" in capsys.readouterr().err


def test_long_queries_report_their_progress_line_by_line(known: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def reporting(*arguments: object, progress: Callable[[int, int], object], **options: object) -> dict[str, int]:
        progress(1, 2)
        progress(2, 2)
        return {"found": 3}

    lines = known.get("/api/word?word=bank", headers={"accept": server.NDJSON})
    assert json.loads(lines.text.splitlines()[-1])["result"]["word"] == "bank"
    lines = known.get("/api/word?word=nothing", headers={"accept": server.NDJSON})
    assert json.loads(lines.text)["status"] == 404
    monkeypatch.setattr(server, "answer", lambda *arguments, **options: arrays)
    arrays = Arrays({"x": np.arange(3.0)}, {"total": 3})
    last, _, data = known.get("/api/map", headers={"accept": server.NDJSON}).content.partition(b"\n")
    assert (json.loads(last), data) == ({"safetensors": len(data)}, arrays.to_bytes())
    monkeypatch.setattr(server, "answer", reporting)
    lines = known.get("/api/word?word=bank", headers={"accept": server.NDJSON})
    wanted = [{"progress": [1, 2]}, {"progress": [2, 2]}, {"result": {"found": 3}}]
    assert [json.loads(line) for line in lines.text.splitlines()] == wanted


@pytest.mark.parametrize("accept", ["*/*", server.NDJSON])
def test_a_closed_connection_cancels_its_query(
    opened: list[Explored], access: Access, monkeypatch: pytest.MonkeyPatch, accept: str
) -> None:
    started, ended = threading.Event(), threading.Event()

    def endless(*arguments: object, cancelled: Callable[[], bool], **options: object) -> None:
        started.set()
        while not cancelled():
            pass
        ended.set()
        raise CancelledQueryError

    monkeypatch.setattr(server, "answer", endless)
    headers = {"host": "127.0.0.1:8000", "authorization": f"Bearer {access.token}", "accept": accept}
    scope = {"type": "http", "method": "GET", "path": "/api/word", "query_string": b"word=bank"}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def receive() -> dict[str, Any]:
        if not started.is_set():
            await asyncio.to_thread(started.wait)
        return {"type": "http.disconnect"}

    async def send(message: object) -> None:
        pass

    asyncio.run(server.make_app(opened, access)(scope, receive, send))  # type: ignore[arg-type]
    assert ended.wait(600)


@pytest.mark.slow
def test_who_has_the_token_names_a_model_that_is_missing(
    stores: list[Path], tmp_path: Path, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a virtual store, whose model is in no known place, while a variable names another one."""
    asked = {"neighbors": {"text": "the [bank] is old"}, "attention": {"sentence": 0}, "similarity": {"sentence": 0}}
    monkeypatch.setenv("EMBSTORE_CACHE", str(tmp_path / "cache"))
    moved = Path(shutil.copytree(stores[0], tmp_path / "moved" / "first.zarr"))
    right, other = (str(stores[0].parent / f"model-{name}") for name in ("first", "second"))
    es.store.thin(moved, model=right)
    shutil.rmtree(tmp_path / "cache")
    monkeypatch.setattr("embstore.models.origin._used", {})
    monkeypatch.setenv("EMBSTORE_MODEL", other)
    with TestClient(server.make_app(explored([moved]), access), base_url=BASE) as client:
        assert client.post("/api/model", json={"place": right}).status_code == 401
        client.headers["authorization"] = f"Bearer {access.token}"
        for name, given in asked.items():
            refused = client.post(f"/api/{name}", json=given)
            assert (refused.status_code, refused.json()["needs"]) == (400, "model"), name
            assert "other weights than the model" in refused.json()["error"]
            lines = client.post(f"/api/{name}", json=given, headers={"accept": server.NDJSON})
            assert json.loads(lines.text.splitlines()[-1])["needs"] == "model"
        for place in (other, f"{right}/gone", "", str(moved), "/dev/zero", f"{right}/config.json", "a\x00", 3):
            refused = client.post("/api/model", json={"place": place})
            assert refused.status_code == 400, place
            assert len(refused.json()["error"].splitlines()) == 1
            assert not client.get("/api/stores").json()[0]["can_encode"]
        found = client.post("/api/model", json={"place": right})
        assert (found.status_code, found.json()) == (200, {"store": "first", "can_encode": True})
        for name, given in asked.items():
            assert client.post(f"/api/{name}", json=given).status_code == 200, name
        assert client.get("/api/sentence").json()["missing_model"] is None
    assert not explored([moved], model=other)[0].can_encode
    assert answer(explored([moved], model=right), "similarity", {"sentence": 0}), "the option is for all vectors"


def test_a_model_is_named_to_no_server_for_other_machines_and_by_no_link(
    opened: list[Explored], known: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert known.get("/api/model", params={"place": "x"}).status_code == 405
    for method in ("GET", "POST"):
        assert known.request(method, "/api/export/model.csv?place=x", content=b"{}").status_code == 405
    for host, takes, said in (("0.0.0.0", False, "explore --model`$"), ("127.0.0.1", True, "there is no vector file")):
        made = Mock(side_effect=KeyboardInterrupt)
        monkeypatch.setattr(serving, "make_app", made)
        with pytest.raises(KeyboardInterrupt):
            serving.serve([str(opened[0].store.path)], host=host, browser=False)
        (one,) = made.call_args.args[0]
        assert answer([one], "stores", {})[0]["takes_model"] is takes
        with pytest.raises(es.errors.InputError, match=said):
            answer([one], "model", {"place": "gone.txt"})


@pytest.mark.slow
@pytest.mark.parametrize(("host", "number"), [("127.0.0.1", signal.SIGINT), ("0.0.0.0", signal.SIGTERM)])
def test_the_command_prints_its_url_serves_and_ends(tmp_path: Path, host: str, number: signal.Signals) -> None:
    path = make_store(tmp_path / "s.zarr").store.path
    command = [sys.executable, "-c", RUN, "explore", str(path), "--no-browser", "--host", host]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        url, token = re.fullmatch(
            r"exploring s at (http://127.0.0.1:\d+/)\?token=(\S+) \(Ctrl-C ends\)\n", line
        ).groups()  # type: ignore[union-attr]
        request = urllib.request.Request(f"{url}api/stores", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            assert json.load(answer)[0]["name"] == "s"
        process.send_signal(number)
        assert process.wait(600) == 128 + number
        warning = "embstore: everyone with this URL who can reach this machine can read the stores\n"
        assert process.stdout.read() + process.stderr.read() == ("" if host == "127.0.0.1" else warning)


def test_a_host_or_port_that_is_none_is_refused_before_a_store_is_opened() -> None:
    for host in ("\x00", "é" * 3000, "../..", "\udcff", "a..b", "256.1.1.1"):
        with pytest.raises(InvalidValueError, match=r"host .*; choose another address|is not text"):
            serving.serve(["gone.zarr"], host=host, browser=False)
    for port in (80_000, -1):
        with pytest.raises(InvalidValueError, match=rf"^port {port} is not allowed: give 0 to 65,535$"):
            serving.serve(["gone.zarr"], port=port, browser=False)
