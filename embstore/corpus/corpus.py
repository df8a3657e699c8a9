"""Corpora: where their sentences come from and how they are read."""

from __future__ import annotations

import os
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import Any

from embstore.arguments import checked
from embstore.corpus.formats import FORMATS, common_format, has_format
from embstore.corpus.formats.base import TABLE_OPTIONS, TEXT_OPTIONS, Format, ReadOptions, WriteChat
from embstore.corpus.formats.conll import CONLL, check_columns
from embstore.corpus.formats.edge import EDGE
from embstore.corpus.formats.tables import FILE, read_rows, rows_of_table
from embstore.corpus.lines import Lines
from embstore.corpus.sentence import Document, Sentence, read_items
from embstore.corpus.splitting import SPLITS, WORDS, Splitter, check_language
from embstore.errors import CorpusError, CorpusNotFoundError, EmbstoreWarning, InvalidValueError, quoted

SENTENCES = "sentences"
ALLOWED = {"split": SPLITS, "words": WORDS}
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
    _read: Callable[[ReadOptions], Iterator[Sentence]] = field(repr=False)

    def __iter__(self) -> Iterator[Sentence]:
        return self.sentences()

    def sentences(self, write_chat: WriteChat | None = None) -> Iterator[Sentence]:
        """Yield the sentences; `write_chat` makes the text of a list of messages, as the template of a model does."""
        options = self.options
        steps = parse_normalize(options["normalize"])
        splitter = Splitter(**{name: options[name] for name in ("split", "words", "language") if name in options})
        columns = tuple(filter(None, options.get("columns", "").split(",")))
        sentences = self._read(ReadOptions(splitter, columns, options.get("text"), write_chat=write_chat))
        sentence = None
        for sentence in _normalized(sentences, steps) if steps else sentences:
            yield sentence
        if sentence is None:
            raise CorpusError(f"{self.name}: no sentence in it (read as {self.format}): give one with text")

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
    given = {"split": split, "words": words, "language": language, "columns": columns, "text": text}
    given |= {"normalize": normalize}
    if isinstance(source, Corpus):
        for name, value in {"format": format, **given}.items():
            if value is not None:
                raise InvalidValueError(f"{name}: a Corpus has its options already; give them where it is opened")
        return source
    paths = _paths(source, format)
    if paths is None:
        return _open_items(source, _options(SENTENCES, TABLE_OPTIONS, given))
    files = _files(paths, format)
    if len(set(files)) < len(files):
        raise CorpusError(f"{max(files, key=files.count)} is given twice: name each file once")
    if format and format not in FORMATS:
        raise InvalidValueError(f"format: {quoted(format)} is not one of {', '.join(FORMATS)}")
    form = FORMATS[format] if format else common_format(files)
    options = _options(form.name, form.options, given)
    tasks = dict.fromkeys(file.parent.name for file in files if file not in paths and file.parent not in paths)
    joined = form is EDGE and bool(tasks)
    if joined:
        options["tasks"] = list(tasks)
    name = (paths[0].name or str(paths[0])) + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")
    folder = os.path.commonpath([(path if path.is_dir() else path.parent).absolute() for path in paths])
    sources = {file: os.fsencode(os.path.relpath(file, folder)).decode("utf-8", "replace") for file in files}
    return Corpus(name, form.name, options, files, partial(_read_files, form, sources, joined))


def _options(form: str, defaults: Mapping[str, str | None], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a format, checked, with the defaults of those that are not given."""
    options: dict[str, Any] = {"normalize": ",".join(parse_normalize(given["normalize"])) or None}
    for name, value in given.items():
        if value is not None and name not in options and name not in defaults:
            raise InvalidValueError(f"{name}: {quoted(value)} has no meaning for the format {form}")
    for name, default in defaults.items():
        value = given.get(name)
        if value is None:
            value = default
        elif name == "language" and value != "en":
            check_language(value)
        elif name in ALLOWED and value not in ALLOWED[name]:
            raise InvalidValueError(f"{name}: {quoted(value)} is not one of {', '.join(ALLOWED[name])}")
        elif name == "columns":
            names = value.split(",") if isinstance(value, str) else value
            if not (isinstance(names, Sequence) and all(isinstance(name, str) and name.strip() for name in names)):
                raise InvalidValueError(f"columns: {quoted(value)} are not names of columns, such as author,year")
            names = [name.strip() for name in names]
            if form == CONLL.name:
                check_columns(names)
            value = ",".join(names)
        if value is not None:
            options[name] = value
    return options


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


def _read_files(form: Format, sources: Mapping[Path, str], joined: bool, options: ReadOptions) -> Iterator[Sentence]:
    """Yield the sentences of files, or with `joined` their distinct texts alone.

    `sources`: the name of each file, relative to the folder that holds all of them.
    """
    seen: set[bytes] = set()
    for path, name in sources.items():
        fields = {FILE: name} if len(sources) > 1 else {}
        sentences = form.read(Lines(path), replace(options, fields=fields))
        if not joined:
            yield from sentences
            continue
        for words in (sentence.words for sentence in sentences):
            key = blake2b(" ".join(words).encode(), digest_size=16).digest()
            if key not in seen:
                seen.add(key)
                yield Sentence(words)


def _open_items(items: Any, options: dict[str, Any]) -> Corpus:
    was_read = False

    def read(read_options: ReadOptions) -> Iterator[Sentence]:
        nonlocal was_read
        if was_read and iter(items) is items:
            raise CorpusError("sentences: an iterator can be read only once, and this one has been: give a list")
        was_read = True
        rows = rows_of_table(items)
        iterator = iter(items if rows is None else rows)
        first = list(islice(iterator, 1))
        every = chain(first, iterator)
        if first and isinstance(first[0], Mapping):
            return read_rows(enumerate(every), read_options, place="row ")
        _options(SENTENCES, TEXT_OPTIONS, options)  # raises for those of a table
        return read_items(every, read_options.splitter.document)

    return Corpus(SENTENCES, SENTENCES, options, (), read)


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
        if source and all(isinstance(item, str) and os.path.isfile(item) for item in source):
            raise InvalidValueError(f"source: {quoted(source[0])} names a file: give Path objects, or the format")
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
            if path.is_dir():
                shown = sorted(_shown(path))
                inside = [file for file in shown if format or has_format(file)]
                if not inside:
                    raise CorpusError(f"{path}: no file of a known format in this folder: save text as .txt")
                if other := sorted({*shown} - {*inside}):
                    left_out = f"{path}: {len(other):,} of {len(shown):,} files have no known suffix and are left out"
                    warnings.warn(f"{left_out}, such as {other[0].name}", EmbstoreWarning, stacklevel=4)
                files += inside
            elif path.is_file() or path.is_fifo():
                files.append(path)
            elif path.exists():
                raise CorpusError(f"{path}: is a device, not a file: give a file, a folder or a pipe")
            else:
                raise CorpusNotFoundError(f"no corpus at {path}: give an existing file or folder")
        except CorpusError:
            raise
        except (OSError, ValueError) as error:
            raise CorpusError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return tuple(files)
