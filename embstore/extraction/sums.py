"""Exact sums of the vectors of each word, and the file that keeps them until all occurrences are added."""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import StoreDamagedError
from embstore.extraction.resume import require_same_plan
from embstore.models.memory import memory_needed
from embstore.models.running import to_device
from embstore.store import Metadata
from embstore.store.metadata import as_json
from embstore.store.storage.files import replacing, storing
from embstore.store.storage.lock import ProcessLock

UNITS = 2.0**24  # of 1: float16 values are multiples of 2^-24, so that as integers their sums are exact in any order
MOST_CONTEXTS = 2**23 - 1  # of a word: float16 values are below 2^16, so that no sum of these is beyond an int64
# Sums are saved when these seconds, and this many times what saving them takes, have passed.
SAVE_SECONDS, SAVE_TIMES = 60.0, 20.0


class Sums:
    """Sums of the vectors of each word and layer over the first `done` partitions of a plan.

    `units`: int64 [layer, type, feature], in units of 2^-24, on the device that computes. Continues those of the file,
    if it exists. `metadata`: of the plan.
    """

    def __init__(self, file: Path, metadata: Metadata, n_types: int, device: torch.device) -> None:
        self._file, self._metadata, self.done = file, metadata, 0
        self._saved, self._took = time.perf_counter(), 0.0
        advice = "choose fewer layers, or fewer words by --word-list or min_contexts"
        with memory_needed(f"the sums of {n_types:,} words", device, advice=advice):
            if file.is_file():
                require_same_plan(metadata, recorded_plan(file), path=file)
                self.done, units = read_sums(file)
                self.units = torch.from_numpy(units).to(device)
            else:
                shape = (len(metadata.layers), n_types, metadata.hidden_size)
                self.units = torch.zeros(shape, dtype=torch.int64, device=device)

    def add(self, vectors: torch.Tensor, types: NDArray[np.int64]) -> None:
        """Add float16 vectors [layer, n, feature] of occurrences of these types; a GPU is not waited for."""
        places = to_device(types, self.units.device)
        for units, layer in zip(self.units, vectors, strict=True):  # one at a time: 8 bytes a number are many
            units.index_add_(0, places, (layer.float() * UNITS).long())

    def save_in_time(self) -> None:
        """Save the sums if it is worth it: what was added since would be lost by a kill."""
        if time.perf_counter() - self._saved >= max(SAVE_SECONDS, SAVE_TIMES * self._took):
            began = time.perf_counter()
            self.save()
            self._saved = time.perf_counter()
            self._took = self._saved - began

    def save(self) -> None:
        """Write the file; a kill leaves the old one or the new one."""
        with replacing(self._file) as partial, partial.open("wb") as file:
            document = np.frombuffer(json.dumps(as_json(self._metadata)).encode(), np.uint8)
            np.savez(file, plan=document, done=self.done, units=self.units.cpu().numpy())


def sums_file(store: Path) -> Path:
    """Return the file that keeps the sums for a store of means until it is written."""
    return store.with_name(f"{store.name}.sums")


def sums_lock(store: Path) -> ProcessLock:
    """Return the lock of that file, which one process holds at a time."""
    file = sums_file(store)
    busy = f"another process is adding up the words of {store}; wait until it ends, or stop it"
    return ProcessLock(file.with_name(f"{file.name}.lock"), busy)


@contextmanager
def _arrays(file: Path) -> Iterator[Any]:
    """Open a file of sums; what is wrong with it in the block raises StoreDamagedError."""
    try:
        with storing(file), np.load(file) as arrays:
            yield arrays
    except (TypeError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise StoreDamagedError(f"{file} is damaged: remove it, and begin again") from error


def recorded_plan(file: Path) -> Metadata:
    """Return the metadata of the plan whose sums a file keeps. Raises StoreDamagedError."""
    with _arrays(file) as arrays:
        fields = json.loads(arrays["plan"].tobytes())
        return Metadata(**{**fields, "layers": tuple(fields["layers"]), "dropped": ()})


def read_sums(file: Path) -> tuple[int, NDArray[np.int64]]:
    """Return how many partitions are added in a file, and the sums. Raises StoreDamagedError."""
    with _arrays(file) as arrays:
        return int(arrays["done"]), arrays["units"]
