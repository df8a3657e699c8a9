"""Small stores of sentences with labelled spans, whose labels can be read from one layer on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from embstore.corpus.formats.edge import EdgeSentence, EdgeTarget
from embstore.store import Store, Strings, Text
from tests.probes.class_store import write_rows

LABELS = ("red", "green", "blue")


@dataclass(frozen=True, eq=False)
class Made:
    """A store, its task by split, and `vectors` [layer, row, feature]; row `starts[s] + w` is word w of sentence s."""

    store: Store
    splits: dict[str, list[EdgeSentence]]
    vectors: np.ndarray
    starts: np.ndarray

    def write(self, folder: Path) -> dict[str, Path]:
        folder.mkdir(parents=True, exist_ok=True)
        return {name: write_edges(folder / f"{name}.jsonl", held) for name, held in self.splits.items()}


def write_edges(path: Path, sentences: Sequence[EdgeSentence]) -> Path:
    lines = []
    for sentence in sentences:
        targets = []
        for target in sentence.targets:
            span2 = {} if target.span2 is None else {"span2": list(target.span2)}
            label = target.labels[0] if len(target.labels) == 1 else list(target.labels)
            targets.append({"span1": list(target.span1), **span2, "label": label})
        lines.append(json.dumps({"text": " ".join(sentence.words), "targets": targets}))
    path.write_text("\n".join(lines) + "\n")
    return path


def make(
    path: Path,
    *,
    sentences: int = 80,
    layers: tuple[int, ...] = (0, 1, 2, 3, 4),
    planted: int | None = 3,
    pairs: bool = False,
    several: bool = False,
    longest: int = 3,
    shuffled: bool = False,
    width: int = 12,
    unit: str = "word",
    dtype: str = "float32",
    seed: int = 0,
) -> Made:
    """Sentences of 4 to 9 words, with 3 targets each; in layer `planted` every word of a span leans to its label.

    `pairs`: the label is read from the second span. `several`: labels are sets. `shuffled`: labels that the vectors
    know nothing of. `unit` subword: every word has two rows.
    """
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, 10, sentences)
    a_word = 2 if unit == "subword" else 1
    starts = np.concatenate([[0], np.cumsum(lengths * a_word)]).astype(np.int64)
    rows = int(starts[-1])
    words = [
        [f"w{number}", *(f"v{int(n)}" for n in rng.integers(0, 50, length - 1))]
        for number, length in enumerate(lengths)
    ]
    vectors = np.stack([np.random.default_rng((seed, layer)).normal(size=(rows, width)) for layer in layers])
    leaning = 3 * rng.normal(size=(len(LABELS), width))
    edges = []
    for number, length in enumerate(lengths.tolist()):
        targets = []
        cuts = np.sort(rng.permutation(np.arange(1, length))[:2]).tolist()
        for start, stop in zip([0, *cuts], [*cuts, length], strict=True):
            span = start, min(stop, start + longest)
            own = rng.permutation(len(LABELS))[: int(rng.integers(1, 3)) if several else 1]
            if planted is not None:
                first = starts[number] + span[0] * a_word
                last = starts[number] + span[1] * a_word
                vectors[layers.index(planted), first:last] += leaning[own].sum(0)
            said = rng.integers(0, len(LABELS), len(own)) if shuffled else own
            names = tuple(dict.fromkeys(LABELS[label] for label in said))
            other = (int(rng.integers(0, length)),)
            spans = ((other[0], other[0] + 1), span) if pairs else (span, None)
            targets.append(EdgeTarget(spans[0], spans[1], names))
        edges.append(EdgeSentence(words[number], targets))
    store = write_store(path, words, vectors.astype(np.float32), layers, unit=unit, dtype=dtype)
    cut = sentences * 6 // 10, sentences * 8 // 10
    splits = {"train": edges[: cut[0]], "dev": edges[cut[0] : cut[1]], "test": edges[cut[1] :]}
    return Made(store, splits, vectors.astype(np.float32), starts)


def write_store(
    path: Path,
    words: Sequence[Sequence[str]],
    vectors: np.ndarray,
    layers: tuple[int, ...],
    *,
    unit: str = "word",
    dtype: str = "float32",
    without: Sequence[tuple[int, int]] = (),
    partition_rows: int = 256,
) -> Store:
    """A store of these sentences; `without`: (sentence, word) that have no row."""
    a_word = 2 if unit == "subword" else 1
    placed = [
        (number, place)
        for number, sentence in enumerate(words)
        for place in range(len(sentence))
        if (number, place) not in without
        for _ in range(a_word)
    ]
    sentence, position = (np.array(column) for column in zip(*placed, strict=True))
    forms = [words[number][place] + ("#" if unit == "subword" else "") for number, place in placed]
    distinct, text = sorted(set(forms)), Text.of_words(words)
    if unit == "subword":
        twice = {name: getattr(text, name) * 2 for name in ("word_subword", "word_subwords", "subword_indptr")}
        ids, start, stop = (np.repeat(column, 2) for column in (text.ids, text.word_start, text.word_stop))
        text = replace(text, ids=ids, subword_start=start, subword_stop=stop, **twice)
    columns = {
        "type": np.array([distinct.index(form) for form in forms], np.int32),
        "sentence": sentence,
        "position": position.astype(np.int32),
        "words": Strings.of(distinct),
        "text": text,
        "subword": None if a_word == 1 else (2 * position + np.arange(len(position)) % 2).astype(np.int32),
    }
    return write_rows(path, vectors, layers, dtype, unit, partition_rows=partition_rows, **columns)
