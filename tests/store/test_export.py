"""Exports against numpy: the same vectors, the same words, on both backends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embstore.errors import (
    InvalidValueError,
    StorageError,
)
from embstore.store import (
    Store,
    StoreWriter,
    bfloat16_bits,
    export,
    float32_of_bfloat16,
    open_store,
    verify,
)
from embstore.store.store import Store as OpenStore
from tests.store.exported import DTYPES, SUFFIXES, files, stored_as, values
from tests.store_making import Made, make_store


@pytest.fixture(scope="module", params=SUFFIXES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_store(tmp_path_factory.mktemp("export") / f"s{request.param}", sentences=170)


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let partitions of a copy have 256 rows, so that a small one has several."""
    monkeypatch.setattr("embstore.store.layout.SHARD_NBYTES", 1)


def table(store: Store) -> list[dict[str, Any]]:
    return [dict(row) for row in store.select().table().to_dicts()]


def expected_table(made: Made, rows: list[int]) -> list[dict[str, Any]]:
    """What `contexts` must say of the copied rows, worked out from the Python table."""
    anew: dict[object, int] = {}
    found = []
    for place, row in enumerate(rows):
        old = made.table[row]
        sentence = anew.setdefault(old["sentence"], len(anew))
        found.append({**old, "occurrence": place, "sentence": sentence})
    return found


@pytest.mark.parametrize("dtype", DTYPES)
def test_whole_there_and_back_is_the_same_store(made: Made, tmp_path: Path, dtype: str) -> None:
    source = stored_as(made, tmp_path / f"source{made.store.path.suffix}", dtype)
    there = export(source, tmp_path / "there.h5")
    back = export(there.path, tmp_path / "back.zarr")
    again = export(back, tmp_path / f"again{source.path.suffix}")
    for store in (there, back, again):
        np.testing.assert_array_equal(values(store), values(source))
        assert table(store) == table(source)
        assert store.metadata == source.metadata
        assert store.finished
        assert verify(store.path).ok
    assert files(again.path) == files(source.path)


def test_a_store_without_embstore_reads_the_same(made: Made, tmp_path: Path) -> None:
    out = export(made.store, tmp_path / "out.zarr", layers=[2])
    np.testing.assert_array_equal(zarr.open_group(out.path, mode="r")["hidden_states"][...], made.vectors[1:2])


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("layers", "stored"),
    [
        (None, (0, 2, 5)),
        ("all", (0, 2, 5)),
        ("last", (5,)),
        ("0,5", (0, 5)),
        (" 5, 0 ", (0, 5)),
        ("2-2", (2,)),
        (2, (2,)),
        ([5, 2, 5], (2, 5)),
        (np.array([0]), (0,)),
    ],
)
def test_layers(made: Made, tmp_path: Path, layers: Any, stored: tuple[int, ...], suffix: str) -> None:
    out = export(made.store, tmp_path / f"out{suffix}", layers=layers)
    assert out.layers == stored
    np.testing.assert_array_equal(values(out), made.vectors[[(0, 2, 5).index(layer) for layer in stored]])
    assert table(out) == table(made.store)


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.usefixtures("small_shards")
def test_some_rows_layers_and_words(made: Made, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    count = len(made.table)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32), label="seed"))
    rows = np.flatnonzero(rng.random(count) < data.draw(st.sampled_from([0.01, 0.3, 0.97, 1.0]), label="share"))
    words = data.draw(st.one_of(st.none(), st.sets(st.sampled_from(["bank", "new york", "évident"]), min_size=1)))
    layers = data.draw(st.sets(st.sampled_from([0, 2, 5]), min_size=1))
    suffix = data.draw(st.sampled_from(SUFFIXES))
    wanted = [int(row) for row in rows if words is None or made.table[row]["word"] in words]
    out = tmp_path_factory.mktemp("some") / f"out{suffix}"
    if not wanted:
        with pytest.raises(InvalidValueError, match="no row was chosen"):
            export(made.store, out, rows=rows, words=words, layers=layers)
        assert not out.exists()
        return
    copy = export(made.store, out, rows=rows, words=words, layers=layers)
    places = [(0, 2, 5).index(layer) for layer in sorted(layers)]
    np.testing.assert_array_equal(values(copy), made.vectors[places][:, wanted])
    assert table(copy) == expected_table(made, wanted)
    forms = {str(made.table[row]["word"]) for row in wanted}
    assert list(copy.index.words) == [word for word in made.store.index.words if word in forms]
    for number, word in enumerate(copy.index.words):
        expected = [place for place, row in enumerate(wanted) if made.table[row]["word"] == word]
        assert copy.occurrences_of(number).tolist() == expected
    assert verify(out).faults == ()


@pytest.mark.parametrize("share", [0.02, 0.5])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("small_shards")
def test_stored_numbers_are_carried_over_as_they_are(made: Made, tmp_path: Path, dtype: str, share: float) -> None:
    source = stored_as(made, tmp_path / "source.zarr", dtype)
    rows = np.flatnonzero(np.random.default_rng(3).random(source.n_rows) < share)
    copy = export(source, tmp_path / f"out{made.store.path.suffix}", rows=rows, layers=[0, 5])
    assert copy.dtype == dtype
    np.testing.assert_array_equal(values(copy), source.gather_layers(rows, [0, 5]))


@pytest.mark.parametrize("wanted", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("small_shards")
def test_other_dtypes(made: Made, tmp_path: Path, dtype: str, wanted: str) -> None:
    source = stored_as(made, tmp_path / f"source{made.store.path.suffix}", dtype)
    copy = export(source, tmp_path / "out.zarr", dtype=wanted)
    before, after = values(source).astype(np.float32), values(copy)
    assert copy.dtype == wanted
    assert copy.layout.n_partitions == -(-copy.n_rows // 256) > 1
    if wanted == "int8" and dtype != "int8":
        scale = np.abs(before - copy.center[:, None]).max(2, keepdims=True) / 127
        assert (np.abs(after - before) <= scale * 0.5001 + 1e-7).all()
        np.testing.assert_allclose(copy.center, before.mean(1), atol=1e-6)
    elif wanted == "bfloat16":
        np.testing.assert_array_equal(after, float32_of_bfloat16(bfloat16_bits(before)))
    elif wanted == "int8":
        np.testing.assert_array_equal(after, before)
    else:
        np.testing.assert_array_equal(after, before.astype(wanted))


def test_layers_keep_their_own_centre(made: Made, tmp_path: Path) -> None:
    source = stored_as(made, tmp_path / "source.zarr", "int8")
    for dtype in ("int8", "float32"):
        copy = export(source, tmp_path / f"{dtype}.zarr", layers=[5], dtype=dtype)
        np.testing.assert_array_equal(values(copy), values(source)[2:])


def test_the_centre_of_a_large_store_is_that_of_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embstore.store.convert.filling.CENTER_ROWS", 50)
    made = make_store(tmp_path / "s.zarr")
    copy = export(made.store, tmp_path / "out.zarr", dtype="int8", rows=np.arange(100, 200))
    rows = 100 + np.unique(np.linspace(0, 99, 50).astype(int))
    assert copy.center is not None
    np.testing.assert_allclose(copy.center, made.vectors[:, rows].mean(1, dtype=np.float64), rtol=1e-6)


def test_what_was_done_is_recorded(made: Made, tmp_path: Path) -> None:
    first = export(made.store, tmp_path / "first.zarr", words="bank")
    again = export(first, tmp_path / "again.h5", layers="0", dtype="float16")
    count = sum(row["word"] == "bank" for row in made.table)
    of = again.metadata.extraction["export"]
    assert of["of"] == {"n_rows": count, "layers": [0, 2, 5], "dtype": "float32"}
    assert of["rows_sha256"] is None
    assert of["earlier"] == first.metadata.extraction["export"]
    assert of["earlier"]["of"]["n_rows"] == len(made.table)
    assert len(of["earlier"]["rows_sha256"]) == 64
    assert [(item.reason, item.count) for item in again.metadata.dropped] == [
        ("left out of an export", len(made.table) - count)
    ]
    assert again.metadata.model == made.store.metadata.model
    fewer = export(first, tmp_path / "fewer.zarr", rows=[0, 1, 4])
    assert [item.count for item in fewer.metadata.dropped] == [len(made.table) - 3]
    other = export(made.store, tmp_path / "other.zarr", words="river")
    assert other.metadata.recipe != first.metadata.recipe


def test_all_words_named_is_the_whole_store(made: Made, tmp_path: Path) -> None:
    out = export(made.store, tmp_path / f"out{made.store.path.suffix}", words=list(made.store.index.words))
    assert files(out.path) == files(made.store.path)


def test_progress_counts_rows(made: Made, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    export(made.store, tmp_path / "out.zarr", progress=lambda done, total: told.append((done, total)))
    count = len(made.table)
    assert told == [*((start, count) for start in range(0, count, 256)), (count, count)]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("error", [StorageError("the disk is full"), KeyboardInterrupt()], ids=["disk", "interrupt"])
@pytest.mark.usefixtures("small_shards")
def test_an_interrupted_export_goes_on(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, error: BaseException
) -> None:
    dtype = "int8" if suffix == ".zarr" else "float16"
    options: dict[str, Any] = {"layers": "2", "dtype": dtype}
    uninterrupted = export(made.store, tmp_path / f"whole{suffix}", **options)
    written: list[int] = []
    write = StoreWriter.write

    def failing(self: StoreWriter, partition: int, arrays: Any) -> None:
        if len(written) == 1:
            raise error
        write(self, partition, arrays)
        written.append(partition)

    out = tmp_path / f"out{suffix}"
    monkeypatch.setattr(StoreWriter, "write", failing)
    with pytest.raises(type(error)):
        export(made.store, out, **options)
    with pytest.raises(InvalidValueError, match="exists already"):
        export(made.store, out, layers="5", dtype=dtype)
    with pytest.raises(InvalidValueError, match="exists already"):
        export(made.store, out)
    written.clear()
    monkeypatch.setattr(StoreWriter, "write", lambda *arguments: (write(*arguments), written.append(arguments[1])))
    resumed = export(made.store, out, **options)
    assert written == [1, 2]
    assert files(resumed.path) == files(uninterrupted.path)
    with pytest.raises(InvalidValueError, match="exists already"):
        export(made.store, out, **options)
    assert files(out) == files(uninterrupted.path)


def test_a_store_that_another_tool_wrote_anew_can_be_exported(tmp_path: Path) -> None:
    made = make_store(tmp_path / "s.zarr")
    path = made.store.path / "hidden_states"
    array = zarr.open_array(path)
    kept, attributes = array[...], dict(array.attrs)
    group = zarr.open_group(made.store.path)
    del group["hidden_states"]
    anew = group.create_array(
        "hidden_states",
        shape=kept.shape,
        dtype=kept.dtype,
        chunks=(1, 64, 6),
        shards=(3, 256, 6),
        attributes=attributes,
    )
    anew[...] = kept
    copy = export(made.store.path, tmp_path / "out.zarr")
    np.testing.assert_array_equal(values(copy), made.vectors)
    assert verify(copy.path).ok


def test_memory_is_bounded_by_pieces(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No read is of more rows than a piece has, however many are copied."""
    monkeypatch.setattr("embstore.store.convert.export.BATCH_NBYTES", 1)
    asked: list[int] = []
    from embstore.store.reading.scan import SequentialReader

    read = SequentialReader.read_rows
    monkeypatch.setattr(
        SequentialReader, "read_rows", lambda self, rows, out: (asked.append(len(rows)), read(self, rows, out))
    )
    copy = export(made.store, tmp_path / "out.zarr")
    np.testing.assert_array_equal(values(copy), made.vectors)
    assert max(asked) <= 256


@given(st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_index_subset_against_plain_python(made: Made, data: st.DataObject) -> None:
    rows = sorted(data.draw(st.sets(st.integers(0, len(made.table) - 1), min_size=1, max_size=30)))
    index = made.store.index.subset(np.array(rows))
    expected = expected_table(made, rows)
    assert [index.words[number] for number in index.type] == [row["word"] for row in expected]
    assert index.sentence.tolist() == [row["sentence"] for row in expected]
    assert [index.texts[int(number)] for number in index.sentence] == [row["text"] for row in expected]
    assert [int(index.source[number]) for number in index.sentence] == [row["source"] for row in expected]
    assert index.position.tolist() == [row["position"] for row in expected]
    assert index.subwords.tolist() == [row["subwords"] for row in expected]
    sentences = [row["sentence"] for row in expected]
    assert np.diff(index.indptr).tolist() == [sentences.count(number) for number in range(len(index.texts))]
    assert sorted(set(index.type.tolist())) == list(range(len(index.words)))


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_relative_paths(in_folder: Path) -> None:
    made = make_store(Path("s.zarr"))
    assert isinstance(export("s.zarr", "out.h5"), OpenStore)
    np.testing.assert_array_equal(values(open_store("out.h5")), made.vectors)


def test_metadata_is_valid_against_the_schema(made: Made, tmp_path: Path) -> None:
    from embstore.store.check.verify import schema_faults

    out = export(made.store, tmp_path / "out.zarr", words="bank", dtype="int8")
    assert schema_faults(json.loads((out.path / "zarr.json").read_text())["attributes"]["embstore"]) == []
