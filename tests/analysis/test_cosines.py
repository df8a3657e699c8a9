"""Mean cosines by the compiled loop: every float16 value, against explicit pairs, in parts merged in any order."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from embstore.analysis.geometry.cosine import Cosines, Groups, MeanCosines
from embstore.analysis.kernels import add_cosine_block
from embstore.analysis.scan import Reduction, reduce
from embstore.errors import NonFiniteError
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


def test_every_float16_value_is_read_exactly() -> None:
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
def test_sums_do_not_depend_on_memory_layout(size: int) -> None:
    vectors = np.random.default_rng(0).normal(size=(7, size)).astype(np.float32)
    none, code, sums = np.empty(0, np.int64), np.array([-1, 0]), np.zeros((2, size), np.float32)
    found = set()
    for gap in (0, 1, 4, 64, 512):
        buffer = np.zeros(4096, np.float32)
        full, row, total = buffer[: 7 * size].reshape(7, size), buffer[7 * size + gap :], buffer[8 * size + 2 * gap :]
        full[...] = vectors
        add_cosine_block(
            np.empty((0, 0), np.int16), full, row[:size], none, np.zeros((0, size)), np.zeros(0), none, none,
            np.zeros(0), code.copy(), sums.copy(), code.copy(), sums.copy(), total[:size],
        )  # fmt: skip
        found.add(total[:size].tobytes())
    assert len(found) == 1


def test_the_smallest_float16_is_scaled_to_length_one() -> None:
    tiny = np.zeros((1, 3), np.float16)
    tiny[0, 1] = np.float16(6e-8)
    found, total = kernel_total(tiny)
    assert found == 1
    np.testing.assert_allclose(total, [0, 1, 0], rtol=1e-6)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
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


def by_pairs(store: Store, layer: int, groups: list[np.ndarray]) -> list[float]:
    """The mean cosine of all pairs of each group of rows, in float64."""
    found = []
    for rows in groups:
        vectors = store.gather(rows, layer).astype(np.float64)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        units = vectors / np.where(lengths > 0, lengths, 1)
        pairs = (units @ units.T)[np.triu_indices(len(rows), 1)]
        found.append(float(pairs.mean()) if len(pairs) else np.nan)
    return found


def with_mean(store: Store, layer: int, groups: list[np.ndarray]) -> list[float]:
    """The mean cosine of the vectors of each group with their mean, in float64."""
    found = []
    for rows in groups:
        vectors = store.gather(rows, layer).astype(np.float64)
        lengths = np.linalg.norm(vectors, axis=1)
        mean = vectors.mean(0)
        length = np.linalg.norm(mean)
        cosines = vectors @ mean / np.where(lengths * length > 0, lengths * length, 1)
        found.append(float(cosines.mean()))
    return found


def require_by_pairs(found: MeanCosines, store: Store, layer: int, *, atol: float, every: int = 1) -> None:
    """Compare the cosines of every n-th type and sentence with explicit pairs."""
    types, sentence = np.asarray(store.index.type), np.asarray(store.index.sentence)
    words = [np.flatnonzero(types == number) for number in range(0, len(store.index.words), every)]
    every_sentence = [np.flatnonzero(sentence == number) for number in range(int(sentence[-1]) + 1)]
    several = [rows for rows in every_sentence if len(rows) > 1]
    np.testing.assert_allclose(found.selfsim, by_pairs(store, layer, words), atol=atol)
    np.testing.assert_allclose(found.intrasim, with_mean(store, layer, several[::every]), atol=atol)
    (everything,) = by_pairs(store, layer, [np.arange(store.n_rows)])
    assert found.anisotropy == pytest.approx(everything, abs=atol)


def cosines_of(store: Store, *, every: int = 1) -> Cosines:
    """The reducer for every n-th type and sentence of a store."""
    types, sentence = np.asarray(store.index.type), np.asarray(store.index.sentence)
    several = np.flatnonzero(np.bincount(sentence) > 1)[::every]
    words = np.arange(0, len(store.index.words), every)
    return Cosines(words=Groups.of(types, words), sentences=Groups.of(sentence, several))


@pytest.mark.parametrize("options", [{"threads": 1}, {"threads": 3, "block_rows": 1}, {"block_rows": 37}])
@pytest.mark.parametrize(("precision", "atol"), [("float32", 1e-6), ("float64", 1e-12)])
def test_cosines_are_those_of_explicit_pairs(
    store: Store, options: dict[str, int], precision: str, atol: float
) -> None:
    found = reduce(store, {"all": cosines_of(store)}, precision=precision, **options)  # type: ignore[arg-type]
    for layer in store.layers:
        require_by_pairs(found[layer]["all"], store, layer, atol=atol)


@pytest.mark.parametrize("seed", range(3))
def test_parts_merge_in_any_order(store: Store, seed: int) -> None:
    rng = np.random.default_rng(seed)
    reduction = Reduction(store.select(), {"all": cosines_of(store)}, block_rows=11)
    edges = np.unique([0, store.n_rows, *rng.integers(0, store.n_rows, 9)]).tolist()
    parts = [reduction.run(5, *part) for part in pairwise(edges)]
    while len(parts) > 1:
        one, other = (parts.pop(int(rng.integers(len(parts)))) for _ in range(2))
        parts.append(reduction.merge(one, other))
    require_by_pairs(reduction.finish(5, parts[0])["all"], store, 5, atol=1e-6)


def test_occurrences_without_a_group(store: Store) -> None:
    for layer, found in reduce(store, {"all": cosines_of(store, every=3)}, block_rows=29).items():
        require_by_pairs(found["all"], store, layer, atol=1e-6, every=3)


def test_a_row_that_is_not_finite_is_named(tmp_path: Path) -> None:
    vectors = np.ones((30, 8), np.float32)
    vectors[7, 3] = np.nan
    broken = write_words(tmp_path / "nan.zarr", [("word", vectors)]).store
    with pytest.raises(NonFiniteError, match=r"layer 2, row \d+ holds a value that is not finite"):
        reduce(broken, {"all": Cosines()})


def test_vectors_too_long_for_float32_are_refused(tmp_path: Path) -> None:
    long = write_words(tmp_path / "long.zarr", [("word", np.full((5, 8), 1e30, np.float32))]).store
    with pytest.raises(NonFiniteError, match="choose precision float64"):
        reduce(long, {"all": Cosines()})
