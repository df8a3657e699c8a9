"""`embstore probe mdl`: how many bits the labels of spans take, given the vectors of a layer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import embstore as es
from embstore.errors import InvalidValueError
from embstore_cli.help import Command
from embstore_cli.output import AsJson, Out, print_json, print_table, require_figure, require_out, write_table
from embstore_cli.progress import progress_bar
from embstore_cli.seeds import seeds_of
from embstore_cli.sizes import nbytes_of
from embstore_cli.task_files import find_tasks

if TYPE_CHECKING:
    import polars as pl

FRACTIONS = "0.1,0.2,0.4,0.8,1.6,3.1,6.25,12.5,25,50,100"


def add_to(probes: typer.Typer) -> None:
    example = "Example: embstore probe mdl gum.zarr edge-probing/entities --sentences 1000 --control --plot bits.png"
    probes.command("mdl", cls=Command, epilog=example)(mdl)


def mdl(
    store: Annotated[str, typer.Argument(metavar="STORE", help="A store of the sentences of the tasks.")],
    tasks: Annotated[
        list[Path],
        typer.Argument(metavar="TASK", help="Folders with train.jsonl and dev.jsonl, or one file of train targets."),
    ],
    dev: Annotated[Path | None, typer.Option(metavar="JSONL", help="Targets to stop by, beside a file.")] = None,
    fractions: Annotated[
        str, typer.Option(metavar="PERCENT", help="Where blocks end, in percent of the sentences, up to 100.")
    ] = FRACTIONS,
    kind: Annotated[
        Literal["mlp", "linear"], typer.Option(metavar="KIND", help="mlp, the edge probe, or linear.")
    ] = "mlp",
    cumulative: Annotated[bool, typer.Option("--cumulative", help="Also P(l), which mix the layers 0 to l.")] = False,
    control: Annotated[
        bool, typer.Option("--control", help="Also the control task: labels drawn by the words of spans at random.")
    ] = False,
    layers: Annotated[str, typer.Option(metavar="LAYERS", help="Such as 0-6, last or all.")] = "all",
    sentences: Annotated[
        int, typer.Option(metavar="N", min=0, help="Sentences of each split at most, drawn by their texts; 0: all.")
    ] = 0,
    epochs: Annotated[int, typer.Option(metavar="N", help="Passes over what has been sent, at most.")] = 30,
    patience: Annotated[
        int, typer.Option(metavar="N", min=0, help="A probe stops after N epochs without a better dev loss; 0: never.")
    ] = 3,
    batch: Annotated[int, typer.Option(metavar="N", help="Sentences a step.")] = 32,
    learning_rate: Annotated[float, typer.Option(metavar="RATE", help="Of Adam.")] = 1e-3,
    dropout: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Of the hidden units (0.2), or of what linear reads (0).")
    ] = None,
    hidden: Annotated[int, typer.Option(metavar="N", help="Units of the projection and of the hidden layer.")] = 256,
    seeds: Annotated[str, typer.Option(metavar="SEEDS", help="Of initial weights, such as 0 or 1,2,3.")] = "0",
    data_seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Of the sample, the order of sentences and control labels.")
    ] = 0,
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory to train in, such as 500MB; with less, in more passes.")
    ] = "4GiB",
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda or cuda:N.")] = "auto",
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw code lengths by layer to FILE.{png,svg,pdf}.")
    ] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Say how many bits labels take, given the vectors of a layer.

    Online coding of Voita & Titov 2020: labels are sent block after block, each coded by a probe trained on those
    before. Compression is the length of the uniform code over it; what frequencies alone give stands beside it.
    """
    require_out(out)
    require_figure(plot, option="--plot")
    percent = _fractions(fractions)
    files = find_tasks(tasks, dev, None)
    numbers = seeds_of(seeds)
    room = nbytes_of(memory, option="--memory")
    from embstore.probes import EdgeProbe, ProbeResult, Training, code_length

    opened = es.open(store)
    probe = EdgeProbe(
        kind=kind,
        layers=layers,
        control=control,
        sentences=sentences or None,
        projection=hidden,
        hidden_size=hidden,
        dropout=dropout,
        seeds=numbers,
        seed=data_seed,
        training=Training(epochs, batch, learning_rate, patience),
        device=device,
        memory=room,
    )
    results = []
    for name, splits in files.items():
        with progress_bar(name, total=None, unit="sentences") as advance:
            results.append(
                code_length(
                    opened,
                    splits["train"],
                    splits.get("dev"),
                    probe=probe,
                    fractions=percent,
                    cumulative=cumulative,
                    name=name,
                    progress=advance,
                )
            )
    result = ProbeResult.concat(results)
    frame, notes, told = result.frame, result.notes, result.summary()
    if out is not None:
        write_table(frame, out)
    if plot is not None:
        es.plot.save(es.plot.code_lengths(told), plot)
    for note in notes:
        typer.echo(f"embstore: {note}", err=True)
    if as_json:
        print_json(frame.to_dicts())
        return
    print_table(_by_task(told), title="code lengths in kbit")
    print()
    print_table(_by_layer(told), title="by layer: kbit, and how many times shorter than the uniform code")


def _fractions(given: str) -> tuple[float, ...]:
    try:
        return tuple(float(each) for each in given.split(","))
    except ValueError:
        raise InvalidValueError(f"--fractions {given!r} is not allowed: give percent, such as 10,25,50,100") from None


def _by_task(told: pl.DataFrame) -> list[dict[str, Any]]:
    rows = []
    for (task,), part in told.partition_by("task", as_dict=True, maintain_order=True).items():
        held = part.to_dicts()
        best = min((row for row in held if row["metric"] == "code_length"), key=lambda row: row["value"])
        alone = {row["metric"]: row["value"] for row in held if row["layer"] is None}
        rows.append(
            {
                "task": task,
                "targets": best["count"],
                "uniform": round(alone["uniform_length"] / 1000, 3),
                "frequencies": round(alone["frequency_length"] / 1000, 3),
                "shortest": _kbit(best),
                "layer": str(best["layer"]),
                "compression": round(alone["uniform_length"] / best["value"], 3),
            }
        )
    return rows


def _by_layer(told: pl.DataFrame) -> list[dict[str, Any]]:
    """A row a layer, two columns a code."""
    rows: dict[int, dict[str, Any]] = {}
    several = told["task"].n_unique() > 1
    codes = {"code_": "", "cumulative_": "P(l)", "control_": "control", "control_cumulative_": "control P(l)"}
    for row in told.filter(told["layer"].is_not_null()).to_dicts():
        before, _, what = row["metric"].rpartition("_")
        code = codes[f"{before}_" if before else "code_"]
        name = " ".join(filter(None, (row["task"] if several else "", code, "kbit" if what == "length" else "times")))
        own = rows.setdefault(row["layer"], {"layer": str(row["layer"])})
        own[name] = _kbit(row) if what == "length" else round(row["value"], 3)
    return [rows[layer] for layer in sorted(rows)]


def _kbit(row: dict[str, Any]) -> Any:
    value = row["value"] / 1000
    return round(value, 3) if row["deviation"] is None else f"{value:.3f}±{row['deviation'] / 1000:.3f}"
