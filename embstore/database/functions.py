"""Functions on vectors that DuckDB calls with a few thousand values at a time.

A vector is given either as its numbers, or as a handle: a 64-bit integer that says where the vector is, so that only
vectors that are needed are read. The handle of a stored vector is `slot << 40 | row`, with one slot for each layer of
each store; that of a constant of the query is `CONSTANT + its number`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from embstore.analysis.geometry.cosine import CosineSums, WordSums, mean_cosine
from embstore.analysis.neighbors.space import stored_bytes
from embstore.analysis.scan import Scope, scan
from embstore.errors import InvalidValueError
from embstore.kernels import score_pairs
from embstore.store import Store
from embstore.vectors.linalg import unit_rows

if TYPE_CHECKING:
    import pyarrow as pa

SLOT_BITS = 40
CONSTANT = 2**62
METRICS = {"cos": ("cosine", 0), "ip": ("ip", 1), "l2": ("l2", 2)}  # the metric of a search, its number in the kernel
AGGREGATES = ("centroid", "selfsim")

Handles = NDArray[np.int64]
Grouped = tuple[NDArray[np.float64], NDArray[Any], NDArray[Any]]  # sums [g, feature], n_nonzero and counts [g]


@dataclass
class Vectors:
    """The vectors that handles name: `slots` (store and layer) and `constants`; counts the vectors that are read.

    `missing`: "null" for a store in which rows are missing, whose vectors are then NULL.
    """

    slots: list[tuple[Store, int]] = field(default_factory=list)
    constants: list[NDArray[np.floating]] = field(default_factory=list)
    missing: Literal["error", "null"] = "error"
    n_read: int = 0

    def constant(self, vector: NDArray[np.floating]) -> int:
        """Keep a vector [feature] for this query; returns its handle."""
        self.constants.append(vector)
        return CONSTANT + len(self.constants) - 1

    def read(self, handles: Handles) -> NDArray[Any]:
        """Return the vectors of handles of one hidden size, [n, feature]; NaN for rows that are not written."""
        if not len(handles):
            return np.empty((0, 0))
        if int(handles.min()) >= CONSTANT:
            return np.stack([self.constants[int(handle) - CONSTANT] for handle in handles])
        found = [self._of_slot(slot, handles) for slot in np.unique(handles >> SLOT_BITS).tolist()]
        if len(found) == 1:
            return found[0][1]
        out = np.empty((len(handles), _common_size([vectors for _, vectors in found])), np.float64)
        for chosen, vectors in found:
            out[chosen] = vectors
        return out

    def _of_slot(self, slot: int, handles: Handles) -> tuple[NDArray[np.bool_], NDArray[Any]]:
        chosen = handles >> SLOT_BITS == slot
        if slot << SLOT_BITS >= CONSTANT:
            return chosen, self.read(handles[chosen])
        store, layer = self.slots[slot]
        self.n_read += int(chosen.sum())
        missing: Literal["error", "nan"] = "nan" if self.missing == "null" else "error"
        return chosen, store.vectors(handles[chosen] & (2**SLOT_BITS - 1), layers=layer, missing=missing)[0]

    def numbers(self, size: int, handles: Handles) -> pa.Array:
        """Return vectors as a column of fixed-size lists of float32."""
        vectors = np.ascontiguousarray(self.read(handles), np.float32)
        return _fixed_size(vectors, size, is_missing=np.isnan(vectors[:, 0]))

    def scores(self, metric: int, left: Handles, right: Handles) -> NDArray[np.float64]:
        """Return the scores of pairs of vectors, NaN where one is missing; see `score`."""
        same = bool((right == right[0]).all())
        return score(metric, self.read(left), self.read(right[:1] if same else right))

    def sums(self, unit: bool, groups: Handles, n_groups: int, handles: Handles) -> Grouped:
        """Return the sums over groups of vectors (`unit`: of their unit vectors), how many are not zero, and counts.

        `groups`: the group of each handle. Vectors of one layer are read in one pass.
        """
        first, last = (int(end) >> SLOT_BITS for end in (handles.min(initial=CONSTANT), handles.max(initial=0)))
        if first != last or first << SLOT_BITS >= CONSTANT:
            return grouped_sums(unit, groups, n_groups, np.asarray(self.read(handles), np.float64))
        store, layer = self.slots[first]
        rows = handles & (2**SLOT_BITS - 1)
        order = np.argsort(rows)
        selection = store.select(rows=rows[order], layers=layer)
        if self.missing == "null":
            order = order[np.isin(rows[order], selection.written().rows)]
            selection = store.select(rows=rows[order], layers=layer)
        self.n_read += len(order)
        counts = np.bincount(groups[order], minlength=n_groups)
        if not len(order):
            return np.zeros((n_groups, store.hidden_size)), np.zeros(n_groups), counts
        reducer = _Sums(groups[order], counts, unit=unit)
        found = scan(selection, {"sums": reducer}, device="cpu", max_states=4)
        sums, n_nonzero = found[layer]["sums"]
        return sums[:, -store.hidden_size :], n_nonzero, counts


class _Sums(WordSums):
    """The sums of unit vectors, or of plain ones in the last columns, in float64."""

    def __init__(self, groups: Handles, sizes: Handles, *, unit: bool) -> None:
        super().__init__(groups, sizes)
        self._unit = unit

    def init(self, scope: Scope) -> CosineSums:
        return CosineSums(scope.hidden_size, self._slots, 0, np.float64, with_plain=not self._unit)


def score(metric: int, vectors: NDArray[Any], queries: NDArray[Any]) -> NDArray[np.float64]:
    """Return the scores of vectors [n, feature] with queries [n or 1, feature], to the bit those of a search.

    A zero vector has cosine 0. Raises InvalidValueError for vectors of another size.
    """
    _common_size([vectors, queries])
    narrow = vectors.astype(np.float32, copy=False)
    vectors = narrow if vectors.dtype == np.float64 and np.array_equal(narrow, vectors, equal_nan=True) else vectors
    compared = np.ascontiguousarray(queries, np.float64)
    compared = unit_rows(compared) if metric == 0 else compared
    numbers, scores = np.arange(len(vectors)), np.empty(len(vectors))
    owners = np.zeros_like(numbers) if len(queries) == 1 else numbers
    score_pairs(*stored_bytes(vectors), metric, compared, owners, numbers, scores)
    missing = np.isnan(vectors[:, 0]) | np.isnan(compared[owners, 0])
    return np.where(missing, np.nan, scores)


def grouped_sums(unit: bool, groups: Handles, n_groups: int, vectors: NDArray[np.float64]) -> Grouped:
    """Return what `Vectors.sums` does, of vectors in memory [n, feature]."""
    written = ~np.isnan(vectors[:, :1]).any(1)
    groups, vectors = groups[written], vectors[written]
    sums = np.zeros((n_groups, vectors.shape[1]))
    np.add.at(sums, groups, unit_rows(vectors) if unit else vectors)
    n_nonzero = np.bincount(groups[vectors.any(1)], minlength=n_groups)
    return sums, n_nonzero, np.bincount(groups, minlength=n_groups)


def _common_size(arrays: Sequence[NDArray[Any]]) -> int:
    sizes = sorted({array.shape[1] for array in arrays})
    if len(sizes) > 1:
        raise InvalidValueError(f"vectors of {sizes[0]} and of {sizes[1]} numbers cannot be compared")
    return int(sizes[0])


def _fixed_size(vectors: NDArray[Any], size: int, *, is_missing: NDArray[np.bool_]) -> pa.Array:
    import pyarrow as pa

    numbers = pa.array(np.ascontiguousarray(vectors).ravel())
    mask = pa.array(is_missing) if is_missing.any() else None
    return pa.FixedSizeListArray.from_arrays(numbers, size, mask=mask)


def _matrix(column: pa.Array) -> NDArray[np.float64]:
    """The numbers of a column of lists without NULL, float64 [n, feature]."""
    lengths = np.diff(column.offsets.to_numpy())
    if len(lengths) and (lengths != lengths[0]).any():
        raise InvalidValueError(f"vectors of {lengths.min()} and of {lengths.max()} numbers cannot be compared")
    if len(lengths) and not lengths[0]:
        raise InvalidValueError(
            "a vector of no numbers, [], has neither a score nor a mean: give as many as others have"
        )
    values: NDArray[np.float64] = column.flatten().to_numpy(zero_copy_only=False)
    return values.reshape(len(column), int(lengths[0]) if len(lengths) else 0)


@dataclass(frozen=True)
class Functions:
    """The functions as DuckDB calls them: with Arrow columns, in which NULL may be anywhere.

    `sizes`: the hidden sizes of the stores. `failed` is given the exception of a function, which DuckDB would report
    as a text.
    """

    vectors: Vectors
    sizes: tuple[int, ...]
    failed: Callable[[Exception], object]

    def register(self, connection: Any) -> None:
        """Make the functions known to a connection; those in the names of users are macros over the others."""
        array = f"DOUBLE[{self.sizes[0]}]" if len(self.sizes) == 1 else "DOUBLE[]"
        made: dict[str, tuple[Any, list[str], str]] = {
            **{f"_es_{name}": (partial(self.scores, name), ["BIGINT"] * 2, "DOUBLE") for name in METRICS},
            **{f"_es_{name}_of": (partial(self.scores_of, name), ["DOUBLE[]"] * 2, "DOUBLE") for name in METRICS},
            **{f"_es_vector_{size}": (partial(self.numbers, size), ["BIGINT"], f"FLOAT[{size}]")
               for size in self.sizes},
        }  # fmt: skip
        for name, kind in zip(AGGREGATES, (array, "DOUBLE"), strict=True):
            made[f"_es_{name}"] = partial(self.grouped, name), ["BIGINT[]"], kind
            made[f"_es_{name}_of"] = partial(self.grouped_of, name), ["DOUBLE[][]"], kind
        for name, (function, parameters, kind) in made.items():
            options: dict[str, Any] = {"type": "arrow", "null_handling": "special"}
            connection.create_function(name, self._guarded(function, len(parameters)), parameters, kind, **options)
        for name in METRICS:
            built_in = "(a) as system.main.cos(a), " if name == "cos" else ""
            connection.execute(f"create macro {name}{built_in}(a, b) as _es_{name}_of(a::DOUBLE[], b::DOUBLE[])")
        for name in AGGREGATES:
            connection.execute(f"create macro {name}(vector) as _es_{name}_of(list(vector::DOUBLE[]))")

    def _guarded(self, function: Callable[..., pa.Array], n_columns: int) -> Callable[..., pa.Array]:
        """A function of columns without NULL as one of chunked columns with it; `failed` is given what it raises."""
        import pyarrow as pa
        import pyarrow.compute as pc

        def call(*columns: Any) -> pa.Array:
            try:
                given = [each.combine_chunks() if isinstance(each, pa.ChunkedArray) else each for each in columns]
                if not any(each.null_count for each in given):
                    return function(*given)
                valid = np.logical_and.reduce([each.is_valid().to_numpy(zero_copy_only=False) for each in given])
                if not valid.any():
                    return pa.nulls(len(valid))
                found = function(*(each.filter(pa.array(valid)) for each in given))
                return pc.take(found, pa.array(np.cumsum(valid) - 1, mask=~valid))
            except Exception as error:
                self.failed(error)
                raise

        # DuckDB counts the parameters of the function it is given.
        return (lambda one: call(one)) if n_columns == 1 else (lambda one, two: call(one, two))

    def numbers(self, size: int, handles: pa.Array) -> pa.Array:
        return self.vectors.numbers(size, handles.to_numpy())

    def scores(self, name: str, left: pa.Array, right: pa.Array) -> pa.Array:
        return _doubles(self.vectors.scores(METRICS[name][1], left.to_numpy(), right.to_numpy()))

    def scores_of(self, name: str, left: pa.Array, right: pa.Array) -> pa.Array:
        return _doubles(score(METRICS[name][1], _matrix(left), _matrix(right)))

    def grouped(self, name: str, groups: pa.Array) -> pa.Array:
        numbers, members = _members(groups)
        return self._finished(name, self.vectors.sums(name == "selfsim", numbers, len(groups), members.to_numpy()))

    def grouped_of(self, name: str, groups: pa.Array) -> pa.Array:
        numbers, members = _members(groups)
        return self._finished(name, grouped_sums(name == "selfsim", numbers, len(groups), _matrix(members)))

    def _finished(self, name: str, grouped: Grouped) -> pa.Array:
        import pyarrow as pa

        sums, n_nonzero, counts = grouped
        if name == "selfsim":
            return _doubles(mean_cosine(np.square(sums).sum(1), n_nonzero, counts))
        means = sums / np.where(counts > 0, counts, 1)[:, None]
        if len(self.sizes) == 1:
            means = means if means.shape[1] else np.zeros((len(counts), self.sizes[0]))
            return _fixed_size(means, self.sizes[0], is_missing=counts == 0)
        return pa.array([mean if count else None for mean, count in zip(means, counts, strict=True)])


def _doubles(values: NDArray[np.float64]) -> pa.Array:
    import pyarrow as pa

    return pa.array(values, mask=np.isnan(values))


def _members(groups: pa.Array) -> tuple[Handles, pa.Array]:
    """The members of groups, without NULL, and the number of the group of each."""
    members = groups.flatten()
    numbers = np.repeat(np.arange(len(groups)), np.diff(groups.offsets.to_numpy()))
    if members.null_count:
        valid = members.is_valid()
        numbers, members = numbers[valid.to_numpy(zero_copy_only=False)], members.filter(valid)
    return numbers, members
