"""The explorer under load: many clients on loopback who read concordance pages and ask for neighbours.

python benchmarks/explore.py ewt.zarr --out benchmarks/results/explore.json

A client asks, reads for about a second (exponentially distributed), and asks again, as a person who pages quickly; half
of the questions are pages of a concordance (of the word of a random occurrence, by chance with a condition, sorted, or
a later page) and half the 10 neighbours of a random occurrence at three layers. Nobody asks the same twice on purpose,
so that no cache of answers helps. Clients are coroutines with one connection each in this process, so that they take
part of the processor that the server would have. The first ten seconds are not counted: the store is mapped then.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import numpy as np
from measure import Row, Target, parser_of, show_rows, targets_table, write_json

import embstore as es

P95_SECONDS = 0.3
WARM_SECONDS = 10.0
SORTS = ("row", "row", "row", "left", "right", "upos")


class Client:
    """A person with one connection, who asks and reads until the end."""

    def __init__(self, url: str, seed: int) -> None:
        parts = urlsplit(url)
        self._host, self._port, self._token = str(parts.hostname), parts.port, parts.query.removeprefix("token=")
        self._choices = random.Random(seed)
        self.taken: dict[str, list[tuple[float, float]]] = {"concordance": [], "neighbours": []}  # (when, seconds)
        self.errors: list[str] = []

    async def run(self, ends: float, reading: float, path_of: Callable[[random.Random, str], str]) -> None:
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=2**22)
        while time.time() < ends:
            await asyncio.sleep(self._choices.expovariate(1 / reading) if reading else 0)
            kind = self._choices.choice(list(self.taken))
            request = f"GET {path_of(self._choices, kind)} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
            began = time.time()
            writer.write(f"{request}Authorization: Bearer {self._token}\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            nbytes = int(head.split("content-length:")[1].split("\r\n")[0])
            body = await reader.readexactly(nbytes)
            self.taken[kind].append((began, time.time() - began))
            if " 200 " not in head.splitlines()[0]:
                self.errors.append(f"{request.splitlines()[0]}: {body[:200]!r}")
        writer.close()


def questions(store: es.Store) -> Callable[[random.Random, str], str]:
    """Return what makes the path of a random question."""
    layers = ",".join(map(str, (store.layers[0], store.layers[len(store.layers) // 2], store.layers[-1])))
    tags = list(store.index.labels["upos"].names) if "upos" in store.index.labels else []

    def path(choices: random.Random, kind: str) -> str:
        row = choices.randrange(store.n_rows)
        if kind == "neighbours":
            return f"/api/neighbors?row={row}&layers={layers}&k=10"
        word = store.index.words[int(store.index.type[row])]
        params: dict[str, object] = {"word": word, "limit": 50, "sort": choices.choice(SORTS if tags else SORTS[:5])}
        if tags and choices.random() < 0.3:
            params["where"] = f"upos = '{choices.choice(tags)}'"
        params["offset"] = choices.choice((0, 0, 0, 50, 500))
        return f"/api/occurrences?{urlencode(params)}"

    return path


def resident_nbytes(process: int) -> dict[str, int]:
    """Return the memory of a process without mapped files, and with them."""
    status = Path(f"/proc/{process}/status").read_text()
    return {name: int(status.split(f"{name}:")[1].split()[0]) * 1024 for name in ("RssAnon", "VmRSS")}


async def load(url: str, server: int, arguments: argparse.Namespace, store: es.Store) -> dict[str, object]:
    """Let all clients ask for some time, and return what they saw."""
    clients = [Client(url, seed) for seed in range(arguments.clients)]
    began, path = time.time(), questions(store)
    ends = began + WARM_SECONDS + arguments.seconds
    asking = [asyncio.create_task(each.run(ends, arguments.reading, path)) for each in clients]
    await asyncio.sleep(WARM_SECONDS)
    start = resident_nbytes(server)
    await asyncio.gather(*asking)
    end = resident_nbytes(server)
    counted = {
        kind: np.array([s for each in clients for at, s in each.taken[kind] if at >= began + WARM_SECONDS])
        for kind in clients[0].taken
    }
    errors = [error for each in clients for error in each.errors]
    return {"counted": counted, "errors": errors, "start": start, "end": end}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("store")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--reading", type=float, default=1.0, help="seconds between an answer and the next question")
    arguments = parser.parse_args()
    store = es.open(arguments.store)
    command = [sys.executable, "-m", "embstore", "explore", arguments.store, "--no-browser"]
    began = time.time()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            url = server.stdout.readline().split(" at ")[1].split()[0]
            started = time.time() - began
            found = asyncio.run(load(url, server.pid, arguments, store))
        finally:
            server.terminate()
    rows = []
    for kind, seconds in found["counted"].items():
        half, most, slowest = np.quantile(seconds, (0.5, 0.95, 1.0))
        print(f"{kind}: {len(seconds):,} answers, median {half:.3f} s, p95 {most:.3f} s, slowest {slowest:.3f} s")
        for name, value in (("median", half), ("95th percentile", most)):
            targets = {"seconds": P95_SECONDS} if name != "median" else {}
            what = f"{kind}, {arguments.clients} clients, {name} of {len(seconds):,}"
            rows.append(Row(what, float(value), threads=2, targets=targets))
    rows.append(Row("from the command to its URL", started, threads=2, targets={"seconds": 2.0}))
    grown = (found["end"]["RssAnon"] - found["start"]["RssAnon"]) / 2**20
    targets = [
        Target("errors", len(found["errors"]), 0, False),
        Target("memory that the server gained in the measured time, MiB", grown, 64, False),
    ]
    print(targets_table(targets))
    print("\n".join(found["errors"][:5]))
    memory = {"start": found["start"], "end": found["end"]}
    result = {"benchmark": "explore", "rows": show_rows(rows), "memory": memory}
    settings = {"clients": arguments.clients, "seconds": arguments.seconds, "reading": arguments.reading}
    settings |= {"store": {"n_rows": store.n_rows, "layers": len(store.layers), "hidden_size": store.hidden_size}}
    write_json(arguments.out, {**result, "settings": settings, "targets": targets})
    print(json.dumps(memory))


if __name__ == "__main__":
    main()
