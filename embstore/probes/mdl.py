"""Description length of labels given vectors (Voita & Titov 2020): how many bits the labels take, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import log, log2

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from embstore.arguments import checked
from embstore.config import settings
from embstore.errors import InvalidValueError
from embstore.probes.base import layers_of, store_of
from embstore.probes.control import ControlTask
from embstore.probes.edges.batches import EdgeBatch
from embstore.probes.edges.model import EdgeBank
from embstore.probes.edges.probe import EdgeProbe
from embstore.probes.edges.scores import ProbeGrid
from embstore.probes.edges.tasks import Edges, EdgeTask, control_task, join_task
from embstore.probes.edges.training import EdgeStream, iter_logits, train_edges
from embstore.probes.result import ProbeResult, Row
from embstore.progress import reporting
from embstore.store import Selection, Store

METRICS = (("code_length", "compression"), ("control_length", "control_compression"))
FRACTIONS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.1, 6.25, 12.5, 25.0, 50.0, 100.0)


class CodeBank(EdgeBank):
    """Edge probes with a softmax over the labels, of which each target has one: the loss is the nats of its code."""

    def losses(self, batch: EdgeBatch, *, mask: torch.Tensor | None = None) -> torch.Tensor:
        logits = self.logits(batch, mask=mask)
        return -(logits.log_softmax(2) * batch.gold).sum(2).mean(1)


@checked
def code_length(
    data: Store | Selection,
    train: Edges,
    dev: Edges | None = None,
    *,
    probe: EdgeProbe | None = None,
    fractions: Sequence[float] = FRACTIONS,
    name: str | None = None,
) -> ProbeResult:
    """Measure how many bits the labels of a task take by the online code of a probe of each layer.

    The sentences are coded block after block, in an order drawn with the seed of the probe. The first block has a
    uniform code; each other block is coded by probes trained from their initial weights on all blocks before it,
    stopping on `dev`. If each target has exactly one label, the probe is a softmax over the labels; else each label is
    coded by itself.

    Parameters
    ----------
    data : Store or Selection
        The store of the sentences.
    train, dev : path or sequence of EdgeSentence
        Targets, as of `EdgeProbe.fit`.
    probe : EdgeProbe
        Its settings (kind, layers, seeds, control, training ...) are those of the probes that code.
    fractions : sequence of float
        Percent of the sentences at the end of each block.
    name : str
        Of the task; that of its folder or file by default.

    Returns
    -------
    ProbeResult
        All of split train: `code_length` in bits by layer, and `compression`, the length of the uniform code divided by
        it; with a control task `control_length` and `control_compression`. Without layer: `uniform_length`, and
        `frequency_length` by the frequencies of the labels in the blocks before. `count`: targets.

    Raises
    ------
    InvalidValueError
        For fractions that do not ascend to 100, and as `EdgeProbe.fit`.
    """
    probe = EdgeProbe() if probe is None else probe
    schedule, store = probe._schedule(has_dev=dev is not None), store_of(data)
    grid = replace(probe._grid(layers_of(data, probe.layers)), layerwise=True)
    chosen = np.concatenate([grid.by_layer(seed) for seed in grid.seeds])
    block_ends(fractions, 10**9)
    task = join_task(store, train, dev, name=name, sample=probe._sample())
    shape, stream = probe._shape(task.labels, grid, store.hidden_size), EdgeStream(store, grid.layers, schedule)
    kind = CodeBank if task.labels.single else EdgeBank
    bank = stream.untrained(kind, shape, grid.allowed[chosen], grid.seed_of[chosen], task)
    ends = block_ends(fractions, task.train.n_sentences)
    order = np.random.default_rng((probe._seeds[0], task.train.n_sentences)).permutation(int(ends[-1]))
    tasks = [task]
    if probe.control:
        tasks.append(control_task(task, store, ControlTask.of(task.train.gold, probe._seeds[0])))
    coder = OnlineCoder(bank, stream, order, ends, task.labels.single)
    total, label = len(tasks) * coder.n_steps, f"code {task.labels.name}"
    with reporting(settings().progress, total=total, unit="sentences", label=label) as report:
        codes = [
            coder.code(each, lambda done, before=number * coder.n_steps: report(before + done))  # type: ignore[misc]
            for number, each in enumerate(tasks)
        ]
    uniform = uniform_bits(len(task.train), len(task.labels.labels), single=task.labels.single)
    rows = _rows(grid, codes, uniform)
    name = task.labels.name
    notes = (*task.notes, f"{name}: train: blocks end at {', '.join(f'{end:,}' for end in ends)} sentences")
    notes += probe._capped_notes(f"{name}, all blocks", np.concatenate([code.capped for code in codes]))
    common = {"store": store.path.stem, "task": task.labels.name, "split": "train", "count": len(task.train)}
    return ProbeResult.of(rows, notes, **common)


@dataclass(frozen=True, eq=False)
class Code:
    """The bits of labels by each probe, and by the label frequencies of the blocks before.

    `capped` bool [blocks x probes]: trainings that the last epoch ended before early stopping did.
    """

    bits: NDArray[np.float64]
    frequency: float
    capped: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class OnlineCoder:
    """Codes the sentences of `order` in blocks that end at `ends`, by all probes; `single`: one label per target."""

    bank: EdgeBank
    stream: EdgeStream
    order: NDArray[np.int64]
    ends: NDArray[np.int64]
    single: bool

    @property
    def n_steps(self) -> int:
        """The sentences that the probes of all blocks read at most."""
        schedule = self.stream.schedule
        return schedule.epochs * sum(map(schedule.n_read, self.ends[:-1].tolist()))

    def code(self, task: EdgeTask, advance: Callable[[int], object]) -> Code:
        """Code the labels of a task.

        The first block has a uniform code; each other block trains from the initial weights on those before it.
        """
        data, done = task.train, 0
        n_first = len(data.part(self.order[: self.ends[0]]))
        frequency = float(uniform_bits(n_first, data.gold.shape[1], single=self.single))
        bits, capped = np.full(len(self.bank), frequency), []
        for start, stop in pairwise(self.ends.tolist()):
            seen, block = data.part(self.order[:start]), data.part(self.order[start:stop])

            n_steps = self.stream.schedule.epochs * self.stream.schedule.n_read(start)

            def report(at: int, total: int | None, done: int = done, n_steps: int = n_steps) -> None:
                advance(done + at * n_steps // (total or n_steps))

            trained = train_edges(self.bank, self.stream, seen, task.dev, progress=report)
            done += n_steps
            capped.append(trained.capped)
            for targets, logits in iter_logits(replace(self.bank, weights=trained.weights), self.stream, block):
                gold = torch.from_numpy(block.gold[targets]).to(logits.device)
                bits += code_bits(logits, gold, single=self.single).cpu().numpy()
            frequency += frequency_bits(seen.gold, block.gold, single=self.single)
        return Code(bits, frequency, np.concatenate(capped))


def code_bits(logits: torch.Tensor, gold: torch.Tensor, *, single: bool) -> torch.Tensor:
    """Return the bits that each probe takes for labels, float64 [probes]: -sum log2 p(labels).

    `logits` [probes, targets, labels], `gold` [targets, labels]. With a `single` label p is a softmax over the labels;
    else the sigmoid of each label.
    """
    values, wanted = logits.double(), gold.double()
    if single:
        nats = -(values.log_softmax(2) * wanted).sum((1, 2))
    else:
        nats = functional.binary_cross_entropy_with_logits(values, wanted.expand_as(values), reduction="none")
        nats = nats.sum((1, 2))
    return nats / log(2)


def uniform_bits(n_targets: int, n_labels: int, *, single: bool) -> float:
    """Return the bits without any knowledge: log2 of the labels per target, or one bit per label."""
    return n_targets * (log2(n_labels) if single else n_labels)


def frequency_bits(seen: NDArray[np.bool_], gold: NDArray[np.bool_], *, single: bool) -> float:
    """Return the bits of labels by the frequencies of the labels seen before, with one half added to every count.

    `seen`, `gold`: [targets, labels].
    """
    counts = seen.sum(0) + 0.5
    if single:
        return float(-(gold.sum(0) * np.log2(counts / counts.sum())).sum())
    share = counts / (len(seen) + 1)
    n_gold = gold.sum(0)
    return float(-(n_gold * np.log2(share) + (len(gold) - n_gold) * np.log2(1 - share)).sum())


def block_ends(fractions: Sequence[float], n_sentences: int) -> NDArray[np.int64]:
    """Return the number of sentences up to the end of each block; blocks without a sentence are left out.

    Raises InvalidValueError unless the fractions (in percent) ascend to 100 and make two blocks.
    """
    values = np.asarray(fractions, np.float64)
    shown = ",".join(f"{each:g}" for each in values.tolist())
    if not len(values) or not np.isfinite(values).all() or values[0] <= 0 or (np.diff(values) <= 0).any():
        raise InvalidValueError(f"fractions {shown} are not allowed: give percent above 0, ascending to 100")
    if values[-1] != 100:
        raise InvalidValueError(f"fractions {shown} end at {values[-1]:g} percent: let the last be 100")
    ends = np.unique(np.maximum(np.rint(values * n_sentences / 100), 1).astype(np.int64))
    if len(ends) < 2:
        raise InvalidValueError(
            f"fractions {shown} of {n_sentences} sentences are one block: give more sentences, or a smaller first "
            "fraction"
        )
    return ends


def _rows(grid: ProbeGrid, codes: Sequence[Code], uniform: float) -> Iterator[Row]:
    yield {"metric": "uniform_length", "value": uniform}
    yield {"metric": "frequency_length", "value": codes[0].frequency}
    for (length, compression), code in zip(METRICS, codes, strict=False):
        for (seed, layer), bits in zip(product(grid.seeds, grid.layers), code.bits.tolist(), strict=True):
            yield {"layer": layer, "seed": seed, "metric": length, "value": bits}
            yield {"layer": layer, "seed": seed, "metric": compression, "value": uniform / bits}
