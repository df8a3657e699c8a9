"""Building an index of a layer: planned, trained on a sample, filled block by block, gone on with after a kill."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embstore.analysis.neighbors.index_files import (
    CHECKED_NBYTES,
    FAISS,
    LONGEST,
    RECIPE,
    SPACE,
    IndexInfo,
    Recipe,
    building,
    check_files,
    checked_name,
    default_name,
    discard,
    folder_of,
    place_file,
    put_in_place,
    read_info,
    read_space,
    require_fresh,
    stored_file,
    tidy,
    write_info,
    write_space,
)
from embstore.analysis.neighbors.index_kinds import (
    HALF_LIMIT,
    add,
    faiss_package,
    faiss_threads,
    halves,
    new_index,
    parameters_of,
    plan_index,
    prepare,
    read_index,
    train,
    write_index,
)
from embstore.analysis.neighbors.space import METRICS, Space, space_of, unit_rows
from embstore.errors import (
    EmbstoreError,
    InvalidValueError,
    MissingRowsError,
    NonFiniteError,
    SearchIndexError,
    StoreDamagedError,
)
from embstore.store import Store
from embstore.store.storage.files import fsync, fsync_folder, remove, storing

BLOCK_ROWS = 8192  # added at a time, always from a multiple of it on
Progress = Callable[[int, int], object]


def make_index(
    store: Store,
    layer: int,
    *,
    kind: str = "auto",
    metric: str = "cosine",
    center: bool = False,
    components: int = 0,
    name: str | None = None,
    train_sample: int | None = None,
    seed: int = 0,
    memory: int | None = None,
    threads: int | None = None,
    checkpoint_seconds: float = 60.0,
    progress: Progress | None = None,
) -> str:
    """Build what `build_index` describes, where it is not there already, and return its name."""
    if threads is not None and threads < 1:
        raise InvalidValueError(f"threads is {threads}; it must be 1 or more")
    recipe = _recipe(store, layer, kind, metric, center, components, train_sample, seed, memory)
    name = default_name(recipe) if name is None else checked_name(name)
    folder = folder_of(store) / name
    if _is_there(store, folder, recipe):
        with storing(folder):
            tidy(folder)
    else:
        with building(folder) as new, faiss_threads(threads), storing(new):
            try:
                _Build(store, recipe, new, checkpoint_seconds, progress).run(name)
                _require_unchanged(store, recipe)
            except (InvalidValueError, NonFiniteError, SearchIndexError):  # these would come again
                discard(new)
                raise
            put_in_place(folder)
    return name


def _require_unchanged(store: Store, recipe: Recipe) -> None:
    store.refresh()
    if not store.finished or store.digest != recipe.digest:
        raise SearchIndexError(f"{store.path} was written while it was indexed: run the same command again")


def _recipe(
    store: Store,
    layer: int,
    kind: str,
    metric: str,
    center: bool,
    components: int,
    train_sample: int | None,
    seed: int,
    memory: int | None,
) -> Recipe:
    if metric not in METRICS:
        raise InvalidValueError(f"unknown metric {metric!r}; allowed are {', '.join(METRICS)}")
    if not 0 <= components < store.hidden_size:
        raise InvalidValueError(f"components {components} is not allowed: give 0 to {store.hidden_size - 1}")
    if seed < 0:
        raise InvalidValueError(f"seed {seed} is not allowed: give 0 or more")
    layer = store.select(layers=layer).layers[0]
    if not store.finished:
        raise MissingRowsError(
            f"{store.path} is not finished, and an index is of a finished store: "
            "run the same `embstore extract` command again to go on"
        )
    center = center or components > 0
    plan = plan_index(store, kind=kind, metric=metric, center=center, train_sample=train_sample, memory=memory)
    return Recipe(
        digest=store.digest,
        layer=layer,
        kind=plan.kind,
        factory=plan.factory,
        metric=metric,
        center=center,
        components=components,
        rows=store.n_rows,
        hidden_size=store.hidden_size,
        train_rows=plan.train_rows,
        seed=seed,
    )


def _is_there(store: Store, folder: Path, recipe: Recipe) -> bool:
    """Whether the index is there and sound; one that is not is built again, one of another recipe is refused."""
    if not folder.is_dir():
        return False
    try:
        info = read_info(folder)
        require_fresh(store, info)
        check_files(folder, info, whole=info.nbytes <= CHECKED_NBYTES)
    except SearchIndexError:
        return False
    there, wanted = asdict(info.recipe), asdict(recipe)
    for key, value in wanted.items():
        if there[key] != value:
            raise InvalidValueError(
                f"{store.path} has an index {folder.name} with another {key} ({there[key]}, not {value}): "
                f"choose another name, or remove it first (--remove {folder.name})"
            )
    return True


@dataclass
class _Build:
    """The building of one index in the folder `new`, which holds what an earlier run has done of it."""

    store: Store
    recipe: Recipe
    new: Path
    checkpoint_seconds: float
    progress: Progress | None

    def run(self, name: str) -> None:
        self._begin()
        space = self._space()
        index = self._index(space)
        longest = self._fill(index, space)
        files = [FAISS, *([SPACE] if self.recipe.center else [])]
        info = IndexInfo(
            name=name,
            recipe=self.recipe,
            parameters=parameters_of(index),
            longest=longest,
            files={file: stored_file(self.new / file) for file in files},
            software={"embstore": version("embstore"), "faiss": str(faiss_package().__version__)},
        )
        write_info(self.new, info)

    def _begin(self) -> None:
        """Keep what another run has left only if it was building the same."""
        recipe = json.dumps(asdict(self.recipe), indent=2).encode()
        file = self.new / RECIPE
        if not file.exists() or file.read_bytes() != recipe:
            for left in list(self.new.iterdir()):
                remove(left)
            place_file(file, recipe)

    def _space(self) -> Space:
        recipe, file = self.recipe, self.new / SPACE
        if recipe.center and not file.exists():
            learnt = space_of(self.store, recipe.layer, metric=recipe.metric, center=True, components=recipe.components)
            write_space(file, learnt)
        return read_space(file, recipe)

    def _index(self, space: Space) -> object:
        file = self.new / FAISS
        if file.exists():
            try:
                return read_index(str(file), mapped=False)
            except StoreDamagedError:
                remove(file)
        index = new_index(self.recipe.factory, self.recipe.hidden_size, self.recipe.metric)
        prepare(index, self.recipe.kind)
        if not index.is_trained:
            train(index, self._sample(space), metric=self.recipe.metric, seed=self.recipe.seed)
        self._checkpoint(index)
        return index

    def _sample(self, space: Space) -> NDArray[np.float32]:
        recipe = self.recipe
        rng = np.random.default_rng(recipe.seed)
        rows = np.sort(rng.choice(recipe.rows, recipe.train_rows, replace=False)).astype(np.int64)
        out = np.empty((len(rows), recipe.hidden_size), np.float32)
        for start in range(0, len(rows), BLOCK_ROWS):
            part = rows[start : start + BLOCK_ROWS]
            out[start : start + len(part)] = self._comparable(space, self.store.gather(part, recipe.layer), part)
        return out

    def _fill(self, index: object, space: Space) -> float:
        """Add the rows that are lacking, and return the length of the longest of all."""
        recipe = self.recipe
        done: int = index.ntotal  # type: ignore[attr-defined]
        half = halves(index)
        longest = float(json.loads((self.new / LONGEST).read_bytes())) if done else 0.0
        due = time.monotonic() + self.checkpoint_seconds
        for start, vectors in self.store.scan(recipe.layer, done, block_rows=BLOCK_ROWS):
            rows = np.arange(start, start + len(vectors))
            placed = self._comparable(space, vectors, rows)
            if half and float(np.abs(placed).max()) > HALF_LIMIT:
                raise InvalidValueError(
                    f"layer {recipe.layer} holds values beyond {HALF_LIMIT:,.0f}, the most that float16 holds: "
                    f"give {recipe.factory.replace('SQfp16', 'Flat')!r} as the kind"
                )
            add(index, placed, recipe.seed)
            longest = max(longest, float(np.sqrt(np.square(placed, dtype=np.float64).sum(1).max())))
            done += len(placed)
            if time.monotonic() >= due or done == recipe.rows:
                began = time.monotonic()
                place_file(self.new / LONGEST, json.dumps(longest).encode())  # first: it may know more rows
                self._checkpoint(index)
                writing = time.monotonic() - began
                due = time.monotonic() + (self.checkpoint_seconds and max(self.checkpoint_seconds, 10 * writing))
            if self.progress is not None:
                self.progress(done, recipe.rows)
        return longest

    def _comparable(self, space: Space, vectors: NDArray[np.floating], rows: NDArray[np.int64]) -> NDArray[np.float32]:
        with np.errstate(over="ignore"):
            placed = as_compared(space, vectors)
        wrong = np.flatnonzero(~np.isfinite(placed).all(1))
        if len(wrong):
            raise NonFiniteError(
                f"layer {self.recipe.layer}, row {int(rows[wrong[0]])} holds a value that is not finite or too large "
                "for float32: run embstore verify"
            )
        return placed

    def _checkpoint(self, index: object) -> None:
        """Write what there is of the index, all or nothing."""
        partial = self.new / f".{FAISS}"
        try:
            write_index(index, str(partial))
        except EmbstoreError:
            remove(partial)
            raise
        fsync(partial)
        os.replace(partial, self.new / FAISS)
        fsync_folder(self.new)


def as_compared(space: Space, vectors: NDArray[np.floating]) -> NDArray[np.float32]:
    """Vectors as an index holds them: placed, at length one for cosine, float32."""
    if space.metric != "cosine" and space.mean is None:
        return np.ascontiguousarray(vectors, np.float32)
    placed = space.place(vectors)
    return np.ascontiguousarray(unit_rows(placed) if space.metric == "cosine" else placed, np.float32)
