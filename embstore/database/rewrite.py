"""What is done to a statement before DuckDB runs it: functions of groups are given the rows of the vectors.

A statement is changed as DuckDB's own syntax tree. What is not recognized stays as it was written, and gives the same
result: its vectors then go through DuckDB as lists of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

Node = dict[str, Any]
DEFAULT = "main"  # DuckDB's schema for tables without one
TABLES = ("occurrences", "types", "sentences", "labels")
GROUPS = {"selfsim": "selfsim", "centroid": "centroid", "avg": "centroid", "mean": "centroid"}


class Source(NamedTuple):
    """A table of occurrences in FROM: the name it goes by, and its schema."""

    name: str
    schema: str


def rewrite(statement: Node, engine: Any) -> None:
    """Change a statement in place, by a `Database`; one that names a table like one of ours is left alone."""
    named = {entry["key"].lower() for node in nodes(statement) for entry in node.get("cte_map", {}).get("map", ())}
    if named & set(TABLES):
        return
    selects = [node for node in nodes(statement) if node.get("type") == "SELECT_NODE"]
    for select in reversed(selects):  # those inside others first, as their text is run
        _group(select, engine)


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
                call = engine.parse(f'_es_{GROUPS[name]}(list("{source.name}".occurrence + {handle}))')
                call["arguments"][0]["expression"]["filter"] = node["filter"]
                call["alias"] = node["alias"]
                node.clear()
                node.update(call)


def _sources(table: Node) -> list[Source | None]:
    """Return the tables of FROM, None for one that is not of occurrences but may have any columns."""
    if table["type"] == "JOIN":
        return [*_sources(table["left"]), *_sources(table["right"])]
    if table["type"] != "BASE_TABLE" or table["catalog_name"] or table["column_name_alias"] or table.get("sample"):
        return [None]
    name = table["table_name"]
    if name.lower() != "occurrences":
        return [] if name.lower() in TABLES else [None]
    return [Source(table["alias"] or name, table["schema_name"].lower())]


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
