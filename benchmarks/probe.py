"""P(0) ... P(L) of edge probing trained together against one after another, and their stream against a bare gather.

python benchmarks/probe.py STORE edge-probing/pos edge-probing/entities --out benchmarks/results/probe.json
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bank import SQUARE, products_rate
from measure import Row, interleaved, parser_of, show_rows, write_json

import embstore as es
from embstore.bench.cases import in_each_round
from embstore.bench.measure import row_of
from embstore.probes.edges.batches import GROUP_NBYTES, EdgeBatch, EdgeSplit, batch_sentences
from embstore.probes.edges.model import EdgeBank, EdgeShape, operations
from embstore.probes.edges.tasks import Sample, join_task
from embstore.probes.edges.training import EdgeSchedule, EdgeStream, train_edges
from embstore.probes.reading import READ_AHEAD

CPU = torch.device("cpu")
SPEEDUP, STREAM = 2.5, 0.5  # the project's targets
EPOCHS = 5  # of the stream and of the gather, which take too little time to be measured once


@dataclass(frozen=True, eq=False)
class Case:
    """One task: its train sentences, their labels, and how a step is made."""

    store: es.Store
    train: EdgeSplit
    labels: int
    batch: int

    def stream(self, layers: int) -> EdgeStream:
        return EdgeStream(self.store, self.store.layers[:layers], EdgeSchedule(epochs=1, batch_size=self.batch))

    def shape(self, layers: int) -> EdgeShape:
        return EdgeShape(layers, self.store.hidden_size, len(self.train.spans), self.labels)

    @property
    def layers(self) -> int:
        return len(self.store.layers)

    @property
    def order(self) -> np.ndarray:
        return np.random.default_rng((0, 1)).permutation(self.train.n_sentences)


class ByHand(torch.nn.Module):
    """One probe as one would write it: every word projected, spans padded to the longest, autograd."""

    def __init__(self, shape: EdgeShape) -> None:
        super().__init__()
        self.mix = torch.nn.Parameter(torch.zeros(shape.layers))
        self.scale = torch.nn.Parameter(torch.ones(()))
        kinds = range(shape.spans)
        self.projections = torch.nn.ModuleList(torch.nn.Linear(shape.width, shape.projection) for _ in kinds)
        self.attentions = torch.nn.ModuleList(torch.nn.Linear(shape.projection, 1, bias=False) for _ in kinds)
        self.classifier = torch.nn.Sequential(
            torch.nn.Linear(shape.spans * shape.projection, shape.hidden_size),
            torch.nn.Tanh(),
            torch.nn.LayerNorm(shape.hidden_size),
            torch.nn.Dropout(EdgeSchedule.dropout),
            torch.nn.Linear(shape.hidden_size, shape.labels),
        )

    def forward(self, batch: EdgeBatch) -> torch.Tensor:
        words = self.scale * torch.einsum("l,lnd->nd", self.mix.softmax(0), batch.vectors)
        pooled = []
        for columns, projection, attention in zip(batch.spans, self.projections, self.attentions, strict=True):
            projected = projection(words)
            sizes = columns.begin.diff()
            inside = torch.arange(int(sizes.max())) < sizes[:, None]
            places = torch.zeros(inside.shape, dtype=torch.int64).masked_scatter_(inside, columns.places)
            share = attention(projected)[:, 0][places].masked_fill(~inside, -torch.inf).softmax(1)
            pooled.append(columns.by_target((share[..., None] * projected[places]).sum(1)))
        found: torch.Tensor = self.classifier(torch.cat(pooled, 1))
        return found


def together(case: Case) -> None:
    """An epoch of all P(l) as one model."""
    bank = EdgeBank.initial(
        case.shape(case.layers), np.tri(case.layers, dtype=bool), np.zeros(case.layers, int), device=CPU
    )
    train_edges(bank, case.stream(case.layers), case.train, None)


def one_by_one(case: Case) -> None:
    """The same code, a probe after the other; P(l) reads layers 0 to l alone."""
    for layers in range(1, case.layers + 1):
        allowed = np.ones((1, layers), bool)
        bank = EdgeBank.initial(case.shape(layers), allowed, np.zeros(1, int), device=CPU)
        train_edges(bank, case.stream(layers), case.train, None)


def by_hand(case: Case) -> None:
    """Plain modules, one after the other, over the same stream."""
    for layers in range(1, case.layers + 1):
        probe = ByHand(case.shape(layers))
        optimizer = torch.optim.Adam(probe.parameters(), lr=EdgeSchedule.learning_rate, fused=True)
        criterion = torch.nn.BCEWithLogitsLoss()
        for batch in case.stream(layers).batches(case.train, case.order):
            optimizer.zero_grad()
            criterion(probe(batch), batch.gold).backward()
            optimizer.step()


def streamed(case: Case) -> None:
    for _ in range(EPOCHS):
        for _ in case.stream(case.layers).batches(case.train, case.order):
            pass


def gathered(case: Case, rows: list[np.ndarray], buffers: list[np.ndarray]) -> None:
    """The rows of the same batches, known before, into as many buffers in turn as the stream has."""
    for number, each in enumerate(rows * EPOCHS):
        size = case.layers * len(each) * case.store.hidden_size
        buffer = buffers[number % len(buffers)]
        case.store.gather_layers(each, out=buffer[:size].reshape(case.layers, len(each), -1))


def needed(case: Case) -> float:
    """The floating-point operations of an epoch of all P(l) at least: three products a layer of weights."""
    shape, plan, total = case.shape(case.layers), case.train.plan, 0
    sizes = {"width": shape.width, "projection": shape.projection, "hidden": shape.hidden_size}
    for sentences in batch_sentences(case.order, case.batch):
        batch = plan.batch(sentences)
        total += min(operations([len(each.begin) - 1 for each in batch.spans], len(batch.targets), **sizes))
        total += len(batch.targets) * shape.hidden_size * shape.labels
    return 6.0 * total * case.layers


def rows_of(case: Case, name: str, arguments: argparse.Namespace) -> list[Row]:
    """All cases with the current number of threads: the training of all P(l), and the stream that it reads."""
    plan = case.train.plan
    rows = [plan.batch(sentences).rows for sentences in batch_sentences(case.order, case.batch)]
    size = case.layers * case.store.hidden_size * max(map(len, rows))
    dtype = case.store.vector_dtype
    count = (READ_AHEAD + 1) * max(1, GROUP_NBYTES // (size * dtype.itemsize))
    buffers = [np.empty(size, dtype) for _ in range(count)]
    cases = {
        "ours": in_each_round(together, case),
        "one by one, same code": in_each_round(one_by_one, case),
        "one by one, by hand": in_each_round(by_hand, case),
        "stream": in_each_round(streamed, case),
        "gather": in_each_round(gathered, case, rows, buffers),
    }
    times = interleaved(cases, repeats=arguments.repeats, warm=1, tell=True)
    stream = {"ours": times.pop("stream"), "limit": times.pop("gather")}
    limit = needed(case) / products_rate(size=arguments.square)
    more: dict[str, Any] = {"threads": torch.get_num_threads()}
    what = f"P(0) to P({case.layers - 1}) together, {name}"
    trained = row_of(what, times, limit=limit, limit_name="products", targets={"to_rival": 1 / SPEEDUP}, **more)
    more |= {"limit_name": "gather of the same rows", "targets": {"to_limit": 1 / STREAM}}
    return [trained, row_of(f"stream of {name}", stream, **more)]


def of_all(rows: Sequence[Row]) -> Row:
    """Return the same row of all tasks, one after the other."""
    first = rows[0]
    rivals = {name: sum(row.rivals[name] or 0.0 for row in rows) for name in first.rivals}
    what = f"{first.what.rpartition(' ')[0]} all tasks"
    return replace(
        first, what=what, ours=sum(row.ours for row in rows), rivals=rivals, limit=sum(row.limit or 0.0 for row in rows)
    )


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("store")
    parser.add_argument("tasks", nargs="+", help="folders with train.jsonl")
    parser.add_argument("--sentences", type=int, default=800, help="of each task")
    parser.add_argument("--batch", type=int, default=32, help="sentences a step")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--square", type=int, default=SQUARE, help="rows of the products the machine is measured by")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    store = es.open(arguments.store)
    torch.optim.Adam([torch.zeros(1)])  # its imports are not measured
    held: list[dict[str, Any]] = []
    by_task: list[list[Row]] = []  # the rows of all threads
    for folder in map(Path, arguments.tasks):
        task = join_task(store, folder / "train.jsonl", name=folder.name, sample=Sample(arguments.sentences))
        case = Case(store, task.train, len(task.labels.labels), arguments.batch)
        print(f"{folder.name}: {case.train.n_sentences:,} sentences, {len(case.train):,} targets, {case.labels} labels")
        by_task.append([])
        for threads in arguments.threads:
            torch.set_num_threads(threads)
            rows = rows_of(case, folder.name, arguments)
            held += show_rows(rows)
            by_task[-1] += rows
    held += show_rows(map(of_all, zip(*by_task, strict=True)))
    settings = {"sentences": arguments.sentences, "batch": arguments.batch, "layers": len(store.layers)}
    settings |= {"width": store.hidden_size, "dtype": store.dtype}
    write_json(arguments.out, {"benchmark": "probe", "settings": settings, "rows": held})


if __name__ == "__main__":
    main()
