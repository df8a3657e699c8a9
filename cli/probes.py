"""Commands that train class probes, row probes and structural probes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import embstore as es
import embstore_cli.options as opt
from embstore_cli.output import Drawing, print_notes, print_table, with_deviation

if TYPE_CHECKING:
    import polars as pl

TRAINING = ("epochs", "learning_rate", "patience")  # the settings of probes that are those of Training
CLASSES = opt.Config(
    lambda: [es.probes.Training, es.ClassProbe, es.probes.split_words],
    *(*TRAINING, "level", "hidden_size", "max_contexts"),
)
STRUCTURE = opt.Config(lambda: [es.probes.Training, es.probes.StructuralProbe], *TRAINING, "rank")
STRUCTURE_METRICS = {"uuas": "UUAS", "dspr": "DSpr", "root_accuracy": "root", "nspr": "NSpr"}
CLASS_METRICS = {"contexts_f1": "by contexts", "f1": "control", "selectivity": "selectivity"}
ROW_METRICS = {"accuracy": "accuracy", "macro_f1": "macro F1", "selectivity": "selectivity"}

Seeds = Annotated[str, opt.option("LIST", "Seeds of the initial weights, such as 0 or 1,2,3.")]
Control = Annotated[
    bool, typer.Option("--control", help="Also train on the control task: random labels, the same for the same word.")
]
Save = Annotated[Path | None, opt.option("PATH", "Save the probe in this file; several: one file each in this folder.")]
Words = Annotated[Path, opt.option("FILE", "Words, one a line or as Wiki-PSE lists them with classes.")]


@dataclass(frozen=True)
class Probing:
    """The options that all commands which train probes have."""

    layers: opt.Layers = "all"
    seeds: Seeds = "0"

    def arguments(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a probe: these options and `settings`, with those of `Training` together in one."""
        training = es.probes.Training(**{name: value for name, value in settings.items() if name in TRAINING})
        others = {name: value for name, value in settings.items() if name not in TRAINING}
        return {"layers": opt.layers_of(self.layers), "seeds": opt.seeds_of(self.seeds), "training": training, **others}


def classes(
    stores: opt.StorePaths,
    *,
    train: Words,
    test: Annotated[Path, opt.option("FILE", "Test words; must not overlap --train.")],
    label: Annotated[str, opt.option("COLUMN", "The label column of the classes.")] = "class",
    kind: Annotated[Literal["linear", "mlp"], opt.option("KIND", "linear, or mlp with one hidden layer.")] = "linear",
    probing: Probing,
    control: Control = False,
    save: Save = None,
    settings: Annotated[dict[str, Any], CLASSES],
    output: Drawing,
) -> None:
    """Read the classes of words from their vectors, layer by layer.

    Trains a binary probe for each class and layer, and scores them on new words: micro F1 over word-class decisions,
    each right if at least half of its contexts are (Zhao et al. 2020). Training stops early by a fifth of the --train
    words. --out and --json also have F1 by class, and by how often a word occurs.
    """
    options = {"label": label, "kind": kind, "control": control, **probing.arguments(settings)}
    es.ClassProbe(**options)  # checks the settings before a store is read
    words = {name: opt.read_words(path, option=f"--{name}") for name, path in (("train", train), ("test", test))}
    split = es.probes.split_words(words["train"], words["test"], seed=options["seeds"][0])
    opened = opt.open_stores(stores)
    files = save_files(save, opened)
    results = []
    for name, store in opened.items():
        probe = es.ClassProbe(**options).fit(store, split)
        results.append(probe.score(name=name))
        if name in files:
            probe.save(files[name])
    result = es.probes.ProbeResult.concat(results)
    summary = result.summary()
    output.draw(lambda: es.plot.probe_scores(summary))
    print_notes(result.notes)
    if output.deliver(result.frame):
        title = f"{kind} probes of {label}, {options.get('level', 'context')} level"
        print_table(_by_layer(summary), title=title)


def rows(
    store: opt.StorePath,
    *,
    label: Annotated[str, opt.option("COLUMN", "The label column, or field of documents.")],
    split: Annotated[
        str, opt.option("COLUMN", "A column of train, dev and test; or document or word, divided at random.")
    ] = "document",
    kind: Annotated[Literal["linear", "difference"], opt.option("KIND", "linear, or difference of means.")] = "linear",
    layers: opt.Layers = "all",
    save: Save = None,
    output: Drawing,
) -> None:
    """Read any label of rows or documents, layer by layer.

    Trains a linear probe of each label and layer, and scores accuracy and macro F1 on the test rows, next to the most
    frequent label and a control task of random labels; 95 % intervals over documents. --save also writes the
    directions, as plain tensors.
    """
    probe = es.probes.RowProbe(label=label, split=split, kind=kind, layers=opt.layers_of(layers))
    save_files(save, [label])
    result = probe.fit(es.open(store)).score()
    if save is not None:
        probe.save(save)
    output.draw(lambda: es.plot.probe_scores(result.summary()))
    print_notes(result.notes)
    if output.deliver(result.frame):
        print_table(_of_rows(result.summary()), title=f"{kind} probes of {label}: test rows, 95 % intervals")


def _of_rows(summary: pl.DataFrame) -> list[dict[str, Any]]:
    """Return a row for each layer, and one for the most frequent label."""
    shown: dict[int | None, dict[str, Any]] = {}
    for row in summary.sort("layer", nulls_last=True, maintain_order=True).to_dicts():
        if row["split"] != "test" or row["item"]:
            continue
        name = ROW_METRICS.get(row["metric"], "accuracy") if row["task"] == summary["task"][0] else "control"
        ends = "" if row["low"] is None else f" [{row['low']:.3f}, {row['high']:.3f}]"
        layer = "most frequent label" if row["layer"] is None else str(row["layer"])
        shown.setdefault(row["layer"], {"layer": layer})[name] = f"{row['value']:.3f}{ends}"
    return list(shown.values())


def save_files(save: Path | None, names: Collection[str]) -> dict[str, Path]:
    """Return the file of `--save` for each store or task; refuses one that is not free."""
    if save is None:
        return {}
    files = {name: save if len(names) == 1 else save / name for name in names}
    for file in files.values():
        es.probes.require_free(file)
    return files


def _by_layer(summary: pl.DataFrame) -> list[dict[str, Any]]:
    """Return a row for each store and layer: F1 by split, and the other metrics of the last split."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    has_several = summary["store"].n_unique() > 1
    task, last = summary["task"][0], summary["split"][-1]
    for row in summary.filter(summary["item"] == "").to_dicts():
        is_task = row["task"] == task
        first = ({"store": row["store"]} if has_several else {}) | {"layer": str(row["layer"])}
        shown = rows.setdefault((row["store"], row["layer"]), first)
        if is_task and row["metric"] == "f1":
            shown[f"{row['split']} F1"] = with_deviation(row)
        elif row["split"] == last and (is_task or row["metric"] == "f1") and row["metric"] in CLASS_METRICS:
            shown[CLASS_METRICS[row["metric"]]] = with_deviation(row)
    return list(rows.values())


def structure(
    stores: opt.StorePaths,
    *,
    train: Annotated[Path, opt.option("CONLLU", "Training sentences with gold trees.")],
    dev: Annotated[Path, opt.option("CONLLU", "Sentences for early stopping.")],
    test: Annotated[Path, opt.option("CONLLU", "Test sentences.")],
    probing: Probing,
    save: Save = None,
    settings: Annotated[dict[str, Any], STRUCTURE],
    output: Drawing,
) -> None:
    """Read syntax trees from vectors, layer by layer.

    Trains a linear map for each layer under which squared distances are those of words in the tree, and another for
    their depths (Hewitt & Manning 2019). Scores edges (UUAS), distances (DSpr), roots and depths (NSpr), next to
    the order of the words as a baseline. Sentences are found in the stores by their words.
    """
    options = probing.arguments(settings)
    es.probes.StructuralProbe(**options)  # checks the settings before a file is read
    trees = {name: es.corpus.read_trees(path) for name, path in (("train", train), ("dev", dev), ("test", test))}
    opened = opt.open_stores(stores)
    files = save_files(save, opened)
    results = []
    for name, store in opened.items():
        probe = es.probes.StructuralProbe(**options).fit(store, trees["train"], trees["dev"])
        if name in files:
            probe.save(files[name])
        results.append(probe.score({split: trees[split] for split in ("dev", "test")}, name=name))
    result = es.probes.ProbeResult.concat(results)
    output.draw(lambda: es.plot.structure_figure(result.summary()))
    print_notes(result.notes)
    if output.deliver(result.frame):
        title = f"structural probes of rank {probe.fitted_.shape.rank}"
        print_table(_trees_by_layer(result.summary(), has_several=len(opened) > 1), title=title)


def _trees_by_layer(summary: pl.DataFrame, *, has_several: bool) -> list[dict[str, Any]]:
    """Return a row for each store and layer, a column for each metric of the last split; the baselines last."""
    last = summary.filter(summary["split"] == summary["split"][-1]).sort("layer", nulls_last=True, maintain_order=True)
    rows: dict[tuple[str, int | None], dict[str, Any]] = {}
    for row in last.to_dicts():
        layer = "linear order" if row["layer"] is None else str(row["layer"])
        first = ({"store": row["store"].removesuffix(": linear order")} if has_several else {}) | {"layer": layer}
        shown = rows.setdefault((row["store"], row["layer"]), first)
        shown[f"{row['split']} {STRUCTURE_METRICS[row['metric']]}"] = with_deviation(row)
    return list(rows.values())
