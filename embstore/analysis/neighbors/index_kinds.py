"""The kinds of index and their parameters; the only file that calls faiss to build and search."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.devices import thread_count
from embstore.errors import (
    EmbstoreError,
    InvalidValueError,
    MissingPackageError,
    StorageError,
    StoreDamagedError,
    quoted,
)
from embstore.store import Store

SKETCH = "sketch"  # built and searched without faiss
SKETCH_SAMPLE = 20_000  # rows that the principal components of a sketch are learned from, or
SKETCH_POINTS = 16  # for each feature
FLAT_ROWS = 50_000  # up to this number a flat index answers in a few milliseconds
HALF_LIMIT = 65504.0
LINKS = 32  # of an HNSW node in each level; twice as many in the lowest
KINDS = ("flat", "ivf", "ivfpq", "rabitq", "hnsw", SKETCH)
WRITTEN_NBYTES = 2**24  # of an index at a time
RABITQ_BITS = 4  # of a code of each feature
POINTS_PER_LIST = 50  # of the training sample for each list of an IVF index; faiss requires 39
POINTS_PER_CODE = 64  # of the training sample for each code of ivfpq; 256 would dominate the build time
MIN_POINTS = 39
MIN_PROBED = 8
EF = 64
TRIAL_ROWS = 2048
TRIAL_SECONDS = 60
EF_CONSTRUCTION = 128  # the default of faiss, 40, builds in a third of the time and finds less


@dataclass(frozen=True)
class Kind:
    """A kind with all its parameters: the string for faiss's index_factory, and the number of rows to train on."""

    kind: str
    factory: str
    n_train: int


@dataclass(frozen=True)
class Effort:
    """How much of an approximate index is searched: lists of an IVF index, candidates of an HNSW one; None: default."""

    nprobe: int | None = None
    ef: int | None = None

    def doubled(self) -> Effort:
        return replace(self, nprobe=self.nprobe and 2 * self.nprobe, ef=self.ef and 2 * self.ef)


def faiss_package() -> Any:
    """The package faiss; raises MissingPackageError if it is not installed."""
    try:
        import faiss
    except ImportError:
        raise MissingPackageError(
            "indexes need faiss, which is not installed: pip install 'embstore[faiss-cpu]' "
            "(or 'embstore[faiss-gpu]'), or search without an index"
        ) from None
    return faiss


def choose_kind(
    store: Store, *, kind: str, metric: str, centered: bool, train_sample: int | None, memory: int | None
) -> Kind:
    """Choose the parameters of a kind; any other `kind` is a string for faiss's index_factory.

    "auto" is flat for up to 50,000 rows, ivf if such an index fits into `memory` (half of the machine's by default),
    otherwise ivfpq. Raises InvalidValueError if there are too few rows to train on, and for a string of which faiss
    cannot build an index.
    """
    rows, size = store.n_rows, store.hidden_size
    if kind == SKETCH:
        return Kind(SKETCH, SKETCH, min(rows, train_sample or max(SKETCH_SAMPLE, SKETCH_POINTS * size)))
    allowed = memory or _machine_memory() // 2
    half = metric == "cosine" or (store.dtype == "float16" and not centered)
    if kind == "auto":
        fits = rows * (size * (2 if half else 4) + 8) <= allowed
        kind = "flat" if rows <= FLAT_ROWS and fits else "ivf" if fits else "ivfpq"
    codes = "SQfp16" if half else "Flat"
    nlist = max(1, min(round(4 * rows**0.5), rows // MIN_POINTS))
    wanted = POINTS_PER_LIST * nlist
    if kind == "flat":
        factory, wanted = codes, 0
    elif kind == "ivf":
        factory = f"IVF{nlist},{codes}"
    elif kind == "ivfpq":
        bits = 8 if rows >= MIN_POINTS * 2**8 else 4
        if rows < MIN_POINTS * 2**bits:
            raise InvalidValueError(
                f"{store.path} has too few rows to train ivfpq: {rows:,} of {MIN_POINTS * 2**bits} or more; "
                "choose flat or ivf"
            )
        factory = f"IVF{nlist},PQ{_code_nbytes(size)}x{bits}"
        wanted = max(wanted, 2 * MIN_POINTS * 2**bits)
    elif kind == "rabitq":
        factory = f"IVF{nlist},RaBitQ{RABITQ_BITS}"
    elif kind == "hnsw":
        factory, wanted = (f"HNSW{LINKS},SQfp16" if half else f"HNSW{LINKS}"), 0
    else:
        factory = kind
        _try_in_child(factory, size, metric, rows)
    most = max(MIN_POINTS, allowed // (4 * 4 * size))
    n_train = min(rows, train_sample or min(wanted, most))
    index = new_index(factory, size, metric)
    if kind == factory and not index.is_trained and train_sample is None:
        n_lists = parameters_of(index).get("nlist", 0)
        n_train = min(rows, most, max(POINTS_PER_LIST * n_lists, 2 * MIN_POINTS * 2**8))
    return Kind(kind, factory, 0 if index.is_trained else n_train)


@lru_cache
def _try_in_child(factory: str, size: int, metric: str, rows: int) -> None:
    """Raise InvalidValueError if faiss cannot build and search a small index of this string, or does not survive it."""
    code = "import sys; from embstore.analysis.neighbors import index_kinds; index_kinds.try_out(*sys.argv[1:])"
    command = [sys.executable, "-c", code, factory, str(size), metric, str(rows)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    options: dict[str, Any] = {"env": env, "stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    try:
        ended = subprocess.run(command, timeout=TRIAL_SECONDS, **options)
        fault = "" if ended.returncode == 0 else f"ends with status {ended.returncode} in building such an index"
        said = ended.stdout.strip()
    except subprocess.TimeoutExpired:
        fault, said = f"takes over {TRIAL_SECONDS} s to build such an index of a few rows", ""
    except ValueError as error:  # a NUL in the string
        fault, said = str(error), ""
    if fault or said:
        raise InvalidValueError(
            said or f"kind {quoted(factory)} is not allowed: faiss {fault}; choose auto, {', '.join(KINDS)} or another"
        )


def try_out(factory: str, size: str, metric: str, rows: str) -> None:
    """Build, store and search an index of a few random rows, in a process that may end by it; prints what is wrong."""
    vectors = np.random.default_rng(0).normal(size=(min(int(rows), TRIAL_ROWS), int(size))).astype(np.float32)
    with suppress(ImportError, ValueError, OSError):
        import resource  # not on Windows

        resource.setrlimit(resource.RLIMIT_AS, (_machine_memory() // 2 + 2**32,) * 2)
    try:
        index = new_index(factory, vectors.shape[1], metric)
        if not index.is_trained:
            try:
                index.train(vectors)
            except RuntimeError:
                return  # too few rows: training on the rows of the store will tell
        add(index, vectors, 0)
        require_rows(index, len(vectors), factory)
        faiss = faiss_package()
        index = faiss.deserialize_index(faiss.serialize_index(index))
        if (index.search(vectors[:8], 1)[1] < 0).any():
            raise InvalidValueError(f"kind {factory!r} is not allowed: such an index does not find its own vectors")
    except EmbstoreError as error:
        print(error)
    except (RuntimeError, MemoryError) as error:
        print(f"kind {factory!r} is not allowed: faiss cannot build such an index of {rows} rows ({cause_of(error)})")


def require_rows(index: Any, n_rows: int, factory: str) -> None:
    """Raise InvalidValueError unless an index holds this number of rows."""
    if index.ntotal != n_rows:
        raise InvalidValueError(
            f"kind {factory!r} is not allowed: such an index holds {index.ntotal:,} of {n_rows:,} rows"
        )


def _machine_memory() -> int:
    """The memory of this machine in bytes; 8 GiB if the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 8 * 2**30


def _code_nbytes(size: int) -> int:
    """Bytes of a vector in a product quantizer: the largest divisor of `size` that is at most a quarter of it."""
    return next((parts for parts in range(max(1, size // 4), 0, -1) if size % parts == 0), 1)


def new_index(factory: str, size: int, metric: str) -> Any:
    """An empty index; raises InvalidValueError if faiss cannot make one of this factory string and metric."""
    faiss = faiss_package()
    try:
        return faiss.index_factory(size, factory, faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise InvalidValueError(
            f"unknown kind {factory!r}: allowed are auto, {', '.join(KINDS)} and strings of faiss's index_factory for "
            f"{size} features and {metric} ({cause_of(error)})"
        ) from None


def cause_of(error: Exception) -> str:
    return " ".join(str(error).rpartition("Error: ")[2].split())[:120] or "no cause given"


def prepare(index: Any, kind: str) -> None:
    """Set the parameters that a factory string cannot express."""
    if kind == "hnsw":
        _graph(index).hnsw.efConstruction = EF_CONSTRUCTION


def train(index: Any, sample: NDArray[np.float32], *, metric: str, seed: int) -> None:
    """Train an index on a sample [n, feature]; raises InvalidValueError if the sample is too small."""
    faiss = faiss_package()
    lists = faiss.try_extract_index_ivf(index)
    if lists is not None:
        # The default of faiss is spherical for ip too, which puts most vectors of an anisotropic layer in a few lists.
        lists.cp.spherical = metric == "cosine"
    codes = None if lists is None else getattr(faiss.downcast_index(lists), "pq", None)
    for part in (lists, codes):
        if part is not None:
            part.cp.seed = seed % 2**31
            part.cp.min_points_per_centroid = 1  # faiss would only warn of fewer than 39
    if codes is not None:
        codes.cp.max_points_per_centroid = POINTS_PER_CODE
    try:
        index.train(sample)
    except RuntimeError as error:
        raise InvalidValueError(
            f"{len(sample):,} rows are too few to train this index ({cause_of(error)}): choose flat, fewer lists or a "
            "larger train_sample"
        ) from None


def add(index: Any, vectors: NDArray[np.float32], seed: int) -> None:
    """Add a block; its random numbers depend on its position alone, so that a build can resume at any block.

    Raises InvalidValueError for a kind to which rows cannot be added.
    """
    faiss = faiss_package()
    graph = _graph(index)
    if graph is not None:
        graph.hnsw.rng = faiss.RandomGenerator((seed * 1_000_003 + index.ntotal) % 2**31)
    try:
        index.add(vectors)
    except RuntimeError as error:
        raise InvalidValueError(
            f"faiss cannot add rows to an index of this kind ({cause_of(error)}): choose another, such as flat"
        ) from None


def is_float16(index: Any) -> bool:
    """Whether the index holds vectors as float16."""
    faiss = faiss_package()
    inner = _inner(index)
    inner = faiss.downcast_index(inner.storage) if hasattr(inner, "storage") else inner
    quantizer = getattr(inner, "sq", None)
    return quantizer is not None and quantizer.qtype == faiss.ScalarQuantizer.QT_fp16


def parameters_of(index: Any) -> dict[str, int]:
    """The parameters of an index, including the default effort of a search."""
    found: dict[str, int] = {}
    lists = faiss_package().try_extract_index_ivf(index)
    if lists is not None:
        found |= {"nlist": lists.nlist, "nprobe": min(lists.nlist, max(MIN_PROBED, lists.nlist // 32))}
    graph = _graph(index)
    if graph is not None:
        found |= {"links": graph.hnsw.nb_neighbors(1), "ef_construction": graph.hnsw.efConstruction, "ef": EF}
    return found


def keeps_vectors(index: Any) -> bool:
    """Whether the index holds vectors up to the rounding of float16 or float32, and not as shorter codes."""
    faiss = faiss_package()
    inner = _inner(index)
    if type(faiss.downcast_index(index)) is not type(inner):
        return False
    inner = faiss.downcast_index(inner.storage) if hasattr(inner, "storage") else inner
    half = isinstance(inner, faiss.IndexScalarQuantizer | faiss.IndexIVFScalarQuantizer) and is_float16(index)
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


def search_parameters(index: Any, effort: Effort, mask: NDArray[np.bool_] | None) -> Any:
    """The search parameters of faiss: the effort, and the rows that may be found (bool [n])."""
    faiss = faiss_package()
    options: dict[str, Any] = {}
    if mask is not None:
        options["sel"] = faiss.IDSelectorBitmap(np.packbits(mask, bitorder="little"))
    if effort.nprobe is not None:
        made = faiss.SearchParametersIVF(nprobe=effort.nprobe, **options)
    elif effort.ef is not None:
        made = faiss.SearchParametersHNSW(efSearch=effort.ef, **options)
    else:
        made = faiss.SearchParameters(**options) if options else None
    outer = faiss.downcast_index(index)
    if made is not None and hasattr(outer, "base_index"):
        made = faiss.IndexRefineSearchParameters(k_factor=outer.k_factor, base_index_params=made)
    return made


def read_index(path: str, *, mapped: bool) -> Any:
    """Read an index, mapped into memory if faiss can; raises StoreDamagedError."""
    faiss = faiss_package()
    flag = getattr(faiss, "IO_FLAG_MMAP_IFC", faiss.IO_FLAG_MMAP) if mapped else 0
    try:
        return faiss.read_index(path, flag)
    except (RuntimeError, MemoryError) as error:
        raise StoreDamagedError(f"{path} cannot be read by faiss ({cause_of(error)}): build the index again") from None


def write_index(index: Any, path: str) -> None:
    """Write an index by Python's file: of a disk that is full at the last bytes faiss's own would only print a line.

    Raises OSError, StorageError for an index that cannot be written.
    """
    faiss = faiss_package()
    try:
        with open(path, "wb") as file:
            faiss.write_index(index, faiss.PyCallbackIOWriter(file.write, WRITTEN_NBYTES))
    except RuntimeError as error:
        raise StorageError(f"cannot write {path}: {cause_of(error)}") from None


@contextmanager
def faiss_threads(threads: int | None) -> Iterator[None]:
    """Let faiss use this many threads inside the block, or its default for None; restores its setting."""
    if threads is None:
        yield
        return
    threads = thread_count(threads)
    faiss = faiss_package()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(threads)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def on_device(index: Any, device: str) -> Any:
    """The index on the device that searches it: itself for cpu, a copy on a GPU for cuda or cuda:N."""
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
        raise InvalidValueError(f"device {device!r} is not available: faiss sees {count} GPUs; choose cpu or auto")
    try:
        return faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), int(number or 0), index)
    except RuntimeError as error:
        raise InvalidValueError(f"faiss cannot search this index on a GPU ({cause_of(error)}): choose cpu") from None
