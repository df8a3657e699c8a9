"""The structural probe (Hewitt & Manning 2019): how much of a syntax tree can be read from the geometry of vectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.arguments import Positive, checked
from embstore.corpus.trees import Tree
from embstore.errors import InvalidValueError, NonFiniteError
from embstore.probes.base import Fitted, Probe, fitting_store, layers_of, made_by, store_of
from embstore.probes.result import ProbeResult, Row
from embstore.probes.structure.examples import SentenceFinder, Treebank, iter_tree_batches
from embstore.probes.structure.network import TASKS, Projected, StructureShape
from embstore.probes.structure.scores import Predicted, equal_lengths, linear_order, score_structure, spanning_trees
from embstore.probes.structure.training import train_structure
from embstore.probes.training import VERIFY, Schedule, Trained
from embstore.store import Selection, Store
from embstore.store.layout import Layers, one_layer

DEFAULT_RANK = 128
BASELINE = "linear order"
N_PAIRS = 2**22  # predicted distances in memory at a time
Trees = Sequence[Tree] | Mapping[str, Sequence[Tree]]


@dataclass(frozen=True, eq=False)
class RecoveredTree:
    """A gold tree and the tree that a layer's distances give, as pairs of word numbers, the lower one first.

    `words`; `punctuation` bool: words that are in neither tree. `gold` and `found`: the edges. `gold_root`, and
    `found_root`, the word of least predicted depth (None if all is punctuation). `distances` float32 [words, words],
    as predicted by `layer`.
    """

    words: tuple[str, ...]
    punctuation: NDArray[np.bool_]
    gold: frozenset[tuple[int, int]]
    found: frozenset[tuple[int, int]]
    gold_root: int
    found_root: int | None
    distances: NDArray[np.float32]
    layer: int


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedStructure(Fitted):
    """What structural probes have learned: those of a `shape`."""

    shape: StructureShape

    @property
    def weights(self) -> torch.Tensor:
        """The matrices B, float32 [layer, task, seed, rank, width]."""
        return self.trained.weights["weight"].view(*self.shape.sizes, self.shape.rank, self.shape.width)


@checked
@dataclass(kw_only=True, eq=False)
class StructuralProbe(Probe[FittedStructure]):
    """Linear maps B under which squared distances (and lengths) of word vectors are those of words in the syntax tree.

    The probes of all layers, tasks and seeds are trained together. Sentences are found in the store by their words::

        train, dev, test = (es.corpus.read_trees(f"{split}.conllu") for split in ("train", "dev", "test"))
        probe = es.probes.StructuralProbe(layers=[0, -1], rank=16, training=es.probes.Training(epochs=3))
        result = probe.fit(es.open("trees.zarr"), train, dev).score(test)

    After an epoch without a lower dev loss the learning rate of a probe is divided by ten.

    Parameters
    ----------
    layers : layers
        Those that get probes; all by default.
    seeds : int or sequence of int
        Of the initial weights and the order of the sentences.
    training : Training
        By default 40 epochs, batches of 20 sentences and patience 5.
    rank : int
        Rows of B; 128 by default, or the width of the vectors if that is less.
    """

    name: ClassVar[str] = "structural"
    defaults: ClassVar[Schedule] = Schedule(epochs=40, batch_size=20, patience=5, min_steps=50)
    dev_data: ClassVar[str] = "trees"
    rank: Positive | None = None

    @checked
    def fit(self, data: Store | Selection, train: Sequence[Tree], dev: Sequence[Tree] | None = None) -> StructuralProbe:
        """Train the probes on gold trees, stopping on the dev trees; returns itself.

        Parameters
        ----------
        data : Store or Selection
            A store of words.
        train, dev : sequence of Tree
            Gold trees, as `read_trees` returns them.

        Raises
        ------
        InvalidValueError
            For a store of subwords, a split without a sentence in the store, a layer or rank that is not allowed, early
            stopping without dev trees.
        """
        store = store_of(data)
        schedule = self._schedule(has_dev=dev is not None)
        width = store.hidden_size
        rank = min(DEFAULT_RANK, width) if self.rank is None else self.rank
        if rank > width:
            raise InvalidValueError(f"rank {rank} is not allowed: give 1 to {width}, the width of the vectors")
        shape = StructureShape(layers_of(data, self.layers), self._seeds, width, rank)
        finder = SentenceFinder(store)
        data_bank = finder.treebank(train, split="train")
        dev_bank = None if dev is None else finder.treebank(dev, split="dev")
        trained = train_structure(shape, data_bank, dev_bank, schedule=schedule)
        notes = [bank.note for bank in (data_bank, dev_bank) if bank and bank.note]
        self.fitted_ = FittedStructure(
            trained=trained,
            shape=shape,
            store=made_by(store),
            data=store,
            notes=(*notes, *self._capped_notes(store.path.stem, trained.capped)),
        )
        return self

    @checked
    def score(self, test: Trees, *, data: Store | None = None, name: str | None = None) -> ProbeResult:
        """Score the probes on test trees, or on several splits given as a mapping of names to trees.

        Parameters
        ----------
        test : sequence of Tree or mapping
            Gold trees.
        data : Store
            Another store of the same width; that of `fit` by default.
        name : str
            The store in the frame; the file's name by default.

        Raises
        ------
        InvalidValueError
            For a split without a sentence in the store, and a store that does not fit the probes.

        Notes
        -----
        The word order of each store is scored too, as store "NAME: linear order" without layer and seed.

        Metrics: `uuas`, the share of gold edges in the minimum spanning tree of the predicted distances; `dspr` and
        `nspr`, Spearman correlations of distances and depths; `root_accuracy`. Of split train: `best_epoch`, and
        `converged`: 1 if early stopping ended the training of the probe, 0 if its last epoch did (null without early
        stopping).
        """
        shape, store = self.fitted_.shape, self._store(data)
        name = store.path.stem if name is None else name
        finder = SentenceFinder(store)
        notes = list(self.fitted_.notes if data is None else self._changed_notes(name, data))
        rows: list[Row] = [
            {"store": name, "layer": layer, "task": task, "seed": seed, **row}
            for number, (layer, task, seed) in enumerate(product(shape.layers, TASKS, shape.seeds))
            for row in self.fitted_.trained.rows(np.array([number]))
        ]
        scored: list[Row] = [
            {"store": name, "layer": layer, "seed": seed} for layer, seed in product(shape.layers, shape.seeds)
        ]
        baseline: list[Row] = [{"store": f"{name}: {BASELINE}"}]
        for split, trees in (test if isinstance(test, Mapping) else {"test": test}).items():
            bank = finder.treebank(trees, split=split)
            notes += filter(None, [bank.note])
            for of, made in ((scored, self._predictions(bank)), (baseline, linear_order(bank))):
                for score in score_structure(bank, made, probes=len(of)):
                    row = {"task": score.task, "split": split, "metric": score.metric, "count": score.count}
                    rows += [{**own, **row, "value": value} for own, value in zip(of, score.values, strict=True)]
        return ProbeResult.of(rows, notes)

    def best_layer(self) -> int:
        """Return the layer whose distance probe (of the first seed) has the lowest dev loss.

        Raises InvalidValueError without early stopping unless there is a single layer.
        """
        fitted = self.fitted_
        losses = fitted.trained.dev_loss.reshape(fitted.shape.sizes)[:, 0, 0]
        if len(losses) > 1 and np.isnan(losses).any():
            raise InvalidValueError(
                "without early stopping there is no dev loss to choose the best layer by: give the layer"
            )
        return fitted.shape.layers[int(losses.argmin())]

    @checked
    def predict(self, tree: Tree, *, data: Store | None = None, layers: Layers = None) -> RecoveredTree:
        """Return the tree that the distance probe of the first seed finds for the sentence of a gold tree.

        Parameters
        ----------
        tree : Tree
            The gold tree.
        data : Store
            Another store of the same width; that of `fit` by default.
        layers : layer
            The layer; that of `best_layer` by default.

        Raises
        ------
        InvalidValueError
            For a sentence that is not in the store, a layer without probes, and several layers.
        """
        fitted, store = self.fitted_, self._store(data)
        layer = self.best_layer() if layers is None else one_layer(layers, fitted.shape.layers, absent="has no probe")
        row = fitted.shape.layers.index(layer)
        bank = SentenceFinder(store).treebank([tree])
        batch = next(iter_tree_batches(bank, [np.array([0])], [layer], torch.device("cpu")))
        projected = Projected(fitted.weights[row : row + 1], batch)
        distances = projected.distances()[0, 0, 0].numpy()
        depths = projected.depths()[0, 0, 0].numpy()
        allowed = ~tree.punctuation
        parents = spanning_trees(distances[None], allowed[None])[0].tolist()
        found, gold = (
            frozenset((min(i, h), max(i, h)) for i, h in enumerate(heads) if h >= 0)
            for heads in (parents, tree.heads.tolist())
        )
        return RecoveredTree(
            words=tree.words,
            punctuation=tree.punctuation,
            gold=frozenset(edge for edge in gold if allowed[edge[0]] and allowed[edge[1]]),
            found=found,
            gold_root=tree.root,
            found_root=int(np.where(allowed, depths, np.inf).argmin()) if allowed.any() else None,
            distances=distances,
            layer=layer,
        )

    def _predictions(self, bank: Treebank) -> Iterator[Predicted]:
        """Predict all sentences of a treebank; the probes are those of layers x seeds."""
        shape, device = self.fitted_.shape, self._schedule().device
        weights = self.fitted_.weights.to(device)
        groups = list(equal_lengths(bank, n_pairs=max(1, N_PAIRS // (len(shape.layers) * len(shape.seeds)))))
        with torch.no_grad():
            for batch in iter_tree_batches(bank, groups, shape.layers, device):
                projected = Projected(weights, batch)
                made = projected.distances(), projected.depths()
                if not all(bool(torch.isfinite(values).all()) for values in made):
                    raise NonFiniteError(f"vectors of {bank.store.path} contain NaN or infinity: {VERIFY}")
                yield Predicted(batch.sentences, *(values.flatten(0, 1).cpu().numpy() for values in made))

    def _store(self, data: Store | None) -> Store:
        shape = self.fitted_.shape
        return fitting_store(self.fitted_.data if data is None else data, shape.layers, shape.width)

    def _saved(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        fitted, shape = self.fitted_, self.fitted_.shape
        learned = {"layers": list(shape.layers), "width": shape.width, "rank": shape.rank}
        return learned, fitted.trained.tensors(shape.sizes)

    def _restored(
        self, learned: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], store: Mapping[str, Any]
    ) -> FittedStructure:
        shape = StructureShape(tuple(learned["layers"]), self._seeds, learned["width"], learned["rank"])
        trained = Trained.of(tensors, shape.sizes, {"weight": (shape.rank, shape.width)})
        return FittedStructure(trained=trained, shape=shape, store=store)
