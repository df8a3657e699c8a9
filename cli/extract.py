"""`embstore plan` and `embstore extract`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import embstore as es
from embstore_cli.output import AsJson, print_json
from embstore_cli.progress import progress_bar

Unit = Literal["word", "subword"]
Pooling = Literal["mean", "first", "last", "max"]
Dtype = Literal["float16", "float32", "bfloat16", "int8"]

Corpus = Annotated[str, typer.Argument(help="Text file, by suffix: .txt .conllu .conll .pse .jsonl .tsv (.gz, .zst).")]
StorePath = Annotated[Path, typer.Argument(help="The store to write: NAME.zarr or NAME.h5.")]
Model = Annotated[str, typer.Option("--model", "-m", help="Model folder, or a name on the Hugging Face hub.")]
Layers = Annotated[str, typer.Option(help="Layers to store: all, last, or 0,3,6-12 (0 is the embedding output).")]
UnitOption = Annotated[Unit, typer.Option("--unit", help="What gets a row.")]
PoolingOption = Annotated[Pooling, typer.Option("--pooling", help="How the subwords of a word become one vector.")]
DtypeOption = Annotated[Dtype, typer.Option("--dtype", help="What the store keeps.")]
Words = Annotated[Path | None, typer.Option(help="Keep only the words of this file (one a line).", metavar="FILE")]
MinContexts = Annotated[int, typer.Option(help="Keep words of at least N distinct sentences.", metavar="N")]
MaxContexts = Annotated[
    int | None, typer.Option(help="Keep at most N occurrences a word, drawn at random.", metavar="N")
]
Per = Annotated[str | None, typer.Option(help="Count --max-contexts by word and this label column.", metavar="COLUMN")]
Labelled = Annotated[bool, typer.Option("--labelled", help="Keep only words that have a label.")]
Label = Annotated[str | None, typer.Option(help="With --labelled: the label column that counts.", metavar="COLUMN")]
MaxLength = Annotated[int | None, typer.Option(help="Longest sentence in subwords, special ones included.")]
BatchSubwords = Annotated[int | None, typer.Option(help="Subwords a batch (2048 on a CPU, 16384 on a GPU).")]
Format = Annotated[str | None, typer.Option(help="The corpus's format: text conllu conll pse edge sts.")]
Split = Annotated[str | None, typer.Option(help="How raw text becomes words: space or punctuation.")]
Normalize = Annotated[str | None, typer.Option(help="Normalise words: nfc, nfkc, lower (joined by commas).")]
Columns = Annotated[str | None, typer.Option(help="Column names of a CoNLL file, such as word,pos,-,ner.")]
Encoding = Annotated[str | None, typer.Option(help="The corpus's character encoding (utf-8).")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Compute = Annotated[str, typer.Option(help="auto, float32, float16 or bfloat16.")]
Seed = Annotated[int, typer.Option(help="Seed of all that is drawn at random.")]


def add_to(app: typer.Typer) -> None:
    app.command("plan")(plan)
    app.command("extract")(extract)


def plan(
    corpus: Corpus,
    model: Model,
    store: Annotated[Path | None, typer.Option(help="Where the store will stand.")] = None,
    layers: Layers = "all",
    unit: UnitOption = "word",
    pooling: PoolingOption = "mean",
    dtype: DtypeOption = "float16",
    words: Words = None,
    min_contexts: MinContexts = 1,
    max_contexts: MaxContexts = None,
    per: Per = None,
    labelled: Labelled = False,
    label: Label = None,
    max_length: MaxLength = None,
    batch_subwords: BatchSubwords = None,
    format: Format = None,
    split: Split = None,
    normalize: Normalize = None,
    columns: Columns = None,
    encoding: Encoding = None,
    device: Device = "auto",
    compute_dtype: Compute = "auto",
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Say what an extraction will cost, before any compute."""
    made = _plan(**locals_of(locals(), without=("as_json",)))
    if as_json:
        print_json(made.as_json())
    else:
        print(made)
    made.estimate.require_space()


def extract(
    corpus: Corpus,
    store: StorePath,
    model: Model,
    layers: Layers = "all",
    unit: UnitOption = "word",
    pooling: PoolingOption = "mean",
    dtype: DtypeOption = "float16",
    words: Words = None,
    min_contexts: MinContexts = 1,
    max_contexts: MaxContexts = None,
    per: Per = None,
    labelled: Labelled = False,
    label: Label = None,
    max_length: MaxLength = None,
    batch_subwords: BatchSubwords = None,
    format: Format = None,
    split: Split = None,
    normalize: Normalize = None,
    columns: Columns = None,
    encoding: Encoding = None,
    device: Device = "auto",
    compute_dtype: Compute = "auto",
    seed: Seed = 0,
    repair: Annotated[
        bool, typer.Option("--repair", help="Verify the store first; encode again what is damaged.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Extract hidden states into a store; the same command again resumes."""
    made = _plan(**locals_of(locals(), without=("repair", "as_json")))
    if not as_json:
        print(made)
    with progress_bar("extract", total=made.layout.rows, unit="words") as advance:
        written = es.extract(made, store, repair=repair, progress=lambda state: advance(state.rows))
    if as_json:
        print_json({"store": str(store), "rows": written.rows, "plan": made.as_json()})
    else:
        print(f"{store} holds {written.rows:,} occurrences in {len(written.layers)} layers, all committed")


def locals_of(arguments: dict[str, Any], *, without: tuple[str, ...]) -> dict[str, Any]:
    """The arguments of a command but those that concern its output."""
    return {name: value for name, value in arguments.items() if name not in without}


def _plan(
    *,
    corpus: str,
    words: Path | None,
    min_contexts: int,
    max_contexts: int | None,
    per: str | None,
    labelled: bool,
    label: str | None,
    seed: int,
    **options: Any,
) -> es.Plan:
    from embstore.corpus import read_word_list

    keep = es.Keep(
        words=None if words is None else read_word_list(words),
        labelled=label if labelled and label else labelled,
        min_contexts=min_contexts,
        max_contexts=max_contexts,
        per=per,
        seed=seed,
    )
    with progress_bar("plan", total=None, unit="sentences") as advance:
        read = 0

        def count(sentences: int) -> None:
            nonlocal read
            read += sentences
            advance(read)

        return es.plan(
            corpus,
            keep=keep,
            seed=seed,
            progress=count,
            **options,
        )
