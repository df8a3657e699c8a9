"""Nearest-neighbour labels against loops over all pairs in float64."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from embstore.analysis.neighbors.labels import knn_labels, labelled_occurrences
from embstore.errors import InvalidValueError
from embstore.store import Store
from tests.analysis.word_store import write_senses
from tests.store_making import make_store

Listed = list[tuple[str, str | None, list[float]]]


def occurrences(seed: int = 0, count: int = 90) -> Listed:
    """Words of one label, of several and of none; vectors lean to their label, equal ones and zeros are among them."""
    rng = np.random.default_rng(seed)
    centers = {"x": np.array([3.0, 0, 1, 0]), "y": np.array([0, 3.0, 0, 1]), "z": np.array([1.0, 1, 1, 4])}
    words = ["bank", "suit", "spring", "crane", "river", "the", "a phrase"]
    listed: Listed = []
    for _ in range(count):
        word = words[int(rng.integers(len(words)))]
        label = "x" if word == "river" else [*centers, None][int(rng.integers(4))]
        vector = 2.0 ** rng.integers(-3, 4) * (centers.get(str(label), 0) + rng.integers(-2, 3, 4))
        listed.append((word, label, vector.tolist()))
    for place in (3, 17, 40, 41, 42):
        listed[place] = (*listed[place][:2], listed[8][2])
    listed[50] = (*listed[50][:2], [0.0] * 4)
    return listed


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return write_senses(tmp_path_factory.mktemp("labelling") / "store.zarr", occurrences())


def cosine(one: list[float], other: list[float]) -> float:
    product = math.fsum(a * b for a, b in zip(one, other, strict=True))
    lengths = math.sqrt(math.fsum(a * a for a in one)) * math.sqrt(math.fsum(b * b for b in other))
    return product / lengths if lengths else 0.0


def distance(one: list[float], other: list[float]) -> float:
    return -math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(one, other, strict=True)))


def may_answer(listed: Listed, split: str) -> dict[int, list[int]]:
    """The labelled occurrences that each occurrence asked may have for neighbours; a sentence has three words."""
    labelled = [row for row in range(len(listed)) if listed[row][1] is not None]
    if split == "leave-one-word-out":
        return {row: [r for r in labelled if listed[r][0] != listed[row][0]] for row in labelled}
    labels = defaultdict(set)
    for row in labelled:
        labels[listed[row][0]].add(listed[row][1])
    asked = [row for row in labelled if len(labels[listed[row][0]]) >= 2]
    return {row: [r for r in labelled if listed[r][0] == listed[row][0] and r // 3 != row // 3] for row in asked}


def nearest_by_hand(listed: Listed, row: int, pool: list[int], k: int, score) -> tuple[str, int, float]:  # type: ignore[no-untyped-def]
    """The label with most votes (of equals the nearest, then the first), its nearest row, and the credit it earns."""
    equal, nearest = equals_by_hand(listed, row, pool, k, score)
    return equal[0], nearest, (listed[row][1] in equal) / len(equal)


def equals_by_hand(listed: Listed, row: int, pool: list[int], k: int, score) -> tuple[list[str], int]:  # type: ignore[no-untyped-def]
    """The labels that are equal in votes and distance, and the nearest row of the first.

    The neighbours as near as the k-th share its votes; labels that are equal in all of that share the credit.
    """
    scores = {other: score(listed[row][2], listed[other][2]) for other in pool}
    kth = sorted(scores.values(), reverse=True)[:k][-1]
    nearer = [other for other in pool if scores[other] > kth + 1e-12]
    tied = [other for other in pool if abs(scores[other] - kth) <= 1e-12]
    votes: dict[str, float] = defaultdict(float)
    for other in nearer + tied:
        votes[str(listed[other][1])] += 1 if other in nearer else min(1, (k - len(nearer)) / len(tied))
    labels = [label for label in votes if votes[label] >= max(votes.values()) - 1e-9]
    near = {label: max(scores[other] for other in nearer + tied if listed[other][1] == label) for label in labels}
    equal = sorted(label for label in labels if near[label] >= max(near.values()) - 1e-12)
    own = [other for other in nearer + tied if listed[other][1] == equal[0] and scores[other] >= near[equal[0]] - 1e-12]
    return equal, min(own)


@pytest.mark.parametrize("split", ["leave-one-word-out", "within-word"])
@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("metric", ["cosine", "l2"])
@pytest.mark.quick(4)
def test_labels_are_those_of_all_pairs(split: str, k: int, metric: str, store: Store) -> None:
    listed = occurrences()
    options = {"k": k, "split": split, "metric": metric}
    pools = {row: pool for row, pool in may_answer(listed, split).items() if pool}
    expected = {
        row: nearest_by_hand(listed, row, pool, k, cosine if metric == "cosine" else distance)
        for row, pool in pools.items()
    }
    found_labels = knn_labels(store, "class", **options)  # type: ignore[arg-type]
    found = found_labels.predictions()
    assert found["occurrence"].to_list() == sorted(expected)
    predicted = {row["occurrence"]: (row["predicted"], row["nearest"]) for row in found.to_dicts()}
    assert predicted == {row: guess[:2] for row, guess in expected.items()}
    for row in found.to_dicts():
        assert (row["word"], row["label"]) == listed[row["occurrence"]][:2]
        assert row["nearest_word"] == listed[row["nearest"]][0]
        score = cosine if metric == "cosine" else distance
        assert abs(row["score"]) == pytest.approx(
            abs(score(listed[row["occurrence"]][2], listed[row["nearest"]][2])), abs=1e-12
        )

    usual = {row: usual_by_hand(listed, row, pool) for row, pool in pools.items()}
    compare(found_labels.frame, listed, {row: credit for row, (_, _, credit) in expected.items()}, usual)


def usual_by_hand(listed: Listed, row: int, pool: list[int]) -> tuple[float, float]:
    """The credits of the most frequent label of a pool, shared by equals, and of a label drawn at random."""
    counts = Counter(str(listed[other][1]) for other in pool)
    best = [name for name in counts if counts[name] == max(counts.values())]
    return (listed[row][1] in best) / len(best), (listed[row][1] in counts) / len(counts)


def compare(
    scores: pl.DataFrame, listed: Listed, credits: dict[int, float], usual: dict[int, tuple[float, float]]
) -> None:
    sources = [credits, *({row: usual[row][place] for row in credits} for place in (0, 1))]
    rows = {(row["metric"], row["item"]): row for row in scores.to_dicts()}
    recalls = []
    for name in sorted({str(listed[row][1]) for row in credits}):
        mine = [row for row in credits if listed[row][1] == name]
        right = [sum(credit[row] for row in mine) / len(mine) for credit in sources]
        recalls.append(right)
        row = rows.pop(("recall", name))
        assert [row["value"], row["baseline"], row["chance"]] == pytest.approx(right)
        assert row["count"] == len(mine)
    macro = rows.pop(("macro_recall", ""))
    assert [macro["value"], macro["baseline"], macro["chance"]] == pytest.approx(np.mean(recalls, axis=0).tolist())
    assert macro["count"] == len(recalls)
    [row] = rows.values()
    right = [sum(credit.values()) / len(credits) for credit in sources]
    assert (row["metric"], row["count"]) == ("accuracy", len(credits))
    assert [row["value"], row["baseline"], row["chance"]] == pytest.approx(right)


def test_sentences_of_the_same_words_are_one(tmp_path: Path) -> None:
    """Without that the twin of a sentence, which always has the same label, would answer."""
    listed: Listed = [
        ("bank", "x", [1.0, 0]),
        ("bank", "y", [1.0, 0.1]),
        ("bank", "x", [0.0, 1]),
        ("bank", "y", [0.1, 1]),
    ]
    store = write_senses(tmp_path / "store.zarr", listed, sentence=1)
    found = knn_labels(store, "class", split="within-word").predictions()
    assert found["nearest"].to_list() == [1, 0, 3, 2]
    pieces = store.index.text.pieces
    twins = pieces.data.copy()
    twins[-1] = ord("2")  # sentence 3 becomes the text of sentence 2
    object.__setattr__(store.index.text, "pieces", type(pieces)(pieces.offsets, twins))
    del vars(store.index.text)["distinct"]  # found for the text before
    again = knn_labels(store, "class", split="within-word").predictions()
    assert again["nearest"].to_list() == [1, 0, 1, 1]


def test_of_a_selection_only_its_occurrences(store: Store) -> None:
    listed = occurrences()
    chosen = [row for row in range(len(listed)) if listed[row][0] in ("bank", "suit")]
    found = knn_labels(store.select(words=["bank", "suit"]), "class").predictions()
    assert set(found["occurrence"]) == {row for row in chosen if listed[row][1] is not None}
    assert set(found["nearest_word"]) == {"bank", "suit"}


def test_words_that_leave_nothing_to_ask(tmp_path: Path) -> None:
    one = write_senses(tmp_path / "one.zarr", [("bank", "x", [1.0, 0]), ("bank", "x", [0.0, 1])])
    with pytest.raises(InvalidValueError, match="only one word is labelled"):
        knn_labels(one, "class")
    with pytest.raises(InvalidValueError, match="no selected word has two labels"):
        knn_labels(one, "class", split="within-word")
    none = write_senses(tmp_path / "none.zarr", [("bank", None, [1.0, 0]), ("suit", "x", [0.0, 1])])
    with pytest.raises(InvalidValueError, match=r"no selected occurrence of .* is labelled"):
        knn_labels(none.select(words="bank"), "class")


@pytest.mark.parametrize("suffix", ["zarr", "h5"])
def test_labelled_occurrences_are_those_of_the_table(tmp_path: Path, suffix: str) -> None:
    made = make_store(tmp_path / f"store.{suffix}", sentences=90)
    found = labelled_occurrences(made.store, "new york", label="upos")
    rows = [row for row, each in enumerate(made.table) if each["word"] == "new york" and each["upos"] is not None]
    assert found.rows.tolist() == rows
    assert found.labels == [made.table[row]["upos"] for row in rows]
    assert found.layers == made.store.layers
    np.testing.assert_array_equal(found.vectors, made.vectors[:, rows])
    nouns = made.store.select(where="upos = 'NOUN' AND position < 3", layers=[2, 0])
    several = labelled_occurrences(nouns, label="position")
    assert several.rows.tolist() == nouns.rows.tolist()
    assert several.labels == [str(made.table[row]["position"]) for row in nouns.rows]
    np.testing.assert_array_equal(several.vectors, nouns.vectors())
    with pytest.raises(InvalidValueError, match="no word 'bnak': did you mean 'bank'"):
        labelled_occurrences(made.store, "bnak", label="upos")
    with pytest.raises(InvalidValueError, match="several words have one row where the corpus"):
        labelled_occurrences(made.store, "the bank", label="upos")
    with pytest.raises(InvalidValueError, match="no column 'ner'"):
        labelled_occurrences(made.store, "bank", label="ner")


def test_ties_beyond_what_is_fetched_first_vote_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 120 equal vectors of other words, two thirds have the label y, but none of the lowest rows."""
    listed: Listed = [("bank", "y", [1.0, 0, 0])]
    listed += [(f"w{number}", "x" if number < 40 else "y", [0.0, 1.0, 0.0]) for number in range(120)]
    store = write_senses(tmp_path / "s.zarr", listed, sentence=1)
    for most in (2**22, 5):
        monkeypatch.setattr("embstore.analysis.neighbors.labels.MAX_HITS", most)
        found = knn_labels(store, "class", k=1).predictions().row(0, named=True)
        assert (found["predicted"], found["nearest"], found["score"]) == ("y", 41, 0)


def wsd_by_hand(
    listed: Listed, test: list[int], train: list[int], k: int, capped: bool = False
) -> dict[int, list[str]]:
    """The labels predicted for each test row, several if they are equal, among the train rows of its word."""
    found: dict[int, list[str]] = {}
    for row in test:
        pool = [other for other in train if listed[other][0] == listed[row][0]]
        rarest = min(Counter(listed[other][1] for other in pool).values(), default=0)
        found[row] = equals_by_hand(listed, row, pool, min(k, rarest) if capped else k, cosine)[0] if pool else []
    return found


@pytest.mark.parametrize("k", [1, 3])
def test_senses_from_train_occurrences_of_the_same_word(k: int, store: Store) -> None:
    """Test sentences are the last ten; a word of which train has none is not predicted."""
    listed = occurrences()
    labelled = [row for row in range(len(listed)) if listed[row][1] is not None]
    test = [row for row in labelled if row // 3 >= 20]
    train = [row for row in labelled if row // 3 < 20 and listed[row][0] not in ("crane", "the")]
    expected = wsd_by_hand(listed, test, train, k)
    known = [row for row in test if expected[row]]
    assert len(known) < len(test)
    found = knn_labels(store.select(rows=test), "class", k=k, train=store.select(rows=train))
    predicted = found.predictions()
    assert dict(zip(predicted["occurrence"], predicted["predicted"], strict=True)) == {
        row: expected[row][0] for row in known
    }
    rows = {(row["metric"], row["item"]): row for row in found.frame.to_dicts()}
    credit = {row: (listed[row][1] in expected[row]) / len(expected[row]) for row in known}
    assert rows["accuracy", ""]["value"] == pytest.approx(np.mean(list(credit.values())))
    assert rows["accuracy", ""]["count"] == len(known)
    assert (rows["coverage", ""]["value"], rows["coverage", ""]["count"]) == (len(known) / len(test), len(test))
    words = {row["word"]: row for row in found.by_word().to_dicts()}
    assert words.keys() == {listed[row][0] for row in known}
    for word, row in words.items():
        own = [each for each in known if listed[each][0] == word]
        assert (row["accuracy"], row["count"]) == (pytest.approx(np.mean([credit[each] for each in own])), len(own))
        gold = [str(listed[each][1]) for each in own]
        names = {*gold, *(name for each in own for name in expected[each])}
        said = {name: sum((name in expected[each]) / len(expected[each]) for each in own) for name in names}
        both = {name: sum(credit[each] for each in own if listed[each][1] == name) for name in names}
        assert row["f1"] == pytest.approx(np.mean([2 * both[name] / (said[name] + gold.count(name)) for name in names]))


def test_f1_is_that_of_scikit_learn(tmp_path: Path) -> None:
    """A label that is only predicted counts, with an F1 of 0."""
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(5)
    listed: Listed = [("bank", "xyz"[number % 3], rng.normal(size=4).tolist()) for number in range(60)]
    store = write_senses(tmp_path / "s.zarr", listed, sentence=1)
    test = [row for row in range(30) if listed[row][1] != "z"]
    labels = knn_labels(store.select(rows=test), "class", train=store.select(rows=range(30, 60)))
    table = labels.predictions()
    assert "z" in table["predicted"].to_list()
    expected = metrics.f1_score(table["label"].to_list(), table["predicted"].to_list(), average="macro")
    assert labels.by_word()["f1"].to_list() == [pytest.approx(expected, abs=1e-12)]


def test_one_search_answers_every_k_and_capped_ones(store: Store) -> None:
    """With the cap, no more neighbours vote than the rarest train label of the word has."""
    listed = occurrences()
    labelled = [row for row in range(len(listed)) if listed[row][1] is not None]
    test, train = [row for row in labelled if row % 4 == 0], [row for row in labelled if row % 4]
    options: dict[str, Any] = {"label": "class", "train": store.select(rows=train)}
    differs = False
    for capped in (False, True):
        found = knn_labels(store.select(rows=test), k=(1, 3, 5), capped=capped, **options)
        for k in (1, 3, 5):
            expected = wsd_by_hand(listed, test, train, k, capped)
            predicted = found.predictions(k=k)
            assert dict(zip(predicted["occurrence"], predicted["predicted"], strict=True)) == {
                row: names[0] for row, names in expected.items() if names
            }
            differs |= capped and expected != wsd_by_hand(listed, test, train, k)
            words = found.by_word(k=k)
            assert words["count"].sum() == len(predicted)
            assert float(words["accuracy"].dot(words["count"])) == pytest.approx(predicted["credit"].sum())
        one = knn_labels(store.select(rows=test), k=3, capped=capped, **options)
        assert found.frame.filter(k=3).equals(one.frame)
    assert differs


def test_equal_labels_share_the_prediction_in_f1(tmp_path: Path) -> None:
    """Each of two test occurrences is half x and half y, so that both labels have a precision and a recall of 1/2."""
    listed: Listed = [("bank", label, [1.0, 0.0]) for label in ("x", "y", "x", "y")]
    store = write_senses(tmp_path / "s.zarr", listed, sentence=1)
    found = knn_labels(store.select(rows=[2, 3]), label="class", train=store.select(rows=[0, 1]))
    assert found.by_word().row(0, named=True) == {
        "word": "bank", "count": 2, "accuracy": 0.5, "f1": 0.5, "baseline": 0.5, "chance": 0.5,
    }  # fmt: skip


def test_averaged_layers_are_their_mean(tmp_path: Path) -> None:
    made = make_store(tmp_path / "store.zarr", sentences=40)
    mean = np.mean([made.vectors[place].astype(np.float64) for place in (1, 2)], axis=0).tolist()
    listed: Listed = [(str(row["word"]), row["upos"], vector) for row, vector in zip(made.table, mean, strict=True)]
    labelled = [row for row in range(len(listed)) if listed[row][1] is not None]
    test, train = [row for row in labelled if row % 3 == 0], [row for row in labelled if row % 3]
    found = knn_labels(
        made.store.select(rows=test), label="upos", train=made.store.select(rows=train), layers=[2, 5], averaged=True
    )
    expected = wsd_by_hand(listed, test, train, 1)
    predicted = found.predictions()
    same = [expected[row][0] == name for row, name in predicted.select("occurrence", "predicted").iter_rows()]
    assert len(same) == sum(map(bool, expected.values()))
    assert np.mean(same) == 1
    assert found.frame["layer"].unique().to_list() == [None]


@pytest.mark.parametrize("split", ["leave-one-word-out", "within-word", "train"])
@pytest.mark.quick(2)
def test_the_order_of_the_corpus_does_not_matter(split: str, tmp_path: Path) -> None:
    """Vectors without context: half of the occurrences have the same vector, with different labels."""
    rng = np.random.default_rng(4)
    listed: Listed = []
    for _ in range(60):
        word = str(rng.choice(["bank", "suit", "crane"]))
        vector = [float(rng.integers(0, 2)), 1.0, 0.0, 0.0]
        listed.append((word, str(rng.choice(["x", "y"])), vector))
    values = []
    for name, order in (("sorted", sorted(range(60), key=lambda row: str(listed[row][1]))), ("as drawn", range(60))):
        store = write_senses(tmp_path / f"{name}.zarr", [listed[row] for row in order], sentence=1)
        options: dict[str, object] = {"split": split}
        data: object = store
        if split == "train":
            places = [place for place, row in enumerate(order) if row % 2]
            options["train"] = store.select(rows=places)
            data = store.select(rows=[place for place in range(60) if place not in places])
        frame = knn_labels(data, "class", k=(1, 4), **options).frame  # type: ignore[arg-type]
        values.append(frame.sort("k", "layer", "metric", "item"))
    assert values[0].equals(values[1])
    one_class = values[0].filter(pl.col("metric") == "accuracy")["value"]
    assert 0.2 < one_class.min() <= one_class.max() < 0.8
