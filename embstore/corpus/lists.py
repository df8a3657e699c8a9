"""Lists of words and phrases."""

from __future__ import annotations

from pathlib import Path

from embstore.corpus.lines import Lines


def read_word_list(path: str | Path, *, encoding: str = "utf-8") -> frozenset[str]:
    """Read a word or phrase a line, blank lines left out; the words of a phrase are joined by spaces or "_".

    Raises CorpusError where there is none.
    """
    lines = Lines(Path(path), encoding)
    words = frozenset(" ".join(line.split()) for line in lines if line and not line.isspace())
    if not words:
        raise lines.whole_error("no word in it; write one a line")
    return words
