"""The geometry of a layer against every pair taken one by one, in float64, within the memory it may take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import embstore as es
from embstore.analysis.geometry.cosine import Cosines, Groups
from embstore.analysis.geometry.measure import METRICS, PAPER_METRICS, geometry
from embstore.analysis.geometry.moments import Moments
from embstore.analysis.geometry.summary import bootstrap_means, extreme_words, summarize_geometry
from embstore.analysis.scan import Scope, _reduce_rows, reduce, selected
from embstore.analysis.words import all_types
from embstore.errors import InvalidValueError, MissingRowsError, NonFiniteError, UnfinishedStoreWarning
from embstore.intervals import expanded
from tests.analysis.test_spectra import explained
from tests.analysis.word_store import Written, awkward_words, one_line, write_words
from tests.store_making import make_store

CLOSE = {"float32": 1e-6, "float64": 1e-9}


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / lengths if lengths else 0.0


def mean_cosine(vectors: np.ndarray) -> float:
    """The mean over all pairs, each cosine by itself."""
    lengths = np.linalg.norm(vectors, axis=1)
    units = vectors / np.where(lengths > 0, lengths, 1)[:, None]
    return float((units @ units.T)[np.triu_indices(len(vectors), 1)].mean())


def within_sentence(vectors: np.ndarray) -> float:
    mean = vectors.mean(0)
    return float(np.mean([cosine(mean, vector) for vector in vectors]))


def of_layer(vectors: np.ndarray) -> dict[str, float]:
    """Every metric of a layer but the anisotropy."""
    variances = np.linalg.svd(vectors - vectors.mean(0), compute_uv=False) ** 2
    shares = variances[variances > variances.max() * 1e-14] / variances.sum()
    return {
        "mean_norm": float(np.linalg.norm(vectors, axis=1).mean()),
        "participation_ratio": float(variances.sum() ** 2 / np.square(variances).sum()),
        "effective_rank": float(np.exp(-(shares * np.log(shares)).sum())),
        "top_component": float(shares.max()),
    }


@pytest.fixture(scope="module", params=["float32", "int8"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    first, second = awkward_words(seed=1), awkward_words(seed=2)
    vectors = [(word, np.stack([array, other])) for (word, array), (_, other) in zip(first, second, strict=True)]
    path = tmp_path_factory.mktemp("geometry") / "store.zarr"
    return write_words(path, vectors, layers=(1, 4), dtype=request.param)


@pytest.fixture(scope="module")
def whole(written: Written) -> pl.DataFrame:
    """Every metric of a store, in one piece."""
    return geometry(written.store, metrics=METRICS, min_contexts=1, precision="float64")


def values(table: pl.DataFrame, metric: str, layer: int) -> dict[str, float | None]:
    found = table.filter((pl.col("metric") == metric) & (pl.col("layer") == layer))
    return dict(zip(found["item"], found["value"], strict=True))


def baseline_of(table: pl.DataFrame, metric: str, layer: int) -> float:
    """The baseline that all rows of a metric and layer share."""
    found = table.filter((pl.col("metric") == metric) & (pl.col("layer") == layer))
    (baseline,) = set(found["baseline"].to_list())
    return float(baseline)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.quick(1)
def test_every_metric_is_that_of_its_definition(written: Written, precision: str) -> None:
    store, close = written.store, CLOSE[precision]
    spectral = 3e-6 if precision == "float32" else close  # ratios of sums of squares: up to 1.1e-6 with some BLAS
    table = geometry(store, metrics=METRICS, min_contexts=1, precision=precision)
    for place, layer in enumerate(store.layers):
        everything = written.values[place]
        similarity, explainable = mean_cosine(everything), explained(everything)
        selfsim = values(table, "selfsim", layer)
        expected = {word: mean_cosine(written.of(word, layer)) for word in written.rows if len(written.rows[word]) > 1}
        assert set(selfsim) - {""} == set(expected)
        for word, value in expected.items():
            assert selfsim[word] == pytest.approx(value, abs=close), word
        assert selfsim[""] == pytest.approx(np.mean(list(expected.values())), abs=close)
        mev = values(table, "mev", layer)
        for word in written.rows:
            value = explained(written.of(word, layer))
            assert (mev[word] is None) if np.isnan(value) else mev[word] == pytest.approx(value, abs=close), word
        intrasim = values(table, "intrasim", layer)
        sentences = np.asarray(store.index.sentence)
        known = [number for number in range(int(sentences[-1]) + 1) if (sentences == number).sum() > 1]
        assert set(intrasim) - {""} == {str(number) for number in known}
        for number in known:
            value = within_sentence(everything[sentences == number])
            assert intrasim[str(number)] == pytest.approx(value, abs=close)
        assert values(table, "anisotropy", layer) == {"": pytest.approx(similarity, abs=close)}
        assert {*PAPER_METRICS, *of_layer(everything)} == set(METRICS), "a metric without an oracle"
        for metric, value in of_layer(everything).items():
            assert values(table, metric, layer) == {"": pytest.approx(value, rel=spectral)}
        for metric, value in (("selfsim", similarity), ("intrasim", similarity), ("mev", explainable)):
            assert baseline_of(table, metric, layer) == pytest.approx(value, abs=close)
    difference = (table["value"] - table["baseline"] - table["adjusted"]).drop_nulls()
    assert len(difference)
    assert difference.abs().max() == 0


@pytest.mark.parametrize("options", [{"threads": 1}, {"threads": 3}, {"memory": 1}, {"memory": 100_000}])
@pytest.mark.quick(1)
def test_nothing_depends_on_threads_or_memory(written: Written, whole: pl.DataFrame, options: dict[str, int]) -> None:
    with es.config(**options):
        other = geometry(written.store, metrics=METRICS, min_contexts=1, precision="float64")
    assert other.drop("value", "baseline", "adjusted").equals(whole.drop("value", "baseline", "adjusted"))
    for column in ("value", "baseline", "adjusted"):
        np.testing.assert_allclose(other[column].to_numpy(), whole[column].to_numpy(), rtol=1e-9, atol=1e-10)


@pytest.mark.quick(2)
def test_the_sample_is_the_same_for_a_seed_and_its_baseline_that_of_pairs(written: Written) -> None:
    store = written.store
    table = geometry(store, min_contexts=1, baseline=50, seed=3)
    assert table.equals(geometry(store, min_contexts=1, baseline=50, seed=3))
    drawn = np.sort(np.random.default_rng(3).choice(store.n_rows, 50, replace=False))
    for place, layer in enumerate(store.layers):
        expected = mean_cosine(written.values[place][drawn])
        assert baseline_of(table, "selfsim", layer) == pytest.approx(expected, abs=1e-6)
        assert values(table, "anisotropy", layer)[""] == pytest.approx(expected, abs=1e-6)
        explainable = explained(written.values[place][drawn])
        assert baseline_of(table, "mev", layer) == pytest.approx(explainable, abs=1e-6)


def test_a_selection_in_any_order(written: Written) -> None:
    rng = np.random.default_rng(0)
    rows = rng.permutation(written.store.n_rows)[:100]
    table = geometry(written.store.select(rows=rows, layers=4), min_contexts=1, metrics=["selfsim", "intrasim"])
    sentences = np.asarray(written.store.index.sentence)
    held = written.values[1]
    for word, value in values(table, "selfsim", 4).items():
        if word:
            own = [row for row in written.rows[word] if row in rows]
            assert value == pytest.approx(mean_cosine(held[own]), abs=1e-6)
    for number, value in values(table, "intrasim", 4).items():
        if number:
            own = [row for row in sorted(rows) if sentences[row] == int(number)]
            assert value == pytest.approx(within_sentence(held[own]), abs=1e-6)


def test_rows_that_a_selection_names_twice_count_once(written: Written) -> None:
    rows = np.arange(60)
    options = {"metrics": METRICS, "min_contexts": 1, "layers": 4}
    twice = written.store.select(rows=np.random.default_rng(1).permutation(np.repeat(rows, 2)))
    once = geometry(written.store.select(rows=rows), **options)  # type: ignore[arg-type]
    assert geometry(twice, **options).equals(once)  # type: ignore[arg-type]


def states_of(
    reducers: dict[str, Any], selection: es.store.Selection, layer: int, start: int, stop: int
) -> dict[str, Any]:
    """The states of a part of a selection, in blocks of 20 rows of float64."""
    scope = Scope(selection.store, layer, len(selection), torch.float64, torch.device("cpu"))
    return _reduce_rows(scope, reducers, selection.rows_at(start, stop), start, 20)


@pytest.mark.parametrize("seed", range(3))
def test_parts_merge_in_any_order(written: Written, seed: int) -> None:
    selection = selected(written.store)
    index = written.store.index
    several = np.flatnonzero(np.bincount(index.sentence) > 1)
    words, sentences = Groups.of(index.type, all_types(selection)), Groups.of(index.sentence, several)
    cosines = Cosines(words=words, sentences=sentences)
    reducers: dict[str, Any] = {"cosines": cosines, "moments": Moments()}
    rng = np.random.default_rng(seed)
    edges = np.unique([0, *rng.integers(1, written.store.n_rows, 7), written.store.n_rows]).tolist()
    parts = [states_of(reducers, selection, 4, start, stop) for start, stop in pairwise(edges)]
    while len(parts) > 1:
        one, other = rng.choice(len(parts), 2, replace=False)
        merged = {name: reducer.merge(parts[one][name], parts[other][name]) for name, reducer in reducers.items()}
        parts = [part for place, part in enumerate(parts) if place not in (one, other)] + [merged]
    scope = Scope(written.store, 4, written.store.n_rows, torch.float64, torch.device("cpu"))
    found = {name: reducer.finish(parts[0][name], scope) for name, reducer in reducers.items()}
    whole = reduce(selection, reducers, precision="float64")[4]
    for name in ("selfsim", "intrasim", "anisotropy"):
        part, expected = getattr(found["cosines"], name), getattr(whole["cosines"], name)
        np.testing.assert_allclose(part, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found["moments"].scatter, whole["moments"].scatter, rtol=1e-9, atol=1e-6)


def test_bootstrap_means_are_of_rows_drawn_with_replacement() -> None:
    rng = np.random.default_rng(0)
    held = rng.normal(size=(30, 2))
    held[4, 1] = np.nan
    found = bootstrap_means(held, resamples=500, seed=7)
    drawn = np.random.default_rng(7).integers(0, 30, (500, 30))
    np.testing.assert_allclose(found, np.nanmean(held[drawn], axis=1), atol=1e-12)


def test_a_summary_has_an_interval_about_each_mean(written: Written) -> None:
    table = geometry(written.store, metrics=METRICS, min_contexts=2)
    summary = summarize_geometry(table, resamples=200, seed=1)
    assert summary["metric"].to_list() == [metric for _ in (1, 4) for metric in table["metric"].unique().sort()]
    own = summary.filter(pl.col("metric").cast(pl.String).is_in(["selfsim", "intrasim", "mev"])).drop_nulls("low")
    assert ((own["low"] < own["value"]) & (own["value"] < own["high"])).all()
    for end in ("low", "high"):
        np.testing.assert_allclose(own[f"adjusted_{end}"], own[end] - own["baseline"])
    words = table.filter(pl.col("metric").cast(str) == "selfsim", pl.col("item") != "")
    wide = words.pivot("layer", index="item", values="value", maintain_order=True).drop("item").to_numpy()
    edges = summary.filter(pl.col("metric").cast(str) == "selfsim").select("low", "high").to_numpy()
    means = bootstrap_means(wide, resamples=200, seed=1)
    counts = (~np.isnan(wide)).sum(0)
    assert counts.min() >= 5
    np.testing.assert_allclose(edges, [expanded(each, count) for each, count in zip(means.T, counts, strict=True)])
    assert summary.filter(pl.col("metric") == "anisotropy")["low"].null_count() == 2


def test_five_words_have_an_interval_and_four_have_none(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for count, unknown in ((5, 0), (4, 2)):
        words = [(f"w{number}", random.normal(size=(20, 6))) for number in range(count)]
        store = write_words(tmp_path / f"{count}.zarr", words).store
        summary = summarize_geometry(geometry(store, metrics=["selfsim", "mev"], min_contexts=1), resamples=50)
        assert summary.select("value", "low", "high", "adjusted_low").null_count().row(0) == (0, *[unknown] * 3)


def test_the_extreme_words(written: Written) -> None:
    table = geometry(written.store, metrics="selfsim", min_contexts=2)
    found = extreme_words(table, layers=4, count=3)
    ordered = sorted((value, word) for word, value in values(table, "selfsim", 4).items() if word and value is not None)
    assert found.filter(pl.col("end") == "most")["item"].to_list() == [word for _, word in ordered[:3]]
    least = sorted(ordered, key=lambda pair: (-pair[0], pair[1]))
    assert found.filter(pl.col("end") == "least")["item"].to_list() == [word for _, word in least[:3]]


def test_bad_input_is_refused_in_one_line(written: Written) -> None:
    store = written.store
    for options, parts in (
        ({"layers": 2}, ["layer 2 is not stored", "1, 4"]),
        ({"layers": []}, ["no layer"]),
        ({"metrics": "entropy"}, ["'entropy'", "selfsim"]),
        ({"metrics": []}, ["no metric"]),
        ({"min_contexts": 10**6}, ["1000000 different"]),
        ({"baseline": "paper"}, ["'paper'", "exact"]),
        ({"baseline": 1}, ["baseline 1", "2 or more"]),
    ):
        one_line(lambda options=options: geometry(store, **options), InvalidValueError, *parts)  # type: ignore[misc]
    one_line(lambda: geometry(store.select(rows=[])), InvalidValueError, "is selected")
    alone = store.select(words=next(word for word, rows in written.rows.items() if len(rows) == 1))
    one_line(lambda: geometry(alone, min_contexts=1, metrics="selfsim"), InvalidValueError, "two occurrences")
    one_line(lambda: geometry(alone, metrics="intrasim"), InvalidValueError, "no sentence", "two selected words")
    table = geometry(store, metrics="anisotropy")
    one_line(lambda: extreme_words(table, layers=1), InvalidValueError, "layer 1")
    one_line(lambda: extreme_words(table, layers=[1, 4]), InvalidValueError, "layers [1, 4] are 2 layers")
    one_line(lambda: summarize_geometry(table.drop("item")), InvalidValueError, "no column 'item'")
    one_line(lambda: extreme_words(table, metric="mev"), InvalidValueError, "no words for 'mev'")


def test_objects_that_are_no_reducers_are_refused(written: Written) -> None:
    for reducer, part in ((3, "the reducer 'm' is 3"), (Moments, "without init()")):
        one_line(lambda r=reducer: reduce(written.store, {"m": r}), InvalidValueError, part)  # type: ignore[misc]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_named(tmp_path: Path, bad: float) -> None:
    vectors = np.random.default_rng(0).normal(size=(9, 4))
    vectors[6, 2] = bad
    made = write_words(tmp_path / "store.zarr", [("word", vectors)])
    row = int(np.flatnonzero(~np.isfinite(made.values[0]).all(1))[0])
    one_line(lambda: geometry(made.store, min_contexts=1), NonFiniteError, "layer 2", f"row {row} ")


@pytest.mark.parametrize("scale", [1e30, 1e-18, 1e-30])
def test_vectors_too_long_or_short_for_float32_are_named(scale: float, tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(9, 4)) * np.array([1] + [scale] * 8)[:, None]
    made = write_words(tmp_path / "store.zarr", [("word", vectors)])
    one_line(lambda: geometry(made.store, min_contexts=1), NonFiniteError, "float64")
    table = geometry(made.store, min_contexts=1, metrics="selfsim", precision="float64")
    assert values(table, "selfsim", 2)["word"] == pytest.approx(mean_cosine(made.values[0]), abs=1e-9)


def test_rows_not_written_are_refused(tmp_path: Path) -> None:
    with pytest.warns(UnfinishedStoreWarning):
        made = make_store(tmp_path / "store.zarr", leave_out=(1,))
    one_line(lambda: geometry(made.store), MissingRowsError, "not written")
    whole = geometry(made.store.select(layers=2).written(), metrics="anisotropy")
    assert values(whole, "anisotropy", 2)[""] == pytest.approx(mean_cosine(made.vectors[1, :256]), abs=1e-6)


def test_words_only_leaves_punctuation_out_of_everything(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    made = write_words(tmp_path / "a.zarr", [(word, rng.normal(size=(9, 5))) for word in ("a", ".", "3rd", "ĊĠ", "é")])
    chosen = made.store.select(words=["a", "3rd", "é"])
    options = {"metrics": METRICS, "min_contexts": 2}
    found = geometry(made.store, words_only=True, **options)  # type: ignore[arg-type]
    assert found.equals(geometry(chosen, **options))  # type: ignore[arg-type]
    assert not found.equals(geometry(made.store, **options))  # type: ignore[arg-type]
    alone = geometry(made.store.select(words="é"), **options)  # type: ignore[arg-type]
    assert alone["baseline"].is_null().all(), "a word is no baseline of its own"
    with pytest.raises(InvalidValueError, match="has a letter: leave words_only out"):
        geometry(made.store.select(words=[".", "ĊĠ"]), words_only=True)


MEMORY = 48 * 2**20

CHILD = """
import json, sys, threading, time
import embstore as es

def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

def watch():
    while not done.is_set():
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.002)

store = es.open(sys.argv[1])
es.config(memory=2**20)
es.geometry(store.select(rows=range(3000)), min_contexts=2)  # loads what is to be loaded
before, peak, done = anonymous(), [0], threading.Event()
watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
es.config(memory=int(sys.argv[2]) or "1GiB")
table = es.geometry(store, min_contexts=2)
done.set()
watcher.join()
print(json.dumps({"grown": peak[0] - before, "value": table["value"].to_list(), "item": table["item"].to_list()}))
"""


def run(path: Path, memory: int) -> dict[str, object]:
    # glibc returns freed memory at once, so that the process has what is in use and not what was.
    environment = os.environ | {
        "MALLOC_MMAP_THRESHOLD_": "524288",
        "MALLOC_TRIM_THRESHOLD_": "1048576",
        "OMP_NUM_THREADS": "2",
    }
    command = [sys.executable, "-c", CHILD, str(path), str(memory)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    result: dict[str, object] = json.loads(done.stdout)
    return result


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
def test_a_store_four_times_the_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(2, 5, 23_000)
    vectors = np.split(rng.normal(size=(counts.sum(), 768)).astype(np.float32) + 1, np.cumsum(counts)[:-1])
    words = [(f"word{number}", array) for number, array in enumerate(vectors)]
    made = write_words(tmp_path / "store.zarr", words)
    assert made.store.n_rows * made.store.source.layout.row_nbytes > 4 * MEMORY
    bounded, whole = run(made.store.path, MEMORY), run(made.store.path, 0)
    assert bounded["item"] == whole["item"]
    np.testing.assert_allclose(
        np.array(bounded["value"], np.float64), np.array(whole["value"], np.float64), rtol=1e-6, atol=1e-6
    )
    assert bounded["grown"] < MEMORY, bounded["grown"]
    assert bounded["grown"] < whole["grown"] / 2  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.parametrize("drawn", [5, 30, 100, 1000])
def test_adjusted_means_are_covered_also_over_a_drawn_baseline(tmp_path: Path, drawn: int) -> None:
    """With the draw as if it were exact they hold in .05 of cases of 5 vectors, and in .4 of 100."""
    random = np.random.default_rng(0)
    center = np.eye(24)[0] * 0.8
    words = [
        (f"w{number}", center + 0.3 * random.normal(size=24) + 0.3 * random.normal(size=(count, 24)))
        for number, count in enumerate(random.integers(5, 30, 300))
    ]
    store = write_words(tmp_path / "words.zarr", words).store

    def means(baseline: Any, seed: int) -> list[dict[str, Any]]:
        table = geometry(store, metrics=["selfsim", "mev"], min_contexts=1, baseline=baseline, seed=seed)
        return summarize_geometry(table, resamples=200, seed=seed).to_dicts()

    exact, covered = means("exact", 0), []
    for row in exact:
        assert row["adjusted_low"] == pytest.approx(row["low"] - row["baseline"], abs=1e-12)
    for seed in range(100):
        for row, true in zip(means(drawn, seed), exact, strict=True):
            assert (row["adjusted_low"] is None) == (row["metric"] == "mev" and drawn < 100)
            if row["adjusted_low"] is not None:
                covered.append(row["adjusted_low"] <= true["adjusted"] <= row["adjusted_high"])
    assert np.mean(covered) >= 0.88
