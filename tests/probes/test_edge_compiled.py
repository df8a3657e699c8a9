"""The compiled edge probes against plain torch, batches against sentences one by one, and what a batch may hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from embstore.probes.edges import batches as edge_batches
from embstore.probes.edges import compiled as edge_compiled
from embstore.probes.edges.batches import iter_batches, not_finite
from embstore.probes.edges.columns import SplitPlan
from embstore.probes.edges.model import EdgeBank, EdgeShape, plain_logits
from embstore.probes.edges.products import Apart, Joined, Products, products_of
from embstore.probes.edges.tasks import EdgeSplit, join_task
from embstore.probes.mixing import cumulative, mixed, mixing_weights
from tests.probes.edge_store import make

CPU = torch.device("cpu")


def bank_of(layers: int, width: int, split: EdgeSplit, labels: int, seeds: tuple[int, ...] = (0, 4)) -> EdgeBank:
    shape = EdgeShape(layers, width, len(split.spans), labels, projection=7, hidden_size=9)
    allowed = np.tile(cumulative(layers), (len(seeds), 1))
    bank = EdgeBank.initial(shape, allowed, np.repeat(np.array(seeds), layers), device=CPU)
    generator = torch.Generator().manual_seed(0)
    for tensor in bank.weights.values():
        tensor.add_(torch.randn(tensor.shape, generator=generator) * 0.3).requires_grad_()
    return bank


@pytest.mark.parametrize("products", [Apart, Joined])
@pytest.mark.parametrize(
    ("pairs", "longest", "dtype", "threads"),
    [(False, 1, "float16", 1), (False, 3, "float32", 1), (True, 3, "float16", 2), (True, 1, "float32", 2)],
)
def test_the_compiled_slopes_are_those_of_autograd(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    products: type[Products],
    pairs: bool,
    longest: int,
    dtype: str,
    threads: int,
) -> None:
    monkeypatch.setattr(edge_compiled, "products_of", lambda weights, spans, targets: products(weights, spans))
    made = make(tmp_path / "a.zarr", sentences=10, pairs=pairs, longest=longest, several=True, dtype=dtype)
    split = join_task(made.store, **made.splits).splits["train"]
    bank = bank_of(5, 12, split, split.gold.shape[1])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for batch in iter_batches(made.store, split, np.arange(split.sentences), range(5), batch_size=4, device=CPU):
            kept = bank.kept(0.3, len(batch), key=(1, 2))
            found = bank.logits(batch, kept=kept)
            weights = mixing_weights(bank.weights["mix"], torch.from_numpy(bank.allowed))
            plain = plain_logits(bank.weights, mixed(batch.vectors, weights, bank.weights["scale"]), batch, kept)
            torch.testing.assert_close(found, plain, atol=1e-5, rtol=1e-4)
            slopes = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
            leaves = list(bank.weights.values())
            own = torch.autograd.grad(found, leaves, slopes, allow_unused=True)
            others = torch.autograd.grad(plain, leaves, slopes, allow_unused=True)
            for name, one, other in zip(bank.weights, own, others, strict=True):
                expected = torch.zeros_like(bank.weights[name]) if other is None else other
                got = torch.zeros_like(expected) if one is None else one
                torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-3, msg=name)
    finally:
        torch.set_num_threads(before)


def test_projection_and_hidden_layer_are_joined_where_spans_are_many(tmp_path: Path) -> None:
    made = make(tmp_path / "a.zarr", sentences=60, longest=1)
    split = join_task(made.store, **made.splits).splits["train"]
    bank = bank_of(5, 12, split, 3)  # a span costs 12 x 7, and 7 x 9 more; joined 12 x 9 and in all 12 x 7 x 9
    for size, expected in ((1, Apart), (36, Joined)):
        batch = next(iter_batches(made.store, split, np.arange(36), range(5), batch_size=size, device=CPU))
        assert type(products_of(bank.weights, batch.spans, len(batch))) is expected


def test_batches_are_the_sentences_one_after_the_other(tmp_path: Path) -> None:
    made = make(tmp_path / "a.zarr", sentences=14, pairs=True)
    split = join_task(made.store, **made.splits).splits["train"]
    plan = SplitPlan.of(split)
    assert SplitPlan.of(split) is plan
    for sentences in ([0], [3, 1, 4], list(range(split.sentences))):
        batch = plan.batch(np.array(sentences))
        targets = [target for s in sentences for target in range(split.first[s], split.first[s + 1])]
        assert batch.targets.tolist() == targets
        rows = [
            row
            for s in sentences
            for row in sorted(
                {
                    row
                    for target in range(split.first[s], split.first[s + 1])
                    for kind in split.spans
                    for row in range(*kind[target])
                }
            )
        ]
        assert batch.rows.tolist() == rows
        for kind, spans in zip(split.spans, batch.spans, strict=True):
            cut = np.split(batch.rows[spans.places], spans.begin[1:-1])
            assert [cut[span].tolist() for span in spans.of] == [list(range(*kind[target])) for target in targets]
            assert len({(tuple(each.tolist())) for each in cut}) == len(cut), "each distinct span once"
    largest = plan.largest(2)
    for first in range(split.sentences - 1):
        batch = plan.batch(np.array([first, first + 1]))
        assert len(batch.rows) <= largest.rows
        assert len(batch.targets) <= largest.targets
        assert sum(len(each.begin) - 1 for each in batch.spans) <= largest.spans
        assert sum(len(each.places) for each in batch.spans) <= largest.entries


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("wrong", [np.nan, -np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_seen_wherever_it_stands(dtype: type, wrong: float) -> None:
    largest = np.finfo(dtype).max
    for size in (1, 2, 3, 4, 5, 7, 8, 33):
        values = np.array([largest, -largest, 0, np.finfo(dtype).tiny] * 9, dtype)[:size].reshape(1, -1)
        assert not not_finite(values)
        for place in range(size):
            spoilt = values.copy()
            spoilt[0, place] = wrong
            assert not_finite(spoilt)


@pytest.mark.parametrize("group_nbytes", [1, 5000, 2**20])
def test_no_more_than_three_batches_are_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_nbytes: int
) -> None:
    monkeypatch.setattr(edge_batches, "GROUP_NBYTES", group_nbytes)
    made = make(tmp_path / "a.zarr", sentences=60, dtype="float16")
    split = join_task(made.store, **made.splits).splits["train"]
    held: list[tuple[int, int]] = []
    gather = type(made.store).gather_layers

    def told(self, rows, layers=None, *, out, missing="error"):  # type: ignore[no-untyped-def]
        held.append((out.ctypes.data, out.ctypes.data + out.nbytes))
        return gather(self, rows, layers, out=out, missing=missing)

    monkeypatch.setattr(type(made.store), "gather_layers", told)
    largest = SplitPlan.of(split).largest(2).rows
    for batch in iter_batches(made.store, split, np.arange(split.sentences), range(5), batch_size=2, device=CPU):
        assert batch.stored.dtype == torch.float16
        assert batch.stored.shape[1] <= largest
        assert batch.stored.data_ptr() in {start for start, _ in held}
        expected = made.vectors[:, batch_rows(split, batch.targets)].astype(np.float16)
        np.testing.assert_array_equal(batch.stored.numpy(), expected)
    assert len(held) == 18
    used = np.zeros(max(stop for _, stop in held) - min(start for start, _ in held), bool)
    for start, stop in held:
        used[start - min(start for start, _ in held) :][: stop - start] = True
    nbytes = largest * 5 * made.store.hidden_size * 2
    assert used.sum() <= 3 * max(nbytes, group_nbytes), "rooms are used again"


def batch_rows(split: EdgeSplit, targets: np.ndarray) -> list[int]:
    rows = {row for target in targets for kind in split.spans for row in range(*kind[target])}
    return sorted(rows)
