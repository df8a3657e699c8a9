"""Clusters of a word's occurrences against planted senses, and their silhouettes against all pairs."""

from __future__ import annotations

import math
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import silhouette_samples

import embstore as es
from embstore.analysis.neighbors.senses import Clusters, senses, silhouettes, umap_plane
from embstore.errors import InvalidValueError, MissingPackageError, NonFiniteError
from embstore.plot.maps import principal_plane
from embstore.store import Store
from embstore.vectors.linalg import unit_rows
from tests.analysis.word_store import write_senses
from tests.store_making import Made, make_store

CENTERS = np.array([[9.0, 1, 0, 0, 0, 1], [1, 8, 0, 1, 0, 0], [0, 0, 5, 5, 1, 0]])


def planted(sizes: tuple[int, ...] = (9, 14, 6), *, seed: int = 0) -> list[tuple[str, str | None, list[float]]]:
    """Occurrences of `bank` about one centre a label, others between them, in an order that mixes them."""
    rng = np.random.default_rng(seed)
    listed: list[tuple[str, str | None, list[float]]] = []
    for name, center, size in zip("abc", CENTERS, sizes, strict=False):
        for vector in center * rng.uniform(0.5, 4, (size, 1)) + rng.normal(size=(size, 6)) * 0.3:
            listed.append(("bank", name, vector.tolist()))
    listed += [("river", "a", rng.normal(size=6).tolist()) for _ in range(20)]
    return [listed[place] for place in rng.permutation(len(listed))]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return write_senses(tmp_path_factory.mktemp("clusters") / "store.zarr", planted())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_store(tmp_path_factory.mktemp("clusters") / "store.zarr")


def unit(vector: np.ndarray) -> np.ndarray:
    values = np.asarray(vector, np.float64)
    length = math.sqrt(math.fsum(value**2 for value in values))
    return values / length if length else values


@pytest.mark.parametrize("seed", range(4))
def test_silhouettes_are_those_of_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(30, 5)) * 10.0 ** rng.uniform(-2, 2, (30, 1))
    vectors[3] = 0
    vectors[5:9] = vectors[5]
    clusters = rng.integers(0, 4, 30)
    clusters[0] = 4  # a cluster of one
    vectors = np.array([unit(vector) for vector in vectors])
    expected = silhouette_samples(vectors, clusters, metric="cosine")
    assert silhouettes(vectors, clusters) == pytest.approx(expected, abs=1e-9)


def test_silhouettes_of_one_cluster_are_none() -> None:
    assert np.isnan(silhouettes(np.eye(3), np.zeros(3, np.int64))).all()


def test_planted_senses_are_found(store: Store) -> None:
    found = senses(store, "bank", layers=2, label="class")
    assert found.frame["count"].to_list() == [14, 9, 6]
    assert found.frame["label"].to_list() == ["b", "a", "c"]
    assert found.frame["purity"].to_list() == [1, 1, 1]
    assert (found.purity, found.baseline) == (1, 14 / 29)
    assert found.occurrences["word"].unique().to_list() == ["bank"]
    listed = {row["occurrence"]: row["class"] for row in store.select(words="bank").table().to_dicts()}
    assert {row["occurrence"]: row["label"] for row in found.occurrences.to_dicts()} == listed


def normal_clusters(path: Path, *, count: int, size: int, seed: int) -> Clusters:
    """The clusters of vectors around one mean, of which some features vary much more than others."""
    rng = np.random.default_rng(seed)
    vectors = 2 * rng.normal(size=size) + rng.normal(size=(count, size)) * np.exp(-np.arange(size) / 5)
    store = write_senses(path, [("bank", None, vector.tolist()) for vector in vectors])
    return senses(store, "bank", layers=2)


def test_a_silhouette_is_compared_with_that_of_vectors_without_clusters(store: Store, tmp_path: Path) -> None:
    planted = senses(store, "bank", layers=2)
    assert 0.1 < (planted.null or 0) < (planted.silhouette or 0) - 0.1
    assert (planted.p, planted.caveats) == (1 / 20, [])
    one = normal_clusters(tmp_path / "one.zarr", count=60, size=20, seed=0)
    assert one.null == pytest.approx(one.silhouette, abs=0.06)
    assert (one.p or 0) > 0.1
    (caveat,) = one.caveats
    assert f"without clusters reach a silhouette of {one.null:.2f} on average (p {one.p:.2f})" in caveat
    alone = senses(store, "bank", layers=2, n_clusters=1)
    assert (alone.null, alone.p, alone.caveats) == (None, None, [])


def test_vectors_without_clusters_vary_as_those_of_the_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    found = normal_clusters(tmp_path / "few.zarr", count=16, size=20, seed=3)
    monkeypatch.setattr(
        "embstore.analysis.neighbors.senses.unit_rows", lambda rows: drawn.append(rows) or unit_rows(rows)
    )
    assert found.p is not None
    variance = np.concatenate(drawn).var(0).sum()
    assert variance == pytest.approx(found.vectors.var(0, ddof=1).sum(), rel=0.05), "of n + 1 it is .12 lower"


def test_layer_0_says_that_it_has_no_sentence(made: Made) -> None:
    at_0, at_5 = (senses(made.store, "bank", layers=layer, n_clusters=1).caveats for layer in (0, 5))
    assert at_0[0] == "layer 0 is the word and its position, without its sentence: clusters there are no senses"
    assert not any("position" in caveat for caveat in at_5)


@pytest.mark.slow
def test_few_of_the_words_without_clusters_have_a_low_p(tmp_path: Path) -> None:
    values = [normal_clusters(tmp_path / f"{seed}.zarr", count=60, size=30, seed=seed).p for seed in range(60)]
    assert sum(value is not None and value <= 0.05 for value in values) <= 8  # of 60: p = .01 for a rate of .05


def test_the_number_of_clusters_is_that_of_the_greatest_silhouette(store: Store) -> None:
    found = senses(store, "bank", layers=2, min_size=3)
    tried = {row["n_clusters"]: row["silhouette"] for row in found.tried.to_dicts()}
    assert sorted(tried) == list(range(1, 9))
    for count in range(2, 9):
        alone = senses(store, "bank", layers=2, n_clusters=count)
        units = [unit(each) for each in store.vectors(alone.occurrences["occurrence"].to_numpy(), layers=2)]
        by_hand = silhouette_samples(units, alone.occurrences["cluster"].to_list(), metric="cosine")
        assert alone.silhouette == pytest.approx(tried[count], abs=1e-12)
        assert tried[count] == pytest.approx(np.mean(by_hand), abs=1e-12)
    allowed = {
        count: value
        for count, value in tried.items()
        if value is not None and senses(store, "bank", layers=2, n_clusters=count).frame["count"].to_numpy().min() >= 3
    }
    assert len(found.frame) == max(allowed, key=lambda count: allowed[count]) == 3
    assert found.silhouette == pytest.approx(max(allowed.values()))


def test_clusters_that_would_be_too_small_are_not_chosen(store: Store) -> None:
    assert senses(store, "bank", layers=2, min_size=7).frame["count"].to_numpy().min() >= 7
    one = senses(store, "bank", layers=2, min_size=29)
    assert one.frame["count"].to_list() == [29]
    assert (one.silhouette, one.caveats) == (None, []), "29 do not make two of 29: none was tried"
    (caveat,) = senses(store, "bank", layers=2, min_size=14).caveats
    assert caveat == "no clustering into up to 2 clusters has 14 occurrences or more in each and a silhouette above 0"


def test_occurrences_are_ordered_by_distance_to_the_center(store: Store) -> None:
    found = senses(store, "bank", layers=2, n_clusters=3)
    for number in (1, 2, 3):
        part = found.occurrences.filter(pl.col("cluster") == number)
        units = np.array([unit(vector) for vector in store.vectors(part["occurrence"].to_numpy(), layers=2)])
        scores = units @ unit(units.mean(0))
        assert part["score"].to_list() == pytest.approx(scores.tolist(), abs=1e-12)
        assert part["score"].is_sorted(descending=True)
        assert part["rank"].to_list() == list(range(1, len(part) + 1))
    nearest = found.nearest(2)
    assert nearest["rank"].to_list() == [1, 2] * 3
    assert found.vectors.tolist() == store.vectors(found.occurrences["occurrence"].to_numpy(), layers=2).tolist()


def test_every_occurrence_is_there_once_and_counted(made: Made) -> None:
    found = senses(made.store, "bank", layers=2, label="upos", n_clusters=4)
    rows = [row for row in made.table if row["word"] == "bank"]
    assert sorted(found.occurrences["occurrence"].to_list()) == [row["occurrence"] for row in rows]
    for listed in found.frame.to_dicts():
        part = found.occurrences.filter(pl.col("cluster") == listed["cluster"])
        labels = Counter(label for label in part["label"].to_list() if label is not None)
        assert listed["count"] == len(part)
        assert listed["share"] == pytest.approx(len(part) / len(rows))
        assert listed["n_labelled"] == labels.total()
        assert listed["purity"] == pytest.approx(max(labels.values()) / labels.total())
        assert labels[listed["label"]] == max(labels.values())
        assert listed["silhouette"] == pytest.approx(np.mean(part["silhouette"].to_list()))
    most = sum(row["purity"] * row["n_labelled"] for row in found.frame.to_dicts())
    assert found.purity == pytest.approx(most / found.frame["n_labelled"].sum())


def test_a_phrase_is_marked_whole(made: Made) -> None:
    found = senses(made.store, "new york", layers=0, n_clusters=2).occurrences
    for row in found.to_dicts():
        before, after = row["text"].split(" ")[: row["position"]], row["text"].split(" ")[row["position"] + 2 :]
        assert row["marked"] == " ".join([*before, "[new york]", *after])


def test_equal_vectors_are_one_cluster(tmp_path: Path) -> None:
    store = write_senses(tmp_path / "store.zarr", [("bank", None, [1.0, 2.0, 0.0])] * 12)
    found = senses(store, "bank", layers=2, label="class", min_size=2)
    assert (found.silhouette, found.purity, found.baseline) == (None, None, None)
    assert found.frame["count"].to_list() == [12]
    assert found.occurrences["occurrence"].to_list() == list(range(12))
    assert len(senses(store, "bank", layers=2, n_clusters=5).frame) == 1, "no two of them are distinct"


def test_lengths_do_not_matter_and_the_mean_does(store: Store, made: Made) -> None:
    plain = senses(made.store, "suit", layers=5, n_clusters=3)
    centered = senses(made.store, "suit", layers=5, n_clusters=3, centered=True)
    rows = centered.occurrences["occurrence"].to_numpy()
    mean = made.vectors[2].astype(np.float64).mean(0)
    assert centered.vectors == pytest.approx(made.vectors[2][rows] - mean, abs=1e-6)
    assert plain.silhouette != centered.silhouette


def test_a_seed_and_a_sample_are_repeated(made: Made) -> None:
    one, two = (senses(made.store, "bank", layers=2, sample=20, seed=3) for _ in range(2))
    assert one.occurrences.equals(two.occurrences)
    assert len(one.occurrences) == 20
    other = senses(made.store, "bank", layers=2, sample=20, seed=4)
    assert set(other.occurrences["occurrence"]) != set(one.occurrences["occurrence"])


def test_of_a_selection_only_its_occurrences(made: Made) -> None:
    chosen = made.store.select(labels={"upos": "NOUN"})
    found = senses(chosen, "bank", layers=2, n_clusters=2)
    assert set(found.occurrences["occurrence"]) == set(chosen.rows) & set(made.store.select(words="bank").rows)
    with pytest.raises(InvalidValueError, match="no occurrence of 'bank' is in this selection"):
        senses(made.store.select(words="the"), "bank", layers=2)


def test_without_scikit_learn_it_says_what_to_install(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(MissingPackageError, match=r"embstore\[clusters\]"):
        senses(store, "bank", layers=2, n_clusters=2)


@pytest.mark.parametrize(
    ("word", "options", "message"),
    [
        ("bamk", {}, "no word 'bamk': did you mean 'bank'"),
        ("bank", {"layers": 7}, "layer 7 is not stored"),
        ("bank", {"n_clusters": 30}, "30 clusters are more than the 29 occurrences of 'bank'"),
        ("bank", {"label": "sense"}, "no label column 'sense': the store has class"),
    ],
)
def test_bad_input_is_one_line(word: str, options: dict[str, object], message: str, store: Store) -> None:
    with pytest.raises(InvalidValueError, match=message.replace("[", r"\[")):
        senses(store, word, **{"layers": 2, **options})  # type: ignore[arg-type]


def test_one_occurrence_is_refused(tmp_path: Path) -> None:
    store = write_senses(tmp_path / "store.zarr", [("bank", "a", [1.0, 0]), ("suit", "a", [1.0, 0])])
    with pytest.raises(InvalidValueError, match="'bank' has one occurrence"):
        senses(store, "bank", layers=2)


def test_a_value_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    store = write_senses(tmp_path / "store.zarr", [("bank", "a", [1.0, 0]), ("bank", "a", [np.nan, 0])])
    with pytest.raises(NonFiniteError, match="row 1"):
        senses(store, "bank", layers=2)


def clusters_of(store: Store, **options: object) -> Clusters:
    return senses(store, "bank", layers=2, **options)  # type: ignore[arg-type]


@pytest.mark.quick(1)
def test_a_map_has_each_occurrence_once_a_panel(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embstore.analysis.neighbors.senses.DRAWS", 1)
    for found, titles in (
        (clusters_of(store), ["by cluster"]),
        (clusters_of(store, label="class"), ["by cluster", "by label"]),
    ):
        figure = es.plot.cluster_map(found)
        assert [axis.get_title() for axis in figure.axes] == titles
        assert figure.get_suptitle().startswith("Occurrences of bank, layer 2\nsilhouette ")
        points = principal_plane(found.vectors)
        names = [f"cluster {number}" for number in found.occurrences["cluster"]]
        for axis in figure.axes:
            assert axis.get_xlabel() == "first principal component"
            drawn = {part.get_label().rpartition(" (")[0]: part.get_offsets() for part in axis.collections}
            names = found.occurrences["label"].to_list() if axis is not figure.axes[0] else names
            assert drawn.keys() == set(names)
            for name, own in drawn.items():
                np.testing.assert_allclose(own, points[np.array(names) == name])


def test_a_map_of_more_labels_than_colours(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    listed = [("$ank", f"label{n % 11}" if n % 12 else None, rng.normal(size=4).tolist()) for n in range(60)]
    store = write_senses(tmp_path / "store.zarr", listed)
    figure = es.plot.cluster_map(senses(store, "$ank", layers=2, label="class", n_clusters=2))
    names = [text.get_text() for text in figure.axes[1].get_legend().get_texts()]
    assert len(names) == 9
    assert names[7].startswith("4 others")
    assert names[8] == "no label (5)"
    assert figure.get_suptitle().startswith("Occurrences of \\$ank, layer 2\nsilhouette ")


def test_without_umap_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(MissingPackageError, match=r"embstore\[umap\]"):
        umap_plane(np.eye(5))
    with pytest.raises(InvalidValueError, match="UMAP of 3 vectors"):
        umap_plane(np.eye(3))


@pytest.mark.slow
def test_umap_keeps_planted_senses_apart(store: Store) -> None:
    pytest.importorskip("umap")
    found = clusters_of(store, label="class")
    points = umap_plane(found.vectors, n_neighbors=8)
    labels = np.array(found.occurrences["label"].to_list())
    distances = np.linalg.norm(points[:, None] - points[None], axis=-1)
    np.fill_diagonal(distances, np.inf)
    assert (labels[distances.argmin(1)] == labels).mean() > 0.9
    assert umap_plane(found.vectors, n_neighbors=8).tolist() == points.tolist()
