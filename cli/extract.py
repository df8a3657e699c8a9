"""The command that plans and runs an extraction."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import embstore as es
import embstore_cli.options as opt
from embstore.errors import InvalidValueError, StorageError
from embstore_cli.output import counted, print_json

if TYPE_CHECKING:
    from embstore.extraction import WindowPlan

KEPT, READ, WINDOWS = "Which words are stored", "How the corpus is read", "Context"
KEEP = ("min_contexts", "per", "seed")
READING = ("words", "language", "normalize", "columns", "text", "spans")
COMPUTING = ("unit", "max_length", "batch_subwords", "seed")
OTHERS = {"word_list": Path, "chat": str, "compute_dtype": str, "workers": int}
SETTINGS = opt.Config(
    lambda: [OTHERS, {"words": str}, es.ExtractionOptions, es.corpus.Keep, es.open_corpus],
    *KEEP,
    *READING,
    *COMPUTING,
)

SUFFIXES = dict.fromkeys(form.suffixes[0] for form in es.corpus.FORMATS.values())
Corpus = Annotated[
    str,
    opt.argument(
        "CORPUS",
        f"A file or a folder of them: {', '.join(SUFFIXES)}, also .gz or .zst.",
    ),
]
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
Pooling = Annotated[
    Literal["mean", "first", "last", "max", "cls"],
    opt.option(
        "NAME", "How the vectors of a word's subwords become one: mean, first, last or max; a sentence's also cls."
    ),
]
Dtype = Annotated[
    Literal["float16", "float32", "bfloat16", "int8"],
    opt.option("DTYPE", "Stored type: float16, float32, bfloat16 or int8."),
]
Sites = Annotated[
    str,
    opt.option(
        "LIST",
        "residual (what a layer passes on), attention_output, head_output, mlp_output, query, key, value; or several.",
    ),
]
Specials = Annotated[bool, typer.Option("--specials", help="Also a row for each special token, such as [CLS].")]
Where = Annotated[
    str | None,
    opt.option("SQL", "Only words for which this is true, such as \"upos = 'VERB' AND from_end = 0\".", panel=KEPT),
]
Label = Annotated[
    str | None, opt.option("COLUMN", "Only words that have a label in this column; any: in any column.", panel=KEPT)
]
MaxContexts = Annotated[int | None, opt.option("N", "At most N occurrences of a word, at random.", panel=KEPT)]
Format = Annotated[
    str | None,
    opt.option("NAME", f"{', '.join(es.corpus.FORMATS)} (by its suffix).", panel=READ),
]
Split = Annotated[
    str | None, opt.option("NAME", "sentences: find them in running text; lines: each line is one.", panel=READ)
]
Context = Annotated[
    str,
    opt.option(
        "NAME",
        "What the model is given at a time: sentence; document; or N, blocks of a document of at most N subwords.",
        panel=WINDOWS,
    ),
]
MinLeft = Annotated[
    int | None,
    opt.option("K", "Let blocks of a document overlap, so that each word has K words before it.", panel=WINDOWS),
]
ContextWindow = Annotated[
    str | None,
    opt.option(
        "K",
        "Give the model only K words left and right of each target: a number or full. Several, such as "
        "0,2,8,full, write a store each: NAME-k0.zarr to NAME-full.zarr.",
        panel=WINDOWS,
    ),
]
AttentionWindow = Annotated[
    str | None,
    opt.option(
        "K",
        "Give the model the whole sentence, but let a word attend only to words at most K away in every layer. "
        "Several write NAME-a0.zarr and so on.",
        panel=WINDOWS,
    ),
]
Devices = Annotated[str | None, opt.option("LIST", "Run a process on each of these GPUs, such as 0,1, or on cpu.")]
Cluster = Annotated[str | None, opt.option("ray[:ADDRESS]", "Run on the workers of a Ray cluster.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show the plan: what will be stored, and its cost.")]
Append = Annotated[bool, typer.Option("--append", help="Add the corpus to a store that has the same options.")]
Virtual = Annotated[bool, typer.Option("--virtual", help="Store no vectors: they are computed again when read.")]
Repair = Annotated[bool, typer.Option("--repair", help="Verify the store first; extract again what is damaged.")]


@dataclass(frozen=True)
class Extracting:
    """The options of an extraction."""

    layers: opt.Layers = "all"
    sites: Sites = "residual"
    specials: Specials = False
    pooling: Pooling = "mean"
    dtype: Dtype = "float16"
    where: Where = None
    label: Label = None
    max_contexts: MaxContexts = None
    format: Format = None
    split: Split = None
    context: Context = "sentence"
    min_left: MinLeft = None
    context_window: ContextWindow = None
    attention_window: AttentionWindow = None
    settings: Annotated[dict[str, Any], SETTINGS] = field(default_factory=dict)


class Extraction:
    """What the options of an extraction mean, as far as it is known without a model."""

    def __init__(self, corpus: str, given: Extracting) -> None:
        settings = given.settings

        def of(names: tuple[str, ...]) -> dict[str, Any]:
            return {name: settings[name] for name in names if name in settings}

        self.settings = settings
        self.kind, self.windows = _windows(given.context_window, given.attention_window)
        word_list = settings.get("word_list")
        keep = es.corpus.Keep(
            words=None if word_list is None else frozenset(opt.read_words(Path(word_list), option="word_list")),
            labelled=given.label == "any" or given.label or False,
            max_contexts=given.max_contexts,
            where=given.where,
            **of(KEEP),
        )
        chat = es.models.chat_template(settings["chat"]) if "chat" in settings else None
        self.corpus = es.open_corpus(corpus, format=given.format, split=given.split, chat=chat, **of(READING))
        if given.label is not None and self.corpus.format == "text":
            raise InvalidValueError(
                f"--label {given.label}: plain text has no labels; leave it out, or give a labelled corpus, such as "
                ".conllu"
            )
        self.options = es.ExtractionOptions(
            layers=opt.layers_of(given.layers) or "all",
            sites=given.sites,
            specials=given.specials,
            pooling=given.pooling,
            dtype=given.dtype,
            context=int(given.context) if given.context.isdecimal() else given.context,
            min_left=given.min_left,
            keep=keep,
            context_window=self._window("context"),
            attention_window=self._window("attention"),
            **of(COMPUTING),
        )

    def _window(self, kind: str) -> int | None:
        """Return the width of the only window of a kind; None without one, and where there are several."""
        return self.windows[0] if kind == self.kind and len(self.windows) == 1 else None

    def use_options_of(self, store: str, names: set[str]) -> None:
        """Use the options that a store was made with, but for those that were typed, or set in a file."""
        if len(self.windows) > 1 or "{window}" in store:
            raise InvalidValueError(f"--append adds to one store: give one --{self.kind}-window, or none")
        stored = es.extraction.options_of(store)
        typed = {*names, *self.settings}
        chosen = {option.name for option in fields(es.ExtractionOptions)} & typed
        if typed & {"where", "word_list", "label", "max_contexts", *KEEP}:
            chosen.add("keep")
        self.options = replace(stored, **{name: getattr(self.options, name) for name in sorted(chosen)})

    def paths(self, store: str) -> dict[int | None, str]:
        """Return the path of each window's store. Raises StorageError where none can be created."""
        paths = _paths(store, self.kind, self.windows)
        for path in paths.values():
            _require_rights(path)
        return paths

    def plan(self, model: str, *, store: str | None) -> es.extraction.Plan | WindowPlan:
        if store is not None and len(paths := self.paths(store)) == 1:
            (store,) = paths.values()
        arguments: dict[str, Any] = {"model": model, "store": store, "options": self.options}
        if "compute_dtype" in self.settings:
            arguments["compute_dtype"] = self.settings["compute_dtype"]
        if len(self.windows) > 1:
            arguments[f"{self.kind}_windows"] = self.windows
            return es.extraction.plan_windows(self.corpus, **arguments)
        return es.plan(self.corpus, **arguments)


def extract(
    ctx: typer.Context,
    corpus: Corpus,
    store: opt.NewStore,
    *,
    model: Model,
    extracting: Extracting,
    devices: Devices = None,
    cluster: Cluster = None,
    dry_run: DryRun = False,
    append: Append = False,
    repair: Repair = False,
    virtual: Virtual = False,
    as_json: opt.AsJson = False,
) -> None:
    """Extract hidden states into a store; rerun to resume.

    An existing store of another corpus, model or options is refused. --dry-run reads the corpus once, and runs the
    model on a hundredth of it to time it; it ends with status 1 if the store would not fit on the disk.
    """
    extraction = Extraction(corpus, extracting)
    if virtual and (append or len(extraction.windows) > 1):
        raise InvalidValueError("--virtual goes with neither --append nor several windows: thin the stores afterwards")
    if append:
        extraction.use_options_of(store, {name for name in ctx.params if opt.is_given(ctx, name)})
    paths = extraction.paths(store)
    executor = opt.executor_of(cluster, extraction.settings.get("workers"), devices)
    first = None if devices is None else devices.split(",")[0]
    on_first = nullcontext() if first is None else es.config(device=f"cuda:{first}" if first.isdecimal() else first)
    with on_first:
        made = extraction.plan(model, store=f"{store}/part.zarr" if append else store)
    if dry_run:
        print_json(made.as_json()) if as_json else print(made)
        made.estimate.require_space()
        return
    if not as_json:
        print(made, *["vectors      not written (--virtual)"] * virtual, sep="\n", flush=True)
    try:
        with executor or nullcontext():
            if isinstance(made, es.extraction.Plan):
                (path,) = paths.values()
                stores = {
                    path: es.extract(made, path, append=append, repair=repair, virtual=virtual, executor=executor)
                }
            else:
                written = es.extraction.extract_windows(made, store, repair=repair, executor=executor)
                stores = {paths[window]: one for window, one in written.items()}
    except KeyboardInterrupt as error:
        raise type(error)(f"{str(error) or 'interrupted'}{_progress(paths)}") from None
    if as_json:
        summaries = [{"store": path, "n_rows": one.n_rows} for path, one in stores.items()]
        summary = summaries[0] if isinstance(made, es.extraction.Plan) else {"stores": summaries}
        print_json({**summary, "plan": made.as_json()})
        return
    for path, one in stores.items():
        print(f"{path} holds {counted(one.n_rows, 'occurrence')} in {counted(len(one.layers), 'layer')}, all committed")


def _windows(context: str | None, attention: str | None) -> tuple[str, tuple[int | None, ...]]:
    """Return the kind of the windows and their widths; None is the whole sentence."""
    if context is not None and attention is not None:
        raise InvalidValueError(
            f"--context-window {context} and --attention-window {attention} exclude each other: give one of them"
        )
    kind = "context" if attention is None else "attention"
    text = (context or "full") if attention is None else attention
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if part != "full" and not part.isdecimal():
            raise InvalidValueError(
                f"--{kind}-window {part!r} is not allowed: give 0 or more words, full, or several joined by commas"
            )
    widths: list[int | None] = [*sorted({int(part) for part in parts if part != "full"})]
    if "full" in parts:
        widths.append(None)
    return kind, tuple(widths)


def _paths(store: str, kind: str, windows: tuple[int | None, ...]) -> dict[int | None, str]:
    """Return the path of each window's store: STORE itself if it is the only one and its name holds no {window}."""
    if len(windows) == 1 and "{window}" not in store:
        return {windows[0]: str(Path(store)) if "://" not in store else store}
    return {window: str(es.extraction.store_path(store, kind=kind, window=window)) for window in windows}


def _require_rights(store: str) -> None:
    """Refuse a folder in which no store can be created, before a model is loaded."""
    if "://" in store or os.path.lexists(store):
        return
    folder = Path(store).absolute().parent
    effective = os.access in os.supports_effective_ids
    if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK, effective_ids=effective):
        raise StorageError(f"cannot write in {folder}: permission denied; choose another folder")


def _progress(paths: Mapping[int | None, str]) -> str:
    """Return how much of interrupted stores is written, and how to resume."""
    written, total = 0, 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for path in paths.values():
            try:
                store = es.open(path)
            except es.errors.EmbstoreError:
                continue
            written, total = written + store.n_committed_rows, total + store.n_rows
    if not total:
        return ""
    return f"; {written:,} of {total:,} occurrences are stored: run the same command again to resume"
