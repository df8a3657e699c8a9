"""The fused kernel: every float16 as it is, the same figures as the separate reducers, in parts merged in any order."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from embstore.analysis.geometry.cosines import CosineFigures, FusedCosines
from embstore.analysis.geometry.kernels import add_cosine_block
from embstore.analysis.groups import Grouping
from embstore.analysis.parts import reduce
from embstore.analysis.scan import Reduction
from embstore.analysis.similarity.cosine_similarity import Anisotropy, IntraSentenceSimilarity, SelfSimilarity
from embstore.errors import InvalidValueError, NonFiniteError
from embstore.store import Store
from tests.analysis.word_store import write_words


def kernel_total(half: np.ndarray) -> tuple[int, np.ndarray]:
    """Call the kernel without words or sentences."""
    size = half.shape[1]
    row, total, none = np.zeros(size, np.float32), np.zeros(size, np.float32), np.empty(0, np.int64)
    code, sums = np.array([-1, 0]), np.zeros((2, size), np.float32)
    found = add_cosine_block(
        half.view(np.int16), np.empty((0, size), np.float32), row,
        none, np.zeros((0, size)), np.zeros(0), none, none, np.zeros(0), code, sums, code.copy(), sums.copy(), total,
    )  # fmt: skip
    return found, total


def test_every_float16_is_read_as_it_is() -> None:
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)]
    vectors = np.zeros((len(finite), 2), np.float16)
    vectors[:, 0], vectors[:, 1] = finite, 1
    for vector in vectors[:: 1 if len(vectors) < 100 else 37]:
        found, total = kernel_total(vector[None])
        wide = vector.astype(np.float64)
        np.testing.assert_allclose(total, wide / np.linalg.norm(wide), rtol=3e-7)
        assert found == 1
    whole = vectors.astype(np.float64)
    _, total = kernel_total(vectors)
    np.testing.assert_allclose(total[1], (1 / np.linalg.norm(whole, axis=1)).sum(), rtol=1e-3)


@pytest.mark.parametrize("size", [12, 40])
def test_sums_do_not_depend_on_where_arrays_lie(size: int) -> None:
    vectors = np.random.default_rng(0).normal(size=(7, size)).astype(np.float32)
    none, code, sums = np.empty(0, np.int64), np.array([-1, 0]), np.zeros((2, size), np.float32)
    found = set()
    for gap in (0, 1, 4, 64, 512):
        room = np.zeros(4096, np.float32)
        full, row, total = room[: 7 * size].reshape(7, size), room[7 * size + gap :], room[8 * size + 2 * gap :]
        full[...] = vectors
        add_cosine_block(
            np.empty((0, 0), np.int16), full, row[:size], none, np.zeros((0, size)), np.zeros(0), none, none,
            np.zeros(0), code.copy(), sums.copy(), code.copy(), sums.copy(), total[:size],
        )  # fmt: skip
        found.add(total[:size].tobytes())
    assert len(found) == 1


def test_the_smallest_float16_alone_has_length_one() -> None:
    tiny = np.zeros((1, 3), np.float16)
    tiny[0, 1] = np.float16(6e-8)
    found, total = kernel_total(tiny)
    assert found == 1
    np.testing.assert_allclose(total, [0, 1, 0], rtol=1e-6)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_refused(value: float) -> None:
    vectors = np.ones((3, 40), np.float16)
    vectors[1, 17] = value
    assert kernel_total(vectors)[0] == -1
    longest = np.full((1, 40), 65504, np.float16)
    found, total = kernel_total(longest)
    assert found == 1
    np.testing.assert_allclose(total, 1 / np.sqrt(40), rtol=1e-6)


@pytest.fixture(scope="module", params=["float16", "float32", "bfloat16", "int8"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Store:
    rng = np.random.default_rng(3)
    words = [(f"word{number}", rng.normal(size=(number % 7 + 1, 16)) + 2) for number in range(120)]
    words.append(("zero", np.zeros((3, 16))))
    folder = tmp_path_factory.mktemp("cosines")
    return write_words(folder / "store.zarr", words, dtype=request.param, layers=(2, 5)).store


def groupings(store: Store) -> tuple[Grouping, Grouping]:
    sentence = np.asarray(store.index.sentence).astype(np.int64)
    return Grouping(np.asarray(store.index.type).astype(np.int64), len(store.index.words)), Grouping(
        sentence, int(sentence[-1]) + 1
    )


def require_equal(fused: CosineFigures, separate: dict[str, object]) -> None:
    np.testing.assert_allclose(fused.selfsim, separate["selfsim"], atol=1e-6)
    np.testing.assert_allclose(fused.intrasim, separate["intrasim"], atol=1e-6)
    assert fused.anisotropy == pytest.approx(separate["anisotropy"], abs=1e-6)


def separately(store: Store) -> dict[int, dict[str, object]]:
    words, sentences = groupings(store)
    reducers = {
        "selfsim": SelfSimilarity(words),
        "intrasim": IntraSentenceSimilarity(sentences),
        "anisotropy": Anisotropy(),
    }
    return reduce(store, reducers, precision="float64")


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("block_rows", [None, 1, 37])
def test_the_same_as_each_by_itself(store: Store, threads: int, block_rows: int | None) -> None:
    words, sentences = groupings(store)
    fused = {"all": FusedCosines(words=words, sentences=sentences)}
    expected = separately(store)
    for layer, found in reduce(store, fused, threads=threads, block_rows=block_rows).items():
        require_equal(found["all"], expected[layer])


@pytest.mark.parametrize("seed", range(5))
def test_parts_merge_in_any_order(store: Store, seed: int) -> None:
    rng = np.random.default_rng(seed)
    words, sentences = groupings(store)
    reduction = Reduction(store.select(), {"all": FusedCosines(words=words, sentences=sentences)}, block_rows=11)
    edges = np.unique([0, store.n_rows, *rng.integers(0, store.n_rows, 9)]).tolist()
    parts = [reduction.run(5, *part) for part in pairwise(edges)]
    while len(parts) > 1:
        one, other = (parts.pop(int(rng.integers(len(parts)))) for _ in range(2))
        parts.append(reduction.merge(one, other))
    require_equal(reduction.finish(5, parts[0])["all"], separately(store)[5])


def test_occurrences_that_belong_to_none(store: Store) -> None:
    words, sentences = groupings(store)
    words.codes[::3], sentences.codes[sentences.codes % 2 == 1] = -1, -1
    expected = reduce(
        store,
        {"selfsim": SelfSimilarity(words), "intrasim": IntraSentenceSimilarity(sentences), "anisotropy": Anisotropy()},
        precision="float64",
    )
    for layer, found in reduce(store, {"all": FusedCosines(words=words, sentences=sentences)}, block_rows=29).items():
        require_equal(found["all"], expected[layer])


def test_sentences_that_are_torn_apart_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="do not follow each other"):
        FusedCosines(sentences=Grouping(np.array([0, 1, 0]), 2))


def test_a_row_that_is_not_finite_is_named(tmp_path: Path) -> None:
    vectors = np.ones((30, 8), np.float32)
    vectors[7, 3] = np.nan
    broken = write_words(tmp_path / "nan.zarr", [("word", vectors)]).store
    with pytest.raises(NonFiniteError, match=r"layer 2, row \d+ holds a value that is not finite"):
        reduce(broken, {"all": FusedCosines()})


def test_vectors_too_long_for_float32_are_refused(tmp_path: Path) -> None:
    long = write_words(tmp_path / "long.zarr", [("word", np.full((5, 8), 1e30, np.float32))]).store
    with pytest.raises(NonFiniteError, match="choose the precision float64"):
        reduce(long, {"all": FusedCosines()})
