"""What all studies share: settings, a folder whose steps resume, extraction, the report, intervals and lines."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

import embstore as es
from embstore import plot
from embstore.errors import InvalidValueError, StorageError
from embstore.intervals import MIN_UNITS, exact, expanded, worth
from embstore.models import load_encoder, model_kind, save_untrained
from embstore.store import write_frame

LOG = logging.getLogger("embstore_studies")
FOLDERS = ("stores", "tables", "figures", "models", "probes")
SPLITS = ("train", "dev", "test")
MARKERS = "o^sDvPX*"  # of the lines of a figure, in turn
# By the folders that edge probing tasks are in, as the figures of Tenney et al. call them and in their order.
TASKS = {
    "pos": "POS",
    "constituents": "Consts.",
    "dependencies": "Deps.",
    "entities": "Entities",
    "semantic-roles": "SRL",
    "coreference": "Coref.",
    "protoroles": "SPR",
    "relations": "Relations",
}
# The settings of studies: the least value of one that is a number, and what it is.
SETTINGS: dict[str, tuple[int | None, str]] = {
    "n_sentences": (1, "Sentences of each part of the data at most, drawn at random; none: all."),
    "tasks": (None, "Some of the tasks that the data have; by default all."),
    "seeds": (0, "Of the weights of probes, and of the order of their examples."),
    "kind": (None, "Of the probes."),
    "hidden_size": (1, "Units of the probes."),
    "epochs": (1, "Of the training of probes, at most; none: the default of each probe."),
    "batch_size": (1, "Of the training of probes."),
    "learning_rate": (None, "Of the training of probes."),
    "untrained": (None, "Whether the model with random weights is probed too, as a baseline."),
    "resamples": (1, "Bootstrap samples, for intervals."),
    "ranks": (1, "Of structural probes, which are compared on the best layer."),
    "ks": (1, "Numbers of neighbours."),
    "min_contexts": (2, "Different sentences that a word needs."),
    "layers": (None, "Of the model, as `extract` takes them; a few of a deep model take less time."),
    "benchmarks": (None, "A folder of files of word pairs, two words and their rating a line, for Table 1."),
    "coreference": (None, "A file of edge probing targets labelled 1 or 0, or a folder with dev.jsonl, for Table 2."),
    "n_words": (1, "Words of each list at most, drawn at random; none: all."),
    "max_contexts": (1, "Occurrences of a word with a class at most."),
    "context_windows": (0, "Words of context on each side; none: the whole sentence, which is needed."),
    "skipgram_size": (1, "Of the skip-gram vectors that are trained on the corpus."),
    "tuning": (None, "Data for fine-tuning by task (pos, ner, classify, paraphrase), as `finetune` takes them."),
    "tuning_epochs": (1, "Of fine-tuning."),
    "tuning_sentences": (1, "Sentences for fine-tuning, drawn at random; none: all."),
    "tuning_rate": (None, "The learning rate of fine-tuning; none: that of Zhao et al. 2020."),
    "seed": (0, "Of samples and of all else that is random."),
}
Row = dict[str, Any]
T = TypeVar("T")
Interval = tuple[float, float | None, float | None]  # a mean and the ends of its 95 % interval


@dataclass(frozen=True, kw_only=True)
class StudySettings:
    """The settings of a study, see SETTINGS; those of a subclass are listed in its documentation.

    `about`: what it studies, in a few words; `data`: what its data are; `citation`: the papers as BibTeX;
    `takes_one_model`: it does not compare several.
    """

    about: ClassVar[str]
    data: ClassVar[str]
    citation: ClassVar[str]
    takes_one_model: ClassVar[bool] = False

    seed: int = 0

    def __init_subclass__(cls) -> None:
        listed = "".join(f"{name} :\n    {text}\n" for name, (_, text) in SETTINGS.items() if hasattr(cls, name))
        cls.__doc__ = f"Settings of the study: {cls.about}.\n\nParameters\n----------\n{listed}"

    def __post_init__(self) -> None:
        for name, (least, _) in SETTINGS.items():
            value = getattr(self, name, None)
            if value == () and name in ("seeds", "ks"):
                raise InvalidValueError(f"{name} is empty: give one or more")
            for number in () if least is None else value if isinstance(value, tuple) else (value,):
                if number is not None and (not isinstance(number, int) or number < least):  # type: ignore[operator]
                    raise InvalidValueError(f"{name} {number!r} is not allowed: give a whole number of {least} or more")


Settings = TypeVar("Settings", bound=StudySettings)


@dataclass(kw_only=True)
class Run(Generic[Settings]):
    """One run of a study, in a folder in which a step that is done already is not done again.

    `models`: by name. `notes`: what a reader must know. `seconds`: the time that each step took. A table is stored with
    what it was made from and its checksum, and is made again if these differ.
    """

    settings: Settings
    models: dict[str, str]
    out: Path
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def begin(self) -> None:
        """Look up all models and make the folder; to be called when all inputs are read, before the first step."""
        for model in self.models.values():
            model_kind(model)
        try:
            if self.out.exists() and not self.out.is_dir():
                raise InvalidValueError(f"{self.out} is a file: give a folder for the study")
            for name in FOLDERS:
                (self.out / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{self.out} cannot be created: {error.strerror}") from error
        with suppress(OSError, ValueError, TypeError):  # of an earlier call
            self.seconds.update(json.loads((self.out / "tables" / "seconds.json").read_text()))

    def step(self, name: str, make: Callable[[], T]) -> T:
        """Run a step and record its time; a step that finds its work done keeps its original time."""
        LOG.info(name)
        began = time.perf_counter()
        made = make()
        self.seconds[name] = max(time.perf_counter() - began, self.seconds.get(name, 0.0))
        write_text(self.out / "tables" / "seconds.json", json.dumps(self.seconds, indent=1))
        return made

    def table(
        self,
        name: str,
        made_from: Mapping[str, Any],
        make: Callable[[], pl.DataFrame | tuple[pl.DataFrame, Sequence[str]]],
        *,
        needs: Path | None = None,
    ) -> pl.DataFrame:
        """Return the table of a step: the stored one if it was made from the same, else a new one.

        `make` may return notes too, which are stored with the table. `needs`: a file or folder that the step leaves.
        """
        path = self.out / "tables" / f"{name}.parquet"
        origin = path.with_suffix(".json")
        inputs = json.loads(json.dumps(made_from, default=str))
        with suppress(OSError, ValueError, KeyError, TypeError, pl.exceptions.PolarsError):
            stored, data = json.loads(origin.read_text()), path.read_bytes()
            digest = hashlib.sha256(data).hexdigest()
            if stored["made_from"] == inputs and stored["sha256"] == digest and (needs is None or needs.exists()):
                frame = pl.read_parquet(data)
                self.notes += stored["notes"]
                return frame
        made = self.step(name, make)
        frame, notes = made if isinstance(made, tuple) else (made, ())
        origin.unlink(missing_ok=True)  # so that a table never has the origin of another
        for target in (path, path.with_suffix(".csv")):
            write_frame(frame, target)
        record = {"made_from": inputs, "sha256": digest_of(path), "notes": list(notes)}
        write_text(origin, json.dumps(record, indent=1))
        self.notes += notes
        return frame

    def extract(
        self,
        name: str,
        corpus: Any,
        *,
        model: Any = None,
        options: es.ExtractionOptions | None = None,
        file: str | None = None,
    ) -> es.Store:
        """Extract the vectors of a corpus into stores/`file`.zarr, by default with the model of this name."""
        path = self.out / "stores" / f"{file or name}.zarr"
        model = self.models[name] if model is None else model

        def make() -> es.Store:
            encoder = load_encoder(model) if isinstance(model, str) else model
            plan = es.plan(corpus, model=encoder, options=options, store=path, calibrate=not path.exists())
            return es.extract(plan, path)

        return self.step(f"extract {name}", make)

    def untrained(self, name: str) -> str | None:
        """Save a model with random weights and return its folder; None, with a note, if it is not a transformer."""
        model, seed = self.models[name], self.settings.seed
        if model_kind(model) != "transformer":
            self.notes.append(f"{name}: no baseline with random weights, which only transformers have")
            return None
        path = self.out / "models" / f"{name}-untrained-{seed}"
        if not path.is_dir():
            self.step(f"random weights of {name}", lambda: save_untrained(model, path, seed=seed))
        return model.removesuffix(without_begin(model)) + str(path)

    def with_untrained(
        self, name: str, untrained: bool, extract: Callable[[str, str, str], es.Store], layers: str = "all"
    ) -> dict[str, es.Store]:
        """Extract one model, "trained" and, if asked for, "untrained": first and last layer with random weights.

        `extract`: given a name, the model and the layers.
        """
        stores = {"trained": extract(name, self.models[name], layers)}
        folder, ends = self.untrained(name) if untrained else None, stores["trained"].layers
        if folder is not None:
            stores["untrained"] = extract(f"{name}-untrained", folder, f"{ends[0]},{ends[-1]}")
        return stores

    def save_figures(self, figures: Mapping[str, tuple[str, Any]]) -> dict[str, str]:
        """Write figures, each with its title by the name of its file; returns the titles."""
        for name, (_, figure) in figures.items():
            plot.save(figure, self.out / "figures" / name)
        return {name: title for name, (title, _) in figures.items()}

    @property
    def names(self) -> str:
        """The models by the names in the report, those of their folders in brackets."""
        folders = {name: Path(model).name for name, model in self.models.items()}
        return ", ".join(n if n == self.models[n] else f"{n} ({folder})" for n, folder in folders.items())

    def result(self, title: str, scale: str, **parts: Any) -> StudyResult:
        """Write the report to the folder and return what the study has found; `parts`: the rest of `StudyResult`."""
        notes, citation = tuple(dict.fromkeys(self.notes)), self.settings.citation
        result = StudyResult(title, self.out, scale, notes=notes, seconds=self.seconds, citation=citation, **parts)
        write_text(result.report, result.markdown())
        return result


@contextmanager
def quiet() -> Iterator[None]:
    """Hide the progress bars and warnings of transformers inside the block."""
    from transformers.utils import logging

    reports: Any = logging
    level = reports.get_verbosity()
    reports.set_verbosity_error()
    reports.disable_progress_bar()
    try:
        yield
    finally:
        reports.set_verbosity(level)
        reports.enable_progress_bar()


def without_begin(model: str) -> str:
    """Return the name of a model without "bos:" or "nobos:", which say how its contexts begin."""
    return model.removeprefix("bos:").removeprefix("nobos:")


def write_text(path: Path, text: str) -> None:
    """Replace a text file at once."""
    partial = path.with_name(f".{path.name}.new")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


@dataclass(frozen=True)
class Section:
    """A table of a report: its title, a note on how to read it, and its rows."""

    title: str
    note: str
    rows: Sequence[Row]

    def markdown(self) -> str:
        """Return the section as Markdown."""
        lines = [f"## {self.title}", ""]
        if self.note:
            lines += [self.note, ""]
        if self.rows:
            names = list(dict.fromkeys(name for row in self.rows for name in row))
            lines += [f"| {' | '.join(names)} |", f"|{' --- |' * len(names)}"]
            lines += [f"| {' | '.join(_cell(row.get(name)) for name in names)} |" for row in self.rows]
        return "\n".join([*lines, ""])


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")


@dataclass(frozen=True, eq=False)
class StudyResult:
    """What a study has found.

    `frames`: all scores, Polars frames by name. `sections`: the tables of the report. `figures`: title by file name in
    `folder`/figures. `scale`: one line on the size of the study. `methods`: a paragraph on models, data and software.
    `citation`: the paper as BibTeX. `seconds`: time by step. `report`: the file with all of it.
    """

    title: str
    folder: Path
    scale: str
    frames: Mapping[str, pl.DataFrame]
    sections: Sequence[Section]
    figures: Mapping[str, str]
    notes: Sequence[str] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    methods: str = ""
    citation: str = ""

    @property
    def report(self) -> Path:
        """The file of the report."""
        return self.folder / "report.md"

    def markdown(self) -> str:
        """Return the report as Markdown, with links to the figures."""
        parts = [f"# {self.title}\n", f"{self.scale}\n", *(section.markdown() for section in self.sections)]
        parts += ["## Figures\n", *(f"![{title}](figures/{name})\n" for name, title in self.figures.items())]
        if self.notes:
            parts += ["## Notes\n", "\n".join(f"- {note}" for note in self.notes) + "\n"]
        parts += [f"## Methods\n\n{self.methods}\n", f"## Cite\n\n```bibtex\n{self.citation}```\n"]
        times = [{"step": step, "seconds": f"{spent:,.1f}"} for step, spent in self.seconds.items()]
        return "\n".join([*parts, Section("Time", "", times).markdown()])

    def __repr__(self) -> str:
        return f"<StudyResult {self.title}: {len(self.sections)} tables, {len(self.figures)} figures in {self.folder}>"


def methods(stores: Mapping[str, es.Store]) -> str:
    """Return a paragraph for a paper's methods: models, by the names in the report, corpora, and software."""
    parts: list[str] = []
    software: dict[str, str] = {}
    for name, store in stores.items():
        model, corpus, made = store.metadata.model, store.metadata.corpus, store.metadata.extraction
        software |= store.metadata.software
        numbers, whole = store.layers, tuple(range(store.layers[0], store.layers[-1] + 1))
        several = f"{numbers[0]}-{numbers[-1]}" if numbers == whole else ", ".join(map(str, numbers))
        layers = f"layers {several}" if len(numbers) > 1 else f"layer {numbers[0]}"
        parts.append(
            f"{name} ({model['architecture']}, weights SHA-256 {model['weights_sha256'][:12]}), {layers} in "
            f"{store.dtype}, one row per {made['unit']}, over {corpus['name']} ({corpus['n_sentences']:,} sentences, "
            f"{corpus['n_words']:,} words, SHA-256 {corpus['sha256'][:12]})"
        )
    versions = ", ".join(f"{name} {version}" for name, version in software.items())
    return f"Hidden states were extracted from {'; '.join(parts)}. Software: {versions}."


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Distinct:
    """A corpus of the different ones among some sequences of words; the sentences of all tasks are extracted once."""

    words: Callable[[], Iterable[Sequence[str]]]

    def __iter__(self) -> Iterator[es.corpus.Sentence]:
        return (es.corpus.Sentence(words) for words in dict.fromkeys(map(tuple, self.words())))


def draw(sentences: Sequence[T], count: int | None, seed: int) -> list[T]:
    """Return at most `count` sentences in their order, drawn by their words and the seed; None: all.

    Tasks over the same sentences draw the same ones, and a larger sample contains a smaller one.
    """

    def key(number: int) -> bytes:
        text = f"{seed} {' '.join(sentences[number].words)}"  # type: ignore[attr-defined]
        return hashlib.blake2b(text.encode(), digest_size=8).digest()

    return [sentences[number] for number in sorted(sorted(range(len(sentences)), key=key)[:count])]


@dataclass(frozen=True)
class Task:
    """The drawn sentences of an edge probing task by split; `digests`: of the files that they are from."""

    splits: Mapping[str, list[es.corpus.EdgeSentence]]
    digests: Mapping[str, str]


def task_folders(folder: Path) -> dict[str, dict[str, Path]]:
    """Return the files of each task in a folder of tasks, those of the paper in its order, then others by name."""
    if not folder.is_dir():
        raise InvalidValueError(f"{folder} is not a folder: give one with a folder per task")
    files = {path.name: es.probes.split_files(path) for path in sorted(folder.iterdir())}
    return {name: files[name] for name in dict.fromkeys((*TASKS, *files)) if "train" in files.get(name, ())}


def read_tasks(folder: Path, names: Sequence[str], count: int | None, seed: int) -> dict[str, Task]:
    """Read and draw tasks, all by default. Raises InvalidValueError, CorpusError."""
    folders = task_folders(folder)
    if not folders:
        raise InvalidValueError(f"{folder} has no task: give a folder of folders, each with train.jsonl and dev.jsonl")
    for name in names:
        if name not in folders:
            raise InvalidValueError(f"there is no task {name!r} in {folder}: it has {', '.join(folders)}")
    tasks = {}
    for name, files in folders.items():
        if names and name not in names:
            continue
        if "dev" not in files:
            raise InvalidValueError(f"{folder / name} has no dev.jsonl, which early stopping needs")
        sentences = {split: list(es.corpus.read_edges(path)) for split, path in files.items()}
        for split, of_split in sentences.items():
            if not any(each.targets for each in of_split):
                raise InvalidValueError(f"{files[split]} has no target: give sentences with targets")
        drawn = {split: draw(of_split, count, seed) for split, of_split in sentences.items()}
        tasks[name] = Task(drawn, {split: digest_of(path) for split, path in files.items()})
    return tasks


def treebank_files(folder: Path) -> dict[str, Path]:
    """Return the CoNLL-U file of each split of a treebank, which has the name of the split in its own."""
    if not folder.is_dir():
        raise InvalidValueError(f"{folder} is not a folder: give one with train, dev and test of a treebank in CoNLL-U")
    files = {}
    for split in SPLITS:
        named = sorted(path for path in folder.glob("*.conllu") if split in path.stem)
        if len(named) != 1:
            raise InvalidValueError(
                f"{folder} has {len(named)} files *{split}*.conllu: give a folder with one for each of train, dev, test"
            )
        files[split] = named[0]
    return files


def decimals(value: float | None) -> str:
    """Format a score; empty for None."""
    return "" if value is None else f"{value:.3f}"


def ratio(sums: NDArray[Any], weights: NDArray[Any], *, resamples: int, seed: int) -> Interval:
    """Return the sum of `sums` over that of `weights` with its 95 % interval, by resampling both together.

    There is no interval of fewer than five, and where fewer than three differ from the most usual ratio.
    """
    value, n = float(sums.sum() / weights.sum()), len(sums)
    if n < MIN_UNITS or n - np.unique(sums / weights, return_counts=True)[1].max() < 3:
        return value, None, None
    drawn = np.random.default_rng(seed).integers(n, size=(resamples, n))
    return value, *expanded(sums[drawn].sum(1) / weights[drawn].sum(1), worth(weights))


def share(right: NDArray[Any], counts: NDArray[Any]) -> Interval:
    """Return the share of right answers with its exact 95 % interval; none of fewer than five documents or words."""
    ends = exact(right, counts) if len(right) >= MIN_UNITS else (None, None)
    return float(right.sum() / counts.sum()), *ends


def with_interval(interval: Interval) -> str:
    """Format a value and its interval."""
    value, low, high = interval
    return decimals(value) + (" (interval not determined)" if low is None else f" [{low:.3f}, {high:.3f}]")


def verdict(low: float | None, high: float | None, *, bound: float = 0.0) -> str:
    """Return "yes" for an interval above a bound, "no" for one below it, else "not determined"."""
    if low is None or high is None or low <= bound <= high:
        return "not determined"
    return "yes" if low > bound else "no"


def student(deviation: Any, count: int) -> Any:
    """Return the half width of the 95 % interval of a mean of `count` values with this deviation."""
    from scipy.stats import t

    return t.ppf(0.975, count - 1) * deviation / np.sqrt(count)


def draw_line(
    axis: Any, layers: Any, value: Any, low: Any = None, high: Any = None, *, number: int, label: str, dash: str = "-"
) -> None:
    """Draw a line in the look of series `number`, with a band between `low` and `high`."""
    color, marker = plot.PALETTE[number % len(plot.PALETTE)], MARKERS[number % len(MARKERS)]
    axis.plot(layers, value, color=color, marker=marker, markersize=3.5, linewidth=1.3, linestyle=dash, label=label)
    if low is not None:
        low, high = np.array(low, float), np.array(high, float)  # None becomes NaN, where no band is drawn
        axis.fill_between(layers, low, high, color=color, alpha=0.18, linewidth=0)
