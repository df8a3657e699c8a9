"""Creating and filling: all or nothing, one writer, nothing lost at any step; stores of words and arrays."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import embstore as es
from embstore.errors import (
    EmbstoreError,
    InvalidValueError,
    MissingRowsError,
    NonFiniteError,
    StoreBusyError,
    UnfinishedStoreWarning,
)
from embstore.store import Metadata, StoreWriter, Strings, create_store, open_store, verify
from embstore.store.arrays import commit_record, committed, record_crc32c
from embstore.store.storage.local import LocalStorage
from embstore.store.writer import PartitionWriter
from tests.store.example import SUFFIXES, all_files, example


def test_writers_that_race_get_the_lock_one_at_a_time(tmp_path: Path) -> None:
    path = example().create(tmp_path / "s.zarr")
    inside, most, turns = [0], [0], [0]

    def work() -> None:
        while turns[0] < 60:
            try:
                writer = StoreWriter(path)
            except StoreBusyError:
                continue
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            turns[0] += 1
            inside[0] -= 1
            writer.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    assert sorted(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_exists_is_not_touched(tmp_path: Path, suffix: str) -> None:
    made = example()
    (tmp_path / f".s{suffix}.new" / "left by a kill").mkdir(parents=True)
    path = made.make(tmp_path / f"s{suffix}").path
    assert not (path / "left by a kill").exists()
    before = all_files(path)
    with pytest.raises(InvalidValueError, match="exists already"):
        made.create(path)
    assert all_files(path) == before
    taken = tmp_path / f"other{suffix}"
    taken.write_text("mine")
    with pytest.raises(InvalidValueError, match="exists already"):
        made.create(taken)
    assert (taken.read_text(), len(list(tmp_path.iterdir()))) == ("mine", 2)


def refused(tmp_path: Path, **changes: Any) -> str:
    """The message that creating a store with changed metadata, index columns or center is refused with."""
    made = example(labels=False)
    metadata = Metadata(**{name: changes.get(name, value) for name, value in vars(made.metadata).items()})
    parts = {name: value for name, value in changes.items() if name not in {*vars(made.metadata), "center"}}
    index = made.index.changed(**parts)
    for suffix in SUFFIXES:
        with pytest.raises(InvalidValueError) as caught:
            create_store(tmp_path / f"s{suffix}", metadata=metadata, index=index, center=changes.get("center"))
        assert list(tmp_path.iterdir()) == []
    return str(caught.value)


def test_what_cannot_be_created_leaves_nothing(tmp_path: Path) -> None:
    index = example(labels=False).index
    for changes, message in [
        ({"n_rows": 699}, "occurrences/type has 700 rows and the store 699"),
        ({"dtype": "float64"}, "dtype 'float64' is not known: choose one of float32"),
        ({"layers": (3, 0)}, "layers must be distinct ascending"),
        ({"partition_rows": 100}, "multiple of 256, not 100"),
        ({"dtype": "int8"}, "a center [layer, feature] is required for int8"),
        ({"center": np.zeros((3, 16), np.float32)}, "for int8 only"),
        ({"dtype": "int8", "center": np.zeros((2, 16), np.float32)}, "of the shape (3, 16), not (2, 16)"),
        ({"dtype": "int8", "center": np.full((3, 16), np.nan, np.float32)}, "must be finite"),
        ({"model": {"name": "m", "x": float("nan")}}, "cannot be written as JSON"),
        ({"model": {}}, "must have a string model.name"),
        ({"type": index.type + 1}, "occurrences/type holds a value that is not from 0 to 7"),
        ({"type": index.type.astype(np.int64)}, "the column occurrences/type must be int32"),
        ({"sentence": index.sentence[::-1]}, "occurrences/sentence does not ascend"),
        ({"position": index.position - 1}, "occurrences/position holds"),
        ({"indptr": index.indptr + 1}, "sentences/indptr does not give"),
        ({"source": index.source[1:]}, "sentences/source does not fit the number of sentences"),
        ({"words": Strings(np.array([0, 1]), np.array([255], np.uint8))}, "types/form_bytes is not UTF-8"),
        ({"words": Strings(np.array([0, 1, 2]), np.frombuffer("é".encode(), np.uint8))}, "middle of a character"),
        ({"words": Strings(np.array([0, 9]), np.zeros(3, np.uint8))}, "types/form_offsets does not ascend"),
        ({"words": Strings(np.empty(0, np.int64), np.empty(0, np.uint8))}, "types/form_offsets is empty"),
        ({"n_rows": 2**32}, "partitions, more than 1048576"),
    ]:
        assert message in refused(tmp_path, **changes), changes
    for column in ["", "a/b", ".hidden", "__x", "zarr.json", "a\nb", "x" * 201]:
        labels = {column: example().index.labels["upos"]}
        assert "a label column cannot be named" in refused(tmp_path, labels=labels)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_partitions_that_are_refused(tmp_path: Path, suffix: str) -> None:
    made = example(dtype="int8")
    path = made.create(tmp_path / f"s{suffix}")
    good = made.partition(0)
    with StoreWriter(path) as writer:
        for partition, arrays, message in [
            (3, good, "there is no partition 3: the store has 3"),
            (-1, good, "there is no partition -1"),
            (2, good, r"hidden_states of partition 2 must be int8 \(3, 188, 16\), not int8 \(3, 256, 16\)"),
            (0, {"hidden_states": good["hidden_states"]}, r"a partition holds \['hidden_states', 'scale'\]"),
            (0, {**good, "scale": good["scale"].astype(np.float64)}, "scale of partition 0 must be float32"),
            (0, {**good, "hidden_states": np.full((3, 256, 16), -128, np.int8)}, "-128 means not written"),
        ]:
            with pytest.raises(InvalidValueError, match=message):
                writer.write(partition, arrays)
        assert writer.missing() == [0, 1, 2]
        writer.write(0, good)
        with pytest.raises(InvalidValueError, match="partition 0 is committed already"):
            writer.write(0, good)
        with pytest.raises(MissingRowsError, match="has 2 uncommitted partitions, the first is 1"):
            writer.finish()
        writer.discard([0])
        assert writer.missing() == [0, 1, 2]
    with pytest.raises(EmbstoreError, match="is closed"):
        writer.write(0, good)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_discarding_in_a_finished_store(tmp_path: Path, suffix: str) -> None:
    made = example()
    store = made.make(tmp_path / f"s{suffix}")
    before = all_files(store.path)
    with StoreWriter(store.path) as writer:
        writer.discard([1])
        assert writer.missing() == [1]
    store.source.refresh()
    assert store.source.committed.tolist() == [True, False, True]
    assert verify(store.path).missing == (1,)
    assert verify(store.path).ok
    made.fill(store.path)
    assert all_files(store.path) == before


def test_a_shard_without_a_record_is_written_again(tmp_path: Path) -> None:
    """What an interrupted writer left on a disk is removed, whatever its bytes are."""
    made = example()
    path = made.create(tmp_path / "s.zarr")
    PartitionWriter(path).write(1, {name: array[:, ::-1] for name, array in made.partition(1).items()})
    (path / "hidden_states/c/0/2").mkdir()
    (path / "hidden_states/c/0/2/0").write_bytes(b"not a shard")
    (path / "hidden_states/c/0/0/0/deeper").mkdir(parents=True)
    made.fill(path)
    assert all_files(path) == all_files(made.make(tmp_path / "t.zarr").path)


def test_a_file_with_another_index_is_not_taken_for_a_shard(tmp_path: Path) -> None:
    """A worker that finds a file of the right size at a shard's name keeps it only if its index is the shard's."""
    made = example()
    path = made.create(tmp_path / "s.zarr")
    record = PartitionWriter(path).write(1, made.partition(1))
    shard = path / "hidden_states/c/0/1/0"
    data = shard.read_bytes()
    shard.write_bytes(data[:-8] + bytes(8))
    assert PartitionWriter(path).write(1, made.partition(1)).crc32c == record.crc32c
    assert shard.read_bytes() == data


def test_a_torn_record_is_not_committed() -> None:
    """Any mixture of a record's bytes, or bits, with what was there before counts as not written."""
    layout = example().metadata.layout
    random = np.random.default_rng(0)
    for crc in [0, 2**32 - 1, 0x00FF00FF, *random.integers(0, 2**32, 20).tolist()]:
        record = commit_record(256, crc).tobytes()
        records = np.tile(np.frombuffer(record, np.uint64), (3, 1))
        assert committed(records, layout).tolist() == [True, True, False]
        assert record_crc32c(records[0]) == crc
        masks = [bytes([255] * n + [0] * (16 - n)) for n in range(17)]  # torn after n bytes
        masks += [bytes([0] * n + [255] * (16 - n)) for n in range(17)]
        masks += [random.integers(0, 256, 16, np.uint8).tobytes() for _ in range(50)]
        for mask in masks:
            torn = bytes(byte | bits for byte, bits in zip(record, mask, strict=True))
            records = np.tile(np.frombuffer(torn, np.uint64), (3, 1))
            assert committed(records, layout)[0] == (torn == record)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_rows_that_are_not_contiguous_in_memory(tmp_path: Path, suffix: str) -> None:
    made = example(rows=256, dtype="float32")
    path = made.create(tmp_path / f"s{suffix}")
    strided = np.asfortranarray(made.arrays["hidden_states"])
    with StoreWriter(path) as writer:
        writer.write(0, {"hidden_states": strided})
        writer.finish()
    np.testing.assert_array_equal(open_store(path).vectors(np.arange(256)), made.values)
    assert verify(path).ok


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_written_from_another_thread(tmp_path: Path, suffix: str) -> None:
    made = example()
    path = made.create(tmp_path / f"s{suffix}")
    with StoreWriter(path) as writer:
        threads = [threading.Thread(target=writer.write, args=(k, made.partition(k))) for k in (2, 0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        writer.finish()
    np.testing.assert_array_equal(open_store(path).vectors(np.arange(700), layers=0), made.values[0])


def test_a_partition_is_discarded_by_its_record_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a crash in between would leave a record that vouches for a shard that is not there."""
    path = example().make(tmp_path / "s.zarr").path
    seen: list[bool] = []
    delete = LocalStorage.delete

    def observed(storage: LocalStorage, key: str) -> None:
        with pytest.warns(UnfinishedStoreWarning):
            seen.append(bool(open_store(path).source.committed[1]))
        delete(storage, key)

    monkeypatch.setattr(LocalStorage, "delete", observed)
    with StoreWriter(path) as writer:
        writer.discard([1])
        assert seen == [False]


@pytest.mark.parametrize("left", [None, 0, 10, 49, 100])
def test_commit_records_that_are_not_whole_are_written_again_whole(tmp_path: Path, left: int | None) -> None:
    made = example()
    path = made.make(tmp_path / "s.zarr").path
    assert isinstance(path, Path)
    before, commits = all_files(path), path / "commits/c/0/0"
    if left is None:
        commits.unlink()
    else:
        commits.write_bytes((commits.read_bytes() * 3)[:left])
    with StoreWriter(path) as writer:
        assert writer.missing() == [0, 1, 2]
        writer.write(1, made.partition(1))
        assert verify(path).missing == (0, 2)
    made.fill(path)
    assert all_files(path) == before


def test_the_bytes_after_the_last_row_of_a_file_are_zeros_again(tmp_path: Path) -> None:
    made = example()
    path = made.make(tmp_path / "s.h5").path
    assert isinstance(path, Path)
    before = path.read_bytes()
    with h5py.File(path, "r") as file:
        chunk = file["hidden_states"].id.get_chunk_info_by_coord((2, 512, 0))
    assert chunk.byte_offset + chunk.size <= len(before)
    with path.open("r+b") as changed:
        changed.seek(chunk.byte_offset + chunk.size - 1)
        changed.write(b"x")
    (fault,) = verify(path).faults
    assert (fault.what, fault.partition) == ("holds bytes beyond its last row", 2)
    with StoreWriter(path) as writer:
        writer.discard([2])
    made.fill(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_partition_that_was_written_again_is_read_after_a_refresh(tmp_path: Path, suffix: str) -> None:
    made = example()
    store = made.make(tmp_path / f"s{suffix}")
    np.testing.assert_array_equal(store.vectors([0, 300], layers=3), made.values[1, [0, 300]])
    with StoreWriter(store.path) as writer:
        writer.discard([1])
        writer.write(1, {name: array[:, ::-1] for name, array in made.partition(1).items()})
    store.source.refresh()
    np.testing.assert_array_equal(store.vectors([0, 300], layers=3), made.values[1, [0, 511 - 300 + 256]])


SENTENCES = [["the", "bank"], ["it"], ["a", "river", "bank"]] * 200
ARRAYS = [np.random.default_rng(n).normal(size=(2, len(words), 8)) for n, words in enumerate(SENTENCES)]


@pytest.mark.parametrize("name", ["made.zarr", "made.h5"])
def test_words_and_vectors_are_those_given(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embstore.store.layout.SHARD_NBYTES", 1)  # partitions of 256 rows: sentences cross their ends
    store = es.store.write_arrays(
        tmp_path / name, SENTENCES, iter(ARRAYS), model="tool 1.0", layers=[3, 7], dtype="float32"
    )
    assert store.metadata.n_partitions > 2
    np.testing.assert_array_equal(store.select().vectors(), np.concatenate(ARRAYS, 1).astype(np.float32))
    table = store.table()
    assert table["word"].to_list() == [word for words in SENTENCES for word in words]
    assert table["text"].to_list() == [" ".join(words) for words in SENTENCES for _ in words]
    assert (store.layers, store.metadata.model["name"]) == ((3, 7), "tool 1.0")
    assert es.verify(store.path).ok


def test_an_interrupted_call_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embstore.store.layout.SHARD_NBYTES", 1)
    whole = es.store.write_arrays(tmp_path / "whole.zarr", SENTENCES, ARRAYS, model="m")
    write = StoreWriter.write

    def killed(writer: StoreWriter, partition: int, arrays: Any) -> None:
        if partition == 2:
            raise KeyboardInterrupt
        write(writer, partition, arrays)

    monkeypatch.setattr(StoreWriter, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        es.store.write_arrays(tmp_path / "some.zarr", SENTENCES, ARRAYS, model="m")
    monkeypatch.setattr(StoreWriter, "write", write)
    some = es.store.write_arrays(tmp_path / "some.zarr", SENTENCES, ARRAYS, model="m")
    assert some.digest == whole.digest


UNFIT = np.pad(np.full((1, 1, 1), np.inf, np.float16), ((1, 0), (1, 0), (2, 0)))  # the last value


@pytest.mark.parametrize(
    ("sentences", "arrays", "error", "match"),
    [
        ([["a b"]], ARRAYS, InvalidValueError, "sentence 0 is not a list of words"),
        ([["a"], []], ARRAYS, InvalidValueError, "sentence 1 is not"),
        (["the bank"], ARRAYS, InvalidValueError, "not allowed: give Sequence|sentence 0"),
        ([["a"]], ARRAYS, InvalidValueError, r"sentence 0 is float64 \(2, 2, 8\), not floats \(2, 1, 8\)"),
        ([["a", "b"], ["c"]], ARRAYS[:1], InvalidValueError, "sentence 1 is"),
        ([["a", "b"]], [], InvalidValueError, "give .layer, word, feature"),
        ([["a", "b"]], [np.full((1, 2, 3), 1e6)], NonFiniteError, r"sentence 0, word 0: 1e\+06 is beyond float16"),
        ([["a", "b"]], [UNFIT], NonFiniteError, "layer 1, sentence 0, word 1: inf is not finite"),
        ([["a", "b"]], [UNFIT.astype("f8")], NonFiniteError, "layer 1, sentence 0, word 1: inf is not finite"),
    ],
)
def test_what_does_not_fit(sentences: Any, arrays: Any, error: type[Exception], match: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=match):
        es.store.write_arrays(tmp_path / "x.zarr", sentences, arrays, model="m")
    assert not list(tmp_path.iterdir()), "nothing is left behind"
