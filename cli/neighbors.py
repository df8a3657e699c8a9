"""Nearest neighbors and what they are used for: senses of a word, labels of the nearest, and hubs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import embstore as es
import embstore_cli.options as opt
from embstore.errors import InvalidValueError
from embstore_cli.output import Drawing, Output, counted, print_concordance, print_json, print_table

if TYPE_CHECKING:
    import polars as pl

    from embstore.analysis import Clusters

SHOWN_QUERIES = 3
MATCHES = (
    "query",
    "rank",
    "score",
    "marked",
    "store",
    "layer",
    "search",
)  # columns that describe a match, not an occurrence
SENSES = {"min_size": int, "n_components": int, "sample": int | None, "seed": int}
METRICS = Literal["cosine", "ip", "l2"]
HUBNESS = {"metric": METRICS, "n_components": int, "sample": int, "top": int, "seed": int}
LABEL = {
    "metric": METRICS,
    "n_components": int,
    "sample": int | None,
    "seed": int,
    "word": str,
    "classifier": Literal["knn", "centroid"],
    "backoff": str,
    "capped": bool,
    "averaged": bool,
}
AnyWord = Annotated[str | None, opt.argument("WORD", "The word, as written in the corpus.")]
Row = Annotated[int | None, opt.option("N", "Query: the occurrence in row N of the store.")]
Text = Annotated[str | None, opt.option("TEXT", "Query: WORD, or the word in [brackets], in a new sentence.")]
Batch = Annotated[Path | None, opt.option("FILE", "Queries: words of a file, one a line, or vectors of a .npy.")]
Queries = Annotated[int, opt.option("N", "Query the first N occurrences of a word; 0: all.", min=0)]
Labels = Annotated[list[str] | None, opt.option("COLUMN=VALUE", "Find only occurrences with this label.")]
Exclude = Annotated[
    Literal["word", "sentence", "both"] | None,
    opt.option("WHAT", "Leave out occurrences of the same word, of the same sentence, or both: word, sentence, both."),
]
Index = Annotated[str | None, opt.option("NAME", "Search this index, which `embstore index` has built.")]
StoreModel = Annotated[str | None, opt.option("MODEL", "With --text: where the store's model is now.")]
Source = Annotated[str, opt.argument("STORE", "A store, or a file of word vectors.")]


def neighbors(
    source: Source,
    word: AnyWord = None,
    *,
    layer: opt.Layer = "last",
    k: opt.K = 10,
    row: Row = None,
    text: Text = None,
    batch: Batch = None,
    queries: Queries = SHOWN_QUERIES,
    mean: Annotated[bool, typer.Option("--mean", help="Query the mean of a word's occurrences.")] = False,
    metric: opt.Metric = "cosine",
    centered: opt.Centered = False,
    components: opt.Components = 0,
    label: Labels = None,
    exclude: Exclude = None,
    index: Index = None,
    model: StoreModel = None,
    device: opt.Device = "cpu",
    output: Output,
) -> None:
    """Find the nearest neighbors of a word in context.

    The search is exact unless --index is given. In a file of word vectors the neighbors are words.
    """
    words, vectors = _queries(word, batch, row, text)
    space: dict[str, Any] = {"metric": metric, "centered": centered, "n_components": components}
    space |= {"k": k, "device": device}
    if not _is_store(source):
        table = es.neighbors(es.vectors.read_vectors(source), words, vectors=vectors, **space)
        _show(table, output)
        return
    labels = _labels(label or [])
    store = es.open(source)
    occurrence, more = None if row is None else [row], ""
    if words is not None and text is None and not mean:
        occurrence, more = _occurrences(store, words, queries)
    table = es.neighbors(
        store,
        None if words is None or occurrence is not None else words if text is None else words[0],
        occurrence=occurrence,
        vectors=vectors,
        text=text,
        model=model,
        layer=opt.layer_of(layer, store.layers),
        labels=labels,
        pool="mean" if mean else "each",
        same_word=exclude not in ("word", "both"),
        same_sentence=exclude not in ("sentence", "both"),
        index=index,
        **space,
    )
    _show(table, output, store=store, more=more, text=text, has_vectors=vectors is not None)


def _queries(word: str | None, batch: Path | None, row: int | None, text: str | None) -> tuple[list[str] | None, Any]:
    """Return the query words and vectors, each None where the query is something else; refuses contradictions."""
    queries = {"WORD": word, "--row": row, "--text": text, "--batch": batch}
    names = [name for name, query in queries.items() if query is not None]
    if len(names) != 1 and names != ["WORD", "--text"]:
        raise InvalidValueError(f"{' and '.join(names) or 'no query'}: give one of {', '.join(queries)}")
    if batch is None:
        return None if word is None else [word], None
    if not batch.is_file():
        raise InvalidValueError(f"--batch {batch}: there is no such file; give words, one a line, or an array as .npy")
    if batch.suffix == ".npy":
        import numpy as np

        try:
            return None, np.load(batch, allow_pickle=False)
        except (ValueError, OSError):
            raise InvalidValueError(f"--batch {batch} holds no array of numbers: write it with numpy.save") from None
    try:
        lines = [line.strip() for line in batch.read_text("utf-8").splitlines()]
    except UnicodeDecodeError:
        raise InvalidValueError(f"--batch {batch} is not UTF-8 text: give words, one a line") from None
    if not any(lines):
        raise InvalidValueError(f"--batch {batch} has no word: give words, one a line")
    return list(dict.fromkeys(filter(None, lines))), None


def _is_store(source: str) -> bool:
    path, _, _ = source.partition("#")  # of a site
    return "://" in source or Path(path).suffix in (".zarr", ".h5", ".hdf5", ".json") or Path(source).is_dir()


def _occurrences(store: es.Store, words: list[str], queries: int) -> tuple[list[int], str]:
    """Return the first occurrences of words, and a remark on those left out."""
    found = [store.select(words=word).rows.tolist() for word in words]
    chosen = [number for rows in found for number in rows[: queries or len(rows)]]
    more = sum(map(len, found)) - len(chosen)
    named = words[0] if len(words) == 1 else "these words"
    return chosen, f"{more:,} more occurrences of {named}: see --queries" if more else ""


def _labels(given: list[str]) -> dict[str, list[str]]:
    labels: dict[str, list[str]] = {}
    for pair in given:
        column, sign, value = pair.partition("=")
        if not (column and sign and value):
            raise InvalidValueError(f"--label {pair} is not COLUMN=VALUE, such as upos=NOUN")
        labels.setdefault(column, []).append(value)
    return labels


def _show(
    table: pl.DataFrame,
    output: Output,
    *,
    store: es.Store | None = None,
    more: str = "",
    text: str | None = None,
    has_vectors: bool = False,
) -> None:
    """Write and print the neighbors of words or occurrences, of a query sentence `text`, or of vectors."""
    if not output.deliver(table):
        return
    for part in table.partition_by("query", maintain_order=True):
        rows = part.to_dicts()
        query = rows[0]["query"]
        if store is None:
            shown = [{"word": row["word"], "score": f"{row['score']:.3f}"} for row in rows]
            print_table(shown, title=str(query), right=("score",))
        else:
            name = text or (f"vector {query}" if has_vectors else _title(store, query))
            plain = [{name: row[name] for name in row if name not in MATCHES} for row in rows]
            scores = [row["score"] for row in rows]
            parts = store.select(rows=part["occurrence"]).concordance()
            print_concordance(plain, parts, title=f"layer {rows[0]['layer']}, {name}", scores=scores)
        print()
    if more:
        print(f"... {more}")


def _title(store: es.Store, query: int | str) -> str:
    """Return what a query is: a word, or the occurrence of a row in its sentence."""
    if isinstance(query, str):
        return f"{query}, the mean of its occurrences"
    return f"row {query:,}: {es.analysis.mark_words(store, [query])[0]}"


def senses(
    store: opt.StorePath,
    word: opt.Word,
    *,
    layer: opt.Layer = "last",
    method: Annotated[
        Literal["kmeans", "hdbscan"],
        opt.option("NAME", "kmeans, by cosine; or hdbscan, which leaves sparse occurrences out."),
    ] = "kmeans",
    clusters: Annotated[
        int | None, opt.option("N", "Number of clusters of kmeans; 2 to 8 by silhouette if not given.")
    ] = None,
    label: Annotated[str | None, opt.option("COLUMN", "Compare the clusters with the labels of this column.")] = None,
    most: Annotated[int, opt.option("N", "Print the N sentences nearest each center.", "--most", "-n", min=0)] = 5,
    centered: opt.Centered = False,
    settings: Annotated[dict[str, Any], opt.Config(lambda: SENSES)],
    output: Drawing,
) -> None:
    """Find a word's senses: clusters of its occurrences.

    Prints each cluster with the sentences nearest its center. --out has every occurrence with its cluster.
    """
    chosen = settings
    opened = es.open(store)
    found = es.senses(
        opened,
        word,
        layer=opt.layer_of(layer, opened.layers),
        method=method,
        n_clusters=clusters,
        centered=centered,
        label=label,
        **chosen,
    )
    Output(output.out).deliver(found.occurrences)
    output.draw(lambda: es.plot.cluster_map(found))
    if output.as_json:
        print_json(_clusters_as_json(found, most))
    else:
        _print_clusters(opened, found, most)


def _clusters_as_json(found: Clusters, most: int) -> dict[str, Any]:
    nearest = found.nearest(most).drop("word", "layer").partition_by("cluster", as_dict=True, include_key=False)
    return {
        "word": found.word,
        "layer": found.layer,
        "method": found.method,
        "occurrences": len(found.occurrences),
        "silhouette": found.silhouette,
        "purity": found.purity,
        "baseline": found.baseline,
        "clusters": [
            row | {"nearest": nearest[row["cluster"],].to_dicts() if (row["cluster"],) in nearest else []}
            for row in found.frame.drop("word", "layer").to_dicts()
        ],
    }


def _print_clusters(store: es.Store, found: Clusters, most: int) -> None:
    labelled = found.purity is not None
    rows = []
    for row in found.frame.to_dicts():
        shown = {"cluster": "none" if row["cluster"] < 0 else str(row["cluster"]), "occurrences": row["count"]}
        shown |= {"share": f"{row['share']:.0%}", "silhouette": row["silhouette"]}
        rows.append(shown | ({"most frequent label": row["label"], "purity": row["purity"]} if labelled else {}))
    clusters = counted(int((found.frame["cluster"] >= 0).sum()), "cluster")
    title = f"{found.word} in layer {found.layer}: {counted(len(found.occurrences), 'occurrence')}, {clusters} "
    title += f"({found.method})"
    if found.silhouette is not None:
        title += f", silhouette {found.silhouette:.2f}"
    if found.purity is not None and found.baseline is not None:
        title += f", purity {found.purity:.2f} (of one cluster: {found.baseline:.2f})"
    print_table(rows, title=title, right=("share",))
    for number, part in found.nearest(most).group_by("cluster", maintain_order=True):
        print()
        nearest = part.select("occurrence", "word", "position", "text", *(["label"] if labelled else []))
        parts = store.select(rows=nearest["occurrence"]).concordance()
        print_concordance(nearest.to_dicts(), parts, title=f"cluster {number[0]}: nearest its center")


def knn(
    store: opt.StorePath,
    *,
    label: Annotated[str, opt.option("COLUMN", "The label column to predict.")],
    layers: opt.Layers = "all",
    k: opt.K = 1,
    split: Annotated[
        Literal["words", "leave-one-word-out", "within-word", "train"] | None,
        opt.option(
            "NAME",
            "words: the words of --test from those of --train; leave-one-word-out: from all other words; "
            "within-word: from the same word in other sentences; train: from the same word in --train.",
        ),
    ] = None,
    train: Annotated[
        str | None,
        opt.option(
            "FILE",
            "Training words, one a line or as Wiki-PSE lists them (all but --test). Or occurrences, as COLUMN=LABEL or "
            "sentence=0-999.",
        ),
    ] = None,
    test: Annotated[str | None, opt.option("FILE", "Test words, or occurrences, in the same form.")] = None,
    centered: opt.Centered = False,
    device: opt.Device = "cpu",
    settings: Annotated[dict[str, Any], opt.Config(lambda: LABEL)],
    output: Output,
) -> None:
    """Predict labels from the nearest labelled occurrences.

    Prints the accuracy of exact k-nearest-neighbor classification by layer, next to that of the most frequent label.
    Word-sense disambiguation: --train split=train --test split=test, with --set word=lemma, --set classifier=centroid
    and --set backoff=COLUMN or most-frequent. --out and --json have the recall of each label too.
    """
    chosen = settings
    if split == "words" and test is None:
        raise InvalidValueError("--split words needs the test words: give --test FILE")
    data, words = _train_and_test(store, train, test)
    frame = es.analysis.knn_labels(
        data,
        label=label,
        layers=opt.layers_of(layers),
        k=k,
        split=split,
        centered=centered,
        device=device,
        **words,
        **chosen,
    ).frame
    if output.deliver(frame):
        first = frame.row(0, named=True)
        how = "by the nearest centroid" if chosen.get("classifier") == "centroid" else f"of the {k} nearest"
        print_table(_accuracies(frame), title=f"{label} {how}, {first['split']}, {first['space']}")


def _train_and_test(path: str, train: str | None, test: str | None) -> tuple[es.Store | es.Selection, dict[str, Any]]:
    """Return what is to be predicted, and the arguments that say from what: lists of words, or occurrences."""
    given = {name: value for name, value in (("train", train), ("test", test)) if value is not None}
    if not given or not all("=" in value and not Path(value).is_file() for value in given.values()):
        lists = {name: opt.read_words(Path(value), option=f"--{name}") for name, value in given.items()}
        return es.open(path), {f"{name}_words": sorted(words) for name, words in lists.items()}
    if len(given) < 2:
        ((name, value),) = given.items()
        raise InvalidValueError(f"--{name} {value} names occurrences: give both --train and --test in this form")
    store = es.open(path)
    chosen = {name: _occurrences_of(store, value, f"--{name}") for name, value in given.items()}
    return chosen["test"], {"train": chosen["train"]}


def _occurrences_of(store: es.Store, given: str, option: str) -> es.Selection:
    """Return the occurrences that COLUMN=LABEL or sentence=FIRST-LAST names."""
    column, _, value = given.partition("=")
    if column == "sentence":
        first, _, last = value.partition("-")
        if not (first.isdecimal() and last.isdecimal()):
            raise InvalidValueError(f"{option} {given} is not sentence=FIRST-LAST, such as sentence=0-999")

        return store.select(where=f"sentence BETWEEN {int(first)} AND {int(last)}")
    return store.select(labels={column: value})


def _accuracies(frame: pl.DataFrame) -> list[dict[str, Any]]:
    rows: dict[int | None, dict[str, Any]] = {}
    for row in frame.to_dicts():
        shown = rows.setdefault(row["layer"], {"layer": "mean" if row["layer"] is None else str(row["layer"])})
        if row["metric"] == "accuracy":
            shown |= {"accuracy": row["value"], "most frequent": row["baseline"], "occurrences": row["count"]}
        elif row["metric"] == "macro_recall":
            shown |= {"mean recall": row["value"], "its baseline": row["baseline"], "labels": row["count"]}
        elif row["metric"] in ("coverage", "macro_f1"):
            shown[row["metric"].replace("_f1", " F1")] = row["value"]
    return list(rows.values())


def hubness(
    source: Source,
    *,
    layers: opt.Layers = "all",
    k: opt.K = 10,
    device: opt.Device = "cpu",
    settings: Annotated[dict[str, Any], opt.Config(lambda: HUBNESS)],
    output: Output,
) -> None:
    """Measure how unevenly vectors are neighbors of others.

    Hubness is how unevenly vectors appear in each other's nearest-neighbor lists. Hubs are in very many lists,
    anti-hubs in none: prints the skewness of the counts and the share of anti-hubs, as stored and with the mean
    subtracted, next to the values for random neighbors. --set sample=N queries N random vectors (10,000).
    """
    chosen = {"sample": 10_000, "top": 5} | settings
    components = chosen.pop("n_components", 0)
    import polars as pl

    data: Any = es.open(source) if _is_store(source) else es.vectors.read_vectors(source)
    numbers = opt.layers_of(layers)
    frame = pl.concat(
        [
            es.analysis.hubness(
                data,
                layers=numbers,
                k=k,
                centered=centered,
                n_components=removed,
                device=device,
                **chosen,
            )
            for centered, removed in dict.fromkeys([(False, 0), (True, 0), (True, components)])
        ]
    )
    if output.deliver(frame):
        print_table(_hubs(frame), title=f"how often vectors are among the {k} nearest of another")


def _hubs(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Return a row for each layer and space, sorted by layer."""
    rows = []
    parts = frame.partition_by("layer", "space", maintain_order=True)
    for part in sorted(parts, key=lambda part: -1 if part["layer"][0] is None else part["layer"][0]):
        skewness, antihubs = part.to_dicts()[:2]
        hubs = part.filter(part["metric"] == "k_occurrence").to_dicts()
        shown = {} if skewness["layer"] is None else {"layer": str(skewness["layer"])}
        shown |= {"space": skewness["space"], "skewness": skewness["value"], "if random": skewness["baseline"]}
        shown |= {"anti-hubs": f"{antihubs['value']:.1%}", "if random ": f"{antihubs['baseline']:.1%}"}
        shown |= {"greatest hubs": ", ".join(f"{row['item']} {row['value']:,.0f}" for row in hubs)}
        rows.append(shown)
    return rows
