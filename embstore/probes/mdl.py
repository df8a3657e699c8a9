"""Description length of labels given vectors (Voita & Titov 2020): how many bits they take, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from embstore.analysis.scan import selected
from embstore.devices import choose_device
from embstore.errors import InvalidValueError
from embstore.probes.edges.control import control_task
from embstore.probes.edges.edges import BANKS, DROPOUT, Kind, edge_shape, require_kind, require_seeds, task_name
from embstore.probes.edges.model import EdgeBank
from embstore.probes.edges.rows import SCHEMA, Probes
from embstore.probes.edges.tasks import Edges, EdgeSplit, EdgeTask, join_task
from embstore.probes.edges.training import EdgeTraining, Stream, iter_logits, train_edges
from embstore.probes.mdl_code import (
    FRACTIONS,
    CodeBank,
    LinearCodeBank,
    block_ends,
    coded,
    frequency_bits,
    uniform_bits,
)
from embstore.store import Selection, Store

CODE_BANKS: dict[Kind, type[EdgeBank]] = {"mlp": CodeBank, "linear": LinearCodeBank}
EPOCH = 256  # sentences that an epoch reads at least: few are read again and again


@dataclass(frozen=True, eq=False)
class OnlineCode:
    """The code of a task: `bits` float64 [probes, blocks], of which the first block is uniform.

    `ends`: sentences up to the end of each block. `targets`: those of each block. `uniform` and `frequency`: bits of
    all blocks with no knowledge, and by the frequencies of the labels before each block.
    """

    bits: NDArray[np.float64]
    ends: NDArray[np.int64]
    targets: NDArray[np.int64]
    uniform: float
    frequency: float

    @property
    def lengths(self) -> NDArray[np.float64]:
        """[probes]."""
        return np.asarray(self.bits.sum(1))


@dataclass(frozen=True, eq=False)
class MdlResult:
    """Code lengths: `frame` of `task, layer, split, metric, value, count, seed`, all of split train.

    `code`: the code of the task, whose probes are `probes` at `places`; `control`: that of the control task.
    `notes`: what took no part, what was sampled and which blocks there are, a line each.
    """

    frame: pl.DataFrame
    task: EdgeTask
    probes: Probes
    places: NDArray[np.int64]
    code: OnlineCode
    control: OnlineCode | None
    notes: tuple[str, ...]

    def summary(self) -> pl.DataFrame:
        """Mean (`value`) and standard deviation (`deviation`, null for one seed) over the seeds."""
        return mdl_summary(self.frame)


def mdl_summary(frame: pl.DataFrame) -> pl.DataFrame:
    """Mean and standard deviation over the seeds of frames of `probe_mdl`, of one task or several."""
    return frame.group_by("task", "layer", "split", "metric", maintain_order=True).agg(
        pl.col("value").mean(),
        pl.col("value").std().alias("deviation"),
        pl.col("count").first(),
        pl.len().cast(pl.Int64).alias("seeds"),
    )


def probe_mdl(
    store: Store | Selection,
    *,
    train: Edges,
    dev: Edges | None = None,
    name: str | None = None,
    layers: int | Sequence[int] | None = None,
    seeds: Sequence[int] = (0,),
    data_seed: int = 0,
    sentences: int | None = None,
    kind: Kind = "mlp",
    cumulative: bool = False,
    control: bool = False,
    fractions: Sequence[float] = FRACTIONS,
    projection: int = 256,
    hidden_size: int = 256,
    dropout: float | None = None,
    epochs: int = 30,
    batch_size: int = 32,
    learning_rate: float = 1e-3,
    mixing_rate: float = 1e-2,
    patience: int | None = 3,
    memory: int | None = None,
    device: str = "auto",
    progress: Callable[[int, int], object] | None = None,
) -> MdlResult:
    """Say how many bits the labels of `train` take by the online code of a probe of each layer, all trained together.

    The sentences are sent block after block, in an order drawn with `data_seed`. The first block has a uniform code;
    each other is coded by a probe trained, from its first weights, on all blocks before it, until its loss on `dev`
    has not fallen for `patience` epochs (`patience` None: all epochs, and no dev). Where each target has one label,
    the probe is a softmax over the labels; else each label is a Bernoulli of its own. `fractions`: percent of the
    sentences at the end of each block. `kind`: the edge probe (mlp) or a linear one. `cumulative`: also P(l), which
    mix the layers 0 to l. `control`: also the control task (see probe_edges). An epoch reads at least 256 sentences:
    where there are fewer, each several times. The rest as in `probe_edges`.

    Metrics: `code_length` in bits by layer, `compression`, the length of the uniform code over it; with `cumulative`
    `cumulative_length`, `cumulative_compression` of P(l); with `control` the same as `control_length` and so on.
    `uniform_length`; `frequency_length`: by the labels' frequencies in the blocks before (no layer). `count`: targets.

    Raises InvalidValueError, in one line, for fractions that do not ascend to 100, and as `probe_edges`.
    """
    rate = DROPOUT[require_kind(kind)] if dropout is None else dropout
    training = EdgeTraining(epochs, batch_size, learning_rate, mixing_rate, rate, patience, data_seed)
    require_seeds(seeds, data_seed)
    block_ends(fractions, 10**9)
    if patience is not None and dev is None:
        raise InvalidValueError(f"patience {patience} needs dev targets to stop by: give some, or no patience")
    chosen = selected(store, layers)
    named = name or task_name(train)
    task = join_task(chosen.store, train=train, dev=dev, name=named, sentences=sentences, seed=data_seed)
    probes = Probes(tuple(sorted(chosen.layers)), tuple(seeds), layerwise=True)
    of_layers = [probes.by_layer(seed) for seed in seeds]
    places = np.unique(np.concatenate(of_layers + [probes.cumulative(seed) for seed in seeds if cumulative]))
    stream = Stream(chosen.store, probes.layers, batch_size, choose_device(device), memory)
    shape = edge_shape(kind, probes, task, chosen.store, projection=projection, hidden_size=hidden_size)
    made = (CODE_BANKS if task.single else BANKS)[kind]
    bank = made.initial(shape, probes.allowed[places], probes.seed_of[places], device=stream.device)
    ends = block_ends(fractions, task.splits["train"].sentences)
    order = np.random.default_rng((data_seed, task.splits["train"].sentences)).permutation(int(ends[-1]))
    tasks = [task, control_task(task, chosen.store, seed=data_seed)] if control else [task]
    total = len(tasks) * epochs * int(_read_sentences(ends[:-1]).sum())
    codes = []
    for number, each in enumerate(tasks):
        told = _Told(progress, number * total // len(tasks), total)
        codes.append(online_code(bank, stream, each, order=order, ends=ends, training=training, progress=told))
    rows = list(_rows(probes, places, codes, cumulative=cumulative))
    frame = pl.DataFrame([{"task": task.name, "split": "train", **row} for row in rows], schema=SCHEMA)
    notes = (*task.notes, f"{task.name}: train: blocks end at {', '.join(f'{end:,}' for end in ends)} sentences")
    return MdlResult(frame, task, probes, places, codes[0], codes[1] if control else None, notes)


def online_code(
    bank: EdgeBank,
    stream: Stream,
    task: EdgeTask,
    *,
    order: NDArray[np.int64],
    ends: NDArray[np.int64],
    training: EdgeTraining,
    progress: Callable[[int, int], object] | None = None,
) -> OnlineCode:
    """Code the train targets of a task in blocks of sentences, by all probes of a bank; each begins anew a block."""
    train, dev = task.splits["train"], task.splits.get("dev")
    first = split_part(train, order[: ends[0]])
    bits = [np.full(len(bank), uniform_bits(len(first), len(task.labels), single=task.single))]
    targets, frequency, done = [len(first)], float(bits[0][0]), 0
    for start, stop in pairwise(ends.tolist()):
        passes = int(_read_sentences(np.array([start]))[0]) // start
        seen, block = split_part(train, order[:start]), split_part(train, order[start:stop])

        def advance(at: int, of: int, done: int = done) -> None:
            if progress is not None:
                progress(done + at, of)

        found = train_edges(
            bank, stream, split_part(train, np.repeat(order[:start], passes)), dev, training=training, progress=advance
        )
        done += training.epochs * passes * start
        bits.append(_bits(found.bank, stream, block, single=task.single))
        targets.append(len(block))
        frequency += frequency_bits(seen.gold, block.gold, single=task.single)
    uniform = uniform_bits(len(train), len(task.labels), single=task.single)
    return OnlineCode(np.stack(bits, 1), ends, np.array(targets), uniform, frequency)


def _read_sentences(sentences: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many sentences an epoch over so many reads."""
    return np.asarray(sentences * -(-EPOCH // sentences))


@torch.no_grad()
def _bits(bank: EdgeBank, stream: Stream, block: EdgeSplit, *, single: bool) -> NDArray[np.float64]:
    bits = np.zeros(len(bank))
    for targets, logits in iter_logits(bank, stream, block):
        gold = torch.from_numpy(block.gold[targets]).to(logits.device)
        bits += coded(logits, gold, single=single).cpu().numpy()
    return bits


def split_part(split: EdgeSplit, sentences: NDArray[np.int64]) -> EdgeSplit:
    """Some sentences of a split, in their order there; one given twice is there twice."""
    chosen = np.sort(sentences)
    counts = split.first[chosen + 1] - split.first[chosen]
    first = np.concatenate([[0], np.cumsum(counts)])
    targets = np.arange(int(first[-1])) + np.repeat(split.first[chosen] - first[:-1], counts)
    spans = tuple(each[targets] for each in split.spans)
    return replace(split, first=first, spans=spans, gold=split.gold[targets], unknown=split.unknown[targets])


def _rows(
    probes: Probes, places: NDArray[np.int64], codes: Sequence[OnlineCode], *, cumulative: bool
) -> Iterator[dict[str, Any]]:
    count = int(codes[0].targets.sum())
    for code, task in zip(codes, ("", "control_"), strict=False):
        for seed in probes.seeds:
            kinds = [("", probes.by_layer(seed))] + ([("cumulative_", probes.cumulative(seed))] if cumulative else [])
            for kind, at in kinds:
                lengths = code.lengths[np.searchsorted(places, at)]
                names = f"{task}{kind or ('' if task else 'code_')}length", f"{task}{kind}compression"
                for layer, length in zip(probes.layers, lengths.tolist(), strict=True):
                    told = {"layer": layer, "count": count, "seed": seed}
                    yield {**told, "metric": names[0], "value": length}
                    yield {**told, "metric": names[1], "value": code.uniform / length}
    yield {"metric": "uniform_length", "value": codes[0].uniform, "count": count}
    yield {"metric": "frequency_length", "value": codes[0].frequency, "count": count}


@dataclass(frozen=True)
class _Told:
    """Progress of one code among several."""

    tell: Callable[[int, int], object] | None
    before: int
    total: int

    def __call__(self, done: int, _: int) -> None:
        if self.tell is not None:
            self.tell(self.before + done, self.total)
