"""The unit that every corpus reader yields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence, split into words, with the labels of its words.

    `words`: non-empty strings without ASCII space, as written in the corpus. `labels`: column name -> one
    label (or None) a word. `targets`: spans `[start, stop)` of two or more words that count as one
    occurrence, ascending and disjoint; the labels of such a target stand at its first word. Its form is its
    words joined by one space.
    """

    words: Sequence[str]
    labels: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    targets: Sequence[tuple[int, int]] = ()
