"""A selection as a torch dataset gives every row once an epoch, in the order that seed and epoch determine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import embstore as es
from embstore.errors import InvalidValueError
from embstore.store.convert import torch_dataset
from embstore.store.convert.torch_dataset import Examples, TorchDataset
from embstore.store.reading import ahead
from tests.store_making import Made, make_store

ORDERS = (False, True)


@pytest.fixture(scope="module", params=["zarr", "h5"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_store(tmp_path_factory.mktemp("stores") / f"store.{request.param}", sentences=160)


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some batches are read at once, and many groups of them in an epoch, from the third one on by a thread."""
    monkeypatch.setattr(torch_dataset, "GROUP_NBYTES", 4000)
    monkeypatch.setattr(ahead, "QUICK_SECONDS", -1.0)


def joined(parts: Iterable[Examples]) -> Examples:
    *tensors, columns = zip(*parts, strict=True)
    named = {name: torch.cat([each[name] for each in columns]) for name in columns[0]}
    return Examples(*map(torch.cat, tensors), named)


def order(batches: Iterable[Examples]) -> list[int]:
    return [row for batch in batches for row in batch.rows.tolist()]


def same(found: Iterable[Examples], expected: Iterable[Examples]) -> bool:
    pairs = zip(found, expected, strict=True)
    return all(
        torch.equal(one, other)
        for pair in pairs
        for one, other in zip(*((*batch[:3], *batch.columns.values()) for batch in pair), strict=True)
    )


def hold(examples: Examples, made: Made, layers: tuple[int, ...]) -> None:
    """Every vector and label must be that of the row given with it."""
    positions = [made.store.layers.index(layer) for layer in layers]
    rows = examples.rows.numpy()
    np.testing.assert_array_equal(examples.vectors.numpy(), made.vectors[positions][:, rows].transpose(1, 0, 2))
    tags = list(made.store.index.labels["upos"].names)
    assert [None if code < 0 else tags[code] for code in examples.labels.tolist()] == [
        made.table[row]["upos"] for row in rows.tolist()
    ]


@pytest.mark.parametrize("shuffle", ORDERS)
def test_batches_have_columns_of_the_table(made: Made, shuffle: bool) -> None:
    names = ["token", "context_position", "document", "word", "upos"]
    batch = joined(TorchDataset(made.store.select(words="bank"), columns=names, batch_size=7, shuffle=shuffle))
    table = made.store.select(rows=batch.rows.numpy()).table(columns=names)
    assert list(batch.columns) == names
    for name in names:
        assert batch.columns[name].tolist() == table[name].to_physical().fill_null(-1).to_list(), name
    with pytest.raises(InvalidValueError, match="there is no column 'tokens'"):
        TorchDataset(made.store.select(), columns=["tokens"])
    with pytest.raises(InvalidValueError, match="'text' is text, which has no codes"):
        TorchDataset(made.store.select(), columns=["text"])


@pytest.mark.parametrize("batch_size", [1, 7, 256, 300, 100_000])
@pytest.mark.parametrize("shuffle", ORDERS)
@pytest.mark.parametrize("layers", [(5, 0), (2,)])
@pytest.mark.quick(24)
def test_batches_hold_every_row_once(made: Made, batch_size: int, shuffle: Any, layers: tuple[int, ...]) -> None:
    selection = made.store.select(words=["bank", "new york"], layers=layers)
    dataset = TorchDataset(selection, label="upos", batch_size=batch_size, shuffle=shuffle)
    batches = list(dataset)
    assert len(dataset) == len(batches)
    assert {len(batch.rows) for batch in batches[:-1]} <= {batch_size}
    assert 1 <= len(batches[-1].rows) <= batch_size
    assert all(batch.vectors.is_contiguous() for batch in batches)
    found = joined(batches)
    assert found.vectors.shape == (len(selection), len(layers), made.store.hidden_size)
    assert (sorted if shuffle else list)(found.rows.tolist()) == selection.rows.tolist()
    hold(found, made, layers)


def test_shuffling_is_determined_by_seed_and_epoch(made: Made) -> None:
    def shuffled(*, seed: int = 0, epoch: int = 0) -> list[int]:
        dataset = TorchDataset(made.store.select(), shuffle=True, seed=seed)
        dataset.set_epoch(epoch)
        return order(dataset)

    first = shuffled()
    assert shuffled() == first
    dataset = TorchDataset(made.store.select(), shuffle=True)
    assert order(dataset) == order(dataset), "a second pass without a new epoch is the same"
    others = [list(range(made.store.n_rows)), shuffled(seed=1), shuffled(epoch=1), shuffled(seed=1, epoch=1)]
    for other in others:
        assert sorted(other) == list(range(made.store.n_rows))
        assert other != first
    assert shuffled(epoch=1) == others[2]


def test_the_exact_shuffle_is_one_permutation_of_all_rows(made: Made) -> None:
    dataset = TorchDataset(made.store.select(), shuffle=True, seed=3)
    dataset.set_epoch(2)
    assert order(dataset) == np.random.default_rng([3, 2]).permutation(made.store.n_rows).tolist()


@pytest.mark.parametrize("shuffle", ORDERS)
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.quick(1)
def test_a_data_loader_gives_the_same_batches_for_any_number_of_workers(made: Made, workers: int, shuffle: Any) -> None:
    dataset = TorchDataset(made.store.select(), label="upos", batch_size=50, shuffle=shuffle)
    made.store.select().table().group_by("word").len()  # the threads of Polars do not survive a fork
    loader = DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context="fork")
    found = list(loader)
    assert same(found, dataset)
    assert len(loader) == len(found)
    hold(joined(found), made, made.store.layers)
    assert sorted(order(dataset)) == list(range(made.store.n_rows))


@pytest.mark.quick(1)
def test_workers_that_live_on_see_the_next_epoch(made: Made) -> None:
    dataset = TorchDataset(made.store.select(layers=0), batch_size=64, shuffle=True)
    context = {"multiprocessing_context": "fork", "persistent_workers": True}
    loader = DataLoader(dataset, batch_size=None, num_workers=2, **context)
    epochs = []
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        epochs.append(order(loader))
        assert epochs[-1] == order(dataset)
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("shuffle", ORDERS)
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("n_ranks", [2, 7])
@pytest.mark.quick(4)
def test_ranks_of_torch_distributed_share_the_rows(
    made: Made, shuffle: bool, drop_last: bool, n_ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: n_ranks)
    shares = []
    for rank in range(n_ranks):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        options = {"batch_size": 50, "shuffle": shuffle, "drop_last": drop_last}
        shares.append(TorchDataset(made.store.select(layers=2), **options))
    rows = [order(share) for share in shares]
    every = sorted(row for share in rows for row in share)
    batches = [[len(batch.rows) for batch in share] for share in shares]
    assert [len(share) for share in shares] == list(map(len, batches))
    if drop_last:
        assert set(map(tuple, batches)) == {(50,) * (made.store.n_rows // n_ranks // 50)}
        assert len(set(every)) == len(every)
    else:
        assert every == list(range(made.store.n_rows))
        assert max(map(len, rows)) - min(map(len, rows)) <= 1


DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "int8": torch.float32}


@pytest.mark.parametrize("stored", DTYPES)
@pytest.mark.quick(4)
def test_vectors_keep_the_dtype_that_is_stored(made: Made, tmp_path: Path, stored: str) -> None:
    es.export(made.store.path, tmp_path / "other.zarr", dtype=stored)
    store = es.open(tmp_path / "other.zarr")
    values = torch.from_numpy(store.vectors(np.arange(store.n_rows))).transpose(0, 1)
    for layers, dtype in product((None, 5), (None, "float32", torch.float16, "bfloat16", torch.float64)):
        selection = store.select(layers=layers)
        found = joined(TorchDataset(selection, dtype=dtype, batch_size=100)).vectors
        expected = values if layers is None else values[:, -1]  # no axis of layers
        assert found.dtype == (getattr(torch, dtype) if isinstance(dtype, str) else dtype or DTYPES[stored])
        assert torch.equal(found, expected.to(found.dtype))


def test_selections_of_few_rows_and_of_none(made: Made) -> None:
    rows = [300, 2, 2, 150]
    assert order(TorchDataset(made.store.select(rows=rows))) == rows
    (batch,) = TorchDataset(made.store.select(rows=rows), batch_size=10)
    assert batch.labels.tolist() == [-1] * 4, "no label column"
    few = TorchDataset(made.store.select(rows=[5, 6, 7]), batch_size=4)
    loader = DataLoader(few, batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert order(loader) == [5, 6, 7], "more workers than batches"
    for shuffle in ORDERS:
        empty = TorchDataset(made.store.select(rows=[]), batch_size=4, shuffle=shuffle)
        assert (list(empty), len(empty)) == ([], 0)


def test_a_batch_may_be_changed(made: Made) -> None:
    dataset = TorchDataset(made.store.select(layers=0), label="upos", batch_size=64)
    before = [Examples(*(part.clone() for part in batch[:3]), {}) for batch in dataset]
    for batch in dataset:
        for part in batch[:3]:
            part.zero_()
    assert same(dataset, before)


@pytest.mark.parametrize("kind", [np.int32, np.float64, bool, str])
def test_labels_from_an_array(made: Made, kind: type) -> None:
    selection = made.store.select(rows=[9, 4, 250])
    labels = np.array([3, 0, 7]).astype(kind)
    (batch,) = TorchDataset(selection, label=labels, batch_size=10)
    assert batch.rows.tolist() == [9, 4, 250]
    assert batch.labels.dtype == (torch.float32 if kind is np.float64 else torch.int64)
    assert batch.labels.tolist() == ([1, 0, 2] if kind is str else [1, 0, 1] if kind is bool else [3, 0, 7])
    with pytest.raises(InvalidValueError, match=r"labels of shape \(2,\) do not fit a selection of 3 rows"):
        TorchDataset(selection, label=labels[:2])
    named = selection.with_labels("tone", ["sad", None, "glad"])
    (batch,) = TorchDataset(named, label="tone", batch_size=10)
    assert batch.labels.tolist() == [1, -1, 0]


def test_rows_not_yet_written_are_an_error_and_not_zeros(tmp_path: Path) -> None:
    with pytest.warns(es.errors.UnfinishedStoreWarning):
        part = make_store(tmp_path / "part.zarr", leave_out=(1,))
    with pytest.raises(es.errors.MissingRowsError):
        list(TorchDataset(part.store.select()))
    written = part.store.select().written()
    assert order(TorchDataset(written)) == written.rows.tolist()


@pytest.mark.slow
def test_a_dataset_can_be_sent_to_workers_that_are_spawned(made: Made, tmp_path: Path) -> None:
    code = """
import sys, torch, embstore as es
from torch.utils.data import DataLoader
if __name__ == "__main__":
    dataset = es.open(sys.argv[1]).select(layers=0).to_torch(batch_size=64, shuffle=True)
    dataset.set_epoch(1)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="spawn")
    print(torch.cat([batch.rows for batch in loader]).tolist())
"""
    (tmp_path / "spawned.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(Path(es.__file__).parents[1])}
    command = [sys.executable, str(tmp_path / "spawned.py"), str(made.store.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    dataset = TorchDataset(made.store.select(layers=0), batch_size=64, shuffle=True)
    dataset.set_epoch(1)
    assert done.stdout.strip() == str(order(dataset))
