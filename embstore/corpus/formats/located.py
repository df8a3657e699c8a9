"""Words with their places in a text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from embstore.corpus.sentence import Sentence


@dataclass(frozen=True, slots=True)
class Located:
    """A word as the characters `[start, stop)` of a text, and the number of its sentence."""

    start: int
    stop: int
    sentence: int


def located(text: str, sentences: Iterable[Sentence], *, offset: int = 0) -> Iterator[Located]:
    """Yield the words of the sentences of a text, which are at `offset` in another."""
    end = 0
    for number, sentence in enumerate(sentences):
        for word in sentence.words:
            start = text.index(word, end)
            end = start + len(word)
            yield Located(start + offset, end + offset, number)


def sentence_of(text: str, pieces: Sequence[Located]) -> Sentence:
    """Return the sentence of these words of a text; those without white space before them are attached."""
    attached = [at for at in range(1, len(pieces)) if pieces[at].start == pieces[at - 1].stop]
    return Sentence([text[piece.start : piece.stop] for piece in pieces], attached=attached)
