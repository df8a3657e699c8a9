"""The cases of the table: the same work by embstore, by what a user can write instead, and by the bare machine.

A case is a function of the number of its round. "ours" and "limit" are what they say, all others are rivals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.bench.measure import Row, Spent, Times, interleaved, row_of, spent
from embstore.bench.page_cache import Cold, bring_in, files_of, read_in_order
from embstore.bench.rivals import GATHER, MAPPED, SEARCH, ReadData, Rival, SearchData, cosines_in_torch, made
from embstore.store import Store, verify
from embstore.store.layout import ITEM_NBYTES
from embstore.store.opening import open_store

SIDE = 1024  # of the square matrices whose product is timed
FEW_QUERIES = 12  # up to this number a search is limited by reading, above it by products
MANY, SOME_SECONDS = 100, 5e-3  # reads of a case that are timed together
BATCH = 256  # rows of a shuffled batch
REST = 0.2  # seconds before a case with several threads: those of the library before it spin on for a while
GATHER_TARGETS = {50: {"seconds": 20e-6}, 1_000: {"to_limit": 1.0}, 100_000: {"to_limit": 1.7}}
GEOMETRY = ("selfsim", "intrasim", "anisotropy")

Cases = Mapping[str, Callable[[int], object]]


@dataclass
class Setting:
    """What is measured: a store and one of its layers, a folder for copies, and how often.

    `budget`: seconds of one case, after which it sits out the later rounds.
    """

    store: Store
    layer: int
    folder: Path
    threads: int = 1
    repeats: int = 5
    seed: int = 0
    budget: float = inf

    @property
    def path(self) -> Path:
        return Path(str(self.store.path))

    @cached_property
    def vectors(self) -> NDArray[Any]:
        """The layer in memory."""
        return np.array(self.store.gather(np.arange(self.store.n_rows), self.layer))

    @cached_property
    def read(self) -> ReadData:
        return ReadData(self.store, self.layer, self.vectors, self.folder)

    def times(self, cases: Cases, *, repeats: int | None = None, warm: int = 1) -> dict[str, Times]:
        rest = REST if self.threads > 1 else 0.0
        return interleaved(cases, repeats=repeats or self.repeats, budget=self.budget, warm=warm, rest=rest)

    def row(self, what: str, times: Mapping[str, Times], limit_name: str = "", **more: Any) -> Row:
        """Return a row; with one thread of processor time, which others disturb least."""
        clock = "processor" if self.threads == 1 else "wall"
        return row_of(what, times, limit_name=limit_name, threads=self.threads, clock=clock, **more)

    def rows(self, count: int, number: int, case: int) -> NDArray[np.int64]:
        """Return random rows, different ones in every round and case: none finds those of another in the cache."""
        return np.random.default_rng((self.seed, count, number + 1000, case)).integers(0, self.store.n_rows, count)

    def reading(self, nbytes: int) -> Callable[[int], Spent]:
        """Return the case of reading `nbytes` of memory once, with all threads."""
        data = self.vectors.reshape(-1).view(np.uint8)
        words = data[: len(data) // 8 * 8].view(np.int64)
        parts = np.array_split(words, self.threads)

        def read(number: int) -> Spent:
            with ThreadPoolExecutor(self.threads) as pool:
                return spent(lambda: list(pool.map(np.sum, parts))).scaled(nbytes / words.nbytes)

        return read


def in_each_round(call: Callable[..., object], *arguments: Any, **options: Any) -> Callable[[int], object]:
    """Return the case of the same call in each round."""
    return lambda number: call(*arguments, **options)


def products(flops: float) -> Callable[[int], Spent]:
    """Return the case of float32 matrix products with as many operations."""
    import torch

    one = torch.randn(SIDE, SIDE)
    out = torch.empty_like(one)
    return lambda number: spent(partial(torch.mm, one, one, out=out)).scaled(flops / (2.0 * SIDE**3))


def scanned(store: Store | Path, layer: int) -> None:
    for _ in (open_store(store) if isinstance(store, Path) else store).scan(layer):
        pass


def gather_rows(setting: Setting, counts: Sequence[int], rivals: Mapping[str, Rival] = GATHER) -> Iterator[Row]:
    """Random rows of one layer in random order, in the page cache; `out=` into an array that is used again."""
    ready, missing = made(rivals, setting.read)
    for count in counts:
        if count <= setting.store.n_rows:
            yield from _gather_some(setting, count, ready, missing)


def _gather_some(setting: Setting, count: int, ready: dict[str, Any], missing: dict[str, None]) -> Iterator[Row]:
    vectors, layer = setting.vectors, setting.layer
    out = np.empty((count, vectors.shape[1]), vectors.dtype)
    n_sets: dict[Any, int] = {}  # by tool: sets of rows, as many as it reads in some milliseconds

    def repeated(case: int, read: Callable[[NDArray[np.int64]], Any], number: int) -> Spent:
        sets = [setting.rows(count, MANY * number + at, case) for at in range(n_sets.get(read, 1))]
        read(setting.rows(count, MANY * (number + 1) - 1, case))  # not timed: it follows another tool's reads
        time = spent(lambda: [read(rows) is None for rows in sets])  # a result is freed before the next
        if number < 0 and np.asarray(read(sets[-1])).tobytes() != vectors[sets[-1]].tobytes():
            raise RuntimeError(f"wrong vectors for {count} rows")
        n_sets[read] = n_sets.get(read) or max(1, min(MANY, int(SOME_SECONDS / time.seconds)))
        return time.scaled(1 / len(sets))

    bring_in(setting.path)
    reads: dict[str, Callable[..., Any]] = {
        "ours": lambda rows: setting.store.gather(rows, layer),
        "ours, out=": lambda rows: setting.store.gather(rows, layer, out=out),
        "limit": lambda rows: vectors.take(rows, 0, out, "clip"),
        **ready,
    }
    cases = {name: partial(repeated, case, read) for case, (name, read) in enumerate(reads.items())}
    times = setting.times(cases, repeats=3 * setting.repeats, warm=2)
    with_out = times.pop("ours, out=")
    what, limit = f"gather {count:,} rows", "x.take(rows, out=), in memory"
    more: dict[str, Any] = {"missing": missing, "targets": GATHER_TARGETS.get(count, {})}
    yield setting.row(what, times, limit, **more)
    yield setting.row(f"{what}, out=", {**times, "ours": with_out}, limit, **more)


def scan_rows(setting: Setting) -> Iterator[Row]:
    """All rows of one layer in order, in the page cache."""
    made(MAPPED, setting.read)
    npy = setting.folder / "layer.npy"
    buffer = np.empty((4096, setting.vectors.shape[1]), setting.vectors.dtype)

    def mapped(number: int) -> None:
        stored = np.load(npy, mmap_mode="r")
        for first in range(0, len(stored), len(buffer)):
            part = stored[first : first + len(buffer)]
            np.copyto(buffer[: len(part)], part)

    bring_in(setting.path)
    cases: Cases = {
        "ours": in_each_round(scanned, setting.path, setting.layer),
        "np.load(mmap_mode), block by block": mapped,
        "limit": setting.reading(setting.vectors.nbytes),
    }
    yield setting.row("scan a layer", setting.times(cases, repeats=3 * setting.repeats), "one read of memory")


def cold_rows(path: Path, layer: int, npy: Path, repeats: int) -> Iterator[Row]:
    """Scan a layer that is not in the page cache; `npy`: its vectors as a file of numpy."""
    cold = Cold()
    cases = {
        "ours": partial(cold, path, partial(scanned, path, layer)),
        "np.load(mmap_mode), copied": partial(cold, npy, lambda: np.array(np.load(npy, mmap_mode="r"))),
        "limit": partial(cold, npy, partial(read_in_order, npy)),
    }
    times = interleaved(cases, repeats=repeats)
    limit, most = "as many bytes read in order", {"to_limit": 1.3}
    yield row_of(f"scan a layer, cold{cold.note}", times, limit_name=limit, targets=most)


def store_rows(setting: Setting) -> Iterator[Row]:
    """Opening a store, and verifying it."""
    import google_crc32c

    path, npy = setting.path, setting.folder / "layer.npy"
    cases: Cases = {
        "ours": in_each_round(open_store, path),
        "np.load(mmap_mode)": in_each_round(np.load, npy, mmap_mode="r"),
    }
    yield setting.row("open a store", setting.times(cases, repeats=5 * setting.repeats))
    bring_in(path)
    data = setting.vectors.tobytes()
    nbytes = sum(file.stat().st_size for file in files_of(path))
    cases = {
        "ours": in_each_round(verify, path, progress=False),
        "read and google_crc32c": in_each_round(read_in_order, path, lambda block: google_crc32c.value(bytes(block))),
        "limit": lambda number: spent(lambda: google_crc32c.value(data)).scaled(nbytes / len(data)),
    }
    limit = "crc32c of as many bytes in memory"
    yield setting.row("verify", setting.times(cases), limit, targets={"to_limit": 1 / 0.6})


def search_rows(
    setting: Setting,
    counts: Sequence[int],
    *,
    k: int = 10,
    metric: str = "ip",
    share: float = 1.0,
    rivals: Mapping[str, Rival] = SEARCH,
) -> Iterator[Row]:
    """Exact search of some queries; `share`: of the rows, the candidates of a filter."""
    from embstore.analysis.neighbors.exact import exact_search
    from embstore.analysis.neighbors.space import Space, StoreVectors

    copy = setting.vectors.astype(np.float32)
    if metric == "cosine":
        copy /= np.linalg.norm(copy, axis=1, keepdims=True)
    draw = np.random.default_rng(setting.seed)
    chosen = None if share == 1 else np.flatnonzero(draw.random(len(copy)) < share)
    ready, missing = made(rivals, SearchData(copy, k, metric, chosen, setting.threads))
    vectors, n_candidates = StoreVectors(setting.store, setting.layer), len(copy) if chosen is None else len(chosen)
    size = n_candidates * setting.store.hidden_size
    for count in counts:
        queries, few = copy[draw.integers(0, len(copy), count)], count <= FEW_QUERIES
        ours = partial(exact_search, vectors, queries, k=k, space=Space(metric), rows=chosen, device="cpu")
        ours(threads=setting.threads)  # brings in what it needs
        cases: Cases = {
            "ours": in_each_round(ours, threads=setting.threads),
            "limit": setting.reading(size * ITEM_NBYTES[setting.store.dtype]) if few else products(2.0 * count * size),
            **{name: in_each_round(search, queries) for name, search in ready.items()},
        }
        times = setting.times(cases, repeats=setting.repeats if count < 1000 else 3, warm=1 if few else 0)
        dtype = setting.store.dtype
        special = f", {dtype}" if dtype != "float16" else ""
        special += "" if chosen is None else f", filter of {share:.0%}"
        what = f"exact search, {metric}, k {k:,}{special}, {count:,} {'query' if count == 1 else 'queries'}"
        limit = "one read of the layer" if few else "sgemm"
        yield setting.row(what, times, limit, missing=missing, targets={"to_rival": 1.0})


def geometry_rows(setting: Setting) -> Iterator[Row]:
    """The three cosine measures of one layer."""
    from embstore.analysis.geometry.measure import geometry

    store, index, layer = setting.store, setting.store.index, setting.layer
    cases: Cases = {
        "ours": in_each_round(geometry, store, metrics=GEOMETRY, layers=layer, progress=False),
        "limit": in_each_round(scanned, store, layer),
        "torch, normalize and index_add": in_each_round(cosines_in_torch, setting.vectors, index.type, index.sentence),
    }
    most = {"to_limit": 3.5 if setting.threads == 1 else 2.5}
    yield setting.row("geometry: " + ", ".join(GEOMETRY), setting.times(cases), "our scan", targets=most)


def batch_rows(setting: Setting) -> Iterator[Row]:
    """All vectors of a layer as shuffled batches of torch, of the dtype that is stored."""
    import torch

    from embstore.store.convert.torch_dataset import TorchDataset

    selection, n_rows = setting.store.select(layers=setting.layer), setting.store.n_rows
    ready, _ = made(MAPPED, setting.read)

    def ours(number: int) -> None:
        dataset = TorchDataset(selection, batch_size=BATCH, shuffle=True)
        dataset.set_epoch(number + 1)
        for _ in dataset:
            pass

    def gathered(read: Callable[[NDArray[np.int64]], Any], number: int) -> None:
        order = np.random.default_rng(number + 1).permutation(n_rows)
        for first in range(0, n_rows, BATCH):
            torch.from_numpy(read(order[first : first + BATCH]))

    cases: Cases = {
        "ours": ours,
        "a DataLoader's loop over np.load(mmap_mode)": partial(gathered, next(iter(ready.values()))),
        "limit": partial(gathered, lambda rows: setting.store.gather(rows, setting.layer)),
    }
    what, limit = f"{n_rows:,} vectors in shuffled batches", "store.gather of as many rows"
    yield setting.row(what, setting.times(cases), limit, targets={"to_limit": 1.25})
