"""The command that builds, lists and removes the search indexes of a store."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

import embstore as es
import embstore_cli.options as opt
from embstore_cli.output import print_json, print_table

Kind = Annotated[
    Literal["sketch", "ivf", "ivfpq", "hnsw"],
    opt.option("KIND", "sketch (exact, reads a tenth), ivf, ivfpq (smallest) or hnsw (fastest, slow to build)."),
]


def index(
    store: opt.StorePath,
    *,
    layers: opt.Layers = "last",
    kind: Kind = "sketch",
    metric: opt.Metric = "cosine",
    list_: Annotated[bool, typer.Option("--list", help="List the store's indexes; build none.")] = False,
    remove: Annotated[str | None, opt.option("NAME", "Remove this index; build none.")] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Build a search index of a layer, stored next to the store.

    An index is refused once its store has changed, until it is built again.
    """
    opened = es.open(store)
    if remove is not None:
        es.analysis.remove_index(opened, remove)
    built = None
    if not list_ and remove is None:
        built = es.analysis.build_index(opened, opt.layers_of(layers), kind=kind, metric=metric).name
    states = [state for state in es.analysis.list_indexes(opened) if built in (None, state.name)]
    if as_json:
        print_json([_described(state) for state in states])
        return
    if not states:
        print(f"{store} has no index")
    shown = ("name", "state", "layer", "kind", "metric", "n_rows", "nbytes")
    print_table([{name: value for name, value in _described(state).items() if name in shown} for state in states])
    for state in states:
        if state.reason:
            print(state.reason)


def _described(state: Any) -> dict[str, Any]:
    names = ("layer", "kind", "metric", "n_rows", "nbytes", "parameters") if state.info else ()
    described = {"name": state.name, "state": state.state, "reason": state.reason}
    return described | {name: getattr(state.info, name) for name in names}
