"""Syntax trees in the geometry of vectors: the structural probe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import embstore as es
from embstore.errors import InvalidValueError
from embstore_cli.help import Command
from embstore_cli.output import (
    AsJson,
    Out,
    made_folder,
    print_json,
    print_table,
    require_figure,
    require_out,
    write_table,
)
from embstore_cli.progress import progress_bar
from embstore_cli.seeds import seeds_of

if TYPE_CHECKING:
    from embstore.probes import ProbeResult, StructuralProbe

NAMES = {"uuas": "UUAS", "dspr": "DSpr", "root_accuracy": "root", "nspr": "NSpr"}


def add_to(probes: typer.Typer) -> None:
    example = (
        "Example: embstore probe structure ewt.zarr --train train.conllu --dev dev.conllu --test test.conllu "
        "--plot layers.png"
    )
    probes.command("structure", cls=Command, epilog=example)(structure)


def structure(
    stores: Annotated[list[str], typer.Argument(metavar="STORE", help="One or more stores of unit word.")],
    train: Annotated[Path, typer.Option(metavar="CONLLU", help="Sentences with gold trees to learn from.")],
    dev: Annotated[Path, typer.Option(metavar="CONLLU", help="Sentences to slow down and stop by.")],
    test: Annotated[Path, typer.Option(metavar="CONLLU", help="Sentences to be asked.")],
    task: Annotated[
        Literal["distance", "depth", "both"], typer.Option(metavar="TASK", help="distance, depth or both.")
    ] = "both",
    layers: Annotated[str, typer.Option(metavar="LAYERS", help="Such as 0,6-12, last or all.")] = "all",
    rank: Annotated[
        int | None, typer.Option(metavar="N", help="Rows of the map B (128, or the vectors' width if less).")
    ] = None,
    sentences: Annotated[
        int, typer.Option(metavar="N", min=0, help="At most N sentences of each file, drawn at random; 0: all.")
    ] = 0,
    epochs: Annotated[int, typer.Option(metavar="N", help="Passes over the sentences at most.")] = 40,
    patience: Annotated[
        int, typer.Option(metavar="N", help="A probe stops after N epochs without a better dev loss.")
    ] = 5,
    batch: Annotated[int, typer.Option(metavar="N", help="Sentences a step.")] = 20,
    learning_rate: Annotated[float, typer.Option(metavar="RATE", help="Of Adam, at first.")] = 1e-3,
    seeds: Annotated[
        str, typer.Option(metavar="SEEDS", help="Of initial weights, such as 0 or 1,2,3: one probe each.")
    ] = "0",
    data_seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the sentences drawn, and of their order.")] = 0,
    splits: Annotated[str, typer.Option(metavar="NAMES", help="What is scored, of train, dev and test.")] = "dev,test",
    sentence: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Draw the trees of test sentence N (from 0), of the first store."),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Save the probes there (a folder a store, where there are several)."),
    ] = None,
    checkpoints: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep each training there after every epoch, and go on from what it keeps."),
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda or cuda:N.")] = "auto",
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw scores by layer to FILE.{png,svg,pdf}.")
    ] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Read syntax trees from distances and lengths of vectors, layer by layer.

    Trains a linear map for each layer, under which squared distances are those of words in the tree, and another for
    their depths (Hewitt & Manning 2019). Scores edges (UUAS), distances (DSpr), roots and depths (NSpr), beside the
    order of the words as a baseline. Sentences are found in the stores by their words.
    """
    require_out(out)
    require_figure(plot, option="--plot")
    if sentence is not None and plot is None:
        raise InvalidValueError(f"--sentence {sentence} is drawn with --plot: name a file")
    if sentence is not None and task == "depth":
        raise InvalidValueError(f"--sentence {sentence} needs a distance probe: choose --task distance or both")
    numbers = seeds_of(seeds)
    from embstore.corpus import read_trees
    from embstore.probes import ProbeResult, StructuralProbe, Training, require_free
    from embstore_cli.probe import named_stores

    trees = {name: read_trees(path) for name, path in (("train", train), ("dev", dev), ("test", test))}
    last = len(trees["test"]) - 1
    if sentence is not None and sentence > last:
        raise InvalidValueError(f"there is no test sentence {sentence}: give --sentence 0 to {last}")
    named = tuple(dict.fromkeys(splits.split(",")))
    for name in named:
        if name not in trees:
            raise InvalidValueError(f"--splits {splits!r} is not allowed: give some of {', '.join(trees)}")
    opened = named_stores(stores)
    folders = {name: _folder(save, name, len(opened)) for name in opened} if save is not None else {}
    for folder in folders.values():
        require_free(folder)
    kept = None if checkpoints is None else made_folder(checkpoints, option="--checkpoints")
    probes: dict[str, StructuralProbe] = {}
    results = []
    for name, store in opened.items():
        probe = StructuralProbe(
            layers=layers,
            tasks=("distance", "depth") if task == "both" else (task,),
            rank=rank,
            seeds=numbers,
            seed=data_seed,
            sentences=sentences or None,
            training=Training(epochs, batch, learning_rate, patience),
            device=device,
        )
        checkpoint = None if kept is None else kept / f"{name}.pt"
        with progress_bar(f"probe {name}", total=None, unit="sentences") as advance:
            probe.fit(store, trees["train"], trees["dev"], checkpoint=checkpoint, progress=advance)
        if name in folders:
            probe.save(folders[name])
        results.append(probe.score({split: trees[split] for split in named}, name=name))
        probes[name] = probe
    result = ProbeResult.concat(results)
    first = next(iter(probes.values()))
    if plot is not None:
        drawn = (
            es.plot.structure_figure(result.summary())
            if sentence is None
            else es.plot.tree_figure(first.predict(trees["test"][sentence]))
        )
        es.plot.save(drawn, plot)
    if out is not None:
        write_table(result.frame, out)
    for note in result.notes:
        typer.echo(f"embstore: {note}", err=True)
    if as_json:
        print_json(result.frame.to_dicts())
        return
    print_table(
        _by_layer(result, several=len(probes) > 1), title=f"structural probes of rank {first.fitted.shape.rank}"
    )


def _folder(save: Path, store: str, stores: int) -> Path:
    return save if stores == 1 else save / store


def _by_layer(result: ProbeResult, *, several: bool) -> list[dict[str, Any]]:
    """A row a store and layer, a column a metric of the last split; the baselines last."""
    summary = result.summary()
    held = summary.filter(summary["split"] == summary["split"][-1]).sort("layer", nulls_last=True, maintain_order=True)
    rows: dict[tuple[str, int | None], dict[str, Any]] = {}
    for row in held.to_dicts():
        layer = "linear order" if row["layer"] is None else str(row["layer"])
        first = ({"store": row["store"].removesuffix(": linear order")} if several else {}) | {"layer": layer}
        told = rows.setdefault((row["store"], row["layer"]), first)
        told[f"{row['split']} {NAMES[row['metric']]}"] = _with_deviation(row)
    return list(rows.values())


def _with_deviation(row: dict[str, Any]) -> Any:
    if row["value"] is None or row["deviation"] is None:
        return None if row["value"] is None else round(row["value"], 4)
    return f"{row['value']:.3f}±{row['deviation']:.3f}"
