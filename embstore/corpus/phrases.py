"""Forms of several words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from embstore.corpus.sentence import Sentence


def sentence_of(forms: Sequence[str], labels: Mapping[str, Sequence[str | None]]) -> Sentence:
    """A sentence of forms, some perhaps with spaces: each such one is a target of several words.

    `labels`: one label a form; that of a target stands at its first word, its other words have none.
    """
    if " " not in "".join(forms):
        return Sentence(forms, labels)
    words: list[str] = []
    targets: list[tuple[int, int]] = []
    source: list[int | None] = []
    for number, form in enumerate(forms):
        parts = list(filter(None, form.split(" ")))
        if len(parts) > 1:
            targets.append((len(words), len(words) + len(parts)))
        words.extend(parts)
        source.extend([number, *[None] * (len(parts) - 1)])
    spread = {
        name: [None if number is None else column[number] for number in source] for name, column in labels.items()
    }
    return Sentence(words, spread, targets)


def filled(column: Sequence[str]) -> Sequence[str | None]:
    """A column of a CoNLL file as labels: "_" is none."""
    return [None if label == "_" else label for label in column] if "_" in column else column
