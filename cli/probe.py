"""What can be read from vectors: classifiers trained on them and scored on words never seen."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import embstore as es
from embstore.errors import InvalidValueError
from embstore_cli import edges, mdl, structure, trace
from embstore_cli.help import Command
from embstore_cli.output import AsJson, Out, print_json, print_table, require_figure, require_out, write_table
from embstore_cli.progress import progress_bar
from embstore_cli.seeds import seeds_of

if TYPE_CHECKING:
    import polars as pl

    from embstore.probes import ProbeResult

Layers = Annotated[str, typer.Option(metavar="LAYERS", help="Such as 0,6-12, last or all.")]
Label = Annotated[str, typer.Option(metavar="COLUMN", help="The label column of the classes.")]
Device = Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda or cuda:N.")]
ByClass = Annotated[bool, typer.Option("--by-class", help="Also print the F1 of each class.")]
ByFrequency = Annotated[
    bool, typer.Option("--by-frequency", help="Also print the F1 of words by how often they occur.")
]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw F1 by layer to FILE.{png,svg,pdf}.")]
SPLITS = ("train", "dev", "test")
TITLES = {"class_f1": "F1 by class", "frequency_f1": "F1 by how often a word occurs in the store"}


def add_to(app: typer.Typer) -> None:
    probes = typer.Typer(help="Train probes on vectors, and apply them to others.", no_args_is_help=True)
    example = "Example: embstore probe classes semcor.zarr --train train.tsv --test test.tsv --plot layers.png"
    probes.command("classes", cls=Command, epilog=example)(classes)
    example = "Example: embstore probe apply probes/ finetuned.zarr"
    probes.command("apply", cls=Command, epilog=example)(apply)
    probes.command("edges", cls=Command, epilog=edges.EXAMPLE)(edges.edges)
    probes.command("trace", cls=Command, epilog=trace.EXAMPLE)(trace.trace)
    mdl.add_to(probes)
    structure.add_to(probes)
    app.add_typer(probes, name="probe")


def classes(
    stores: Annotated[list[str], typer.Argument(metavar="STORE", help="One or more stores.")],
    train: Annotated[
        Path,
        typer.Option(
            metavar="TSV", help="Words to learn from, as Wiki-PSE lists them with their classes, or one a line."
        ),
    ],
    test: Annotated[Path, typer.Option(metavar="TSV", help="Words to be asked, none of them in --train.")],
    dev: Annotated[
        Path | None, typer.Option(metavar="TSV", help="Words to stop by (a fifth of those of --train).")
    ] = None,
    dev_share: Annotated[
        float, typer.Option(metavar="SHARE", help="The share of --train that is kept to stop by.")
    ] = 0.2,
    label: Label = "class",
    level: Annotated[
        Literal["context", "type"],
        typer.Option(metavar="LEVEL", help="context: an example an occurrence; type: one a word, their mean."),
    ] = "context",
    kind: Annotated[
        Literal["linear", "mlp"], typer.Option(metavar="KIND", help="linear, or mlp: one hidden layer.")
    ] = "linear",
    hidden: Annotated[int, typer.Option(metavar="N", help="Units of the hidden layer of mlp.")] = 1024,
    layers: Layers = "all",
    epochs: Annotated[int, typer.Option(metavar="N", help="Passes over the examples at most.")] = 50,
    patience: Annotated[
        int, typer.Option(metavar="N", min=0, help="A probe stops after N epochs without a better dev loss; 0: never.")
    ] = 3,
    batch: Annotated[int, typer.Option(metavar="N", help="Examples a step.")] = 256,
    learning_rate: Annotated[float, typer.Option(metavar="RATE", help="Of Adam.")] = 1e-3,
    seeds: Annotated[
        str, typer.Option(metavar="SEEDS", help="Of initial weights, such as 0 or 1,2,3: one probe each.")
    ] = "0",
    data_seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Of dev words, contexts, control classes and the order of examples.")
    ] = 0,
    max_contexts: Annotated[
        int, typer.Option(metavar="N", min=0, help="Contexts a word and class at most, drawn at random; 0: all.")
    ] = 100,
    balance: Annotated[bool, typer.Option("--balance", help="A class weighs as much as all others.")] = False,
    control: Annotated[
        bool, typer.Option("--control", help="Also the control task: classes drawn by word at random.")
    ] = False,
    splits: Annotated[str, typer.Option(metavar="NAMES", help="What is scored, of train, dev and test.")] = "dev,test",
    by_class: ByClass = False,
    by_frequency: ByFrequency = False,
    save: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Save the probes there (a folder a store, where there are several)."),
    ] = None,
    device: Device = "auto",
    plot: Plot = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Read the classes of words from their vectors, layer by layer.

    Trains a binary probe for each class and layer, and scores them on words that none of them has seen: micro F1 over
    word-class decisions, each right where at least half of its contexts are (Zhao et al. 2020).
    """
    require_out(out)
    require_figure(plot, option="--plot")
    numbers = seeds_of(seeds)
    from embstore.probes import ClassProbe, ProbeResult, Training, require_free, split_words

    opened = named_stores(stores)
    if save is not None:
        for name in opened:
            require_free(_bank_folder(save, name, len(opened)))
    known = None if dev is None else _words_of(dev)
    split = split_words(_words_of(train), _words_of(test), dev=known, dev_share=dev_share, seed=data_seed)
    results = []
    for name, store in opened.items():
        probe = ClassProbe(
            label=label,
            level=level,
            kind=kind,
            hidden_size=hidden,
            layers=layers,
            seeds=numbers,
            seed=data_seed,
            balance=balance,
            max_contexts=max_contexts or None,
            control=control,
            training=Training(epochs, batch, learning_rate, patience),
            device=device,
        )
        with progress_bar(f"probe {name}", total=None, unit="examples") as advance:
            probe.fit(store, split, progress=advance)
        results.append(probe.score(splits=_parts(splits), name=name))
        if save is not None:
            probe.save(_bank_folder(save, name, len(opened)))
    result = ProbeResult.concat(results)
    words = f"{kind} probes of {label}, {level} level"
    _show(result, words, by_class=by_class, by_frequency=by_frequency, plot=plot, out=out, as_json=as_json)


def apply(
    bank: Annotated[Path, typer.Argument(metavar="BANK", help="Probes saved by probe classes --save.")],
    stores: Annotated[list[str], typer.Argument(metavar="STORE", help="Stores of the same width.")],
    test: Annotated[
        Path | None, typer.Option(metavar="TSV", help="Other words to be asked than those the probes were made with.")
    ] = None,
    layers: Annotated[
        str, typer.Option(metavar="LAYERS", help="Of those that the bank has, such as 0,6-12, last or all.")
    ] = "all",
    label: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The label column, if it is called otherwise there.")
    ] = None,
    splits: Annotated[str, typer.Option(metavar="NAMES", help="What is scored, of train, dev and test.")] = "test",
    by_class: ByClass = False,
    by_frequency: ByFrequency = False,
    device: Device = "auto",
    plot: Plot = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Score saved probes on another store, layer by layer.

    As with the probes of a pretrained model on its fine-tuned one (Zhao et al. 2020, setup (a)).
    """
    require_out(out)
    require_figure(plot, option="--plot")
    from embstore.probes import ClassProbe, ProbeResult, load

    probe = load(bank)
    if not isinstance(probe, ClassProbe):
        raise InvalidValueError(f"{bank} has {probe.name} probes: give probes saved by probe classes --save")
    probe.device = device
    other = None if test is None else _words_of(test)
    result = ProbeResult.concat(
        probe.score(other, data=store, splits=_parts(splits), layers=layers, label=label, name=name)
        for name, store in named_stores(stores).items()
    )
    words = f"{probe.kind} probes of {bank.name}, {probe.level} level"
    _show(result, words, by_class=by_class, by_frequency=by_frequency, plot=plot, out=out, as_json=as_json)


def _words_of(path: Path) -> dict[str, Iterable[str]]:
    """Words with their classes, as Wiki-PSE has them; or one a line, whose classes the store has."""
    from embstore.corpus import read_word_classes

    return dict(read_word_classes(path, optional=True))


def _parts(splits: str) -> tuple[str, ...]:
    named = tuple(dict.fromkeys(splits.split(",")))
    for name in named:
        if name not in SPLITS:
            raise InvalidValueError(f"--splits {splits!r} is not allowed: give some of {', '.join(SPLITS)}")
    return named


def named_stores(paths: Iterable[str]) -> dict[str, es.Store]:
    """Open stores by the name of their file, with a number where two have the same name."""
    named: dict[str, es.Store] = {}
    for path in paths:
        store = es.open(path)
        name, number = store.path.stem, 2
        while name in named:
            name, number = f"{store.path.stem}-{number}", number + 1
        named[name] = store
    return named


def _bank_folder(save: Path, store: str, stores: int) -> Path:
    return save if stores == 1 else save / store


def _show(
    result: ProbeResult,
    words: str,
    *,
    by_class: bool,
    by_frequency: bool,
    plot: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    if out is not None:
        write_table(result.frame, out)
    if plot is not None:
        es.plot.save(es.plot.probe_scores(result.summary()), plot)
    for note in result.notes:
        typer.echo(f"embstore: {note}", err=True)
    if as_json:
        print_json(result.frame.to_dicts())
        return
    summary = result.summary()
    print_table(_by_layer(summary), title=words)
    for metric, wanted in (("class_f1", by_class), ("frequency_f1", by_frequency)):
        if wanted:
            print()
            print_table(_by_item(summary, metric), title=TITLES[metric])


def _by_layer(summary: pl.DataFrame) -> list[dict[str, Any]]:
    """A row a store and layer: F1 by split, and what else is said of the last split."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    several = summary["store"].n_unique() > 1
    task, last = summary["task"][0], summary["split"][-1]
    for row in summary.filter(summary["item"] == "").to_dicts():
        own = row["task"] == task
        told = rows.setdefault(
            (row["store"], row["layer"]), ({"store": row["store"]} if several else {}) | {"layer": str(row["layer"])}
        )
        if own and row["metric"] == "f1":
            told[f"{row['split']} F1"] = _with_deviation(row)
        elif row["split"] == last and (own or row["metric"] == "f1"):
            named = {"contexts_f1": "by contexts", "f1": "control", "selectivity": "selectivity"}
            if row["metric"] in named:
                told[named[row["metric"]]] = _with_deviation(row)
    return list(rows.values())


def _by_item(summary: pl.DataFrame, metric: str) -> list[dict[str, Any]]:
    """A row a store and item, a column a layer, of the last split."""
    task, last = summary["task"][0], summary["split"][-1]
    held = summary.filter((summary["metric"] == metric) & (summary["task"] == task) & (summary["split"] == last))
    several = held["store"].n_unique() > 1
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for row in held.to_dicts():
        first = ({"store": row["store"]} if several else {}) | {"item": row["item"], "pairs": row["count"]}
        rows.setdefault((row["store"], row["item"]), first)[f"layer {row['layer']}"] = _with_deviation(row)
    return list(rows.values())


def _with_deviation(row: dict[str, Any]) -> Any:
    if row["value"] is None or row["deviation"] is None:
        return None if row["value"] is None else round(row["value"], 4)
    return f"{row['value']:.3f}±{row['deviation']:.3f}"
