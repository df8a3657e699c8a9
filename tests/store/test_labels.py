"""Labels added after extraction: where they are seen, what they are joined on, and what damage does to them."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest
import safetensors.numpy
import zarr

import embstore as es
from embstore.errors import InvalidValueError, StorageError, StoreBusyError, StoreDamagedError
from embstore.store.labels import columns, files
from embstore.store.storage.local import LocalStorage
from embstore.store.storage.lock import ProcessLock
from tests.store.example import SUFFIXES
from tests.store.memory_bucket import URL, MemoryBucket
from tests.store_making import Made, make_store, make_text_store

TONES = ["sad", None, "glad", "évident"]


@pytest.fixture(params=SUFFIXES)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    return make_store(tmp_path / f"s{request.param}")


def folder_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.labels") if path.is_file() else path / "hidden_states" / ".labels"


def tones(made: Made) -> pl.DataFrame:
    frame = made.store.table(columns=["sentence", "position"]).sample(fraction=0.5, shuffle=True, seed=3)
    return frame.with_columns(tone=pl.Series([TONES[at % 4] for at in range(len(frame))]))


def expected(made: Made, frame: pl.DataFrame, on: list[str], name: str) -> list[str | None]:
    """Join row by row, in plain Python."""
    known = {tuple(row[key] for key in on): row[name] for row in frame.to_dicts()}
    found = [known.get(tuple(row[key] for key in on)) for row in made.table]
    return [None if label is None else str(label).lower() if isinstance(label, bool) else str(label) for label in found]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
@pytest.mark.quick(2)
def test_added_labels_are_a_column_like_any_other(made: Made, tmp_path: Path, suffix: str) -> None:
    frame = tones(made).with_columns(grade=pl.col("position") % 3, even=pl.col("position") % 2 == 0)
    path = tmp_path / f"tags{suffix}"
    writers: dict[str, Callable[[Path], object]] = {
        ".csv": frame.write_csv,
        ".tsv": lambda path: frame.write_csv(path, separator="\t"),
        ".jsonl": frame.write_ndjson,
        ".parquet": frame.write_parquet,
    }
    writers[suffix](path)
    made.store.with_labels(path, on=["sentence", "position"], save=True)
    store = es.open(made.store.path)
    for name in ("tone", "grade", "even"):
        assert store.table()[name].cast(str).to_list() == expected(made, frame, ["sentence", "position"], name)
    assert store.describe()["labels"]["tone"] == 3
    sad = store.select(labels={"tone": "sad"})
    assert sad.rows.tolist() == store.select(where="tone = 'sad'").rows.tolist() != []
    assert es.verify(store.path).ok
    assert store.digest == made.store.digest  # vectors are the same: a search index stays valid
    stored = json.loads((folder_of(store.path) / "labels.json").read_text())["labels"]["tone"]["file"]
    raw = safetensors.numpy.load_file(folder_of(store.path) / stored)
    assert np.array_equal(raw["codes"], store.index.labels["tone"].codes)
    if store.path.suffix == ".zarr":
        assert set(zarr.open_group(store.path, mode="r")) == set(zarr.open_group(made.store.path, mode="r"))


@pytest.mark.parametrize(
    "on", ["occurrence", "sentence,position", "source,position", "sentence", "source", "document", "word"]
)
@pytest.mark.quick(3)
def test_every_key_labels_the_rows_it_names(made: Made, on: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embstore.store.storage.files.IN_MEMORY_NBYTES", 5)  # codes in a mapped file
    keys = on.split(",")
    frame = pl.DataFrame(made.table).select(keys).unique(maintain_order=True)[::2]
    frame = frame.with_columns(mark=pl.Series(np.arange(len(frame)) % 11)).sample(fraction=1, shuffle=True, seed=1)
    found = made.store.with_labels(frame, on=on)
    assert found.table()["mark"].cast(str).to_list() == expected(made, frame, keys, "mark")
    n_names = min(11, len(frame))
    assert found.index.labels["mark"].codes.max() == n_names - 1
    assert list(found.index.labels["mark"].names) == [str(number) for number in range(n_names)]  # in order as numbers
    part = made.store.select(rows=[9, 4, 30])
    given = pl.DataFrame(made.table)[[4, 9]].select(keys).with_columns(mark=pl.Series(["a", "b"]))
    labels = part.with_labels(given, on=on).store.index.labels["mark"]
    assert set(np.flatnonzero(labels.codes >= 0).tolist()) <= {4, 9, 30}
    assert labels.codes[4] == 0


@pytest.mark.parametrize(("suffix", "separator"), [(".csv", ","), (".tsv", "\t")])
def test_digits_of_a_text_file_are_text(tmp_path: Path, suffix: str, separator: str) -> None:
    store = make_text_store(tmp_path / "s.zarr", [["007", "1.50", "1e3", "x"]])
    path = tmp_path / f"tags{suffix}"
    lines = [("word", "sense", "n"), ("007", "01", "1"), ("1.50", "002", ""), ("1e3", "01", "-0")]
    path.write_text("".join(separator.join(line) + "\n" for line in lines))
    table = store.with_labels(path, on="word").table()
    assert table["sense"].to_list() == ["01", "002", "01", None]
    assert table["n"].to_list() == ["1", None, "-0", None]


@pytest.mark.parametrize(
    ("frame", "on", "message"),
    [
        (pl.DataFrame({"occurrence": [1, 1], "x": ["a", "b"]}), "occurrence", "two different labels of 'x'"),
        (pl.DataFrame({"occurrence": [1], "x": [0.5]}), "occurrence", "values of type Float64"),
        (pl.DataFrame({"occurrence": ["1"], "x": ["a"]}), "occurrence", "must be whole numbers, not String"),
        (pl.DataFrame({"occurrence": [1]}), "occurrence", "no column but the keys"),
        (pl.DataFrame({"occurrence": [1], "text": ["a"]}), "occurrence", "'text' cannot be the name"),
        (pl.DataFrame({"occurrence": [1], "a/b": ["a"]}), "occurrence", "label column 'a/b'"),
        (pl.DataFrame({"occurrence": [1], "upos": ["a"]}), "occurrence", "labels 'upos' of its corpus"),
        (pl.DataFrame({"x": ["a"]}), "sentence,position", "no column 'sentence' for the key"),
        (pl.DataFrame({"x": ["a"]}), "position", "joined on 'position': choose one of occurrence"),
        (Path("gone.csv"), "word", "gone.csv cannot be read: No such file"),
        (Path("tags.xlsx"), "word", "no known suffix"),
        (3, "word", "3 is not a frame"),
        (pl.DataFrame({"occurrence": [3, 10**7], "x": ["a", "b"]}), "occurrence", "row 2 .* no occurrence 10000"),
        (pl.DataFrame({"sentence": [0], "position": [900], "x": ["a"]}), "sentence,position", "row 1 .*position 900"),
        (pl.DataFrame({"sentence": [0, None], "x": ["a", "b"]}), "sentence", "row 2 .* no sentence None"),
        (pl.DataFrame({"word": ["bank", "banks"], "x": ["a", "b"]}), "word", "row 2 .* no word 'banks'"),
        (pl.DataFrame({"source": [10**9], "x": ["a"]}), "source", "row 1 .* no source"),
    ],
)
@pytest.mark.quick(17)
def test_bad_tables_are_refused(made: Made, frame: Any, on: str, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        made.store.with_labels(frame, on=on, save=True)
    assert not folder_of(made.store.path).exists()


def test_two_labels_of_a_row(made: Made) -> None:
    frame = pl.DataFrame({"occurrence": [1, 2, 1], "x": ["a", None, "a"]})
    assert made.store.with_labels(frame).select(labels={"x": "a"}).rows.tolist() == [1]
    with pytest.raises(InvalidValueError, match="two different"):
        made.store.with_labels(frame.with_columns(x=pl.Series(["a", None, "b"])))


def test_labels_are_replaced_only_when_asked_and_removed(made: Made) -> None:
    first = made.store.with_labels("x", ["a"] * made.store.n_rows, save=True)
    assert list(first.index.labels["x"].names) == ["a"]
    with pytest.raises(InvalidValueError, match="has labels 'x' already: give --replace"):
        made.store.with_labels("x", ["b"] * made.store.n_rows, save=True)
    assert list(es.open(made.store.path).index.labels["x"].names) == ["a"]
    second = made.store.with_labels("x", ["b"] * made.store.n_rows, save=True, replace=True)
    assert list(second.index.labels["x"].names) == list(es.open(made.store.path).index.labels["x"].names) == ["b"]
    assert list(first.index.labels["x"].names) == ["a"]  # still mapped
    assert len(list(folder_of(made.store.path).iterdir())) == 2  # the list and one file
    assert "x" not in second.with_labels("x", save=True).index.labels
    assert "x" not in es.open(made.store.path).index.labels
    with pytest.raises(InvalidValueError, match="no added labels 'x': it has none"):
        second.with_labels("x", save=True)
    assert es.verify(made.store.path).ok


def test_a_first_column_that_was_cut_off_is_none(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    put = LocalStorage.put

    def killed(self: LocalStorage, key: str, parts: Any) -> None:
        put(self, key, parts)
        if key.endswith(".safetensors"):
            raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "put", killed)
        with pytest.raises((OSError, StorageError)):
            made.store.with_labels("x", ["a"] * made.store.n_rows, save=True)
    assert "x" not in es.open(made.store.path).index.labels
    assert es.verify(made.store.path).ok


def flip(data: bytes) -> bytes:
    return data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]


def other_label(data: bytes) -> bytes:
    """Of a file that ends with the code of the last row and the two names "ab": another code that is allowed."""
    return data[:-6] + bytes([data[-6] ^ 1]) + data[-5:]


@pytest.mark.parametrize(
    "damage", [flip, other_label, lambda data: data[:-1], lambda data: data + b" ", lambda data: b""]
)
@pytest.mark.parametrize("part", ["x-*.safetensors", "labels.json"])
@pytest.mark.quick(3)
def test_damage_is_an_error_never_other_labels(made: Made, part: str, damage: Callable[[bytes], bytes]) -> None:
    store = made.store.with_labels(
        "x", ["a", "b"] * (made.store.n_rows // 2) + ["a"] * (made.store.n_rows % 2), save=True
    )
    [file] = folder_of(store.path).glob(part)
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    if part == "labels.json" and damage(whole) == whole + b" ":
        assert "x" in es.open(store.path).index.labels  # white space after JSON
        return
    with pytest.raises(StoreDamagedError, match=re.escape(file.name)):
        es.open(store.path).select(labels={"x": "a"})
    [fault] = es.verify(store.path).faults
    assert fault.part.endswith(file.name)
    file.unlink()
    said = "put it back" if part == "labels.json" else "remove it with `embstore label"
    assert not es.verify(store.path).ok
    with pytest.raises(StoreDamagedError, match=f"is missing: {said}"):
        es.open(store.path).table()
    if part == "labels.json":
        shutil.rmtree(folder_of(store.path))
        assert "x" not in es.open(store.path).index.labels
    else:
        assert "x" not in es.open(store.path).with_labels("x", save=True).index.labels


def test_a_flipped_byte_in_a_bucket_is_an_error(tmp_path: Path, memory: MemoryBucket) -> None:
    store = make_store(tmp_path / "s.zarr").store
    store = store.with_labels("x", (["a", "b"] * store.n_rows)[: store.n_rows], save=True)
    [file] = folder_of(store.path).glob("x-*")
    file.write_bytes(other_label(file.read_bytes()))
    for each in store.path.rglob("*"):
        if each.is_file():
            memory.storage.put(each.relative_to(store.path).as_posix(), [each.read_bytes()])
    with pytest.raises(StoreDamagedError, match=f"{re.escape(file.name)}, the labels 'x', was changed"):
        es.open(URL).table()


def test_labels_of_another_store_are_refused(made: Made, tmp_path: Path) -> None:
    made.store.with_labels("x", ["a"] * made.store.n_rows, save=True)
    other = make_store(tmp_path / f"other{made.store.path.suffix}", seed=5).store
    folder_of(made.store.path).rename(folder_of(other.path))
    with pytest.raises(StoreDamagedError, match="labels of other occurrences than those of"):
        es.open(other.path).table()
    assert not es.verify(other.path).ok


def test_codes_beyond_the_names_are_damage(made: Made) -> None:
    labels = made.store.with_labels("x", ["a"] * made.store.n_rows).index.labels["x"]
    wrong = es.store.Labels(np.full(made.store.n_rows, 1, np.int32), labels.names)
    short = es.store.Labels(labels.codes[1:], labels.names)
    for column, message in ((wrong, "not from -1 to 0"), (short, "rows and the store")):
        files.LabelFiles(made.store.source.reader).write({"x": column}, replace=True)
        with pytest.raises(StoreDamagedError, match=message):
            es.open(made.store.path).table()


def test_two_writers(made: Made) -> None:
    folder = folder_of(made.store.path)
    with (
        ProcessLock(folder.with_name(f"{folder.name}.lock"), "busy"),
        pytest.raises(StoreBusyError, match="adding labels"),
    ):
        made.store.with_labels("x", ["a"] * made.store.n_rows, save=True)
    one, two = es.open(made.store.path), es.open(made.store.path)  # each unaware of the other's labels
    one.with_labels("x", ["a"] * one.n_rows, save=True)
    two.with_labels("y", ["b"] * one.n_rows, save=True)
    assert {"x", "y"} <= set(es.open(made.store.path).index.labels)


@pytest.mark.parametrize("failing", range(4))
@pytest.mark.quick(2)
def test_a_writer_that_is_stopped_leaves_the_old_labels(
    made: Made, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.store.with_labels("x", ["a"] * made.store.n_rows, save=True)
    fsync, calls = os.fsync, []

    def failing_fsync(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == failing + 1:
            raise KeyboardInterrupt
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing_fsync)
    with pytest.raises(KeyboardInterrupt):
        made.store.with_labels("x", ["b"] * made.store.n_rows, save=True, replace=True)
    monkeypatch.undo()
    assert not (folder_of(made.store.path) / ".tmp").exists()
    names = list(es.open(made.store.path).index.labels["x"].names)
    assert names == ["a"] if failing < 3 else names in (["a"], ["b"])
    assert es.verify(made.store.path).ok
    made.store.with_labels("x", ["c"] * made.store.n_rows, save=True, replace=True)
    assert len(list(folder_of(made.store.path).iterdir())) == 2


@pytest.mark.quick(1)
def test_exports_and_buckets_have_them(made: Made, tmp_path: Path, memory: MemoryBucket) -> None:
    store = made.store.with_labels(tones(made), on="sentence,position", save=True)
    copy = es.export(store, tmp_path / "copy.zarr")
    part = es.export(store.select(labels={"tone": "sad"}), tmp_path / "part.h5")
    assert copy.table().drop("text").equals(store.table().drop("text"))
    assert set(part.table()["tone"]) == {"sad"}
    assert es.verify(copy.path).ok
    if made.store.path.suffix == ".h5":
        return
    for file in made.store.path.rglob("*"):
        if file.is_file():
            memory.storage.put(file.relative_to(made.store.path).as_posix(), [file.read_bytes()])
    remote = es.open(URL)
    assert remote.table()["tone"].to_list() == store.table()["tone"].to_list()
    with pytest.raises(InvalidValueError, match="must be on a disk"):
        remote.with_labels("y", ["a"] * store.n_rows, save=True)
    assert es.verify(URL).ok


def test_documents_of_several_sentences(made: Made) -> None:
    index = made.store.index
    index = index.changed(document=np.arange(len(index.text)) // 7)
    frame = pl.DataFrame({"document": [3, 1], "mark": ["c", "a"]})
    [labels] = columns.label_columns(index, frame, on="document", rows=None, save=False).values()
    of_rows = np.array([row["sentence"] for row in made.table]) // 7
    assert labels.codes.tolist() == [{1: 0, 3: 1}.get(number, -1) for number in of_rows.tolist()]
    chosen = np.flatnonzero(of_rows == 3)[1:3]
    [labels] = columns.label_columns(index, frame[:1], on="document", rows=chosen, save=False).values()
    assert np.flatnonzero(labels.codes >= 0).tolist() == chosen.tolist()
    for given, rows in ((frame, chosen), (pl.DataFrame({"document": [18], "mark": ["a"]}), None)):
        with pytest.raises(InvalidValueError, match="has no document"):
            columns.label_columns(index, given, on="document", rows=rows, save=False)


def test_labels_that_are_replaced_while_they_are_read(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store.zarr").store
    store.with_labels("tone", ["a"] * store.n_rows, save=True)
    stored = es.open(store.path).source.label_files
    before = stored.listed()
    store.with_labels("tone", ["b"] * store.n_rows, save=True, replace=True)
    now = stored.listed()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored, "listed", Mock(side_effect=[before, now]))
        assert list(stored.read()["tone"].names) == ["b"]
