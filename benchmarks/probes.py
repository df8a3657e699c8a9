"""Train probes of all layers together, next to plain modules of torch, one a layer, on vectors in memory.

    python benchmarks/probes.py --rows 50000 --out benchmarks/results/probes.json

Linear probes of every layer for 41 classes of words, three epochs of all rows. The rivals are given float32 vectors in
memory; embstore reads the store.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from made import random_store
from measure import Case, measure, parser_of, products, write_result

import embstore as es

BATCH, CLASSES, EPOCHS, RATE = 256, 41, 3, 1e-3


def train(
    parameters: Sequence[torch.Tensor],
    logits: Callable[[torch.Tensor], torch.Tensor],
    targets: torch.Tensor,
) -> None:
    """Some epochs of Adam over shuffled batches; `logits` returns [layer, row, class]."""
    optimizer = torch.optim.Adam(parameters, lr=RATE, fused=True)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(targets)).split(BATCH):  # type: ignore[no-untyped-call]
            scores = logits(rows)
            loss = torch.nn.functional.cross_entropy(
                scores.flatten(0, 1), targets[rows].repeat(len(scores)), reduction="sum"
            )
            optimizer.zero_grad()
            (loss / len(rows)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def one_product(vectors: torch.Tensor, targets: torch.Tensor) -> None:
    """The probes of all layers as one `baddbmm`."""
    weight = torch.zeros(len(vectors), vectors.shape[2], CLASSES, requires_grad=True)
    bias = torch.zeros(len(vectors), 1, CLASSES, requires_grad=True)
    train([weight, bias], lambda rows: torch.baddbmm(bias, vectors[:, rows], weight), targets)


def one_by_one(vectors: torch.Tensor, targets: torch.Tensor) -> None:
    """One `nn.Linear` a layer, one after the other."""
    for layer in vectors:
        probe = torch.nn.Linear(layer.shape[1], CLASSES)
        train(list(probe.parameters()), lambda rows, layer=layer, probe=probe: probe(layer[rows])[None], targets)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.tmp) as name, es.config(progress=False):
        store = random_store(Path(name) / "random.zarr", rows=arguments.rows)
        words = store.table(columns=["word"])["word"].cast(str)
        code = {word: number % CLASSES for number, word in enumerate(sorted(set(words)))}
        vectors = torch.from_numpy(store.select().vectors()).float()
        targets = torch.tensor([code[word] for word in words])
        labelled = store.with_labels("class", [f"class {code[word]}" for word in words])
        split = es.probes.WordSplit({word: (f"class {number}",) for word, number in code.items()}, {}, {})
        training = es.probes.Training(epochs=EPOCHS, batch_size=BATCH, learning_rate=RATE, patience=0)
        cases: dict[str, Case] = {
            "ours": lambda number: es.ClassProbe(training=training, max_contexts=None).fit(labelled, split),
            "one baddbmm over layers": lambda number: one_product(vectors, targets),
            "nn.Linear a layer": lambda number: one_by_one(vectors, targets),
            "limit": products(6.0 * EPOCHS * vectors.numel() * CLASSES),
        }
        what = f"{len(store.layers)} linear probes of {CLASSES} classes, {EPOCHS} epochs of {store.n_rows:,}"
        row = measure(what, cases, repeats=min(arguments.repeats, 3), limit="sgemm", target=1.0)
    write_result(arguments.out, [row])


if __name__ == "__main__":
    main()
