"""The formats that there are, by name and by suffix."""

from __future__ import annotations

from pathlib import Path

from embstore.corpus.compression import SUFFIXES as COMPRESSED
from embstore.corpus.formats.conll import CONLL
from embstore.corpus.formats.conllu import CONLLU
from embstore.corpus.formats.edge import EDGE
from embstore.corpus.formats.format import Format
from embstore.corpus.formats.pse import PSE
from embstore.corpus.formats.sts import STS
from embstore.corpus.formats.text import TEXT
from embstore.corpus.messages import one_line, shown
from embstore.errors import CorpusError, InvalidValueError

FORMATS: dict[str, Format] = {form.name: form for form in (TEXT, CONLLU, CONLL, PSE, EDGE, STS)}
BY_SUFFIX: dict[str, Format] = {suffix: form for form in FORMATS.values() for suffix in form.suffixes}


def format_named(name: str) -> Format:
    """The format of a name; InvalidValueError for another."""
    if name not in FORMATS:
        raise InvalidValueError(f"format: {shown(name)} is not one of {', '.join(FORMATS)}")
    return FORMATS[name]


def format_of(path: Path) -> Format | None:
    """The format that a file's suffix tells, that of compression put aside; None for another suffix."""
    return BY_SUFFIX.get(_suffix(path))


def unknown_suffix(path: Path) -> CorpusError:
    """What to say of a file whose suffix tells no format."""
    known = ", ".join(f"{form.name} ({' '.join(form.suffixes)})" for form in FORMATS.values())
    return CorpusError(
        f"{one_line(path)}: the suffix {shown(_suffix(path))} tells no format; name one with --format: {known}"
    )


def _suffix(path: Path) -> str:
    plain = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    return plain.suffix.lower()
