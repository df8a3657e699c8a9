"""What a user can write instead: rivals in reading rows, in exact search and in geometry, each a few lines.

A rival whose package is not installed is reported as missing, never left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.store import Store

Gather = Callable[[NDArray[np.int64]], NDArray[Any]]
Search = Callable[[NDArray[np.float32]], NDArray[np.int64]]  # the rows found, [query, k]
BLOCK_SCORES = 2**25  # scores of queries and rows that numpy and torch hold at a time


class Rival(NamedTuple):
    """The package that a rival needs, and what is called with the imported module and the data."""

    package: str
    make: Callable[..., Any]


@dataclass(frozen=True)
class ReadData:
    """The store, the layer read (its number and its position), its vectors in memory, and a folder for copies."""

    store: Store
    layer: int
    vectors: NDArray[Any]
    folder: Path

    @property
    def position(self) -> int:
        return self.store.layers.index(self.layer)


@dataclass(frozen=True)
class SearchData:
    """Float32 `vectors` [n, feature] (unit length for cosine), k, the metric, and the candidate `rows` (None: all)."""

    vectors: NDArray[np.float32]
    k: int
    metric: str
    rows: NDArray[np.int64] | None
    threads: int

    @property
    def product(self) -> bool:
        return self.metric != "l2"


def made(rivals: Mapping[str, Rival], data: Any) -> tuple[dict[str, Any], dict[str, None]]:
    """Return the rivals that are installed, ready to be called, and those that are not."""
    ready: dict[str, Any] = {}
    missing: dict[str, None] = {}
    for name, rival in rivals.items():
        try:
            module = import_module(rival.package)
        except ImportError:
            missing[f"{name} ({rival.package})"] = None
            continue
        ready[name] = rival.make(module, data)
    return ready, missing


def _in_memory(module: Any, data: ReadData) -> Gather:
    return data.vectors.__getitem__


def _memory_map(module: Any, data: ReadData) -> Gather:
    file = data.folder / "layer.npy"
    if not file.exists():
        np.save(file, data.vectors)
    mapped = np.load(file, mmap_mode="r")
    return lambda rows: np.asarray(mapped[rows])


def _tensordict(module: Any, data: ReadData) -> Gather:
    torch = import_module("torch")
    folder = data.folder / "tensordict"
    if not folder.exists():
        module.TensorDict({"x": torch.from_numpy(data.vectors)}, [len(data.vectors)]).memmap(folder)
    stored = module.TensorDict.load_memmap(folder)["x"]
    return lambda rows: np.asarray(stored[torch.from_numpy(rows)])


def _lance(module: Any, data: ReadData) -> Gather:
    arrow = import_module("pyarrow")
    folder, size = data.folder / "lance", data.vectors.shape[1]
    if not folder.exists():
        column = arrow.FixedSizeListArray.from_arrays(arrow.array(data.vectors.ravel()), size)
        module.write_dataset(arrow.table({"x": column}), folder)
    dataset = module.dataset(folder)

    def gather(rows: NDArray[np.int64]) -> NDArray[Any]:
        chunks = dataset.take(rows, columns=["x"])["x"].chunks
        found = [chunk.flatten().to_numpy().reshape(-1, size) for chunk in chunks]
        return found[0] if len(found) == 1 else np.concatenate(found)

    return gather


GATHER: dict[str, Rival] = {
    'np.load(mmap_mode="r")[rows]': Rival("numpy", _memory_map),
    "numpy x[rows], in memory": Rival("numpy", _in_memory),
    "tensordict, memory map": Rival("tensordict", _tensordict),
    "Lance": Rival("lance", _lance),
}
MAPPED = {name: rival for name, rival in GATHER.items() if rival.make is _memory_map}


def _numpy_search(module: Any, data: SearchData) -> Search:
    lengths = None if data.product else np.square(data.vectors).sum(1)

    def best(queries: NDArray[np.float32], vectors: NDArray[np.float32], squares: Any) -> NDArray[np.int64]:
        scores = queries @ vectors.T
        if squares is not None:
            scores *= 2
            scores -= squares
        found = np.argpartition(scores, -data.k, axis=1)[:, -data.k :]
        order = np.argsort(-np.take_along_axis(scores, found, 1), axis=1)
        return np.take_along_axis(found, order, 1)

    def search(queries: NDArray[np.float32]) -> NDArray[np.int64]:
        vectors, squares = data.vectors, lengths
        if data.rows is not None:
            vectors, squares = vectors[data.rows], None if lengths is None else lengths[data.rows]
        step = max(1, BLOCK_SCORES // len(vectors))
        parts = (queries[at : at + step] for at in range(0, len(queries), step))
        found = np.concatenate([best(part, vectors, squares) for part in parts])
        return found if data.rows is None else data.rows[found]

    return search


def _torch_search(module: Any, data: SearchData) -> Search:
    every = module.from_numpy(data.vectors)
    lengths = None if data.product else every.square().sum(1)
    rows = None if data.rows is None else module.from_numpy(data.rows)

    def search(queries: NDArray[np.float32]) -> NDArray[np.int64]:
        vectors, squares = every, lengths
        if rows is not None:
            vectors, squares = every[rows], None if lengths is None else lengths[rows]
        found = []
        for part in module.from_numpy(queries).split(max(1, BLOCK_SCORES // len(vectors))):
            scores = part @ vectors.T
            scores = scores if squares is None else scores.mul_(2).sub_(squares)
            found.append(scores.topk(data.k).indices)
        best = module.cat(found)
        return np.asarray(best if rows is None else rows[best])

    return search


def _faiss(half: bool) -> Callable[[Any, SearchData], Search]:
    """Return the maker of a flat index of float32, or of float16 with faiss's scalar quantizer."""

    def make(module: Any, data: SearchData) -> Search:
        size = data.vectors.shape[1]
        metric = module.METRIC_INNER_PRODUCT if data.product else module.METRIC_L2
        kind = module.ScalarQuantizer.QT_fp16
        index = module.IndexScalarQuantizer(size, kind, metric) if half else module.IndexFlat(size, metric)
        index.train(data.vectors[:1])
        index.add(data.vectors)
        if data.rows is None:
            return lambda queries: index.search(queries, data.k)[1]
        chosen = module.SearchParameters(sel=module.IDSelectorBatch(data.rows))
        return lambda queries: index.search(queries, data.k, params=chosen)[1]

    return make


def _usearch(module: Any, data: SearchData) -> Search:
    halves = data.vectors.astype(np.float16)
    metric = module.MetricKind.IP if data.product else module.MetricKind.L2sq

    def search(queries: NDArray[np.float32]) -> NDArray[np.int64]:
        searched = halves if data.rows is None else halves[data.rows]
        found = module.search(searched, queries.astype(np.float16), data.k, metric, exact=True, threads=data.threads)
        keys = np.asarray(found.keys, np.int64).reshape(len(queries), -1)
        return keys if data.rows is None else data.rows[keys]

    return search


SEARCH: dict[str, Rival] = {
    "faiss, float16 (SQfp16)": Rival("faiss", _faiss(True)),
    "faiss, float32 (Flat)": Rival("faiss", _faiss(False)),
    "numpy matmul, argpartition": Rival("numpy", _numpy_search),
    "torch matmul, topk": Rival("torch", _torch_search),
    "usearch, float16, exact": Rival("usearch.index", _usearch),
}


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
    means, lengths = sums(of_sentence, x)
    units, _ = sums(of_sentence, u)
    intrasim = (units * torch.nn.functional.normalize(means)).sum(1) / lengths
    mean, count = units.sum(0), len(u)
    return selfsim, intrasim, (mean @ mean - count) / (count * (count - 1.0))
