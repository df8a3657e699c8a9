"""Batches contain every sentence once, without overlap, within their shape."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore.models.batching import BATCHINGS, fitting_capacity, make_batches


def occupied(lengths, batches):
    seen = np.zeros(len(lengths), np.int64)
    used = positions = 0
    for batch in batches:
        taken = np.zeros(batch.shape, np.int64)
        for sentence, row, column in zip(batch.sentences, batch.rows, batch.columns, strict=True):
            assert column + lengths[sentence] <= batch.shape[1]
            taken[row, column : column + lengths[sentence]] += 1
            seen[sentence] += 1
        assert taken.max() == 1
        assert (taken.sum(axis=1) > 0).all()
        used += int(taken.sum())
        positions += taken.size
    assert (seen == 1).all()
    return used / positions if positions else 1.0


@settings(max_examples=150)
@given(
    st.lists(st.one_of(st.integers(1, 20), st.integers(1, 700)), max_size=60),
    st.sampled_from(BATCHINGS),
    st.integers(1, 3000),
    st.sampled_from([16, 64, 128]),
)
def test_every_sentence_is_in_one_batch(lengths, how, size, capacity):
    lengths = np.array(lengths, np.int64)
    batches = list(make_batches(lengths, how=how, batch_subwords=size, row_capacity=capacity))
    occupied(lengths, batches)
    longest = lengths.max(initial=0)
    limit = max(size, fitting_capacity(int(longest), capacity) if how == "packed" else longest)
    assert all(batch.shape[0] * batch.shape[1] <= limit for batch in batches)
    if how == "equal":
        assert all(len(set(lengths[batch.sentences])) == 1 for batch in batches)
    again = make_batches(lengths, how=how, batch_subwords=size, row_capacity=capacity)
    assert all(np.array_equal(a.sentences, b.sentences) for a, b in zip(batches, again, strict=True))


@pytest.mark.parametrize("capacity", [64, 128])
def test_short_sentences_fill_their_rows(capacity):
    lengths = np.random.default_rng(0).geometric(1 / 18, size=3000).astype(np.int64) + 2
    batches = list(make_batches(lengths, how="packed", batch_subwords=2048, row_capacity=capacity))
    assert occupied(lengths, batches) > 0.98


def test_long_sentences_come_first():
    lengths = np.array([5, 500, 70, 6], np.int64)
    for how in BATCHINGS:
        first = next(iter(make_batches(lengths, how=how, batch_subwords=64)))
        assert 1 in first.sentences
