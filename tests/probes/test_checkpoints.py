"""Structural probes that were interrupted, and what a checkpoint must be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from embstore.errors import InvalidValueError
from embstore.probes.checkpoints import Checkpoint, digest_of
from embstore.probes.structure.examples import SentenceFinder
from embstore.probes.structure.network import StructureShape
from embstore.probes.structure.training import StructureTraining, train_structure
from tests.probes.tree_store import NOISE, PLANTED, make


class _Interrupted(Exception):
    pass


def test_an_interrupted_structural_training_comes_to_the_same_weights(tmp_path: Path) -> None:
    made = make(tmp_path / "a.zarr", sentences=60)
    finder = SentenceFinder(made.store)
    train, dev = finder.treebank(made.trees[:40]), finder.treebank(made.trees[40:])
    shape = StructureShape((NOISE, PLANTED), ("distance", "depth"), (0, 7), 20, 5)
    training = StructureTraining(epochs=10, batch_size=8, learning_rate=0.3, patience=2)
    whole = train_structure(shape, train, dev, training=training)
    assert len(set(whole.epochs.ravel().tolist())) > 1, "some probes have stopped before others"
    path = tmp_path / "training"
    for stop in (50, 90, 210):  # of 10 x 40 sentences: in the second epoch, the third and the sixth

        def interrupt(done: int, total: int, stop: int = stop) -> None:
            if stop <= done < total:
                raise _Interrupted

        with pytest.raises(_Interrupted):
            train_structure(shape, train, dev, training=training, checkpoint=path, progress=interrupt)
    begun: list[int] = []
    again = train_structure(
        shape, train, dev, training=training, checkpoint=path, progress=lambda done, total: begun.append(done)
    )
    assert begun[0] > 5 * 40, "it has gone on, not begun again"
    assert torch.equal(again.weights, whole.weights)
    assert np.array_equal(again.epochs, whole.epochs)
    assert np.array_equal(again.dev_loss, whole.dev_loss)
    with pytest.raises(InvalidValueError, match="is of another training"):
        train_structure(shape, train, finder.treebank(made.trees[41:]), training=training, checkpoint=path)
    path.write_bytes(b"something")
    with pytest.raises(InvalidValueError, match="is no checkpoint of structural probes"):
        train_structure(shape, train, dev, training=training, checkpoint=path)


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    kept = Checkpoint(tmp_path / "kept", what="probes", made_from="this")
    assert kept.read() is None
    kept.write({"epoch": 3, "weights": torch.arange(4.0)})
    held = kept.read()
    assert held is not None
    assert (held["epoch"], held["weights"].tolist()) == (3, [0, 1, 2, 3])
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]
    with pytest.raises(InvalidValueError, match="is of another training"):
        Checkpoint(tmp_path / "kept", what="probes", made_from="that").read()
    with pytest.raises(InvalidValueError, match="is a folder"):
        Checkpoint(tmp_path, what="probes", made_from="this")
    with pytest.raises(InvalidValueError, match="does not exist"):
        Checkpoint(tmp_path / "none" / "kept", what="probes", made_from="this")


def test_a_digest_is_that_of_values_shapes_and_kinds() -> None:
    one = np.arange(6)
    same = digest_of("a", one, 3)
    assert digest_of("a", np.arange(12)[:6].copy(), 3) == same
    others = [
        ("b", one, 3),
        ("a", one.reshape(2, 3), 3),
        ("a", one.astype(np.int32), 3),
        ("a", one, 4),
        ("a", one + 1, 3),
    ]
    assert same not in {digest_of(*other) for other in others}
