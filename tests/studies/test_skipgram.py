"""Skip-gram vectors: determined by the seed, similar for words of similar contexts, phrases as one word."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embstore.corpus import Sentence, open_corpus
from embstore.errors import CorpusError, InvalidValueError
from embstore.vectors import WordVectors
from embstore.vectors.training import join_targets
from embstore_studies.skipgram import SkipGram, train_vectors

ANIMALS, TOOLS = ["cat", "dog", "horse"], ["hammer", "saw", "drill"]


def planted(count: int = 1500) -> list[Sentence]:
    """Animals eat and sleep, tools cut and hit; new york is a place like oslo."""
    rng = np.random.default_rng(0)
    sentences = []
    for _ in range(count):
        for subjects, verbs in ((ANIMALS, ["eats", "sleeps", "runs"]), (TOOLS, ["cuts", "hits", "breaks"])):
            words = ["the", rng.choice(subjects), rng.choice(verbs), rng.choice(verbs)]
            sentences.append(Sentence([str(word) for word in words]))
    places = (Sentence(["in", "new", "york", "it", "rains"], {}, [(1, 3)]), Sentence(["in", "oslo", "it", "rains"]))
    return sentences + list(places) * (count // 3)


def cosine(vectors: WordVectors, one: str, other: str) -> float:
    left, right = vectors.vectors[vectors.rows_of([one, other])]
    return float(left @ right / np.linalg.norm(left) / np.linalg.norm(right))


TRAINING = SkipGram(size=16, window=3, epochs=3, sample=0.0)


@pytest.fixture(scope="module")
def trained() -> WordVectors:
    return train_vectors(planted(), training=TRAINING)


def test_words_of_similar_contexts_are_similar(trained: WordVectors) -> None:
    assert trained.vectors.shape == (len(trained), 16)
    for one, other, unlike in [("cat", "dog", "saw"), ("hammer", "drill", "horse"), ("new_york", "oslo", "cat")]:
        assert cosine(trained, one, other) > cosine(trained, one, unlike) + 0.2


def test_the_most_frequent_words_come_first(trained: WordVectors) -> None:
    counts: dict[str, int] = {}
    for sentence in planted():
        for word in join_targets(sentence):
            counts[word] = counts.get(word, 0) + 1
    assert set(trained.words) == {word for word, count in counts.items() if count >= 5}
    assert [counts[word] for word in trained.words] == sorted(counts.values(), reverse=True)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_vectors(trained: WordVectors) -> None:
    again = train_vectors(planted(), training=TRAINING)
    assert (again.words, again.vectors.tobytes()) == (trained.words, trained.vectors.tobytes())
    assert train_vectors(planted(), training=replace(TRAINING, seed=1)).vectors.tobytes() != trained.vectors.tobytes()


def test_phrases_may_stay_words() -> None:
    found = train_vectors(planted(60), training=TRAINING, phrases=False).words
    assert {"new", "york"} <= set(found)
    assert "new_york" not in found


def test_targets_are_join_targets() -> None:
    sentence = Sentence(list("abcdef"), {}, [(0, 2), (3, 6)])
    assert join_targets(sentence) == ["a_b", "c", "d_e_f"]
    assert join_targets(Sentence(["a", "b"])) == ["a", "b"]


def test_progress_counts_every_reading() -> None:
    reports: list[tuple[int, int | None]] = []
    sentences = planted(400)
    train_vectors(sentences, training=TRAINING, progress=lambda done, total: reports.append((done, total)))
    total = (TRAINING.epochs + 1) * len(sentences)
    assert reports[-1] == (total, total)
    assert reports == sorted(reports, key=lambda report: report[0])


def test_a_file_is_read_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(" ".join(sentence.words) for sentence in planted(60)))
    from_file = train_vectors(path, training=TRAINING)
    from_words = train_vectors([list(sentence.words) for sentence in planted(60)], training=TRAINING)
    assert from_file.vectors.tobytes() == from_words.vectors.tobytes()


def test_iterators_and_corpora_of_rare_words_are_refused() -> None:
    with pytest.raises(CorpusError, match="no word occurs 5 times or more"):
        train_vectors([["a", "b"]])
    with pytest.raises(CorpusError, match="can be read only once"):
        train_vectors(iter(planted(60)), training=TRAINING)


def test_an_error_of_the_corpus_ends_training(tmp_path: Path) -> None:
    corpus = open_corpus(planted(60))
    readings = 0

    def broken() -> Iterator[Sentence]:
        nonlocal readings
        readings += 1
        yield from planted(20)
        if readings > 3:
            raise CorpusError("corpus.txt:9: gone")

    object.__setattr__(corpus, "_read", broken)
    with pytest.raises(CorpusError, match=r"corpus\.txt:9: gone"):
        train_vectors(corpus, training=TRAINING)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"size": 0}, "size 0 is not allowed"),
        ({"min_count": 0}, "min count 0 is not allowed"),
        ({"seed": -1}, "seed -1 is not allowed"),
        ({"sample": 2.0}, "sample 2.0 is not allowed"),
        ({"workers": 0}, "workers 0 is not allowed"),
    ],
)
def test_bad_options(options: dict[str, int], says: str) -> None:
    with pytest.raises(InvalidValueError, match=says):
        SkipGram(**options)
