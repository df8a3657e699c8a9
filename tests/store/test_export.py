"""Exports compared with numpy, on both backends; refused exports say why in one line and leave nothing behind."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import embstore as es
from embstore.errors import InvalidValueError, MissingRowsError, NonFiniteError, StorageError, StoreDamagedError
from embstore.store import Store, StoreWriter, create_store, export, verify
from embstore.store.check.verify import schema_faults
from embstore.store.vectors import bfloat16_bits, float32_of_bfloat16
from tests.resilience.conftest import campaign
from tests.store.example import DTYPES, SUFFIXES, all_files, flip, stored_as, table, values
from tests.store_making import Made, make_store


@pytest.fixture(scope="module", params=SUFFIXES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_store(tmp_path_factory.mktemp("export") / f"s{request.param}", sentences=170)


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let partitions of a copy have 256 rows, so that a small one has several."""
    monkeypatch.setattr("embstore.store.layout.SHARD_NBYTES", 1)


def expected_table(made: Made, rows: list[int]) -> list[dict[str, Any]]:
    """Return the table of a copy of some rows, computed from that of the source."""
    sentences: dict[object, int] = {}
    documents: dict[object, int] = {}
    return [
        {
            **made.table[row],
            "occurrence": number,
            "sentence": sentences.setdefault(made.table[row]["sentence"], len(sentences)),
            "document": documents.setdefault(made.table[row]["document"], len(documents)),
        }
        for number, row in enumerate(rows)
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.quick(1)
def test_whole_there_and_back_is_the_same_store(made: Made, tmp_path: Path, dtype: str) -> None:
    source = stored_as(made, tmp_path / f"source{made.store.path.suffix}", dtype)
    there = export(source, tmp_path / "there.h5")
    back = export(there.path, tmp_path / "back.zarr")
    again = export(back, tmp_path / f"again{source.path.suffix}")
    for store in (there, back, again):
        np.testing.assert_array_equal(values(store), values(source))
        assert (table(store), store.metadata) == (table(source), source.metadata)
        assert store.finished
        assert verify(store.path).ok
    assert all_files(again.path) == all_files(source.path)


@given(data=st.data())
@settings(max_examples=campaign(60, 8))
@pytest.mark.quick(1)
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
        with pytest.raises(InvalidValueError, match="no row is selected"):
            export(made.store.select(rows=rows, words=words, layers=layers), out)
        assert not out.exists()
        return
    copy = export(made.store.select(rows=rows, words=words, layers=layers), out)
    places = [(0, 2, 5).index(layer) for layer in sorted(layers)]
    np.testing.assert_array_equal(values(copy), made.vectors[places][:, wanted])
    assert table(copy) == expected_table(made, wanted)
    forms = {str(made.table[row]["word"]) for row in wanted}
    assert list(copy.index.words) == [word for word in made.store.index.words if word in forms]
    for number, word in enumerate(copy.index.words):
        expected = [place for place, row in enumerate(wanted) if made.table[row]["word"] == word]
        assert copy.index.rows_of(number).tolist() == expected
    assert verify(out).faults == ()


@pytest.mark.parametrize("share", [0.02, 0.5])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("small_shards")
@pytest.mark.quick(1)
def test_stored_numbers_are_copied_unchanged(made: Made, tmp_path: Path, dtype: str, share: float) -> None:
    source = stored_as(made, tmp_path / "source.zarr", dtype)
    rows = np.flatnonzero(np.random.default_rng(3).random(source.n_rows) < share)
    copy = export(source.select(rows=rows, layers=[5, 0]), tmp_path / f"out{made.store.path.suffix}")
    assert copy.dtype == dtype
    np.testing.assert_array_equal(values(copy), source.vectors(rows, layers=[0, 5]))


@pytest.mark.parametrize("wanted", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("small_shards")
@pytest.mark.quick(2)
def test_other_dtypes(made: Made, tmp_path: Path, dtype: str, wanted: str) -> None:
    source = stored_as(made, tmp_path / f"source{made.store.path.suffix}", dtype)
    copy = export(source, tmp_path / "out.zarr", dtype=wanted)
    before, after = values(source).astype(np.float32), values(copy)
    assert copy.dtype == wanted
    assert copy.source.layout.n_partitions == -(-copy.n_rows // 256) > 1
    if wanted == "int8" and dtype != "int8":
        scale = np.abs(before - copy.source.center[:, None]).max(2, keepdims=True) / 127
        assert (np.abs(after - before) <= scale * 0.5001 + 1e-7).all()
        np.testing.assert_allclose(copy.source.center, before.mean(1), atol=1e-6)
    elif wanted == "bfloat16":
        np.testing.assert_array_equal(after, float32_of_bfloat16(bfloat16_bits(before)))
    elif wanted == "int8":
        np.testing.assert_array_equal(after, before)
    else:
        np.testing.assert_array_equal(after, before.astype(wanted))


def test_layers_keep_their_own_center(made: Made, tmp_path: Path) -> None:
    source = stored_as(made, tmp_path / "source.zarr", "int8")
    for dtype in ("int8", "float32"):
        copy = export(source.select(layers=-1), tmp_path / f"{dtype}.zarr", dtype=dtype)
        np.testing.assert_array_equal(values(copy), values(source)[2:])


def test_the_center_of_a_large_store_is_computed_from_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embstore.store.convert.filling.CENTER_ROWS", 50)
    made = make_store(tmp_path / "s.zarr")
    copy = export(made.store.select(rows=slice(100, 200)), tmp_path / "out.zarr", dtype="int8")
    rows = 100 + np.unique(np.linspace(0, 99, 50).astype(int))
    assert copy.source.center is not None
    np.testing.assert_allclose(copy.source.center, made.vectors[:, rows].mean(1, dtype=np.float64), rtol=1e-6)


def test_an_export_is_recorded_in_the_metadata(made: Made, tmp_path: Path) -> None:
    first = export(made.store.select(words="bank"), tmp_path / "first.zarr")
    again = export(first.select(layers=0), tmp_path / "again.h5", dtype="float16")
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
    fewer = export(first.select(rows=[0, 1, 4]), tmp_path / "fewer.zarr")
    assert [item.count for item in fewer.metadata.dropped] == [len(made.table) - 3]
    other = export(made.store.select(words="river"), tmp_path / "other.zarr")
    assert other.metadata.provenance != first.metadata.provenance


def test_folders_of_models_and_corpora_are_not_copied(tmp_path: Path) -> None:
    """A store of an earlier version may name a user's folders; what was made by hand is the same store."""
    made = make_store(tmp_path / "s.zarr")
    names = {"model": "bag:/home/jane doe/wiki.vec", "corpus": "/home/jane doe/diary.txt"}
    metadata = made.store.metadata
    for part, name in names.items():
        metadata = replace(metadata, **{part: {**getattr(metadata, part), "name": name}})
    create_store(tmp_path / "named.zarr", metadata=metadata, index=made.store.index)
    with StoreWriter(tmp_path / "named.zarr") as writer:
        for partition in writer.missing():
            start, stop = metadata.layout.span(partition)
            writer.write(partition, {"hidden_states": np.ascontiguousarray(made.vectors[:, start:stop])})
    copy = export(tmp_path / "named.zarr", tmp_path / "out.zarr")
    assert (copy.metadata.model["name"], copy.metadata.corpus["name"]) == ("bag:wiki.vec", "diary.txt")
    assert copy.metadata.fingerprint == metadata.fingerprint
    assert not any(b"jane" in data for data in all_files(copy.path).values())
    hub = export(made.store, tmp_path / "hub.zarr")
    assert hub.metadata == made.store.metadata


def test_all_words_named_is_the_whole_store(made: Made, tmp_path: Path) -> None:
    out = export(made.store.select(words=list(made.store.index.words)), tmp_path / f"out{made.store.path.suffix}")
    assert all_files(out.path) == all_files(made.store.path)


def test_progress_counts_rows(made: Made, tmp_path: Path) -> None:
    calls: list[tuple[int, int | None]] = []
    with es.config(progress=lambda *call: calls.append(call)):
        export(made.store, tmp_path / "out.zarr")
    count = len(made.table)
    assert calls == [*((start, count) for start in range(0, count, 256)), (count, count)]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("error", [StorageError("the disk is full"), KeyboardInterrupt()], ids=["disk", "interrupt"])
@pytest.mark.usefixtures("small_shards")
@pytest.mark.quick(1)
def test_an_interrupted_export_is_resumed(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, error: BaseException
) -> None:
    dtype = "int8" if suffix == ".zarr" else "float16"
    part = made.store.select(layers=2)
    uninterrupted = export(part, tmp_path / f"whole{suffix}", dtype=dtype)
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
        export(part, out, dtype=dtype)
    with pytest.raises(InvalidValueError, match="exists already"):
        export(made.store.select(layers=5), out, dtype=dtype)
    with pytest.raises(InvalidValueError, match="exists already"):
        export(made.store, out)
    written.clear()
    monkeypatch.setattr(StoreWriter, "write", lambda *arguments: (write(*arguments), written.append(arguments[1])))
    resumed = export(part, out, dtype=dtype)
    assert (written, all_files(resumed.path)) == ([1, 2], all_files(uninterrupted.path))
    with pytest.raises(InvalidValueError, match="exists already"):
        export(part, out, dtype=dtype)
    assert all_files(out) == all_files(uninterrupted.path)


def test_memory_is_bounded(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No read is larger than a batch, however many rows are copied."""
    monkeypatch.setattr("embstore.store.convert.export.BATCH_NBYTES", 1)
    sizes: list[int] = []
    read = Store.vectors
    monkeypatch.setattr(
        Store, "vectors", lambda self, rows, **options: (sizes.append(len(rows)), read(self, rows, **options))[1]
    )
    copy = export(made.store, tmp_path / "out.zarr")
    assert max(sizes) <= 256
    np.testing.assert_array_equal(values(copy), made.vectors)


def test_metadata_is_valid_against_the_schema(made: Made, tmp_path: Path) -> None:
    out = export(made.store.select(words="bank"), tmp_path / "out.zarr", dtype="int8")
    assert schema_faults(json.loads((out.path / "zarr.json").read_text())["attributes"]["embstore"]) == []


@pytest.mark.usefixtures("small_shards")
def test_another_unfinished_store_is_not_resumed(tmp_path: Path) -> None:
    one = make_store(tmp_path / "one.zarr", seed=1)
    other = make_store(tmp_path / "other.zarr", seed=1)
    unlike = tmp_path / "unlike.zarr"
    index = other.store.index.changed(subwords=np.roll(other.store.index.subwords, 1))
    create_store(unlike, metadata=other.store.metadata, index=index)
    before = all_files(unlike)
    with pytest.raises(InvalidValueError, match="exists already"):
        export(one.store, unlike)
    assert all_files(unlike) == before


def _flip(path: Path, find: bytes, offset: int = 0) -> None:
    flip(path, path.read_bytes().index(find) + offset)


@pytest.mark.parametrize("what", ["vectors", "index"])
@pytest.mark.quick(2)
def test_damage_is_not_copied(made: Made, tmp_path: Path, what: str) -> None:
    source = export(made.store, tmp_path / f"source{made.store.path.suffix}")
    folder = source.path.is_dir()
    if what == "vectors":
        file = source.path / "hidden_states/c/0/1/0" if folder else source.path
        _flip(file, np.ascontiguousarray(made.vectors[1, 300]).tobytes())
    else:
        file = source.path / "sentences/text_bytes/c/0" if folder else source.path
        _flip(file, "évident".encode(), 2)
    out = tmp_path / "out.zarr"
    with pytest.raises(StoreDamagedError, match="embstore verify"):
        export(source.path, out)
    assert not out.exists()
    assert export(source.path, out, check=False).n_rows == made.store.n_rows
    if what == "vectors":
        assert export(source.select(rows=slice(200)), tmp_path / "other.h5").n_rows == 200


@pytest.mark.parametrize(
    ("rows", "dtype", "message"),
    [
        ([], None, "no row is selected"),
        ([3, 2], None, "rows must be distinct and ascending, but 2 follows 3"),
        ([2, 2], None, "2 follows 2"),
        (None, "float64", "unknown dtype 'float64'; allowed are float32"),
    ],
)
def test_bad_options(made: Made, tmp_path: Path, rows: list[int] | None, dtype: str | None, message: str) -> None:
    with pytest.raises(InvalidValueError, match=re.escape(message)):
        export(made.store.select(rows=rows), tmp_path / "out.zarr", dtype=dtype)
    assert list(tmp_path.iterdir()) == []


def _there(tmp_path: Path) -> Path:
    (tmp_path / "out.zarr").write_text("mine")
    return tmp_path / "out.zarr"


def _folder(tmp_path: Path) -> Path:
    (tmp_path / "out.h5").mkdir()
    return tmp_path / "out.h5"


PATHS: list[tuple[Callable[[Path], Path], str]] = [
    (_there, "exists already"),
    (_folder, "exists already"),
    (lambda folder: folder / "out.npz", "must end in .zarr or .h5"),
    (lambda folder: folder / "none" / "out.h5", "there is no folder"),
]


@pytest.mark.parametrize(("make", "message"), PATHS, ids=["file", "folder", "suffix", "no-folder"])
def test_bad_paths(made: Made, tmp_path: Path, make: Callable[[Path], Path], message: str) -> None:
    out = make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidValueError, match=message):
        export(made.store, out)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.filterwarnings("ignore::embstore.errors.UnfinishedStoreWarning")
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_unfinished_source(tmp_path: Path, suffix: str) -> None:
    unfinished = make_store(tmp_path / f"s{suffix}", sentences=170, leave_out=(1,)).store
    with pytest.raises(MissingRowsError, match=r"cannot be exported: 256 of its 7\d\d rows are not"):
        export(unfinished.select(rows=[0, 1]), tmp_path / "out.zarr")
    assert not (tmp_path / "out.zarr").exists()


def _with_value(path: Path, value: float) -> Store:
    made = make_store(path)
    made.vectors[1, 300, 4] = value
    return stored_as(made, path.with_name(f"odd{path.suffix}"), "float32")


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        (65505.0, "float16", "layer 2, row 300 of .*: 65,505 is beyond float16's 65,504: choose float32 or bfloat16"),
        (-70000.0, "float16", "layer 2, row 300 of .*: -70,000 is beyond float16"),
        (3.4e38, "bfloat16", "layer 2, row 300 of .*: 3.4e\\+38 is beyond bfloat16's 3.38953e\\+38: choose float32"),
        (np.nan, "float16", "layer 2, row 300 of .*: nan is not finite"),
        (np.inf, "int8", "layer 2, row 300 of .*: inf is not finite"),
    ],
)
@pytest.mark.usefixtures("small_shards")
def test_values_beyond_the_dtype(tmp_path: Path, value: float, dtype: str, message: str) -> None:
    source = _with_value(tmp_path / "s.zarr", value)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(NonFiniteError, match=message):
        export(source, tmp_path / "out.h5", dtype=dtype)
    assert sorted(tmp_path.iterdir()) == before


def test_the_largest_values_fit(tmp_path: Path) -> None:
    source = _with_value(tmp_path / "s.zarr", -65504.0)
    assert export(source, tmp_path / "out.h5", dtype="float16").vectors([300], layers=2)[0, 4] == -65504


def test_too_small_a_disk(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 1000

    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage)
    with pytest.raises(StorageError, match=r"needs [0-9.,]+ MiB, but .* has 0\.0 MiB free"):
        export(made.store, tmp_path / "out.zarr")
    assert list(tmp_path.iterdir()) == []
