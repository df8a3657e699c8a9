"""Structural probes on disk: a folder of safetensors and what made them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save

from embstore.probes.probe_folder import ProbeFolder, made_by
from embstore.probes.structure.network import StructureShape
from embstore.probes.structure.training import StructureProbes
from embstore.store import Store

FORMAT_VERSION = 1
METADATA, TENSORS = "structure.json", "structure.safetensors"
FOLDER = ProbeFolder(METADATA, (TENSORS,), FORMAT_VERSION, empty="structural probes", other="structural probes")
require_free = FOLDER.require_free


@dataclass(frozen=True, eq=False)
class SavedStructure:
    """Structural probes with all that made them.

    `training`: the settings. `sentences`: how many there were of train, dev and test. `store`: model, corpus and
    extraction of the store, its `digest`.
    """

    probes: StructureProbes
    training: Mapping[str, Any]
    sentences: Mapping[str, int]
    store: Mapping[str, Any]

    @classmethod
    def of(
        cls, probes: StructureProbes, *, training: Mapping[str, Any], sentences: Mapping[str, int], store: Store
    ) -> SavedStructure:
        """Probes, with what made them."""
        return cls(probes, dict(training), dict(sentences), made_by(store))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a folder, whole or not at all, in place of structural probes that stood there; raises StorageError."""
        FOLDER.save(path, self._fields(), {TENSORS: save({"weight": self.probes.weights.cpu().contiguous()})})

    def _fields(self) -> dict[str, Any]:
        shape = self.probes.shape
        return {
            "layers": list(shape.layers),
            "tasks": list(shape.tasks),
            "seeds": list(shape.seeds),
            "width": shape.width,
            "rank": shape.rank,
            "epochs": self.probes.epochs.tolist(),
            "dev_loss": self.probes.dev_loss.tolist(),
            "training": dict(self.training),
            "sentences": dict(self.sentences),
            "store": dict(self.store),
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SavedStructure:
        """Read saved probes. Raises SavedProbesNotFoundError, SavedProbesError (damaged, or of a newer format)."""
        return FOLDER.load(path, cls._parsed)

    @classmethod
    def _parsed(cls, fields: Mapping[str, Any], files: Mapping[str, Path]) -> SavedStructure:
        shape = StructureShape(
            layers=tuple(fields["layers"]),
            tasks=tuple(fields["tasks"]),
            seeds=tuple(fields["seeds"]),
            width=fields["width"],
            rank=fields["rank"],
        )
        weights = load_file(files[TENSORS])["weight"]
        if weights.shape != (*shape.sizes, shape.rank, shape.width) or weights.dtype != torch.float32:
            raise ValueError(f"{TENSORS} has not the tensor that {METADATA} promises")
        probes = StructureProbes(
            shape, weights, np.array(fields["epochs"], np.int64), np.array(fields["dev_loss"], np.float64)
        )
        return cls(probes, fields["training"], fields["sentences"], fields["store"])
