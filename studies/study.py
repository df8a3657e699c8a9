"""What studies share: a folder whose steps resume, tables to read, and the report."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from embstore.errors import InvalidValueError, StorageError
from embstore.progress import Progress
from embstore.store.metadata import canonical
from embstore.store.storage.files import crc32c, read_json, regular_file, replacing, storing, write_frame
from embstore_studies.settings import StudySettings

if TYPE_CHECKING:
    import polars as pl

    from embstore.store import Store

LOG = logging.getLogger("embstore_studies")
T = TypeVar("T")
Settings = TypeVar("Settings", bound=StudySettings)
Row = dict[str, Any]
FOLDERS = ("stores", "tables", "figures", "models", "probes")
STYLE = (
    "body{font:16px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;display:block;overflow-x:auto}img{max-width:100%}"
    "th,td{border-bottom:1px solid #ccc;padding:.2rem .6rem;text-align:left;white-space:nowrap}"
)
LATEX = str.maketrans(
    {sign: f"\\{sign}" for sign in "&%$#_{}"} | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}"}
)


@dataclass
class StudyFolder:
    """The folder of a study, in which a step that is done already is not done again.

    A table is stored with the settings that it was made from and its checksum, and is made again if these differ. The
    name of each step is logged to "embstore_studies". A function given as `progress` receives the number of steps done;
    with None or True the steps show bars of their own. `seconds`: the time that each step took.
    """

    path: Path
    progress: Progress = None
    seconds: dict[str, float] = field(default_factory=dict)
    n_done: int = 0

    def __post_init__(self) -> None:
        try:
            if self.path.exists() and not self.path.is_dir():
                raise InvalidValueError(f"{self.path} is a file: give a folder for the study")
            for name in FOLDERS:
                (self.path / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be created: {error.strerror}") from error
        with suppress(OSError, ValueError, TypeError):  # of an earlier call
            self.seconds.update(read_json(self._times))

    @property
    def bars(self) -> Progress:
        """What the functions that a step calls are given as `progress`."""
        return False if callable(self.progress) else self.progress

    @property
    def _times(self) -> Path:
        return self.path / "tables" / "seconds.json"

    def step(self, name: str, make: Callable[[], T]) -> T:
        """Run a step and record its time; a step that finds its work done keeps its original time."""
        LOG.info(name)
        began = time.perf_counter()
        made = make()
        self.n_done += 1
        if callable(self.progress):
            self.progress(self.n_done, None)
        self.seconds[name] = max(time.perf_counter() - began, self.seconds.get(name, 0.0))
        write_text(self._times, json.dumps(self.seconds, indent=1))
        return made

    def table(
        self, name: str, made_from: Mapping[str, Any], make: Callable[[], pl.DataFrame], *, needs: Path | None = None
    ) -> pl.DataFrame:
        """Return the table of a step: the stored one if it was made from the same settings, else a new one.

        `needs`: a file or folder that the step leaves too; if it is missing, the step runs again.
        """
        import polars as pl

        path = self.path / "tables" / f"{name}.parquet"
        origin = path.with_suffix(".json")
        wanted = json.loads(canonical(made_from))
        with suppress(OSError, ValueError, KeyError, TypeError, pl.exceptions.PolarsError):
            stored = read_json(origin)
            data = regular_file(path).read_bytes()
            if stored["made_from"] == wanted and stored["crc32c"] == crc32c(data) and (needs is None or needs.exists()):
                return pl.read_parquet(data)
        frame = self.step(name, make)
        with storing(path):
            origin.unlink(missing_ok=True)
            for target in (path, path.with_suffix(".csv")):
                write_frame(frame, target)
            write_text(origin, json.dumps({"made_from": wanted, "crc32c": crc32c(path.read_bytes())}, indent=1))
        return frame


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def methods(stores: Mapping[str, Store]) -> str:
    """Return a paragraph for a paper's methods: models, by the names in the report, corpora, and software."""
    parts: list[str] = []
    software: dict[str, str] = {}
    for name, store in stores.items():
        model, corpus, made = store.metadata.model, store.metadata.corpus, store.metadata.extraction
        software |= store.metadata.software
        layers = f"layers {store.layers[0]}-{store.layers[-1]}" if len(store.layers) > 1 else f"layer {store.layers[0]}"
        parts.append(
            f"{name} ({model['architecture']}, weights SHA-256 {model['weights_sha256'][:12]}), {layers} in "
            f"{store.dtype}, one row per {made['unit']}, over {corpus['name']} ({corpus['n_sentences']:,} sentences, "
            f"{corpus['n_words']:,} words, SHA-256 {corpus['sha256'][:12]})"
        )
    versions = ", ".join(f"{name} {version}" for name, version in software.items())
    return f"Hidden states were extracted from {'; '.join(parts)}. Software: {versions}."


def write_text(path: Path, text: str) -> None:
    """Replace a text file atomically. Raises StorageError."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


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

    def latex(self) -> str:
        """Return the rows as a LaTeX table of the package booktabs."""
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        cells = [names, *([_cell(row.get(name)) for name in names] for row in self.rows)]
        head, *rows = (" & ".join(cell.translate(LATEX) for cell in line) + r" \\" for line in cells)
        lines = [r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{{'l' * len(names)}}}", r"\toprule", head]
        lines += [r"\midrule", *rows, r"\bottomrule", r"\end{tabular}", rf"\caption{{{self.title.translate(LATEX)}}}"]
        return "\n".join([*lines, r"\end{table}", ""])


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")


def decimals(value: float | None) -> str:
    """Format a score; empty for None."""
    return "" if value is None else f"{value:.3f}"


@dataclass(frozen=True, eq=False)
class StudyResult:
    """What a study has found: the frames with all scores, the tables of the paper, and the figures.

    `frames`: Polars frames by name. `sections`: the tables of the report. `figures`: title by file name in
    `folder`/figures. `scale`: one line on the size of the study. `methods`: a paragraph on models, data and software.
    `citation`: the paper as BibTeX. `seconds`: time by step. `save` writes all of it to `folder`: report.md,
    report.html (one file with its figures), tables.tex and references.bib.
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
        if self.methods:
            parts.append(f"## Methods\n\n{self.methods}\n")
        times = [{"step": step, "seconds": f"{spent:,.1f}"} for step, spent in self.seconds.items()]
        return "\n".join([*parts, Section("Time", "", times).markdown()])

    def page(self) -> str:
        """Return the report as one page that holds its figures."""
        from markdown_it import MarkdownIt

        body = MarkdownIt("commonmark", {"html": False}).enable("table").render(self.markdown())
        for name in self.figures:
            data = base64.b64encode((self.folder / "figures" / name).read_bytes()).decode()
            body = body.replace(f'src="figures/{name}"', f'src="data:image/png;base64,{data}"')
        title = html.escape(self.title)
        head = f'<meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
        return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n{body}</body></html>\n'

    def save(self) -> Path:
        """Write report.md, report.html, tables.tex and references.bib to `folder`; return the path of report.md."""
        write_text(self.report, self.markdown())
        write_text(self.folder / "report.html", self.page())
        write_text(self.folder / "tables.tex", "\n".join(section.latex() for section in self.sections if section.rows))
        write_text(self.folder / "references.bib", self.citation)
        return self.report

    def __repr__(self) -> str:
        return f"<StudyResult {self.title}: {len(self.sections)} tables, {len(self.figures)} figures in {self.folder}>"

    def _repr_html_(self) -> str:
        rows = "".join(f"<li>{html.escape(section.title)}</li>" for section in self.sections)
        return f"<b>{html.escape(self.title)}</b><p>{html.escape(str(self.report))}</p><ul>{rows}</ul>"


@dataclass(frozen=True)
class Given(Generic[Settings]):
    """What a study is given: its settings, models by name, and where and how it runs."""

    settings: Settings
    models: Mapping[str, str]
    out: Path
    device: str
    progress: Progress


@dataclass(frozen=True, kw_only=True)
class StudyRun(Given[Settings]):
    """One run of a study, with inputs of its own in a subclass. `notes` collects what a reader must know."""

    folder: StudyFolder
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, given: Given[Settings], **inputs: Any) -> Self:
        """Start a run whose inputs are read: all models are looked up, then its folder is made."""
        from embstore.models import model_kind

        for model in given.models.values():
            model_kind(model)  # before the first one has run for hours
        return cls(**vars(given), folder=StudyFolder(given.out, given.progress), **inputs)

    @property
    def names(self) -> str:
        """The models by the names in the report, those of their folders in brackets."""
        folders = {name: Path(model).name for name, model in self.models.items()}
        return ", ".join(name if name == self.models[name] else f"{name} ({each})" for name, each in folders.items())

    def result(self, title: str, scale: str, **parts: Any) -> StudyResult:
        """Write the report to the folder and return what the study has found; `parts`: the rest of `StudyResult`."""
        notes = tuple(dict.fromkeys(self.notes))
        found = StudyResult(title, self.out, scale, notes=notes, seconds=self.folder.seconds, **parts)
        found.save()
        return found
