"""The cosines of the words of one sentence, against loops."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import pytest

from embstore.analysis.geometry.cosine import sentence_similarity
from embstore.errors import InvalidValueError, MissingRowsError, NonFiniteError, UnfinishedStoreWarning
from tests.analysis.word_store import write_words
from tests.store_making import make_store


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    norms = math.sqrt(sum(float(x) ** 2 for x in one)) * math.sqrt(sum(float(x) ** 2 for x in other))
    return sum(float(x) * float(y) for x, y in zip(one, other, strict=True)) / norms if norms else 0.0


@pytest.mark.parametrize("suffix", ["zarr", "h5"])
@pytest.mark.parametrize("layers", [None, 2, [5, 0]])
def test_similarity_is_that_of_loops(tmp_path: Path, suffix: str, layers: int | list[int] | None) -> None:
    made = make_store(tmp_path / f"store.{suffix}", sentences=20)
    chosen = [0, 2, 5] if layers is None else [layers] if isinstance(layers, int) else layers
    for sentence in (0, 7, 19):
        found = sentence_similarity(made.store, sentence=sentence, layers=layers)
        rows = [row for row, listed in enumerate(made.table) if listed["sentence"] == sentence]
        assert found.words == tuple(made.table[row]["word"] for row in rows)
        assert found.layers == tuple(chosen)
        assert found.values.shape == (len(chosen), len(rows), len(rows))
        assert found.values.dtype == np.float64
        for values, layer in zip(found.values, chosen, strict=True):
            vectors = made.vectors[(0, 2, 5).index(layer)][rows]
            expected = [[cosine(one, other) for other in vectors] for one in vectors]
            np.testing.assert_allclose(values, expected, atol=1e-12)


def test_a_zero_vector_is_similar_to_none(tmp_path: Path) -> None:
    words = [("zero", np.zeros((1, 3))), ("one", np.ones((1, 3))), ("long", np.full((2, 3), 1e30))]
    written = write_words(tmp_path / "zero.zarr", words)
    found = sentence_similarity(written.store, sentence=0)
    expected = [[0.0 if "zero" in (one, other) else 1.0 for other in found.words] for one in found.words]
    np.testing.assert_allclose(found.values[0], expected, atol=1e-15)
    assert sorted(found.words) == ["long", "long", "one", "zero"]


def test_bad_input_is_refused(tmp_path: Path) -> None:
    made = make_store(tmp_path / "store.zarr", sentences=20)
    for sentence in (-1, 20):
        with pytest.raises(InvalidValueError, match=f"no sentence {sentence}: the store has sentences 0 to 19"):
            sentence_similarity(made.store, sentence=sentence)
    with pytest.raises(InvalidValueError, match="layer 1 is not stored"):
        sentence_similarity(made.store, sentence=0, layers=[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnfinishedStoreWarning)
        unfinished = make_store(tmp_path / "unfinished.zarr", leave_out=(1,)).store
    assert sentence_similarity(unfinished, sentence=0).values.shape[0] == 3
    with pytest.raises(MissingRowsError, match="not written"):
        sentence_similarity(unfinished, sentence=119)
    broken = np.ones((2, 4, 3))
    broken[1, 2, 0] = np.inf
    written = write_words(tmp_path / "inf.zarr", [("word", broken)], layers=(1, 6))
    row = int(np.flatnonzero(~np.isfinite(written.values[1]).all(1))[0])
    with pytest.raises(NonFiniteError, match=f"layer 6, row {row} holds a value that is not finite"):
        sentence_similarity(written.store, sentence=0)
    assert sentence_similarity(written.store, sentence=0, layers=1).values.shape == (1, 4, 4)
