"""What kinds of index there are, their parameters, and all that is said to faiss."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, MissingPackageError, StorageError, StoreDamagedError
from embstore.store import Store

KINDS = ("flat", "ivf", "ivfpq", "hnsw")
FLAT_ROWS = 50_000  # up to so many a flat index answers in a few milliseconds
HALF_LIMIT = 65504.0
LINKS = 32  # of an HNSW node to others in each layer above the lowest, which has twice as many
POINTS_A_LIST = 50  # that the lists of an IVF index are learnt from; faiss asks for 39 at least
POINTS_A_CODE = 64  # of the training sample for a code of ivfpq; 256 take most of the time of building it
LEAST_POINTS = 39
LEAST_LISTS_PROBED = 8
EF = 64
EF_CONSTRUCTION = 128  # faiss takes 40, which is built in a third of the time and finds less


@dataclass(frozen=True)
class Plan:
    """A kind with all its parameters: the string that faiss makes it from, and how many rows it is trained on."""

    kind: str
    factory: str
    train_rows: int


@dataclass(frozen=True)
class Effort:
    """How hard an approximate index searches: lists of an IVF index, candidates of an HNSW one, None for its own."""

    nprobe: int | None = None
    ef: int | None = None

    def doubled(self) -> Effort:
        return replace(self, nprobe=self.nprobe and 2 * self.nprobe, ef=self.ef and 2 * self.ef)


def faiss_package() -> Any:
    """The package faiss. Raises MissingPackageError where it is not installed."""
    try:
        import faiss
    except ImportError:
        raise MissingPackageError(
            "indexes need faiss, which is not installed: pip install 'embstore[faiss-cpu]' "
            "(or 'embstore[faiss-gpu]'), or search without an index"
        ) from None
    return faiss


def plan_index(
    store: Store, *, kind: str, metric: str, center: bool, train_sample: int | None, memory: int | None
) -> Plan:
    """Choose the parameters of a kind, or take any other `kind` for a string that faiss understands.

    "auto" is flat for up to 50,000 rows, ivf while such an index takes no more than `memory` (half the machine's
    by default), ivfpq beyond. Raises InvalidValueError for too few rows to train on.
    """
    if train_sample is not None and train_sample < 1:
        raise InvalidValueError(f"train_sample {train_sample} is not allowed: give 1 or more")
    if memory is not None and memory < 1:
        raise InvalidValueError(f"memory {memory} is not allowed: give the bytes that an index may take")
    rows, size = store.n_rows, store.hidden_size
    allowed = memory or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    half = metric == "cosine" or (store.dtype == "float16" and not center)
    if kind == "auto":
        fits = rows * (size * (2 if half else 4) + 8) <= allowed
        kind = "flat" if rows <= FLAT_ROWS and fits else "ivf" if fits else "ivfpq"
    codes = "SQfp16" if half else "Flat"
    nlist = max(1, min(round(4 * rows**0.5), rows // LEAST_POINTS))
    learn = POINTS_A_LIST * nlist
    if kind == "flat":
        factory, learn = codes, 0
    elif kind == "ivf":
        factory = f"IVF{nlist},{codes}"
    elif kind == "ivfpq":
        bits = 8 if rows >= LEAST_POINTS * 2**8 else 4
        if rows < LEAST_POINTS * 2**bits:
            raise InvalidValueError(
                f"{store.path} has too few rows to train ivfpq: {rows:,} of {LEAST_POINTS * 2**bits} or more; "
                "choose flat or ivf"
            )
        factory = f"IVF{nlist},PQ{_parts(size)}x{bits}"
        learn = max(learn, 2 * LEAST_POINTS * 2**bits)
    elif kind == "hnsw":
        factory, learn = (f"HNSW{LINKS},SQfp16" if half else f"HNSW{LINKS}"), 0
    else:
        factory = kind
    most = max(LEAST_POINTS, allowed // (4 * 4 * size))
    train_rows = min(rows, train_sample or min(learn, most))
    index = new_index(factory, size, metric)
    if kind == factory and not index.is_trained and train_sample is None:
        lists = parameters_of(index).get("nlist", 0)
        train_rows = min(rows, most, max(POINTS_A_LIST * lists, 2 * LEAST_POINTS * 2**8))
    return Plan(kind, factory, 0 if index.is_trained else train_rows)


def _parts(size: int) -> int:
    """Bytes of a vector in a product quantizer: the largest divisor of `size` that is a quarter of it or less."""
    return next((parts for parts in range(max(1, size // 4), 0, -1) if size % parts == 0), 1)


def new_index(factory: str, size: int, metric: str) -> Any:
    """An empty index. Raises InvalidValueError where faiss cannot make one of that name and metric."""
    faiss = faiss_package()
    try:
        return faiss.index_factory(size, factory, faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise InvalidValueError(
            f"unknown kind {factory!r}: allowed are auto, {', '.join(KINDS)} and what faiss's index_factory makes for "
            f"{size} features and {metric} ({_cause(error)})"
        ) from None


def _cause(error: Exception) -> str:
    return " ".join(str(error).rpartition("Error: ")[2].split())[:120] or "no cause given"


def prepare(index: Any, kind: str) -> None:
    """Set what a kind of ours has other than faiss's own."""
    if kind == "hnsw":
        _graph(index).hnsw.efConstruction = EF_CONSTRUCTION


def train(index: Any, sample: NDArray[np.float32], *, metric: str, seed: int) -> None:
    """Train an index on a sample [n, feature]. Raises InvalidValueError where that is too small."""
    faiss = faiss_package()
    lists = faiss.try_extract_index_ivf(index)
    if lists is not None:
        # faiss would also do so for ip, but there it puts most of a layer that has a mean in a few lists
        lists.cp.spherical = metric == "cosine"
    codes = None if lists is None else getattr(faiss.downcast_index(lists), "pq", None)
    for part in (lists, codes):
        if part is not None:
            part.cp.seed = seed % 2**31
            part.cp.min_points_per_centroid = 1  # faiss would only warn of fewer than 39
    if codes is not None:
        codes.cp.max_points_per_centroid = POINTS_A_CODE
    try:
        index.train(sample)
    except RuntimeError as error:
        raise InvalidValueError(
            f"{len(sample):,} rows are too few to train this index ({_cause(error)}): choose flat, fewer lists or a "
            "larger train_sample"
        ) from None


def add(index: Any, vectors: NDArray[np.float32], seed: int) -> None:
    """Add a block. What is drawn at random depends on the block's place alone, so that a build can go on anywhere."""
    faiss = faiss_package()
    graph = _graph(index)
    if graph is not None:
        graph.hnsw.rng = faiss.RandomGenerator((seed * 1_000_003 + index.ntotal) % 2**31)
    index.add(vectors)


def halves(index: Any) -> bool:
    """Whether vectors are kept as float16."""
    faiss = faiss_package()
    inner = _inner(index)
    inner = faiss.downcast_index(inner.storage) if hasattr(inner, "storage") else inner
    quantizer = getattr(inner, "sq", None)
    return quantizer is not None and quantizer.qtype == faiss.ScalarQuantizer.QT_fp16


def parameters_of(index: Any) -> dict[str, int]:
    """What an index was made with, and how hard it searches if nothing else is said."""
    found: dict[str, int] = {}
    lists = faiss_package().try_extract_index_ivf(index)
    if lists is not None:
        found |= {"nlist": lists.nlist, "nprobe": min(lists.nlist, max(LEAST_LISTS_PROBED, lists.nlist // 32))}
    graph = _graph(index)
    if graph is not None:
        found |= {"links": graph.hnsw.nb_neighbors(1), "ef_construction": graph.hnsw.efConstruction, "ef": EF}
    return found


def keeps_vectors(index: Any) -> bool:
    """Whether vectors are kept as they are put in, up to float16's or float32's rounding, and not as shorter codes."""
    faiss = faiss_package()
    inner = _inner(index)
    if type(faiss.downcast_index(index)) is not type(inner):
        return False
    inner = faiss.downcast_index(inner.storage) if hasattr(inner, "storage") else inner
    half = isinstance(inner, faiss.IndexScalarQuantizer | faiss.IndexIVFScalarQuantizer) and halves(index)
    return half or isinstance(inner, faiss.IndexFlat | faiss.IndexIVFFlat)


def _inner(index: Any) -> Any:
    faiss = faiss_package()
    index = faiss.downcast_index(index)
    while hasattr(index, "base_index") or isinstance(index, faiss.IndexPreTransform):
        index = faiss.downcast_index(index.base_index if hasattr(index, "base_index") else index.index)
    return index


def _graph(index: Any) -> Any:
    inner = _inner(index)
    return inner if hasattr(inner, "hnsw") else None


def search_parameters(index: Any, effort: Effort, selected: NDArray[np.bool_] | None) -> Any:
    """What faiss calls search parameters: effort, and the rows that may be found (bool [n])."""
    faiss = faiss_package()
    given: dict[str, Any] = {}
    if selected is not None:
        given["sel"] = faiss.IDSelectorBitmap(np.packbits(selected, bitorder="little"))
    if effort.nprobe is not None:
        made = faiss.SearchParametersIVF(nprobe=effort.nprobe, **given)
    elif effort.ef is not None:
        made = faiss.SearchParametersHNSW(efSearch=effort.ef, **given)
    else:
        made = faiss.SearchParameters(**given) if given else None
    outer = faiss.downcast_index(index)
    if made is not None and hasattr(outer, "base_index"):
        made = faiss.IndexRefineSearchParameters(k_factor=outer.k_factor, base_index_params=made)
    return made


def read_index(path: str, *, mapped: bool) -> Any:
    """Read an index, mapped into memory where faiss can."""
    faiss = faiss_package()
    flag = getattr(faiss, "IO_FLAG_MMAP_IFC", faiss.IO_FLAG_MMAP) if mapped else 0
    try:
        return faiss.read_index(path, flag)
    except RuntimeError as error:
        raise StoreDamagedError(f"{path} cannot be read by faiss ({_cause(error)}): build the index again") from None


def write_index(index: Any, path: str) -> None:
    try:
        faiss_package().write_index(index, path)
    except RuntimeError as error:
        raise StorageError(f"cannot write {path} ({_cause(error)}): is the disk full?") from None


@contextmanager
def faiss_threads(threads: int | None) -> Iterator[None]:
    """Let faiss compute in so many threads, all that it would use if None."""
    if threads is None:
        yield
        return
    if threads < 1:
        raise InvalidValueError(f"threads is {threads}; it must be 1 or more")
    faiss = faiss_package()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(threads)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def on_device(index: Any, device: str) -> Any:
    """The index where it is to be searched: itself for cpu, a copy on a GPU for cuda or cuda:N."""
    if device == "cpu":
        return index
    faiss = faiss_package()
    count = faiss.get_num_gpus() if hasattr(faiss, "get_num_gpus") else 0
    if device == "auto" and not count:
        return index
    name, _, number = device.partition(":")
    if name not in ("auto", "cuda") or (number and not number.isdigit()):
        raise InvalidValueError(f"unknown device {device!r}; allowed are auto, cpu, cuda, cuda:0 ...")
    if int(number or 0) >= count:
        raise InvalidValueError(f"device {device!r} is asked for, but faiss sees {count} GPUs here: choose cpu or auto")
    try:
        return faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), int(number or 0), index)
    except RuntimeError as error:
        raise InvalidValueError(f"faiss cannot search this index on a GPU ({_cause(error)}): choose cpu") from None
