"""Several stores, or one with appended parts, give what the one store gives: rows, tables, analyses, copies."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jsonschema
import numpy as np
import polars as pl
import pytest

import embstore as es
from embstore.corpus.sentence import Document, Sentence
from embstore.errors import (
    AppendedTwiceWarning,
    InvalidValueError,
    MissingRowsError,
    StorageError,
    StoreBusyError,
    StoreDamagedError,
    StoreFormatError,
    StoreMismatchError,
    StoreNotFoundError,
    UnfinishedStoreWarning,
)
from embstore.extraction import append as append_module
from embstore.store import StoreWriter, merged, opening
from embstore.store.collection import JoinedSource
from embstore.store.metadata import document_crc32c
from embstore.store.storage.location import ObjectPath
from embstore.store.storage.lock import StoreLock
from embstore.store.vectors import VALUE_DTYPE
from tests.extraction.fake import FakeEncoder
from tests.extraction.plans import plan_of
from tests.object_server import Bucket
from tests.probes import class_store, edge_store
from tests.store.example import all_files
from tests.store_making import make_store


def collect(paths: list[Any], file: Path) -> es.Store:
    """Write a file that lists stores, and open it."""
    file.write_text(json.dumps([os.path.relpath(path, file.parent) for path in paths]))
    return es.open(file)


CUTS = (0, 40, 41, 100, 150)
WORDS = ["the", "bank", "river", "évident", "of", "money", "old", "suits", "closing", "banks", "steep"]


def sentences_of(seed: int = 0) -> list[Sentence]:
    """Sentences with labels, of documents with fields; a member begins with each of CUTS, and with a document."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(CUTS[-1]):
        words = tuple(WORDS[i] for i in rng.integers(0, len(WORDS), rng.integers(1, 9)))
        labels = {"pos": tuple(None if word == "of" else word[:1] for word in words)} if number % 3 else {}
        if number % 4 == 0 or number in CUTS:
            document = Document(fields={"year": 1800 + number, "place": "ab"[number % 2]})
        made.append(Sentence(words=words, labels=labels, document=document))
    return made


SENTENCES = sentences_of()


def extract(path: Path, sentences: list[Sentence], *, append: bool = False, **options: Any) -> es.Store:
    return es.extract(plan_of(sentences, model=FakeEncoder(), **options), path, append=append)


def parts_of(folder: Path, **options: Any) -> list[Path]:
    """Write the sentences as stores, some of them HDF5 where bfloat16 is not stored."""
    paths = []
    for number, (start, stop) in enumerate(pairwise(CUTS)):
        paths.append(folder / f"m{number}.{'h5' if number == 1 else 'zarr'}")
        extract(paths[-1], SENTENCES[start:stop], **options)
    return paths


@pytest.fixture(
    scope="module", params=["float16", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bfloat16", "int8"))]
)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, es.Store]:
    """The same corpus at once, as a list, as a file, and by appends."""
    folder = tmp_path_factory.mktemp("made")
    whole = extract(folder / "whole.zarr", SENTENCES, dtype=request.param)
    paths = parts_of(folder, dtype=request.param)
    grown = folder / "grown.zarr"
    for number, (start, stop) in enumerate(pairwise(CUTS)):
        extract(grown, SENTENCES[start:stop], append=number > 0, dtype=request.param)
    return {
        "whole": whole,
        "list": es.open(paths),
        "file": collect(paths, folder / "collection.json"),
        "grown": es.open(grown),
    }


KINDS = pytest.mark.parametrize("kind", ["list", "file", "grown"])


def vectors_of(store: es.Store) -> np.ndarray:
    """The vectors of all rows, where each member of int8 has its own center those of the members."""
    if isinstance(store.source, JoinedSource) and store.dtype == "int8":
        return np.concatenate([es.Store(each).select().vectors() for each in store.source.members()], axis=1)
    return store.select().vectors()


@KINDS
@pytest.mark.quick(1)
def test_rows_words_and_tables_are_those_of_the_one_store(made: dict[str, es.Store], kind: str) -> None:
    whole, store = made["whole"], made[kind]
    table, expected = store.table(), whole.table()
    assert table.drop("member").equals(expected)
    bounds = np.searchsorted(expected["sentence"], CUTS)
    names = ["grown", "0001", "0002", "0003"] if kind == "grown" else ["m0", "m1", "m2", "m3"]
    assert table["member"].to_list() == np.repeat(names, np.diff(bounds)).tolist()
    for name, column in whole.index.arrays().items():
        if not name.startswith("documents/fields/"):
            np.testing.assert_array_equal(store.index.arrays()[name], column, err_msg=name)
    for found, column in zip(store.index.by_type, whole.index.by_type, strict=True):
        np.testing.assert_array_equal(found, column)
    assert list(store.index.words) == list(whole.index.words)
    tolerance = 0.01 if store.dtype == "int8" else 0  # int8 is relative to the mean of each member
    np.testing.assert_allclose(store.select().vectors(), whole.select().vectors(), rtol=0, atol=tolerance)
    np.testing.assert_array_equal(store.select().vectors(), vectors_of(store))


@KINDS
@pytest.mark.quick(2)
def test_every_selection_is_that_of_the_one_store(made: dict[str, es.Store], kind: str) -> None:
    whole, store = made["whole"], es.Store(made[kind].source.again(verify=None, site="residual"))
    chosen: list[dict[str, Any]] = [
        *({"words": word} for word in WORDS),
        {"labels": {"pos": "b"}},
        {"labels": {"place": "a"}, "words": "bank"},
        {"where": "year < 1890"},
        {"where": "sentence IN (39, 40, 41, 99)"},
        {"where": "pos IS NULL AND lower(word) LIKE 'b%'"},
        {"where": "pos_position > 0"},
        {"rows": slice(30, 300)},
        {"rows": np.random.default_rng(1).permutation(whole.n_rows)},
    ]
    for options in chosen:
        found, expected = store.select(**options), whole.select(**options)
        assert found.table().drop("member").equals(expected.table()), options
    second = store.select(where=f"member = '{store.table()['member'].unique(maintain_order=True)[1]}'")
    assert second.table()["sentence"].unique(maintain_order=True).to_list() == [40]
    assert store.select(labels={"member": second.table()["member"][0]}).rows.tolist() == second.rows.tolist()
    with pytest.raises(InvalidValueError, match="'bonk': did you mean 'bank'"):
        store.select(words="bonk")
    with pytest.raises(InvalidValueError, match=r"no type 11"):
        store.index.rows_of(11)


@KINDS
def test_blocks_are_whole_and_in_order(made: dict[str, es.Store], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store, expected = made[kind], vectors_of(made[kind])
    monkeypatch.setattr("embstore.store.collection.BLOCK_NBYTES", 50 * expected[0, 0].nbytes)
    assert max(len(block) for _, block in store.scan(2)) == 50, "of few bytes unless a size is asked for"
    for start, stop, size in ((0, store.n_rows, 7), (3, store.n_rows - 2, 64), (150, 151, 9), (5, 5, 9)):
        blocks = [(row, block.copy()) for row, block in store.scan(2, start, stop, block_rows=size)]
        assert [row for row, _ in blocks] == list(range(start, stop, size)), "all but the last have the size asked for"
        seen = [block for copy in (True, False) for _, block in store.scan(2, start, stop, block_rows=size, copy=copy)]
        both = np.concatenate([np.empty((0, 8), VALUE_DTYPE[store.dtype]), *seen])
        np.testing.assert_array_equal(both, np.tile(expected[2, start:stop], (2, 1)))
    rows = np.random.default_rng(2).integers(0, store.n_rows, 500)
    out = np.empty((500, 8), np.uint16 if store.dtype == "bfloat16" else VALUE_DTYPE[store.dtype])
    found = store.vectors(rows, layers=-1, out=out)
    assert found.base is out or found is out or np.shares_memory(found, out)
    if store.dtype == "bfloat16":
        found = (found.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(found, expected[-1][rows])
    assert store.vectors([], layers=[0]).shape == (1, 0, 8)


def in_order(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(pl.exclude("store", "member"))


def require_close(found: pl.DataFrame, expected: pl.DataFrame) -> None:
    """Require equal tables; numbers, which may be summed in another order, within 1e-6."""
    found, expected = in_order(found), in_order(expected)
    assert found.columns == expected.columns
    for column in found.columns:
        if expected[column].dtype.is_float():
            np.testing.assert_allclose(found[column].to_numpy(), expected[column].to_numpy(), rtol=1e-6, atol=1e-6)
        else:
            assert found[column].to_list() == expected[column].to_list(), column


ANALYSES: dict[str, Callable[[es.Store], pl.DataFrame]] = {
    "geometry": lambda store: es.geometry(store),
    "neighbors": lambda store: es.neighbors(store, "bank", layers=1, k=9, metric="l2"),
    "cka": lambda store: es.analysis.linear_cka(store),
    "senses": lambda store: es.senses(store, "bank", layers=2).occurrences,
    "labels": lambda store: es.analysis.knn_labels(store, "pos", layers=1).frame,
    "sql of groups": lambda store: es.sql(
        store, "select word, count(*) n, selfsim(h1) s, centroid(h2) c from occurrences group by word order by word"
    ).explode("c"),
    "sql of the nearest": lambda store: es.sql(
        store,
        "select occurrence, word, cos(h1, vec(2, 1)) s from occurrences where pos = 'b' and year < 1940 "
        "order by s desc limit 30",
    ),
    "sql of sentences": lambda store: es.sql(
        store,
        "select s.*, o.position from sentences s join occurrences o using (sentence) where o.word = 'bank' "
        "order by s.sentence, o.position",
    ),
    "static": lambda store: pl.DataFrame(es.static_vectors(store, layers=1, min_contexts=1).vectors),
}


@pytest.mark.parametrize("name", ANALYSES)
@pytest.mark.quick(3)
def test_analyses_are_those_of_the_one_store(made: dict[str, es.Store], name: str) -> None:
    if made["whole"].dtype == "int8":  # whose vectors are not the same
        one = es.export(made["grown"], Path(str(made["whole"].path)).with_name(f"{name}.zarr"), dtype="float32")
    else:
        one = made["whole"]
    for kind in ("list", "grown"):
        require_close(ANALYSES[name](made[kind]), ANALYSES[name](one))


def split(store: es.Store, folder: Path, count: int = 3) -> es.Store:
    """Copy a store into several, cut between sentences, and open them as one."""
    folder.mkdir()
    cuts = store.index.indptr[np.linspace(0, len(store.index.text), count + 1).astype(int)].tolist()
    parts = pairwise(cuts)
    return es.open([es.export(store.select(rows=slice(*span)), folder / f"{span[0]}.zarr").path for span in parts])


@pytest.mark.slow
def test_probes_learn_the_same(tmp_path: Path) -> None:
    fast = es.probes.Training(epochs=2, batch_size=16, patience=0)
    words, edges = class_store.make(tmp_path / "words.zarr"), edge_store.make(tmp_path / "edges.zarr", sentences=20)
    lists = es.probes.split_words(*words.lists)
    scores = {}
    for name, one, other in (
        ("one", words.store, edges.store),
        ("several", split(words.store, tmp_path / "a"), split(edges.store, tmp_path / "b")),
    ):
        found = es.ClassProbe(training=fast).fit(one, lists).score().frame
        edge = es.probes.EdgeProbe(training=fast, hidden_size=4).fit(other, edges.splits["train"])
        scores[name] = pl.concat([in_order(found), in_order(edge.score(edges.splits["test"]).frame)], how="diagonal")
    require_close(scores["several"], scores["one"])


@KINDS
def test_workers_open_the_same_collection(made: dict[str, es.Store], kind: str) -> None:
    store = made[kind]
    again = pickle.loads(pickle.dumps(store.with_labels("odd", [row % 2 == 1 for row in range(store.n_rows)])))
    assert again.digest == store.digest
    assert again.select(labels={"odd": "true"}).rows.tolist()[:2] == [1, 3]


@KINDS
def test_an_index_is_next_to_what_is_stored(made: dict[str, es.Store], kind: str) -> None:
    store = made[kind]
    if kind == "list":
        with pytest.raises(InvalidValueError, match="has no place for an index"):
            es.analysis.build_index(store, 1)
        assert es.analysis.list_indexes(store) == []
        return
    es.analysis.build_index(store, 1, kind="hnsw")
    found = es.neighbors(store, "bank", layers=1, k=5, index=es.analysis.open_index(store, 1))
    require_close(found.drop("search"), es.neighbors(store, "bank", layers=1, k=5).drop("search"))
    es.analysis.remove_index(store, es.analysis.list_indexes(store)[0].name)


@KINDS
@pytest.mark.quick(1)
def test_copies_are_one_store(made: dict[str, es.Store], kind: str, tmp_path: Path) -> None:
    store = made[kind]
    copy = es.export(store, tmp_path / "copy.h5")
    assert copy.table().equals(store.table())
    assert es.verify(copy.path).ok
    tolerance = 0.01 if store.dtype == "int8" else 0
    np.testing.assert_allclose(copy.select().vectors(), vectors_of(store), rtol=0, atol=tolerance)
    part = store.select(rows=[3, 200, 201, 400], layers=[0, 2])
    some = es.export(part, tmp_path / "some.zarr")
    tables = [each.table().drop("occurrence", "sentence", "document").to_dicts() for each in (some.select(), part)]
    assert tables[0] == tables[1]
    np.testing.assert_allclose(some.select().vectors(), part.vectors(), rtol=0, atol=tolerance)


def test_labels_and_fields_of_some_members(tmp_path: Path) -> None:
    """A member without labels or with other fields has none there; numbers of both types are floats."""
    given = [({"year": 1900}, {"pos": ("N",)}), ({"year": 1900.5}, {}), ({"by": "B"}, {"tag": ("x",)}), ({}, {})]
    paths = []
    for number, (fields, labels) in enumerate(given):
        paths.append(tmp_path / f"{number}.zarr")
        document = Document(fields=fields) if fields else None
        extract(paths[-1], [Sentence(words=("bank",), labels=labels, document=document)])
    table = es.open(paths).table(columns=["year", "by", "pos", "tag", "member", "document"])
    assert table["year"].to_list() == [1900.0, 1900.5, None, None]
    for order in (paths[:2], paths[1::-1]):
        years = es.open(order).table(columns=["year"])["year"]
        assert (years.dtype, set(years)) == (pl.Float64, {1900.0, 1900.5})
        assert es.open(order).select(where="year = 1900").rows.size == 1
    assert table["by"].to_list() == [None, None, "B", None]
    assert table["pos"].to_list() == ["N", None, None, None]
    assert table["tag"].to_list() == [None, None, "x", None]
    assert table["member"].to_list() == ["0", "1", "2", "3"]
    assert table["document"].to_list() == [0, 1, 2, 3]


def test_labels_added_to_a_collection_are_with_its_members(tmp_path: Path) -> None:
    paths = parts_of(tmp_path)
    store = es.open(paths)
    odd = ["xyz"[row % 3] for row in range(store.n_rows)]
    assert store.with_labels("odd", odd, save=True).table()["odd"].to_list() == odd
    assert es.open(paths).table()["odd"].to_list() == odd
    assert (
        es.open(paths[1]).table()["odd"].to_list()
        == odd[store.source.described[0].n_rows :][: store.source.described[1].n_rows]
    )
    with pytest.raises(InvalidValueError, match="has labels 'odd' already"):
        store.with_labels("odd", odd, save=True)
    es.open(paths[0]).with_labels("odd", save=True)
    assert es.open(paths).table()["odd"].to_list()[: store.source.described[0].n_rows + 1] == [
        *[None] * store.source.described[0].n_rows,
        odd[store.source.described[0].n_rows],
    ]
    assert "odd" not in es.open(paths).with_labels("odd", save=True).table().columns
    with pytest.raises(InvalidValueError, match="no added labels 'odd'"):
        store.with_labels("odd", save=True)


def test_members_of_one_name_have_that_of_their_folder(tmp_path: Path) -> None:
    paths = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        paths.append(tmp_path / name / "x.zarr")
        extract(paths[-1], SENTENCES[:3])
    assert es.open(paths).table()["member"].unique(maintain_order=True).to_list() == ["a/x", "b/x"]
    assert es.open(str(tmp_path / "*" / "x.zarr")).n_rows == es.open(paths).n_rows
    with pytest.raises(StoreNotFoundError, match="no store matches"):
        es.open(str(tmp_path / "c*.zarr"))


def test_members_that_only_their_endings_distinguish_have_them(tmp_path: Path) -> None:
    extract(tmp_path / "x.zarr", SENTENCES[:20])
    es.export(tmp_path / "x.zarr", tmp_path / "x.h5")
    store = es.open([tmp_path / "x.zarr", tmp_path / "x.h5"])
    assert store.table()["member"].unique(maintain_order=True).to_list() == ["x.zarr", "x.h5"]
    assert es.export(store, tmp_path / "both.zarr").n_rows == store.n_rows


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"layers": (0, 2)}, "layers is"),
        ({"dtype": "float32"}, "dtype is"),
        ({"unit": "subword"}, "extraction.unit is"),
        ({"pooling": "max"}, "extraction.pooling is"),
        ({"context_window": 1}, "extraction.context_window is"),
        ({"model": FakeEncoder(max_subwords=12)}, "model.max_subwords is"),
        ({"sites": ("residual", "query")}, "sites is"),
    ],
)
def test_stores_that_do_not_fit_are_refused(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    one = extract(tmp_path / "one.zarr", SENTENCES[:3]).path
    plan = plan_of(SENTENCES[3:6], **{"model": FakeEncoder(), **change})
    other = es.extract(plan, tmp_path / "other.zarr").path
    with pytest.raises(StoreMismatchError, match=f"one.zarr and .*other.zarr cannot be one collection: {named}"):
        es.open([one, other])
    with pytest.raises(StoreMismatchError, match=named.split(" ")[0]):
        es.extract(plan, one, append=True)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda folder: es.open([]), InvalidValueError, "needs one store"),
        (lambda folder: es.verify([[]]), InvalidValueError, "needs one store"),  # type: ignore[list-item]
        (lambda folder: es.open([folder / "m.zarr"] * 2), InvalidValueError, "given twice"),
        (lambda folder: es.open([folder / "link/m.zarr", folder / "m.zarr"]), InvalidValueError, "twice, once as "),
        (lambda folder: es.open([folder / "m.zarr", folder / "no.zarr"]), StoreNotFoundError, "no.zarr"),
        (lambda folder: es.open(folder / "no.json"), StoreNotFoundError, "no collection at"),
        (lambda folder: es.open(folder / "bad.json"), StoreFormatError, "not a JSON list"),
        (lambda folder: es.extraction.options_of(folder / "no.zarr"), StoreNotFoundError, "no.zarr"),
        (lambda folder: es.extraction.options_of(folder / "m.h5"), InvalidValueError, "cannot grow"),
    ],
)
def test_bad_arguments(tmp_path: Path, call: Any, error: type[Exception], match: str) -> None:
    extract(tmp_path / "m.zarr", SENTENCES[:1])
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(error, match=match):
        call(tmp_path)


LIST = opening.LIST


def part(path: Path, number: int) -> Path:
    return path / f"appended/{number:04}.zarr"


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a store with three appended parts, and of an older list of them and that of another store."""
    folder = tmp_path_factory.mktemp("grown")
    path = extract(folder / "s.zarr", SENTENCES[:9]).path
    extract(folder / "t.zarr", SENTENCES[30:34])
    for first in (10, 14, 18):
        extract(path, SENTENCES[first : first + 4], append=True)
        extract(folder / "t.zarr", SENTENCES[first : first + 4], append=True)
        if first == 10:
            shutil.copy(path / LIST, folder / "older")
    shutil.copy(folder / "t.zarr" / LIST, folder / "other")
    (folder / "all.json").write_text('["s.zarr"]')
    return folder


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: (path / LIST).unlink(), r"parts\.json, the list of what was appended, is missing: .*--repair"),
        (lambda path: (path / LIST).write_text("["), r"parts\.json, the list .*, was changed .*--repair"),
        (lambda path: (path / LIST).write_text('{"version": 1, "crc32c": 7}'), r"its checksum differs.*--repair"),
        (lambda path: shutil.copy(path.parent / "older", path / LIST), r"is older than appended/0003.*--repair"),
        (lambda path: shutil.rmtree(path / "appended"), r"0001\.zarr, which was appended, is missing or"),
        (lambda path: (part(path, 1) / "zarr.json").write_text("{}"), r"0001\.zarr, which was appended, is missing or"),
        (lambda path: shutil.rmtree(part(path, 3)), r"0003\.zarr, which was appended, is missing"),
        (lambda path: shutil.copy(path.parent / "other", path / LIST), r"s\.zarr is another store than the list"),
        (lambda path: shutil.copytree(part(path, 2), part(path, 1), dirs_exist_ok=True), r"1\.zarr is another store"),
    ],
)
@pytest.mark.quick(4)
def test_no_appended_rows_are_left_out_in_silence(
    tmp_path: Path, grown: Path, damage: Callable[[Path], object], said: str
) -> None:
    """However the store is opened: by its path, or in a list, a glob or a file of a collection."""
    shutil.copytree(grown, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "s.zarr"
    before, ways = all_files(path), (path, [path], str(tmp_path / "s*.zarr"), tmp_path / "all.json")
    assert {es.open(way).n_rows for way in ways} == {sum(len(each.words) for each in SENTENCES[:9] + SENTENCES[10:22])}
    damage(path)
    for way in ways:
        with pytest.raises(StoreDamagedError, match=said):
            es.open(way)
        assert not es.verify(way).ok
    if "--repair" in said:
        es.extract(plan_of(SENTENCES[:9], model=FakeEncoder()), path, repair=True)
        assert all_files(path) == before


@pytest.mark.parametrize("damage", [lambda node: node.unlink(), lambda node: node.write_text("{}")])
def test_the_group_of_appended_parts_is_verified_and_repaired(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    path, plan = tmp_path / "s.zarr", plan_of(SENTENCES[:9], model=FakeEncoder())
    es.extract(plan, path)
    extract(path, SENTENCES[9:20], append=True)
    before = all_files(path)
    damage(path / "appended/zarr.json")
    assert [fault.what for fault in es.verify(path).faults] == ["is missing or was changed"]
    es.extract(plan, path, repair=True)
    assert all_files(path) == before


def test_damage_of_a_member_is_not_read_as_rows_of_the_next(tmp_path: Path) -> None:
    """The index of a member is checked as that of one store is, also where it would still fit the collection."""
    path, name = tmp_path / "grown.zarr", "occurrences/sentence/c/0"
    extract(path, SENTENCES[:9])
    extract(path, SENTENCES[9:20], append=True)
    for member, change in ((path, 1), (path / "appended/0001.zarr", -1)):
        file = member / name
        before = np.fromfile(file, np.int64)
        (before + change).tofile(file)
        for read in (lambda store: store.select().table(), lambda store: store.select(words="bank").rows):
            with pytest.raises(StoreDamagedError, match=rf"the index of {member} is damaged: occurrences/sentence"):
                read(es.open(path))
        before.tofile(file)


def test_the_list_of_appended_parts_names_no_other_place(tmp_path: Path) -> None:
    """Whatever it holds, with a checksum that fits: the parts are those in the folder, as they were appended."""
    path = tmp_path / "grown.zarr"
    extract(path, SENTENCES[:5])
    extract(path, SENTENCES[5:9], append=True)
    secret = extract(tmp_path / "secret.zarr", SENTENCES[9:12])
    document = json.loads((path / LIST).read_text())
    jsonschema.validate(document, json.loads((resources.files("schemas") / "appended.schema.json").read_text()))
    for name in ("../secret.zarr", str(secret.path), "http://localhost:1/x.zarr", "s3://bucket/x.zarr"):
        for fingerprint in (name, secret.metadata.fingerprint):
            named = {"path": name, "fingerprint": fingerprint}
            fingerprints = [document["fingerprints"][0], fingerprint]
            fields = {**document, "members": [named], "paths": [".", name], "fingerprints": fingerprints}
            (path / LIST).write_text(json.dumps({**fields, "crc32c": document_crc32c(fields)}))
            assert [each for each, _ in opening.members_at(path)] == [path, path / "appended/0001.zarr"]
            with pytest.raises(StoreDamagedError, match=r"0001\.zarr is another store than the list"):
                es.open(path)


def test_a_file_lists_stores(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    paths = parts_of(tmp_path / "in")
    expected = es.open(paths).table()
    path = tmp_path / "collection.json"
    for listed in (["in/m0.zarr", "./in/m1.h5", "in/../in/m2.zarr", str(paths[3])], [str(each) for each in paths]):
        path.write_text(json.dumps(listed))
        assert es.open(path).table().equals(expected)
    for wrong in ([], {}, 3, "in/m0.zarr", [3], [None], ["in/\0.zarr"], ["\ud800.zarr"], ["s3://bucket/../x.zarr"]):
        path.write_text(json.dumps(wrong))
        with pytest.raises(StoreFormatError, match=r"collection\.json is not a JSON list of paths"):
            es.open(path)
    path.unlink()
    os.mkfifo(path)
    for read in (es.open, es.verify):
        with pytest.raises(StorageError, match=r"cannot read .*collection\.json: it is not a regular file, but a pipe"):
            read(path)


def test_paths_of_a_list_in_a_bucket_stay_in_it() -> None:
    folder = ObjectPath("s3://bucket/some")
    for name, url in {
        "x.zarr": "some/x.zarr",
        "./a/../x.zarr": "some/x.zarr",
        "../x.zarr": "x.zarr",
        "../../b/x.zarr": "b/x.zarr",
    }.items():
        assert opening._relative(name, folder) == ObjectPath(f"s3://bucket/{url}")
    for wrong in ("a?b.zarr", "a//b.zarr", "\0.zarr", "https://user:password@host/x.zarr"):
        with pytest.raises(InvalidValueError):
            opening._relative(wrong, folder)


def test_unfinished_members_have_rows_missing(tmp_path: Path) -> None:
    whole = make_store(tmp_path / "a.zarr", seed=1)
    with pytest.warns(UnfinishedStoreWarning):
        made = make_store(tmp_path / "b.zarr", seed=2, leave_out=(1,))
    n_before, paths = whole.store.n_rows, [whole.store.path, made.store.path]
    with pytest.warns(UnfinishedStoreWarning, match=r"rows \(in .*b\.zarr\) are not written"):
        store = es.open(paths)
    with pytest.warns(UnfinishedStoreWarning):
        collect(paths, tmp_path / "collection.json")
    assert not store.finished
    assert store.n_committed_rows == n_before + made.store.n_committed_rows
    missing = np.arange(n_before + 256, n_before + min(512, made.store.n_rows))
    assert store.source.is_written(np.arange(store.n_rows)).nonzero()[0].tolist() == [
        row for row in range(store.n_rows) if row not in missing
    ]
    with pytest.raises(MissingRowsError, match=r"b\.zarr"):
        store.vectors([0, int(missing[0])], layers=0)
    with pytest.raises(MissingRowsError, match=r"b\.zarr"):
        next(store.scan(0))
    with pytest.raises(MissingRowsError):
        es.export(store, tmp_path / "copy.zarr")
    expected = np.concatenate([whole.vectors[0], made.vectors[0]])
    expected[missing] = np.nan
    np.testing.assert_array_equal(np.concatenate([each.copy() for _, each in store.scan(0, missing="nan")]), expected)
    np.testing.assert_array_equal(store.vectors(np.arange(store.n_rows), layers=0, missing="nan"), expected)
    skipped = {row + i: v for row, each in store.scan(0, missing="skip", block_rows=100) for i, v in enumerate(each)}
    assert sorted(skipped) == [row for row in range(store.n_rows) if row not in missing]
    assert len(store.select().written()) == store.n_committed_rows
    with StoreWriter(made.store.path) as writer:
        writer.write(1, {"hidden_states": np.ascontiguousarray(made.vectors[:, 256:512])})
        writer.finish()
    for one in (store, es.open(tmp_path / "collection.json")):
        one.source.refresh()
        assert one.finished
        assert one.n_committed_rows == one.n_rows
        np.testing.assert_array_equal(one.select(layers=0).vectors()[missing], made.vectors[0, missing - n_before])


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.slow
def test_another_member_is_an_error(tmp_path: Path, is_read: bool) -> None:
    paths = parts_of(tmp_path)
    for change in ("replaced", "removed"):
        store = collect(paths, tmp_path / "collection.json")
        if is_read:
            store.vectors([0, store.n_rows - 1], layers=0)
        kept = shutil.move(paths[-1], tmp_path / "kept.zarr")
        if change == "replaced":
            extract(paths[-1], SENTENCES[:50])
        reads: list[Callable[[es.Store], object]] = [
            lambda store: store.vectors([store.n_rows - 1], layers=0),
            lambda store: list(store.scan(0)),
            lambda store: store.table(),
        ]
        for read in reads:
            with pytest.raises((StoreDamagedError, StoreNotFoundError), match=paths[-1].name):
                read(store)
        shutil.rmtree(paths[-1], ignore_errors=True)
        shutil.move(kept, paths[-1])


def test_other_sites_of_a_collection(tmp_path: Path) -> None:
    options = {"sites": ("residual", "query"), "layers": (1, 2), "dtype": "float32"}
    whole = extract(tmp_path / "whole.zarr", SENTENCES[:30], **options)
    for name, span in {"a": slice(12), "b": slice(12, 30)}.items():
        extract(tmp_path / f"{name}.zarr", SENTENCES[span], **options)
    store = es.open([tmp_path / "a.zarr", tmp_path / "b.zarr"])
    query, expected = store.site("query"), whole.site("query").select().vectors()
    np.testing.assert_array_equal(query.select().vectors(), expected)
    np.testing.assert_array_equal(
        es.open([*(each.path for each in store.source.described)], site="query").select().vectors(), expected
    )
    scanned = [block.vectors for block in query.source.stored_blocks(1, 0, query.n_rows, block_rows=50)]
    np.testing.assert_array_equal(np.concatenate(scanned), expected[0])
    np.testing.assert_array_equal(es.export(store, tmp_path / "copy.zarr").site("query").select().vectors(), expected)


@pytest.mark.slow
def test_few_files_are_open_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns beyond the limit are in files, members beyond theirs are closed, and a lookup reads few columns."""
    store = collect(parts_of(tmp_path), tmp_path / "collection.json")
    expected = store.table(), store.select().vectors()
    read: list[str] = []
    column = merged.Members.column
    monkeypatch.setattr(
        merged.Members, "column", lambda self, member, name: read.append(name) or column(self, member, name)
    )
    monkeypatch.setattr("embstore.store.storage.files.IN_MEMORY_NBYTES", 0)
    again = es.open(tmp_path / "collection.json")
    again.source.opened._most = 2
    assert not again.source.opened.opened()
    assert not read
    again.vectors([0], layers=0)
    assert len(again.source.opened.opened()) == 1
    assert not read
    assert again.select(words="bank").rows.tolist() == expected[0].filter(word="bank")["occurrence"].to_list()
    assert {name.split("/")[0] for name in read} == {"types"}
    assert again.table().equals(expected[0])
    assert isinstance(again.index.type.base, np.memmap)
    np.testing.assert_array_equal(again.select().vectors(), expected[1])
    assert len(again.source.opened.opened()) == 2


def test_members_are_opened_when_their_rows_are_read(tmp_path: Path) -> None:
    """To open a glob reads five files of each member: the root, two arrays, the commits, the list of its parts."""
    n_members = 12
    first = extract(tmp_path / "0000.zarr", SENTENCES[:2]).path
    for number in range(1, n_members):
        shutil.copytree(first, tmp_path / f"{number:04}.zarr")
    opened: list[str] = []
    active = [True]
    sys.addaudithook(lambda event, args: opened.append(str(args[0])) if active and event == "open" else None)
    store = es.open(str(tmp_path / "*.zarr"))
    assert sum(str(tmp_path) in each for each in opened) == 5 * n_members
    opened.clear()
    assert store.select(rows=[0, store.n_rows - 1]).vectors().shape == (3, 2, 8)
    assert {number for number in range(n_members) if any(f"{number:04}.zarr" in each for each in opened)} == {
        0,
        n_members - 1,
    }
    active.clear()
    assert len(store.select(words=SENTENCES[0].words[0])) % n_members == 0


@pytest.mark.slow
def test_members_in_a_bucket(bucket: Bucket, tmp_path: Path) -> None:
    local = [extract(tmp_path / f"{number}.zarr", SENTENCES[10 * number :][:10]).path for number in range(3)]
    urls = [bucket.upload(path, f"in/{path.name}") for path in local]
    expected = es.open(local)
    for paths in (urls, [urls[0], local[1], urls[2]]):
        store = es.open(paths)
        assert store.source.is_remote
        assert store.table().equals(expected.table())
        np.testing.assert_array_equal(store.select().vectors(), expected.select().vectors())
        np.testing.assert_array_equal(
            np.concatenate([block.copy() for _, block in store.scan(1, block_rows=9)]), expected.select().vectors()[1]
        )
    bucket.put("collection.json", json.dumps([f"in/{path.name}" for path in local]).encode())
    assert es.open(f"{bucket.url}/collection.json").table().equals(expected.table())
    extract(local[0], SENTENCES[50:60], append=True)
    bucket.upload(local[0], "in/0.zarr")
    np.testing.assert_array_equal(es.open(urls[0]).select().vectors(), es.open(local[0]).select().vectors())


def test_an_append_that_was_begun_is_warned_of_and_resumed_by_its_corpus_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.zarr"
    extract(path, SENTENCES[:20])
    with monkeypatch.context() as patch:
        patch.setattr(StoreWriter, "write", Mock(side_effect=OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            extract(path, SENTENCES[20:40], append=True)
    with pytest.warns(UnfinishedStoreWarning, match=r"0001\.zarr is not finished.*--append"):
        assert es.open(path).n_rows == sum(len(sentence.words) for sentence in SENTENCES[:20])
    (path / LIST).unlink()
    with pytest.warns(UnfinishedStoreWarning, match=r"0001\.zarr is not finished"):
        es.extract(plan_of(SENTENCES[:20], model=FakeEncoder()), path, repair=True)
    assert len(opening.members_at(path)) == 1
    with pytest.raises(StoreMismatchError, match=r"0001\.zarr was begun with another corpus"):
        extract(path, SENTENCES[60:70], append=True)
    with StoreLock(path), pytest.raises(StoreBusyError):
        extract(path, SENTENCES[20:40], append=True)


def test_nothing_is_appended_to_a_store_that_is_not_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.zarr"
    with monkeypatch.context() as patch:
        patch.setattr(StoreWriter, "write", Mock(side_effect=OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            extract(path, SENTENCES[:20])
    for call in (lambda: extract(path, SENTENCES[20:40], append=True), lambda: es.extraction.options_of(path)):
        with pytest.raises(MissingRowsError, match=r"s\.zarr is not finished: complete it by the command"):
            call()
    assert not (path / "appended").exists()


@pytest.mark.parametrize("others", [SENTENCES[40:60], SENTENCES[20:40]])
def test_what_another_process_appends_before_the_lock_is_taken_is_seen(
    tmp_path: Path, others: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another corpus, which stays the first part, and of the same one, which is not appended twice."""
    path = tmp_path / "s.zarr"
    extract(path, SENTENCES[:20])

    def late(place: Path) -> StoreLock:
        monkeypatch.setattr(append_module, "StoreLock", StoreLock)
        extract(path, others, append=True)
        return StoreLock(place)

    monkeypatch.setattr(append_module, "StoreLock", late)
    if others == SENTENCES[20:40]:
        with pytest.warns(AppendedTwiceWarning):
            extract(path, SENTENCES[20:40], append=True)
    else:
        extract(path, SENTENCES[20:40], append=True)
    parts = [SENTENCES[:20], others, *([SENTENCES[20:40]] if others != SENTENCES[20:40] else [])]
    words = [word for part in parts for sentence in part for word in sentence.words]
    assert es.open(path).table()["word"].cast(str).to_list() == words


def test_a_corpus_is_appended_once(tmp_path: Path) -> None:
    path = tmp_path / "store.zarr"
    extract(path, SENTENCES[:20])
    extract(path, SENTENCES[20:40], append=True)
    before = all_files(path)
    for again in (SENTENCES[:20], SENTENCES[20:40]):
        with pytest.warns(AppendedTwiceWarning, match="already, nothing is appended"):
            extract(path, again, append=True)
    with pytest.raises(InvalidValueError, match=r"0001\.zarr was appended to .*store\.zarr: append to that store"):
        extract(part(path, 1), SENTENCES[40:60], append=True)
    assert all_files(path) == before


def test_a_damaged_part_is_named_and_repaired(tmp_path: Path) -> None:
    path = tmp_path / "store.zarr"
    extract(path, SENTENCES[:20])
    extract(path, SENTENCES[20:40], append=True)
    before, shard = all_files(path), path / "appended/0001.zarr/hidden_states/c/0/0/0"
    shard.write_bytes(bytes([shard.read_bytes()[0] ^ 1]) + shard.read_bytes()[1:])
    (fault,) = es.verify(path).faults
    assert "0001.zarr" in fault.part
    assert fault.partition == 1
    plan = plan_of(SENTENCES[20:40], model=FakeEncoder())
    es.extract(plan, path, append=True, repair=True)
    assert all_files(path) == before
    assert es.verify(path).ok
    shutil.rmtree(part(path, 1))
    es.extract(plan, part(path, 1), repair=True)
    assert all_files(path) == before
    shard.with_name("0").unlink()
    es.extract(plan_of(SENTENCES[:20], model=FakeEncoder()), path, repair=True)
    assert (path / "appended/0001.zarr").is_dir(), "the repair of a store leaves its parts alone"


def test_appends_take_the_options_of_the_store(tmp_path: Path) -> None:
    keep = es.corpus.Keep(words=frozenset({"bank", "river"}), min_contexts=2)
    options = {"keep": keep, "layers": (0, 2), "dtype": "int8", "pooling": "max", "max_length": 20, "seed": 3}
    path = tmp_path / "store.zarr"
    extract(path, SENTENCES[:20], **options)
    taken = es.extraction.options_of(path)
    for name, value in options.items():
        assert getattr(taken, name) == value, name
    es.extract(plan_of(SENTENCES[20:40], model=FakeEncoder(), options=taken), path, append=True)
    with pytest.raises(StoreMismatchError, match=r"extraction\.keep\.min_contexts 2, this plan has 1"):
        extract(path, SENTENCES[40:60], append=True, **{**options, "keep": es.corpus.Keep(words=keep.words)})


@pytest.mark.parametrize("context", ["document", "sentence"])
@pytest.mark.quick(1)
def test_contexts_are_those_of_the_one_store(context: str, tmp_path: Path) -> None:
    """Of documents in blocks, and of sentences of which only one member has one that is too long for the model."""
    sentences = [*SENTENCES[:60], Sentence(tuple(WORDS * 6), document=Document(fields={"year": 1}))]
    parts = [sentences[:40], sentences[40:]]
    paths = [tmp_path / "a.zarr", tmp_path / "b.zarr"]
    for path, part in zip(paths, parts, strict=True):
        extract(path, part, context=context)
    whole = extract(tmp_path / "whole.zarr", sentences, context=context)
    joined = es.open(paths)
    assert (es.open(paths[0]).index.contexts is None) == (context == "sentence")
    for name in ("start", "stop", "indptr"):
        expected = getattr(whole.index.contexts, name)
        np.testing.assert_array_equal(getattr(joined.index.contexts, name), expected, err_msg=name)
    copy = es.store.export(joined, tmp_path / "copy.zarr")
    np.testing.assert_array_equal(copy.index.contexts.start, whole.index.contexts.start)
    assert es.verify(copy.path).ok
