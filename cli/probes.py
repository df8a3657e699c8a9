"""Commands that train class probes, and that apply saved ones."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import embstore as es
from embstore.errors import InvalidValueError
from embstore_cli.options import (
    TRAINING,
    AsJson,
    Config,
    Control,
    Device,
    Layers,
    Out,
    Plot,
    Save,
    Seeds,
    StorePaths,
    layers_of,
    read_settings,
    read_words,
    seeds_of,
    set_option,
    training_of,
)
from embstore_cli.output import deliver, print_notes, print_table, require_files, with_deviation

if TYPE_CHECKING:
    import polars as pl

SETTINGS = {
    **TRAINING,
    "level": Literal["context", "type"],
    "hidden_size": int,
    "max_contexts": int | None,
    "dev_share": float,
    "balance": bool,
    "splits": tuple[str, ...],
}
Words = Annotated[Path, typer.Option(metavar="FILE", help="Words, one a line or as Wiki-PSE lists them with classes.")]
MoreWords = Annotated[Path | None, typer.Option(metavar="FILE", help="Words, in the same form.")]
By = Annotated[
    Literal["class", "frequency", "both"] | None,
    typer.Option("--by", metavar="WHAT", help="Also print F1 by class, by the frequency of words, or both."),
]
METRICS = {
    "class": ("class_f1", "F1 by class"),
    "frequency": ("frequency_f1", "F1 by how often a word occurs in the store"),
}


def classes(
    stores: StorePaths,
    train: Words,
    test: Annotated[Path, typer.Option(metavar="FILE", help="Test words; must not overlap --train.")],
    dev: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Words for early stopping (a fifth of those of --train).")
    ] = None,
    label: Annotated[str, typer.Option(metavar="COLUMN", help="The label column of the classes.")] = "class",
    kind: Annotated[
        Literal["linear", "mlp"], typer.Option(metavar="KIND", help="linear, or mlp with one hidden layer.")
    ] = "linear",
    layers: Layers = "all",
    seeds: Seeds = "0",
    control: Control = False,
    by: By = None,
    save: Save = None,
    device: Device = "auto",
    config: Config = None,
    settings: Annotated[list[str] | None, set_option(SETTINGS)] = None,
    plot: Plot = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Read the classes of words from their vectors, layer by layer.

    Trains a binary probe for each class and layer, and scores them on new words: micro F1 over word-class decisions,
    each right if at least half of its contexts are (Zhao et al. 2020).
    """
    require_files(out, plot)
    chosen = read_settings(settings, SETTINGS, config)
    splits, dev_share = _splits(chosen.pop("splits", ("dev", "test"))), chosen.pop("dev_share", 0.2)
    words = {
        name: read_words(path, option=f"--{name}")
        for name, path in (("train", train), ("test", test), ("dev", dev))
        if path is not None
    }
    options: dict[str, Any] = {"label": label, "kind": kind, "seeds": seeds_of(seeds), "control": control}
    options |= {"layers": layers_of(layers), "device": device, **training_of(chosen)}
    es.ClassProbe(**options)  # checks the settings before a store is read
    split = es.probes.split_words(**words, dev_share=dev_share, seed=options.get("seed", 0))
    opened = open_stores(stores)
    folders = save_folders(save, opened)
    results = []
    for name, store in opened.items():
        probe = es.ClassProbe(**options).fit(store, split)
        results.append(probe.score(splits=splits, name=name))
        if name in folders:
            probe.save(folders[name])
    title = f"{kind} probes of {label}, {options.get('level', 'context')} level"
    _show(es.probes.ProbeResult.concat(results), title, by=by, plot=plot, out=out, as_json=as_json)


def apply(
    probes: Annotated[Path, typer.Argument(metavar="PROBES", help="Probes saved by probe classes --save.")],
    stores: StorePaths,
    test: MoreWords = None,
    layers: Layers = "all",
    label: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The label column, if it has another name in these stores.")
    ] = None,
    by: By = None,
    device: Device = "auto",
    plot: Plot = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Score saved probes on another store, layer by layer.

    For instance the probes of a pretrained model on its fine-tuned version (Zhao et al. 2020, setup (a)). The words
    are those that the probes were tested on, unless --test is given.
    """
    require_files(out, plot)
    words = None if test is None else read_words(test, option="--test")
    probe = es.probes.load(probes)
    if not isinstance(probe, es.ClassProbe):
        raise InvalidValueError(f"{probes} has {probe.name} probes: give probes saved by probe classes --save")
    probe.device = device
    options: dict[str, Any] = {"splits": ("test",), "layers": layers_of(layers), "label": label}
    result = es.probes.ProbeResult.concat(
        probe.score(words, data=store, name=name, **options) for name, store in open_stores(stores).items()
    )
    title = f"{probe.kind} probes of {probes.name}, {probe.level} level"
    _show(result, title, by=by, plot=plot, out=out, as_json=as_json)


def _splits(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in ("train", "dev", "test"):
            raise InvalidValueError(f"--set splits={','.join(names)} is not allowed: give some of train, dev, test")
    return tuple(dict.fromkeys(names))


def open_stores(paths: list[str]) -> dict[str, es.Store]:
    """Open stores by the name of their file, with a number where two have the same name."""
    named: dict[str, es.Store] = {}
    for path in paths:
        store = es.open(path)
        name, number = store.path.stem, 2
        while name in named:
            name, number = f"{store.path.stem}-{number}", number + 1
        named[name] = store
    return named


def save_folders(save: Path | None, names: Collection[str]) -> dict[str, Path]:
    """Return the folder of `--save` for each store or task; refuses one that is not free."""
    if save is None:
        return {}
    folders = {name: save if len(names) == 1 else save / name for name in names}
    for folder in folders.values():
        es.probes.require_free(folder)
    return folders


def _show(
    result: es.probes.ProbeResult, title: str, *, by: str | None, plot: Path | None, out: Path | None, as_json: bool
) -> None:
    summary = result.summary()
    if plot is not None:
        es.plot.save(es.plot.probe_scores(summary), plot)
    print_notes(result.notes)
    if deliver(result.frame, out=out, as_json=as_json):
        print_table(_by_layer(summary), title=title)
        for what, (metric, text) in METRICS.items():
            if by in (what, "both"):
                print()
                print_table(_by_item(summary, metric), title=text)


def _by_layer(summary: pl.DataFrame) -> list[dict[str, Any]]:
    """Return a row for each store and layer: F1 by split, and the other metrics of the last split."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    has_several = summary["store"].n_unique() > 1
    task, last = summary["task"][0], summary["split"][-1]
    names = {"contexts_f1": "by contexts", "f1": "control", "selectivity": "selectivity"}
    for row in summary.filter(summary["item"] == "").to_dicts():
        is_task = row["task"] == task
        first = ({"store": row["store"]} if has_several else {}) | {"layer": str(row["layer"])}
        shown = rows.setdefault((row["store"], row["layer"]), first)
        if is_task and row["metric"] == "f1":
            shown[f"{row['split']} F1"] = with_deviation(row)
        elif row["split"] == last and (is_task or row["metric"] == "f1") and row["metric"] in names:
            shown[names[row["metric"]]] = with_deviation(row)
    return list(rows.values())


def _by_item(summary: pl.DataFrame, metric: str) -> list[dict[str, Any]]:
    """Return a row for each store and item, a column for each layer, of the last split."""
    task, last = summary["task"][0], summary["split"][-1]
    chosen = summary.filter((summary["metric"] == metric) & (summary["task"] == task) & (summary["split"] == last))
    has_several = chosen["store"].n_unique() > 1
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for row in chosen.to_dicts():
        first = ({"store": row["store"]} if has_several else {}) | {"item": row["item"], "pairs": row["count"]}
        rows.setdefault((row["store"], row["item"]), first)[f"layer {row['layer']}"] = with_deviation(row)
    return list(rows.values())
