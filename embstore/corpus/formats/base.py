"""The interface of a corpus format: a name, its suffixes, and a reader from lines to sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from embstore.corpus.lines import Lines
from embstore.corpus.sentence import Sentence


@dataclass(frozen=True)
class ReadOptions:
    """Options of `open_corpus` with all defaults filled in; a reader uses those that its format has.

    `split` turns text into words. `columns` names the columns of a CoNLL file.
    """

    split: Callable[[str], list[str]]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Format:
    """One format of corpus files.

    `split`: the default splitter of text, None if the format itself separates words. `columns`: the default column
    names, None if the format fixes its columns.
    """

    name: str
    suffixes: tuple[str, ...]
    read: Callable[[Lines, ReadOptions], Iterator[Sentence]]
    split: str | None = None
    columns: tuple[str, ...] | None = None
