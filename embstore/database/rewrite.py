"""What is done to a statement before DuckDB runs it: vectors by handle, and the nearest rows by our own search.

A statement is changed as DuckDB's own syntax tree. A pattern that is not recognized stays as it was written, and gives
the same result: its vectors then go through DuckDB as lists of numbers.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embstore.database.functions import AGGREGATES, METRICS, SLOT_BITS
from embstore.errors import EmbstoreError, InvalidValueError

Node = dict[str, Any]
TABLE = "occurrences"
TABLES = (TABLE, "types", "sentences", "labels")
MAX_K = 10_000  # a longer list of nearest rows is sorted by DuckDB


class Engine(Protocol):
    """What a rewriter asks for."""

    aggregates: frozenset[str]  # the names of DuckDB's functions of groups

    def store_of(self, schema: str) -> str | None: ...
    def slot(self, store: str, column: str) -> int | None: ...
    def size(self, handle: int) -> int: ...
    def encode(self, schema: str, arguments: list[Any]) -> int: ...
    def constant(self, vector: NDArray[np.floating]) -> int: ...
    def parse(self, text: str) -> Node: ...
    def text(self, expression: Node) -> str: ...
    def run(self, node: Node) -> NDArray[Any]: ...
    def narrowed(self, name: str, conditions: list[tuple[str, list[Any]]]) -> str | None: ...
    def nearest(
        self, slot: int, query: int, name: str, k: int, rows: NDArray[np.int64] | None
    ) -> NDArray[np.int64] | None: ...


@dataclass(frozen=True)
class Source:
    """A table in FROM: the names it goes by, the store whose occurrences it has, whether it is ours, and its node."""

    names: tuple[tuple[str, ...], ...]
    store: str | None
    is_ours: bool
    table: Node


class Rewriter:
    """Changes one statement in place. `pushdown`: with False only what gives a name to the functions is changed."""

    def __init__(self, engine: Engine, *, pushdown: bool) -> None:
        self.engine = engine
        self.pushdown = pushdown
        # By the id of an expression, which is held so that the id stays its own:
        self._constants: dict[int, tuple[Node, int]] = {}  # the handle
        self._scores: dict[int, tuple[Node, str, int, int]] = {}  # the function, the slot and the query
        self._subqueries: dict[str, int | None] = {}

    def rewrite(self, statement: Node) -> None:
        """Change a statement; one that names a table of its own like one of ours is left alone."""
        names = {entry["key"].lower() for each in _nodes(statement) for entry in each.get("cte_map", {}).get("map", ())}
        self.pushdown = self.pushdown and not names & set(TABLES)
        self._narrows = self.pushdown and not any(len(each.get("column_names", ())) > 2 for each in _nodes(statement))
        self._visit(statement, [])

    def _visit(self, value: Any, scopes: list[list[Source]]) -> None:
        """Change everything in a part of the tree, from the inside out."""
        if isinstance(value, list):
            for each in value:
                self._visit(each, scopes)
        elif isinstance(value, dict):
            if value.get("type") == "SELECT_NODE":
                self._visit_select(value, scopes)
                return
            if value.get("class") == "FUNCTION":
                self._visit_function(value, scopes)
                return
            for name, each in value.items():
                self._visit(each, [] if name == "cte_map" else scopes)

    def _visit_select(self, node: Node, scopes: list[list[Source]]) -> None:
        self._name_columns(node)
        sources = list(self._sources(node["from_table"]))
        single = sources[0] if len(sources) == 1 and sources[0].store is not None else None
        simple = single is not None and self._is_simple(node)
        if simple:
            self._resolve_order(node)
        inner = [*scopes, sources]
        for name, each in node.items():
            self._visit(each, [] if name == "cte_map" else inner)
        if len(sources) > 1 and self.pushdown:
            node["select_list"] = [self._late(each, inner) for each in node["select_list"]]
        is_filtered = node["where_clause"] is not None and not node["sample"]  # DuckDB samples before WHERE
        if self._narrows and is_filtered and _keeps_rows(node["from_table"]):
            self._narrow(node["where_clause"], sources)
        if simple and single is not None:
            self._order(node, single)

    def _name_columns(self, node: Node) -> None:
        """Name the columns that will change as DuckDB would have named them."""
        ours = {*METRICS, *AGGREGATES, "avg", "mean", "vec"}
        for each in node["select_list"]:
            names = {one["function_name"].lower() for one in _expressions(each) if one["class"] == "FUNCTION"}
            if not each["alias"] and names & ours:
                each["alias"] = self.engine.text(each)

    def _sources(self, table: Node | None) -> Iterator[Source]:
        """The tables of FROM."""
        if table is None or table["type"] == "EMPTY":
            return
        if table["type"] == "JOIN":
            yield from self._sources(table["left"])
            yield from self._sources(table["right"])
            return
        names: list[tuple[str, ...]] = [(table["alias"].lower(),)] if table.get("alias") else []
        store, is_ours = None, False
        if table["type"] == "BASE_TABLE" and not table["catalog_name"]:
            schema, name = table["schema_name"].lower(), table["table_name"].lower()
            names = names or [(name,), (schema, name)]
            is_ours = name in TABLES and not table["column_name_alias"]
            store = self.engine.store_of(schema) if is_ours and name == TABLE else None
        yield Source(tuple(names), store, is_ours, table)

    def _is_simple(self, node: Node) -> bool:
        """Whether rows are sorted and each is one occurrence: no groups, nothing that sees other rows."""
        kinds = [modifier["type"] for modifier in node["modifiers"]]
        if kinds not in (["ORDER_MODIFIER"], ["ORDER_MODIFIER", "LIMIT_MODIFIER"]) or node["from_table"]["sample"]:
            return False
        if any(node[part] for part in ("group_expressions", "group_sets", "having", "qualify", "sample")):
            return False
        if any(each["expression"]["class"] == "STAR" for each in node["modifiers"][0]["orders"]):  # ORDER BY ALL
            return False
        if any(_is_shadowed(each, node["select_list"]) for each in node["select_list"]):
            return False
        many = {*self.engine.aggregates, *AGGREGATES, "unnest"}
        return not any(
            each["class"] == "WINDOW" or (each["class"] == "FUNCTION" and each["function_name"].lower() in many)
            for each in _expressions([node["select_list"], node["modifiers"]])
        )

    def _resolve_order(self, node: Node) -> None:
        """Write expressions in ORDER BY in place of the names and numbers of columns of the result."""
        for order in node["modifiers"][0]["orders"]:
            expression = order["expression"]
            number = None
            if expression["class"] == "COLUMN_REF" and len(expression["column_names"]) == 1:
                names = [each["alias"].lower() for each in node["select_list"]]
                name = expression["column_names"][0].lower()
                number = names.index(name) if names.count(name) == 1 else None
            elif expression["class"] == "CONSTANT" and expression["literal"].get("kind") == "INTEGER":
                number = int(expression["literal"]["text"]) - 1
                if any(each["class"] == "STAR" for each in node["select_list"]):
                    number = None
            if number is not None and 0 <= number < len(node["select_list"]):
                order["expression"] = {**copy.deepcopy(node["select_list"][number]), "alias": ""}

    def _slot(self, expression: Node, scopes: list[list[Source]]) -> tuple[int, list[str]] | None:
        """The slot of a vector column, and the qualifiers of its table; None for any other expression."""
        if expression.get("class") != "COLUMN_REF":
            return None
        *qualifiers, column = expression["column_names"]
        named = tuple(each.lower() for each in qualifiers)
        for sources in reversed(scopes):
            if named:
                found = [source for source in sources if named in source.names]
                if found:
                    chosen = found[0].store
                    return self._slot_of(chosen, column, qualifiers)
            elif sources:
                known = [source for source in sources if source.store is not None]
                if len(known) != 1 or not all(source.is_ours for source in sources):
                    return None
                return self._slot_of(known[0].store, column, [known[0].names[0][-1]])
        return None

    def _slot_of(self, store: str | None, column: str, qualifiers: list[str]) -> tuple[int, list[str]] | None:
        slot = None if store is None else self.engine.slot(store, column.lower())
        return None if slot is None else (slot, qualifiers)

    def _handle(self, expression: Node, scopes: list[list[Source]]) -> Node | None:
        """The expression of the handle of a vector column or constant; None for any other expression."""
        found = self._slot(expression, scopes)
        if found is not None:
            slot, qualifiers = found
            row = ".".join(f'"{each}"' for each in [*qualifiers, "occurrence"])
            return self.engine.parse(f"({row} + {slot << SLOT_BITS})")
        number = self._constant(expression)
        return None if number is None else self.engine.parse(str(number))

    def _constant(self, expression: Node) -> int | None:
        """The handle of a vector that is the same for all rows: `vec(...)`, or a query that can be run by itself."""
        if id(expression) in self._constants:
            return self._constants[id(expression)][1]
        if not self.pushdown or expression.get("class") != "SUBQUERY" or expression["subquery_type"] != "SCALAR":
            return None
        text = json.dumps(expression["subquery"]["node"])
        if text not in self._subqueries:
            try:
                found = self.engine.run(expression["subquery"]["node"])
            except EmbstoreError:
                return None  # it depends on the row around it
            vector: Any = found[0] if len(found) == 1 else None
            is_vector = isinstance(vector, np.ndarray) and vector.dtype.kind == "f"
            self._subqueries[text] = self.engine.constant(vector) if is_vector else None
        return self._subqueries[text]

    def _visit_function(self, node: Node, scopes: list[list[Source]]) -> None:
        name, arguments = node["function_name"].lower(), node["arguments"]
        if name == "vec":
            literals = [each["expression"].get("literal") for each in arguments]
            if not literals or None in literals:
                raise InvalidValueError("vec takes constants: a text or the number of an occurrence, and a layer")
            handle = self.engine.encode(node["schema"].lower(), literals)
            self._replace(node, f"_es_vector_{self.engine.size(handle)}({handle})")
            self._constants[id(node)] = node, handle
            return
        for each in (arguments, node["filter"], node["order_bys"]):
            self._visit(each, scopes)
        if name in METRICS and len(arguments) == 2 and not node["schema"]:
            self._visit_score(node, name, scopes)
        elif name in (*AGGREGATES, "avg", "mean") and len(arguments) == 1 and not node["distinct"]:
            vector = arguments[0]["expression"]
            if self._slot(vector, scopes) is not None:
                name = name if name in AGGREGATES else "centroid"
                chosen = node["filter"]
                self._replace(node, f"_es_{name}(list(0))" if self.pushdown else f"_es_{name}_of(list(0::DOUBLE[]))")
                members = node["arguments"][0]["expression"]
                members["filter"] = chosen
                if self.pushdown:
                    members["arguments"][0]["expression"] = self._handle(vector, scopes)
                else:
                    members["arguments"][0]["expression"]["child"] = vector

    def _visit_score(self, node: Node, name: str, scopes: list[list[Source]]) -> None:
        """Compare handles in place of vectors, the column first."""
        arguments = node["arguments"]
        if self._slot(arguments[0]["expression"], scopes) is None:
            arguments.reverse()
        found = self._slot(arguments[0]["expression"], scopes)
        if found is None:
            arguments.reverse()
        elif self.pushdown:
            handles = [self._handle(each["expression"], scopes) for each in arguments]
            if None not in handles:
                query = self._constant(arguments[1]["expression"])
                self._replace(node, f"_es_{name}(0, 0)")
                for argument, handle in zip(node["arguments"], handles, strict=True):
                    argument["expression"] = handle
                if query is not None:
                    self._scores[id(node)] = node, name, found[0], query

    def _replace(self, node: Node, text: str) -> None:
        """Put an expression in the place of another one, under its name."""
        alias = node["alias"]
        node.clear()
        node.update(self.engine.parse(text), alias=alias)

    def _late(self, expression: Node, scopes: list[list[Source]]) -> Node:
        """A vector column in the result of a join as a function of its handle, so that only joined rows are read."""
        found = self._slot(expression, scopes)
        if found is None:
            return expression
        late = self.engine.parse(f"_es_vector_{self.engine.size(found[0] << SLOT_BITS)}(0)")
        late["arguments"][0]["expression"] = self._handle(expression, scopes)
        return {**late, "alias": expression["alias"] or expression["column_names"][-1]}

    def _narrow(self, where: Node, sources: list[Source]) -> None:
        """Have tables hold only rows that WHERE may keep, found in the index; WHERE stays as it is."""
        for source in sources:
            conditions = []
            for column, literals in _equalities(where):
                *qualifiers, name = column
                if tuple(qualifiers) in source.names or (not qualifiers and len(sources) == 1):
                    conditions.append((name, literals))
            if source.store is not None and conditions:
                narrowed = self.engine.narrowed(source.store, conditions)
                if narrowed is not None:
                    path = [*source.table["qualified_name"]["path"][:-1], narrowed]
                    source.table.update(table_name=narrowed, qualified_name={"path": path}, alias=source.names[0][-1])

    def _order(self, node: Node, source: Source) -> None:
        """Sort equal rows by occurrence; where only some rows are asked for, find them before vectors are read."""
        orders, row = node["modifiers"][0]["orders"], f'"{source.names[0][-1]}".occurrence'
        first, n_orders = orders[0], len(orders)
        orders.append({"type": "ASCENDING", "null_order": "ORDER_DEFAULT", "expression": self.engine.parse(row)})
        bounds = _bounds(node["modifiers"][-1])
        if not self.pushdown or bounds is None:
            return
        limit, offset = bounds
        score = self._scores.get(id(first["expression"]))
        descending = first["type"] == "DESCENDING"
        parts: Node = {"select_list": [self.engine.parse(row)], "modifiers": []}
        if score is not None and n_orders == 1 and descending == (score[1] != "l2"):
            if first["null_order"] not in ("ORDER_DEFAULT", "NULLS_LAST") or not 0 < limit + offset <= MAX_K:
                return
            _, name, slot, query = score
            candidates = None if node["where_clause"] is None else self._rows({**node, **parts})
            if candidates is None and node["where_clause"] is not None:
                return
            rows = self.engine.nearest(slot, query, name, limit + offset, candidates)
            rows = None if rows is None else rows[offset:]
        elif self._reads(node["select_list"], source) and not self._reads(orders, source):
            rows = self._rows({**node, **parts, "modifiers": node["modifiers"]})
        else:
            return
        if rows is not None:
            listed = ", ".join(map(str, rows.tolist()))
            node["where_clause"] = self.engine.parse(f"{row} in ({listed})" if len(rows) else "false")
            node["modifiers"][1]["offset"] = None

    def _rows(self, node: Node) -> NDArray[np.int64] | None:
        """The rows that a statement about the index selects; None where it depends on the row around it."""
        try:
            return self.engine.run(node)
        except EmbstoreError:
            return None

    def _reads(self, value: Any, source: Source) -> bool:
        """Whether expressions read vectors of a table."""
        return any(
            each["class"] == "STAR"
            or (each["class"] == "FUNCTION" and each["function_name"].startswith("_es_"))
            or self._slot(each, [[source]]) is not None
            for each in _expressions(value)
        )


def _is_shadowed(column: Node, select_list: list[Node]) -> bool:
    """Whether another column of the result has the name of this one in its table, which it would mean in ORDER BY."""
    names = {each["alias"].lower() for each in select_list if each is not column}
    return column["class"] == "COLUMN_REF" and column["column_names"][-1].lower() in names


def _keeps_rows(table: Node) -> bool:
    """Whether rows that WHERE leaves out may be missing from the tables of FROM."""
    if table["type"] == "JOIN":
        known = table["join_type"] in ("INNER", "LEFT", "RIGHT", "FULL") and table["ref_type"] in ("REGULAR", "CROSS")
        return known and _keeps_rows(table["left"]) and _keeps_rows(table["right"])
    return not table.get("sample")


def _equalities(where: Node) -> Iterator[tuple[tuple[str, ...], list[Node]]]:
    """The columns that WHERE demands to be one of some literals, in lower case."""
    if where["type"] == "CONJUNCTION_AND":
        for each in where["children"]:
            yield from _equalities(each)
        return
    if where["type"] == "COMPARE_EQUAL":
        sides = [where["left"], where["right"]]
        column, *others = sides if sides[0]["class"] == "COLUMN_REF" else sides[::-1]
    elif where["type"] == "COMPARE_IN":
        column, *others = where["children"]
    else:
        return
    if column["class"] == "COLUMN_REF" and all(each["class"] == "CONSTANT" and each.get("literal") for each in others):
        yield tuple(name.lower() for name in column["column_names"]), [each["literal"] for each in others]


def _bounds(modifier: Node) -> tuple[int, int] | None:
    """The numbers of LIMIT and OFFSET; None where they are not plain numbers."""
    if modifier["type"] != "LIMIT_MODIFIER" or modifier["limit_type"] != "ROW_COUNT":
        return None
    numbers = []
    for part in (modifier["limit"], modifier["offset"] or {"literal": {"kind": "INTEGER", "text": "0"}}):
        literal = (part or {}).get("literal")
        if literal is None or literal.get("kind") != "INTEGER":
            return None
        numbers.append(int(literal["text"]))
    return numbers[0], numbers[1]


def _nodes(value: Any) -> Iterator[Node]:
    """All objects of a syntax tree."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _nodes(each)


def _expressions(value: Any) -> Iterator[Node]:
    """All expressions of a part of a syntax tree, without those of its subqueries."""
    if isinstance(value, dict):
        if "class" in value:
            yield value
        if value.get("class") == "SUBQUERY":
            return
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _expressions(each)
