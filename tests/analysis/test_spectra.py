"""Contexts, batches and maximum explainable variance, against one numpy.linalg.svd a word in float64."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from embstore.analysis import words as words_module
from embstore.analysis.geometry import spectra
from embstore.analysis.geometry.moments import LayerMoments
from embstore.analysis.geometry.spectra import MEV, largest_eigenpairs, sample_mev, symmetric_product
from embstore.analysis.scan import selected
from embstore.analysis.words import (
    Resources,
    all_types,
    compute_per_word,
    count_codes,
    distinct_contexts,
    eligible_types,
    iter_batches,
    iter_word_blocks,
    rows_of_words,
    word_groups,
)
from embstore.config import config
from embstore.errors import InvalidValueError, MissingRowsError, NonFiniteError, UnfinishedStoreWarning
from embstore.store import Selection, Store, Text
from tests.analysis.word_store import Written, awkward_words, one_line, write_words
from tests.store_making import make_store


def maximum_explainable_variance(
    data: Store | Selection, *, layer: int, types: object = None, precision: str = "float32", memory: int = 2**30
) -> np.ndarray:
    """Of each word, computed as in `geometry`."""
    selection = selected(data, layer)
    words = rows_of_words(selection, all_types(selection) if types is None else types)  # type: ignore[arg-type]
    options = {"precision": precision, "progress": lambda done: None}
    with config(device="cpu", memory=memory):
        return next(compute_per_word(MEV, selection.store, [layer], words, **options))  # type: ignore[arg-type]


def explained(vectors: np.ndarray) -> float:
    """Equation 3 by the book; nan where all are zero."""
    vectors = np.asarray(vectors, np.float64)
    if not vectors.any():
        return float("nan")
    squares = np.linalg.svd(vectors, compute_uv=False) ** 2
    return float(squares[0] / squares.sum())


@pytest.fixture(scope="module", params=["float32", "float16", "int8"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("spectra")
    first, second = awkward_words(seed=1), awkward_words(seed=2)
    vectors = [(word, np.stack([array, other])) for (word, array), (_, other) in zip(first, second, strict=True)]
    return write_words(folder / "store.zarr", vectors, layers=(1, 4), dtype=request.param)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.quick(3)
def test_mev_is_that_of_an_svd_a_word(written: Written, precision: str) -> None:
    for layer in (1, 4):
        found = maximum_explainable_variance(written.store, layer=layer, precision=precision)
        expected = [explained(written.of(word, layer)) for word in written.store.index.words]
        assert np.isnan(expected).any() or written.store.dtype == "int8"  # whose zeros are not quite zero
        np.testing.assert_allclose(found, expected, atol=1e-6 if precision == "float32" else 1e-9, rtol=0)


@pytest.mark.quick(1)
def test_mev_does_not_depend_on_memory_or_batches(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = maximum_explainable_variance(written.store, layer=4, precision="float64")
    for memory in (1, 3_000, 40_000):
        part = maximum_explainable_variance(written.store, layer=4, precision="float64", memory=memory)
        np.testing.assert_allclose(part, whole, atol=1e-12, rtol=0)
    monkeypatch.setattr(words_module, "PADDING", 3.0)
    padded = maximum_explainable_variance(written.store, layer=4, precision="float64")
    np.testing.assert_allclose(padded, whole, atol=1e-12, rtol=0)


def test_mev_is_of_the_rows_selected_in_the_order_of_the_types(written: Written) -> None:
    rng = np.random.default_rng(0)
    rows = rng.permutation(written.store.n_rows)[: written.store.n_rows // 2]
    selection = written.store.select(rows=np.append(rows, rows[:5]))
    types = rng.permutation(all_types(selection))[:12]
    found = maximum_explainable_variance(selection, layer=1, types=types)
    kept = set(rows.tolist())
    for number, value in zip(types.tolist(), found, strict=True):
        word = written.store.index.words[number]
        held = [written.values[0, row] for row in written.rows[word] if row in kept]
        assert value == pytest.approx(explained(np.array(held)), abs=1e-6, nan_ok=True)


def test_values_of_any_size(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    words = [(f"e{power}", rng.normal(size=(5, 8)) * 10.0**power) for power in (-30, -12, 0, 15, 34)]
    words += [(f"many{power}", rng.normal(size=(20, 8)) * 10.0**power) for power in (-30, 0, 34)]
    words += [(f"infinite{count}", np.full((count, 8), 3e38)) for count in (4, 40)]  # where they are added up
    written = write_words(tmp_path / "sizes.zarr", words)
    expected = [explained(written.of(word, 2)) for word in written.store.index.words]
    for precision in ("float32", "float64"):
        found = maximum_explainable_variance(written.store, layer=2, precision=precision)
        np.testing.assert_allclose(found, expected, atol=1e-6, rtol=0)


@pytest.mark.slow
def test_large_words_against_an_svd(tmp_path: Path) -> None:
    rng, size = np.random.default_rng(5), 220
    decay = np.arange(1, size + 1) ** -0.7
    words = [(f"decaying{count}", rng.normal(size=(count, size)) * decay + 0.3) for count in (97, 199, 220, 221, 700)]
    written = write_words(tmp_path / "large.zarr", words)
    expected = [explained(written.of(word, 2)) for word in written.store.index.words]
    for precision, bound in (("float32", 1e-6), ("float64", 1e-8)):
        found = maximum_explainable_variance(written.store, layer=2, precision=precision)
        np.testing.assert_allclose(found, expected, atol=bound, rtol=0)


def spectrum(kind: str, size: int, rng: np.random.Generator) -> np.ndarray:
    return {
        "gap": np.append(10.0, rng.uniform(0, 1, size - 1)),
        "no gap": np.append([3.0, 3.0], rng.uniform(0, 1, size - 2)),
        "near": np.append([3.0, 3.0 - 1e-7], rng.uniform(0, 1, size - 2)),
        "cluster": np.append(np.linspace(2.9, 3, 30), rng.uniform(0, 1, size - 30)),
        "flat": np.ones(size),
        "rank one": np.append(1.0, np.zeros(size - 1)),
        "zero": np.zeros(size),
        "decay": np.arange(1, size + 1) ** -1.0,
    }[kind]


KINDS = ("gap", "no gap", "near", "cluster", "flat", "rank one", "zero", "decay")


@pytest.mark.parametrize("size", [2, 60, 97, 150, 300])
@pytest.mark.quick(1)
def test_largest_eigenvalues_of_every_spectrum(size: int) -> None:
    rng = np.random.default_rng(size)
    spectrums = np.array([spectrum(kind, max(size, 31), rng)[:size] for kind in KINDS])
    bases = np.linalg.qr(rng.normal(size=(len(KINDS), size, size)))[0]
    matrices = torch.from_numpy(bases * spectrums[:, None] @ bases.transpose(0, 2, 1))
    matrices = (matrices + matrices.mT) / 2
    bound = spectra.TOLERANCE * np.maximum(spectrums.sum(1), 1e-6)
    assert (np.abs(largest_eigenpairs(matrices, vectors=False)[0].numpy() - spectrums.max(1)) <= bound).all()
    values, vectors = largest_eigenpairs(matrices)
    assert (np.abs(values.numpy() - spectrums.max(1)) <= bound).all()
    np.testing.assert_allclose(vectors.norm(dim=1), 1, atol=1e-9)
    residual = (matrices @ vectors[:, :, None])[:, :, 0] - values[:, None] * vectors
    assert (residual.norm(dim=1).numpy() <= 1e-6 * np.maximum(spectrums.max(1), 1e-6)).all()
    alone = np.array([spectrum_values[0] - spectrum_values[1] > 0.1 for spectrum_values in -np.sort(-spectrums, 1)])
    along = np.abs((vectors.numpy() * bases[np.arange(len(KINDS)), :, spectrums.argmax(1)]).sum(1))
    assert (along[alone] > 1 - 1e-12).all()


def test_the_krylov_space_solves_matrices_with_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(200, 200)))[0]
    matrix = torch.from_numpy(basis * spectrum("gap", 200, rng) @ basis.T)[None]
    expected, _ = largest_eigenpairs(matrix, vectors=False)
    monkeypatch.setattr(torch.linalg, "eigvalsh", None)
    assert torch.equal(largest_eigenpairs(matrix, vectors=False)[0], expected)


def test_the_bound_holds_whatever_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that is orthogonal to the first eigenvector must not pass for the answer."""
    size = 200
    values = torch.cat([torch.tensor([5.0, 4.0]), torch.rand(size - 2)]).double()

    def blind(matrices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        space = torch.eye(size, dtype=torch.float64)[None, :, 1:9]
        return space, matrices @ space

    monkeypatch.setattr(spectra, "_start", blind)
    assert float(largest_eigenpairs(torch.diag(values)[None], vectors=False)[0]) == pytest.approx(5, abs=1e-9)


@pytest.mark.parametrize("block", [1, 2, 5, 2**13])
def test_contexts_are_those_of_a_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(words_module, "BLOCK_SENTENCES", block)
    monkeypatch.setattr(words_module, "BLOCK_ROWS", 3 * block)
    texts = ["a b c d", "", "a b c d", "a b d c", "é", "a", "a b c d", "", "aa", "z" * 300, "ab", "b"]
    rng = np.random.default_rng(0)
    words = [(f"w{count}", rng.normal(size=(count, 3))) for count in (1, 2, 9, 15, 21)]
    written = write_words(tmp_path / "texts.zarr", words, texts=texts)
    spaces = [("\t", "\u3000 ", "\n", " ")[number % 4] for number in range(len(texts))]
    spelled = [text.replace(" ", space) + space for text, space in zip(texts, spaces, strict=True)]
    numbers = Text.of_words([text] for text in spelled).distinct.tolist()
    assert numbers == list(map(texts.index, texts))
    sentence = written.store.index.sentence
    for rows in (range(48), range(0, 48, 3), [7, 3, 3, 30]):
        expected = [len({texts[sentence[row]] for row in held if row in rows}) for held in written.rows.values()]
        selection = written.store.select(rows=np.array(rows))
        assert distinct_contexts(selection).tolist() == expected
        assert eligible_types(selection, min_contexts=2).tolist() == [
            i for i, count in enumerate(expected) if count >= 2
        ]
        assert all_types(selection).tolist() == [i for i, count in enumerate(expected) if count]
    part = written.store.select(rows=slice(5, 31))
    assert distinct_contexts(part).tolist() == distinct_contexts(written.store.select(rows=np.arange(5, 31))).tolist()
    assert distinct_contexts(written.store).tolist() == distinct_contexts(written.store.select()).tolist()


def test_the_rows_of_words_are_the_same_however_they_are_selected(written: Written) -> None:
    """All rows are those of the store's own column, which is not copied; a list and a part are grouped here."""
    store = written.store
    types = all_types(store)[::-2]
    n_rows = store.n_rows
    selections = [store.select(rows=rows) for rows in (slice(0, n_rows), np.arange(n_rows)[::-1])]
    for data in (store, store.select(), *selections):
        words = rows_of_words(data, types)
        assert [words.of(number).tolist() for number in range(len(types))] == [
            np.flatnonzero(store.index.type == number).tolist() for number in types
        ]
        assert words.n_rows == sum(map(len, map(words.of, range(len(types)))))
        for numbers in ([1], [2, 0], [0, 1, 2]):
            some = words.some(np.array(numbers))
            assert some.types.tolist() == types[numbers].tolist()
            assert some.rows.tolist() == np.concatenate([words.of(number) for number in numbers]).tolist()
            assert some.of(len(numbers) - 1).tolist() == words.of(numbers[-1]).tolist()
    assert rows_of_words(store, types).rows is store.index.by_type[1]
    part = rows_of_words(store.select(rows=slice(2, n_rows)), types[:1])
    assert part.of(0).tolist() == [row for row in store.index.rows_of(int(types[0])).tolist() if row >= 2]


def test_codes_are_counted_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = np.random.default_rng(0).integers(0, 50, 1000).astype(np.int32)
    monkeypatch.setattr(words_module, "BLOCK_ROWS", 7)
    for values in (codes, np.sort(codes), codes[:7], codes[:0]):
        assert count_codes(values, 60).tolist() == np.bincount(values, minlength=60).tolist()
        assert count_codes(values).tolist() == np.bincount(values).tolist()


def test_batches_hold_every_occurrence_once_and_zeros(written: Written) -> None:
    store = written.store
    words = rows_of_words(store, all_types(store))
    seen: dict[int, np.ndarray] = {}
    for group in word_groups(store, words, Resources(torch.float32, torch.device("cpu"), 100_000)):
        part = words.some(group)
        if part.counts[0] > store.hidden_size:
            blocks = list(iter_word_blocks(store, 4, part, nbytes=300))
            assert len(blocks) > 1
            seen[int(group[0])] = torch.cat(blocks).numpy()
            continue
        batches = list(iter_batches(store, 4, part, nbytes=2_000))
        held = [
            (n, vectors) for batch in batches for n, vectors in zip(batch.counts.tolist(), batch.vectors, strict=True)
        ]
        for number, (count, vectors) in zip(group.tolist(), held, strict=True):
            assert vectors.dtype == torch.float32
            assert not vectors[count:].any()
            seen[number] = vectors[:count].numpy().copy()
    assert sorted(seen) == list(range(len(words.types)))
    for place, vectors in seen.items():
        np.testing.assert_array_equal(vectors, written.of(store.index.words[place], 4))


def test_baselines_are_those_of_an_svd() -> None:
    rng = np.random.default_rng(2)
    for count in (1, 2, 9, 40, 700):
        vectors = rng.normal(size=(count, 20)) + 3
        mean = vectors.mean(0)
        moments = LayerMoments(mean, (vectors - mean).T @ (vectors - mean), count)
        expected = explained(vectors)
        assert sample_mev(vectors) == pytest.approx(expected, abs=1e-9)
        assert moments.mev() == pytest.approx(expected, abs=1e-9)
    assert np.isnan(sample_mev(np.zeros((3, 4))))


@pytest.mark.parametrize("shape", [(3, 5), (191, 7), (400, 30), (2, 193, 9)])
def test_symmetric_product(shape: tuple[int, ...]) -> None:
    vectors = torch.randn(*shape, dtype=torch.float64)
    torch.testing.assert_close(symmetric_product(vectors), vectors @ vectors.mT)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("count", [4, 40])
def test_values_that_are_not_finite_are_refused(tmp_path: Path, bad: float, count: int) -> None:
    vectors = np.ones((count, 6))
    vectors[2, 3] = bad
    written = write_words(tmp_path / "bad.zarr", [("fine", np.ones((9, 6))), ("broken", vectors)])
    row = int(np.flatnonzero(~np.isfinite(written.values[0]).all(1))[0])
    call = lambda: maximum_explainable_variance(written.store, layer=2)  # noqa: E731
    one_line(call, NonFiniteError, "'broken'", "layer 2", f"row {row} ")


def test_lengths_that_float32_cannot_square_together_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words_module, "BATCH_NBYTES", 200)  # blocks of eight rows
    values = np.full((40, 6), 1e-3)
    values[-1] = 1e35
    order = np.random.default_rng(1).permutation(40)
    written = write_words(tmp_path / "wide.zarr", [("wide", values[np.argsort(order)])], seed=1)
    assert written.values[0, -1, 0] > 1e34
    one_line(lambda: maximum_explainable_variance(written.store, layer=2), NonFiniteError, "precision float64")
    assert maximum_explainable_variance(written.store, layer=2, precision="float64")[0] == pytest.approx(1)


def test_rows_not_written_are_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = [("few", rng.normal(size=(5, 6))), ("many", rng.normal(size=(600, 6)))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnfinishedStoreWarning)
        written = write_words(tmp_path / "part.zarr", words, written=False)
    one_line(
        lambda: maximum_explainable_variance(written.store, layer=2, types=[1]), MissingRowsError, "not written yet"
    )
    rest = written.store.select().written()
    held = [row for row in written.rows["many"] if row < 512]
    found = maximum_explainable_variance(rest, layer=2, types=[1])
    assert found[0] == pytest.approx(explained(written.values[0, held]), abs=1e-6)


def test_bad_input_is_refused_in_one_line(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store.zarr").store
    mev = maximum_explainable_variance
    one_line(lambda: mev(store, layer=2, types=[]), InvalidValueError, "no word")
    one_line(lambda: mev(store, layer=2, types=[99]), InvalidValueError, "no type 99")
    one_line(lambda: mev(store, layer=2, types=[1, 1]), InvalidValueError, "twice")
    one_line(lambda: mev(store, layer=2, types=[1.5]), InvalidValueError, "integers")
    one_line(
        lambda: mev(store.select(words="bank"), layer=2, types=[1]),
        InvalidValueError,
        "'river' has no selected occurrence",
    )
    one_line(lambda: sample_mev(np.array([[1.0, np.inf]])), NonFiniteError, "vector 0")
    moments = LayerMoments(np.ones(2), np.full((2, 2), np.nan), 3)
    one_line(lambda: moments.mev(), NonFiniteError, "not finite")
