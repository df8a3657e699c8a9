"""Corpora: where their sentences come from and how they are read."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

from embstore.arguments import checked
from embstore.corpus.formats import FORMATS, common_format, has_format
from embstore.corpus.formats.base import Format, ReadOptions, WriteChat
from embstore.corpus.formats.conll import parse_columns
from embstore.corpus.formats.edge import EDGE
from embstore.corpus.formats.parquet import rows_of_table
from embstore.corpus.formats.rows import FILE, read_rows
from embstore.corpus.lines import Lines
from embstore.corpus.sentence import Document, Sentence, distinct_sentences, read_items
from embstore.corpus.splitting import SPLITS, WORDS, Splitter, check_language
from embstore.errors import CorpusError, CorpusNotFoundError, InvalidValueError, quoted

SENTENCES = "sentences"
NORMALIZATIONS: dict[str, Callable[[str], str]] = {
    "nfc": lambda word: unicodedata.normalize("NFC", word),
    "nfkc": lambda word: unicodedata.normalize("NFKC", word),
    "lower": str.lower,
}


@dataclass(frozen=True)
class Corpus:
    """A stream of sentences that can be read repeatedly, and all options that decide how it is read.

    Made by `open_corpus`; iterating yields `Sentence` objects. `name`: the name of the file or folder. `format`: the
    format of its files, "sentences" for Python objects. `options`: all options that affect reading, as JSON values.
    `paths`: its files in reading order. Iterating raises CorpusError for text that is not of the format, if there is
    no sentence, and if an iterator is read a second time.
    """

    name: str
    format: str
    options: dict[str, Any]
    paths: tuple[Path, ...]
    _read: Callable[[WriteChat | None], Iterator[Sentence]] = field(repr=False)

    def __iter__(self) -> Iterator[Sentence]:
        return self.sentences()

    def sentences(self, write_chat: WriteChat | None = None) -> Iterator[Sentence]:
        """Yield the sentences; `write_chat` makes the text of a list of messages, as the template of a model does."""
        steps = parse_normalize(self.options["normalize"])
        sentences = self._read(write_chat)
        is_empty = True
        for sentence in _normalized(sentences, steps) if steps else sentences:
            is_empty = False
            yield sentence
        if is_empty:
            raise CorpusError(f"{self.name}: no sentence in it (read as {self.format})")

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options.items() if value is not None)
        return f"<Corpus {self.name!r}, format={self.format!r}{options}>"


@checked
def open_corpus(
    source: Any,
    *,
    format: str | None = None,
    split: str | None = None,
    words: str | None = None,
    language: str | None = None,
    normalize: str | None = None,
    columns: str | Sequence[str] | None = None,
    text: str | None = None,
) -> Corpus:
    """Open a corpus for reading; every function that takes a corpus accepts the result.

    Parameters
    ----------
    source : path, list of paths, iterable or table
        A path; a list of `Path` objects (or of strings, if `format` is given); an iterable of `Sentence`, of sequences
        of words, or of strings; or a table: an iterable of dicts, a Polars, pandas or Arrow table, a data set of
        Hugging Face. The files of a folder and of its folders are read in the order of their paths, in UTF-8. A folder
        with a folder of edge probing files for each task is read as the sentences of all tasks, each text once and
        without labels. A Corpus is returned unchanged.
    format : str, optional
        text, conllu, conll, pse, edge, sts, pairs, jsonl, parquet or csv; by default that of the suffix, and of the
        first line where formats share it.
    split : {"sentences", "lines"}
        How text is split into sentences. A text file is a document, and so is a Python string.
    words : {"punctuation", "spaces"}
        How sentences are split into words: "punctuation" separates marks from words.
    language : str
        Whose rules these are, by default "en".
    normalize : str, optional
        nfc, nfkc, lower or several joined by commas, applied to the words.
    columns : str or sequence of str, optional
        The names of the columns of a conll file; of a table, the columns to read besides the text, by default all: they
        become fields of the row's document, and lists of labels become label columns where the text is a list of words.
    text : str, optional
        The text column of a table, by default "text" or the only one that holds text.

    Raises
    ------
    InvalidValueError
        For an option that is not allowed.
    CorpusNotFoundError, CorpusError
        For a missing path, and for files of unknown or different formats.
    """
    splitting = {"split": split, "words": words, "language": language}
    given = {"format": format, **splitting, "normalize": normalize, "columns": columns, "text": text}
    if isinstance(source, Corpus):
        for name, value in given.items():
            if value is not None:
                raise InvalidValueError(f"{name}: a Corpus has its options already; give them where it is opened")
        return source
    steps = ",".join(parse_normalize(normalize)) or None
    paths = _paths(source, format)
    if paths is None:
        options = {**_splitting(FORMATS["text"], **splitting), "normalize": steps}
        return _open_items(source, options, _table_options(columns, text))
    files = _files(paths, format)
    if format and format not in FORMATS:
        raise InvalidValueError(f"format: {quoted(format)} is not one of {', '.join(FORMATS)}")
    form = FORMATS[format] if format else common_format(files)
    options = {"normalize": steps, **_splitting(form, **splitting)}
    options |= _columns_of(form, columns, text)
    tasks = dict.fromkeys(file.parent.name for file in files if file not in paths and file.parent not in paths)
    if form is EDGE and tasks:
        options["tasks"] = list(tasks)
    name = (paths[0].name or str(paths[0])) + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")
    return Corpus(name, form.name, options, files, partial(_read_files, form, _sources(paths, files), options))


def parse_normalize(normalize: str | None) -> tuple[str, ...]:
    """Parse the option `normalize`: names of NORMALIZATIONS joined by commas; None and "none" mean no step."""
    steps = tuple((normalize or "none").replace(" ", "").split(","))
    if steps == ("none",):
        return ()
    for step in steps:
        if step not in NORMALIZATIONS:
            allowed = ", ".join(NORMALIZATIONS)
            raise InvalidValueError(f"normalize: {quoted(step)} is not one of {allowed} (or several, joined by commas)")
    return steps


def _normalized(sentences: Iterable[Sentence], steps: tuple[str, ...]) -> Iterator[Sentence]:
    """Apply the steps to every word; spaces that a step inserts are removed, and no word becomes empty."""
    functions = [NORMALIZATIONS[step] for step in steps]

    @lru_cache(maxsize=2**17)
    def normalize(word: str) -> str:
        for function in functions:
            word = function(word).replace(" ", "") or word
        return word

    before: Document | None = None  # as it was read
    document: Document | None = None
    for sentence in sentences:
        if sentence.document is not before:
            before = document = sentence.document
            if document is not None and document.text is not None:
                document = Document(fields=document.fields)
        words = list(map(normalize, sentence.words))
        parts, starts, at, end = list[str](), list[int](), 0, 0  # `at`: in the new text; `end`: of the last word before
        for old, new, start in zip(sentence.words, words, sentence.starts, strict=True):
            starts.append(at + start - end)
            parts += sentence.text[end:start], new
            at, end = starts[-1] + len(new), start + len(old)
        text = "".join(parts) + sentence.text[end:]
        stop = sentence.stop + len(text) - len(sentence.text)
        yield replace(sentence, words=words, document=document, text=text, starts=starts, stop=stop)


def _read_files(
    form: Format, sources: Mapping[Path, str], options: dict[str, Any], write_chat: WriteChat | None
) -> Iterator[Sentence]:
    read_options = replace(_read_options(options), write_chat=write_chat)

    def read(path: Path) -> Iterator[Sentence]:
        fields = {FILE: sources[path]} if len(sources) > 1 else {}
        return form.read(Lines(path), replace(read_options, fields=fields))

    sentences = chain.from_iterable(map(read, sources))
    yield from distinct_sentences(each.words for each in sentences) if "tasks" in options else sentences


def _sources(paths: Sequence[Path], files: Sequence[Path]) -> dict[Path, str]:
    """Return the name of each file, relative to the folder that holds all of the paths."""
    folder = os.path.commonpath([(path if path.is_dir() else path.parent).absolute() for path in paths])
    return {file: os.fsencode(os.path.relpath(file, folder)).decode("utf-8", "replace") for file in files}


def _read_options(options: Mapping[str, Any]) -> ReadOptions:
    return ReadOptions(
        splitter=_splitter(options),
        columns=tuple(filter(None, (options.get("columns") or "").split(","))),
        text=options.get("text"),
    )


def _splitter(options: Mapping[str, Any]) -> Splitter:
    return Splitter(**{name: options[name] for name in ("split", "words", "language") if name in options})


def _open_items(items: Any, options: dict[str, Any], table: dict[str, str]) -> Corpus:
    was_read = False

    def read(write_chat: WriteChat | None) -> Iterator[Sentence]:
        nonlocal was_read
        if was_read and iter(items) is items:
            raise CorpusError(
                "sentences: an iterator can be read only once, and this one has been; give a list, or an object "
                "whose __iter__ returns a new iterator"
            )
        was_read = True
        rows = rows_of_table(items)
        iterator = iter(items if rows is None else rows)
        first = next(iterator, None)
        every = iterator if first is None else chain([first], iterator)
        if not isinstance(first, Mapping):
            _refuse(SENTENCES, **table)
            return read_items(every, _splitter(options).document)

        def error(number: int, message: str) -> CorpusError:
            return CorpusError(f"row {number}: {message}")

        read_options = replace(_read_options(options | table), write_chat=write_chat)
        return read_rows(enumerate(every), read_options, error=error, name="rows")

    return Corpus(SENTENCES, SENTENCES, options | table, (), read)


def _columns_of(form: Format, columns: str | Sequence[str] | None, text: str | None) -> dict[str, Any]:
    """Return the options for columns that a format has; raises InvalidValueError for others that are given."""
    if form.is_table:
        return _table_options(columns, text)
    _refuse(form.name, text=text)
    if form.columns is None:
        _refuse(form.name, columns=columns)
        return {}
    return {"columns": ",".join(form.columns if columns is None else parse_columns(columns))}


def _table_options(columns: str | Sequence[str] | None, text: str | None) -> dict[str, str]:
    """Return the options of a table that are given, with the names of columns joined by commas."""
    names = columns.split(",") if isinstance(columns, str) else columns
    if names is not None and not (isinstance(names, Sequence) and all(isinstance(n, str) and n.strip() for n in names)):
        raise InvalidValueError(f"columns: {quoted(columns)} are not names of columns, such as author,year")
    joined = None if names is None else ",".join(name.strip() for name in names)
    return {name: value for name, value in {"columns": joined, "text": text}.items() if value is not None}


def _paths(source: object, format: str | None) -> tuple[Path, ...] | None:
    """Return the paths that a source names; None if it holds sentences."""
    if isinstance(source, str | os.PathLike):
        if not os.fspath(source):
            raise InvalidValueError("source: '' is empty: give a file or a folder; . is this one")
        return (Path(source),)
    if isinstance(source, Mapping):
        named = ", ".join(map(str, source))[:80]
        raise InvalidValueError(f"source: a dict of {named}: give one of them, or a list with a dict for each row")
    if isinstance(source, bytes | bytearray) or not (isinstance(source, Iterable) or hasattr(source, "collect")):
        raise InvalidValueError(f"source: {quoted(source)} is neither a path nor an iterable of sentences")
    if isinstance(source, list | tuple) and format != SENTENCES:
        is_path = [isinstance(item, os.PathLike) or (format is not None and isinstance(item, str)) for item in source]
        if is_path and all(is_path):
            return tuple(map(Path, source))
        if any(is_path):
            raise InvalidValueError("source: some items are paths and others are not")
    if format not in (None, SENTENCES):
        raise InvalidValueError(f"format: {quoted(format)} is for files; sentences from Python have none")
    return None


def _shown(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and its folders whose names do not begin with a dot. Raises OSError."""

    def refuse(error: OSError) -> None:
        raise error

    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            file = Path(parent, name)
            if not name.startswith(".") and file.is_file():
                yield file


def _files(paths: Sequence[Path], format: str | None) -> tuple[Path, ...]:
    """Return the files at the paths; in a folder and its folders, those that are not hidden and have a known suffix."""
    files: list[Path] = []
    for path in paths:
        try:
            if not path.is_dir():
                if not path.exists():
                    raise CorpusNotFoundError(f"no corpus at {path}: give an existing file or folder")
                if not (path.is_file() or path.is_fifo()):
                    raise CorpusError(f"{path}: is a device, not a file: give a file, a folder or a pipe")
                files.append(path)
                continue
            inside = [file for file in sorted(_shown(path)) if format or has_format(file)]
        except CorpusError:
            raise
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise CorpusError(f"{path}: cannot be read: {reason}") from None
        if not inside:
            raise CorpusError(f"{path}: no file of a known format in this folder")
        files.extend(inside)
    return tuple(files)


def _splitting(form: Format, *, split: str | None, words: str | None, language: str | None) -> dict[str, Any]:
    """Return the options of splitting that a format has; raises InvalidValueError for a value that is not allowed."""
    given = {"split": (split, form.split, SPLITS), "words": (words, form.words, WORDS)}
    options: dict[str, Any] = {}
    for name, (value, default, allowed) in given.items():
        if default is None:
            _refuse(form.name, **{name: value})
        elif value is not None and value not in allowed:
            raise InvalidValueError(f"{name}: {quoted(value)} is not one of {', '.join(allowed)}")
        else:
            options[name] = value or default
    if not options:
        _refuse(form.name, language=language)
    elif language not in (None, "en"):
        check_language(language)
    return {**options, "language": language or "en"} if options else {}


def _refuse(form: str, **options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise InvalidValueError(f"{name}: {quoted(value)} has no meaning for the format {form}")
