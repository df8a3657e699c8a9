"""`embstore plan` and `embstore extract`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import embstore as es
from embstore.errors import StorageError
from embstore_cli.help import Command
from embstore_cli.output import AsJson, print_json
from embstore_cli.progress import progress_bar
from embstore_cli.windows import AttentionWindow, ContextWindow, places, windows_asked
from embstore_cli.workers import Cluster, Devices, Workers, executor_of, planning_device, require_one_pass

if TYPE_CHECKING:
    from embstore.extraction.sweep import WindowPlan
    from embstore.store.storage.location import ObjectPath

UnitName = Literal["word", "subword"]
PoolingName = Literal["mean", "first", "last", "max"]
DtypeName = Literal["float16", "float32", "bfloat16", "int8"]

MODEL = "Model"
STORED = "What is stored"
KEPT = "Which words are kept"
READ = "How the corpus is read"

Corpus = Annotated[
    str,
    typer.Argument(
        metavar="CORPUS",
        help="A text file or a folder of them: .txt, .conllu, .conll, .pse, .jsonl or .tsv, also .gz or .zst.",
    ),
]
StorePath = Annotated[
    str, typer.Argument(metavar="STORE", help="The store to write: NAME.zarr, NAME.h5 or s3://BUCKET/NAME.zarr.")
]
Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        metavar="M",
        rich_help_panel=MODEL,
        help="Model folder or hub name; or a file of word vectors, random:DIM, subwords:M, bag: before these.",
    ),
]
Device = Annotated[str, typer.Option(metavar="NAME", rich_help_panel=MODEL, help="auto, cpu, cuda or cuda:N.")]
Compute = Annotated[
    str,
    typer.Option(
        metavar="DTYPE",
        rich_help_panel=MODEL,
        help="What the model computes in: float32, float16 or bfloat16; auto is float32 on a CPU, else float16.",
    ),
]
BatchSubwords = Annotated[
    int | None,
    typer.Option(metavar="N", rich_help_panel=MODEL, help="Subwords a batch (2048 on a CPU, 16384 on a GPU)."),
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        rich_help_panel=MODEL,
        help="Cut sentences after so many subwords, special ones included (the model's own limit).",
    ),
]
Layers = Annotated[
    str,
    typer.Option(
        metavar="LIST",
        rich_help_panel=STORED,
        help="all, last, or numbers such as 0,3,6-12; 0 is the embedding output, N the output of block N.",
    ),
]
Unit = Annotated[UnitName, typer.Option(metavar="UNIT", rich_help_panel=STORED, help="A row a word, or a subword.")]
Pooling = Annotated[
    PoolingName,
    typer.Option(
        metavar="HOW",
        rich_help_panel=STORED,
        help="How a word's subwords become one vector: mean, first, last or max.",
    ),
]
Dtype = Annotated[
    DtypeName,
    typer.Option(metavar="DTYPE", rich_help_panel=STORED, help="float16, float32, bfloat16 or int8."),
]
Words = Annotated[
    Path | None, typer.Option(metavar="FILE", rich_help_panel=KEPT, help="Only the words of this file, one a line.")
]
Labelled = Annotated[bool, typer.Option("--labelled", rich_help_panel=KEPT, help="Only words that have a label.")]
Label = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", rich_help_panel=KEPT, help="Only words that have a label in this column."),
]
MinContexts = Annotated[
    int, typer.Option(metavar="N", rich_help_panel=KEPT, help="Only words that occur in N different sentences or more.")
]
MaxContexts = Annotated[
    int | None,
    typer.Option(metavar="N", rich_help_panel=KEPT, help="At most N occurrences of a word, drawn at random."),
]
Per = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN", rich_help_panel=KEPT, help="Count --max-contexts for each word and label of this column."
    ),
]
Seed = Annotated[int, typer.Option(metavar="N", rich_help_panel=KEPT, help="Seed of what is drawn at random.")]
Format = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", rich_help_panel=READ, help="text, conllu, conll, pse, edge or sts (told by the suffix)."
    ),
]
Split = Annotated[
    str | None,
    typer.Option(metavar="HOW", rich_help_panel=READ, help="Text becomes words at each space, or punctuation too."),
]
Normalize = Annotated[
    str | None,
    typer.Option(metavar="LIST", rich_help_panel=READ, help="nfc, nfkc, lower, joined by commas (words as written)."),
]
Columns = Annotated[
    str | None,
    typer.Option(metavar="LIST", rich_help_panel=READ, help="Column names of a .conll file, such as word,pos,-,ner."),
]
Encoding = Annotated[
    str | None, typer.Option(metavar="NAME", rich_help_panel=READ, help="Character encoding, such as latin-1 (utf-8).")
]


def add_to(app: typer.Typer) -> None:
    app.command("plan", cls=Command, epilog="Example: embstore plan ewt.conllu --model bert-base-uncased")(plan)
    app.command(
        "extract",
        cls=Command,
        epilog="Example: embstore extract ewt.conllu ewt.zarr -m bert-base-uncased --layers 0,6,12",
    )(extract)


def plan(
    corpus: Corpus,
    model: Model,
    device: Device = "auto",
    compute_dtype: Compute = "auto",
    batch_subwords: BatchSubwords = None,
    max_length: MaxLength = None,
    layers: Layers = "all",
    unit: Unit = "word",
    pooling: Pooling = "mean",
    context_window: ContextWindow = None,
    attention_window: AttentionWindow = None,
    dtype: Dtype = "float16",
    words: Words = None,
    labelled: Labelled = False,
    label: Label = None,
    min_contexts: MinContexts = 1,
    max_contexts: MaxContexts = None,
    per: Per = None,
    seed: Seed = 0,
    format: Format = None,
    split: Split = None,
    normalize: Normalize = None,
    columns: Columns = None,
    encoding: Encoding = None,
    store: Annotated[
        str | None, typer.Option(metavar="STORE", help="Where the store will stand, for the space that is free there.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what an extraction will cost before any of it is done.

    Reads the corpus once and times a few batches. Ends with status 1 where the store would not fit on the disk.
    """
    made = _plan(**_without(locals(), "as_json"))
    if as_json:
        print_json(made.as_json())
    else:
        print(made)
    made.estimate.require_space()


def extract(
    corpus: Corpus,
    store: StorePath,
    model: Model,
    device: Device = "auto",
    compute_dtype: Compute = "auto",
    batch_subwords: BatchSubwords = None,
    max_length: MaxLength = None,
    layers: Layers = "all",
    unit: Unit = "word",
    pooling: Pooling = "mean",
    context_window: ContextWindow = None,
    attention_window: AttentionWindow = None,
    dtype: Dtype = "float16",
    words: Words = None,
    labelled: Labelled = False,
    label: Label = None,
    min_contexts: MinContexts = 1,
    max_contexts: MaxContexts = None,
    per: Per = None,
    seed: Seed = 0,
    format: Format = None,
    split: Split = None,
    normalize: Normalize = None,
    columns: Columns = None,
    encoding: Encoding = None,
    cluster: Cluster = None,
    workers: Workers = None,
    devices: Devices = None,
    repair: Annotated[bool, typer.Option("--repair", help="Verify first; encode again what is damaged.")] = False,
    as_json: AsJson = False,
) -> None:
    """Extract hidden states into a store; again to resume.

    The same command again goes on where an earlier one ended. A store that other options or another corpus or
    model made is left as it is.
    """
    given = _without(locals(), "repair", "as_json", "cluster", "workers", "devices")
    from embstore.extraction.sweep import extract_windows
    from embstore.store.storage.location import place_of

    asked = windows_asked(context_window, attention_window)
    paths = places(place_of(store), asked)
    for path in paths.values():
        _require_place(path, repair=repair)
    executor = executor_of(cluster, workers, devices)
    if executor is not None:
        require_one_pass(asked)
    made = _plan(**{**given, "device": planning_device(device, devices)})
    if not as_json:
        print(made, flush=True)
    total = made.layout.n_rows if isinstance(made, es.Plan) else made.n_rows
    done = 0

    def tell(state: es.extraction.Progress) -> None:
        nonlocal done
        done = state.rows
        advance(done)

    try:
        with progress_bar("extract", total=total, unit="words") as advance:
            if isinstance(made, es.Plan):
                (path,) = paths.values()
                written = {path: es.extract(made, path, repair=repair, executor=executor, progress=tell)}
            else:
                stores = extract_windows(made, store, repair=repair, executor=executor, progress=tell)
                written = {paths[window]: one for window, one in stores.items()}
    except KeyboardInterrupt as error:
        begun = [str(path) for path in paths.values() if not isinstance(path, Path) or path.exists()]
        kept = f"; what {', '.join(begun)} holds is kept: the same command again goes on" if begun else ""
        raise type(error)(f"{str(error) or 'interrupted'} at {done:,} of {total:,} occurrences{kept}") from None
    if as_json:
        told = [{"store": str(path), "n_rows": one.n_rows} for path, one in written.items()]
        print_json({**(told[0] if isinstance(made, es.Plan) else {"stores": told}), "plan": made.as_json()})
        return
    for path, one in written.items():
        print(f"{path} holds {one.n_rows:,} occurrences in {_layers(len(one.layers))}, all committed")


def _require_place(store: Path | ObjectPath, *, repair: bool) -> None:
    """Refuse a path where no store can be written or resumed before a corpus is read for it."""
    from embstore.store.backend import open_reader, require_place, stands
    from embstore.store.storage.objects import Objects

    require_place(store)
    if stands(store):
        if not repair:
            open_reader(store)
    elif isinstance(store, Path):
        _require_rights(store.parent)
    else:
        Objects.at(store).names("commits")  # is there the bucket, and the right to look into it


def _require_rights(folder: Path) -> None:
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise StorageError(f"cannot write in {folder}: permission denied; choose another folder")


def _layers(count: int) -> str:
    return "1 layer" if count == 1 else f"{count} layers"


def _without(arguments: dict[str, Any], *left_out: str) -> dict[str, Any]:
    """The arguments of a command but those that concern its output."""
    return {name: value for name, value in arguments.items() if name not in left_out}


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
    context_window: str | None,
    attention_window: str | None,
    **options: Any,
) -> es.Plan | WindowPlan:
    from embstore.corpus import read_word_list
    from embstore.extraction.sweep import plan_windows

    kind, windows = windows_asked(context_window, attention_window)

    keep = es.Keep(
        words=None if words is None else read_word_list(words),
        labelled=label or labelled,
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

        options |= {"keep": keep, "seed": seed, "progress": count}
        if len(windows) > 1:
            options[f"{kind}_windows"] = windows
            return plan_windows(corpus, **options)
        options[f"{kind}_window"] = windows[0]
        return es.plan(corpus, **options)
