"""Edge probing (Tenney et al. 2019): in which layers labelled spans can be told, by mixing and cumulative scores."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.analysis.scan import selected
from embstore.devices import choose_device
from embstore.errors import InvalidValueError
from embstore.probes.edges.bootstrap import require_resamples
from embstore.probes.edges.control import control_task
from embstore.probes.edges.linear import LinearBank, LinearShape
from embstore.probes.edges.model import EdgeBank, EdgeShape
from embstore.probes.edges.rows import SCHEMA, Probes, Row, SplitCounts, mixing_rows
from embstore.probes.edges.scores import constant_counts, majority, score_edges
from embstore.probes.edges.tasks import Edges, EdgeTask, join_task
from embstore.probes.edges.training import EdgeTraining, Stream, TrainedEdges, iter_logits, train_edges
from embstore.store import Selection, Store

Kind = Literal["mlp", "linear"]
DROPOUT: dict[Kind, float] = {"mlp": 0.2, "linear": 0.0}
BANKS: dict[Kind, type[EdgeBank]] = {"mlp": EdgeBank, "linear": LinearBank}

WITH_INTERVALS = {**SCHEMA, "low": pl.Float64, "high": pl.Float64}


@dataclass(frozen=True, eq=False)
class EdgeResult:
    """What probing a task has come to: `frame` of `task, layer, split, metric, value, count, seed, low, high`.

    `low`, `high`: the 95 % interval of the mean over the seeds (so the same in the rows of all seeds) when the
    sentences of the split are drawn again with replacement; it says how far other sentences might bring the score
    and nothing of other seeds, whose spread is the deviation of `summary`. Null where there is none.
    `trained`: the bank of probes; `probes`: which is which. `task`: the targets. `notes`: what took no part and what
    was sampled, a line each. `counts`: what was found in each sentence, by split. `control`: the probes of the
    control task, which are as many.
    """

    frame: pl.DataFrame
    task: EdgeTask
    probes: Probes
    trained: TrainedEdges
    stream: Stream
    counts: dict[str, SplitCounts]
    control: TrainedEdges | None = None
    training: EdgeTraining | None = None

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
        """Mean (`value`) with its interval (`low`, `high`), and standard deviation over the seeds (null for one)."""
        return summary(self.frame)


def summary(frame: pl.DataFrame) -> pl.DataFrame:
    """Mean, its interval and standard deviation over the seeds of frames of `probe_edges`, of one task or several."""
    return frame.group_by("task", "layer", "split", "metric", maintain_order=True).agg(
        pl.col("value").mean(),
        pl.col("value").std().alias("deviation"),
        pl.col("count", "low", "high").first(),
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
    kind: Kind = "mlp",
    layerwise: bool = False,
    control: bool = False,
    resamples: int = 1000,
    projection: int = 256,
    hidden_size: int = 256,
    dropout: float | None = None,
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
    sentences, the labels of the control task and the resamples come from too. `seeds`: of initial weights and
    dropout; all seeds are trained together. `kind`: mlp, the probe of Tenney et al., or linear, one product with the
    mean of each span (Liu et al. 2019), `layerwise` in any case. `layerwise`: also a probe of each layer by itself.
    `control`: also probes of the control task, whose labels are drawn by the forms of spans (Hewitt & Liang 2019).
    `resamples`: of the sentences, for intervals (0: none). `projection`, `hidden_size`: of mlp. `dropout`, on the
    hidden layer (0.2) or on what the linear probe reads (0). `batch_size`: sentences. `mixing_rate`: the learning
    rate of the mixing weights. `patience`: epochs without a better loss on dev after which a probe stops (None: all
    epochs). `memory`: bytes that probes and batches may take (4 GiB); where all probes do not fit, some are trained
    after the others. `checkpoint`: a file that keeps the training after each epoch; the same call goes on from it (the
    control task's has .control in its name).

    Metrics, of each split but train: `f1` (micro) of P(l) by layer, by the likeliest label where every target of
    the task has one and else by those of probability one half or more; `half_f1`, by the latter in any case;
    `layer_f1` of each layer by itself; `differential` (eq. 3); `expected_layer` (4), `differential_kl`,
    `majority_f1` (no layer). With `control`: `control_f1` and `selectivity`, `f1` less it, by P(l);
    `layer_control_f1`, `layer_selectivity`. Of split train: `mixing` (s of P(L) by layer), `center_of_gravity` (2),
    `mixing_kl` and `gamma` (no layer), `best_epoch` of P(l). `value` is null where it is not defined. `count`: labels
    to find. `low`, `high`: see EdgeResult.

    Raises InvalidValueError, in one line, for texts that the store does not have (both shown), spans outside their
    sentence, splits without targets, layers that are not stored; MissingRowsError, NonFiniteError.
    """
    rate = DROPOUT[require_kind(kind)] if dropout is None else dropout
    training = EdgeTraining(epochs, batch_size, learning_rate, mixing_rate, rate, patience, data_seed)
    require_resamples(resamples)
    require_seeds(seeds, data_seed)
    if patience is not None and dev is None:
        raise InvalidValueError(f"patience {patience} needs dev targets to stop by: give some, or no patience")
    chosen = selected(store, layers)
    task = join_task(
        chosen.store,
        train=train,
        dev=dev,
        test=test,
        name=name or task_name(train),
        sentences=sentences,
        seed=data_seed,
    )
    probes = Probes(tuple(sorted(chosen.layers)), tuple(seeds), layerwise or kind == "linear")
    stream = Stream(chosen.store, probes.layers, batch_size, choose_device(device), memory)
    shape = edge_shape(kind, probes, task, chosen.store, projection=projection, hidden_size=hidden_size)
    bank = BANKS[kind].initial(shape, probes.allowed, probes.seed_of, device=stream.device)
    place = None if checkpoint is None else Path(checkpoint)
    told = _Parts(progress, 2 if control else 1)
    trained = _train(bank, stream, task, training, place, told.part(0))
    counts = _counts(trained, stream, task)
    other = None
    if control:
        beside = None if place is None else place.with_name(f"{place.stem}.control{place.suffix}")
        drawn = control_task(task, chosen.store, seed=data_seed)
        other = _train(bank, stream, drawn, training, beside, told.part(1))
        found = _counts(other, stream, drawn)
        counts = {split: replace(each, control=found[split].own) for split, each in counts.items()}
    rows: list[Row] = list(mixing_rows(probes, trained))
    for split, each in counts.items():
        rows += [{"split": split, **row} for row in each.score_rows(probes, resamples=resamples, seed=data_seed)]
    frame = pl.DataFrame([{"task": task.name, **row} for row in rows], schema=WITH_INTERVALS)
    return EdgeResult(frame, task, probes, trained, stream, counts, other, training)


def task_name(train: Edges) -> str:
    """The name of a task: that of its file, or of its folder where the file is called train."""
    if not isinstance(train, str | os.PathLike):
        return "edges"
    path = Path(train)
    stem = path.name.split(".")[0]
    return path.absolute().parent.name if stem == "train" else stem


def require_kind(kind: str) -> Kind:
    for known in DROPOUT:
        if kind == known:
            return known
    raise InvalidValueError(f"kind {kind!r} is not allowed: choose {' or '.join(DROPOUT)}")


def require_seeds(seeds: Sequence[int], data_seed: int) -> None:
    for each in (*seeds, data_seed):
        if each < 0:
            raise InvalidValueError(f"seed {each} is not allowed: give 0 or more")
    if not seeds or len(set(seeds)) < len(seeds):
        raise InvalidValueError(f"seeds must be one or more, each once, not {list(seeds)}")


def edge_shape(
    kind: Kind, probes: Probes, task: EdgeTask, store: Store, *, projection: int, hidden_size: int
) -> EdgeShape:
    """The sizes of the probes of a task."""
    sizes = len(probes.layers), store.hidden_size, len(task.splits["train"].spans), len(task.labels)
    return LinearShape.of(*sizes) if kind == "linear" else EdgeShape(*sizes, projection, hidden_size)


def _train(
    bank: EdgeBank,
    stream: Stream,
    task: EdgeTask,
    training: EdgeTraining,
    checkpoint: Path | None,
    progress: Callable[[int, int], object] | None,
) -> TrainedEdges:
    splits = task.splits
    return train_edges(
        bank,
        stream,
        splits["train"],
        splits.get("dev"),
        training=training,
        checkpoint=checkpoint,
        progress=progress,
    )


def _counts(trained: TrainedEdges, stream: Stream, task: EdgeTask) -> dict[str, SplitCounts]:
    answer = majority(task.splits["train"], single=task.single)
    counts = {}
    for name, split in task.splits.items():
        if name != "train":
            found = score_edges(trained.bank, stream, split)
            own = found["likeliest" if task.single else "half"]
            counts[name] = SplitCounts(own, found["half"], constant_counts(answer, split))
    return counts


@dataclass(frozen=True)
class _Parts:
    """Progress over several trainings of the same length."""

    tell: Callable[[int, int], object] | None
    parts: int

    def part(self, number: int) -> Callable[[int, int], object] | None:
        tell = self.tell
        if tell is None or self.parts == 1:
            return tell
        return lambda done, total: tell(number * total + done, self.parts * total)
