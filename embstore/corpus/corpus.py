"""A corpus: where its sentences come from and how they are read."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from embstore.corpus.formats.conll import parse_columns
from embstore.corpus.formats.format import Format, Options
from embstore.corpus.formats.iterable import Item, read_sentences
from embstore.corpus.formats.registry import format_named, format_of, unknown_suffix
from embstore.corpus.lines import Lines
from embstore.corpus.messages import one_line, shown
from embstore.corpus.sentence import Sentence
from embstore.corpus.words import SPLITS, Split, normalizer, parse_normalize
from embstore.errors import CorpusError, CorpusNotFoundError, InvalidValueError

SENTENCES = "sentences"
PathLike = str | os.PathLike[str]
Source = PathLike | Iterable[PathLike] | Iterable[Item]


@dataclass(frozen=True)
class Corpus:
    """A stream of sentences that can be read again and again.

    `name`: that of the file or folder. `format`: that of its files, "sentences" for Python objects.
    `options`: all that affects how it is read, as JSON has it. `paths`: its files in reading order. Reading
    raises CorpusError where the text is not of the format, where no sentence is found, and where an iterator
    is read a second time.
    """

    name: str
    format: str
    options: dict[str, Any]
    paths: tuple[Path, ...]
    _open: Callable[[], Iterator[Sentence]]

    def __iter__(self) -> Iterator[Sentence]:
        normalize = parse_normalize(self.options["normalize"])
        sentences = self._open()
        found = False
        for sentence in _normalized(sentences, normalizer(normalize)) if normalize else sentences:
            found = True
            yield sentence
        if not found:
            raise CorpusError(f"{self.name}: no sentence in it (read as {self.format})")


def open_corpus(
    source: Source | Corpus,
    *,
    format: str | None = None,
    split: str | None = None,
    normalize: str | None = None,
    columns: str | Sequence[str] | None = None,
    encoding: str | None = None,
) -> Corpus:
    """Open a corpus for reading: a file, a folder, several files, or Python sentences.

    `source`: a path; a list of `Path` objects (or of strings, where `format` is given); or an iterable of
    `Sentence`, of sequences of words, or of strings to be split; a Corpus is returned as it is. A folder's
    files are read in the order of their names. `format`: text, conllu, conll, pse, edge or sts; told by the
    suffix unless given. `split`: "space" or "punctuation", how text, sts and Python strings become words.
    `normalize`: nfc, nfkc, lower or several joined by commas, applied to the words; None keeps them as
    written. `columns`: the names of the columns of a conll file. `encoding`: that of files, utf-8 unless
    given.

    Raises InvalidValueError for an option that is not allowed, CorpusNotFoundError for a missing path,
    CorpusError for a format that cannot be told.
    """
    if isinstance(source, Corpus):
        given = {
            "format": format,
            "split": split,
            "normalize": normalize,
            "columns": columns,
            "encoding": encoding,
        }
        if named := [name for name, value in given.items() if value is not None]:
            raise InvalidValueError(f"{named[0]}: a Corpus has its options already; give them where it is opened")
        return source
    steps = ",".join(parse_normalize(normalize)) or None
    paths = _paths(source, format)
    if paths is None:
        _refuse(SENTENCES, columns=columns, encoding=encoding)
        return _of_sentences(cast(Iterable[Item], source), split=split, normalize=steps)
    files = _files(paths, format)
    form = format_named(format) if format else _common_format(files)
    options: dict[str, Any] = {"normalize": steps, "encoding": _encoding(encoding)}
    if form.split is not None:
        options["split"] = _split(split, form.split)
    else:
        _refuse(form.name, split=split)
    if form.columns is not None:
        options["columns"] = ",".join(form.columns if columns is None else parse_columns(columns))
    else:
        _refuse(form.name, columns=columns)
    name = paths[0].name or str(paths[0])
    return Corpus(
        name=name if len(paths) == 1 else f"{name} and {len(paths) - 1} more",
        format=form.name,
        options=options,
        paths=files,
        _open=lambda: _read_files(form, files, options),
    )


def _read_files(form: Format, files: Sequence[Path], options: dict[str, Any]) -> Iterator[Sentence]:
    columns = tuple(str(options.get("columns", "")).split(","))
    settled = Options(split=options.get("split", "space"), columns=columns)
    for path in files:
        yield from form.read(Lines(path, options["encoding"]), settled)


def _normalized(sentences: Iterable[Sentence], normalize: Callable[[str], str]) -> Iterator[Sentence]:
    for sentence in sentences:
        yield Sentence(list(map(normalize, sentence.words)), sentence.labels, sentence.targets)


def _paths(source: object, format: str | None) -> tuple[Path, ...] | None:
    """The paths that a source names; None if it holds sentences."""
    if isinstance(source, str | os.PathLike):
        return (Path(source),)
    if isinstance(source, bytes | bytearray) or not isinstance(source, Iterable):
        raise InvalidValueError(f"source: {shown(source)} is neither a path nor an iterable of sentences")
    if not isinstance(source, list | tuple) or format == SENTENCES:
        if format not in (None, SENTENCES):
            raise InvalidValueError(f"format: {shown(format)} is for files; sentences from Python have none")
        return None
    named = [isinstance(item, os.PathLike) or (format is not None and isinstance(item, str)) for item in source]
    if named and all(named):
        return tuple(map(Path, source))
    if any(named):
        raise InvalidValueError("source: some items are paths and others are not")
    if format is not None:
        raise InvalidValueError(f"format: {shown(format)} is for files; sentences from Python have none")
    return None


def _files(paths: Sequence[Path], format: str | None) -> tuple[Path, ...]:
    """The files at the paths; of a folder those of a known suffix, or all where the format is given."""
    files: list[Path] = []
    for path in paths:
        try:
            if not path.is_dir():
                if not path.exists():
                    raise CorpusNotFoundError(f"no corpus at {one_line(path)}: give a file or folder that is there")
                files.append(path)
                continue
            inside = sorted(item for item in path.iterdir() if item.is_file() and not item.name.startswith("."))
        except (OSError, ValueError) as error:
            if isinstance(error, CorpusError):
                raise
            reason = error.strerror if isinstance(error, OSError) else error
            raise CorpusError(f"{one_line(path)}: cannot be read: {reason}") from None
        found = [item for item in inside if format or format_of(item)]
        if not found:
            raise CorpusError(f"{one_line(path)}: no file of a known format in this folder")
        files.extend(found)
    return tuple(files)


def _common_format(files: Sequence[Path]) -> Format:
    forms: dict[str, Path] = {}
    for path in files:
        form = format_of(path)
        if form is None:
            raise unknown_suffix(path)
        forms.setdefault(form.name, path)
    if len(forms) > 1:
        (one, path), (other, other_path) = list(forms.items())[:2]
        raise CorpusError(
            f"{one_line(path)} is {one} and {one_line(other_path)} is {other}: a corpus has one format; "
            f"name the files, or give --format"
        )
    return format_named(next(iter(forms)))


def _of_sentences(items: Iterable[Item], *, split: str | None, normalize: str | None) -> Corpus:
    how = _split(split, "space")
    was_read = False

    def read() -> Iterator[Sentence]:
        nonlocal was_read
        if was_read and iter(items) is items:
            raise CorpusError(
                "sentences: an iterator can be read only once, and this one has been; "
                "give a list, or an object whose __iter__ begins anew"
            )
        was_read = True
        return read_sentences(items, how)

    return Corpus(SENTENCES, SENTENCES, {"split": how, "normalize": normalize}, (), read)


def _split(split: str | None, default: Split) -> Split:
    if split is None:
        return default
    if split not in SPLITS:
        raise InvalidValueError(f"split: {shown(split)} is not one of {', '.join(SPLITS)}")
    return split


def _encoding(encoding: str | None) -> str:
    try:
        found = codecs.lookup(encoding or "utf-8")
        "\n".encode(found.name)
        codecs.getincrementaldecoder(found.name)
    except (LookupError, UnicodeError):
        raise InvalidValueError(f"encoding: {shown(encoding)} is not known; for example utf-8, latin-1") from None
    return found.name


def _refuse(form: str, **options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise InvalidValueError(f"{name}: {shown(value)} has no meaning for the format {form}")
