"""Commands that plan and run an extraction."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import embstore as es
import embstore_cli.options as opt
from embstore.errors import InvalidValueError, StorageError
from embstore_cli.output import counted, print_json

if TYPE_CHECKING:
    from embstore.extraction import WindowPlan

KEPT, READ, WINDOWS, WORKERS = "Which words are stored", "How the corpus is read", "Context", "Parallel work"
MAX_THREADS = 1024  # OpenMP ends the process where it cannot start as many
KEEP = {"min_contexts": int, "per": str, "seed": int}
READING = {
    "encoding": str,
    "normalize": str,
    "language": str,
    "columns": str,
    "text": str,
    "spans": str,
    "chat": str,
}
COMPUTING = {
    "unit": Literal["word", "subword", "sentence"],
    "compute_dtype": str,
    "batch_subwords": int,
    "max_length": int,
}
SETTINGS = opt.Config(lambda: {**COMPUTING, **KEEP, **READING, "workers": int, "means": bool})

Corpus = Annotated[
    str,
    opt.argument(
        "CORPUS",
        "A file or a folder of them: .txt, .jsonl, .parquet, .csv, .conllu, .conll, .pse or .tsv, also .gz or .zst.",
    ),
]
Model = Annotated[
    str,
    opt.option(
        "MODEL",
        "A model of Hugging Face: its name, or its folder; vllm:NAME has vLLM run it. Vectors without context: a file "
        "of word vectors, random:DIM or subwords:MODEL; bag: before these takes means of sentences.",
        "--model",
        "-m",
    ),
]
Device = Annotated[
    str,
    opt.option("NAME", "auto, cpu, cuda or cuda:N; split and tensor divide a large model over all GPUs."),
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
WordList = Annotated[
    Path | None, opt.option("FILE", "Only the words of this file, one a line.", "--word-list", panel=KEPT)
]
Label = Annotated[
    str | None, opt.option("COLUMN", "Only words that have a label in this column; any: in any column.", panel=KEPT)
]
MaxContexts = Annotated[int | None, opt.option("N", "At most N occurrences of a word, at random.", panel=KEPT)]
Format = Annotated[
    str | None,
    opt.option(
        "NAME", "text, jsonl, parquet, csv, conllu, conll, pse, edge, sts or pairs (by its suffix).", panel=READ
    ),
]
Split = Annotated[
    str | None, opt.option("NAME", "sentences: find them in running text; lines: each line is one.", panel=READ)
]
Words = Annotated[
    str | None, opt.option("NAME", "punctuation: split it from words; spaces: split at spaces only.", panel=READ)
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
    opt.option(
        "K",
        "Let blocks overlap, so that each word has K words before it; by default by a quarter where a text is too long "
        "for the model, and not with --context N.",
        panel=WINDOWS,
    ),
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
Devices = Annotated[
    str | None, opt.option("LIST", "Run a process on each of these GPUs, such as 0,1, or on cpu.", panel=WORKERS)
]
Threads = Annotated[int | None, opt.option("N", "CPU threads of the model (one a core).", min=1)]
Cluster = Annotated[str | None, opt.option("ray[:ADDRESS]", "Run on the workers of a Ray cluster.", panel=WORKERS)]
Append = Annotated[bool, typer.Option("--append", help="Add the corpus to a store that has the same options.")]
Virtual = Annotated[bool, typer.Option("--virtual", help="Store no vectors: they are computed again when read.")]
Repair = Annotated[bool, typer.Option("--repair", help="Verify the store first; extract again what is damaged.")]


@dataclass(frozen=True)
class Extracting:
    """The options of an extraction."""

    device: Device = "auto"
    threads: Threads = None
    layers: opt.Layers = "all"
    sites: Sites = "residual"
    specials: Specials = False
    pooling: Pooling = "mean"
    dtype: Dtype = "float16"
    where: Where = None
    word_list: WordList = None
    label: Label = None
    max_contexts: MaxContexts = None
    format: Format = None
    split: Split = None
    words: Words = None
    context: Context = "sentence"
    min_left: MinLeft = None
    context_window: ContextWindow = None
    attention_window: AttentionWindow = None
    settings: Annotated[dict[str, Any], SETTINGS] = field(default_factory=dict)


class Extraction:
    """What the options of an extraction mean, as far as it is known without a model."""

    def __init__(self, corpus: str, given: Extracting) -> None:
        settings = given.settings
        if given.threads is not None and given.threads > MAX_THREADS:
            raise InvalidValueError(f"--threads {given.threads} is not allowed: give {MAX_THREADS:,} or fewer")
        if given.threads is not None:  # torch and worker processes, which begin later, read it
            os.environ["OMP_NUM_THREADS"] = str(given.threads)

        def of(keys: Mapping[str, Any]) -> dict[str, Any]:
            return {name: value for name, value in settings.items() if name in keys}

        self.given, self.workers, self.compute_dtype = given, settings.get("workers"), settings.get("compute_dtype")
        self.means = bool(settings.get("means"))
        self.layers = opt.layers_of(given.layers) or "all"
        self.kind, self.windows = _windows(given.context_window, given.attention_window)
        if self.means and len(self.windows) > 1:
            raise InvalidValueError("--set means=true makes one store: give one window, or none")
        keep = es.Keep(
            words=None if given.word_list is None else frozenset(opt.read_words(given.word_list, option="--word-list")),
            labelled=given.label == "any" or given.label or False,
            max_contexts=given.max_contexts,
            where=given.where,
            **of(KEEP),
        )
        names = ("format", "split", "words")
        reading = {**{name: getattr(given, name) for name in names}, **of(READING)}
        if "chat" in reading:
            reading["chat"] = es.models.chat_template(reading["chat"])
        self.corpus = es.open_corpus(corpus, **reading)
        if given.label is not None and self.corpus.format == "text":
            raise InvalidValueError(
                f"--label {given.label}: plain text has no labels; leave it out, or give a labelled corpus, such as "
                ".conllu"
            )
        computing = {name: value for name, value in of(COMPUTING).items() if name != "compute_dtype"}
        computing[f"{self.kind}_window"] = self.windows[0] if len(self.windows) == 1 else None
        self.options = es.ExtractionOptions(
            layers=self.layers,
            sites=given.sites,
            specials=given.specials,
            pooling=given.pooling,
            dtype=given.dtype,
            context=int(given.context) if given.context.isdecimal() else given.context,
            min_left=given.min_left,
            keep=keep,
            seed=settings.get("seed", 0),
            **computing,
        )

    def use_options_of(self, store: str) -> None:
        """Use the options that a store was made with, but for those that are given."""
        if len(self.windows) > 1 or "{window}" in store:
            raise InvalidValueError(f"--append adds to one store: give one --{self.kind}-window, or none")
        stored = es.extraction.options_of(store)
        names = {each.name for each in fields(es.ExtractionOptions)} & opt.GIVEN.keys()
        if opt.GIVEN.keys() & {"where", "word_list", "label", "max_contexts", *KEEP}:
            names.add("keep")
        self.options = replace(stored, **{name: getattr(self.options, name) for name in sorted(names)})

    def paths(self, store: str) -> dict[int | None, str]:
        """Return the path of each window's store. Raises StorageError where none can be created."""
        paths = _paths(store, self.kind, self.windows)
        for path in paths.values():
            _require_rights(path)
        return paths

    def plan(self, model: str, *, store: str | None, device: str) -> es.Plan | WindowPlan:
        if store is not None and len(paths := self.paths(store)) == 1:
            (store,) = paths.values()
        where: dict[str, Any] = {"device": device, "store": store, "options": self.options}
        if self.compute_dtype is not None:
            where["compute_dtype"] = self.compute_dtype
        where["model"] = opt.encoder_of(model, device, self.compute_dtype or "auto")
        if len(self.windows) > 1:
            where[f"{self.kind}_windows"] = self.windows
            return es.extraction.plan_windows(self.corpus, **where)
        made = es.plan(self.corpus, **where)
        return replace(made, estimate=es.extraction.means_estimate(made)) if self.means else made


def plan(
    corpus: Corpus,
    *,
    model: Model,
    extracting: Extracting,
    store: Annotated[str | None, opt.option("STORE", "Where the store will be, to see whether it fits there.")] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Estimate what an extraction will cost, before it starts.

    Reads the corpus once, and runs the model on a hundredth of it, or on three batches, to time it. Ends with status 1
    if the store would not fit on the disk. `embstore extract --help` says what --set takes.
    """
    made = Extraction(corpus, extracting).plan(model, store=store, device=extracting.device)
    if as_json:
        print_json(made.as_json())
    else:
        print(made)
    made.estimate.require_space()


def extract(
    corpus: Corpus,
    store: opt.NewStore,
    *,
    model: Model,
    extracting: Extracting,
    devices: Devices = None,
    cluster: Cluster = None,
    append: Append = False,
    repair: Repair = False,
    virtual: Virtual = False,
    as_json: opt.AsJson = False,
) -> None:
    """Extract hidden states into a store; rerun to resume.

    An existing store of another corpus, model or options is refused.

    --set, what is stored: unit=subword or sentence, a row for each; means=true, a word's mean in place of its
    occurrences; min_contexts=N, only words of N sentences or more; per=COLUMN, --max-contexts for each label; seed=N.

    --set, how the corpus is read: encoding (utf-8); language (en) of text; normalize=nfc, nfkc or lower; text=COLUMN
    of a table; columns=A,B of a table are stored as fields, of a .conll file are the names; spans=COLUMN, whose spans
    of characters are the occurrences; chat=MODEL, whose template makes text of lists of messages.

    --set, how it is computed: compute_dtype (float32, float16, bfloat16); batch_subwords; max_length; workers=N.
    """
    extraction = Extraction(corpus, extracting)
    if virtual and (append or len(extraction.windows) > 1):
        raise InvalidValueError("--virtual goes with neither --append nor several windows: thin the stores afterwards")
    if append:
        extraction.use_options_of(store)
    paths = extraction.paths(store)
    executor = opt.executor_of(cluster, extraction.workers, devices)
    device = devices.split(",")[0] if devices is not None and extracting.device == "auto" else extracting.device
    device = f"cuda:{device}" if device.isdecimal() else device
    made = extraction.plan(model, store=f"{store}/part.zarr" if append else store, device=device)
    if not as_json:
        print(made, *["vectors      not written (--virtual)"] * virtual, sep="\n", flush=True)
    try:
        with executor or nullcontext():
            if isinstance(made, es.Plan):
                (path,) = paths.values()
                with_vectors = partial(es.extract, append=append, repair=repair, virtual=virtual, executor=executor)
                stores = {path: (es.extraction.extract_means if extraction.means else with_vectors)(made, path)}
            else:
                written = es.extraction.extract_windows(made, store, repair=repair, executor=executor)
                stores = {paths[window]: one for window, one in written.items()}
    except KeyboardInterrupt as error:
        raise type(error)(f"{str(error) or 'interrupted'}{_progress(paths)}") from None
    if as_json:
        summaries = [{"store": path, "n_rows": one.n_rows} for path, one in stores.items()]
        summary = summaries[0] if isinstance(made, es.Plan) else {"stores": summaries}
        print_json({**summary, "plan": made.as_json()})
        return
    for path, one in stores.items():
        what = "mean vector" if extraction.means else "occurrence"
        print(f"{path} holds {counted(one.n_rows, what)} in {counted(len(one.layers), 'layer')}, all committed")


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
