"""What neighbours are used for: the senses of a word, labels of the nearest, and hubs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import embstore as es
from embstore.errors import InvalidValueError
from embstore_cli.help import Command
from embstore_cli.output import AsJson, Out, print_json, print_table, require_figure, require_out, width, write_table
from embstore_cli.progress import progress_bar
from embstore_cli.store import StorePath

if TYPE_CHECKING:
    import polars as pl

    from embstore.analysis.neighbors.clusters import Clusters

STORES = (".zarr", ".h5")
Layers = Annotated[str, typer.Option(metavar="LAYERS", help="Such as 0,6-12, last or all.")]
Metric = Annotated[
    Literal["cosine", "ip", "l2"],
    typer.Option(metavar="NAME", help="What is near: cosine, ip (inner product) or l2 (distance)."),
]
Center = Annotated[bool, typer.Option("--center", help="Take the layer's mean away first.")]
Components = Annotated[
    int, typer.Option(metavar="N", min=0, help="Take the layer's mean and its first N principal components away first.")
]
Seed = Annotated[int, typer.Option(metavar="N", min=0, help="Of what is drawn at random.")]
Device = Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda or cuda:N.")]


def add_to(app: typer.Typer) -> None:
    example = "Example: embstore senses semcor.zarr bank --layer 6 --label class --plot bank.png"
    app.command("senses", cls=Command, epilog=example)(senses)
    example = "Example: embstore knn semcor.zarr --label class --train train.tsv --test test.tsv"
    app.command("knn", cls=Command, epilog=example)(knn)
    example = "Example: embstore hubness ewt.zarr --layers 0,6,12 --k 10"
    app.command("hubness", cls=Command, epilog=example)(hubness)


def senses(
    store: StorePath,
    word: Annotated[str, typer.Argument(metavar="WORD", help="The word or phrase, as written in the corpus.")],
    layer: Annotated[
        int | None, typer.Option("--layer", "-l", metavar="N", help="The layer whose vectors are taken (the last).")
    ] = None,
    method: Annotated[
        Literal["kmeans", "hdbscan"],
        typer.Option(metavar="HOW", help="kmeans, by cosine; or hdbscan, dense places only."),
    ] = "kmeans",
    clusters: Annotated[
        int | None, typer.Option(metavar="N", help="How many, for kmeans; by default 2 to 8, by their silhouette.")
    ] = None,
    min_size: Annotated[
        int, typer.Option(metavar="N", help="Only clusters of N or more, where their number is not given.")
    ] = 5,
    label: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Hold the clusters against the labels of this column.")
    ] = None,
    most: Annotated[
        int, typer.Option("--most", "-n", metavar="N", min=0, help="Print the N sentences nearest each centre.")
    ] = 5,
    sample: Annotated[int | None, typer.Option(metavar="N", help="Of N occurrences at most, drawn at random.")] = None,
    center: Center = False,
    components: Components = 0,
    seed: Seed = 0,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the occurrences in 2-D to FILE.{png,svg,pdf}.")
    ] = None,
    map: Annotated[
        Literal["pca", "umap"], typer.Option("--map", metavar="HOW", help="How they are laid out: pca or umap.")
    ] = "pca",
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Find a word's senses: clusters of its occurrences.

    Prints each cluster with the sentences nearest its centre. --out has every occurrence with its cluster.
    """
    require_out(out)
    require_figure(plot, option="--plot")
    from embstore.analysis.neighbors.clusters import cluster_occurrences

    opened = es.open(store)
    found = cluster_occurrences(
        opened,
        word,
        layer=opened.layers[-1] if layer is None else layer,
        method=method,
        clusters=clusters,
        min_size=min_size,
        center=center,
        components=components,
        label=label,
        sample=sample,
        seed=seed,
    )
    if out is not None:
        write_table(found.occurrences, out)
    if plot is not None:
        es.plot.save(es.plot.cluster_map(found, method=map, seed=seed), plot)
    if as_json:
        print_json(_as_json(found, most))
    else:
        _print_clusters(found, most)


def _as_json(found: Clusters, most: int) -> dict[str, Any]:
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
            for row in found.summary.drop("word", "layer").to_dicts()
        ],
    }


def _print_clusters(found: Clusters, most: int) -> None:
    from embstore_cli.concordance import concordance

    labelled = found.purity is not None
    rows = []
    for row in found.summary.to_dicts():
        told = {"cluster": "in none" if row["cluster"] < 0 else str(row["cluster"]), "occurrences": row["count"]}
        told |= {"share": f"{row['share']:.0%}", "silhouette": row["silhouette"]}
        rows.append(told | ({"label of most": row["label"], "purity": row["purity"]} if labelled else {}))
    print_table(rows, title=_title(found), right=("share",))
    for number, part in found.nearest(most).group_by("cluster", maintain_order=True):
        print()
        shown = part.select("occurrence", "word", "position", "text", *(["label"] if labelled else []))
        print_table(concordance(shown.to_dicts(), width=width()), title=f"cluster {number[0]}: nearest its centre",
                    right=("row", "left context"), wrap=False)  # fmt: skip


def _title(found: Clusters) -> str:
    counts = int((found.summary["cluster"] >= 0).sum())
    told = f"{found.word} in layer {found.layer}: {len(found.occurrences):,} occurrences, "
    told += f"{counts} cluster{'' if counts == 1 else 's'} ({found.method})"
    if found.silhouette is not None:
        told += f", silhouette {found.silhouette:.2f}"
    if found.purity is not None and found.baseline is not None:
        told += f", purity {found.purity:.2f} (of one cluster {found.baseline:.2f})"
    return told


def knn(
    store: StorePath,
    label: Annotated[str, typer.Option(metavar="COLUMN", help="The label column that is predicted.")],
    layers: Layers = "all",
    k: Annotated[int, typer.Option("--k", "-k", metavar="N", help="The label of most of the N nearest.")] = 1,
    split: Annotated[
        Literal["words", "leave-one-word-out", "within-word"] | None,
        typer.Option(
            metavar="HOW",
            help="words: those of --test from those of --train; leave-one-word-out: from all other words; within-word: "
            "from the same word in other sentences.",
        ),
    ] = None,
    train: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Words to learn from, one a line or as Wiki-PSE lists them (all but those of --test)."
        ),
    ] = None,
    test: Annotated[Path | None, typer.Option(metavar="FILE", help="Words to ask, in the same form.")] = None,
    metric: Metric = "cosine",
    center: Center = False,
    components: Components = 0,
    sample: Annotated[int | None, typer.Option(metavar="N", help="Ask N occurrences, drawn at random.")] = None,
    seed: Seed = 0,
    device: Device = "cpu",
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Predict labels from the nearest labelled occurrences.

    Prints the accuracy of exact k-nearest-neighbour classification by layer, beside that of the most frequent label.
    --out and --json have the recall of each label too.
    """
    require_out(out)
    from embstore.analysis.neighbors.labels import knn_labels
    from embstore.store.layers import chosen_layers

    opened = es.open(store)
    words = {name: None if path is None else _words_of(path) for name, path in (("train", train), ("test", test))}
    with progress_bar("knn", total=None, unit="occurrences") as advance:
        frame = knn_labels(
            opened,
            label=label,
            layers=chosen_layers(layers, opened.layers),
            k=k,
            split=split,
            train_words=words["train"],
            test_words=words["test"],
            metric=metric,
            center=center,
            components=components,
            sample=sample,
            seed=seed,
            device=device,
            progress=advance,
        )
    if out is not None:
        write_table(frame, out)
    if as_json:
        print_json(frame.to_dicts())
        return
    first = frame.row(0, named=True)
    title = f"{label} of the {k} nearest, {first['split']}, {first['space']}"
    print_table(_accuracies(frame), title=title)


def _words_of(path: Path) -> list[str]:
    """The words of a list: Wiki-PSE's with classes and counts, or one a line."""
    from embstore.corpus import read_word_classes

    return sorted(read_word_classes(path, optional=True))


def _accuracies(frame: pl.DataFrame) -> list[dict[str, Any]]:
    rows: dict[int, dict[str, Any]] = {}
    for row in frame.to_dicts():
        told = rows.setdefault(row["layer"], {"layer": str(row["layer"])})
        if row["metric"] == "accuracy":
            told |= {"accuracy": row["value"], "most frequent": row["baseline"], "occurrences": row["count"]}
        elif row["metric"] == "macro_recall":
            told |= {"mean of labels": row["value"], "its baseline": row["baseline"], "labels": row["count"]}
    return list(rows.values())


def hubness(
    store: Annotated[str, typer.Argument(metavar="STORE", help="A store, or a file of word vectors.")],
    layers: Layers = "all",
    k: Annotated[int, typer.Option("--k", "-k", metavar="N", help="How many nearest neighbours count.")] = 10,
    metric: Metric = "cosine",
    components: Annotated[
        int, typer.Option(metavar="N", min=0, help="Also with the first N principal components taken away.")
    ] = 0,
    sample: Annotated[
        int, typer.Option(metavar="N", help="As many vectors, drawn at random, ask for neighbours among all.")
    ] = 10_000,
    top: Annotated[int, typer.Option(metavar="N", min=0, help="Name the N greatest hubs.")] = 5,
    seed: Seed = 0,
    device: Device = "cpu",
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Say how unevenly vectors are neighbours of others.

    Hubs are among the nearest of very many, anti-hubs of none: the skewness of the counts and the share of anti-hubs,
    as they are and with the mean taken away, beside what neighbours drawn by lot would give.
    """
    require_out(out)
    import polars as pl

    from embstore.analysis.neighbors.hubness import hubness as measured
    from embstore.store.layers import chosen_layers

    source: Any
    chosen = None
    if Path(store).suffix in STORES:
        source = es.open(store)
        chosen = chosen_layers(layers, source.layers)
    elif layers != "all":
        raise InvalidValueError(f"--layers {layers}: {store} is read as word vectors, which have no layers")
    else:
        source = es.vectors.read_vectors(store)
    frames = []
    for center, taken in dict.fromkeys([(False, 0), (True, 0), (True, components)]):
        with progress_bar("hubness", total=None, unit="queries") as advance:
            options: dict[str, Any] = {"k": k, "metric": metric, "sample": sample, "seed": seed, "top": top}
            frames.append(
                measured(source, layers=chosen, center=center, components=taken, device=device, progress=advance,
                         **options)
            )  # fmt: skip
    frame = pl.concat(frames)
    if out is not None:
        write_table(frame, out)
    if as_json:
        print_json(frame.to_dicts())
        return
    print_table(_hubs(frame), title=f"how often vectors are among the {k} nearest of another")


def _hubs(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """A row a layer and space, the layers together."""
    rows = []
    parts = frame.partition_by("layer", "space", maintain_order=True)
    for part in sorted(parts, key=lambda part: -1 if part["layer"][0] is None else part["layer"][0]):
        skewed, lonely = part.to_dicts()[:2]
        hubs = part.filter(part["metric"] == "k_occurrence")
        told = {} if skewed["layer"] is None else {"layer": str(skewed["layer"])}
        told |= {"space": skewed["space"], "skewness": skewed["value"], "by lot": skewed["baseline"]}
        told |= {"anti-hubs": f"{lonely['value']:.1%}", "by lot ": f"{lonely['baseline']:.1%}"}
        told |= {"greatest hubs": ", ".join(f"{row['item']} {row['value']:,.0f}" for row in hubs.to_dicts())}
        rows.append(told)
    return rows
