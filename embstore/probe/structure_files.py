"""Structural probes on disk: a folder of safetensors and what made them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from embstore.errors import InvalidValueError, ProbeBankError, ProbeBankNotFoundError
from embstore.probe.structure_network import StructureShape
from embstore.probe.structure_training import StructureProbes
from embstore.store import Store
from embstore.store.files import crc32c_of_file, fsync_tree, remove, storing, write_file
from embstore.store.metadata import canonical, document_crc32c

FORMAT_VERSION = 1
METADATA, TENSORS = "structure.json", "structure.safetensors"


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
        made = {
            "digest": store.digest,
            "model": dict(store.metadata.model),
            "corpus": dict(store.metadata.corpus),
            "extraction": dict(store.metadata.extraction),
        }
        return cls(probes, dict(training), dict(sentences), json.loads(canonical(made)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a folder, whole or not at all, in place of structural probes that stood there; raises StorageError."""
        folder = Path(path)
        require_free(folder)
        new = folder.with_name(f".{folder.name}.new")
        with storing(folder):
            remove(new)
            new.mkdir(parents=True)
            write_file(new / TENSORS, [save({"weight": self.probes.weights.cpu().contiguous()})])
            text = json.dumps(self._document(new), indent=1, ensure_ascii=False, allow_nan=False)
            write_file(new / METADATA, [f"{text}\n".encode()])
            fsync_tree(new)
            remove(folder)
            os.rename(new, folder)

    def _document(self, folder: Path) -> dict[str, Any]:
        shape = self.probes.shape
        crc, nbytes = crc32c_of_file(folder / TENSORS)
        fields: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
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
            "files": {TENSORS: {"nbytes": nbytes, "crc32c": crc}},
            "software": {name: version(name) for name in ("embstore", "torch")},
        }
        fields["crc32c"] = document_crc32c(fields)
        return dict(sorted(fields.items()))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SavedStructure:
        """Read saved probes. Raises ProbeBankNotFoundError, ProbeBankError (damaged, or of a newer format)."""
        folder = Path(path)
        if not (folder / METADATA).is_file():
            raise ProbeBankNotFoundError(f"{folder} holds no structural probes: there is no {METADATA} in it")
        try:
            fields = json.loads((folder / METADATA).read_bytes())
            if fields["format_version"] > FORMAT_VERSION:
                raise ProbeBankError(
                    f"the probes {folder} have format {fields['format_version']}, newer than {FORMAT_VERSION}, the "
                    "newest that this version reads: upgrade embstore"
                )
            if document_crc32c(fields) != fields.get("crc32c"):
                raise ValueError(f"{METADATA} was changed")
            return cls._parsed(fields, folder)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
            if isinstance(error, ProbeBankError):
                raise
            reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            raise ProbeBankError(f"the probes {folder} are damaged ({reason}): train them again") from None

    @classmethod
    def _parsed(cls, fields: Mapping[str, Any], folder: Path) -> SavedStructure:
        crc, nbytes = crc32c_of_file(folder / TENSORS)
        if fields["files"][TENSORS] != {"nbytes": nbytes, "crc32c": crc}:
            raise ValueError(f"{TENSORS} was changed")
        shape = StructureShape(
            layers=tuple(fields["layers"]),
            tasks=tuple(fields["tasks"]),
            seeds=tuple(fields["seeds"]),
            width=fields["width"],
            rank=fields["rank"],
        )
        weights = load_file(folder / TENSORS)["weight"]
        if weights.shape != (*shape.sizes, shape.rank, shape.width) or weights.dtype != torch.float32:
            raise ValueError(f"{TENSORS} has not the tensor that {METADATA} promises")
        probes = StructureProbes(
            shape, weights, np.array(fields["epochs"], np.int64), np.array(fields["dev_loss"], np.float64)
        )
        return cls(probes, fields["training"], fields["sentences"], fields["store"])


def require_free(folder: Path) -> None:
    """Raise InvalidValueError where saving would overwrite anything but structural probes."""
    if folder.exists() and not (folder / METADATA).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidValueError(f"{folder} exists and holds something else than structural probes: give another folder")
