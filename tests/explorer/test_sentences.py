"""One sentence: words and labels, similarity, trees and labels of saved probes, attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import embstore as es
from embstore.corpus import EdgeSentence, EdgeTarget
from embstore.corpus.trees import Tree
from embstore.errors import InvalidValueError
from embstore.probes import EdgeProbe, StructuralProbe
from embstore_explorer import answer
from embstore_explorer.stores import Explored
from embstore_explorer.tables import as_file
from tests.explorer.conftest import called
from tests.store_making import Made, make_store

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_store(tmp_path_factory.mktemp("sentences") / "a.zarr")


def words_of(made: Made, number: int) -> list[dict[str, Any]]:
    return [row for row in made.table if row["sentence"] == number]


def plain(made: Made) -> int:
    """Return a sentence of five words or more, none of which has a space."""
    texts = ([row["word"] for row in words_of(made, number)] for number in range(60))
    return next(number for number, words in enumerate(texts) if len(words) > 4 and "new york" not in words)


def chain(words: list[str]) -> Tree:
    return Tree(tuple(words), np.arange(-1, len(words) - 1), np.zeros(len(words), bool))


@pytest.fixture(scope="module")
def probes(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Saved probes: of trees, of labels of words, and of pairs of words; what they have learned does not matter."""
    folder = tmp_path_factory.mktemp("probes")
    plain = [number for number in range(60) if "new york" not in [row["word"] for row in words_of(made, number)]]
    texts = [[str(row["word"]) for row in words_of(made, number)] for number in plain]
    trees = [chain(words) for words in texts if len(words) > 2]
    short = es.probes.Training(epochs=1)
    StructuralProbe(rank=2, training=short).fit(made.store, trees[:5], trees[5:8]).save(folder / "trees.safetensors")
    for name, pairs in (("tags", False), ("pairs", True)):
        sentences = [
            EdgeSentence(words, [EdgeTarget((0, 1), (1, 2) if pairs else None, ("DET" if len(words) % 2 else "NOUN",))])
            for words in texts
            if len(words) > 1
        ]
        probe = EdgeProbe(kind="linear", layerwise=True, training=short)
        probe.fit(made.store, sentences[:9], sentences[9:]).save(folder / f"{name}.safetensors")
    return folder


@pytest.fixture
def explored(made: Made, probes: Path) -> Explored:
    return Explored(made.store, probes=probes)


def test_words_rows_and_labels(explored: Explored, made: Made) -> None:
    number = next(row["sentence"] for row in made.table if row["word"] == "new york" and row["position"])
    found = answer([explored], "sentence", {"sentence": number})
    rows = words_of(made, number)
    assert " ".join(found["words"]) == found["text"] == rows[0]["text"]
    assert found["forms"] == [row["word"] for row in rows]
    assert found["gaps"] == ["", *[" "] * (len(rows) - 1), ""]
    assert found["rows"] == [row["occurrence"] for row in rows]
    assert found["labels"] == {"upos": [row["upos"] for row in rows]}
    assert found["probes"] == [{"name": name, "kind": kind} for name, kind in KINDS.items()]
    assert answer([explored], "sentence", {"row": rows[-1]["occurrence"]})["sentence"] == number
    first, word = max((row["sentence"], name) for name, row in {r["word"]: r for r in made.table[::-1]}.items())
    assert answer([explored], "sentence", {"word": word})["sentence"] == first > 0
    with pytest.raises(InvalidValueError, match="no sentence 999"):
        answer([explored], "sentence", {"sentence": 999})


KINDS = {"pairs": "edge", "tags": "edge", "trees": "structural"}


def test_similarities_are_cosines(explored: Explored, made: Made) -> None:
    found = answer([explored], "similarity", {"sentence": 4, "layer": "2"})
    vectors = made.vectors[1, [row["occurrence"] for row in words_of(made, 4)]].astype(np.float64)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(found.arrays["values"], unit @ unit.T, atol=1e-6)
    assert found.data["words"] == [row["word"] for row in words_of(made, 4)]
    np.testing.assert_array_equal(
        called(found.data["python"]), made.store.vectors([row["occurrence"] for row in words_of(made, 4)], layers=2)
    )


@pytest.mark.parametrize("layer", [None, 0, 5])
def test_a_parse_is_what_the_probe_predicts(explored: Explored, made: Made, probes: Path, layer: int | None) -> None:
    probe = es.probes.load(probes / "trees.safetensors")
    number = plain(made)
    words = [str(row["word"]) for row in words_of(made, number)]
    upos = [row["upos"] for row in words_of(made, number)]
    assert "PUNCT" not in upos
    expected = probe.predict(chain(words), data=made.store, layers=layer)
    params = {"sentence": number, "probe": "trees", **({} if layer is None else {"layer": layer})}
    found = answer([explored], "parse", params)
    assert {(one, other) for one, other, _ in found["edges"]} == expected.found
    for one, other, distance in found["edges"]:
        assert distance == pytest.approx(float(expected.distances[one, other]), rel=1e-4)
    assert int(np.argmin(found["depths"])) == expected.found_root
    table = pl.read_csv(as_file(answer([explored], "parse", params, whole=True), "csv")[0])
    assert [list(row) for row in table.select("first", "second", "distance").iter_rows()] == found["edges"]
    assert table["second_word"].to_list() == [words[other] for _, other, _ in found["edges"]]
    assert table["first_depth"].to_list() == [found["depths"][one] for one, _, _ in found["edges"]]
    assert called(found["python"]).found == expected.found
    assert found["layer"] == expected.layer
    with pytest.raises(InvalidValueError, match="edge probes"):
        answer([explored], "parse", {"sentence": number, "probe": "tags"})
    with pytest.raises(InvalidValueError, match="pairs, tags, trees"):
        answer([explored], "parse", {"sentence": number, "probe": "none"})


@pytest.mark.parametrize("name", ["tags", "pairs"])
def test_labels_are_what_the_probes_predict(explored: Explored, made: Made, probes: Path, name: str) -> None:
    number = plain(made)
    rows = words_of(made, number)
    words = [str(row["word"]) for row in rows]
    second = 2 if name == "pairs" else None
    found = answer([explored], "traces", {"sentence": number, "probe": name, "second": second})
    at = [place for place in range(len(words)) if place != second]
    assert found.data["positions"] == at
    span = None if second is None else (second, second + 1)
    targets = [EdgeTarget((place, place + 1), span, ("DET",)) for place in at]
    expected = es.probes.load(probes / f"{name}.safetensors").predict([EdgeSentence(words, targets)], data=made.store)
    np.testing.assert_array_equal(found.arrays["values"], expected)
    np.testing.assert_array_equal(called(found.data["python"]), expected)
    assert found.data["labels"] == ["DET", "NOUN"]
    assert found.data["gold"] == (None if second is not None else [row["upos"] for row in rows])
