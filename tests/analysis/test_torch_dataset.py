"""A selection as a torch dataset gives every row once an epoch, in the order that seed and epoch fix."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import embstore as es
from embstore.analysis.torch_dataset import Examples, TorchDataset
from embstore.errors import InvalidValueError
from tests.store_making import Made, make_store


@pytest.fixture(scope="module", params=["zarr", "h5"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_store(tmp_path_factory.mktemp("stores") / f"store.{request.param}", sentences=160)


def joined(parts: list[Examples]) -> Examples:
    return Examples(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def order(dataset: TorchDataset) -> list[int]:
    return [int(example.rows) for example in dataset]


def hold(examples: Examples, made: Made, layers: tuple[int, ...]) -> None:
    """Every vector and label must be that of the row given with it."""
    places = [made.store.layers.index(layer) for layer in layers]
    rows = examples.rows.numpy()
    np.testing.assert_array_equal(examples.vectors.numpy(), made.vectors[places][:, rows].transpose(1, 0, 2))
    tags = list(made.store.index.labels["upos"].names)
    assert [None if code < 0 else tags[code] for code in examples.labels.tolist()] == [
        made.table[row]["upos"] for row in rows.tolist()
    ]


def test_single_examples_come_in_the_order_of_the_selection(made: Made) -> None:
    dataset = es.TorchDataset(made.store.select(), label="upos")
    examples = list(dataset)
    assert len(dataset) == len(examples) == made.store.n_rows
    assert [int(example.rows) for example in examples] == list(range(made.store.n_rows))
    assert examples[3].vectors.shape == (3, made.store.hidden_size)
    assert examples[3].vectors.dtype == torch.float32
    hold(Examples(*(torch.stack(column) for column in zip(*examples, strict=True))), made, made.store.layers)


@pytest.mark.parametrize("batch_size", [1, 7, 256, 300, 100_000])
@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_hold_every_row_once(made: Made, batch_size: int, shuffle: bool) -> None:
    selection = made.store.select(words=["bank", "new york"], layers=[5, 0])
    dataset = es.TorchDataset(selection, label="upos", batch_size=batch_size, shuffle=shuffle, block_rows=16)
    batches = list(dataset)
    assert len(dataset) == len(batches)
    assert {len(batch.rows) for batch in batches[:-1]} <= {batch_size}
    assert 1 <= len(batches[-1].rows) <= batch_size
    found = joined(batches)
    assert found.vectors.shape == (len(selection), 2, made.store.hidden_size)
    assert (sorted if shuffle else list)(found.rows.tolist()) == selection.rows.tolist()
    hold(found, made, (5, 0))


def test_shuffling_is_fixed_by_seed_and_epoch(made: Made) -> None:
    def shuffled(*, seed: int = 0, epoch: int = 0) -> list[int]:
        dataset = es.TorchDataset(made.store.select(), shuffle=True, block_rows=32, window_blocks=4, seed=seed)
        dataset.set_epoch(epoch)
        return order(dataset)

    first = shuffled()
    assert shuffled() == first
    dataset = es.TorchDataset(made.store.select(), shuffle=True)
    assert order(dataset) == order(dataset), "a second pass without a new epoch is the same"
    others = [list(range(made.store.n_rows)), shuffled(seed=1), shuffled(epoch=1), shuffled(seed=1, epoch=1)]
    for other in others:
        assert sorted(other) == list(range(made.store.n_rows))
        assert other != first
    assert shuffled(epoch=1) == others[2]


def test_shuffling_mixes_within_a_window_of_blocks(made: Made) -> None:
    block, window = 16, 3
    dataset = es.TorchDataset(made.store.select(), shuffle=True, block_rows=block, window_blocks=window)
    rows = np.array(order(dataset))
    first = rows[: block * window] // block
    assert len(set(first.tolist())) == window, "whole blocks make a window"
    assert len(set(first[:block].tolist())) > 1, "and their rows are mixed"
    assert np.abs(np.diff(rows)).max() > block * window, "and the blocks are far apart"


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_sees_every_row_once(made: Made, workers: int, shuffle: bool) -> None:
    dataset = es.TorchDataset(made.store.select(), label="upos", batch_size=50, shuffle=shuffle, block_rows=64)
    loader = DataLoader(
        dataset, batch_size=None, num_workers=workers, multiprocessing_context="fork" if workers else None
    )
    found = joined(list(loader))
    assert sorted(found.rows.tolist()) == list(range(made.store.n_rows))
    hold(found, made, made.store.layers)


def test_a_data_loader_may_batch_single_examples_itself(made: Made) -> None:
    dataset = es.TorchDataset(made.store.select(layers=2), label="upos")
    batches = list(DataLoader(dataset, batch_size=100))
    assert [len(batch.rows) for batch in batches[:-1]] == [100] * (len(batches) - 1)
    hold(joined([Examples(*batch) for batch in batches]), made, (2,))


def test_selections_of_few_rows_and_of_none(made: Made) -> None:
    rows = [300, 2, 2, 150]
    assert order(es.TorchDataset(made.store.select(rows=rows))) == rows
    (batch,) = es.TorchDataset(made.store.select(rows=rows), batch_size=10)
    assert batch.labels.tolist() == [-1] * 4, "no label column"
    few = es.TorchDataset(made.store.select(rows=[5, 6, 7]), batch_size=2)
    loader = DataLoader(few, batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert sorted(row for batch in loader for row in batch.rows.tolist()) == [5, 6, 7], "more workers than blocks"
    empty = made.store.select(rows=[])
    assert list(es.TorchDataset(empty)) == []
    assert list(es.TorchDataset(empty, batch_size=4, shuffle=True)) == []
    assert len(es.TorchDataset(empty, batch_size=4)) == 0


def test_bad_options_are_refused(made: Made) -> None:
    for option, value in product(("batch_size", "block_rows", "window_blocks"), (0, -3)):
        with pytest.raises(InvalidValueError, match=f"{option} {value} is not allowed: give 1 or more"):
            es.TorchDataset(made.store.select(), **{option: value})
    with pytest.raises(InvalidValueError, match="no label column 'ner': the store has upos"):
        es.TorchDataset(made.store.select(), label="ner")


@pytest.mark.parametrize("kind", [np.int32, np.float64, bool, str])
def test_labels_from_an_array(made: Made, kind: type) -> None:
    selection = made.store.select(rows=[9, 4, 250])
    labels = np.array([3, 0, 7]).astype(kind)
    (batch,) = es.TorchDataset(selection, label=labels, batch_size=10)
    assert batch.rows.tolist() == [9, 4, 250]
    assert batch.labels.dtype == (torch.float32 if kind is np.float64 else torch.int64)
    assert batch.labels.tolist() == ([1, 0, 2] if kind is str else [1, 0, 1] if kind is bool else [3, 0, 7])
    with pytest.raises(InvalidValueError, match=r"labels of shape \(2,\) do not fit a selection of 3 rows"):
        es.TorchDataset(selection, label=labels[:2])
    named = selection.with_labels("tone", ["sad", None, "glad"])
    (batch,) = es.TorchDataset(named, label="tone", batch_size=10)
    assert batch.labels.tolist() == [1, -1, 0]


def test_rows_not_yet_written_are_an_error_and_not_zeros(tmp_path: Path) -> None:
    with pytest.warns(es.errors.UnfinishedStoreWarning):
        part = make_store(tmp_path / "part.zarr", leave_out=(1,))
    with pytest.raises(es.errors.MissingRowsError):
        list(es.TorchDataset(part.store.select()))
    written = part.store.select().committed()
    assert order(es.TorchDataset(written)) == written.rows.tolist()
