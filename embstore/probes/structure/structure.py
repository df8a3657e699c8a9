"""The structural probe (Hewitt & Manning 2019): how much of a sentence's syntax tree can be read from its geometry."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from embstore.corpus.trees import Tree
from embstore.devices import choose_device
from embstore.errors import InvalidValueError, NonFiniteError
from embstore.probes.structure.examples import SentenceFinder, Treebank, iter_tree_batches
from embstore.probes.structure.files import SavedStructure
from embstore.probes.structure.network import TASKS, Projected, StructureShape, Task
from embstore.probes.structure.result import BASELINE, SCHEMA, StructureResult
from embstore.probes.structure.scores import Predicted, Score, equal_lengths, linear_order, score_structure
from embstore.probes.structure.training import StructureProbes, StructureTraining, train_structure
from embstore.probes.training import VERIFY
from embstore.store import Store
from embstore.store.layers import chosen_layers

DEFAULT_RANK = 128
ROOM = 2**22  # predicted distances held at a time
SPLITS = ("train", "dev", "test")


def probe_structure(
    stores: Store | Mapping[str, Store],
    *,
    train: Sequence[Tree],
    dev: Sequence[Tree],
    test: Sequence[Tree],
    layers: str | int | Iterable[int] | None = None,
    tasks: Sequence[Task] = TASKS,
    rank: int | None = None,
    seeds: Sequence[int] = (0,),
    sentences: int | None = None,
    data_seed: int = 0,
    epochs: int = 40,
    batch_size: int = 20,
    learning_rate: float = 1e-3,
    decay: float = 0.1,
    patience: int = 5,
    splits: Sequence[str] = ("dev", "test"),
    device: str = "auto",
    checkpoints: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> StructureResult:
    """Train distance and depth probes on gold trees, all layers and seeds of a store together, and score them.

    `stores`: of unit word, holding the sentences of the trees (found by their words); several are told apart by name.
    `rank`: of the maps B, by default 128 or the width of the vectors where that is less. `sentences`: at most so many
    of each part, drawn with `data_seed` from the trees alone, so the same ones for every store. The other options are
    those of `StructureTraining`. `splits`: what is scored. Beside each store's probes stands the baseline of the order
    of its words. `checkpoints`: a folder that keeps each store's training after each epoch; the same call goes on from
    it.

    Raises InvalidValueError (no sentence of a part in the store, a layer that is not stored, a rank or seed that is not
    allowed, a store of subwords, a checkpoint of another training), MissingRowsError, NonFiniteError, StorageError.
    """
    training = StructureTraining(epochs, batch_size, learning_rate, decay, patience, data_seed)
    held = {"train": train, "dev": dev, "test": test}
    for split in splits:
        if split not in SPLITS:
            raise InvalidValueError(f"unknown split {split!r}; allowed are {', '.join(SPLITS)}")
    parts = {name: sampled(trees, sentences, data_seed) for name, trees in held.items()}
    named = dict(stores) if isinstance(stores, Mapping) else {stores.path.stem: stores}
    if not named:
        raise InvalidValueError("no store is given to probe: give one or more")
    shapes = {name: _shape(store, layers, tasks, rank, seeds) for name, store in named.items()}
    chosen = choose_device(device)
    rows: list[dict[str, Any]] = []
    found: dict[str, SavedStructure] = {}
    asked: dict[str, Treebank] = {}
    notes = _sampling_notes(held, parts)
    for number, (name, store) in enumerate(named.items()):
        finder = SentenceFinder(store)
        banks = {part: finder.treebank(trees, name=part) for part, trees in parts.items()}
        notes += [note for part, bank in banks.items() for note in _left_out(name, part, bank)]
        share = None if progress is None else _share(progress, number, len(named))
        shape = shapes[name]
        probes = train_structure(
            shape,
            banks["train"],
            banks["dev"],
            training=training,
            device=chosen,
            checkpoint=None if checkpoints is None else Path(checkpoints) / f"{name}.pt",
            progress=share,
        )
        for split in splits:
            rows += _scored(name, split, probes, banks[split], chosen)
        counts = {part: len(bank) for part, bank in banks.items()}
        found[name] = SavedStructure.of(probes, training=asdict(training), sentences=counts, store=store)
        asked[name] = banks["test"]
    return StructureResult(pl.DataFrame(rows, schema=SCHEMA), found, asked, tuple(notes))


def sampled(trees: Sequence[Tree], count: int | None, seed: int) -> Sequence[Tree]:
    """At most `count` of the trees, in their order; raises InvalidValueError for none."""
    if count is not None and count < 1:
        raise InvalidValueError(f"sentences {count} is not allowed: give 1 or more")
    if count is None or count >= len(trees):
        return trees
    places = np.sort(np.random.default_rng(seed).permutation(len(trees))[:count])
    return [trees[place] for place in places.tolist()]


def predict(probes: StructureProbes, bank: Treebank, device: torch.device) -> Iterator[Predicted]:
    """Predict all sentences of a treebank; the probes are those of layers x seeds.

    Raises NonFiniteError for vectors that are not finite.
    """
    shape = probes.shape
    weights = probes.weights.to(device)
    many = len(shape.layers) * len(shape.seeds)
    groups = list(equal_lengths(bank, room=max(1, ROOM // many)))
    with torch.no_grad():
        for batch in iter_tree_batches(bank, groups, shape.layers, device):
            projected = Projected(weights, batch, shape.tasks)
            distances = projected.distances() if "distance" in shape.tasks else None
            depths = projected.depths() if "depth" in shape.tasks else None
            for values in (distances, depths):
                if values is not None and not bool(torch.isfinite(values).all()):
                    raise NonFiniteError(f"sentences of {bank.store.path} hold values that are not finite: {VERIFY}")
            yield Predicted(
                batch.sentences,
                None if distances is None else distances.flatten(0, 1).cpu().numpy(),
                None if depths is None else depths.flatten(0, 1).cpu().numpy(),
            )


def _shape(
    store: Store,
    layers: str | int | Iterable[int] | None,
    tasks: Sequence[Task],
    rank: int | None,
    seeds: Sequence[int],
) -> StructureShape:
    return StructureShape(
        layers=chosen_layers(layers, store.layers),
        tasks=tuple(tasks),
        seeds=tuple(seeds),
        width=store.hidden_size,
        rank=min(DEFAULT_RANK, store.hidden_size) if rank is None else rank,
    )


def _scored(
    name: str, split: str, probes: StructureProbes, bank: Treebank, device: torch.device
) -> Iterator[dict[str, Any]]:
    shape = probes.shape
    many = len(shape.layers) * len(shape.seeds)
    for score in score_structure(bank, predict(probes, bank, device), probes=many):
        for number, value in enumerate(score.values):
            layer, seed = divmod(number, len(shape.seeds))
            yield _row(name, split, score, value, shape.layers[layer], shape.seeds[seed])
    for score in score_structure(bank, linear_order(bank), probes=1):
        if score.task in shape.tasks:
            yield _row(f"{name}: {BASELINE}", split, score, score.values[0], None, None)


def _row(
    store: str, split: str, score: Score, value: float | None, layer: int | None, seed: int | None
) -> dict[str, Any]:
    told = {"store": store, "task": score.task, "layer": layer, "split": split, "metric": score.metric}
    return told | {"value": value, "count": score.count, "seed": seed}


def _sampling_notes(held: Mapping[str, Sequence[Tree]], parts: Mapping[str, Sequence[Tree]]) -> list[str]:
    return [
        f"{name}: {len(parts[name]):,} of {len(trees):,} sentences, drawn at random"
        for name, trees in held.items()
        if len(parts[name]) < len(trees)
    ]


def _left_out(name: str, part: str, bank: Treebank) -> Iterator[str]:
    for reason, count in bank.left_out.items():
        if count:
            yield f"{name}: {part}: {count:,} {reason}, such as {bank.examples[reason]!r}"


def _share(progress: Callable[[int, int], object], number: int, count: int) -> Callable[[int, int], object]:
    return lambda done, total: progress(number * total + done, count * total)
