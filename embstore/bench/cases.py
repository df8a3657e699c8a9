"""The cases of the table: the same work by embstore, by what a user can write instead, and by the bare machine."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.bench.measure import Row, Spent, interleaved, row_of, spent
from embstore.bench.page_cache import bring_in, evict, files_of, resident_share
from embstore.bench.rivals import GATHER, SEARCH, ReadData, Rival, SearchData, made
from embstore.store import Store, verify
from embstore.store.store import open as open_store

SIDE = 1024  # of the square matrices whose product is timed
READ_NBYTES = 2**22
FEW_QUERIES = 12  # up to this number a search is limited by reading, above it by products
MANY, SOME_SECONDS = 100, 5e-3  # reads of a case that are timed together
BATCH = 256  # rows of a shuffled batch
REST = 0.2  # seconds before a case with several threads: those of the library before it spin on for a while
TAKE = "x.take(rows, out=), in memory"
IN_ORDER = "as many bytes read in order"
GEOMETRY = ("selfsim", "intrasim", "anisotropy")


@dataclass
class Setting:
    """What is measured: a store and one of its layers, a folder for copies, and how often."""

    store: Store
    layer: int
    folder: Path
    threads: int = 1
    repeats: int = 5
    seed: int = 0

    @cached_property
    def vectors(self) -> NDArray[Any]:
        """The layer in memory."""
        return np.array(self.store.gather(np.arange(self.store.n_rows), self.layer))

    @cached_property
    def read(self) -> ReadData:
        return ReadData(self.store, self.layer, self.vectors, self.folder)

    @property
    def rest(self) -> float:
        return REST if self.threads > 1 else 0.0

    @property
    def options(self) -> dict[str, Any]:
        """The threads of a row, and its clock: with one thread, processor time is what others disturb least."""
        return {"threads": self.threads, "clock": "processor" if self.threads == 1 else "wall"}

    def rows(self, count: int, number: int) -> NDArray[np.int64]:
        """Return random rows, different ones in every round."""
        return np.random.default_rng((self.seed, count, number + 1000)).integers(0, self.store.n_rows, count)

    def reading(self, nbytes: int) -> Callable[[int], Spent]:
        """Return the case of reading `nbytes` of memory once, with all threads."""
        held = self.vectors.reshape(-1).view(np.uint8)
        words = held[: len(held) // 8 * 8].view(np.int64)
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


def gather_rows(
    setting: Setting, counts: Sequence[int], rivals: Mapping[str, Rival] = GATHER, budget: float = 20.0
) -> Iterator[Row]:
    """Random rows of one layer in random order, in the page cache; `out=` into an array that is used again."""
    ready, missing = made(rivals, setting.read)
    path, vectors, layer = Path(str(setting.store.path)), setting.vectors, setting.layer
    targets = {50: {"to_limit": 2.0}, 1_000: {"to_rival": 0.5}, 100_000: {"to_rival": 0.8}}
    for count in (count for count in counts if count <= setting.store.n_rows):
        bring_in(path)
        out = np.empty((count, vectors.shape[1]), vectors.dtype)
        sets: dict[Any, int] = {}  # of rows, as many as each tool reads in some milliseconds

        def repeated(
            read: Callable[[NDArray[np.int64]], Any], number: int, count: int = count, sets: dict[Any, int] = sets
        ) -> Spent:
            drawn = [setting.rows(count, MANY * number + at) for at in range(sets.get(read, 1))]
            taken = spent(lambda: [read(rows) is None for rows in drawn])  # a result is freed before the next
            if number < 0 and np.asarray(read(drawn[-1])).tobytes() != vectors[drawn[-1]].tobytes():
                raise RuntimeError(f"wrong vectors for {count} rows")
            sets[read] = sets.get(read) or max(1, min(MANY, int(SOME_SECONDS / taken.seconds)))
            return taken.scaled(1 / len(drawn))

        reads: dict[str, Callable[..., Any]] = {
            "ours": lambda rows: setting.store.gather(rows, layer),
            "ours, out=": lambda rows, out=out: setting.store.gather(rows, layer, out=out),
            TAKE: lambda rows, out=out: vectors.take(rows, 0, out, "clip"),
            **ready,
        }
        cases = {name: partial(repeated, read) for name, read in reads.items()}
        times = interleaved(cases, repeats=3 * setting.repeats, budget=budget, warm=2)
        with_out = times.pop("ours, out=")
        what = f"gather {count:,} rows"
        more = {"missing": missing, "limit_name": TAKE, **setting.options}
        yield row_of(what, times, ours="ours", limit=TAKE, targets=targets.get(count, {}), **more)
        yield row_of(f"{what}, out=", {**times, "ours": with_out}, ours="ours", limit=TAKE, **more)


def scan_rows(setting: Setting) -> Iterator[Row]:
    """All rows of one layer in order, in the page cache."""
    path, layer, nbytes = Path(str(setting.store.path)), setting.layer, setting.vectors.nbytes
    made({name: rival for name, rival in GATHER.items() if "mmap" in name}, setting.read)
    npy = setting.folder / "layer.npy"
    buffer = np.empty((4096, setting.vectors.shape[1]), setting.vectors.dtype)

    def scan(number: int) -> None:
        for _ in open_store(path).scan(layer):
            pass

    def mapped(number: int) -> None:
        held = np.load(npy, mmap_mode="r")
        for first in range(0, len(held), len(buffer)):
            part = held[first : first + len(buffer)]
            np.copyto(buffer[: len(part)], part)

    name = "np.load(mmap_mode), block by block"
    bring_in(path)
    times = interleaved(
        {"ours": scan, name: mapped, "read": setting.reading(nbytes)}, repeats=3 * setting.repeats, warm=1
    )
    yield row_of("scan a layer", times, ours="ours", limit="read", limit_name="one read of memory", **setting.options)


@dataclass
class Cold:
    """Times reads whose pages are not in memory; in a process that maps none of these files, or they would stay."""

    stayed: float = 0.0

    def __call__(self, file: Path, read: Callable[[], object], number: int) -> Spent:
        gc.collect()
        evict(file)
        self.stayed = max(self.stayed, resident_share(file))
        return spent(read)

    @property
    def note(self) -> str:
        return f" (NOT cold: {self.stayed:.0%} of the pages stayed)" if self.stayed > 0.01 else ""


def cold_rows(path: Path, layer: int, npy: Path, repeats: int) -> Iterator[Row]:
    """Scan a layer that is not in the page cache; `npy`: its vectors as a file of numpy."""

    def scan() -> None:
        for _ in open_store(path).scan(layer):
            pass

    cold, name = Cold(), "np.load(mmap_mode), copied"
    cases = {"ours": partial(cold, path, scan), name: partial(cold, npy, lambda: np.array(np.load(npy, mmap_mode="r")))}
    cases[IN_ORDER] = partial(cold, npy, lambda: read_in_order(npy))
    times = interleaved(cases, repeats=repeats)
    what = f"scan a layer, cold{cold.note}"
    yield row_of(what, times, ours="ours", limit=IN_ORDER, limit_name=IN_ORDER, targets={"to_limit": 1.3})


def cold_gathers(
    path: Path, layer: int, folder: Path, count: int, rivals: Mapping[str, Rival], repeats: int
) -> Iterator[Row]:
    """Gather rows that are not in the page cache, opening included; `folder`: of the store and its copies."""
    store = open_store(path)
    n_rows = store.n_rows
    data = ReadData(store, layer, np.array(store.gather(np.arange(n_rows), layer)), folder)
    reading = {name: rival for name, rival in rivals.items() if "in memory" not in name}
    ready, missing = made(reading, data)  # writes the copies
    installed = list(ready)
    del store, data, ready
    cold = Cold()

    def case(name: str | None, number: int) -> Spent:
        rows = np.random.default_rng((count, number)).integers(0, n_rows, count)

        def read() -> object:
            held = open_store(path)
            if name is None:
                return held.gather(rows, layer)
            data = ReadData(held, layer, np.empty((0, held.hidden_size)), folder)
            return made({name: reading[name]}, data)[0][name](rows)

        return cold(folder, read, number)

    cases: dict[str, Callable[[int], object]] = {"ours": partial(case, None)}
    cases |= {name: partial(case, name) for name in installed}
    times = interleaved(cases, repeats=repeats, budget=20.0)
    yield row_of(f"gather {count:,} rows, cold{cold.note}", times, ours="ours", missing=missing)


def read_in_order(path: Path, each: Callable[[memoryview], object] | None = None) -> None:
    """Read all files of a path in blocks, and do something with each block."""
    buffer = bytearray(READ_NBYTES)
    view = memoryview(buffer)
    for file in files_of(path):
        with file.open("rb", buffering=0) as opened:
            while got := opened.readinto(buffer):
                if each is not None:
                    each(view[:got])


def store_rows(setting: Setting) -> Iterator[Row]:
    """Opening a store, and verifying it."""
    import google_crc32c

    path = Path(str(setting.store.path))
    npy = setting.folder / "layer.npy"
    cases: dict[str, Callable[[int], object]] = {
        "ours": lambda number: open_store(path),
        "np.load(mmap_mode)": lambda number: np.load(npy, mmap_mode="r"),
    }
    times = interleaved(cases, repeats=5 * setting.repeats, warm=1)
    yield row_of("open a store", times, ours="ours", **setting.options)
    bring_in(path)
    held = setting.vectors.tobytes()
    nbytes = sum(file.stat().st_size for file in files_of(path))
    cases = {
        "ours": lambda number: verify(path, progress=False),
        "read and google_crc32c": lambda number: read_in_order(path, lambda block: google_crc32c.value(bytes(block))),
        "crc32c": lambda number: spent(lambda: google_crc32c.value(held)).scaled(nbytes / len(held)),
    }
    times = interleaved(cases, repeats=setting.repeats, warm=1)
    most = {"to_limit": 1 / 0.6}
    name = "crc32c of as many bytes in memory"
    yield row_of("verify", times, ours="ours", limit="crc32c", limit_name=name, targets=most, **setting.options)


def search_rows(
    setting: Setting,
    counts: Sequence[int],
    *,
    k: int = 10,
    metric: str = "ip",
    share: float = 1.0,
    rivals: Mapping[str, Rival] = SEARCH,
    budget: float = 20.0,
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
    for count in counts:
        queries, few = copy[draw.integers(0, len(copy), count)], count <= FEW_QUERIES
        ours = partial(exact_search, vectors, queries, k=k, space=Space(metric), rows=chosen, device="cpu")
        ours(threads=setting.threads)  # compiles what it needs
        size = n_candidates * setting.store.hidden_size
        cases: dict[str, Callable[[int], object]] = {
            "ours": in_each_round(ours, threads=setting.threads),
            "limit": setting.reading(size * setting.vectors.itemsize) if few else products(2.0 * count * size),
            **{name: in_each_round(search, queries) for name, search in ready.items()},
        }
        repeats = setting.repeats if count < 1000 else 3
        times = interleaved(cases, repeats=repeats, warm=1 if few else 0, rest=setting.rest, budget=budget)
        more: dict[str, Any] = {
            "missing": missing,
            "limit_name": "one read of the layer" if few else "sgemm",
            "targets": {"to_rival": 1.0},
        }
        filtered = "" if chosen is None else f", filter of {share:.0%}"
        what = f"exact search, {metric}, k {k:,}{filtered}, {count:,} {'query' if count == 1 else 'queries'}"
        yield row_of(what, times, ours="ours", limit="limit", **more, **setting.options)


def cosines_in_torch(vectors: NDArray[Any], types: NDArray[Any], sentences: NDArray[Any], at_least: int = 5) -> Any:
    """Self-similarity of words, intra-sentence similarity of sentences, and anisotropy, as a user can write them.

    The closed forms over sums of unit vectors: no pairs. Words with fewer occurrences are NaN.
    """
    import torch

    x = torch.from_numpy(vectors).float()
    u = torch.nn.functional.normalize(x)
    of_type, of_sentence = torch.from_numpy(np.array(types)).long(), torch.from_numpy(np.array(sentences)).long()

    def sums(groups: Any, values: Any) -> tuple[Any, Any]:
        counts = torch.bincount(groups)
        return torch.zeros(len(counts), values.shape[1]).index_add_(0, groups, values), counts

    summed, n = sums(of_type, u)
    selfsim = torch.where(n >= at_least, (summed.square().sum(1) - n) / (n * (n - 1)), torch.nan)
    means, _ = sums(of_sentence, x)
    cosines = (u * torch.nn.functional.normalize(means)[of_sentence]).sum(1, keepdim=True)
    total, lengths = sums(of_sentence, cosines)
    mean, count = u.sum(0), len(u)
    return selfsim, total[:, 0] / lengths, (mean @ mean - count) / (count * (count - 1.0))


def geometry_rows(setting: Setting) -> Iterator[Row]:
    """The three cosine measures of one layer."""
    from embstore.analysis.geometry.measure import geometry

    store, index = setting.store, setting.store.index
    cases: dict[str, Callable[[int], object]] = {
        "ours": lambda number: geometry(store, metrics=GEOMETRY, layers=setting.layer, progress=False),
        "scan": lambda number: [None for _ in store.scan(setting.layer)],
        "torch, normalize and index_add": lambda number: cosines_in_torch(setting.vectors, index.type, index.sentence),
    }
    times = interleaved(cases, repeats=setting.repeats, warm=1, rest=setting.rest)
    most = {"to_limit": 3.5 if setting.threads == 1 else 2.5}
    what = "geometry: selfsim, intrasim, anisotropy"
    yield row_of(what, times, ours="ours", limit="scan", limit_name="our scan", targets=most, **setting.options)


def batch_rows(setting: Setting) -> Iterator[Row]:
    """All vectors of a layer as shuffled batches of torch, of the dtype that is stored."""
    import torch

    from embstore.analysis.torch_dataset import TorchDataset

    selection, n_rows = setting.store.select(layers=setting.layer), setting.store.n_rows
    ready, _ = made({name: rival for name, rival in GATHER.items() if "mmap" in name}, setting.read)
    mapped = next(iter(ready.values()))

    def ours(number: int) -> None:
        dataset = TorchDataset(selection, batch_size=BATCH, shuffle=True)
        dataset.set_epoch(number + 1)
        for _ in dataset:
            pass

    def gathered(read: Callable[[NDArray[np.int64]], Any], number: int) -> None:
        order = np.random.default_rng(number + 1).permutation(n_rows)
        for first in range(0, n_rows, BATCH):
            torch.from_numpy(read(order[first : first + BATCH]))

    cases: dict[str, Callable[[int], object]] = {
        "ours": ours,
        "a DataLoader's loop over np.load(mmap_mode)": partial(gathered, mapped),
        "gather": partial(gathered, lambda rows: setting.store.gather(rows, setting.layer)),
    }
    times = interleaved(cases, repeats=setting.repeats, warm=1)
    name = "store.gather of as many rows"
    most = {"to_limit": 1.25}
    what = f"{n_rows:,} vectors in shuffled batches"
    yield row_of(what, times, ours="ours", limit="gather", limit_name=name, targets=most, **setting.options)
