"""Antecedents of pronouns by similarity, against loops over candidates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embstore.corpus import EdgeSentence
from embstore.corpus.formats.edge import EdgeTarget
from embstore.errors import InvalidValueError, NonFiniteError
from embstore.store import Store
from embstore_studies.pronouns import find_pronouns, resolve_pronouns
from tests.analysis.word_store import one_line, write_rows

WORDS = ["the", "old", "man", "saw", "his", "dog", "and", "it", "saw", "him", "there"]
PAIRS = [
    ((0, 3), (4, 5), "1"),
    ((4, 5), (9, 10), "1"),
    ((4, 6), (7, 8), "1"),
    ((0, 3), (4, 6), "0"),
    ((7, 8), (0, 3), "0"),
]
SENTENCES = [
    EdgeSentence(WORDS, [EdgeTarget(one, other, (label,)) for one, other, label in PAIRS]),
    EdgeSentence(
        ["a", "dog", "saw", "it", "here", "and", "there", "was", "a", "cat", "."], [EdgeTarget((0, 2), (3, 4), ("1",))]
    ),
]
LAYERS = (0, 3)


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    return np.random.default_rng(6).normal(1.5, size=(len(LAYERS), 22, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, vectors: np.ndarray) -> Store:
    return made(tmp_path_factory.mktemp("spans") / "s.zarr", vectors)


def made(path: Path, vectors: np.ndarray) -> Store:
    """The two sentences, the second first."""
    texts = [" ".join(SENTENCES[number].words) for number in (1, 0)]
    names = sorted(set(" ".join(texts).split(" ")))
    types = np.array([names.index(word) for word in " ".join(texts).split(" ")])
    return write_rows(path, names, types, vectors, layers=LAYERS, texts=texts, sentence_words=11).store


def test_pronouns_have_the_mentions_before_them_and_coreference_is_transitive() -> None:
    found = {(each.sentence, each.span): each for each in find_pronouns(SENTENCES)}
    assert set(found) == {(0, (4, 5)), (0, (7, 8)), (0, (9, 10)), (1, (3, 4))}
    him = found[0, (9, 10)]
    assert him.candidates == ((0, 3), (4, 5), (4, 6), (7, 8))
    assert him.right == (True, True, False, False)
    assert found[0, (7, 8)].right == (False, False, True)
    assert not found[0, (4, 5)].is_ambiguous
    assert him.is_ambiguous
    assert find_pronouns(SENTENCES, forms={"her"}) == []
    joined = EdgeSentence(["the", "dog", "itself"], [EdgeTarget((0, 2), (2, 3), ("1",))])
    assert [each.candidates for each in find_pronouns([joined])] == [((0, 2),)]


@pytest.mark.parametrize("centered", [False, True])
def test_the_most_similar_candidate_is_chosen(centered: bool, store: Store, vectors: np.ndarray) -> None:
    pronouns = find_pronouns(SENTENCES)
    frame = resolve_pronouns(store, SENTENCES, pronouns, centered=centered)
    base = {0: 11, 1: 0}  # the first row of each sentence
    for place, layer in enumerate(LAYERS):
        spans = [
            [
                vectors[place, base[each.sentence] + start : base[each.sentence] + stop].mean(0, dtype=np.float64)
                for start, stop in (each.span, *each.candidates)
            ]
            for each in pronouns
        ]
        mean = np.mean([vector for own in spans for vector in own], axis=0) if centered else 0
        for number, (each, own) in enumerate(zip(pronouns, spans, strict=True)):
            unit = [(vector - mean) / np.linalg.norm(vector - mean) for vector in own]
            best = int(np.argmax([unit[0] @ other for other in unit[1:]]))
            (row,) = frame.filter(layer=layer, pronoun=number).to_dicts()
            assert row["value"] == each.right[best]
            assert (row["recent"], row["first"]) == (each.right[-1], each.right[0])
            assert row["chance"] == pytest.approx(np.mean(each.right))
            assert row["n_candidates"] == len(each.candidates)
    plain = resolve_pronouns(store, SENTENCES, pronouns)
    assert frame["value"].equals(plain["value"]) != centered


def test_equal_candidates_share_the_credit(tmp_path: Path, vectors: np.ndarray) -> None:
    same = made(tmp_path / "s.zarr", np.ones_like(vectors))
    frame = resolve_pronouns(same, SENTENCES, find_pronouns(SENTENCES), layers=3)
    assert frame["value"].to_list() == pytest.approx(frame["chance"].to_list())


def test_values_that_are_not_finite_are_named(tmp_path: Path, vectors: np.ndarray) -> None:
    bad = vectors.copy()
    bad[1, 15] = np.nan
    store = made(tmp_path / "s.zarr", bad)
    one_line(lambda: resolve_pronouns(store, SENTENCES, find_pronouns(SENTENCES)), NonFiniteError, "layer 3", "row 15")


def test_bad_input_is_one_line(store: Store) -> None:
    pronouns = find_pronouns(SENTENCES)
    other = [EdgeSentence([*each.words, "."], each.targets) for each in SENTENCES]
    calls: list[tuple[Any, str]] = [
        (lambda: resolve_pronouns(store, SENTENCES, []), "no pronoun to resolve"),
        (lambda: resolve_pronouns(store, SENTENCES, pronouns, layers=9), "layer 9 is not stored"),
        (lambda: resolve_pronouns(store, other, pronouns), "does not have all words of"),
    ]
    for call, message in calls:
        with pytest.raises(InvalidValueError, match=message):
            call()
