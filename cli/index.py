"""The command that builds, lists, measures and removes the search indexes of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import embstore as es
from embstore.errors import InvalidValueError
from embstore_cli.help import Command
from embstore_cli.output import AsJson, Out, print_json, print_table, require_out, write_table
from embstore_cli.progress import progress_bar
from embstore_cli.sizes import nbytes_of
from embstore_cli.store import StorePath

if TYPE_CHECKING:
    from embstore.analysis.neighbors.indexes import IndexState

MEASURING = "Measuring"


def add_to(app: typer.Typer) -> None:
    example = "Example: embstore index ewt.zarr --layer 6 --kind ivf --recall"
    app.command("index", cls=Command, epilog=example)(index)


def index(
    store: StorePath,
    layer: Annotated[
        int | None, typer.Option("--layer", "-l", metavar="N", help="The layer; needed where several are stored.")
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="flat (exact), ivf, ivfpq (smallest), hnsw (fastest, slow to build), or a string of faiss's "
            "index_factory; auto chooses by rows and memory.",
        ),
    ] = "auto",
    metric: Annotated[
        Literal["cosine", "ip", "l2"],
        typer.Option(metavar="NAME", help="cosine; ip, the inner product; or l2, the distance."),
    ] = "cosine",
    center: Annotated[bool, typer.Option("--center", help="Take the layer's mean away first.")] = False,
    components: Annotated[
        int, typer.Option(metavar="N", help="Take the mean and the first N principal components away first.")
    ] = 0,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Its name (made of layer, kind and metric).")] = None,
    train_sample: Annotated[int | None, typer.Option(metavar="N", help="Train on N rows (50 a list of ivf).")] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the training sample, training and queries.")] = 0,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory the index may take (half the machine's).")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="Threads; with 1 an hnsw index is the same each time.")
    ] = None,
    recall: Annotated[
        bool,
        typer.Option("--recall", help="Compare with exact search: recall, speed.", rich_help_panel=MEASURING),
    ] = False,
    k: Annotated[
        int, typer.Option("--k", "-k", metavar="N", help="Neighbours per query.", rich_help_panel=MEASURING)
    ] = 10,
    queries: Annotated[
        int, typer.Option(metavar="N", help="Occurrences that are queries.", rich_help_panel=MEASURING)
    ] = 1000,
    list_: Annotated[bool, typer.Option("--list", help="List the store's indexes; build none.")] = False,
    remove: Annotated[str | None, typer.Option(metavar="NAME", help="Remove this index; build none.")] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Build a search index of a layer, kept with the store.

    The same command goes on where an interrupted one ended. An index of a store that was written again is refused
    until it is built again.
    """
    require_out(out)
    if out is not None and not recall:
        raise InvalidValueError(f"--out {out} takes the table of --recall: give that too")
    for option, value in (("--k", k), ("--queries", queries)):
        if value < 1:
            raise InvalidValueError(f"{option} {value} is not allowed: give 1 or more")
    opened = es.open(store)
    if list_ or remove is not None:
        from embstore.analysis.neighbors.indexes import list_indexes, remove_index

        if remove is not None:
            remove_index(opened, remove)
        _print_list(store, list_indexes(opened), as_json)
        return
    from embstore.analysis.neighbors.indexes import build_index

    with progress_bar("index", total=None, unit="rows") as advance:
        built = build_index(
            opened,
            _layer(opened, layer),
            kind=kind,
            metric=metric,
            center=center,
            components=components,
            name=name,
            train_sample=train_sample,
            seed=seed,
            memory=None if memory is None else nbytes_of(memory, option="--memory"),
            threads=threads,
            progress=advance,
        )
    from embstore.analysis.neighbors.indexes import IndexState

    described = _described(IndexState(built.name, "ready", "", built.info))
    if recall:
        from embstore.analysis.neighbors.recall import measure_recall

        table = measure_recall(opened, built, k=k, queries=queries, seed=seed, threads=threads)
        described["recall"] = table.to_dicts()
        if out is not None:
            write_table(table, out)
    if as_json:
        print_json([described])
        return
    print(
        f"{built.path}: {described['factory']} over layer {built.layer}, {built.metric}, {described['rows']:,} rows, "
        f"{described['nbytes'] / 2**20:,.1f} MiB"
    )
    if recall:
        rows = [
            {("recall@" + str(row["k"]) if key == "recall" else key): row[key] for key in row if key != "k"}
            for row in described["recall"]
        ]
        print_table(rows)


def _layer(store: es.Store, layer: int | None) -> int:
    if layer is None and len(store.layers) > 1:
        stored = ", ".join(map(str, store.layers))
        raise InvalidValueError(f"--layer is not given: {store.path} has the layers {stored}")
    return store.layers[0] if layer is None else layer


def _described(found: IndexState) -> dict[str, Any]:
    told: dict[str, Any] = {"name": found.name, "state": found.state, "what": found.what}
    if found.info is None:
        return told
    recipe = found.info.recipe
    return told | {
        "layer": recipe.layer,
        "kind": recipe.kind,
        "factory": recipe.factory,
        "metric": recipe.metric,
        "center": recipe.center,
        "components": recipe.components,
        "rows": recipe.rows,
        "nbytes": found.info.nbytes,
        "parameters": dict(found.info.parameters),
    }


def _print_list(path: str, found: list[IndexState], as_json: bool) -> None:
    described = [_described(state) for state in found]
    if as_json:
        print_json(described)
        return
    columns = ("name", "state", "layer", "factory", "metric", "components", "rows")
    rows = [{column: row.get(column) for column in columns} for row in described]
    for row, told in zip(rows, described, strict=True):
        row["MiB"] = told["nbytes"] / 2**20 if "nbytes" in told else None
        if told.get("center") and not told["components"]:
            row["components"] = "mean only"
    if rows:
        print_table(rows)
    else:
        print(f"{path} has no index")
    for state in found:
        if state.state in ("stale", "damaged"):
            print(state.what)
