"""The nearest centroid of each occurrence's labels, against loops over words, occurrences and labels."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from embstore.analysis.geometry.separability import sense_separability
from embstore.errors import InvalidValueError, MissingRowsError, NonFiniteError, UnfinishedStoreWarning
from embstore.store import Store
from tests.analysis.word_store import write_senses
from tests.store_making import Made, make_store


@pytest.fixture(scope="module", params=["zarr", "h5"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_store(tmp_path_factory.mktemp("separability") / f"store.{request.param}", sentences=90)


def unit(vector: np.ndarray, *, least: float = 0.0) -> np.ndarray:
    norm = math.sqrt(sum(float(value) ** 2 for value in vector))
    return np.asarray(vector, np.float64) / norm if norm > least else np.zeros(len(vector))


def right_by_hand(vectors: np.ndarray, labels: list[str]) -> float:
    right = 0.0
    for query in range(len(labels)):
        scores = {}
        for label in set(labels):
            members = [place for place in range(len(labels)) if labels[place] == label and place != query]
            centroid = np.mean([unit(vectors[place]) for place in members], axis=0)
            scores[label] = float(unit(centroid, least=1e-12) @ unit(vectors[query]))
        best = max(scores.values())
        equal = [label for label, score in scores.items() if score >= best - 1e-12]
        right += (labels[query] in equal) / len(equal)
    return right / len(labels)


def by_hand(
    words: list[str], labels: list[str | None], vectors: np.ndarray, least: int
) -> dict[str, tuple[int, float, float]]:
    found = {}
    for word in sorted(set(words)):
        mine = [place for place in range(len(words)) if words[place] == word and labels[place] is not None]
        counts = Counter(labels[place] for place in mine)
        kept = [place for place in mine if counts[labels[place]] >= least]
        sizes = Counter(str(labels[place]) for place in kept)
        if len(sizes) >= 2:
            value = right_by_hand(vectors[kept], [str(labels[place]) for place in kept])
            found[word] = (len(kept), value, max(sizes.values()) / len(kept))
    return found


def compare(table: dict[str, tuple[int, float, float]], expected: dict[str, tuple[int, float, float]]) -> None:
    mean = table.pop("")
    assert table.keys() == expected.keys()
    for word, listed in expected.items():
        assert table[word] == pytest.approx(listed, abs=1e-12), word
    values = np.array(list(expected.values()))
    assert mean == pytest.approx((len(expected), values[:, 1].mean(), values[:, 2].mean()), abs=1e-12)


def listed(store: Store, layer: int, **options: object) -> dict[str, tuple[int, float, float]]:
    table = sense_separability(store, layers=layer, **options)  # type: ignore[arg-type]
    assert table.columns == ["layer", "metric", "item", "value", "count", "baseline", "adjusted"]
    assert set(table["metric"]) == {"separability"}
    assert table["adjusted"].to_list() == pytest.approx((table["value"] - table["baseline"]).to_list())
    rows = table.select("item", "count", "value", "baseline").rows()
    assert set(table["layer"]) == {layer}
    assert len(rows) == len({row[0] for row in rows})
    return {row[0]: row[1:] for row in rows}


@pytest.mark.parametrize("least", [2, 17])
@pytest.mark.quick(2)
def test_separability_is_that_of_loops(made: Made, least: int) -> None:
    words = [str(row["word"]) for row in made.table]
    labels = [None if row["upos"] is None else str(row["upos"]) for row in made.table]
    for place, layer in enumerate(made.store.layers):
        expected = by_hand(words, labels, made.vectors[place], least)
        assert len(expected) >= 2
        assert len(expected) == 6 or least > 2
        compare(listed(made.store, layer, label="upos", min_occurrences=least), expected)


def test_separability_of_a_selection(made: Made) -> None:
    rows = np.random.default_rng(0).permutation(made.store.n_rows)[:100]
    selection = made.store.select(rows=rows)
    words = [str(made.table[row]["word"]) for row in rows]
    labels = [None if made.table[row]["upos"] is None else str(made.table[row]["upos"]) for row in rows]
    table = sense_separability(selection, label="upos", layers=5)
    found = {row[0]: row[1:] for row in table.select("item", "count", "value", "baseline").rows()}
    compare(found, by_hand(words, labels, made.vectors[2][rows], 2))


def test_layers_follow_each_other(made: Made) -> None:
    whole = sense_separability(made.store, label="upos")
    assert whole["layer"].unique(maintain_order=True).to_list() == [0, 2, 5]
    assert whole.filter(whole["layer"] == 2).equals(sense_separability(made.store, label="upos", layers=2))


def test_awkward_occurrences_are_those_of_loops(tmp_path: Path) -> None:
    """Equal, opposite, zero and long vectors; senses of one occurrence; a word with many labels of few."""
    rng = np.random.default_rng(0)
    same = rng.normal(size=5)
    occurrences: list[tuple[str, str | None, np.ndarray]] = []
    occurrences += [("equal", label, same) for label in "aaabb"]
    occurrences += [("apart", label, sign * same) for label, sign in (("a", 1), ("b", -1)) for _ in range(3)]
    occurrences += [("lengths", label, rng.normal(size=5) * 10.0**power) for label in "ab" for power in (-9, 0, 9)]
    occurrences += [("zero", label, 0 * same) for label in "aabb"] + [("zero", "a", same)]
    for number in range(12):  # without the last one of b, the others cancel but for rounding
        other, one, two, last = rng.normal(size=(4, 5))
        cancel = ("a", one), ("a", two), ("b", other), ("b", -other), ("b", last)
        occurrences += [(f"cancel{number}", label, vector) for label, vector in cancel]
    occurrences += [("opposite", label, sign * same) for label, sign in (("a", 1), ("a", -1), ("b", 1), ("b", 1))]
    occurrences += [("single", label, rng.normal(size=5)) for label in "aab"]
    occurrences += [("one", "a", rng.normal(size=5)) for _ in range(4)]
    occurrences += [("many", label, rng.normal(size=5)) for label in "abcdefghij" for _ in range(3)]
    occurrences += [("many", None, rng.normal(size=5)) for _ in range(3)]
    mixed = [occurrences[place] for place in rng.permutation(len(occurrences))]
    store = write_senses(tmp_path / "awkward.zarr", [(word, label, list(vector)) for word, label, vector in mixed])
    words, labels = [word for word, _, _ in mixed], [label for _, label, _ in mixed]
    expected = by_hand(words, labels, store.select().vectors()[0].astype(np.float64), 2)
    assert expected.keys() == {"equal", "apart", "lengths", "zero", "opposite", "many"} | {
        f"cancel{n}" for n in range(12)
    }
    assert expected["apart"][1] == 1
    assert expected["equal"][1] == 0.5
    compare(listed(store, 2, label="class"), expected)


def test_progress_covers_both_passes(made: Made) -> None:
    seen: list[int] = []
    table = sense_separability(made.store, label="upos", progress=lambda done, total: seen.append(done))
    count = table.filter((table["layer"] == 0) & (table["item"] != ""))["count"].sum()
    assert seen == sorted(seen)
    assert seen[-1] == 2 * 3 * count


def test_bad_input_is_refused(made: Made, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="there is no label column 'ner': the store has upos"):
        sense_separability(made.store, label="ner")
    with pytest.raises(InvalidValueError, match="min_occurrences 1 is not allowed: give 2 or more"):
        sense_separability(made.store, label="upos", min_occurrences=1)
    with pytest.raises(InvalidValueError, match=r"no selected word .* two labels in 'upos' of 1000 occurrences"):
        sense_separability(made.store, label="upos", min_occurrences=1000)
    unlabelled = [number for number, row in enumerate(made.table) if row["upos"] is None]
    with pytest.raises(InvalidValueError, match=r"no selected word .* two labels in 'upos'"):
        sense_separability(made.store.select(rows=unlabelled), label="upos")
    with pytest.raises(InvalidValueError, match="layer 1 is not stored"):
        sense_separability(made.store, label="upos", layers=[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnfinishedStoreWarning)
        unfinished = make_store(tmp_path / "unfinished.zarr", leave_out=(1,)).store
    with pytest.raises(MissingRowsError, match="not written"):
        sense_separability(unfinished, label="upos")
    broken = write_senses(tmp_path / "nan.zarr", [("a", label, [1.0, np.nan]) for label in "xxyy"])
    with pytest.raises(NonFiniteError, match="layer 2, row 0 holds a value that is not finite"):
        sense_separability(broken, label="class")
