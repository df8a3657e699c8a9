"""SQL over stores with DuckDB: one table of occurrences for each store, with a column for the vectors of each layer."""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, wraps
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from embstore.analysis.neighbors.exact import exact_search
from embstore.analysis.neighbors.find import encode_word
from embstore.analysis.neighbors.space import Space, StoreVectors
from embstore.arguments import checked
from embstore.config import config, settings
from embstore.database.rewrite import DEFAULT, INDEX, TABLES, Node, function, nodes, rewrite
from embstore.errors import InvalidValueError, MissingPackageError, MissingRowsError, quoted
from embstore.store import Store
from embstore.store.layout import resolve_layer

if TYPE_CHECKING:
    import polars as pl

    from embstore.database.tables import Table

BLOCK_ROWS = 2**13  # of a result at a time
TEXTS = 32  # statements that a database keeps as parsed and as written: each takes half a millisecond
DATABASES = 4  # kept for the next query, each with the columns of its stores
SAFE: dict[str, str | bool | int | float | list[str]] = {  # a statement reads nothing but the tables that it is given
    "enable_external_access": False,
    "python_enable_replacements": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "temp_directory": "",  # else what exceeds the memory is written to .tmp of the working directory
    "allowed_configs": ["memory_limit", "threads"],  # which are set for each statement
    "lock_configuration": True,
}
QUERIES = ("SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE")  # of syntax trees; others write
# What a statement may call of what does more than compute a value of its arguments. Other functions of tables read or
# write files, settings, pointers or text that is run; a test knows each of DuckDB's by name.
TABLE_FUNCTIONS = frozenset({"generate_series", "json_each", "json_tree", "range", "repeat", "repeat_row", "unnest"})
# Of functions of values: they write, wait, keep a state for the next statement, or tell settings and folders.
_REFUSED = (
    "currval current_connection_id current_query current_query_id current_setting current_transaction_id getvariable "
    "nextval pg_sleep setseed setval sleep_ms stats txid_current write_log"
)
REFUSED = frozenset(_REFUSED.split())
MAX_NUMBER = 1e15  # of a vector that is searched for: squares of greater ones may be infinite in float32
DAYS = (-719_162, 2_932_896)  # of the years 1 to 9999, which Python's dates have
# Types of DuckDB whose values a frame holds as they are, and those of which it does so within limits.
_HELD = (
    "bigint blob boolean decimal double enum float integer null smallint tinyint ubigint uinteger "
    "usmallint utinyint uuid varchar"
)
HELD = frozenset(_HELD.split())
LIMITED = {"date", "hugeint", "timestamp", "timestamp_ms", "timestamp_ns", "timestamp_s", "timestamp with time zone"}


@checked
def sql(
    data: Store | Mapping[str, Store],
    query: str,
    *,
    missing: Literal["error", "null"] = "error",
    model: str | Path | None = None,
    **frames: Any,
) -> pl.DataFrame:
    """Answer a SELECT statement of SQL about a store, in DuckDB's dialect; a frame.

    Tables: `occurrences` (the columns of `Store.table` without the text, and the vectors of layer l as `h<l>`, read
    only where they are needed), `sentences` (sentence, text and the fields of its document), `types` (word, count) and
    `labels` (column, label, count). Nothing else can be read: no file, and no variable of Python.

    Functions of vectors, besides those of DuckDB: `cos(a, b)`, `ip(a, b)` (inner product) and `l2(a, b)` (Euclidean
    distance), in float64; `vec('sat on the [bank]', 6)`, a word in a new sentence at layer 6, and `vec(17, 6)`, that of
    occurrence 17 (without a layer: the last one). Of groups: `centroid(h6)`, also written `avg(h6)`, and `selfsim(h6)`,
    the mean cosine of all pairs. A zero vector has cosine 0.

    Parameters
    ----------
    data : Store or mapping
        A store, or stores by the name of their schema, as in {"old": one}: the tables are then `old.occurrences`, ...
    query : str
        The statement.
    missing : str
        A store that is not finished is refused, or with "null" its missing vectors are NULL.
    model : str or Path
        Where the store's model is now, for `vec` of a text.
    **frames
        More tables by name: Polars frames, or what becomes one (Arrow, pandas, a dict of columns).

    Raises
    ------
    InvalidValueError
        For a statement that cannot be run, with the place.
    MissingRowsError, ModelError, MissingPackageError

    Examples
    --------
    >>> es.sql(store, "select * from near join sentences using (sentence)", near=es.neighbors(store, "bank"))
    """
    stores = dict(data) if isinstance(data, Mapping) else {DEFAULT: data}
    if not stores:
        raise InvalidValueError("no store is given: give one, or several by name")
    for store in stores.values():
        if missing == "error" and not store.finished:
            raise MissingRowsError(
                f"{store.path} is not finished: resume its extraction, or let missing vectors be NULL (missing='null')"
            )
    for name in (*stores, *frames):
        if not isinstance(name, str) or not name.isidentifier() or name.lower() in TABLES or name[:4].lower() == "_es_":
            raise InvalidValueError(f"{quoted(name)} cannot be the name of a schema or table: use letters, digits, _")
    _require_distinct(frames, "names of tables", "rename one")
    with _lock:
        return _database(tuple(stores), tuple(stores.values())).answer(query, frames, model)


_lock = RLock()


@lru_cache(DATABASES)
def _database(names: tuple[str, ...], stores: tuple[Store, ...]) -> Database:
    return Database(dict(zip(names, stores, strict=True)))


class Database:
    """The tables and functions of some stores in a database of DuckDB, in memory."""

    def __init__(self, stores: Mapping[str, Store]) -> None:
        try:
            import duckdb

            from embstore.database.tables import SLOT_BITS, register_functions
        except ImportError as error:
            raise MissingPackageError(f'SQL needs duckdb and pyarrow: pip install "embstore[sql]" ({error})') from None
        self._error = duckdb.Error
        self._tables: dict[str, Table] = {}
        self._nearest: dict[str, Table] = {}  # by the name that DuckDB knows, each filled anew by a search
        _require_distinct(stores, "names of stores", "rename one")
        self.stores = {name.lower(): store for name, store in stores.items()}
        self._model: str | Path | None = None
        self._failure: Exception | None = None
        self._encoded: dict[tuple[str, ...], list[float]] = {}
        self.connection = duckdb.connect(config=SAFE)
        self._relation = lru_cache(TEXTS)(self.connection.sql)  # as bound; DuckDB plans it again at each run
        weakref.finalize(self, self.connection.close)  # also at exit: its functions do not outlive Python
        slots = [(store, layer) for store in stores.values() for layer in store.layers]
        named = [(name, f"h{layer}") for name, store in self.stores.items() for layer in store.layers]
        self.handles = {column: slot << SLOT_BITS for slot, column in enumerate(named)}  # what rows are numbered from
        register_functions(self.connection, slots, self._guarded)
        kinds: Any = ["VARCHAR", "VARCHAR", "VARCHAR", "BIGINT"]
        self.connection.create_function("_es_vec", self._guarded(self._encode), kinds, "DOUBLE[]")
        for name, store in stores.items():
            self._create_tables(name, store)
        self._kept: Callable[[str, str], str] = lru_cache(TEXTS)(self._value)
        self.empty = self._tree("select 1")["statements"][0]["node"]
        self._threads = str(self._value("select current_setting(?)", "threads"))
        self._settings: dict[str, str] = {}

    def _create_tables(self, schema: str, store: Store) -> None:
        from embstore.database.tables import Table

        columns = [name for name in store.select(rows=[]).table().columns if name != "text"]
        columns += [name for name in ("token", "context_position", "document_position") if name not in columns]
        vectors = [f"h{layer}" for layer in store.layers]
        _require_distinct([*columns, *vectors], f"columns of {store.path}", "rename the label or field, or use select")
        firsts = store.select(rows=np.flatnonzero(np.diff(store.index.sentence, prepend=-1)))
        fields = ["sentence", "text", "document", *store.index.fields]
        names = ['"' + name.replace('"', '""') + '"' for name in store.index.labels]
        texts = ", ".join([*(f"{name}::varchar as {name}" for name in names), "null::varchar as _es_none"])
        labels = (
            f'select "column", label, count(*) as count from (unpivot (select {texts} from {schema}.{INDEX}) '
            'on columns(*) into name "column" value label) group by all'
        )
        self._tables[schema.lower()] = Table(store.select(), columns, self._guarded, layers=store.layers)
        self.connection.register(f"_es_{schema}", self._tables[schema.lower()])
        self.connection.register(f"_es_{schema}_index", self._tables[schema.lower()].index)
        self.connection.register(f"_es_{schema}_sentences", Table(firsts, fields, self._guarded).index)
        try:
            self.connection.execute(f"create schema if not exists {schema}")
            for view, text in {
                "occurrences": f"select * from _es_{schema}",
                INDEX: f"select * from _es_{schema}_index",
                "sentences": f"select * from _es_{schema}_sentences",
                "types": f"select word, count(*) as count from {schema}.{INDEX} group by word",
                "labels": labels,
            }.items():
                self.connection.execute(f"create view {schema}.{view} as {text}")
        except self._error:
            raise InvalidValueError(f"{schema!r} cannot be the name of a schema in DuckDB: choose another") from None
        one = schema.lower() if len(self.stores) == 1 else ""
        for name, owner in ((f"{schema}.vec", schema.lower()), ("vec", one)):
            call = f"_es_vec('{owner}', what::varchar, typeof(what), "
            if owner or DEFAULT not in self.stores:
                macro = f"create or replace macro {name}(what) as {call}-1), (what, layer) as {call}layer)"
                self.connection.execute(macro)

    def answer(self, query: str, frames: Mapping[str, Any], model: str | Path | None) -> pl.DataFrame:
        """Answer a statement; see `sql`."""
        import polars as pl

        if "\0" in query:  # at which DuckDB ends a text of the syntax tree
            raise InvalidValueError("the query holds the character NUL: write chr(0)")
        self._failure, self._model, self._made = None, model, 0
        self._encoded.clear()
        self._set("memory_limit", f"{settings().nbytes}B")
        given = []
        try:
            for name, frame in frames.items():
                try:
                    self.connection.register(name, pl.DataFrame(frame).to_arrow())
                except (TypeError, ValueError, pl.exceptions.PolarsError, self._error) as error:
                    reason = str(error).splitlines()[0]
                    raise InvalidValueError(f"{name} cannot be a table, give a frame of columns: {reason}") from None
                given.append(name)
            tree = self._tree(query)
            if tree["error"]:
                if tree["error_type"] == "not implemented":
                    raise InvalidValueError("SQL can only ask: the statement must be a SELECT")
                raise _refused(tree["error_message"], query[: int(tree.get("position") or 0)].count("\n") + 1)
            if len(tree["statements"]) != 1:
                raise InvalidValueError(f"the query has {len(tree['statements'])} statements: give one")
            statement = tree["statements"][0]["node"]
            _require_allowed(statement)
            try:
                rewrite(statement, self)
                text = self._written(statement)
                # one thread gives the functions of groups all groups at once
                self._set("threads", "1" if "_es_" in text.replace(INDEX, "") else self._threads)
                return _held(self._relation(text), self._error)
            except self._error:  # also where the columns are not what they seem: DuckDB says what is wrong
                if self._failure is not None:
                    raise self._failure from None
            try:
                self.connection.execute(f"explain {query}").fetchall()  # whose errors have their places
                return _held(self._relation(query), self._error)
            except self._error as error:
                raise self._failure or _refused(str(error)) from None
        finally:
            for name in given:
                self.connection.unregister(name)
                self._relation.cache_clear()

    def _value(self, statement: str, value: str) -> Any:
        return self.connection.execute(statement, [value]).fetchall()[0][0]

    def _set(self, name: str, value: str) -> None:
        """Change a setting of DuckDB where it has another value: a change costs it a millisecond."""
        if self._settings.get(name) != value:
            self.connection.execute(f"set {name} = '{value}'")
            self._settings[name] = value

    def _guarded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that notes the exception it raises, which DuckDB would report as a text."""

        @wraps(function)  # DuckDB counts the parameters
        def call(*values: Any) -> Any:
            try:
                return function(*values)
            except Exception as error:
                self._failure = error
                raise

        return call

    def _encode(self, schema: str, what: str, kind: str, layer: int) -> list[float]:
        key = (schema, what, kind, str(layer))
        if key not in self._encoded:
            if not schema:
                raise InvalidValueError(
                    f"there are {len(self.stores)} stores: say which, such as {next(iter(self.stores))}.vec(...)"
                )
            if kind not in ("VARCHAR", "INTEGER", "BIGINT"):
                raise InvalidValueError("vec takes a text with a [marked] word or the number of an occurrence")
            store = self.stores[schema]
            number = resolve_layer(layer, store.layers)
            if kind == "VARCHAR":
                (vector,) = encode_word(store, what, layers=[number], model=self._model)
            else:
                (vector,) = store.vectors([int(what)], layers=number)
            self._encoded[key] = np.asarray(vector, np.float64).tolist()
        return self._encoded[key]

    def parse(self, text: str) -> Node:
        """The syntax tree of an expression."""
        expression: Node = self._tree(f"select {text}")["statements"][0]["node"]["select_list"][0]
        return expression

    def text(self, expression: Node) -> str:
        """An expression as DuckDB writes it."""
        return self._written({**self.empty, "select_list": [expression]}).removeprefix("SELECT ")

    def column(self, node: Node) -> NDArray[Any] | None:
        """The only column of a statement that is part of another one; None where it cannot be run alone."""
        try:
            found = self.connection.execute(self._written(node)).fetchnumpy()
        except self._error:
            return None
        return np.asarray(next(iter(found.values()))) if len(found) == 1 else None

    def nearest(
        self, schema: str, column: str, metric: str, query: Any, k: int, rows: NDArray[np.int64] | None
    ) -> str | None:
        """The name of a table of the k nearest of some rows (None: all); None where DuckDB must sort them."""
        store = self.stores[schema or DEFAULT]
        vector = np.asarray(query)
        if not store.finished or vector.shape != (store.hidden_size,) or vector.dtype.kind != "f":
            return None
        if not (np.abs(vector) < MAX_NUMBER).all():  # NaN too
            return None
        options: Any = {"space": Space(metric), "rows": None if rows is None else np.sort(rows)}
        with config(device="cpu"):  # another one loads torch, which takes longer than most statements
            hits = exact_search(StoreVectors(store, int(column[1:])), vector, k=k, **options)
        table, name = self._tables[schema or DEFAULT], f"_es_{schema or DEFAULT}_nearest{self._made}"
        if name not in self._nearest:  # kept, as DuckDB takes a millisecond to register it
            self._nearest[name] = table.few()
            self.connection.register(name, self._nearest[name])
        self._nearest[name].hold(table, np.sort(hits.rows[0][hits.rows[0] >= 0]))
        self._made += 1
        return name

    def _tree(self, query: str) -> Node:
        try:
            tree: Node = json.loads(self._kept("select json_serialize_sql(?)", query))
        except RecursionError:
            raise InvalidValueError("the query is nested too deeply: write it with fewer operators in a row") from None
        return tree

    def _written(self, node: Node) -> str:
        tree = json.dumps({"error": False, "statements": [{"node": node, "named_param_map": []}]})
        return self._kept("select json_deserialize_sql(?::json)", tree)


def _require_allowed(statement: Node) -> None:
    """Raise InvalidValueError for a function or table that is not for statements."""
    for node in nodes(statement):
        kind = str(node.get("type"))
        if kind.endswith("_NODE") and kind not in QUERIES:
            raise InvalidValueError(f"SQL can only ask: {kind.split('_')[0]} is not allowed inside a SELECT either")
        name, is_table = function(node), kind == "TABLE_FUNCTION"
        if is_table:
            name = function(node["function"])
        elif kind == "BASE_TABLE" or "key" in node:  # of a table of WITH
            name = str(node.get("table_name") or node["key"]).lower()
            name = name if name[:4] == "_es_" or name == "pg_settings" else ""
        if name in REFUSED or name[:4] == "_es_" or name == "pg_settings" or (is_table and name not in TABLE_FUNCTIONS):
            raise InvalidValueError(f"{name} is not allowed in a query: it does more than to read the tables given")


def _held(relation: Any, error_type: type[Exception]) -> pl.DataFrame:
    """The rows of a relation as a frame. Raises InvalidValueError for values that a frame would hold as others."""
    import polars as pl
    import pyarrow as pa

    def is_held(kind: Any) -> bool:
        if kind.id == "map":
            (_, key), (_, value) = kind.children
            return key.id in HELD - {"blob", "decimal"} and value.id in HELD  # as JSON has no such keys
        if kind.id in ("list", "array", "struct"):
            return all(name == "size" or is_held(part) for name, part in kind.children)
        return kind.id in HELD | LIMITED

    advice = "cast it, as in x::varchar"
    for name, kind in zip(relation.columns, relation.types, strict=True):
        if not is_held(kind):
            raise InvalidValueError(f"the column {quoted(name)} is {kind}, which a frame does not hold: {advice}")
    reader, blocks, nbytes = relation.to_arrow_reader(BLOCK_ROWS), [], 0
    try:
        for block in reader:
            blocks.append(block)
            nbytes += block.nbytes
            if nbytes > settings().nbytes:
                raise InvalidValueError(
                    f"the result exceeds the memory of es.config ({settings().memory}): ask for less, or set it higher"
                )
    except OSError as error:  # what DuckDB says of an error after the first rows
        raise error_type(str(error)) from None
    names, table = relation.columns, pa.Table.from_batches(blocks, reader.schema)
    if len({name.lower() for name in names}) < len(names):
        names = relation.limit(0).pl().columns  # x_1 for the second x
    frame = pl.DataFrame(table.rename_columns(names))
    for column in frame:
        parts = [column]
        while parts:
            part = parts.pop()
            if isinstance(part.dtype, pl.List | pl.Array):
                parts.append(part.explode())
            elif isinstance(part.dtype, pl.Struct):
                parts += part.struct.unnest().get_columns()
            elif isinstance(part.dtype, pl.Date | pl.Datetime):
                days = part.cast(pl.Date).to_physical()
                if len(part) and not days.drop_nulls().is_between(*DAYS).all():
                    raise InvalidValueError(
                        f"the column {quoted(column.name)} has a date outside the years 1 to 9999: {advice}"
                    )
            elif isinstance(part.dtype, pl.Decimal):
                ends: list[Any] = [part.min(), part.max()]
                if any(not -(10**38) < (end or 0) < 10**38 for end in ends):
                    raise InvalidValueError(f"the column {quoted(column.name)} has more than 38 digits: {advice}")
    return frame


def _require_distinct(names: Iterable[str], what: str, hint: str) -> None:
    """Raise InvalidValueError for names that are one in SQL, which does not distinguish case."""
    known: dict[str, str] = {}
    for name in names:
        if name.lower() in known:
            raise InvalidValueError(f"the {what} {known[name.lower()]!r} and {name!r} are one in SQL: {hint}")
        known[name.lower()] = name


def _refused(message: str, line: int | None = None) -> InvalidValueError:
    """DuckDB's error as one line, with the line of the query that it is about."""
    found = re.search(r"^LINE ([0-9]+): ", message, re.MULTILINE)
    place = f" (line {line or found[1]})" if line or found else ""  # type: ignore[index]
    text = re.sub(r"^[A-Z][A-Za-z ]+ Error: ", "", message.splitlines()[0])
    if (columns := re.search(r"^Candidate bindings: (.+)", message, re.MULTILINE)) is not None:
        text += f" Columns like it are {columns[1]}"
    elif text.startswith("Table with name"):
        text += f" Tables of a store are {', '.join(TABLES)}"
    return InvalidValueError(f"the query cannot be run{place}: {text}")
