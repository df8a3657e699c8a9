"""Edge probing (Tenney et al. 2019): in which layers labelled spans can be told, by mixing and cumulative scores."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.errors import InvalidValueError
from embstore.probe.edge_model import EdgeBank, EdgeShape
from embstore.probe.edge_scores import EdgeTally, constant_tally, majority, score_edges
from embstore.probe.edge_tasks import Edges, EdgeTask, join_task
from embstore.probe.edge_training import EdgeTraining, Stream, TrainedEdges, iter_logits, train_edges
from embstore.probe.mixing import center_of_gravity, cumulative, differential_scores, expected_layer, kl_from_uniform
from embstore.query.scan import choose_device, selected
from embstore.store import Selection, Store

SCHEMA = {
    "task": pl.String,
    "layer": pl.Int64,
    "split": pl.String,
    "metric": pl.String,
    "value": pl.Float64,
    "count": pl.Int64,
    "seed": pl.Int64,
}


@dataclass(frozen=True)
class Probes:
    """Which probe of a bank is which: seed after seed, P(0) ... P(L), then with `layerwise` those of layers 1 to L.

    The probe of layer 0 by itself is P(0).
    """

    layers: tuple[int, ...]
    seeds: tuple[int, ...]
    layerwise: bool

    @property
    def allowed(self) -> NDArray[np.bool_]:
        """The layers that each may mix, bool [probes, layers]."""
        count = len(self.layers)
        one = np.concatenate(
            [cumulative(count), np.eye(count, dtype=bool)[1:]] if self.layerwise else [cumulative(count)]
        )
        return np.tile(one, (len(self.seeds), 1))

    @property
    def seed_of(self) -> NDArray[np.int64]:
        return np.repeat(np.array(self.seeds, np.int64), self._each)

    def cumulative(self, seed: int) -> NDArray[np.int64]:
        """The places of P(0) ... P(L)."""
        return self._first(seed) + np.arange(len(self.layers))

    def by_layer(self, seed: int) -> NDArray[np.int64]:
        """The places of the probes of each layer by itself."""
        places = np.arange(len(self.layers)) + len(self.layers) - 1
        places[0] = 0
        return self._first(seed) + places

    @property
    def _each(self) -> int:
        return len(self.layers) * 2 - 1 if self.layerwise else len(self.layers)

    def _first(self, seed: int) -> int:
        return self.seeds.index(seed) * self._each


@dataclass(frozen=True, eq=False)
class EdgeResult:
    """What probing a task has come to: `frame` of `task, layer, split, metric, value, count, seed`.

    `trained`: the bank of probes; `probes`: which is which. `task`: the targets. `notes`: what took no part and what
    was sampled, a line each.
    """

    frame: pl.DataFrame
    task: EdgeTask
    probes: Probes
    trained: TrainedEdges
    stream: Stream

    @property
    def notes(self) -> tuple[str, ...]:
        return self.task.notes

    def mixing_weights(self, seed: int | None = None) -> NDArray[np.float64]:
        """s of P(L), float64 [layers]; `seed`: the first by default."""
        last = int(self.probes.cumulative(self.probes.seeds[0] if seed is None else seed)[-1])
        return np.asarray(self.trained.bank.mixing()[last])

    def probabilities(self, split: str, *, seed: int | None = None) -> NDArray[np.float32]:
        """What P(0) ... P(L) give each label of each target, float32 [layers, targets, labels]."""
        if split not in self.task.splits:
            raise InvalidValueError(f"there is no split {split!r}: there are {', '.join(self.task.splits)}")
        places = self.probes.cumulative(self.probes.seeds[0] if seed is None else seed)
        held = self.task.splits[split]
        out = np.empty((len(places), len(held), len(self.task.labels)), np.float32)
        for targets, logits in iter_logits(self.trained.bank.of(places), self.stream, held):
            out[:, targets] = logits.sigmoid().cpu().numpy()
        return out

    def summary(self) -> pl.DataFrame:
        """Mean (`value`) and standard deviation (`deviation`, null for one seed) over the seeds."""
        return summary(self.frame)


def summary(frame: pl.DataFrame) -> pl.DataFrame:
    """Mean and standard deviation over the seeds of frames of `probe_edges`, of one task or several."""
    return frame.group_by("task", "layer", "split", "metric", maintain_order=True).agg(
        pl.col("value").mean(),
        pl.col("value").std().alias("deviation"),
        pl.col("count").first(),
        pl.len().cast(pl.Int64).alias("seeds"),
    )


def probe_edges(
    store: Store | Selection,
    *,
    train: Edges,
    dev: Edges | None = None,
    test: Edges | None = None,
    name: str | None = None,
    layers: int | Sequence[int] | None = None,
    seeds: Sequence[int] = (0,),
    data_seed: int = 0,
    sentences: int | None = None,
    layerwise: bool = False,
    projection: int = 256,
    hidden_size: int = 256,
    dropout: float = 0.2,
    epochs: int = 30,
    batch_size: int = 32,
    learning_rate: float = 1e-3,
    mixing_rate: float = 1e-2,
    patience: int | None = 3,
    device: str = "auto",
    memory: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> EdgeResult:
    """Train P(0) ... P(L) together, where P(l) mixes layers 0 to l, and say in which layers a task is solved.

    `train`, `dev`, `test`: files of edge probing (JSON lines with `text` and `targets`) or sentences of them, found
    in the store by their texts. `sentences`: of each split at most, drawn with `data_seed`, which the order of
    sentences comes from too. `seeds`: of initial weights and dropout; all seeds are trained together. `layerwise`:
    also a probe of each layer by itself. `dropout`, on the hidden layer. `batch_size`: sentences. `mixing_rate`: the
    learning rate of the mixing weights. `patience`: epochs without a better loss on dev after which a probe stops
    (None: all epochs). `memory`: bytes that probes and batches may take (4 GiB); where all probes do not fit, some are
    trained after the others. `checkpoint`: a file that keeps the training after each epoch; the same call goes on
    from it.

    Metrics, of each split but train: `f1` (micro) of P(l) by layer, by the likeliest label where every target of
    the task has one and else by those of probability one half or more; `half_f1`, by the latter in any case;
    `layer_f1` of each layer by itself; `differential` (eq. 3); `expected_layer` (4), `differential_kl`,
    `majority_f1` (no layer). Of split train: `mixing` (s of P(L) by layer), `center_of_gravity` (2), `mixing_kl`
    and `gamma` (no layer), `best_epoch` of P(l). `value` is null where it is not defined. `count`: labels to find.

    Raises InvalidValueError, in one line, for texts that the store does not have (both shown), spans outside their
    sentence, splits without targets, layers that are not stored; MissingRowsError, NonFiniteError.
    """
    training = EdgeTraining(epochs, batch_size, learning_rate, mixing_rate, dropout, patience, data_seed)
    for each in (*seeds, data_seed):
        if each < 0:
            raise InvalidValueError(f"seed {each} is not allowed: give 0 or more")
    if not seeds or len(set(seeds)) < len(seeds):
        raise InvalidValueError(f"seeds must be one or more, each once, not {list(seeds)}")
    if patience is not None and dev is None:
        raise InvalidValueError(f"patience {patience} needs dev targets to stop by: give some, or no patience")
    chosen = selected(store, layers)
    ordered = tuple(sorted(chosen.layers))
    task = join_task(
        chosen.store,
        train=train,
        dev=dev,
        test=test,
        name=name or task_name(train),
        sentences=sentences,
        seed=data_seed,
    )
    probes = Probes(ordered, tuple(seeds), layerwise)
    shape = EdgeShape(
        len(ordered),
        chosen.store.hidden_size,
        len(task.splits["train"].spans),
        len(task.labels),
        projection,
        hidden_size,
    )
    stream = Stream(chosen.store, ordered, batch_size, choose_device(device), memory)
    bank = EdgeBank.initial(shape, probes.allowed, probes.seed_of, device=stream.device)
    trained = train_edges(
        bank,
        stream,
        task.splits["train"],
        task.splits.get("dev"),
        training=training,
        checkpoint=None if checkpoint is None else Path(checkpoint),
        progress=progress,
    )
    rows = [*_mixing_rows(probes, trained), *_score_rows(probes, trained, task, stream)]
    frame = pl.DataFrame([{"task": task.name, **row} for row in rows], schema=SCHEMA)
    return EdgeResult(frame, task, probes, trained, stream)


def task_name(train: Edges) -> str:
    """The name of a task: that of its file, or of its folder where the file is called train."""
    if not isinstance(train, str | os.PathLike):
        return "edges"
    path = Path(train)
    stem = path.name.split(".")[0]
    return path.absolute().parent.name if stem == "train" else stem


def _mixing_rows(probes: Probes, trained: TrainedEdges) -> Iterator[dict[str, Any]]:
    scale = trained.bank.weights["scale"].detach().cpu().numpy()
    for seed in probes.seeds:
        last = int(probes.cumulative(seed)[-1])
        weights = trained.bank.mixing()[last]
        told: dict[str, Any] = {"split": "train", "seed": seed}
        for layer, value in zip(probes.layers, weights.tolist(), strict=True):
            yield {**told, "layer": layer, "metric": "mixing", "value": value}
        yield {**told, "metric": "center_of_gravity", "value": center_of_gravity(weights, probes.layers)}
        yield {**told, "metric": "mixing_kl", "value": kl_from_uniform(weights)}
        yield {**told, "metric": "gamma", "value": float(scale[last])}
        for layer, place in zip(probes.layers, probes.cumulative(seed).tolist(), strict=True):
            yield {**told, "layer": layer, "metric": "best_epoch", "value": float(trained.epochs[place])}


def _score_rows(probes: Probes, trained: TrainedEdges, task: EdgeTask, stream: Stream) -> Iterator[dict[str, Any]]:
    answer = majority(task.splits["train"], single=task.single)
    for name, split in task.splits.items():
        if name == "train":
            continue
        told: dict[str, Any] = {"split": name}
        tallies = score_edges(trained.bank, stream, split)
        wanted = tallies["half"].wanted
        told["count"] = wanted
        for seed in probes.seeds:
            for row in _seed_rows(probes, seed, tallies, single=task.single):
                yield {**told, "seed": seed, **row}
        yield {**told, "metric": "majority_f1", "value": _known(constant_tally(answer, split).f1()[0])}


def _seed_rows(
    probes: Probes, seed: int, tallies: Mapping[str, EdgeTally], *, single: bool
) -> Iterator[dict[str, Any]]:
    own = tallies["likeliest" if single else "half"].f1()
    half = tallies["half"].f1()
    places = probes.cumulative(seed)
    kinds = [("f1", own, places), ("half_f1", half, places)]
    if probes.layerwise:
        kinds.append(("layer_f1", own, probes.by_layer(seed)))
    for metric, values, at in kinds:
        for layer, value in zip(probes.layers, values[at].tolist(), strict=True):
            yield {"layer": layer, "metric": metric, "value": _known(value)}
    scores = np.nan_to_num(own[places])
    gained = differential_scores(scores)
    for layer, value in zip(probes.layers[1:], gained.tolist(), strict=True):
        yield {"layer": layer, "metric": "differential", "value": value}
    yield {"metric": "expected_layer", "value": expected_layer(scores, probes.layers)}
    yield {"metric": "differential_kl", "value": kl_from_uniform(gained) if len(gained) else None}


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
