"""SQL over stores with DuckDB: one table of occurrences for each store, with a column for the vectors of each layer."""

from __future__ import annotations

import atexit
import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embstore.analysis.neighbors.exact import exact_search
from embstore.analysis.neighbors.find import encode_word
from embstore.analysis.neighbors.index import open_index
from embstore.analysis.neighbors.space import Space, StoreVectors
from embstore.arguments import checked
from embstore.database.functions import AGGREGATES, CONSTANT, METRICS, SLOT_BITS, Functions, Vectors
from embstore.database.rewrite import Node, Rewriter
from embstore.errors import InvalidValueError, MissingPackageError, MissingRowsError, check_choice, quoted
from embstore.sizes import parse_nbytes
from embstore.store import Selection, Store
from embstore.store.layout import resolve_layer

if TYPE_CHECKING:
    import polars as pl

OPEN = 4  # databases kept for the next query
TEXTS = 1000  # statements and expressions whose syntax is kept
LONG = 10_000  # characters of a text that is not kept
KINDS = {"str": "STRING", "int": "INTEGER"}  # the literals that a column is compared with by the index
SHARE = 32  # a table of some rows has at most one in this many
FEW = 100  # rows that a search leaves out afterwards
SMALL = 2**20  # rows of a store whose index is held whole
DEFAULT = "main"  # DuckDB's schema for tables without one
VECTOR_MEAN = re.compile(r"'(avg|mean)\(FLOAT\[")  # which DuckDB alone does not have


@checked
def sql(
    data: Store | Mapping[str, Store],
    query: str,
    *,
    missing: str = "error",
    index: str | None = None,
    model: str | Path | None = None,
    memory: int | str | None = None,
    pushdown: bool = True,
) -> pl.DataFrame:
    """Answer a SELECT statement of SQL about a store, in DuckDB's dialect; a frame.

    Tables: `occurrences` (the columns of `Store.table` without the text, and the vectors of layer l as `h<l>`, read
    only where they are needed), `sentences` (sentence, text and the fields of its document), `types` (word, count) and
    `labels` (column, label, count). `data`: a store, or stores by the name of their schema: with {"a": one, "b": other}
    the tables are `a.occurrences`, `b.occurrences` and so on. Files are tables too: 'frequencies.parquet', 'x.csv'.

    Functions of vectors: `cos(a, b)`, `ip(a, b)` (inner product) and `l2(a, b)` (Euclidean distance), in float64 and to
    the bit the scores of `embstore.neighbors`; `vec('sat on the [bank]', 6)`, a word in a new sentence at layer 6, and
    `vec(17, 6)`, that of occurrence 17 (without a layer: the last one). Of groups: `centroid(h6)`, also written
    `avg(h6)`, and `selfsim(h6)`, the mean cosine of all pairs. A zero vector has cosine 0. Equal rows of a sorted
    result are in the order of their occurrences.

    `missing`: a store that is not finished is refused, or with "null" its missing vectors are NULL. `index`: the name
    of a search index that may answer ORDER BY cos(...) LIMIT k, which then finds nearly all. `model`: where the
    store's model is now. `memory`: the limit of DuckDB, in bytes or as "4GiB".
    `pushdown=False` leaves all to DuckDB: slow, the same result.

    Example::

        es.sql(store, "select word, selfsim(h6) as s from occurrences group by word order by s limit 5")

    Raises InvalidValueError for a statement that cannot be run, with the place; MissingRowsError, ModelError,
    MissingPackageError.
    """
    check_choice("missing", missing, ("error", "null"))
    stores = dict(data) if isinstance(data, Mapping) else {DEFAULT: data}
    if not isinstance(query, str) or not query.strip():
        raise InvalidValueError(f"query must be a SELECT statement, not {quoted(query)}")
    for name, store in stores.items():
        if not isinstance(store, Store):
            raise InvalidValueError(f"{quoted(store)} is not a store: give what es.open returns, or several by name")
        if not isinstance(name, str) or not name.isidentifier():
            raise InvalidValueError(f"{quoted(name)} cannot be the name of a schema: use letters, digits and _")
        if missing == "error" and store.n_committed_rows < store.n_rows:
            raise MissingRowsError(
                f"{store.path} is not finished: resume its extraction, or let missing vectors be NULL (missing='null')"
            )
    if not stores:
        raise InvalidValueError("no store is given: give one, or several by name")
    with _lock:
        database = _database(stores)
        database.vectors.missing = "null" if missing == "null" else "error"
        database.memory = None if memory is None else parse_nbytes(memory, name="memory")
        database.index, database.model = index, model
        return database.answer(query, pushdown=pushdown)


_lock = RLock()
_databases: OrderedDict[tuple[tuple[str, int], ...], Database] = OrderedDict()


def _database(stores: Mapping[str, Store]) -> Database:
    """The database of some stores, one of the last that were used or a new one."""
    key = tuple((name, id(store)) for name, store in stores.items())
    database = _databases.pop(key, None) or Database(stores)
    _databases[key] = database
    while len(_databases) > OPEN:
        _databases.popitem(last=False)[1].close()
    return database


@atexit.register
def close_databases() -> None:
    """Close the databases that are kept for the next query."""
    while _databases:
        _databases.popitem()[1].close()


class Database:
    """The tables and functions of some stores in a database of DuckDB, in memory."""

    def __init__(self, stores: Mapping[str, Store]) -> None:
        try:
            import duckdb
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise MissingPackageError(f'SQL needs duckdb and pyarrow: pip install "embstore[sql]" ({error})') from error
        _require_distinct(stores, "names of stores", "rename one")
        for store in stores.values():
            columns = [*store.select(rows=[]).table().columns, *(f"h{layer}" for layer in store.layers)]
            _require_distinct(columns, f"columns of {store.path}", "rename the label or field, or use select")
        self.stores = dict(stores)
        self.vectors = Vectors()
        self.memory: int | None = None
        self.index: str | None = None
        self.model: str | Path | None = None
        self._error: type[Exception] = duckdb.Error
        self._failure: Exception | None = None
        self._serialized = lru_cache(TEXTS)(self._serialize)
        self._written = lru_cache(TEXTS)(self._write)
        self._tables: dict[str, _Columns] = {}
        self._some: dict[str, list[_Some]] = {}
        self._n_some = 0
        self._encoded: dict[tuple[Any, ...], int] = {}
        self._slots: dict[tuple[str, str], int] = {}
        options = {"python_enable_replacements": False, "autoinstall_known_extensions": False}
        self._connection = duckdb.connect(config={**options, "autoload_known_extensions": False})
        for name in stores:
            try:
                self._connection.execute(f"create schema if not exists {name}; create view {name}.labels as select 1")
                self._connection.execute(f"drop view {name}.labels")
            except duckdb.Error:
                self.close()
                raise InvalidValueError(f"{name!r} cannot be the name of a schema in DuckDB: choose another") from None
        self._relation = lru_cache(TEXTS // 10)(self._connection.sql)  # its text is planned again at each run
        found = self._rows("select current_setting('memory_limit'), current_setting('threads')")
        ((self._memory, self._threads),) = found
        self._settings: dict[str, str | int] = {"memory_limit": self._memory, "threads": self._threads}
        sizes = tuple(sorted({store.hidden_size for store in stores.values()}))
        Functions(self.vectors, sizes, self._note).register(self._connection)
        for name in stores:
            self._create_tables(name)
        found = self._rows("select distinct function_name from duckdb_functions() where function_type = 'aggregate'")
        self.aggregates = frozenset(name for (name,) in found)
        self._connection.execute("set errors_as_json = true")
        self._empty: Node = self._tree("select 1")["statements"][0]["node"]

    def close(self) -> None:
        self._connection.close()

    def _note(self, error: Exception) -> None:
        self._failure = error

    def _create_tables(self, schema: str) -> None:
        store = self.stores[schema]
        firsts = store.select(rows=np.flatnonzero(np.diff(store.index.sentence, prepend=-1)))
        self._tables[schema] = _Columns(store.select(), without=["text"])
        self._some[schema] = []
        for table, columns in {
            "occurrences": self._tables[schema],
            "sentences": _Columns(firsts, only=["sentence", "text", "document", *store.index.fields]),
        }.items():
            self._connection.register(f"_es_{schema}_{table}", columns.held())
        for layer in store.layers:
            self._slots[schema, f"h{layer}"] = len(self.vectors.slots)
            self.vectors.slots.append((store, layer))
        labels = [
            f'select {_text(name)} as "column", {_name(name)}::varchar as label, count(*) as count '
            f"from {schema}.occurrences where {_name(name)} is not null group by all"
            for name in store.index.labels
        ] or ["select ''::varchar as \"column\", ''::varchar as label, 0::bigint as count where false"]
        for view, text in {
            "occurrences": self._with_vectors(schema, "occurrences"),
            "sentences": f"select * from _es_{schema}_sentences",
            "types": f"select word, count(*) as count from {schema}.occurrences group by word",
            "labels": " union all ".join(labels),
        }.items():
            self._connection.execute(f"create view {schema}.{view} as {text}")
        vector = f"_es_vector_{store.hidden_size}(0)"  # so that DuckDB knows the name when it looks for an error
        self._connection.execute(f"create macro {schema}.vec(what) as {vector}, (what, layer) as {vector}")

    def _with_vectors(self, schema: str, table: str) -> str:
        """The statement of a table of occurrences with a column for the vectors of each layer."""
        store = self.stores[schema]
        vector = f"_es_vector_{store.hidden_size}"
        slots = {f"h{layer}": self._slots[schema, f"h{layer}"] << SLOT_BITS for layer in store.layers}
        columns = ", ".join(f"{vector}(occurrence + {slot}) as {name}" for name, slot in slots.items())
        return f"select *, {columns} from _es_{schema}_{table}"

    def answer(self, query: str, *, pushdown: bool) -> pl.DataFrame:
        """Answer a statement; see `sql`."""
        self._n_some = 0
        self._set("memory_limit", self._memory if self.memory is None else f"{self.memory}B")
        self.vectors.constants.clear()
        self._encoded.clear()
        tree = self._tree(query)
        if len(tree["statements"]) != 1:
            raise InvalidValueError(f"the query has {len(tree['statements'])} statements: give one")
        (statement,) = tree["statements"]
        self._failure = None
        try:
            Rewriter(self, pushdown=pushdown).rewrite(statement["node"])
            text = self._deserialized(statement["node"])
            is_grouped = any(f"_es_{name}(" in text for name in AGGREGATES)  # one thread gives their groups at once
            self._set("threads", 1 if is_grouped else self._threads)
            frame: pl.DataFrame = self._related(text).pl()
            return frame
        except self._error as error:
            raise self._explained(error, query) from None

    def _set(self, setting: str, value: str | int) -> None:
        """Change a setting of DuckDB, where it has another value."""
        if self._settings.get(setting) != value:
            self._connection.execute(f"set {setting} = '{value}'")
            self._settings[setting] = value

    def _explained(self, error: Exception, query: str) -> Exception:
        """The error for the user: what a function of ours raised, or DuckDB's message about the query as typed."""
        if self._failure is not None:
            return self._failure
        try:
            self._connection.execute(f"explain {query}").fetchall()
        except self._error as original:
            message = str(original)
            if '"position"' in message and not VECTOR_MEAN.search(message):
                return _refused(message, f"explain {query}", shift=len("explain "))
        return _refused(str(error))  # its places are those of the statement as it was run

    def _rows(self, text: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._connection.execute(text, list(parameters)).fetchall()
        return rows

    def _related(self, text: str) -> Any:
        """A statement that DuckDB has parsed."""
        return self._relation(text) if len(text) < LONG else self._connection.sql(text)

    def _tree(self, query: str) -> Node:
        tree: Node = json.loads(self._serialized(query) if len(query) < LONG else self._serialize(query))
        if not tree["error"]:
            return tree
        if tree["error_type"] == "not implemented":
            raise InvalidValueError("SQL can only ask: the statement must be a SELECT")
        raise _refused(json.dumps({"exception_message": tree["error_message"], **tree}), query)

    def _serialize(self, query: str) -> str:
        text: str = self._rows("select json_serialize_sql(?)", [query])[0][0]
        return text

    def _deserialized(self, node: Node) -> str:
        tree = json.dumps({"error": False, "statements": [{"node": node, "named_param_map": []}]})
        return self._written(tree) if len(tree) < 10 * LONG else self._write(tree)

    def _write(self, tree: str) -> str:
        text: str = self._rows("select json_deserialize_sql(?::json)", [tree])[0][0]
        return text

    # What a rewriter asks for

    def store_of(self, schema: str) -> str | None:
        """The name of the store with these tables; None where there is none."""
        schema = schema or DEFAULT
        return next((name for name in self.stores if name.lower() == schema), None)

    def slot(self, store: str, column: str) -> int | None:
        """The slot of a column of vectors."""
        return self._slots.get((store, column))

    def size(self, handle: int) -> int:
        """The hidden size of the vector of a handle."""
        if handle >= CONSTANT:
            return len(self.vectors.constants[handle - CONSTANT])
        return self.vectors.slots[handle >> SLOT_BITS][0].hidden_size

    def constant(self, vector: NDArray[np.floating]) -> int:
        """The handle of a vector that is given."""
        return self.vectors.constant(vector)

    def encode(self, schema: str, arguments: list[Any]) -> int:
        """The handle of `vec(...)`, given its arguments as literals."""
        values = tuple((literal.get("kind"), literal.get("text")) for literal in arguments)
        if (schema, values) not in self._encoded:
            self._encoded[schema, values] = self._encode(schema, values)
        return self._encoded[schema, values]

    def _encode(self, schema: str, values: tuple[tuple[str, str], ...]) -> int:
        kinds = [kind for kind, _ in values]
        if kinds[0] not in ("STRING", "INTEGER") or len(values) > 2 or kinds[1:] not in ([], ["INTEGER"]):
            raise InvalidValueError("vec takes a text with a [marked] word or the number of an occurrence, and a layer")
        name = next(iter(self.stores)) if not schema and len(self.stores) == 1 else self.store_of(schema)
        if name is None:
            some = next(iter(self.stores))
            raise InvalidValueError(f"there are {len(self.stores)} stores: say which, such as {some}.vec(...)")
        store = self.stores[name]
        layer = resolve_layer(int(values[1][1]) if len(values) > 1 else -1, store.layers)
        if kinds[0] == "STRING":
            (vector,) = encode_word(store, values[0][1], layers=[layer], model=self.model)
        else:
            (vector,) = store.vectors([int(values[0][1])], layers=layer)[0]
        return self.constant(vector)

    def parse(self, text: str) -> Node:
        """The syntax tree of an expression."""
        node: Node = self._tree(f"select {text}")["statements"][0]["node"]["select_list"][0]
        return node

    def text(self, expression: Node) -> str:
        """An expression as DuckDB writes it."""
        return self._deserialized({**self._empty, "select_list": [expression]}).removeprefix("SELECT ")

    def run(self, node: Node) -> NDArray[Any]:
        """The first column of a statement that is part of another one. Raises InvalidValueError."""
        try:
            found = self._connection.sql(self._deserialized(node)).fetchnumpy()
        except self._error as error:
            raise InvalidValueError(str(error)) from None
        if len(found) != 1:
            raise InvalidValueError(f"a subquery has {len(found)} columns: give one")
        return np.asarray(next(iter(found.values())))

    def narrowed(self, name: str, conditions: list[tuple[str, list[Any]]]) -> str | None:
        """The table of the occurrences whose columns are one of some literals; None where it would be of little use."""
        found = [self._tables[name].rows_with(column, literals) for column, literals in conditions]
        known = [rows for rows in found if rows is not None]
        if not known:
            return None
        rows = known[0]
        for other in known[1:]:
            rows = np.intersect1d(rows, other, assume_unique=True)
        if len(rows) * SHARE > self.stores[name].n_rows:
            return None
        tables, number = self._some[name], self._n_some
        self._n_some += 1
        for made in range(len(tables), number + 1):
            tables.append(_Some(self._tables[name]))
            self._connection.register(f"_es_{name}_some{made}", tables[made])
            self._connection.execute(f"create view {name}._es_some{made} as {self._with_vectors(name, f'some{made}')}")
        tables[number].set(rows)
        return f"_es_some{number}"

    def nearest(
        self, slot: int, query: int, name: str, k: int, rows: NDArray[np.int64] | None
    ) -> NDArray[np.int64] | None:
        """The k nearest of some rows (None: all), best first; None where DuckDB must sort them."""
        store, layer = self.vectors.slots[slot]
        vector, metric = self.vectors.constants[query - CONSTANT], METRICS[name][0]
        candidates = None if rows is None else np.sort(rows, kind="stable")
        n_candidates = store.n_rows if candidates is None else len(candidates)
        n_others = store.n_rows - n_candidates
        if candidates is not None and n_others <= FEW and self.index is None:  # it is faster to read them too
            every = self.nearest(slot, query, name, k + n_others, None)
            if every is None:
                return None
            places = np.minimum(np.searchsorted(candidates, every), n_candidates - 1)
            return every[candidates[places] == every][:k] if n_candidates else every[:0]
        if store.n_committed_rows < store.n_rows or len(vector) != store.hidden_size:
            return None
        if self.index is not None:
            opened = open_index(store, name=self.index)
            settings = opened.info.settings
            if settings.layer != layer or settings.metric != metric or settings.centered or settings.n_components:
                raise InvalidValueError(
                    f"the index {self.index} is of {settings.metric} in layer {settings.layer}, the query of {metric} "
                    f"in layer {layer}: leave the index out"
                )
            hits = opened.search(vector[None], k=min(k, n_candidates), rows=candidates)
        else:
            options: Any = {"space": Space(metric), "rows": candidates, "device": "cpu"}
            hits = exact_search(StoreVectors(store, layer), vector, k=k, **options)
        self.vectors.n_read += n_candidates
        found: NDArray[np.int64] = hits.rows[0][hits.rows[0] >= 0]
        return found


class _Columns:
    """Some columns of an occurrence table, made when a query first names them."""

    def __init__(self, selection: Selection, *, without: Sequence[str] = (), only: Sequence[str] | None = None) -> None:
        self._selection = selection
        self._made: dict[str, pl.Series] = {}
        self._whole: Any = None
        schema = selection.store.select(rows=[]).table().schema
        self.schema = {name: schema[name] for name in (schema if only is None else only) if name not in without}

    def held(self) -> Any:
        """What DuckDB reads: all columns as an Arrow table, or columns that are made when they are named."""
        from polars.io.plugins import register_io_source

        if self._selection.store.n_rows > SMALL:
            return register_io_source(self._read, schema=self.schema)
        self._whole = self._selection.table(columns=list(self.schema)).to_arrow()
        return self._whole

    def of_rows(self, rows: NDArray[np.int64]) -> Any:
        """Some rows of the store as an Arrow table."""
        if self._whole is not None:
            found = self._whole.take(rows)
        else:
            found = self._selection.store.select(rows=rows).table(columns=list(self.schema)).to_arrow()
        return found.cast(self._plain(found.schema))  # DuckDB would read all values of a dictionary

    @staticmethod
    def _plain(schema: Any) -> Any:
        import pyarrow as pa

        kinds = [field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in schema]
        return pa.schema(zip(schema.names, kinds, strict=True))

    def rows_with(self, column: str, literals: Sequence[Mapping[str, str]]) -> NDArray[np.int64] | None:
        """The rows, ascending, in which a column is one of some literals; None for other columns and kinds."""
        store, index = self._selection.store, self._selection.store.index
        name = next((each for each in self.schema if each.lower() == column), column)
        kind = index.fields[name].kind if name in index.fields else "str"
        given = [each for each in literals if each["kind"] != "NULL_LITERAL"]
        if kind not in KINDS or {each["kind"] for each in given} - {KINDS[kind]}:
            return None
        texts = {str(int(each["text"])) if kind == "int" else each["text"] for each in given}
        if name == "word":
            types = [number for number in map(store.type_of, texts) if number is not None]
            return np.sort(np.concatenate([np.empty(0, np.int64), *map(store.occurrences_of, types)]))
        if name in index.labels:
            labels = index.labels[name]
            codes = [code for code in map(labels.names.find, texts) if code is not None]
            return np.flatnonzero(np.isin(labels.codes, codes))
        return None

    def _read(
        self, names: list[str] | None, where: pl.Expr | None, n_rows: int | None, _size: int | None
    ) -> Iterator[pl.DataFrame]:
        import polars as pl

        names = list(self.schema) if names is None else names
        new = [name for name in names if name not in self._made]
        if new:
            self._made.update(self._selection.table(columns=new).to_dict())
        frame = pl.DataFrame([self._made[name] for name in names])
        frame = frame if where is None else frame.filter(where)
        yield frame if n_rows is None else frame.head(n_rows)


class _Some:
    """A table of some rows: DuckDB reads those that are set when a statement runs."""

    def __init__(self, columns: _Columns) -> None:
        self._columns = columns
        self._table: Any = columns.of_rows(np.empty(0, np.int64))
        self._schema = self._table.schema

    def set(self, rows: NDArray[np.int64]) -> None:
        self._table = self._columns.of_rows(rows)

    def __arrow_c_schema__(self) -> Any:
        return self._schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


def _require_distinct(names: Iterable[str], what: str, hint: str) -> None:
    """Raise InvalidValueError for names that are one in SQL, which does not distinguish case."""
    known: dict[str, str] = {}
    for name in names:
        if name.lower() in known:
            raise InvalidValueError(f"the {what} {known[name.lower()]!r} and {name!r} are one in SQL: {hint}")
        known[name.lower()] = name


def _name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _refused(message: str, query: str = "", *, shift: int = 0) -> InvalidValueError:
    """DuckDB's error as one line, with the place in the query if it is given."""
    try:
        given = json.loads(message[message.index("{") :])
    except ValueError:
        return InvalidValueError(f"the query cannot be run: {message.splitlines()[0]}")
    text, place = str(given["exception_message"]).partition(". You might need to add explicit type casts")[0], ""
    text = " ".join(text.split())
    if query and str(given.get("position", "")).isdigit():
        before = query.encode()[: int(given["position"])].decode(errors="ignore")[shift:]
        place = f" (line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))})"
    return InvalidValueError(f"the query cannot be run{place}: {text}")
