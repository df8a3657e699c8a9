"""Nearest neighbors, the indexes that find them, and the senses of a word."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import polars as pl
import typer

import embstore as es
import embstore_cli.options as opt
from embstore.errors import InvalidValueError
from embstore_cli.output import Drawing, Output, counted, print_concordance, print_json, print_table

# Columns that describe a match, not an occurrence
MATCHES = ("query", "rank", "score", "marked", "store", "layer", "search")
Query = Annotated[str | None, opt.argument("WORD", "A word, or a new sentence with one word in [brackets].")]
Row = Annotated[int | None, opt.option("N", "Query: the occurrence in row N of the store.")]
Queries = Annotated[int, opt.option("N", "Query the first N occurrences of a word; 0: all.", min=0)]
Labels = Annotated[list[str] | None, opt.option("COLUMN=VALUE", "Find only occurrences with this label.")]
Index = Annotated[str | None, opt.option("NAME", "Search this index, which `embstore index` has built.")]
StoreModel = Annotated[str | None, opt.option("MODEL", "For a new sentence: where the store's model is now.")]
Kind = Annotated[
    Literal["sketch", "ivf", "ivfpq", "hnsw"],
    opt.option("KIND", "sketch (exact, reads a tenth), ivf, ivfpq (smallest) or hnsw (fastest, slow to build)."),
]
Source = Annotated[str, opt.argument("STORE", "A store, or a file of word vectors.")]


def neighbors(
    source: Source,
    query: Query = None,
    *,
    layers: opt.Layer = "last",
    k: opt.K = 10,
    row: Row = None,
    queries: Queries = 3,
    metric: opt.Metric = "cosine",
    centered: opt.Centered = False,
    label: Labels = None,
    exclude: Annotated[
        Literal["self", "word", "sentence", "both"] | None,
        opt.option(
            "WHAT",
            "What is not found: word (so each other word once, the default for WORD), sentence, both, or only self.",
        ),
    ] = None,
    index: Index = None,
    model: StoreModel = None,
    output: Output,
) -> None:
    """Find the nearest neighbors of a word in context.

    The search is exact unless --index is given. In a file of word vectors the neighbors are words.
    """
    if (query is None) == (row is None):
        raise InvalidValueError("give one query: WORD or --row N")
    options: dict[str, Any] = {"metric": metric, "centered": centered, "k": k}
    is_store = Path(source).is_dir() or Path(source.partition("#")[0]).suffix in (".zarr", ".h5", ".hdf5", ".json")
    if not is_store and "://" not in source:
        if row is not None or label or layers != "last":
            raise InvalidValueError(f"{source} holds word vectors, without rows, labels and layers: leave these out")
        table = es.neighbors(es.vectors.read_vectors(source), str(query), exclude=exclude, index=index, **options)
        _show(table, output)
        return
    store = es.open(source)
    data: es.Store | es.store.Selection = store.select(labels=_labels(label)) if label else store
    asked: Any = query
    is_text = query is not None and "[" in query and store.index.type_of(query) is None
    more = ""
    if not is_text:
        rows: list[Any] = [row] if query is None else store.select(words=query).rows.tolist()
        asked = store.select(rows=rows[: queries or len(rows)])
        left = len(rows) - len(asked)
        more = f"{left:,} more occurrences of {query}: see --queries" if left else ""
        exclude = exclude or ("self" if query is None else "word")
    options |= {"layers": opt.layers_of(layers), "exclude": exclude, "index": index, "model": model}
    table = es.neighbors(data, asked, **options)
    _show(table, output, store=store, more=more, text=query if is_text else None)


def _labels(pairs: list[str]) -> dict[str, list[str]]:
    labels: dict[str, list[str]] = {}
    for pair in pairs:
        column, sign, value = pair.partition("=")
        if not (column and sign and value):
            raise InvalidValueError(f"--label {pair} is not COLUMN=VALUE, such as upos=NOUN")
        labels.setdefault(column, []).append(value)
    return labels


def _show(
    table: pl.DataFrame, output: Output, *, store: es.Store | None = None, more: str = "", text: str | None = None
) -> None:
    """Write and print the neighbors of a word, an occurrence or a query sentence `text`."""
    if not output.deliver(table):
        return
    for part in table.partition_by("query", maintain_order=True):
        rows = part.to_dicts()
        query = rows[0]["query"]
        if store is None:
            shown = [{"word": row["word"], "score": f"{row['score']:.3f}"} for row in rows]
            print_table(shown, title=str(query), right=("score",))
        else:
            name = text
            if text is None:
                ((before, word, after),) = store.select(rows=[query]).concordance()
                name = f"row {query:,}: {before}[{word}]{after}"
            plain = [{name: row[name] for name in row if name not in MATCHES} for row in rows]
            scores = [row["score"] for row in rows]
            parts = store.select(rows=part["occurrence"]).concordance()
            print_concordance(plain, parts, title=f"layer {rows[0]['layer']}, {name}", scores=scores)
        print()
    if more:
        print(f"... {more}")


def index(
    store: opt.StorePath,
    *,
    layers: opt.Layer = "last",
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
        print_json([_index_as_json(state) for state in states])
        return
    if not states:
        print(f"{store} has no index")
    shown = ("name", "state", "layer", "kind", "metric", "n_rows", "nbytes")
    print_table([{name: value for name, value in _index_as_json(state).items() if name in shown} for state in states])
    for state in states:
        if state.reason:
            print(state.reason)


def _index_as_json(state: Any) -> dict[str, Any]:
    names = ("layer", "kind", "metric", "n_rows", "nbytes", "parameters") if state.info else ()
    described = {"name": state.name, "state": state.state, "reason": state.reason}
    return described | {name: getattr(state.info, name) for name in names}


def senses(
    store: opt.StorePath,
    word: opt.Word,
    *,
    layers: opt.Layer = "last",
    clusters: Annotated[int | None, opt.option("N", "Number of clusters; by default 1 to 8, by silhouette.")] = None,
    label: Annotated[str | None, opt.option("COLUMN", "Compare the clusters with the labels of this column.")] = None,
    most: Annotated[int, opt.option("N", "Print the N sentences nearest each center.", "--most", "-n", min=0)] = 5,
    centered: opt.Centered = False,
    settings: Annotated[dict[str, Any], opt.Config(lambda: es.senses, "min_size", "sample", "seed")],
    output: Drawing,
) -> None:
    """Find a word's senses: clusters of its occurrences.

    Prints each cluster with the sentences nearest its center. --out has every occurrence with its cluster.
    """
    opened = es.open(store)
    found = es.senses(
        opened, word, layers=opt.layers_of(layers), n_clusters=clusters, centered=centered, label=label, **settings
    )
    Output(output.out).deliver(found.occurrences)
    output.draw(lambda: es.plot.cluster_map(found))
    if output.as_json:
        print_json(_clusters_as_json(found, most))
    else:
        _print_clusters(opened, found, most)


def _clusters_as_json(found: es.analysis.Clusters, most: int) -> dict[str, Any]:
    nearest = found.nearest(most).drop("word", "layer").partition_by("cluster", as_dict=True, include_key=False)
    names = ("word", "layer", "silhouette", "null", "p", "caveats", "purity", "baseline")
    clusters = [
        row | {"nearest": nearest[row["cluster"],].to_dicts() if most else []}
        for row in found.frame.drop("word", "layer").to_dicts()
    ]
    described = {name: getattr(found, name) for name in names}
    return described | {"occurrences": len(found.occurrences), "clusters": clusters}


def _print_clusters(store: es.Store, found: es.analysis.Clusters, most: int) -> None:
    labelled = found.purity is not None
    rows = []
    for row in found.frame.to_dicts():
        shown = {"cluster": str(row["cluster"]), "occurrences": row["count"]}
        shown |= {"share": f"{row['share']:.0%}", "silhouette": row["silhouette"]}
        rows.append(shown | ({"most frequent label": row["label"], "purity": row["purity"]} if labelled else {}))
    clusters = counted(len(found.frame), "cluster")
    title = f"{found.word} in layer {found.layer}: {counted(len(found.occurrences), 'occurrence')}, {clusters}"
    if found.silhouette is not None:
        title += f", silhouette {found.silhouette:.2f}"
    if found.purity is not None and found.baseline is not None:
        title += f", purity {found.purity:.2f} (of one cluster: {found.baseline:.2f})"
    print_table(rows, title=title, right=("share",))
    if found.null is not None and not found.caveats:
        print(f"silhouette of vectors without clusters: {found.null:.2f} on average, p {found.p:.2f}")
    for caveat in found.caveats:
        print(f"note: {caveat}")
    for number, part in found.nearest(most).group_by("cluster", maintain_order=True):
        print()
        nearest = part.select("occurrence", "word", "position", "text", *(["label"] if labelled else []))
        parts = store.select(rows=nearest["occurrence"]).concordance()
        print_concordance(nearest.to_dicts(), parts, title=f"cluster {number[0]}: nearest its center")
