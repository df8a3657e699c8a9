"""Training linear probes, and the stream of edge probes, on made labels."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.bench.cases import Cases, Setting, in_each_round, products
from embstore.bench.measure import Row
from embstore.probes.classes.bank import Output, Shape
from embstore.probes.classes.examples import LabelledExamples, StoredExamples
from embstore.probes.classes.training import train_bank
from embstore.probes.edges.batches import EdgeSplit, batch_sentences
from embstore.probes.edges.tasks import join_task
from embstore.probes.edges.training import EdgeSchedule, EdgeStream
from embstore.probes.training import Schedule
from embstore.spacing import split_words

BATCH, CLASSES = 256, 41
SENTENCES, BATCH_SENTENCES = 2_000, 32
LEARNING_RATE = Schedule(epochs=1, batch_size=BATCH).learning_rate


def epoch_of_baddbmm(vectors: torch.Tensor, targets: torch.Tensor, batch: int = BATCH) -> None:
    """One product for the probes of all layers: vectors float32 [layer, n, feature], targets [n, class]."""
    layers, n, width = vectors.shape
    weight = torch.zeros(layers, width, targets.shape[1], requires_grad=True)
    bias = torch.zeros(layers, 1, targets.shape[1], requires_grad=True)
    _epoch([weight, bias], lambda rows: torch.baddbmm(bias, vectors[:, rows], weight), targets, n, batch)


def epoch_of_linear_layers(vectors: torch.Tensor, targets: torch.Tensor, batch: int = BATCH) -> None:
    """One `nn.Linear(features, classes)` a layer, all in one optimizer."""
    layers, n, width = vectors.shape
    probes = torch.nn.ModuleList(torch.nn.Linear(width, targets.shape[1]) for _ in range(layers))
    logits: Callable[[torch.Tensor], torch.Tensor] = lambda rows: torch.stack(  # noqa: E731
        [probe(layer[rows]) for probe, layer in zip(probes, vectors, strict=True)]
    )
    _epoch(list(probes.parameters()), logits, targets, n, batch)


def _epoch(
    parameters: Sequence[torch.Tensor],
    logits: Callable[[torch.Tensor], torch.Tensor],
    targets: torch.Tensor,
    n: int,
    batch: int,
) -> None:
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE, fused=True)
    for rows in torch.randperm(n).split(batch):  # type: ignore[no-untyped-call]
        found = logits(rows)
        wanted = targets[rows].expand_as(found)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(found, wanted, reduction="none").mean(1).sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def bank_rows(setting: Setting, n_examples: int = 3_000) -> Iterator[Row]:
    """One epoch of linear probes for each layer and class, ours streamed from the store, the rivals from memory."""
    store, layers = setting.store, setting.store.layers
    rows = np.sort(np.random.default_rng(setting.seed).choice(store.n_rows, min(n_examples, store.n_rows), False))
    classes = np.random.default_rng(setting.seed).integers(0, CLASSES, len(rows))
    data = LabelledExamples(StoredExamples(store, rows), classes, np.eye(CLASSES, dtype=bool))
    outputs = tuple(Output("class", f"class {number}") for number in range(CLASSES))
    shape = Shape("linear", layers, (0,), outputs, store.hidden_size)
    schedule = Schedule(epochs=1, batch_size=BATCH)
    vectors = torch.from_numpy(store.gather_layers(rows)).float()
    targets = torch.nn.functional.one_hot(torch.from_numpy(classes), CLASSES).float()
    flops = 4.0 * len(rows) * len(layers) * CLASSES * store.hidden_size
    cases: Cases = {
        "ours": in_each_round(train_bank, shape, data, schedule=schedule),
        "one baddbmm over layers": in_each_round(epoch_of_baddbmm, vectors, targets),
        "nn.Linear a layer": in_each_round(epoch_of_linear_layers, vectors, targets),
        "limit": products(flops),
    }
    what = f"{len(layers) * CLASSES} linear probes, an epoch of {len(rows):,}"
    yield setting.row(what, setting.times(cases), "sgemm")


def write_task(setting: Setting, path: Path, n_sentences: int) -> None:
    """Write an edge-probing task on sentences of the store: two words of each, with one of three labels."""
    texts = setting.store.index.texts
    with path.open("w") as file:
        for number in np.linspace(0, len(texts) - 1, min(n_sentences, len(texts))).astype(int).tolist():
            words = split_words(texts[number])
            last = len(words) - 1
            targets = [{"span1": [at, at + 1], "label": f"label {at % 3}"} for at in sorted({0, last // 2, last})]
            file.write(json.dumps({"text": " ".join(words), "targets": targets}) + "\n")


def stream_rows(setting: Setting, n_sentences: int = SENTENCES) -> Iterator[Row]:
    """The batches that edge probes train on, compared with a bare gather of the same rows."""
    store, task = setting.store, setting.folder / "task.jsonl"
    write_task(setting, task, n_sentences)
    split: EdgeSplit = join_task(store, task, name="made").train
    order = np.random.default_rng(setting.seed).permutation(split.n_sentences)
    rows: list[NDArray[np.int64]] = [split.plan.batch(each).rows for each in batch_sentences(order, BATCH_SENTENCES)]
    out = np.empty(len(store.layers) * max(map(len, rows)) * store.hidden_size, store.vector_dtype)
    stream = EdgeStream(store, store.layers, EdgeSchedule(epochs=1, batch_size=BATCH_SENTENCES))

    def streamed(number: int) -> None:
        for _ in stream.batches(split, order):
            pass

    def gathered(number: int) -> None:
        for each in rows:
            target: Any = out[: len(store.layers) * len(each) * store.hidden_size]
            store.gather_layers(each, out=target.reshape(len(store.layers), len(each), -1))

    def converted(number: int) -> None:
        for each in rows:
            torch.from_numpy(store.gather_layers(each)).float()

    cases: Cases = {"ours": streamed, "gather and float32": converted, "limit": gathered}
    what = f"stream of edge probes, {sum(map(len, rows)) * len(store.layers):,} vectors"
    yield setting.row(what, setting.times(cases), "gather_layers(out=)", targets={"to_limit": 1 / 0.6})
