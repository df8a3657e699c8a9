"""The explorer's web server: the page, queries as GET /api/NAME, and their tables as files."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from embstore.errors import EmbstoreError, InputError, InvalidValueError, MissingRowsError
from embstore_explorer.answers import JSON, encoded, failure
from embstore_explorer.queries.registry import CHANGES, CancelledQueryError, NotFoundError, Report, answer
from embstore_explorer.security import Access, Guard
from embstore_explorer.stores import Explored
from embstore_explorer.tables import FORMATS, as_file

THREADS = 48  # queries at the same time; most wait for a search that they share
MAX_BODY = 16 * 2**20
NDJSON = "application/x-ndjson"
MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
MISSING_PAGE = b"<!doctype html><title>embstore</title><p>The page is not built: npm run build in explorer/source.</p>"
Make = Callable[[Any], tuple[bytes, str]]  # of an answer: the body and its media type


class Queries:
    """Answers queries in a few threads, so that a slow one does not hold up the others."""

    def __init__(self, stores: list[Explored], *, threads: int = THREADS) -> None:
        self._stores = stores
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="query")

    async def ask(
        self,
        name: str,
        params: Mapping[str, object],
        make: Make,
        left: threading.Event,
        *,
        progress: Report | None = None,
        whole: bool = False,
    ) -> tuple[bytes, str]:
        """Answer a query in a thread; `left` is set when nobody waits any more."""
        work = partial(answer, self._stores, name, params, progress=progress, cancelled=left.is_set, whole=whole)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: make(work()))
        finally:
            left.set()


def make_app(stores: list[Explored], access: Access, *, threads: int = THREADS) -> Starlette:
    """Return the application that shows some stores to those who have access."""
    queries = Queries(stores, threads=threads)
    page = _page()

    async def file(request: Request) -> Response:
        path = request.path_params["path"] or "index.html"
        if path not in page:
            return _error({"error": f"there is no page /{path}"}, 404)
        kind = MEDIA.get(os.path.splitext(path)[1], "application/octet-stream")
        return Response(page[path](), media_type=kind, headers={"Cache-Control": "no-cache"})

    async def query(request: Request) -> Response:
        return await _answered(queries, request, request.path_params["name"], encoded)

    async def export(request: Request) -> Response:
        name, suffix = (request.path_params[part] for part in ("name", "suffix"))
        if suffix not in FORMATS:
            return _error({"error": f"a table cannot be written as {suffix}: choose {' or '.join(FORMATS)}"}, 404)
        made = await _answered(queries, request, name, partial(as_file, suffix=suffix), whole=True)
        if made.status_code == 200:
            made.headers["Content-Disposition"] = f'attachment; filename="{name}.{suffix}"'
        return made

    routes = [
        Route("/api/export/{name}.{suffix}", export, methods=["GET", "POST"]),
        Route("/api/{name}", query, methods=["GET", "POST"]),
        Route("/{path:path}", file, methods=["GET"]),
    ]
    return Starlette(routes=routes, middleware=[Middleware(Guard, access=access)])


def _page() -> dict[str, Callable[[], bytes]]:
    """Return how to read each file of the page, by its name; nothing else is served."""
    folder = files("embstore_explorer") / "page"
    found = {each.name: each.read_bytes for each in folder.iterdir()} if folder.is_dir() else {}
    return {"index.html": lambda: MISSING_PAGE, **found}


async def _answered(
    queries: Queries,
    request: Request,
    name: str,
    make: Make,
    *,
    whole: bool = False,
) -> Response:
    """Answer one request: as a whole, or line by line with its progress where the client accepts that."""
    if name in CHANGES and (whole or request.method != "POST"):  # so that no link does
        return _error({"error": f"{name} changes what is answered: ask by POST"}, 405)
    try:
        params = await _params(request)
    except InvalidValueError as error:
        return _error(failure(error), 400)
    if not whole and NDJSON in request.headers.get("accept", ""):
        return StreamingResponse(_lines(queries, name, params, make), media_type=NDJSON)
    left = threading.Event()
    asked = asyncio.ensure_future(queries.ask(name, params, make, left, whole=whole))
    gone = asyncio.ensure_future(_until_closed(request))
    await asyncio.wait((asked, gone), return_when=asyncio.FIRST_COMPLETED)
    left.set()
    gone.cancel()
    try:
        body, kind = await asked
    except BaseException as error:
        return _error(*_explained(error))
    return Response(body, media_type=kind)


async def _params(request: Request) -> dict[str, object]:
    """Return the parameters of the URL, or of a body that is a JSON object."""
    given = [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
    params: dict[str, object] = dict(given)
    if len(params) < len(given):
        raise InvalidValueError("a parameter is given twice: give each once")
    if request.method == "POST":
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY:
                raise InvalidValueError(f"the body has more than {MAX_BODY:,} bytes")
        try:
            held = json.loads(body)
        except (ValueError, RecursionError):
            held = None
        if not isinstance(held, dict):
            raise InvalidValueError("the body is not a JSON object of parameters")
        params |= held
    return params


async def _until_closed(request: Request) -> None:
    """Return once the client has closed the connection."""
    try:
        while (await request.receive())["type"] != "http.disconnect":
            pass
    except ClientDisconnect:
        pass


async def _lines(queries: Queries, name: str, params: Mapping[str, object], make: Make) -> AsyncIterator[bytes]:
    """Yield lines {"progress": [done, total]}, and last {"result": ...} or {"error": ..., "status": ...}.

    Instead of the result of arrays there is a line {"safetensors": N}, and N bytes follow.
    """
    loop, left = asyncio.get_running_loop(), threading.Event()
    news: asyncio.Queue[tuple[int, int | None] | None] = asyncio.Queue(1000)

    def put(item: tuple[int, int | None] | None) -> None:
        if item is None or news.qsize() < 10:
            news.put_nowait(item)

    def report(done: int, total: int | None) -> None:
        loop.call_soon_threadsafe(put, (int(done), None if total is None else int(total)))

    asked = asyncio.ensure_future(queries.ask(name, params, make, left, progress=report))
    asked.add_done_callback(lambda _: put(None))
    try:
        while (item := await news.get()) is not None:
            yield json.dumps({"progress": item}).encode() + b"\n"
        try:
            body, kind = asked.result()
        except BaseException as error:
            message, status = _explained(error)
            yield json.dumps({**message, "status": status}).encode() + b"\n"
            return
        if kind == JSON:
            yield b'{"result":' + body + b"}\n"
        else:
            yield json.dumps({"safetensors": len(body)}).encode() + b"\n" + body
    finally:
        left.set()
        asked.cancel()


def _explained(error: BaseException) -> tuple[dict[str, str], int]:
    """Return what a client is told of an error, and the status of HTTP."""
    if isinstance(error, CancelledQueryError | asyncio.CancelledError):
        return {"error": "the query was cancelled"}, 499
    if isinstance(error, EmbstoreError):
        kinds = {NotFoundError: 404, InputError: 400, MissingRowsError: 409}
        return failure(error), next((status for kind, status in kinds.items() if isinstance(error, kind)), 500)
    if os.environ.get("EMBSTORE_DEBUG") == "1":
        traceback.print_exception(error, file=sys.stderr)
    return failure(error), 500


def _error(message: dict[str, str], status: int) -> Response:
    return Response(json.dumps(message), status, media_type=JSON)
