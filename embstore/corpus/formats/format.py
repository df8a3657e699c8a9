"""What a corpus format is: a name, its suffixes, and a reader from lines to sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from embstore.corpus.lines import Lines
from embstore.corpus.sentence import Sentence
from embstore.corpus.words import Split


@dataclass(frozen=True)
class Options:
    """How a file is read, every option settled: see `open_corpus`. A reader looks at those of its format."""

    split: Split
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Format:
    """One format of corpus files.

    `split`: how it splits text into words unless told otherwise, None where the format itself says what a
    word is. `columns`: the names of its columns unless told otherwise, None where they cannot be chosen.
    """

    name: str
    suffixes: tuple[str, ...]
    read: Callable[[Lines, Options], Iterator[Sentence]]
    split: Split | None = None
    columns: tuple[str, ...] | None = None
