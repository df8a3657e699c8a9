"""Description length of labels given vectors (Voita & Titov 2020): how many bits the labels take, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
from embstore.probes.edges.tasks import Edges, control_task, join_task
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
    chosen = grid.kinds["layer_"].ravel()
    block_ends(fractions, 10**9)
    task = join_task(store, train, dev, name=name)
    labels = task.labels
    shape, stream = probe._shape(labels, grid, store.hidden_size), EdgeStream(store, grid.layers, schedule)
    bank = (CodeBank if labels.single else EdgeBank)(shape, grid.allowed[chosen], grid.seed_of[chosen])
    stream.groups(bank, task.train, task.dev)  # refuses what does not fit the memory before any block is trained
    ends = block_ends(fractions, task.train.n_sentences)
    order = np.random.default_rng((probe._seeds[0], task.train.n_sentences)).permutation(int(ends[-1]))
    tasks = [task]
    if probe.control:
        tasks.append(control_task(task, store, ControlTask.of(task.train.gold, probe._seeds[0])))
    n_steps = [schedule.epochs * schedule.n_read(end) for end in ends[:-1].tolist()]
    rows: list[Row] = []
    capped: list[NDArray[np.bool_]] = []
    with reporting(
        settings().progress, total=len(tasks) * sum(n_steps), unit="sentences", label=f"code {labels.name}"
    ) as report:
        for number, (length, compression) in enumerate(METRICS[: len(tasks)]):
            own, done = tasks[number].train, number * sum(n_steps)
            uniform, first = (
                float(uniform_bits(n_targets, len(labels.labels), single=labels.single))
                for n_targets in (len(own), len(own.part(order[: ends[0]])))
            )
            bits, frequency = np.full(len(bank), first), first
            for (start, stop), steps in zip(pairwise(ends.tolist()), n_steps, strict=True):
                seen, block = own.part(order[:start]), own.part(order[start:stop])

                def advance(at: int, total: int | None, done: int = done, steps: int = steps) -> None:
                    report(done + at * steps // (total or steps))

                trained = train_edges(bank, stream, seen, tasks[number].dev, progress=advance)
                done += steps
                capped.append(trained.capped)
                for targets, logits in iter_logits(replace(bank, weights=trained.weights), stream, block):
                    gold = torch.from_numpy(block.gold[targets]).to(logits.device)
                    bits += code_bits(logits, gold, single=labels.single).cpu().numpy()
                frequency += frequency_bits(seen.gold, block.gold, single=labels.single)
            if not number:
                rows += [{"metric": "uniform_length", "value": uniform}]
                rows += [{"metric": "frequency_length", "value": frequency}]
            for (seed, layer), value in zip(product(grid.seeds, grid.layers), bits.tolist(), strict=True):
                rows += [{"layer": layer, "seed": seed, "metric": length, "value": value}]
                rows += [{"layer": layer, "seed": seed, "metric": compression, "value": uniform / value}]
    notes = (*task.notes, f"{labels.name}: train: blocks end at {', '.join(f'{end:,}' for end in ends)} sentences")
    notes += probe._capped_notes(f"{labels.name}, all blocks", np.concatenate(capped))
    common = {"store": store.path.stem, "task": labels.name, "split": "train", "count": len(task.train)}
    return ProbeResult.of(rows, notes, **common)


def code_bits(logits: torch.Tensor, gold: torch.Tensor, *, single: bool) -> torch.Tensor:
    """Return the bits that each probe takes for labels, float64 [probes]: -sum log2 p(labels).

    `logits` [probes, targets, labels], `gold` [targets, labels]. With a `single` label p is a softmax over the labels;
    else the sigmoid of each label.
    """
    values, wanted = logits.double(), gold.double()
    if single:
        nats = -(values.log_softmax(2) * wanted)
    else:
        nats = functional.binary_cross_entropy_with_logits(values, wanted.expand_as(values), reduction="none")
    return nats.sum((1, 2)) / log(2)


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
    ascending = len(values) and values[0] > 0 and values[-1] == 100 and (np.diff(values) > 0).all()
    if not ascending:
        raise InvalidValueError(f"fractions {shown} are not allowed: give percent above 0, ascending to 100")
    ends = np.unique(np.maximum(np.rint(values * n_sentences / 100), 1).astype(np.int64))
    if len(ends) < 2:
        raise InvalidValueError(
            f"fractions {shown} of {n_sentences} sentences are one block: give more sentences, or a smaller first "
            "fraction"
        )
    return ends
