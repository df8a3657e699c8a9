"""The command that builds, lists, measures and removes the search indexes of a store."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import embstore as es
import embstore_cli.options as opt
from embstore.errors import InvalidValueError
from embstore_cli.output import Output, print_json, print_table

Kind = Annotated[
    str,
    opt.option(
        "KIND",
        "sketch (exact, reads a tenth), flat (exact), ivf, rabitq, ivfpq (smallest), hnsw (fastest, slow to build), or "
        "a string of faiss's index_factory; auto chooses by rows and memory.",
    ),
]


def index(
    store: opt.StorePath,
    *,
    layers: opt.Layers = "last",
    kind: Kind = "auto",
    metric: opt.Metric = "cosine",
    centered: opt.Centered = False,
    components: opt.Components = 0,
    name: Annotated[str | None, opt.option("NAME", "Its name; by default made of the layer, kind and space.")] = None,
    recall: Annotated[bool, typer.Option("--recall", help="Measure recall and speed against exact search.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the store's indexes; build none.")] = False,
    remove: Annotated[str | None, opt.option("NAME", "Remove this index; build none.")] = None,
    output: Output,
) -> None:
    """Build a search index of a layer, stored next to the store.

    An index is refused once its store has changed, until it is built again.
    """
    if output.out is not None and not recall:
        raise InvalidValueError("--out FILE is for the table of --recall: give that too")
    opened = es.open(store)
    if remove is not None:
        es.analysis.remove_index(opened, remove)
    if list_ or remove is not None:
        _print_list(store, es.analysis.list_indexes(opened), output.as_json)
        return
    space: dict[str, Any] = {"metric": metric, "centered": centered, "n_components": components}
    built = es.analysis.build_index(opened, opt.layers_of(layers), kind=kind, name=name, **space)
    state = next(each for each in es.analysis.list_indexes(opened) if each.name == built.name)
    described = _described(state)
    if recall:
        table = es.analysis.measure_recall(built)
        described["recall"] = table.to_dicts()
        Output(output.out).deliver(table)
    if output.as_json:
        print_json([described])
        return
    size = f"{described['n_rows']:,} rows, {described['nbytes'] / 2**20:,.1f} MiB"
    print(f"{built.path}: {described['factory']} over layer {built.layer}, {described['metric']}, {size}")
    rows = [{f"recall@{row['k']}": row["recall"], **row} for row in described.get("recall", [])]
    print_table([{key: value for key, value in row.items() if key not in ("k", "recall")} for row in rows])


def _described(state: Any) -> dict[str, Any]:
    described: dict[str, Any] = {"name": state.name, "state": state.state, "reason": state.reason}
    if state.info is None:
        return described
    settings = state.info.settings
    return described | {
        "layer": settings.layer,
        "kind": settings.kind,
        "factory": settings.factory,
        "metric": settings.metric,
        "centered": settings.centered,
        "n_components": settings.n_components,
        "n_rows": settings.n_rows,
        "nbytes": state.info.nbytes,
        "parameters": dict(state.info.parameters),
    }


def _print_list(path: str, states: list[Any], as_json: bool) -> None:
    described = [_described(state) for state in states]
    if as_json:
        print_json(described)
        return
    if not described:
        print(f"{path} has no index")
    rows = []
    for each in described:
        row = {name: each.get(name) for name in ("name", "state", "layer", "factory", "metric")}
        row |= {"components": each.get("n_components"), "rows": each.get("n_rows")}
        row["MiB"] = each["nbytes"] / 2**20 if "nbytes" in each else None
        if each.get("centered") and not each["n_components"]:
            row["components"] = "mean only"
        rows.append(row)
    print_table(rows)
    for state in states:
        if state.state in ("stale", "damaged"):
            print(state.reason)
