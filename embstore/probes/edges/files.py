"""Edge probes on disk: a folder of safetensors and what made them, to be asked of any store that fits."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save

from embstore.devices import choose_device
from embstore.errors import InvalidValueError
from embstore.probes.edges.edges import EdgeResult
from embstore.probes.edges.model import EdgeBank, EdgeShape
from embstore.probes.edges.rows import SCHEMA, Probes
from embstore.probes.edges.scores import score_edges
from embstore.probes.edges.tasks import Edges, JoinedEdges, join_edges
from embstore.probes.edges.training import Stream, iter_logits
from embstore.probes.probe_folder import ProbeFolder, made_by
from embstore.store import Store

FORMAT_VERSION = 1
METADATA, TENSORS = "edges.json", "edges.safetensors"
FOLDER = ProbeFolder(METADATA, (TENSORS,), FORMAT_VERSION, empty="edge probes", other="edge probes")
require_free = FOLDER.require_free
BATCH = 32  # sentences
WHAT_MAKES_VECTORS = ("pooling", "context_window", "attention_window", "max_length")


@dataclass(frozen=True, eq=False)
class EdgeProbes:
    """The trained probes of a task with all that made them, to be saved and asked of other stores.

    `labels`: of the task; `single`: each target has exactly one. `probes`: which probe of `bank` is which.
    `epochs` int64, `dev_loss` float64 (NaN: no dev), [probes]: the epoch whose weights each has. `training`: the
    settings, where they are known. `store`: what made the store that they learnt from, its `digest`.
    """

    task: str
    labels: tuple[str, ...]
    single: bool
    probes: Probes
    bank: EdgeBank
    epochs: NDArray[np.int64]
    dev_loss: NDArray[np.float64]
    training: Mapping[str, Any]
    store: Mapping[str, Any]

    @classmethod
    def of(cls, result: EdgeResult) -> EdgeProbes:
        """What `probe_edges` has trained, with what made it. Raises InvalidValueError for probes of another kind."""
        if type(result.trained.bank) is not EdgeBank:
            raise InvalidValueError(f"the probes of {result.task.name} are not of kind mlp: only these are saved")
        return cls(
            task=result.task.name,
            labels=result.task.labels,
            single=result.task.single,
            probes=result.probes,
            bank=result.trained.bank,
            epochs=result.trained.epochs,
            dev_loss=result.trained.dev_loss,
            training={} if result.training is None else asdict(result.training),
            store=made_by(result.stream.store),
        )

    @property
    def layers(self) -> tuple[int, ...]:
        return self.probes.layers

    @property
    def width(self) -> int:
        return self.bank.shape.width

    @property
    def unit(self) -> str:
        """The rows of a span: `word` or `subword`."""
        return str(self.store["extraction"].get("unit", "word"))

    @property
    def pairs(self) -> bool:
        """Whether targets have two spans."""
        return self.bank.shape.spans == 2

    def cumulative(self, seed: int | None = None) -> EdgeBank:
        """P(0) ... P(L) of a seed, the first by default."""
        chosen = self.probes.seeds[0] if seed is None else seed
        if chosen not in self.probes.seeds:
            held = ", ".join(map(str, self.probes.seeds))
            raise InvalidValueError(f"the probes of {self.task} have no seed {chosen}: they have {held}")
        return self.bank.of(self.probes.cumulative(chosen))

    def fit(self, store: Store) -> tuple[str, ...]:
        """What is to be told where a store of another encoder is asked, a line each.

        Raises InvalidValueError where its vectors cannot be read: another width or unit, layers not stored.
        """
        unit = store.metadata.extraction.get("unit", "word")
        if store.hidden_size != self.width:
            raise InvalidValueError(
                f"the probes of {self.task} read vectors of width {self.width}, {store.path} has {store.hidden_size}: "
                "give a store of the same model"
            )
        if unit != self.unit:
            raise InvalidValueError(
                f"the probes of {self.task} read rows of unit {self.unit}, {store.path} has those of unit {unit}: "
                f"extract one with --unit {self.unit}"
            )
        lacking = [layer for layer in self.layers if layer not in store.layers]
        if lacking:
            raise InvalidValueError(
                f"the probes of {self.task} read layer {lacking[0]}, which is not stored in {store.path}: it has "
                f"{', '.join(map(str, store.layers))}"
            )
        changed = _differences(self.store, made_by(store))
        if not changed:
            return ()
        return (f"{self.task}: the probes learnt from vectors made otherwise than those of {store.path}: {changed}",)

    def on(self, device: torch.device) -> EdgeProbes:
        """The same with the weights on a device."""
        held = {name: tensor.detach().to(device) for name, tensor in self.bank.weights.items()}
        return replace(self, bank=replace(self.bank, weights=held))

    def stream(self, store: Store, *, batch_size: int = BATCH, device: str = "auto") -> Stream:
        return Stream(store, self.layers, batch_size, choose_device(device))

    def join(
        self, store: Store, edges: Edges, *, split: str = "targets", sentences: int | None = None, seed: int = 0
    ) -> JoinedEdges:
        """Targets of the task as rows of a store; see `join_edges`. Raises InvalidValueError as `fit` does."""
        notes = self.fit(store)
        joined = join_edges(
            store,
            edges,
            labels=self.labels,
            pairs=self.pairs,
            name=self.task,
            split=split,
            sentences=sentences,
            seed=seed,
        )
        return JoinedEdges(joined.split, joined.sentences, joined.targets, (*notes, *joined.notes))

    def probabilities(
        self, store: Store, edges: Edges, *, seed: int | None = None, device: str = "auto"
    ) -> NDArray[np.float32]:
        """What P(0) ... P(L) give each label of each target that the store has, float32 [layers, targets, labels]."""
        split = self.join(store, edges).split
        stream = self.stream(store, device=device)
        bank = self.on(stream.device).cumulative(seed)
        out = np.empty((len(bank), len(split), len(self.labels)), np.float32)
        for targets, logits in iter_logits(bank, stream, split):
            out[:, targets] = logits.sigmoid().cpu().numpy()
        return out

    def scores(self, store: Store, edges: Edges, *, split: str = "test", device: str = "auto") -> EdgeScores:
        """Micro F1 of all probes on targets of a store: `f1`, `half_f1` and `layer_f1` as `probe_edges` tells them."""
        joined = self.join(store, edges, split=split)
        stream = self.stream(store, device=device)
        found = {
            rule: counts.tally
            for rule, counts in score_edges(self.on(stream.device).bank, stream, joined.split).items()
        }
        half = found["half"].f1()
        own = found["likeliest"].f1() if self.single else half
        told: dict[str, Any] = {"task": self.task, "split": split, "count": found["half"].wanted}
        rows = [
            {**told, "layer": layer, "metric": metric, "value": None if np.isnan(value) else value, "seed": seed}
            for seed in self.probes.seeds
            for metric, values, at in self._scored(seed, own, half)
            for layer, value in zip(self.layers, values[at].tolist(), strict=True)
        ]
        return EdgeScores(pl.DataFrame(rows, schema=SCHEMA), joined.notes)

    def _scored(
        self, seed: int, own: NDArray[np.float64], half: NDArray[np.float64]
    ) -> Iterator[tuple[str, NDArray[np.float64], NDArray[np.int64]]]:
        places = self.probes.cumulative(seed)
        yield from (("f1", own, places), ("half_f1", half, places))
        if self.probes.layerwise:
            yield "layer_f1", own, self.probes.by_layer(seed)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a folder, whole or not at all, in place of edge probes that stood there; raises StorageError."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.bank.weights.items()}
        FOLDER.save(path, self._fields(), {TENSORS: save(tensors)})

    def _fields(self) -> dict[str, Any]:
        shape, numbers = self.bank.shape, np.array(self.layers)
        return {
            "kind": "mlp",
            "task": self.task,
            "labels": list(self.labels),
            "single": self.single,
            "spans": shape.spans,
            "layers": list(self.layers),
            "seeds": list(self.probes.seeds),
            "layerwise": self.probes.layerwise,
            "mixes": [numbers[row].tolist() for row in self.bank.allowed],
            "width": shape.width,
            "unit": self.unit,
            "projection": shape.projection,
            "hidden_size": shape.hidden_size,
            "training": dict(self.training),
            "epochs": self.epochs.tolist(),
            "dev_loss": [loss if np.isfinite(loss) else None for loss in self.dev_loss.tolist()],
            "store": dict(self.store),
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> EdgeProbes:
        """Read saved probes. Raises SavedProbesNotFoundError, SavedProbesError (damaged, or of a newer format)."""
        return FOLDER.load(path, cls._parsed)

    @classmethod
    def _parsed(cls, fields: Mapping[str, Any], files: Mapping[str, Path]) -> EdgeProbes:
        probes = Probes(tuple(fields["layers"]), tuple(fields["seeds"]), fields["layerwise"])
        shape = EdgeShape(
            layers=len(probes.layers),
            width=fields["width"],
            spans=fields["spans"],
            labels=len(fields["labels"]),
            projection=fields["projection"],
            hidden_size=fields["hidden_size"],
        )
        weights = load_file(files[TENSORS])
        for name, size in shape.tensor_shapes().items():
            held = weights[name]
            if held.shape != (len(probes.seed_of), *size) or held.dtype != torch.float32:
                raise ValueError(f"{TENSORS} has not the tensors that {METADATA} promises")
        return cls(
            task=fields["task"],
            labels=tuple(fields["labels"]),
            single=fields["single"],
            probes=probes,
            bank=EdgeBank(shape, probes.allowed, probes.seed_of, weights),
            epochs=np.array(fields["epochs"], np.int64),
            dev_loss=np.array(fields["dev_loss"], np.float64),
            training=fields["training"],
            store=fields["store"],
        )


@dataclass(frozen=True, eq=False)
class EdgeScores:
    """Scores of saved probes on some targets: a `frame` of `task, layer, split, metric, value, count, seed`."""

    frame: pl.DataFrame
    notes: tuple[str, ...]


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """How the vectors of two stores were made otherwise: by another model, or read from it in another way."""
    told = []
    known, asked = one["model"], other["model"]
    weights = "weights_sha256"
    same = known[weights] == asked[weights] if weights in known and weights in asked else known == asked
    if not same:
        told.append(f"{known.get('name')} (now {asked.get('name')})")
    for name in WHAT_MAKES_VECTORS:
        before, now = one["extraction"].get(name), other["extraction"].get(name)
        if before != now:
            told.append(f"{name} {before} (now {now})")
    return ", ".join(told)
