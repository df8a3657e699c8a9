"""What DuckDB reads of stores: datasets of Arrow that push columns and conditions down, and functions on vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from numpy.typing import NDArray

from embstore.errors import InvalidValueError
from embstore.store import Selection, Store
from embstore.vectors.linalg import unit_rows

HELD_ROWS = 2**20  # a table of more rows is read part by part, each time, instead of held: about 100 MB
BATCH_ROWS = 2**12  # rows whose vectors are read at a time: 6 MB of 384 features
SLOT_BITS = 40  # a handle is `slot << 40 | row`, where a slot is a layer of a store
AGGREGATES = ("centroid", "selfsim")

Rows = NDArray[np.int64]
Guarded = Callable[[Callable[..., Any]], Callable[..., Any]]  # see `Database._guarded`


class Table(ds.Dataset):  # type: ignore[misc]
    """Columns of `Selection.table`, and the vectors of layer l as `h<l>`, of which only what is asked for is read.

    `guarded` wraps what may raise.
    """

    def __init__(
        self,
        selection: Selection,
        columns: Sequence[str],
        guarded: Guarded,
        *,
        layers: Sequence[int] = (),
        held: pa.Table | None = None,
    ) -> None:
        self._selection, self._columns, self._guarded, self._held = selection, list(columns), guarded, held
        self._layers = {f"h{layer}": layer for layer in layers}
        self._index = (self._part(selection.store.select(rows=[])) if held is None else held).schema

    def few(self) -> Table:
        """Return an empty table with these columns, for `hold`."""
        # DuckDB would read all values of a dictionary
        kinds = [field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in self._index]
        held = pa.schema(zip(self._index.names, kinds, strict=True)).empty_table()
        return Table(self._selection, self._columns, self._guarded, layers=[*self._layers.values()], held=held)

    def hold(self, table: Table, rows: Rows) -> None:
        """Hold a few of the rows of a table of a whole store, ascending, and no others."""
        part = table._read(rows) if table.index is table else table.index.take(rows)
        self._held, self._selection = part.cast(self._index), self._selection.store.select(rows=rows)

    @property
    def schema(self) -> pa.Schema:
        vector = pa.list_(pa.float32(), self._selection.store.hidden_size)
        return pa.schema([*self._index, *(pa.field(name, vector) for name in self._layers)])

    def scanner(self, columns: list[str] | None = None, filter: Any = None, **_: Any) -> ds.Scanner:
        """Return what reads some columns of the rows for which a condition of Arrow is true."""
        own = self.schema
        schema = pa.schema([own.field(name) for name in columns or own.names])
        batches = self._guarded(partial(next, self._batches(schema, filter), None))
        return ds.Scanner.from_batches(iter(batches, None), schema=schema)

    def _batches(self, schema: pa.Schema, condition: Any) -> Iterator[pa.RecordBatch]:
        count, layers = len(self._selection), [name for name in self._layers if name in schema.names]
        for start in range(0, count, HELD_ROWS):
            stop = min(start + HELD_ROWS, count)
            rows = np.arange(start, stop) if self._selection.is_whole else self._selection.rows[start:stop]
            part, late = self._read(rows), None
            if condition is not None:
                numbered = ds.dataset(part.append_column("_place", pa.array(np.arange(len(rows)))))
                try:
                    places = numbered.to_table(["_place"], filter=condition, use_threads=False)[0]
                    named = [name for name in part.column_names if name in schema.names] or part.column_names[:1]
                    part, rows = part.select(named).take(places), rows[places.to_numpy()]
                except pa.ArrowInvalid:  # a condition on vectors, such as IS NOT NULL
                    layers, late = list(self._layers), condition
            size = BATCH_ROWS if layers else HELD_ROWS
            for first in range(0, len(rows), size):
                block = part.slice(first, size)
                for name in layers:
                    block = block.append_column(name, self._vectors(rows[first : first + size], name))
                block = block if late is None else ds.dataset(block).to_table(filter=late, use_threads=False)
                yield from block.select(schema.names).cast(schema).combine_chunks().to_batches()

    @property
    def index(self) -> Any:
        """The table without vectors, held in memory; itself where it has too many rows."""
        if self._held is None and len(self._selection) <= HELD_ROWS:
            self._held = self._part(self._selection)
        return self if self._held is None else self._held

    def _read(self, rows: Rows) -> pa.Table:
        """Return the columns but for vectors: of some rows, or of all where these are held."""
        return self._part(self._selection.store.select(rows=rows)) if self.index is self else self.index

    def _part(self, selection: Selection) -> pa.Table:
        return selection.table(columns=self._columns).to_arrow()

    def _vectors(self, rows: Rows, name: str) -> pa.FixedSizeListArray:
        """Return the vectors of rows as float32, NULL for those that are not written."""
        vectors = self._selection.store.vectors(rows, layers=self._layers[name], missing="nan").astype(np.float32)
        mask = pa.array(np.isnan(vectors[:, 0]))
        return pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1], mask=mask)


def register_functions(connection: Any, slots: Sequence[tuple[Store, int]], guarded: Guarded) -> None:
    """Make the functions on vectors known to a connection; `guarded` wraps those that may raise.

    Each function of groups is there twice: of handles, whose vectors are read in one pass, and of lists of numbers.
    """

    def of_handles(name: str, groups: pa.Array) -> pa.Array:
        numbers, members = _members(groups)
        return _finished(name, *_stored_sums(slots, name, numbers, len(groups), members.to_numpy()))

    def of_numbers(name: str, groups: pa.Array) -> pa.Array:
        numbers, members = _members(groups)
        return _finished(name, *_sums(name, numbers, len(groups), _matrix(members)))

    options: dict[str, Any] = {"type": "arrow", "null_handling": "special"}
    for name, kind in zip(AGGREGATES, ("DOUBLE[]", "DOUBLE"), strict=True):
        for suffix, function, groups in (("", of_handles, "BIGINT[]"), ("_of", of_numbers, "DOUBLE[][]")):
            call = guarded(partial(function, name))
            connection.create_function(f"_es_{name}{suffix}", call, [groups], kind, **options)
        connection.execute(f"create macro {name}(vector) as _es_{name}_of(list(vector::DOUBLE[]))")
    both = "case when a is not null and b is not null then"
    numbers = "(a::DOUBLE[], b::DOUBLE[])"
    # That of a zero vector is NaN, for DuckDB the greatest number, and becomes 0; written once, as it is computed once.
    cosine = f"{both} least(list_cosine_similarity{numbers}, 2) % 2 end"
    connection.execute(f"create macro cos(a) as system.main.cos(a), (a, b) as {cosine}")
    for name, own in (("ip", "list_inner_product"), ("l2", "list_distance")):
        connection.execute(f"create macro {name}(a, b) as {both} {own}{numbers} end")


def _stored_sums(
    slots: Sequence[tuple[Store, int]], name: str, groups: Rows, n_groups: int, handles: Rows
) -> tuple[NDArray[Any], Rows, Rows]:
    """Return the sums of the vectors of groups, how many are not zero, and counts; of handles of one slot."""
    from embstore.analysis.geometry.cosine import WordSums
    from embstore.analysis.scan import scan

    store, layer = slots[int(handles[0]) >> SLOT_BITS if len(handles) else 0]
    rows = handles & (2**SLOT_BITS - 1)
    order = np.argsort(rows, kind="stable")
    if not store.finished:
        order = order[np.isin(rows[order], store.select().written().rows)]
    counts = np.bincount(groups[order], minlength=n_groups)
    sums, n_nonzero = np.zeros((n_groups, 2 * store.hidden_size)), np.zeros(n_groups, np.int64)
    if len(order):
        selection = Selection(store, rows=rows[order], layers=[layer])
        reducer = WordSums(groups[order], counts, np.float64)
        sums, n_nonzero = scan(selection, {"sums": reducer}, device="cpu", max_states=4)[layer]["sums"]
    return np.hsplit(sums, 2)[0 if name == "selfsim" else 1], n_nonzero, counts


def _sums(name: str, groups: Rows, n_groups: int, vectors: NDArray[np.float64]) -> tuple[NDArray[Any], Rows, Rows]:
    """Return what `_stored_sums` does, of vectors in memory [n, feature]."""
    sums = np.zeros((n_groups, vectors.shape[1]))
    np.add.at(sums, groups, unit_rows(vectors) if name == "selfsim" else vectors)
    return sums, np.bincount(groups[vectors.any(1)], minlength=n_groups), np.bincount(groups, minlength=n_groups)


def _finished(name: str, sums: NDArray[Any], n_nonzero: Rows, counts: Rows) -> pa.Array:
    if name == "selfsim":
        from embstore.analysis.geometry.cosine import mean_cosine

        values = mean_cosine(np.square(sums).sum(1), n_nonzero, counts)
        return pa.array(values, mask=np.isnan(values))
    has_one = counts > 0
    means, ends = sums[has_one] / counts[has_one, None], np.cumsum(np.append(0, has_one * sums.shape[1]))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(means.ravel()), mask=pa.array(~has_one))


def _members(groups: pa.ChunkedArray | pa.Array) -> tuple[Rows, pa.Array]:
    """Return the number of the group of each member, and the members without NULL."""
    members, numbers = pc.list_flatten(groups), pc.list_parent_indices(groups).to_numpy()
    valid = members.is_valid()
    members = members.filter(valid)
    members = members.combine_chunks() if isinstance(members, pa.ChunkedArray) else members
    return numbers[valid.to_numpy(zero_copy_only=False)], members


def _matrix(column: pa.Array) -> NDArray[np.float64]:
    """Return a column of lists of one length as a matrix [n, feature]."""
    lengths = np.unique(pc.list_value_length(column).to_numpy(zero_copy_only=False))
    if len(lengths) > 1 or 0 in lengths:
        raise InvalidValueError(f"vectors of {lengths[0]} and of {lengths[-1]} numbers have no mean: give others")
    size = int(lengths[0]) if len(lengths) else 0
    numbers: NDArray[np.float64] = column.flatten().to_numpy(zero_copy_only=False)
    return numbers.reshape(-1, size) if size else np.zeros((0, 0))
