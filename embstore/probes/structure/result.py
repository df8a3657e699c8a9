"""What the structural probe gives: scores as a tidy frame, the probes, and the trees that they see in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.corpus.trees import Tree
from embstore.errors import InvalidValueError
from embstore.probes.structure.examples import Treebank, iter_tree_batches
from embstore.probes.structure.files import SavedStructure
from embstore.probes.structure.network import Projected
from embstore.probes.structure.scores import spanning_trees
from embstore.probes.structure.training import StructureProbes

BASELINE = "linear order"
SCHEMA = {
    "store": pl.String,
    "task": pl.String,
    "layer": pl.Int64,
    "split": pl.String,
    "metric": pl.String,
    "value": pl.Float64,
    "count": pl.Int64,
    "seed": pl.Int64,
}
KEYS = ["store", "task", "layer", "split", "metric"]


@dataclass(frozen=True, eq=False)
class RecoveredTree:
    """A sentence's gold tree and the one that a layer's distances make, as pairs of places, the lower one first.

    `words`; `punctuation` bool, words that are in neither. `gold`, `found`: the edges. `gold_root`, and `found_root`,
    the word of least predicted depth, None without a depth probe. `distances` float32 [words, words], as predicted.
    """

    words: tuple[str, ...]
    punctuation: NDArray[np.bool_]
    gold: frozenset[tuple[int, int]]
    found: frozenset[tuple[int, int]]
    gold_root: int
    found_root: int | None
    distances: NDArray[np.float32]
    layer: int

    @property
    def right(self) -> frozenset[tuple[int, int]]:
        return self.gold & self.found


@dataclass(frozen=True, eq=False)
class StructureResult:
    """Scores of structural probes in `frame`: `store, task, layer, split, metric, value, count, seed`.

    The baseline of the order of a store's words has neither layer nor seed, and the store's name with ": linear order".
    `saved`: the probes by store, with what made them. `asked`: the test sentences of each. `notes`:
    what took no part, a line each.
    """

    frame: pl.DataFrame
    saved: Mapping[str, SavedStructure]
    asked: Mapping[str, Treebank]
    notes: tuple[str, ...] = ()

    def summary(self) -> pl.DataFrame:
        """Mean (`value`) and standard deviation over seeds: `deviation`, null for one seed; `seeds`, their number."""
        return self.frame.group_by(KEYS, maintain_order=True).agg(
            pl.col("value").mean(),
            pl.col("value").std().alias("deviation"),
            pl.col("count").first(),
            pl.len().alias("seeds"),
        )

    def best_layer(self, store: str) -> int:
        """The layer of the distance probe, of the first seed, of least dev loss."""
        probes = self.saved[store].probes
        return probes.shape.layers[int(probes.dev_loss[:, _distance(probes), 0].argmin())]

    def tree(self, sentence: int, *, store: str | None = None, layer: int | None = None) -> RecoveredTree:
        """The tree that a store's distance probe of the first seed sees in a test sentence, counted from 0.

        `store`: may be left out where there is one. `layer`: None for that of least dev loss.
        """
        name = self._store(store)
        probes, bank = self.saved[name].probes, self.asked[name]
        if not 0 <= sentence < len(bank):
            raise InvalidValueError(f"there is no test sentence {sentence}: {name} has 0 to {len(bank) - 1}")
        layer = self.best_layer(name) if layer is None else layer
        if layer not in probes.shape.layers:
            known = ", ".join(map(str, probes.shape.layers))
            raise InvalidValueError(f"there is no probe of layer {layer}: {name} has those of {known}")
        row = probes.shape.layers.index(layer)
        _distance(probes)
        device = probes.weights.device
        batch = next(iter_tree_batches(bank, [np.array([sentence])], [layer], device))
        projected = Projected(probes.weights[row : row + 1], batch, probes.shape.tasks)
        distances = projected.distances()[0, 0, 0].numpy()
        depths = projected.depths()[0, 0, 0].numpy() if "depth" in probes.shape.tasks else None
        return _recovered(bank.trees[sentence], distances, depths, layer)

    def _store(self, store: str | None) -> str:
        if store is None and len(self.saved) == 1:
            return next(iter(self.saved))
        if store is None or store not in self.saved:
            raise InvalidValueError(f"there is no store {store!r}: the probes are of {', '.join(self.saved)}")
        return store


def _distance(probes: StructureProbes) -> int:
    if "distance" not in probes.shape.tasks:
        raise InvalidValueError("there is no distance probe to make a tree with: train one")
    return probes.shape.tasks.index("distance")


def _recovered(
    tree: Tree, distances: NDArray[np.float32], depths: NDArray[np.float32] | None, layer: int
) -> RecoveredTree:
    allowed = ~tree.punctuation
    parents = spanning_trees(distances[None], allowed[None])[0]
    words = range(len(tree))
    found = {(min(i, p), max(i, p)) for i, p in zip(words, parents.tolist(), strict=True) if p >= 0}
    gold = {(min(i, h), max(i, h)) for i, h in zip(words, tree.heads.tolist(), strict=True) if h >= 0}
    least = None if depths is None or not allowed.any() else int(np.where(allowed, depths, np.inf).argmin())
    return RecoveredTree(
        words=tree.words,
        punctuation=tree.punctuation,
        gold=frozenset(edge for edge in gold if allowed[edge[0]] and allowed[edge[1]]),
        found=frozenset(found),
        gold_root=tree.root,
        found_root=least,
        distances=distances,
        layer=layer,
    )
