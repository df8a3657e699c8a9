"""Commands that train class probes and structural probes, and that apply saved class probes."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import embstore as es
import embstore_cli.options as opt
from embstore.errors import InvalidValueError
from embstore_cli.output import Drawing, create_folder, print_notes, print_table, with_deviation

if TYPE_CHECKING:
    import polars as pl

CLASSES = opt.Config(
    lambda: [es.Training, es.ClassProbe, es.probes.split_words, {"dev": Path, "splits": tuple[str, ...]}],
    *(*opt.TRAINING, "seed", "memory", "level", "hidden_size", "max_contexts", "balance", "dev_share"),
)
STRUCTURE_METRICS = {"uuas": "UUAS", "dspr": "DSpr", "root_accuracy": "root", "nspr": "NSpr"}
APPLIED = opt.Config(lambda: {"splits": tuple[str, ...], "label": str})
STRUCTURE = opt.Config(
    lambda: [es.Training, es.StructuralProbe, {"splits": tuple[str, ...]}],
    *(*opt.TRAINING, "seed", "memory", "rank", "tasks"),
)
Words = Annotated[Path, opt.option("FILE", "Words, one a line or as Wiki-PSE lists them with classes.")]
MoreWords = Annotated[Path | None, opt.option("FILE", "Words to score, one a line, in place of those of the probes.")]
By = Annotated[
    Literal["class", "frequency", "both"] | None,
    opt.option(
        "WHAT", "Also print F1 by class, by the frequency of words, or by both: class, frequency, both.", "--by"
    ),
]
METRICS = {
    "class": ("class_f1", "F1 by class"),
    "frequency": ("frequency_f1", "F1 by how often a word occurs in the corpus"),
}


def classes(
    stores: opt.StorePaths,
    *,
    train: Words,
    test: Annotated[Path, opt.option("FILE", "Test words; must not overlap --train.")],
    label: Annotated[str, opt.option("COLUMN", "The label column of the classes.")] = "class",
    kind: Annotated[Literal["linear", "mlp"], opt.option("KIND", "linear, or mlp with one hidden layer.")] = "linear",
    probing: opt.Probing,
    control: opt.Control = False,
    by: By = None,
    save: opt.Save = None,
    settings: Annotated[dict[str, Any], CLASSES],
    output: Drawing,
) -> None:
    """Read the classes of words from their vectors, layer by layer.

    Trains a binary probe for each class and layer, and scores them on new words: micro F1 over word-class decisions,
    each right if at least half of its contexts are (Zhao et al. 2020). Training stops early by a fifth of the --train
    words, or by those of --set dev=FILE.
    """
    chosen = settings
    splits, dev_share = _splits(chosen.pop("splits", ("dev", "test"))), chosen.pop("dev_share", 0.2)
    words = {
        name: opt.read_words(path, option=f"--{name}")
        for name, path in (("train", train), ("test", test), ("dev", chosen.pop("dev", None)))
        if path is not None
    }
    options = {"label": label, "kind": kind, "control": control, **probing.arguments(chosen)}
    es.ClassProbe(**options)  # checks the settings before a store is read
    split = es.probes.split_words(**words, dev_share=dev_share, seed=options.get("seed", 0))
    if "dev" in splits and not split.dev:
        raise InvalidValueError(
            f"--set splits={','.join(splits)} needs dev words: give --set dev=FILE, or dev_share above 0"
        )
    opened = open_stores(stores)
    files = save_files(save, opened)
    results = []
    for name, store in opened.items():
        probe = es.ClassProbe(**options).fit(store, split)
        results.append(probe.score(splits=splits, name=name))
        if name in files:
            probe.save(files[name])
    title = f"{kind} probes of {label}, {options.get('level', 'context')} level"
    _show(es.probes.ProbeResult.concat(results), title, by, output)


def apply(
    probes: Annotated[Path, opt.argument("PROBES", "Probes saved by probe classes --save.")],
    stores: opt.StorePaths,
    *,
    test: MoreWords = None,
    layers: opt.Layers = "all",
    by: By = None,
    device: opt.Device = "auto",
    settings: Annotated[dict[str, Any], APPLIED],
    output: Drawing,
) -> None:
    """Score saved probes on another store, layer by layer.

    For instance the probes of a pretrained model on its fine-tuned version (Zhao et al. 2020, setup (a)). The words
    are those that the probes were tested on, unless --test is given; --set splits=train,dev,test scores those of other
    splits too. --set label=COLUMN: the label column, if it has another name in these stores.
    """
    chosen = settings
    words = None if test is None else opt.read_words(test, option="--test")
    probe = es.probes.load(probes)
    if not isinstance(probe, es.ClassProbe):
        raise InvalidValueError(f"{probes} has {probe.name} probes: give probes saved by probe classes --save")
    probe.device = device
    options: dict[str, Any] = {"layers": opt.layers_of(layers), "label": chosen.get("label")}
    options["splits"] = _splits(chosen.get("splits", ("test",)))
    result = es.probes.ProbeResult.concat(
        probe.score(words, data=store, name=name, **options) for name, store in open_stores(stores).items()
    )
    title = f"{probe.kind} probes of {probes.name}, {probe.level} level"
    _show(result, title, by, output)


def _splits(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in ("train", "dev", "test"):
            raise InvalidValueError(f"--set splits={','.join(names)} is not allowed: give some of train, dev, test")
    return tuple(dict.fromkeys(names))


def open_stores(paths: list[str]) -> dict[str, es.Store]:
    """Open stores by the names of their file and site, with a number where two have the same name."""
    es.store.require_distinct(paths)
    named: dict[str, es.Store] = {}
    for path in paths:
        store = es.open(path)
        site = store.layout.site
        name = stem = store.path.stem + ("" if site == "residual" else f"#{site}")
        number = 2
        while name in named:
            name, number = f"{stem}-{number}", number + 1
        named[name] = store
    return named


def save_files(save: Path | None, names: Collection[str]) -> dict[str, Path]:
    """Return the file of `--save` for each store or task; refuses one that is not free."""
    if save is None:
        return {}
    files = {name: save if len(names) == 1 else save / name for name in names}
    for file in files.values():
        es.probes.require_free(file)
    return files


def _show(result: es.probes.ProbeResult, title: str, by: str | None, output: Drawing) -> None:
    summary = result.summary()
    output.draw(lambda: es.plot.probe_scores(summary))
    print_notes(result.notes)
    if output.deliver(result.frame):
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


def structure(
    stores: opt.StorePaths,
    *,
    train: Annotated[Path, opt.option("CONLLU", "Training sentences with gold trees.")],
    dev: Annotated[Path, opt.option("CONLLU", "Sentences for early stopping.")],
    test: Annotated[Path, opt.option("CONLLU", "Test sentences.")],
    probing: opt.Probing,
    sentences: opt.Sentences = 0,
    sentence: Annotated[
        int | None, opt.option("N", "With --plot: draw the trees of test sentence N (from 0) instead.", min=0)
    ] = None,
    save: opt.Save = None,
    checkpoints: opt.Checkpoints = None,
    settings: Annotated[dict[str, Any], STRUCTURE],
    output: Drawing,
) -> None:
    """Read syntax trees from vectors, layer by layer.

    Trains a linear map for each layer under which squared distances are those of words in the tree, and another for
    their depths (Hewitt & Manning 2019). Scores edges (UUAS), distances (DSpr), roots and depths (NSpr), next to
    the order of the words as a baseline. Sentences are found in the stores by their words.
    """
    chosen = settings
    splits = _splits(chosen.pop("splits", ("dev", "test")))
    options = {"n_sentences": sentences or None, **probing.arguments(chosen)}
    es.StructuralProbe(**options)  # checks the settings before a file is read
    trees = {name: es.corpus.read_trees(path) for name, path in (("train", train), ("dev", dev), ("test", test))}
    if sentence is not None and sentence >= len(trees["test"]):
        raise InvalidValueError(f"there is no test sentence {sentence}: give --sentence 0 to {len(trees['test']) - 1}")
    opened = open_stores(stores)
    if sentence is not None and options["training"].patience == 0:
        layers = next(iter(opened.values())).select(layers=options["layers"]).layers
        if len(layers) > 1:
            raise InvalidValueError(
                f"--sentence {sentence} draws the layer of the lowest dev loss, which is not measured with "
                f"--set patience=0: give one layer, such as --layers {layers[-1]}"
            )
    files = save_files(save, opened)
    folder = None if checkpoints is None else create_folder(checkpoints, option="--checkpoints")
    probes, results = [], []
    for name, store in opened.items():
        checkpoint = None if folder is None else folder / f"{name}.checkpoint"
        probe = es.StructuralProbe(**options).fit(store, trees["train"], trees["dev"], checkpoint=checkpoint)
        if name in files:
            probe.save(files[name])
        results.append(probe.score({split: trees[split] for split in splits}, name=name))
        probes.append(probe)
    result = es.probes.ProbeResult.concat(results)
    if sentence is None:
        output.draw(lambda: es.plot.structure_figure(result.summary()))
    else:
        output.draw(lambda: es.plot.tree_figure(probes[0].predict(trees["test"][sentence])))
    print_notes(result.notes)
    if output.deliver(result.frame):
        title = f"structural probes of rank {probes[0].fitted.shape.rank}"
        print_table(_trees_by_layer(result.summary(), has_several=len(probes) > 1), title=title)


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
