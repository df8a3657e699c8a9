"""Probes on disk: a folder of safetensors, the words they were made with, and what made them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save

from embstore.probes.classes.bank import Output, ProbeBank, Shape
from embstore.probes.control import CONTROL, ControlTask
from embstore.probes.probe_folder import ProbeFolder, json_bytes, made_by
from embstore.probes.splits import PARTS, WordSplit
from embstore.probes.training import Trained
from embstore.store import Store

FORMAT_VERSION = 1
METADATA, TENSORS, WORDS = "probes.json", "probes.safetensors", "words.json"
FOLDER = ProbeFolder(METADATA, (TENSORS, WORDS), FORMAT_VERSION, empty="saved probes", other="probes")
require_free = FOLDER.require_free


@dataclass(frozen=True, eq=False)
class SavedBank:
    """Probes with all that made them, to be saved and applied.

    `split`: the words. `training`: the settings. `asking`: how examples were chosen (label, level, max_contexts,
    seed). `store`: model, corpus and extraction of the store, its `digest`. `control`: the control task, where there
    is one. `epochs` int64, `dev_loss` float64 [layer, seed, output]: the epoch whose weights each probe has.
    """

    bank: ProbeBank
    split: WordSplit
    training: Mapping[str, Any]
    asking: Mapping[str, Any]
    store: Mapping[str, Any]
    control: ControlTask | None
    epochs: NDArray[np.int64]
    dev_loss: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        trained: Trained,
        *,
        store: Store,
        split: WordSplit,
        training: Mapping[str, Any],
        asking: Mapping[str, Any],
        control: ControlTask | None,
    ) -> SavedBank:
        """What `train_bank` gives, with what made it."""
        shape = trained.bank.shape
        sizes = (len(shape.layers), len(shape.seeds), len(shape.outputs))
        return cls(
            bank=trained.bank,
            split=split,
            training=dict(training),
            asking=dict(asking),
            store=made_by(store),
            control=control,
            epochs=trained.epochs.reshape(sizes),
            dev_loss=trained.dev_loss.reshape(sizes),
        )

    @property
    def task(self) -> str:
        """The label column that was learnt."""
        return self.bank.shape.outputs[0].task

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(output.name for output in self.bank.shape.outputs))

    def at_layers(self, layers: tuple[int, ...]) -> SavedBank:
        """The same with the probes of some layers only."""
        bank = self.bank.at_layers(layers)
        places = [self.bank.shape.layers.index(layer) for layer in layers]
        return replace(self, bank=bank, epochs=self.epochs[places], dev_loss=self.dev_loss[places])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a folder, whole or not at all, in place of saved probes that stood there; raises StorageError."""
        FOLDER.save(path, self._fields(), {TENSORS: save(_plain(self.bank)), WORDS: json_bytes(self.split.as_json())})

    def _fields(self) -> dict[str, Any]:
        shape = self.bank.shape
        return {
            "kind": shape.kind,
            "layers": list(shape.layers),
            "seeds": list(shape.seeds),
            "task": self.task,
            "classes": list(self.classes),
            "width": shape.width,
            "hidden_size": shape.hidden_size,
            "training": dict(self.training),
            "examples": dict(self.asking),
            "words": {"sha256": self.split.sha256} | {part: len(self.split.of(part)) for part in PARTS},
            "control": None if self.control is None else self.control.as_json(),
            "store": dict(self.store),
            "epochs": self.epochs.tolist(),
            "dev_loss": [[[_number(loss) for loss in row] for row in rows] for rows in self.dev_loss.tolist()],
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SavedBank:
        """Read saved probes. Raises SavedProbesNotFoundError, SavedProbesError (damaged, or of a newer format)."""
        return FOLDER.load(path, cls._parsed)

    @classmethod
    def _parsed(cls, fields: Mapping[str, Any], files: Mapping[str, Path]) -> SavedBank:
        classes = fields["classes"]
        tasks = [fields["task"], CONTROL] if fields["control"] else [fields["task"]]
        shape = Shape(
            kind=fields["kind"],
            layers=tuple(fields["layers"]),
            seeds=tuple(fields["seeds"]),
            outputs=tuple(Output(task, name) for task in tasks for name in classes),
            width=fields["width"],
            hidden_size=fields["hidden_size"],
        )
        return cls(
            bank=ProbeBank(shape, _joined(load_file(files[TENSORS]), shape)),
            split=WordSplit.from_json(json.loads(files[WORDS].read_bytes())),
            training=fields["training"],
            asking=fields["examples"],
            store=fields["store"],
            control=ControlTask.from_json(fields["control"], len(classes)) if fields["control"] else None,
            epochs=np.array(fields["epochs"], np.int64),
            dev_loss=np.array(fields["dev_loss"], np.float64),
        )


def _plain(bank: ProbeBank) -> dict[str, torch.Tensor]:
    """Weights and biases apart, as other programs expect them: [layer, seed, output, ...]."""
    shape = bank.shape
    sizes = (len(shape.layers), len(shape.seeds), len(shape.outputs))
    held = {name: tensor.cpu().view(*sizes, *tensor.shape[2:]) for name, tensor in bank.weights.items()}
    first = "weight" if shape.kind == "linear" else "hidden"
    columns = held.pop(first)
    prefix = "" if shape.kind == "linear" else "hidden."
    plain = {f"{prefix}weight": columns[..., :-1], f"{prefix}bias": columns[..., -1]}
    plain |= {"output.weight" if name == "output" else "output.bias": tensor for name, tensor in held.items()}
    return {name: tensor.contiguous() for name, tensor in plain.items()}


def _joined(plain: Mapping[str, torch.Tensor], shape: Shape) -> dict[str, torch.Tensor]:
    """The weights that `_plain` took apart."""
    prefix, first = ("", "weight") if shape.kind == "linear" else ("hidden.", "hidden")
    weights = {first: torch.cat([plain[f"{prefix}weight"], plain[f"{prefix}bias"][..., None]], -1)}
    if shape.kind == "mlp":
        weights |= {"output": plain["output.weight"], "bias": plain["output.bias"]}
    weights = {name: tensor.flatten(1, 2) for name, tensor in weights.items()}
    for name, size in shape.tensor_shapes(len(shape.layers), shape.probes).items():
        if weights[name].shape != size or weights[name].dtype != torch.float32:
            raise ValueError(f"{TENSORS} has not the tensors that {METADATA} promises")
    return weights


def _number(loss: float) -> float | None:
    return loss if np.isfinite(loss) else None
