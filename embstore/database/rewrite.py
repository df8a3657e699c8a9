"""What is done to a statement before DuckDB runs it.

Groups are given the rows of their vectors, nearest rows come from our search, and what needs no vectors has a table
without them.

A statement is changed as DuckDB's own syntax tree. What is not recognized stays as it was written, and gives the same
result: its vectors then go through DuckDB as lists of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

Node = dict[str, Any]
DEFAULT = "main"  # DuckDB's schema for tables without one
INDEX = "_es_index"  # a view of each schema: `occurrences` without vectors
TABLES = ("occurrences", "types", "sentences", "labels")
METRICS = {"cos": "cosine", "ip": "ip", "l2": "l2"}  # function -> metric of a search
GROUPS = {"selfsim": "selfsim", "centroid": "centroid", "avg": "centroid", "mean": "centroid"}
MAX_K = 10_000  # a longer list of nearest rows is sorted by DuckDB


class Source(NamedTuple):
    """A table of occurrences in FROM: the name it goes by, its schema, and its node."""

    name: str
    schema: str
    table: Node

    @property
    def row(self) -> str:
        """The column `occurrence` of the table as SQL; quotes in the table's name are doubled."""
        return '"' + self.name.replace('"', '""') + '".occurrence'


def rewrite(statement: Node, engine: Any) -> None:
    """Change a statement in place, by a `Database`; one that names a table like one of ours is left alone."""
    parts = list(nodes(statement))
    named = {entry["key"].lower() for node in parts for entry in node.get("cte_map", {}).get("map", ())}
    if named & set(TABLES):
        return
    selects = [node for node in parts if node.get("type") == "SELECT_NODE"]
    for select in reversed(selects):  # those inside others first, as their text is run
        _group(select, engine)
        _search(select, engine)
    _narrow(statement, engine)


def _narrow(statement: Node, engine: Any) -> None:
    """Have a statement that needs no vectors read a table without them: there DuckDB tests conditions, and faster."""
    tables = [node for node in nodes(statement) if str(node.get("table_name")).lower() == "occurrences"]
    needed = {(table["alias"] or "occurrences").lower() for table in tables}  # alone: all columns of its rows
    needed |= {column for _, column in engine.handles}
    for node in nodes(statement):  # what else needs them fails there, and is run as it was written
        all_columns = node.get("class") == "STAR" or node.get("ref_type") == "NATURAL"
        if all_columns or node.get("column_names", [""])[-1].lower() in needed:
            return
    for table in tables:
        path = [*table["qualified_name"]["path"][:-1], INDEX]
        table.update(alias=table["alias"] or table["table_name"], table_name=INDEX, qualified_name={"path": path})


def _group(select: Node, engine: Any) -> None:
    """Have functions of the vectors of groups be given the rows of the vectors."""
    sources = _sources(select["from_table"])
    for column in select["select_list"]:  # named as DuckDB would have named it
        if not column["alias"] and GROUPS.keys() & {function(node) for node in nodes(column, subqueries=False)}:
            column["alias"] = engine.text(column)
    for part in ("select_list", "having", "qualify", "modifiers"):
        for node in list(nodes(select[part], subqueries=False)):
            name = function(node)
            if name not in GROUPS or len(node["arguments"]) != 1 or node["distinct"]:
                continue
            found = _vectors(node["arguments"][0]["expression"], sources, engine)
            if found is not None:
                source, handle = found
                call = engine.parse(f"_es_{GROUPS[name]}(list({source.row} + {handle}))")
                call["arguments"][0]["expression"]["filter"] = node["filter"]
                call["alias"] = node["alias"]
                node.clear()
                node.update(call)


def _search(select: Node, engine: Any) -> None:
    """Find the rows of ORDER BY cos(...) DESC LIMIT k, and put a table of these in the place of all occurrences."""
    sources, bounds, columns = _sources(select["from_table"]), _bounds(select["modifiers"]), select["select_list"]
    source = sources[0] if len(sources) == 1 else None
    parts = nodes([columns, select["modifiers"]], subqueries=False)
    if (
        source is None
        or source.table is not select["from_table"]
        or bounds is None
        or any(select[part] for part in ("group_expressions", "group_sets", "having", "qualify", "sample"))
        or any(node.get("class") == "WINDOW" or function(node) == "unnest" for node in parts)
    ):
        return
    order = select["modifiers"][0]["orders"][0]
    score = order["expression"]
    if score["class"] == "COLUMN_REF":  # the name of a column of the result
        named = [column for column in columns if [column["alias"].lower()] == [*map(str.lower, score["column_names"])]]
        score = named[0] if len(named) == 1 else score
    name = function(score)
    if name not in METRICS or (order["type"] == "DESCENDING") != (name != "l2"):
        return
    sides = [argument["expression"] for argument in score["arguments"]]
    for vector, query in (sides, sides[::-1]) if len(sides) == 2 else ():
        found = _vectors(vector, sources, engine)
        if found is not None and _vectors(query, sources, engine) is None:
            given = engine.column({**engine.empty, "select_list": [query]})
            row = engine.parse(source.row)
            rows = None
            if select["where_clause"] is not None:
                rows = engine.column({**select, "select_list": [row], "modifiers": []})
            if given is None or len(given) != 1 or (rows is None and select["where_clause"] is not None):
                return  # the query depends on the row around it
            table = engine.nearest(source.schema, vector["column_names"][-1], METRICS[name], given[0], bounds, rows)
            if table is not None:
                select["where_clause"] = None
                path = [*source.table["qualified_name"]["path"][:-1], table]
                source.table.update(table_name=table, qualified_name={"path": path}, alias=source.name)
                last = {"type": "ASCENDING", "null_order": "ORDER_DEFAULT", "expression": row}
                select["modifiers"][0]["orders"].append(last)
            return


def _sources(table: Node) -> list[Source | None]:
    """Return the tables of FROM, None for one that is not of occurrences but may have any columns."""
    if table["type"] == "JOIN":
        return [*_sources(table["left"]), *_sources(table["right"])]
    if table["type"] != "BASE_TABLE" or table["catalog_name"] or table["column_name_alias"] or table.get("sample"):
        return [None]
    name = table["table_name"]
    if name.lower() != "occurrences":
        return [] if name.lower() in TABLES else [None]
    return [Source(table["alias"] or name, table["schema_name"].lower(), table)]


def _vectors(node: Node, sources: list[Source | None], engine: Any) -> tuple[Source, int] | None:
    """Return the table of a column of vectors, and what its occurrences are numbered from; None for another one."""
    if node["class"] != "COLUMN_REF":
        return None
    *qualifiers, column = node["column_names"]
    if not qualifiers:
        known = sources
    else:
        known = [each for each in sources if each is not None and each.name.lower() == qualifiers[-1].lower()]
    if len(known) != 1 or known[0] is None:
        return None
    handle = engine.handles.get((known[0].schema or DEFAULT, column.lower()))
    return None if handle is None else (known[0], handle)


def function(node: Node) -> str:
    """Return the name of the function that an expression calls; "" for any other."""
    return str(node["function_name"]).lower() if node.get("class") == "FUNCTION" else ""


def _bounds(modifiers: list[Node]) -> int | None:
    """Return how many rows ORDER BY of one expression and LIMIT and OFFSET ask for; None where it is not plain."""
    if [modifier["type"] for modifier in modifiers] != ["ORDER_MODIFIER", "LIMIT_MODIFIER"]:
        return None
    (order, *others), limit = modifiers[0]["orders"], modifiers[1]
    if others or limit["limit_type"] != "ROW_COUNT" or order["null_order"] not in ("ORDER_DEFAULT", "NULLS_LAST"):
        return None
    parts = [part for part in (limit["limit"], limit["offset"]) if part is not None]
    texts = [(part.get("literal") or {}).get("text", "") for part in parts]
    count = sum(map(int, texts)) if all(map(str.isdecimal, texts)) else 0
    return count if 0 < count <= MAX_K else None


def nodes(value: Any, *, subqueries: bool = True) -> Iterator[Node]:
    """Yield all objects of a syntax tree, each before those inside it; without those in subqueries, if so asked."""
    waiting = [value]
    while waiting:  # not by recursion, as sums of a thousand terms are as deep
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            if part.get("class") != "SUBQUERY" or subqueries:
                waiting += reversed(part.values())
        elif isinstance(part, list):
            waiting += reversed(part)
