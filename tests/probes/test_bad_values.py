"""Sizes of probes that no memory holds are refused in one line, before anything is allocated."""

from __future__ import annotations

from pathlib import Path

import pytest

import embstore as es
from embstore.errors import InvalidValueError
from embstore.probes import code_length, split_words
from tests.probes import class_store, edge_store, tree_store


def test_sizes_beyond_the_memory_are_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    size = 2**31
    classes = class_store.make(tmp_path / "class.zarr")
    edges = edge_store.make(tmp_path / "edges.zarr", sentences=10, layers=(0, 1), planted=1)
    trees = tree_store.make(tmp_path / "trees.zarr", sentences=10)
    fast = es.probes.Training(epochs=1, patience=0)
    words, train = split_words(*classes.lists), edges.splits["train"]
    for fit in (
        lambda: es.ClassProbe(kind="mlp", hidden_size=size, training=fast).fit(classes.store, words),
        lambda: es.EdgeProbe(hidden_size=size, training=fast).fit(edges.store, train),
        lambda: code_length(edges.store, train, probe=es.EdgeProbe(hidden_size=size, training=fast)),
    ):
        with pytest.raises(InvalidValueError, match="memory 4"):
            fit()
    large = es.probes.Training(epochs=1, batch_size=size, patience=0)  # no more than all examples
    es.ClassProbe(training=large).fit(classes.store, words)
    es.EdgeProbe(training=large, hidden_size=4).fit(edges.store, train)
    es.StructuralProbe(training=large, rank=2).fit(trees.store, trees.trees)
