"""Corpus formats by name and by file suffix. A new format is a reader here and one entry of `FORMATS`."""

from __future__ import annotations

from pathlib import Path

from embstore.corpus.formats.base import Format
from embstore.corpus.formats.conll import CONLL, CONLLU
from embstore.corpus.formats.edge import EDGE
from embstore.corpus.formats.pse import PSE
from embstore.corpus.formats.tables import CSV, JSONL, PARQUET
from embstore.corpus.formats.text import PAIRS, STS, TEXT
from embstore.corpus.lines import COMPRESSED_SUFFIXES, Lines
from embstore.errors import CorpusError, quoted

FORMATS: dict[str, Format] = {
    form.name: form for form in (TEXT, CONLLU, CONLL, PSE, EDGE, STS, PAIRS, JSONL, PARQUET, CSV)
}


def has_format(path: Path) -> bool:
    """Return whether the suffix of a file, without that of compression, is one of a format."""
    return any(_suffix(path) in form.suffixes for form in FORMATS.values())


def format_of(path: Path) -> Format | None:
    """Return the format of a file by its suffix and, where several have it, its first line; None for none."""
    forms = [form for form in FORMATS.values() if _suffix(path) in form.suffixes]
    if len(forms) > 1 and path.is_file():
        _, line = next(Lines(path).numbered(), (0, ""))
        forms = [form for form in forms if form.sniff is None or form.sniff(line)]
    return forms[0] if forms else None


def common_format(paths: tuple[Path, ...]) -> Format:
    """Return the one format of all files. Raises CorpusError for an unknown suffix and for several formats."""
    first: Format | None = None
    for path in paths:
        form = format_of(path)
        if form is None:
            known = ", ".join(f"{form.name} ({' '.join(form.suffixes)})" for form in FORMATS.values())
            raise CorpusError(f"{path}: unknown suffix {quoted(_suffix(path))}; save as .txt or give --format: {known}")
        if form is not (first := first or form):
            differ = f"{paths[0]} is {first.name} and {path} is {form.name}"
            raise CorpusError(f"{differ}: a corpus has one format; name the files, or give --format")
    return first or FORMATS["text"]


def _suffix(path: Path) -> str:
    plain = path.with_suffix("") if path.suffix.lower() in COMPRESSED_SUFFIXES else path
    return plain.suffix.lower()
