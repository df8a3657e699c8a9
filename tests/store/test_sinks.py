"""The first positions of contexts with vectors many times longer than others are found and left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import embstore as es
from embstore.store.places import place
from embstore.store.sinks import SINGLE_RATIO, SINK_RATIO, find_sinks
from tests.json_schemas import validator_of
from tests.models import tiny


def stored(
    folder: Path, *positions: int, length: float = 3000.0, context: object = 24
) -> tuple[es.extraction.Plan, es.Store]:
    """Return the plan and the store of a GPT-2 whose vectors at some positions are long."""
    encoder = es.load_encoder(tiny.save("gpt2", folder / "gpt2"))
    with torch.no_grad():
        encoder.network.model.wpe.weight[list(positions), 7] = length  # type: ignore[attr-defined]
    options = es.ExtractionOptions(unit="subword", context=context)  # type: ignore[arg-type]
    texts = [" ".join(words) for words in tiny.random_sentences(50, seed=4)]
    plan = es.plan(["\n".join(texts[:40]), *texts[40:]], model=encoder, options=options)
    return plan, es.extract(plan, folder / "store.zarr")


@pytest.mark.parametrize("positions", [(0,), (0, 1)])
def test_sinks_are_found_and_left_out(positions: tuple[int, ...], tmp_path: Path) -> None:
    plan, store = stored(tmp_path, *positions)
    described = store.describe()
    validator_of("info").validate(described)
    lengths = np.linalg.norm(store.select().vectors().astype(float), axis=-1)
    is_long = (lengths > SINK_RATIO * np.median(lengths, axis=1, keepdims=True)).any(0)
    assert described["sinks"]["positions"] == list(positions)
    assert described["sinks"]["ratio"] == pytest.approx((lengths.max(1) / np.median(lengths, axis=1)).max(), rel=0.2)
    assert is_long.sum() >= 5
    assert store.select(sinks=False).rows.tolist() == np.flatnonzero(~is_long).tolist()
    assert store.select(sinks=False, rows=[30, 0, 31], where="position < 99").rows.tolist() == [30, 31]
    assert any("attention sink" in line for line in plan.advice)


def test_a_store_without_sinks_is_whole(tmp_path: Path) -> None:
    plan, store = stored(tmp_path, 0, length=0.1)
    assert find_sinks(store) is None
    assert "sinks" not in store.describe()
    assert len(store.select(sinks=False)) == store.n_rows
    assert not any("attention sink" in line for line in plan.advice)


def test_few_contexts_are_no_sinks_by_one_long_vector(tmp_path: Path) -> None:
    _, store = stored(tmp_path, 0, length=30, context="document")
    assert (sinks := find_sinks(store)) is not None
    assert SINK_RATIO < sinks.ratio < SINGLE_RATIO
    few = es.store.export(store.select(where="document < 2"), tmp_path / "few.zarr")
    assert find_sinks(es.open(few.path)) is None


def test_a_store_that_lost_its_vectors_is_described(tmp_path: Path) -> None:
    _, store = stored(tmp_path, 0)
    (tmp_path / "store.zarr" / "hidden_states" / "c" / "0" / "0" / "0").unlink()
    assert "sinks" not in es.open(store.path).describe()


def test_a_position_later_in_a_context_is_no_sink(tmp_path: Path) -> None:
    _, store = stored(tmp_path, 9)
    assert (place(store.index, "context_position", np.arange(store.n_rows)) == 9).any()
    assert find_sinks(store) is None


def test_a_context_whose_sink_is_another_position_is_measured(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(20, 1, 9, 8)).astype(np.float32)
    vectors[:, :, 0] *= 100
    vectors[[5, 7], :, :2] = vectors[[5, 7], :, 1::-1]  # the second word is the sink, not the first
    store = es.store.write_arrays(tmp_path / "s.zarr", [list("abcdefghi")] * 20, vectors, model="m", dtype="float32")
    assert find_sinks(store) is not None
    left = store.select(sinks=False).rows
    assert left.tolist() == [row for row in range(180) if row % 9 and row not in (5 * 9 + 1, 7 * 9 + 1)]
    assert store.select(sinks=False, words=["a", "b"]).rows.tolist() == [row for row in left if row % 9 == 1]
