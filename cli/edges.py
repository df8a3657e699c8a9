"""`embstore probe edges`: in which layers labelled spans, and pairs of them, can be told."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import embstore as es
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
from embstore_cli.sizes import nbytes_of
from embstore_cli.task_files import find_tasks

if TYPE_CHECKING:
    import polars as pl

EXAMPLE = "Example: embstore probe edges gum.zarr edge-probing/pos edge-probing/entities --sentences 1000"


def edges(
    store: Annotated[str, typer.Argument(metavar="STORE", help="A store of the sentences of the tasks.")],
    tasks: Annotated[
        list[Path],
        typer.Argument(
            metavar="TASK",
            help="Folders with train.jsonl, dev.jsonl and test.jsonl, or one file of train targets; or the same of a "
            "corpus (.conllu, .conll) with --task.",
        ),
    ],
    dev: Annotated[Path | None, typer.Option(metavar="FILE", help="Targets to stop by, beside a file.")] = None,
    test: Annotated[Path | None, typer.Option(metavar="FILE", help="Targets to be asked, beside a file.")] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Of a corpus: pos (xpos), upos, dependencies or entities; may be repeated."),
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Entities: an I-x that goes on with no span begins one.")
    ] = False,
    layers: Annotated[str, typer.Option(metavar="LAYERS", help="Such as 0-6, last or all.")] = "all",
    sentences: Annotated[
        int, typer.Option(metavar="N", min=0, help="Sentences of each split at most, drawn by their texts; 0: all.")
    ] = 0,
    kind: Annotated[
        Literal["mlp", "linear"],
        typer.Option(
            metavar="KIND", help="mlp, the edge probe, or linear: of the mean of a span; by layer in any case."
        ),
    ] = "mlp",
    layerwise: Annotated[bool, typer.Option("--layerwise", help="Also a probe of each layer by itself.")] = False,
    control: Annotated[
        bool, typer.Option("--control", help="Also the control task: labels drawn by the words of spans at random.")
    ] = False,
    resamples: Annotated[
        int, typer.Option(metavar="N", help="Draws of the sentences for the intervals of 95 %; 0: no intervals.")
    ] = 1000,
    epochs: Annotated[int, typer.Option(metavar="N", help="Passes over the sentences at most.")] = 30,
    patience: Annotated[
        int, typer.Option(metavar="N", min=0, help="A probe stops after N epochs without a better dev loss; 0: never.")
    ] = 3,
    batch: Annotated[int, typer.Option(metavar="N", help="Sentences a step.")] = 32,
    learning_rate: Annotated[float, typer.Option(metavar="RATE", help="Of Adam.")] = 1e-3,
    mixing_rate: Annotated[float, typer.Option(metavar="RATE", help="Of Adam, for the mixing weights.")] = 1e-2,
    dropout: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Of the hidden units (0.2), or of what linear reads (0).")
    ] = None,
    hidden: Annotated[int, typer.Option(metavar="N", help="Units of the projection and of the hidden layer.")] = 256,
    seeds: Annotated[str, typer.Option(metavar="SEEDS", help="Of initial weights, such as 0 or 1,2,3.")] = "0",
    data_seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Of the sample, the order of sentences, control labels and draws.")
    ] = 0,
    checkpoints: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep each training there after every epoch, and go on from what it keeps."),
    ] = None,
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory to train in, such as 500MB; with less, in more passes.")
    ] = "4GiB",
    save: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Save the probes there (a folder a task, where there are several)."),
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda or cuda:N.")] = "auto",
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw mixing weights and differential scores to FILE.{png,svg,pdf}."),
    ] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Read labelled spans from vectors, with probes that mix layers 0 to l.

    Edge probing of Tenney et al. 2019: F1 of P(0) to P(L), what each layer adds, the mixing weights of P(L), their
    center of gravity and the expected layer. All P(l) of a task are trained together. Intervals are those of
    scores when sentences are drawn again with replacement.
    """
    require_out(out)
    require_figure(plot, option="--plot")
    files = find_tasks(tasks, dev, test, derive=task or (), repair=repair)
    numbers = seeds_of(seeds)
    room = nbytes_of(memory, option="--memory")

    from embstore.probes import EdgeProbe, ProbeResult, Training, require_free, summary

    folders = {} if save is None else {name: save if len(files) == 1 else save / name for name in files}
    for folder in folders.values():
        require_free(folder)
    opened = es.open(store)
    kept = None if checkpoints is None else made_folder(checkpoints, option="--checkpoints")
    results = []
    for name, splits in files.items():
        probe = EdgeProbe(
            kind=kind,
            layers=layers,
            layerwise=layerwise,
            control=control,
            sentences=sentences or None,
            projection=hidden,
            hidden_size=hidden,
            dropout=dropout,
            mixing_rate=mixing_rate,
            seeds=numbers,
            seed=data_seed,
            training=Training(epochs, batch, learning_rate, patience),
            device=device,
            memory=room,
        )
        checkpoint = None if kept is None else kept / f"{name}.pt"
        with progress_bar(name, total=None, unit="sentences") as advance:
            probe.fit(opened, splits["train"], splits.get("dev"), name=name, checkpoint=checkpoint, progress=advance)
        if name in folders:
            probe.save(folders[name])
        scored = {split: edges for split, edges in splits.items() if split != "train"}
        results.append(probe.score(scored, resamples=resamples))
    result = ProbeResult.concat(results)
    frame, notes = result.frame, result.notes
    if out is not None:
        write_table(frame, out)
    if plot is not None:
        es.plot.save(es.plot.edge_layers(summary(frame)), plot)
    for note in notes:
        typer.echo(f"embstore: {note}", err=True)
    if as_json:
        print_json(frame.to_dicts())
        return
    told = summary(frame)
    if kind == "linear":
        print_table(_by_best(told), title="linear probes: F1 of each layer by itself")
        print()
    print_table(_by_task(told), title="edge probes: P(0) sees layer 0, P(L) mixes all")
    print()
    if resamples and _scored(told):
        print_table(_intervals(told), title=f"95 % intervals: {resamples:,} draws of the sentences")
        print()
    also = ", and of each layer by itself" if layerwise or kind == "linear" else ""
    print_table(_by_layer(told), title=f"F1 of P(l) by layer{also}")


def _scored(told: pl.DataFrame) -> str:
    """The split that is shown: test, where there is one."""
    held = [split for split in told["split"].unique(maintain_order=True).to_list() if split != "train"]
    return "test" if "test" in held else str(held[0]) if held else ""


def _by_task(told: pl.DataFrame) -> list[dict[str, Any]]:
    rows = []
    for (task,), part in told.partition_by("task", as_dict=True, maintain_order=True).items():
        held = {(row["split"], row["metric"], row["layer"]): row for row in part.to_dicts()}
        layers = sorted({layer for _, metric, layer in held if metric == "mixing"})
        split = _scored(part)

        def shown(metric: str, split: str, layer: int | None = None, held: dict[Any, Any] = held) -> Any:
            return _with_deviation(held.get((split, metric, layer)))

        rows.append(
            {
                "task": task,
                "split": split,
                "labels": held.get((split, "majority_f1", None), {}).get("count"),
                "majority": shown("majority_f1", split),
                "F1 P(0)": shown("f1", split, layers[0]),
                "F1 P(L)": shown("f1", split, layers[-1]),
                "center of gravity": shown("center_of_gravity", "train"),
                "expected layer": shown("expected_layer", split),
                "KL mixing": shown("mixing_kl", "train"),
                "KL scores": shown("differential_kl", split),
            }
        )
    return rows


def _by_layer(told: pl.DataFrame) -> list[dict[str, Any]]:
    """A row a layer, a column a task."""
    rows: dict[int, dict[str, Any]] = {}
    several = told["task"].n_unique() > 1
    for (task,), part in told.partition_by("task", as_dict=True, maintain_order=True).items():
        split = _scored(part)
        before = f"{task} " if several else ""
        names = {"f1": f"{before}{split} F1", "selectivity": f"{before}selectivity", "layer_f1": f"{before}alone"}
        names |= {"layer_selectivity": f"{before}its selectivity", "mixing": f"{before}s"}
        for row in part.to_dicts():
            if row["metric"] in names and row["split"] in (split, "train"):
                own = rows.setdefault(row["layer"], {"layer": str(row["layer"])})
                own[names[row["metric"]]] = _with_deviation(row)
    return [rows[layer] for layer in sorted(rows)]


def _with_deviation(row: dict[str, Any] | None) -> Any:
    if row is None or row["value"] is None:
        return None
    return round(row["value"], 4) if row["deviation"] is None else f"{row['value']:.3f}±{row['deviation']:.3f}"


def _by_best(told: pl.DataFrame) -> list[dict[str, Any]]:
    """A row a task, a column a layer, and which layer is best with its interval (Liu et al. 2019)."""
    held = told.filter(told["metric"] == "layer_f1")
    layers = sorted(set(held["layer"]))
    rows = []
    for (task,), part in held.partition_by("task", as_dict=True, maintain_order=True).items():
        scores = {row["layer"]: row for row in part.filter(part["split"] == _scored(part)).to_dicts()}
        best = max(scores.values(), key=lambda row: row["value"] or 0.0)
        first = {"task": task, "best layer": str(best["layer"]), "its interval": _interval(best)}
        rows.append(first | {str(layer): _with_deviation(scores.get(layer)) for layer in layers})
    return rows


def _intervals(told: pl.DataFrame) -> list[dict[str, Any]]:
    """A row a task: the 95 % intervals of P(0) and P(L), of the expected layer and of the selectivity."""
    rows = []
    for (task,), part in told.partition_by("task", as_dict=True, maintain_order=True).items():
        held = {(row["metric"], row["layer"]): row for row in part.filter(part["split"] == _scored(part)).to_dicts()}
        layers = sorted(layer for metric, layer in held if metric == "f1")
        shown = {
            "F1 P(0)": ("f1", layers[0]),
            "F1 P(L)": ("f1", layers[-1]),
            "expected layer": ("expected_layer", None),
        }
        shown |= {"selectivity P(L)": ("selectivity", layers[-1])} if ("selectivity", layers[-1]) in held else {}
        rows.append({"task": task, **{name: _interval(held[key]) for name, key in shown.items()}})
    return rows


def _interval(row: dict[str, Any]) -> str | None:
    return None if row["low"] is None else f"{row['low']:.3f} to {row['high']:.3f}"
