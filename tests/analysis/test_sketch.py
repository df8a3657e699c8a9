"""Search through a sketch equals brute force in float64, for any metric, filter, tie and length; bounds hold."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import embstore as es
from embstore import kernels
from embstore.analysis.neighbors import exact, sketch, sketch_codes
from embstore.analysis.neighbors.exact import Exclusion, Search, checked_queries
from embstore.analysis.neighbors.index import LayerSketch, build_index, find_sketch, open_index
from embstore.analysis.neighbors.sketch_codes import Codes, Layout, Rotation, Sketch, write_codes
from embstore.analysis.neighbors.space import METRICS, ArrayVectors, Rows, Space
from embstore.errors import EmbstoreWarning, InvalidValueError, NonFiniteError, SearchIndexError
from tests.analysis.test_exact import brute, require_same
from tests.analysis.word_store import write_words
from tests.store.example import flip

compiled = pytest.importorskip("embstore.kernels.compiled", reason="sketches are searched by the extension")
if kernels.compiled_name() is None:
    pytest.skip("sketches are searched by the extension", allow_module_level=True)
limit_target = compiled.limit_target
D = 150  # three levels, the last one not full
THREADS = 2


# Small searches go through the sketch, in several parts, however many rows it cannot decide.
SMALL = {
    "FEW_ROWS": 0,
    "FEATURES_A_QUERY": 1,
    "PART_SCORES": 300,
    "LEAST_ROWS": 64,
    "PIECE": 48,
    "PENDING": 50,
    "UNDECIDED": 1,
    "LEAST_UNDECIDED": 10**9,
}


@pytest.fixture(autouse=True)
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sketches of short segments, of several clusters each, and small searches that read them."""
    for name, value in SMALL.items():
        monkeypatch.setattr(sketch, name, value)
    monkeypatch.setattr(sketch_codes, "CLUSTER_ROWS", 32)
    for module in (sketch, sketch_codes):
        monkeypatch.setattr(module, "SEGMENT", 256)


def near(data: es.Store | es.store.Selection, rows: int | list[int], layer: int, **options: Any) -> pl.DataFrame:
    """The 7 neighbours of some rows."""
    store = data if isinstance(data, es.Store) else data.store
    return es.neighbors(data, store.select(rows=np.atleast_1d(rows)), k=7, layers=layer, **options)


def clouds(seed: int) -> dict[str, np.ndarray]:
    """Vectors of the kinds that break a search."""
    rng = np.random.default_rng(seed)
    plain = rng.normal(size=(900, D)) * np.exp(-np.arange(D) / 40)
    huge = plain.copy()
    huge[::7] *= 1e9
    one = plain.copy()
    one[:, 5] += 1e4 * rng.normal(size=900)
    near = np.repeat(rng.normal(size=(1, D)), 900, 0) * (1 + np.spacing(np.float32(1)) * rng.integers(0, 3, (900, D)))
    return {
        "plain": plain,
        "lengths apart": plain * np.exp(rng.normal(size=(900, 1)) * 2),
        "a common mean": plain + 300,
        "repeated": np.repeat(rng.normal(size=(9, D)), 100, 0)[rng.permutation(900)],
        "zeros": np.concatenate([plain[:400], np.zeros((60, D)), plain[:440]]),
        "all equal": np.ones((900, D)),
        "some huge": huge,
        "one feature dominates": one,
        "apart by rounding": near,
        "tiny": plain * 1e-40,
        "on one line": rng.normal(size=(900, 1)) * rng.normal(size=(1, D)),
    }


def targets() -> Iterator[int]:
    """Run with each version of the kernels that this processor has."""
    best = limit_target(2)
    for target in range(best + 1):
        yield limit_target(target)
    limit_target(best)


def sketched(vectors: np.ndarray, path: Path, rotation: Rotation | None = None) -> Sketch:
    rotation = rotation or Rotation.learn(vectors, vectors.mean(0, dtype=np.float64))
    blocks = ((start, vectors[start : start + 320]) for start in range(0, len(vectors), 320))
    longest = write_codes(path, blocks, len(vectors), rotation, "these")
    layout = Layout(len(vectors), rotation.n_levels)
    assert path.stat().st_size == layout.nbytes
    return Sketch(rotation, Codes.mapped(path, layout), layout, longest)


def searched(
    made: Sketch,
    vectors: np.ndarray,
    queries: np.ndarray,
    k: int,
    space: Space,
    rows: Rows,
    *exclude: Exclusion,
) -> sketch.SketchHits:
    compared = checked_queries(queries, vectors.shape[1], space)
    search = Search(ArrayVectors(vectors), compared, k, space, rows, exclude, None, threads=THREADS)
    return sketch.sketch_search(search, made)


@pytest.mark.parametrize("dtype", ["float16", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", list(clouds(0)))
@pytest.mark.quick(1)
def test_the_nearest_are_those_of_float64(kind: str, dtype: str, tmp_path: Path) -> None:
    with np.errstate(over="ignore"):
        vectors = clouds(1)[kind].astype(dtype)
    vectors = np.where(np.isfinite(vectors), vectors, 0).astype(dtype)
    made, rng = sketched(vectors, tmp_path / "sketch"), np.random.default_rng(2)
    queries = np.concatenate([vectors[rng.integers(len(vectors), size=5)], rng.normal(size=(4, D))])
    groups = Exclusion(np.arange(len(vectors)) % 5, np.arange(9) % 7 - 1)
    every: Rows = range(len(vectors))
    for metric in METRICS:
        for mean in (None, made.rotation.mean):
            space = Space(metric, mean)
            for k, rows, exclude in (
                (1, every, ()),
                (10, range(37, 700), (groups,)),
                (30, np.flatnonzero(rng.random(len(vectors)) < 0.4), ()),
                (len(vectors) + 3, every, ()),
            ):
                found = searched(made, vectors, queries, k, space, rows, *exclude)
                allowed = np.repeat(np.isin(np.arange(len(vectors)), rows)[None], 9, 0)
                for group in exclude:
                    allowed &= (group.of_rows != group.of_queries[:, None]) | (group.of_queries[:, None] < 0)
                best = brute(queries, vectors, k, space, allowed).scores
                np.testing.assert_allclose(found.scores, best, rtol=1e-12, atol=1e-13)
                # What numpy's other order of additions leaves equal is compared with the scan.
                compared = checked_queries(queries, D, space)
                scan = Search(ArrayVectors(vectors), compared, k, space, rows, exclude, None)
                require_same(found, scan.decide(*scan.candidates()))
                assert found.scanned.all() == (k > len(rows))


def lost(made: Sketch, vectors: np.ndarray, level: int, metric: str, factors: dict[str, float]) -> int:
    """How many of 60 rows are not found by queries parallel to what the codes of them leave out from a level on.

    There the bound is the product itself: a row is found that is as near as the nearest so far, which is a later one.
    """
    rotation, n, size = made.rotation, len(vectors) - 1, 64 * (level + 1)
    rest = (vectors[:60] - rotation.mean) @ rotation.directions.T
    for number, (codes, lengths) in enumerate(made.rotation.encode(vectors[:60]).levels[: level + 1]):
        part, scales = slice(64 * number, 64 * number + 64), sketch_codes.of_bfloat(lengths[:, :1])
        rest[:, part] -= (codes - 7.5) * rotation.steps[part] * scales
    rest[:, : size - 64] = 0  # only the error of this level, and the tail
    space, missed = Space(metric), 0
    queries = checked_queries(rest @ rotation.directions, D, space)
    for query, row in zip(queries, range(60), strict=True):
        search = Search(ArrayVectors(vectors), query[None], 1, space, range(n + 1), (), None)
        one = sketch._SketchSearch(search, made)
        for term, factor in factors.items():
            one.terms[term] *= factor
        score = search.rescored(np.array([[row]]))
        one.best = exact.Hits(np.array([[n]]), score)
        one.limits = one._limits()
        bounds, part = np.empty((1, -(-(n + 1) // 16) * 16), np.float32), one.part(0, n + 1)
        at = int(np.flatnonzero(made.codes.rows_at(np.arange(n + 1)) == row)[0])
        one.scan(exact.Found(search, one.packed, search.least_of(np.array([np.inf])), 9), bounds, part)
        bounds[0, np.arange(bounds.shape[1]) != at] = -np.inf
        near = exact.Found(search, one.packed, one.least(), n + 100)
        one.choose(near, bounds, part)
        one.score_near(near)
        missed += one.best.rows[0, 0] != row
    return missed


@pytest.mark.parametrize("level", range(3))
@pytest.mark.slow
def test_a_bound_that_is_too_tight_loses_neighbours(level: int, tmp_path: Path) -> None:
    vectors = np.random.default_rng(7).normal(size=(400, D)).astype(np.float32)
    made = sketched(vectors, tmp_path / "sketch")
    for _ in targets():
        assert [lost(made, vectors, level, metric, {}) for metric in METRICS] == [0, 0, 0]
    assert lost(made, vectors, level, "ip", {"spread": 0, "of_error": 0.95}) > 5
    assert (lost(made, vectors, level, "ip", {"of_tail": 0.96}) > 10) == (level < 2)  # the last one has no tail


@pytest.mark.parametrize("metric", METRICS)
def test_every_processor_finds_the_nearest(metric: str, tmp_path: Path) -> None:
    vectors = clouds(3)["plain"].astype(np.float32)[:300]
    made, rng = sketched(vectors, tmp_path / "sketch"), np.random.default_rng(4)
    queries = rng.normal(size=(3, D)) @ np.diag(np.exp(-np.arange(D) / 40))
    expected = brute(queries, vectors, 5, Space(metric), np.ones((3, 300), bool))
    for _ in targets():
        require_same(searched(made, vectors, queries, 5, Space(metric), range(300)), expected)


def test_every_length_in_a_bound_is_large_enough(tmp_path: Path) -> None:
    """Each part alone: a product is far below its bound, unless what is left out is parallel to the query."""
    vectors = clouds(8)["lengths apart"].astype(np.float32)[:300]
    made = sketched(vectors, tmp_path / "sketch")
    directions, steps = made.rotation.directions, made.rotation.steps
    rotated = (vectors - made.rotation.mean) @ directions.T
    queries = np.random.default_rng(9).normal(size=(20, D))
    search = Search(ArrayVectors(vectors), queries, 3, Space("ip"), range(300), (), None)
    terms_of = sketch._SketchSearch(search, made)
    turned = queries @ directions.T
    for level, (codes, lengths) in enumerate(made.rotation.encode(vectors).levels):
        part, rest = slice(64 * level, 64 * level + 64), slice(64 * level + 64, None)
        scales, errors, tails = sketch_codes.of_bfloat(lengths).T.astype(np.float64)
        held = (codes - 7.5) * steps[part] * scales[:, None]
        assert (errors >= np.linalg.norm(rotated[:, part] - held, axis=1)).all()
        assert (tails >= np.linalg.norm(rotated[:, rest], axis=1)).all()
        terms, weights = terms_of.terms[level], terms_of.weights[level].astype(np.int64)
        assert (terms["of_error"] >= np.linalg.norm(turned[:, part], axis=1)).all()
        assert (terms["of_tail"] >= np.linalg.norm(turned[:, rest], axis=1)).all()
        wanted = turned[:, part] * steps[part]
        for worst in (wanted > 2 * terms["step"][:, None] * weights, wanted <= 2 * terms["step"][:, None] * weights):
            chosen = np.where(worst, 15, 0)
            integers = terms["step"] * (2 * (weights * chosen).sum(1) - terms["offset"])
            off = np.abs((wanted * (chosen - 7.5)).sum(1) - integers)
            assert (terms["spread"] >= off - 2.0**-20 * np.abs(integers)).all()  # the step is rounded to float32
            assert (terms["spread"] <= 0.5 * np.abs(wanted).sum(1) + 1e-30).all()


def on_codes(path: Path, mean: float) -> tuple[Sketch, np.ndarray]:
    """The sketch of rows that codes and float32 hold exactly, so that no other error hides what a bound leaves out."""
    rng, size, n = np.random.default_rng(12), 128, 300
    directions = np.eye(size)[rng.permutation(size)]
    steps = np.repeat([4.0, 2.0], 64)
    values = rng.choice([-2.5, 2.5], (n, size)) * rng.integers(1, 200, (n, 1)) * steps
    center = mean * rng.integers(-8, 9, size)
    vectors = (center + values @ directions).astype(np.float32)
    assert ((vectors.astype(np.float64) - center) @ directions.T == values).all()
    return sketched(vectors, path, Rotation(center, directions, steps)), vectors


def bounds_by_level(one: sketch._SketchSearch) -> list[np.ndarray]:
    """The bounds [q, row] that the kernel computes from the first level, the first two, and so on."""
    search, codes = one.search, one.sketch.codes
    n, n_queries = search.vectors.count, len(search.queries)
    part, every = one.part(0, n), np.full(n_queries, -1e30, np.float32)
    first = np.empty((n_queries, len(part.offsets)), np.float32)
    one.scan(exact.Found(search, one.packed, one.least(-every), 9), first, part)
    levels, out = [codes.groups(level, 0, n) for level in range(codes.layout.n_levels)], [first]
    for count in range(2, len(levels) + 1):
        near, bounds = exact.Found(search, one.packed, one.least(), n + 99), first.copy()
        terms = one.weights[:count].reshape(-1, 64), one.packed_terms[: count * n_queries]
        near.kernel.choose(levels[:count], 0, n, sketch.SEGMENT, part.offsets, part.norms, *terms, bounds, every)
        out.append(bounds)
    return [bounds[:, np.argsort(codes.rows_at(np.arange(n)))] for bounds in out]


@pytest.mark.parametrize("mean", [0.0, 2.0**20])
@pytest.mark.parametrize("metric", METRICS)
def test_every_bound_of_every_level_is_above_the_exact_score(metric: str, mean: float, tmp_path: Path) -> None:
    """In exact arithmetic but for 2^-60, and also where the norm that a cosine is divided by is rounded to 16 bits."""
    made, vectors = on_codes(tmp_path / "sketch", mean)
    count = len(vectors)
    for subtracted in (None, made.rotation.mean):
        space = Space(metric, subtracted)
        queries = checked_queries(
            np.concatenate([vectors[:30], vectors[:30] - made.rotation.mean, -vectors[:5]]), vectors.shape[1], space
        )
        search = Search(ArrayVectors(vectors), queries, 1, space, range(count), (), None)
        rows = vectors.astype(np.longdouble) - (0 if subtracted is None else subtracted)
        products = queries.astype(np.longdouble) @ rows.T
        squares = np.square(rows).sum(1)
        values = products - squares / 2 if metric == "l2" else products
        scores = {"cosine": products / np.sqrt(squares), "ip": products}.get(metric)
        if scores is None:
            scores = np.sqrt(np.square(queries.astype(np.longdouble)[:, None] - rows).sum(2))
        for _ in targets():
            one = sketch._SketchSearch(search, made)
            norms = one.part(0, count).norms
            order = np.argsort(made.codes.rows_at(np.arange(count)))
            stored = np.float32(1) if metric != "cosine" else sketch_codes.of_norms(norms)[order]
            for bounds in bounds_by_level(one):
                assert (bounds >= values).all()
                for row in range(count):  # open where it is as near as the nearest so far
                    one.best.rows[:], one.best.scores[:, 0] = 0, scores[:, row]
                    scale = stored if metric != "cosine" else stored[row]
                    assert (bounds[:, row] > one._limits() * scale).all()


def test_stored_lengths_hold_what_float32_rounds() -> None:
    """Of rows that are codes but for the rounding of float32, so that nothing hides it."""
    rng, size = np.random.default_rng(12), 128
    rotation = Rotation(np.zeros(size), np.linalg.qr(rng.normal(size=(size, size)))[0], np.exp(-np.arange(size) / 60))
    values = rng.choice([-3.5, -2.5, 2.5, 3.5], (300, size)) * rng.integers(1, 99, (300, 1)) * rotation.steps
    vectors = (values @ rotation.directions).astype(np.float32)
    rotated = vectors.astype(np.longdouble) @ rotation.directions.T.astype(np.longdouble)
    for level, (codes, lengths) in enumerate(rotation.encode(vectors).levels):
        part = slice(64 * level, 64 * level + 64)
        scales, errors, tails = sketch_codes.of_bfloat(lengths).T.astype(np.longdouble)
        rest = rotated[:, part] - (codes - 7.5) * rotation.steps[part] * scales[:, None]
        assert (errors >= np.sqrt(np.square(rest).sum(1))).all()
        assert (errors <= 1e-3 * np.sqrt(np.square(rotated).sum(1))).all()
        assert (tails >= np.sqrt(np.square(rotated[:, part.stop :]).sum(1))).all()


def test_lengths_are_rounded_up() -> None:
    values = np.abs(np.random.default_rng(0).normal(size=5000)) * 10.0 ** np.random.default_rng(1).integers(
        -30, 15, 5000
    )
    bounds = sketch_codes.of_bfloat(sketch_codes.bound_as_bfloat(values))
    assert (bounds >= values).all()
    assert (bounds <= values * (1 + 2**-7)).all()
    above = bounds.astype(np.float64) * (1 + 2.0**-40)  # float32 rounds these down to bfloat16
    assert (sketch_codes.of_bfloat(sketch_codes.bound_as_bfloat(above)) >= above).all()
    assert sketch_codes.of_bfloat(sketch_codes.bound_as_bfloat(np.array([1.5, 0.0]))).tolist() == [1.5, 0]


def test_norms_are_off_by_what_bounds_take_for_it() -> None:
    values = np.abs(np.random.default_rng(0).normal(size=5000)) * 10.0 ** np.linspace(-30, 15, 5000)
    values = np.concatenate([values, [0.0, 1.0, 1 + 2**-9]]).astype(np.float32)
    stored = sketch_codes.of_norms(sketch_codes.as_norms(values)).astype(np.float64)
    assert (np.abs(stored - values) <= sketch_codes.NORM_ROUNDING * stored).all()
    assert (np.abs(stored - values) > sketch_codes.NORM_ROUNDING / 1.01 * stored).any()


def test_what_cannot_be_decided_is_read_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random vectors have no near neighbours: no bound of 4 bits tells them apart from the others."""
    vectors = np.random.default_rng(5).normal(size=(3000, D)).astype(np.float32)
    vectors[100:110] = vectors[0] * 1.01
    made = sketched(vectors, tmp_path / "sketch")
    monkeypatch.setattr(f"{__name__}.THREADS", 1)  # what is not decided depends on which part is read first
    for name, value in (("PART_SCORES", 8000), ("LEAST_UNDECIDED", 40), ("UNDECIDED", 50)):
        monkeypatch.setattr(sketch, name, value)
    queries = np.stack([vectors[0], vectors[1]])
    found = searched(made, vectors, queries, 5, Space(), range(3000))
    require_same(found, brute(queries, vectors, 5, Space(), np.ones((2, 3000), bool)))
    assert found.scanned.tolist() == [False, True]
    other = Space("cosine", made.rotation.mean + 1)
    found = searched(made, vectors, queries, 5, other, range(3000))
    require_same(found, brute(queries, vectors, 5, other, np.ones((2, 3000), bool)))
    assert found.scanned.all()


@pytest.mark.parametrize(("scale", "scanned"), [(1e9, True), (30, False)])
def test_a_sketch_of_random_vectors_is_not_read(scale: float, scanned: bool, tmp_path: Path) -> None:
    vectors = np.random.default_rng(5).normal(size=(1500, 256)) * np.exp(-np.arange(256) / scale)
    made = sketched(vectors.astype(np.float32), tmp_path / "sketch")
    assert made.rotation.is_flat == scanned
    assert searched(made, vectors.astype(np.float32), vectors[:2], 5, Space(), range(1500)).scanned.all() == scanned


def test_a_process_requests_what_it_reads_from_the_disk_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(5).normal(size=(600, 4 * 64)).astype(np.float32) * np.exp(-np.arange(256) / 60)
    made, requested = sketched(vectors, tmp_path / "sketch"), []
    start = made.codes._content.ctypes.data
    monkeypatch.setattr(
        sketch_codes, "will_need", lambda starts, nbytes: requested.extend((int(at) - start, nbytes) for at in starts)
    )
    first = searched(made, vectors, vectors[:2], 5, Space(), range(600))
    layout = made.layout
    assert set(requested) == {(layout.part_at(part), each * 1024) for part, each in enumerate(layout.row_nbytes[:6])}
    requested.clear()
    require_same(searched(made, vectors, vectors[:2], 5, Space(), range(600)), first)
    assert not requested


def word_store(path: Path, dtype: str = "float16") -> es.Store:
    rng = np.random.default_rng(6)
    centers = rng.normal(size=(40, 1, 80)) + 2
    words = [(f"w{number}", center + 0.3 * rng.normal(size=(30, 80))) for number, center in enumerate(centers)]
    return write_words(path, words, dtype=dtype, layers=(2, 5)).store


@pytest.mark.parametrize("suffix", ["zarr", "h5"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
@pytest.mark.quick(1)
def test_neighbors_are_the_same_with_a_sketch(
    suffix: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = word_store(tmp_path / f"store.{suffix}", dtype)
    rows = store.select(words=[f"w{number}" for number in range(0, 40, 2)])
    cases = [
        (data, {"metric": metric, "centered": centered, "exclude": "sentence"})
        for data in (store, rows)
        for metric in METRICS
        for centered in (False, True)
    ]
    expected = [near(data, [3, 500], 5, **options) for data, options in cases]
    assert {how for table in expected for how in table["search"]} == {"scan"}
    built = build_index(store, 5, kind="sketch")
    assert isinstance(built, LayerSketch)
    assert built.name == "layer5-sketch"
    assert isinstance(open_index(store, 5), LayerSketch)
    for (data, options), table in zip(cases, expected, strict=True):
        for index in (None, built, built.name):
            found = near(data, [3, 500], 5, index=index, **options)
            assert found.drop("search", "score").equals(table.drop("search", "score"))
            np.testing.assert_allclose(found["score"], table["score"], rtol=1e-12, atol=1e-13)
            searched_by = "scan" if options["centered"] and data is rows else "sketch"
            assert found["search"].unique().to_list() == [searched_by]
    one, other = find_sketch(store, 5), find_sketch(store, 5)
    assert one is not None
    assert other is not None
    assert one.sketch.rotation is other.sketch.rotation  # read once
    monkeypatch.setattr(sketch, "FEATURES_A_QUERY", 40)  # of 80: two queries, not three
    for rows_of, how in (([3, 500], "sketch"), ([3, 500, 700], "scan")):
        found = near(store, rows_of, 5)
        assert found["search"].unique().to_list() == [how]
    many = near(store, list(range(20)), 5)
    assert many["search"].unique().to_list() == ["scan"]
    with pytest.raises(InvalidValueError, match="has layer 5, not 2"):
        near(store, 3, 2, index=built)


def test_a_sketch_of_another_state_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, other = word_store(tmp_path / "store.zarr"), word_store(tmp_path / "other.zarr", "float32")
    with pytest.raises(InvalidValueError, match="a sketch serves every metric"):
        build_index(store, 2, kind="sketch", metric="l2")
    build_index(store, 2, kind="sketch")
    before = (tmp_path / "store.zarr/hidden_states/.index/layer2-sketch/sketch.bin").read_bytes()
    build_index(store, 2, kind="sketch")
    assert (tmp_path / "store.zarr/hidden_states/.index/layer2-sketch/sketch.bin").read_bytes() == before
    shutil.copytree(store.path / "hidden_states/.index", other.path / "hidden_states/.index")
    assert find_sketch(other, 2) is None
    assert find_sketch(store, 5) is None
    assert near(other, 1, 2)["search"][0] == "scan"
    with pytest.raises(SearchIndexError, match="is stale"):
        near(other, 1, 2, index="layer2-sketch")
    (tmp_path / "store.zarr/hidden_states/.index/layer2-sketch/sketch.bin").write_bytes(before[:-1])
    assert find_sketch(store, 2) is None
    vectors = np.ones((40, D), np.float32)
    vectors[9, 3] = 1e30
    with pytest.raises(NonFiniteError, match="these, row 9 holds"):
        sketched(vectors, tmp_path / "sketch")


@pytest.mark.parametrize("part", ["norms", "centered norms", "rows", "level 0", "level 2", "level 4", "checks"])
@pytest.mark.quick(1)
def test_a_flipped_bit_is_found_where_it_is_read(part: str, tmp_path: Path) -> None:
    vectors = np.random.default_rng(11).normal(size=(500, 300)).astype(np.float32)
    made, path = sketched(vectors, tmp_path / "sketch"), tmp_path / "sketch"
    layout = made.layout
    places = {
        "norms": 2 * 77,
        "rows": layout.part_at(2) + 99,
        "centered norms": layout.part_at(1) + 2,
        "checks": layout.nbytes - 1,  # that of the last level
    }
    number = int(part[-1]) if part.startswith("level") else 0
    flip(path, places.get(part, layout.part_at(3 + number) + 200 * 38 + 5))
    damaged = Sketch(made.rotation, Codes.mapped(path, layout), layout, made.longest)
    queries = vectors[198:203] + vectors.mean(0)
    space = Space("l2", made.rotation.mean if part == "centered norms" else None)  # a product needs no norms
    if part == "checks":
        damaged.codes.groups(1, 0, 500)
        with pytest.raises(SearchIndexError, match="is damaged"):
            damaged.codes.groups(layout.n_levels - 1, 0, 500)
        return
    with pytest.raises(SearchIndexError, match="is damaged: build it again"):
        searched(damaged, vectors, queries, 400, space, range(500))


@pytest.mark.parametrize("name", ["sketch.bin", "space.npz"])
@pytest.mark.quick(1)
def test_a_damaged_sketch_is_not_used_and_said(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = word_store(tmp_path / "store.zarr")
    expected = near(store, 3, 2)
    build_index(store, 2, kind="sketch")
    assert near(store, 3, 2)["search"][0] == "sketch"
    flip(store.path / "hidden_states/.index/layer2-sketch" / name, 2000)
    with pytest.warns(EmbstoreWarning, match="is damaged.*; this search reads the layer instead"):
        found = near(store, 3, 2)
    assert found.equals(expected)
    with pytest.raises(SearchIndexError, match="is damaged"):
        near(store, 3, 2, index="layer2-sketch")
    build_index(store, 2, kind="sketch")
    assert near(store, 3, 2)["search"][0] == "sketch"
