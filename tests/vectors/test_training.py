"""Skip-gram vectors: the same for the same seed, alike for words of like contexts, phrases as one word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from embstore.corpus import Sentence, open_corpus
from embstore.errors import CorpusError, InvalidValueError
from embstore.vectors import WordVectors
from embstore.vectors.training import joined, train_vectors

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


OPTIONS = {"size": 16, "window": 3, "epochs": 3, "sample": 0.0}


@pytest.fixture(scope="module")
def trained() -> WordVectors:
    return train_vectors(planted(), **OPTIONS)


def test_words_of_like_contexts_are_alike(trained: WordVectors) -> None:
    assert trained.vectors.shape == (len(trained), 16)
    for one, other, far in [("cat", "dog", "saw"), ("hammer", "drill", "horse"), ("new_york", "oslo", "cat")]:
        assert cosine(trained, one, other) > cosine(trained, one, far) + 0.2


def test_the_most_frequent_words_come_first(trained: WordVectors) -> None:
    counts: dict[str, int] = {}
    for sentence in planted():
        for word in joined(sentence):
            counts[word] = counts.get(word, 0) + 1
    assert set(trained.words) == {word for word, count in counts.items() if count >= 5}
    assert [counts[word] for word in trained.words] == sorted(counts.values(), reverse=True)


def test_the_same_seed_gives_the_same_vectors(trained: WordVectors) -> None:
    again = train_vectors(planted(), **OPTIONS)
    assert (again.words, again.vectors.tobytes()) == (trained.words, trained.vectors.tobytes())
    assert train_vectors(planted(), **OPTIONS, seed=1).vectors.tobytes() != trained.vectors.tobytes()


def test_phrases_may_stay_words() -> None:
    found = train_vectors(planted(60), **OPTIONS, phrases=False).words
    assert {"new", "york"} <= set(found)
    assert "new_york" not in found


def test_targets_are_joined() -> None:
    sentence = Sentence(list("abcdef"), {}, [(0, 2), (3, 6)])
    assert joined(sentence) == ["a_b", "c", "d_e_f"]
    assert joined(Sentence(["a", "b"])) == ["a", "b"]


def test_progress_counts_every_reading() -> None:
    told: list[int] = []
    sentences = planted(400)
    train_vectors(sentences, **OPTIONS, progress=told.append)
    assert sum(told) == (OPTIONS["epochs"] + 1) * len(sentences)


def test_a_file_is_read_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(" ".join(sentence.words) for sentence in planted(60)))
    from_file = train_vectors(path, **OPTIONS)
    from_words = train_vectors([list(sentence.words) for sentence in planted(60)], **OPTIONS)
    assert from_file.vectors.tobytes() == from_words.vectors.tobytes()


def test_an_iterator_cannot_be_read_again() -> None:
    with pytest.raises(CorpusError, match="can be read only once"):
        train_vectors(iter(planted(60)), **OPTIONS)


def test_an_error_of_the_corpus_ends_the_training(tmp_path: Path) -> None:
    corpus = open_corpus(planted(60))
    readings = 0

    def broken() -> Iterator[Sentence]:
        nonlocal readings
        readings += 1
        yield from planted(20)
        if readings > 3:
            raise CorpusError("corpus.txt:9: gone")

    object.__setattr__(corpus, "_open", broken)
    with pytest.raises(CorpusError, match=r"corpus\.txt:9: gone"):
        train_vectors(corpus, **OPTIONS)


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
        train_vectors([["a"]], **options)


def test_no_word_often_enough() -> None:
    with pytest.raises(CorpusError, match="no word occurs 5 times or more"):
        train_vectors([["a", "b"]])
