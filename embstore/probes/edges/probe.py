"""Edge probes (Tenney et al. 2019): in which layers a task over labelled spans is solved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from embstore.arguments import Count, Positive, checked
from embstore.config import settings
from embstore.errors import InvalidValueError
from embstore.probes.base import Fitted, Probe, fitting_store, layers_of, made_by, store_of
from embstore.probes.control import ControlTask
from embstore.probes.edges.model import EdgeBank, EdgeShape, Kind
from embstore.probes.edges.scores import ProbeGrid, SplitCounts, constant_counts, majority, mixing_rows, score_edges
from embstore.probes.edges.tasks import (
    EdgeLabels,
    Edges,
    JoinedEdges,
    control_split,
    control_task,
    join_edges,
    join_task,
    require_unit,
)
from embstore.probes.edges.training import EdgeStream, iter_logits, train_edges
from embstore.probes.result import ProbeResult, Row
from embstore.probes.training import Schedule, Trained
from embstore.progress import reporting
from embstore.store import Selection, Store


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedEdges(Fitted):
    """What edge probes have learned of a task.

    `labels`: of the task. `grid`: which probe is which. `shape`: their sizes. `control`: the control task and its
    probes, if any. `majority` bool [labels]: the best constant answer.
    """

    labels: EdgeLabels
    grid: ProbeGrid
    shape: EdgeShape
    control: tuple[ControlTask, Trained] | None
    majority: NDArray[np.bool_]

    def bank(self, trained: Trained | None = None) -> EdgeBank:
        """Return the probes of the task, or those of its control task, as one model."""
        return EdgeBank(self.shape, self.grid.allowed, self.grid.seed_of, (trained or self.trained).weights)


@checked
@dataclass(kw_only=True, eq=False)
class EdgeProbe(Probe[FittedEdges]):
    """Probes P(0) ... P(L) that label spans, where P(l) reads a learned mix of the layers 0 to l.

    All P(l) of all seeds are trained together as one model::

        probe = es.probes.EdgeProbe(layers=[0, 3, 6], training=es.probes.Training(epochs=3))
        probe.fit(es.open("trees.zarr"), "nouns/train.jsonl", "nouns/dev.jsonl").score("nouns/test.jsonl")

    Parameters
    ----------
    layers : layers
        Those that are mixed; all by default.
    seeds : int or sequence of int
        Of the initial weights, the order of the sentences and dropout; all else that is random is drawn with the first.
    training : Training
        By default 30 epochs, batches of 32 sentences and patience 3.
    kind : str
        "mlp", the probe of Tenney et al., or "linear", one matrix over the mean of each span, and over the product of
        the means of two (Liu et al. 2019), which is always layerwise.
    layerwise : bool
        Also train a probe of each layer alone.
    control : bool
        Also train probes of the control task, whose labels are drawn by the forms of spans (Hewitt & Liang 2019).
    hidden_size : int
        Units of the hidden layer of an mlp, and the numbers that vectors are projected to.
    """

    name: ClassVar[str] = "edge"
    defaults: ClassVar[Schedule] = Schedule(epochs=30, batch_size=32, patience=3, min_steps=50)
    dev_data: ClassVar[str] = "targets"
    kind: Kind = "mlp"
    layerwise: bool = False
    control: bool = False
    hidden_size: Positive = 256

    @checked
    def fit(
        self, data: Store | Selection, train: Edges, dev: Edges | None = None, *, name: str | None = None
    ) -> EdgeProbe:
        """Train the probes on the train targets of a task, stopping on the dev targets; returns itself.

        Parameters
        ----------
        data : Store or Selection
            The store of the sentences.
        train, dev : path or sequence of EdgeSentence
            JSON lines files with `text` and `targets`, or sentences as `read_edges` returns them; they are found in the
            store by their texts.
        name : str
            Of the task; that of its folder or file by default.

        Raises
        ------
        InvalidValueError
            For texts that the store does not have, spans outside their sentence, a layer that is
            not stored, early stopping without dev targets or too little memory.
        """
        schedule, store = self._schedule(has_dev=dev is not None), store_of(data)
        layers = layers_of(data, self.layers)
        task = join_task(store, train, dev, name=name)
        drawn = ControlTask.of(task.train.gold, self._seeds[0]) if self.control else None
        tasks = [task] if drawn is None else [task, control_task(task, store, drawn)]
        grid = self._grid(layers)
        shape = self._shape(task.labels, grid, store.hidden_size)
        stream, bank = EdgeStream(store, grid.layers, schedule), EdgeBank(shape, grid.allowed, grid.seed_of)
        trained: list[Trained] = []
        with reporting(settings().progress, unit="sentences", label=task.labels.name) as report:
            for own in tasks:

                def part(done: int, total: int | None, before: int = len(trained)) -> None:
                    report(before * (total or 0) + done, len(tasks) * (total or 0))

                trained.append(train_edges(bank, stream, own.train, own.dev, progress=part))
        capped = np.concatenate([own.capped for own in trained])
        notes = (*task.notes, *self._capped_notes(task.labels.name, capped))
        self.fitted_ = FittedEdges(
            trained=trained[0],
            labels=task.labels,
            grid=grid,
            shape=shape,
            control=None if drawn is None else (drawn, trained[1]),
            majority=majority(task.train, single=task.labels.single),
            store=made_by(store),
            data=store,
            notes=notes,
        )
        return self

    def _grid(self, layers: Sequence[int]) -> ProbeGrid:
        """The probes of some layers."""
        return ProbeGrid(tuple(layers), self._seeds, self.layerwise or self.kind == "linear")

    def _shape(self, labels: EdgeLabels, grid: ProbeGrid, width: int) -> EdgeShape:
        """The sizes of the probes of a task on vectors of `width` numbers."""
        sizes = len(grid.layers), width, 2 if labels.pairs else 1, len(labels.labels)
        return EdgeShape(*sizes, self.hidden_size, self.kind)

    @checked
    def score(
        self,
        test: Edges | Mapping[str, Edges],
        *,
        data: Store | Selection | None = None,
        resamples: Count = 1000,
        name: str | None = None,
    ) -> ProbeResult:
        """Score the probes on test targets, or on several splits given as a mapping of names to targets.

        Parameters
        ----------
        test : path, sequence of EdgeSentence or mapping
            The targets, as of `fit`.
        data : Store or Selection
            Another store of the same model; that of `fit` by default.
        resamples : int
            Of the sentences, for 95 % intervals of the mean over the seeds (0: none), which do not cover other seeds:
            see the deviation over seeds.
        name : str
            The store in the frame; the file's name by default.

        Raises
        ------
        InvalidValueError
            For a store that does not fit the probes, and as `fit` does for targets.

        Notes
        -----
        Metrics of each split: `f1` (micro) of P(l) by layer, by the likeliest label if every target has exactly one,
        else by the labels with a probability of one half or more; `layer_f1` of each layer alone; `differential`
        (eq. 3), `expected_layer` (4; null if it or its interval is not within the layers, with the reason as `item` and
        in the notes), `differential_kl`, `majority_f1`. With a control task `control_f1` and `selectivity`,
        `layer_control_f1` and `layer_selectivity`. Of split train: `mixing` (s of P(L) by layer), `center_of_gravity`
        (2), `mixing_kl`, and of P(l) `best_epoch` and `converged` (1 if early stopping ended its training, 0 if the
        last epoch did). `count`: labels to find.
        """
        fitted, store = self.fitted_, self._store(data)
        rows: list[Row] = list(mixing_rows(fitted.grid, fitted.bank(), fitted.trained))
        notes = list(fitted.notes) if data is None else []
        for split, edges in (test if isinstance(test, Mapping) else {"test": test}).items():
            joined = self.join(edges, data=data, split=split)
            notes += joined.notes
            stream, control = EdgeStream(store, fitted.grid.layers, self._schedule()), None
            single = fitted.labels.single
            own = score_edges(fitted.bank(), stream, joined.split, single=single)
            if fitted.control is not None:
                task, trained = fitted.control
                drawn = control_split(joined.split, store, task)
                control = score_edges(fitted.bank(trained), stream, drawn, single=single)
            counts = SplitCounts(own, constant_counts(fitted.majority, joined.split), control)
            scored = list(counts.rows(fitted.grid, n_resamples=resamples, seed=self._seeds[0]))
            rows += [{"split": split, **row} for row in scored]
            why = dict.fromkeys(row["item"] for row in scored if row.get("item"))
            notes += [f"{fitted.labels.name}: {split}: the expected layer is {reason}" for reason in why]
        return ProbeResult.of(rows, notes, store=store.path.stem if name is None else name, task=fitted.labels.name)

    @checked
    def predict(
        self, edges: Edges, *, data: Store | Selection | None = None, seed: Count | None = None
    ) -> NDArray[np.float32]:
        """Return the probability that P(0) ... P(L) give each label of each target, float32 [layers, targets, labels].

        The labels are `fitted_.labels.labels`; the targets are those of `join`.

        Parameters
        ----------
        edges : path or sequence of EdgeSentence
            The targets, as of `fit`.
        data : Store or Selection
            Another store of the same model; that of `fit` by default.
        seed : int
            Of the probes, the first by default.
        """
        fitted, store = self.fitted_, self._store(data)
        split, seeds = self.join(edges, data=data).split, fitted.grid.seeds
        seed = seeds[0] if seed is None else seed
        if seed not in seeds:
            known = ", ".join(map(str, seeds))
            raise InvalidValueError(f"the probes of {fitted.labels.name} have no seed {seed}: they have {known}")
        bank = fitted.bank().take(fitted.grid.kinds[""][seeds.index(seed)])
        out = np.empty((len(bank), len(split), len(fitted.labels.labels)), np.float32)
        for targets, logits in iter_logits(bank, EdgeStream(store, fitted.grid.layers, self._schedule()), split):
            out[:, targets] = logits.sigmoid().cpu().numpy()
        return out

    def join(self, edges: Edges, *, data: Store | Selection | None = None, split: str = "test") -> JoinedEdges:
        """Find targets of the task in a store; a store that was made otherwise than that of `fit` is noted."""
        store, labels = self._store(data), self.fitted_.labels
        joined = join_edges(store, edges, labels, split=split)
        return replace(joined, notes=(*self._changed_notes(labels.name, data), *joined.notes))

    def _store(self, data: Store | Selection | None) -> Store:
        """Return the store to predict on; raises InvalidValueError if it does not fit the probes."""
        fitted = self.fitted_
        own = fitted.data if data is None else data
        what = f"the probes of {fitted.labels.name}"
        store = fitting_store(own, fitted.grid.layers, fitted.shape.width, what=what)
        unit, own_unit = require_unit(store), fitted.store["extraction"].get("unit", "word")
        if unit != own_unit:
            advice = f"extract one with --unit {own_unit}"
            raise InvalidValueError(
                f"{what} read rows of unit {own_unit}, {store.path} has those of unit {unit}: {advice}"
            )
        return store

    def _saved(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        fitted, sizes = self.fitted_, (len(self.fitted_.grid.seed_of),)
        labels, layers = fitted.labels, np.array(fitted.grid.layers)
        learned = {
            "task": labels.name,
            "labels": list(labels.labels),
            "single": labels.single,
            "pairs": labels.pairs,
            "layers": layers.tolist(),
            "width": fitted.shape.width,
            "mixes": [layers[row].tolist() for row in fitted.grid.allowed],
            "majority": [label for label, own in zip(labels.labels, fitted.majority.tolist(), strict=True) if own],
            "control": None if fitted.control is None else fitted.control[0].as_json(),
        }
        tensors = fitted.trained.tensors(sizes)
        return learned, tensors if fitted.control is None else tensors | fitted.control[1].tensors(sizes, "control.")

    def _restored(
        self, learned: Mapping[str, Any], tensors: Mapping[str, Tensor], store: Mapping[str, Any]
    ) -> FittedEdges:
        labels = EdgeLabels(learned["task"], tuple(learned["labels"]), learned["single"], learned["pairs"])
        grid = self._grid(learned["layers"])
        shape, control = self._shape(labels, grid, learned["width"]), None
        sizes = (len(grid.seed_of),)
        if learned["control"] is not None:
            task = ControlTask.from_json(learned["control"], len(labels.labels))
            control = task, Trained.of(tensors, sizes, shape.tensor_shapes(), "control.")
        return FittedEdges(
            trained=Trained.of(tensors, sizes, shape.tensor_shapes()),
            labels=labels,
            grid=grid,
            shape=shape,
            control=control,
            majority=np.array([label in learned["majority"] for label in labels.labels]),
            store=store,
        )
