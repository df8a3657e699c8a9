"""A bank of probes against a loop over them, and against the machine's matrix products, in one run.

python benchmarks/bank.py STORE --train train.tsv --test test.tsv --out benchmarks/results/bank.json
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from measure import Row, Times, interleaved, parser_of, show_rows, timed, write_json
from numpy.typing import NDArray

import embstore as es
from embstore.bench.measure import row_of
from embstore.bench.probe_cases import epoch_of_baddbmm, epoch_of_linear_layers
from embstore.corpus import read_word_classes
from embstore.probes.classes.bank import Output, Shape
from embstore.probes.classes.examples import ArrayExamples, ClassExamples, ExampleOptions, LabelledExamples
from embstore.probes.classes.training import train_bank
from embstore.probes.splits import split_words
from embstore.probes.training import Schedule, digest_of

LOOP_BUDGET = 20.0  # seconds after which a loop has run often enough
SQUARE = 2048  # rows and columns of the products that the machine is measured by
LABEL = "class"
Labelled = tuple[LabelledExamples, tuple[str, ...], tuple[int, ...]]


def learnt(store: es.Store, train: str, test: str) -> Labelled:
    """All contexts of the train words, their classes, and the layers."""
    split = split_words(read_word_classes(train), read_word_classes(test))
    source = ClassExamples(store.select(), split, ExampleOptions(LABEL, "context", None, 0))
    classes = tuple(source.classes()[0])
    return source.of("train", classes).labelled(None), classes, store.layers


def first(data: LabelledExamples, count: int) -> LabelledExamples:
    """Return some of the examples, spread over all."""
    places = np.linspace(0, len(data) - 1, count).astype(np.int64)
    return replace(data, examples=_Chosen(data.examples, places), group=data.group[places])


class _Chosen:
    """Some examples of others."""

    def __init__(self, examples: Any, places: NDArray[np.int64]) -> None:
        self._examples, self._places = examples, places
        self.width, self.dtype = examples.width, examples.dtype

    def __len__(self) -> int:
        return len(self._places)

    def read(self, numbers: NDArray[np.int64], layers: Any, out: NDArray[Any], /) -> None:
        self._examples.read(self._places[numbers], layers, out)

    def digest(self) -> str:
        return digest_of(self._examples.digest(), self._places)


def in_memory(data: LabelledExamples, layers: tuple[int, ...]) -> dict[int, NDArray[np.float32]]:
    """What a loop holds: float32 of each layer."""
    held = {}
    for layer in layers:
        out = np.empty((1, len(data), data.examples.width), data.examples.dtype)
        data.examples.read(np.arange(len(data)), [layer], out)
        held[layer] = out[0].astype(np.float32)
    return held


def module_of(kind: str, width: int, units: int) -> torch.nn.Module:
    if kind == "linear":
        return torch.nn.Linear(width, 1)
    return torch.nn.Sequential(torch.nn.Linear(width, units), torch.nn.ReLU(), torch.nn.Linear(units, 1))


def one_probe(
    module: torch.nn.Module, vectors: torch.Tensor, target: torch.Tensor, training: Schedule, epochs: int
) -> None:
    """Train one probe as one would by hand, over the batches that the bank takes."""
    optimizer = torch.optim.Adam(module.parameters(), lr=training.learning_rate)
    criterion = torch.nn.BCEWithLogitsLoss()
    for epoch in range(1, epochs + 1):
        order = torch.from_numpy(np.random.default_rng((training.seed, epoch)).permutation(len(target)))
        for places in order.split(training.batch_size):
            optimizer.zero_grad()
            criterion(module(vectors[places])[:, 0], target[places]).backward()
            optimizer.step()


def loop(
    kind: str,
    units: int,
    data: LabelledExamples,
    held: dict[int, NDArray[np.float32]],
    training: Schedule,
    device: str = "cpu",
) -> None:
    """All probes, one after the other; vectors of a layer and targets are converted once."""
    targets = torch.from_numpy(data.targets[data.group]).float().t().contiguous().to(device)
    for array in held.values():
        vectors = torch.from_numpy(array).to(device)
        for target in targets:
            module = module_of(kind, vectors.shape[1], units).to(device)
            one_probe(module, vectors, target, training, training.epochs)


def one_thread(call: Callable[[], object]) -> float:
    """Seconds of a call with one thread: such small products may gain nothing from more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return timed(call)
    finally:
        torch.set_num_threads(threads)


def products_rate(device: str = "cpu", size: int = SQUARE, repeats: int = 5) -> float:
    """Multiply-adds times two a second of square float32 products, the median of a few."""
    one = torch.randn(size, size, device=device)
    out = torch.empty_like(one)

    def multiply() -> None:
        torch.mm(one, one, out=out)
        if device != "cpu":
            torch.cuda.synchronize()

    multiply()
    return 2 * size**3 / median(timed(multiply) for _ in range(repeats))


def needed(shape: Shape, examples: int) -> float:
    """The floating-point operations that training takes at least: one product forward, one for the gradient."""
    probes = len(shape.layers) * shape.n_probes
    return 4.0 * examples * probes * (shape.width * max(1, shape.hidden_size) + shape.hidden_size)


def shape_of(kind: str, classes: tuple[str, ...], layers: tuple[int, ...], width: int, units: int) -> Shape:
    outputs = tuple(Output(LABEL, name) for name in classes)
    return Shape(kind, layers, (0,), outputs, width, units if kind == "mlp" else 0)


def train_seconds(shape: Shape, data: LabelledExamples, training: Schedule, device: str = "cpu") -> float:
    """Seconds of a training, first weights included."""
    began = time.perf_counter()
    train_bank(shape, data, schedule=replace(training, device=torch.device(device), memory=2**36))
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def linear(arguments: argparse.Namespace, labelled: Labelled) -> Row:
    """One epoch of the bank, streamed from the store, and of the loop, from memory."""
    data, classes, layers = labelled
    shape = shape_of("linear", classes, layers, data.examples.width, 0)
    training = Schedule(epochs=1, batch_size=arguments.batch)
    held = in_memory(data, layers)
    stacked = torch.from_numpy(np.stack([held[layer] for layer in layers]))
    targets = torch.from_numpy(data.targets[data.group]).float()
    from_memory = replace(data, examples=ArrayExamples(held))
    cases: dict[str, Callable[[int], float]] = {
        "ours": lambda _: train_seconds(shape, data, training),
        "the bank, from memory": lambda _: train_seconds(shape, from_memory, training),
        "one baddbmm over layers": lambda _: timed(partial(epoch_of_baddbmm, stacked, targets, arguments.batch)),
        "nn.Linear a layer": lambda _: timed(partial(epoch_of_linear_layers, stacked, targets, arguments.batch)),
        "loop over probes": lambda _: timed(partial(loop, "linear", 0, data, held, training)),
        "loop, one thread": lambda _: one_thread(partial(loop, "linear", 0, data, held, training)),
    }
    torch.optim.Adam([torch.zeros(1)])  # its imports are not measured
    train_seconds(shape, first(data, 4 * arguments.batch), training)
    times = interleaved(cases, repeats=arguments.repeats, budget=LOOP_BUDGET, tell=True)
    what = f"{len(layers) * shape.n_probes} linear probes, an epoch of {len(data):,}"
    more: dict[str, Any] = {"limit_name": "sgemm", "threads": torch.get_num_threads(), "targets": {"to_rival": 1}}
    return row_of(what, times, limit=needed(shape, len(data)) / products_rate(), **more)


def hidden(arguments: argparse.Namespace, labelled: Labelled) -> Row:
    """Steps of probes with a hidden layer compared with square products; Adam and reading are included.

    The time of the steps is that of twice as many less that of the steps alone, so drawing weights is not counted.
    """
    data, classes, layers = labelled
    shape = shape_of("mlp", classes, layers, data.examples.width, arguments.hidden)
    training = Schedule(epochs=1, batch_size=arguments.batch_mlp)
    once = first(data, arguments.steps * arguments.batch_mlp)
    twice = first(data, 2 * len(once))
    cases: dict[str, Callable[[int], float]] = {
        "limit": lambda _: needed(shape, len(once)) / products_rate(),
        "once": lambda _: train_seconds(shape, once, training),
        "twice": lambda _: train_seconds(shape, twice, training),
    }
    times = interleaved(cases, repeats=arguments.repeats, tell=True)
    pairs = zip(times.pop("once").seconds, times.pop("twice").seconds, strict=True)
    times["ours"] = Times([more - less for less, more in pairs])
    what = f"{arguments.steps} steps of {len(layers) * shape.n_probes} probes of {arguments.hidden} units"
    threads = torch.get_num_threads()
    return row_of(what, times, limit_name="sgemm", threads=threads, targets={"to_limit": 1 / 0.6})


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("store")
    parser.add_argument("--train", required=True, help="list of words with their classes, as Wiki-PSE has them")
    parser.add_argument("--test", required=True)
    parser.add_argument("--batch", type=int, default=256, help="examples a step, linear")
    parser.add_argument("--batch-mlp", type=int, default=256, help="examples a step, mlp")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=8, help="steps of the probes with a hidden layer")
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    store = es.open(arguments.store)
    labelled = learnt(store, arguments.train, arguments.test)
    data, classes, layers = labelled
    print(
        f"{len(data):,} contexts x {len(layers)} layers x {store.hidden_size} {store.dtype}, {len(classes)} classes\n"
    )
    held = show_rows(run(arguments, labelled) for run in (linear, hidden))
    size = {"contexts": len(data), "layers": len(layers), "width": store.hidden_size, "classes": len(classes)}
    settings = {"batch": arguments.batch, "batch_mlp": arguments.batch_mlp, "hidden": arguments.hidden}
    result = {"benchmark": "bank", "data": size, "settings": settings, "rows": held}
    write_json(arguments.out, result)


if __name__ == "__main__":
    main()
