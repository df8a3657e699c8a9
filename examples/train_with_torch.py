"""Train a linear probe in PyTorch on the labels of a store, streamed from disk.

    python examples/train_with_torch.py STORE.zarr LABEL-COLUMN [LAYER]

`embstore demo` makes a store with the label column `class`: demo-out/demo.zarr.
"""

import sys
from collections.abc import Iterable
from typing import Any

import torch

import embstore as es

EPOCHS = 30


def accuracy(probe: torch.nn.Module, batches: Iterable[Any]) -> float:
    right = [(probe(batch.vectors).argmax(-1) == batch.labels).float() for batch in batches]
    return float(torch.cat(right).mean())


def main(path: str, label: str, layer: int = -1) -> float:
    torch.manual_seed(0)
    store = es.open(path)
    classes = list(store.index.labels[label].names)

    # Every fifth sentence is held out, so that no sentence is in both parts.
    train = store.select(where=f'"{label}" IS NOT NULL AND sentence % 5 <> 0', layers=layer)
    test = store.select(where=f'"{label}" IS NOT NULL AND sentence % 5 = 0', layers=layer)

    batches = train.to_torch(label=label, batch_size=64, shuffle=True, dtype=torch.float32)
    held_out = test.to_torch(label=label, dtype=torch.float32)
    probe = torch.nn.Linear(store.hidden_size, len(classes))
    optimizer = torch.optim.AdamW(probe.parameters(), lr=1e-2)
    for epoch in range(EPOCHS):
        batches.set_epoch(epoch)  # another order in each epoch, the same ones in each run
        for batch in batches:
            loss = torch.nn.functional.cross_entropy(probe(batch.vectors), batch.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    found = accuracy(probe, held_out)
    print(f"layer {train.layers[0]}: {found:.3f} of {len(test):,} held-out words right, of {len(classes)} labels")
    return found


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
