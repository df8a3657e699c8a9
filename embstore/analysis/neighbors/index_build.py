"""Building an index of a layer: trained on a sample, filled block by block, resumable after a crash."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.analysis.neighbors import index_kinds as kinds
from embstore.analysis.neighbors.index_files import (
    CHECKED_NBYTES,
    FAISS,
    PROGRESS,
    SPACE,
    IndexInfo,
    IndexSettings,
    building,
    check_files,
    checked_name,
    default_name,
    folder_of,
    lock_file,
    put_in_place,
    read_info,
    read_space,
    require_fresh,
    stored_file,
    tidy,
    write_durably,
    write_info,
    write_space,
)
from embstore.analysis.neighbors.space import Space, space_of
from embstore.errors import EmbstoreError, InvalidValueError, NonFiniteError, SearchIndexError, StoreDamagedError
from embstore.store import Store
from embstore.store.storage.files import fsync, fsync_folder, remove, storing
from embstore.vectors.kmeans import unit_rows

BLOCK_ROWS = 8192  # rows added at a time; blocks always begin at a multiple of it


def ensure_index(
    store: Store,
    settings: IndexSettings,
    name: str | None,
    *,
    threads: int | None,
    checkpoint_seconds: float,
    progress: Callable[[int], object],
) -> str:
    """Build an index unless it exists already, and return its name."""
    name = default_name(settings) if name is None else checked_name(name)
    folder = folder_of(store) / name
    if _exists(store, folder, settings):
        with storing(folder):
            tidy(folder)
            remove(lock_file(folder))  # left by a build that was killed at its end
        return name
    with building(folder) as new, kinds.faiss_threads(threads), storing(new):
        try:
            _Build(store, settings, new, checkpoint_seconds, progress).run(name)
            store.refresh()
            if not store.finished or store.digest != settings.digest:
                raise SearchIndexError(f"{store.path} changed while it was indexed: run the same command again")
        except (InvalidValueError, NonFiniteError, SearchIndexError):  # resuming would fail in the same way
            remove(new)
            raise
        put_in_place(folder)
    return name


def _exists(store: Store, folder: Path, settings: IndexSettings) -> bool:
    """Whether a usable index exists; raises InvalidValueError if it was built with other settings."""
    if not folder.is_dir():
        return False
    try:
        info = read_info(folder)
        require_fresh(store, info)
        check_files(folder, info, checksums=info.nbytes <= CHECKED_NBYTES)
    except SearchIndexError:
        return False
    existing = asdict(info.settings)
    for key, value in asdict(settings).items():
        if existing[key] != value:
            raise InvalidValueError(
                f"{store.path} has an index {folder.name} with another {key} ({existing[key]}, not {value}): "
                f"choose another name, or remove it first (--remove {folder.name})"
            )
    return True


@dataclass
class _Build:
    """The build of one index in the folder `new`, which may hold the work of an interrupted run."""

    store: Store
    settings: IndexSettings
    new: Path
    checkpoint_seconds: float
    progress: Callable[[int], object]

    def run(self, name: str) -> None:
        """Build the index or resume, and write its metadata."""
        settings = asdict(self.settings)
        if self._progress_of_last_run().get("settings") != settings:
            for leftover in list(self.new.iterdir()):
                remove(leftover)
            self._write_progress(0.0)
        if self.settings.centered and not (self.new / SPACE).exists():
            options = {"metric": self.settings.metric, "n_components": self.settings.n_components}
            write_space(self.new / SPACE, space_of(self.store, self.settings.layer, centered=True, **options))  # type: ignore[arg-type]
        space = read_space(self.new / SPACE, self.settings)
        index = self._read_checkpoint()
        if index is None:
            index = self._new_index(space)
        longest = self._fill(index, space)
        files = [FAISS, *([SPACE] if self.settings.centered else [])]
        info = IndexInfo(
            name=name,
            settings=self.settings,
            parameters=kinds.parameters_of(index),
            longest=longest,
            files={file: stored_file(self.new / file) for file in files},
            software={"embstore": version("embstore"), "faiss": str(kinds.faiss_package().__version__)},
        )
        write_info(self.new, info)

    def _progress_of_last_run(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.new / PROGRESS).read_bytes())
            return found
        except (OSError, ValueError):
            return {}

    def _write_progress(self, longest: float) -> None:
        data = {"settings": asdict(self.settings), "longest": longest}
        write_durably(self.new / PROGRESS, json.dumps(data, indent=2).encode())

    def _read_checkpoint(self) -> Any:
        file = self.new / FAISS
        if not file.exists():
            return None
        try:
            return kinds.read_index(str(file), mapped=False)
        except StoreDamagedError:
            remove(file)
            return None

    def _new_index(self, space: Space) -> Any:
        """An empty index, trained if its kind needs it."""
        settings = self.settings
        index = kinds.new_index(settings.factory, settings.hidden_size, settings.metric)
        kinds.prepare(index, settings.kind)
        if not index.is_trained:
            rng = np.random.default_rng(settings.seed)
            rows = np.sort(rng.choice(settings.n_rows, settings.n_train, replace=False)).astype(np.int64)
            sample = np.empty((len(rows), settings.hidden_size), np.float32)
            for start in range(0, len(rows), BLOCK_ROWS):
                part = rows[start : start + BLOCK_ROWS]
                vectors = self.store.gather(part, settings.layer)
                sample[start : start + len(part)] = self._comparable(space, vectors, part)
            kinds.train(index, sample, metric=settings.metric, seed=settings.seed)
        self._checkpoint(index)
        return index

    def _fill(self, index: Any, space: Space) -> float:
        """Add the rows that are missing, and return the length of the longest of all vectors."""
        settings = self.settings
        done: int = index.ntotal
        longest = float(self._progress_of_last_run()["longest"]) if done else 0.0
        due = time.monotonic() + self.checkpoint_seconds
        for start, vectors in self.store.scan(settings.layer, done, block_rows=BLOCK_ROWS):
            compared = self._comparable(space, vectors, np.arange(start, start + len(vectors)))
            if kinds.is_float16(index) and float(np.abs(compared).max()) > kinds.HALF_LIMIT:
                raise InvalidValueError(
                    f"layer {settings.layer} holds values beyond {kinds.HALF_LIMIT:,.0f}, the limit of float16: "
                    f"give {settings.factory.replace('SQfp16', 'Flat')!r} as the kind"
                )
            kinds.add(index, compared, settings.seed)
            longest = max(longest, float(np.sqrt(np.square(compared, dtype=np.float64).sum(1).max())))
            done += len(compared)
            if time.monotonic() >= due or done == settings.n_rows:
                began = time.monotonic()
                self._write_progress(longest)  # before the checkpoint: it may include later rows
                self._checkpoint(index)
                writing = time.monotonic() - began
                due = time.monotonic() + (self.checkpoint_seconds and max(self.checkpoint_seconds, 10 * writing))
            self.progress(done)
        return longest

    def _comparable(self, space: Space, vectors: NDArray[np.floating], rows: NDArray[np.int64]) -> NDArray[np.float32]:
        with np.errstate(over="ignore"):
            compared = as_compared(space, vectors)
        invalid = np.flatnonzero(~np.isfinite(compared).all(1))
        if len(invalid):
            raise NonFiniteError(
                f"layer {self.settings.layer}, row {int(rows[invalid[0]])} holds a value that is not finite or too "
                "large for float32: run embstore verify"
            )
        return compared

    def _checkpoint(self, index: Any) -> None:
        """Write the index atomically."""
        partial = self.new / f".{FAISS}"
        try:
            kinds.write_index(index, str(partial))
        except EmbstoreError:
            remove(partial)
            raise
        fsync(partial)
        os.replace(partial, self.new / FAISS)
        fsync_folder(self.new)


def as_compared(space: Space, vectors: NDArray[np.floating]) -> NDArray[np.float32]:
    """Vectors as an index holds them: transformed, at unit length for cosine, float32."""
    if space.metric != "cosine" and space.mean is None:
        return np.ascontiguousarray(vectors, np.float32)
    transformed = space.transform(vectors)
    return np.ascontiguousarray(unit_rows(transformed) if space.metric == "cosine" else transformed, np.float32)
