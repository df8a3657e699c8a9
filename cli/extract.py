"""The command that plans and runs an extraction."""

from __future__ import annotations

import os
import warnings
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import embstore as es
import embstore_cli.options as opt
from embstore.errors import InvalidValueError, StorageError
from embstore.executors import Processes
from embstore_cli.output import counted, print_json

KEPT, READ, WINDOWS = "Which words are stored", "How the corpus is read", "Context"
KEEP = ("min_contexts", "seed")
READING = ("words", "language", "normalize", "columns", "text")
COMPUTING = ("unit", "tokenize", "begin", "pack", "max_length", "batch_subwords", "seed")
OTHERS = {"word_list": Path, "compute_dtype": str}
SETTINGS = opt.Config(
    lambda: [OTHERS, {"words": str}, es.ExtractionOptions, es.corpus.Keep, es.open_corpus], *KEEP, *READING, *COMPUTING
)

SUFFIXES = dict.fromkeys(form.suffixes[0] for form in es.corpus.FORMATS.values())
Corpus = Annotated[str, opt.argument("CORPUS", f"A file or a folder of them: {', '.join(SUFFIXES)}, also .gz or .zst.")]
Model = Annotated[
    str,
    opt.option(
        "MODEL",
        "A model of Hugging Face: its name, or its folder. Vectors without context: a file of word vectors, random:DIM "
        "or subwords:MODEL.",
        "--model",
        "-m",
    ),
]
Sites = Annotated[
    str,
    opt.option(
        "LIST",
        "residual (what a layer passes on), attention_output, head_output, mlp_output, query, key, value; or several.",
    ),
]
Specials = Annotated[bool, typer.Option("--specials", help="Also a row for each special token, such as [CLS].")]
MaxContexts = Annotated[int | None, opt.option("N", "At most N occurrences of a word, at random.", panel=KEPT)]
Format = Annotated[str | None, opt.option("NAME", f"{', '.join(es.corpus.FORMATS)} (by its suffix).", panel=READ)]
Devices = Annotated[str | None, opt.option("LIST", "Run a process on each of these GPUs, such as 0,1, or on cpu.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show the plan: what will be stored, and its cost.")]
Append = Annotated[bool, typer.Option("--append", help="Add the corpus to a store that has the same options.")]
Virtual = Annotated[bool, typer.Option("--virtual", help="Store no vectors: they are computed again when read.")]
Repair = Annotated[bool, typer.Option("--repair", help="Verify the store first; extract again what is damaged.")]
AS_GIVEN = ("sites", "specials", "pooling", "dtype", "min_left", "context_window", "attention_window")


@dataclass(frozen=True)
class Extracting:
    """The options of an extraction."""

    layers: opt.Layers = "all"
    sites: Sites = "residual"
    specials: Specials = False
    pooling: Annotated[
        Literal["mean", "first", "last", "max", "cls"],
        opt.option(
            "NAME", "How the vectors of a word's subwords become one: mean, first, last or max; a sentence's also cls."
        ),
    ] = "mean"
    dtype: Annotated[
        Literal["float16", "float32", "bfloat16", "int8"],
        opt.option("DTYPE", "Stored type: float16, float32, bfloat16 or int8."),
    ] = "float16"
    where: Annotated[
        str | None,
        opt.option("SQL", "Only words for which this is true, such as \"upos = 'VERB' AND from_end = 0\".", panel=KEPT),
    ] = None
    max_contexts: MaxContexts = None
    format: Format = None
    split: Annotated[
        str | None, opt.option("NAME", "sentences: find them in running text; lines: each line is one.", panel=READ)
    ] = None
    context: Annotated[
        str,
        opt.option(
            "NAME",
            "What the model is given at a time: sentence; document; or N, blocks of a document of at most N subwords.",
            panel=WINDOWS,
        ),
    ] = "sentence"
    min_left: Annotated[
        int | None,
        opt.option("K", "Let blocks of a document overlap, so that each word has K words before it.", panel=WINDOWS),
    ] = None
    context_window: Annotated[
        int | None, opt.option("K", "Give the model only K words left and right of each target.", panel=WINDOWS, min=0)
    ] = None
    attention_window: Annotated[
        int | None,
        opt.option(
            "K",
            "Give the model the whole sentence, but let a word attend only to words at most K away in every layer.",
            panel=WINDOWS,
            min=0,
        ),
    ] = None
    settings: Annotated[dict[str, Any], SETTINGS] = field(default_factory=dict)


def extract(
    ctx: typer.Context,
    corpus: Corpus,
    store: Annotated[str, opt.argument("STORE", "The store to write: NAME.zarr, NAME.h5 or s3://BUCKET/NAME.zarr.")],
    *,
    model: Model,
    extracting: Extracting,
    devices: Devices = None,
    dry_run: DryRun = False,
    append: Append = False,
    repair: Repair = False,
    virtual: Virtual = False,
    verbose: opt.Verbose = False,
    as_json: opt.AsJson = False,
) -> None:
    """Extract hidden states into a store; rerun to resume.

    An existing store of another corpus, model or options is refused. --dry-run reads the corpus once, and runs the
    model on a hundredth of it to time it; it ends with status 1 if the store would not fit on the disk.
    """
    if virtual and append:
        raise InvalidValueError("--virtual does not go with --append: thin the store afterwards")
    settings, arguments = extracting.settings, dict[str, Any]()

    def of(names: tuple[str, ...]) -> dict[str, Any]:
        return {name: settings[name] for name in names if name in settings}

    if "word_list" in settings:
        arguments["words"] = frozenset(opt.read_words(Path(settings["word_list"]), option="word_list"))
    keep = es.corpus.Keep(max_contexts=extracting.max_contexts, where=extracting.where, **arguments, **of(KEEP))
    opened = es.open_corpus(corpus, format=extracting.format, split=extracting.split, **of(READING))
    options = es.ExtractionOptions(
        layers=opt.layers_of(extracting.layers) or "all",
        context=int(extracting.context) if extracting.context.isdecimal() else extracting.context,
        keep=keep,
        **{name: getattr(extracting, name) for name in AS_GIVEN},
        **of(COMPUTING),
    )
    if append:  # the options of the store, but for those that were typed, or set in a file
        sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
        typed = {*settings, *(name for name, source in sources.items() if source and source.name == "COMMANDLINE")}
        chosen = {option.name for option in fields(es.ExtractionOptions)} & typed
        if typed & {"where", "word_list", "max_contexts", *KEEP}:
            chosen.add("keep")
        own = {name: getattr(options, name) for name in sorted(chosen)}
        options = replace(es.extraction.options_of(store), **own)
    _require_rights(store)
    executor = None if devices is None else Processes(devices=devices.split(","))
    first = None if devices is None else devices.split(",")[0]
    on_first = nullcontext() if first is None else es.config(device=f"cuda:{first}" if first.isdecimal() else first)
    with on_first:
        place = Path(store).with_name(".part.zarr") if append else store  # the parts of a store are on its disk
        plan = es.plan(opened, model=model, store=place, options=options, **of(("compute_dtype",)))
    if dry_run:
        print_json(plan.as_json()) if as_json else print(plan.text(verbose=verbose))
        plan.estimate.require_space()
        return
    if not as_json:
        print(plan.text(verbose=verbose), *["vectors     not written (--virtual)"] * virtual, sep="\n", flush=True)
    before = _written(store)
    try:
        with executor or nullcontext():
            made = es.extract(plan, store, append=append, repair=repair, virtual=virtual, executor=executor)
    except KeyboardInterrupt as error:
        said = str(error) or "interrupted"
        if written := _written(store):
            said += "; {:,} of {:,} occurrences are stored: run the same command again to resume".format(*written)
        raise type(error)(said) from None
    if as_json:
        print_json({"store": store, "n_rows": made.n_rows, "plan": plan.as_json()})
        return
    said = f"{store} already holds" if before == (made.n_rows, made.n_rows) and not repair else f"{store} holds"
    print(f"{said} {counted(made.n_rows, 'occurrence')} in {counted(len(made.layers), 'layer')}, all committed")


def _require_rights(store: str) -> None:
    """Refuse a folder in which no store can be created, before a model is loaded."""
    if "://" in store or os.path.lexists(store):
        return
    folder = Path(store).absolute().parent
    effective = os.access in os.supports_effective_ids
    if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK, effective_ids=effective):
        raise StorageError(f"cannot write in {folder}: permission denied; choose another folder")


def _written(path: str) -> tuple[int, int] | None:
    """Return how many rows of a store are written, and how many it will have; None where there is no store."""
    with warnings.catch_warnings(action="ignore"), suppress(es.errors.EmbstoreError):
        store = es.open(path)
        return store.n_committed_rows, store.n_rows
    return None
