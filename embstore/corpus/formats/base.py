"""The interface of a corpus format: a name, its suffixes, and a reader from lines to sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from embstore.corpus.lines import Lines
from embstore.corpus.sentence import Document, FieldValue, Sentence
from embstore.corpus.splitting import Splitter

WriteChat = Callable[[Sequence[Mapping[str, Any]]], Document | None]


@dataclass(frozen=True)
class ReadOptions:
    """Options of `open_corpus` with all defaults filled in; a reader uses those that its format has.

    `splitter` turns text into sentences and words. `columns` names the columns of a CoNLL file, or those of a table to
    read (empty: all). `text`: the column of the text of a table, None to find it. `fields`: those of the documents of
    the file. `write_chat`: makes the text of a list of messages, as the template of a model does, None for their
    contents alone.
    """

    splitter: Splitter
    columns: tuple[str, ...] = ()
    text: str | None = None
    fields: Mapping[str, FieldValue] = field(default_factory=dict)
    write_chat: WriteChat | None = None


# The options of formats with text, and their defaults
WORD_OPTIONS: Mapping[str, str | None] = {"words": "punctuation", "language": "en"}
TEXT_OPTIONS: Mapping[str, str | None] = {"split": "sentences", **WORD_OPTIONS}
TABLE_OPTIONS: Mapping[str, str | None] = {**TEXT_OPTIONS, "columns": None, "text": None}


@dataclass(frozen=True)
class Format:
    """One format of corpus files.

    `options`: those of `open_corpus` that it has besides `normalize`, with their defaults. `sniff`: whether a file of
    this format can begin with a line; formats of the same suffix are tried in their order in `FORMATS`.
    """

    name: str
    suffixes: tuple[str, ...]
    read: Callable[[Lines, ReadOptions], Iterator[Sentence]]
    options: Mapping[str, str | None] = field(default_factory=dict)
    sniff: Callable[[str], bool] | None = None
