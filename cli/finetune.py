"""`embstore finetune` and `embstore attention`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from embstore.errors import InvalidValueError
from embstore_cli.help import Command
from embstore_cli.output import AsJson, Out, print_json, print_table, require_figure, require_out, write_table
from embstore_cli.progress import progress_bar

if TYPE_CHECKING:
    import polars as pl

    from embstore.models.finetune import FineTuned

TaskName = Literal["pos", "ner", "classify", "paraphrase"]
DATA, TRAINING = "Data", "Training"

Device = Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda or mps.")]
Threads = Annotated[int | None, typer.Option(metavar="N", help="CPU threads (as many as torch takes).")]
MaxLength = Annotated[int, typer.Option(metavar="N", help="Subwords a sentence or pair, special ones included.")]
Split = Annotated[Path | None, typer.Option(metavar="FILE", rich_help_panel=DATA, help="Its file, in place of DATA's.")]


def add_to(app: typer.Typer) -> None:
    example = "Example: embstore finetune pos ud-ewt --model bert-base-uncased --out bert-pos"
    app.command("finetune", cls=Command, epilog=example)(finetune_command)
    example = "Example: embstore attention bert-base-uncased bert-pos dev.conllu --plot attention.png"
    app.command("attention", cls=Command, epilog=example)(attention_command)


def finetune_command(
    task: Annotated[TaskName, typer.Argument(metavar="TASK", help="pos, ner, classify or paraphrase.")],
    model: Annotated[
        str, typer.Option("--model", "-m", metavar="M", help="Model folder, or a name on the Hugging Face hub.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder that the model is written to.")],
    data: Annotated[
        Path | None,
        typer.Argument(
            metavar="DATA",
            help="A folder with files named train, dev and perhaps test: CoNLL-U or CoNLL columns for pos and ner, "
            "lines label TAB sentence (TAB sentence) for the others.",
        ),
    ] = None,
    train: Split = None,
    dev: Split = None,
    test: Split = None,
    label: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", rich_help_panel=DATA, help="Label column (upos of CoNLL-U, else label)."),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="LIST", rich_help_panel=DATA, help="Column names of a CoNLL file, such as word,pos,-,label."
        ),
    ] = None,
    sentences: Annotated[
        int | None,
        typer.Option(metavar="N", rich_help_panel=DATA, help="Train on N sentences or pairs, drawn at random."),
    ] = None,
    epochs: Annotated[int, typer.Option(metavar="N", rich_help_panel=TRAINING, help="Passes over train.")] = 5,
    batch_size: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            rich_help_panel=TRAINING,
            help="Sentences or pairs a batch (pos 150, ner 32, classify 200, paraphrase 350).",
        ),
    ] = None,
    lr: Annotated[float, typer.Option(metavar="RATE", rich_help_panel=TRAINING, help="Of Adam, constant.")] = 5e-5,
    max_length: MaxLength = 128,
    attention_window: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            rich_help_panel=TRAINING,
            help="A word attends to K words left and right at every layer (pos, ner; all words).",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of all that is drawn at random.")] = 0,
    device: Device = "auto",
    threads: Threads = None,
    scores: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the scores to FILE.{csv,parquet,json}.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fine-tune a model; again to resume.

    Settings are those of Zhao et al. 2020 unless given. The weights of the epoch that scores best on dev are kept,
    as an ordinary checkpoint that every command takes for a model, with a finetuning.json that says what made it.
    """
    _require_scores(scores)
    from embstore.models.finetune import Step, finetune

    at = Step(0, 0, 0)
    try:
        with progress_bar("finetune", total=None, unit="batches") as advance:

            def tell(step: Step) -> None:
                nonlocal at
                at = step
                advance(step.done, step.total)

            made = finetune(
                task, data, model=model, out=out, train=train, dev=dev, test=test, label=label, columns=columns,
                sentences=sentences, epochs=epochs, batch_size=batch_size, learning_rate=lr, max_length=max_length,
                attention_window=attention_window, seed=seed, device=device, threads=threads, progress=tell,
            )  # fmt: skip
    except KeyboardInterrupt as error:
        kept = f" in epoch {at.epoch} of {epochs}; {out} keeps the epochs before: the same command again goes on"
        raise type(error)(f"{str(error) or 'interrupted'}{kept if at.epoch else ''}") from None
    if scores is not None:
        write_table(made.scores, scores)
    if as_json:
        print_json(made.scores.to_dicts())
    else:
        _print(made)


def _require_scores(path: Path | None) -> None:
    try:
        require_out(path)
    except InvalidValueError as error:
        raise InvalidValueError(str(error).replace("--out", "--scores", 1)) from None


def _print(made: FineTuned) -> None:
    record = made.record
    rows: list[dict[str, Any]] = [
        {"epoch": str(row["epoch"]), "loss on train": row["train"]["loss"]}
        | {f"{name} on dev": value for name, value in row["dev"].items()}
        | {"": "kept" if row["epoch"] == record["best_epoch"] else ""}
        for row in record["epochs"]
    ]
    learnt, dev = record["data"]["train"], record["data"]["dev"]
    print_table(rows, title=f"{record['task']}: {learnt['examples']:,} sentences, {len(record['labels'])} labels")
    for split, data in record["data"].items():
        if data["labels_cut"]:
            print(f"beyond the length, and neither learnt nor scored: {data['labels_cut']:,} labels of {split}")
    told = "" if record["test"] is None else f", on test {record['test'][record['metric']]:.4f}"
    best = next(row["dev"] for row in record["epochs"] if row["epoch"] == record["best_epoch"])
    print(f"{made.path}: {record['metric']} {best[record['metric']]:.4f} on dev ({dev['labels']:,} labels){told}")


def attention_command(
    model_a: Annotated[str, typer.Argument(metavar="MODEL_A", help="Model folder, or a name on the hub.")],
    model_b: Annotated[str, typer.Argument(metavar="MODEL_B", help="Another of the same shape and tokenizer.")],
    corpus: Annotated[Path, typer.Argument(metavar="CORPUS", help="The sentences, in any format of extract.")],
    sentences: Annotated[
        int | None, typer.Option(metavar="N", help="Only N sentences, drawn at random (all of them).")
    ] = None,
    max_length: MaxLength = 128,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the sentences drawn.")] = 0,
    device: Device = "auto",
    threads: Threads = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw heads and layers to FILE.{png,svg,pdf}.")
    ] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Compare the self-attention of two models, head by head.

    The cosine of a head's weights in one with those in the other over all sentences (Zhao et al. 2020, Figure 7).
    Layer l is the attention of block l, from 1; heads count from 0.
    """
    require_out(out)
    require_figure(plot, option="--plot")
    from embstore.models.transformer.attention_maps import attention_similarity

    with progress_bar("attention", total=None, unit="sentences") as advance:
        table = attention_similarity(
            model_a, model_b, corpus, max_length=max_length, sentences=sentences, seed=seed, device=device,
            threads=threads, progress=advance,
        )  # fmt: skip
    if out is not None:
        write_table(table, out)
    if plot is not None:
        from embstore import plot as figures

        names = " and ".join(Path(name).name for name in (model_a, model_b))
        figures.save(figures.attention_heatmap(table, title=f"Self-attention weights: {names}"), plot)
    if as_json:
        print_json(table.to_dicts())
    else:
        _print_layers(table)


def _print_layers(table: pl.DataFrame) -> None:
    rows = []
    for (layer,), part in table.group_by("layer", maintain_order=True):
        values = part.sort("value")
        told = {"layer": str(layer), "mean": float(values["value"].to_numpy().mean())}
        rows.append(
            told | {"least": values["value"][0], "of head": str(values["head"][0]), "most": values["value"][-1]}
        )
    print_table(rows, title="cosine of self-attention weights over heads", right=("layer", "of head"))
