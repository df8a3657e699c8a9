"""Maps: the occurrences of a layer in two dimensions, in step with the other layers, with colours and regions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

import embstore as es
from embstore.errors import InvalidValueError, quoted
from embstore.store import Selection, Store, Strings
from embstore_explorer.answers import Arrays
from embstore_explorer.background import in_process
from embstore_explorer.parameters import Bounds, Layer, Number, Rows, Where, Word
from embstore_explorer.queries.registry import Asked, Report
from embstore_explorer.queries.words import found_rows, selecting
from embstore_explorer.regions import Regions, find_regions, name_groups
from embstore_explorer.stores import Explored, layer_of, unit_rows, user_cache, write_file

VERSION = 2  # of the computation: another one does not read the cached maps of this one
MAX_SAMPLE, MAX_UMAP = 10_000_000, 100_000
KEPT_POINTS = 200_000  # maps of more points are not kept in memory
CACHE_NBYTES = 2**30  # of all cached maps
COLORS = 7  # values with a colour of their own; the others share one
CLUSTERED = 2000  # occurrences of a word that are clustered; the others go to the nearest center
FACTS = ("layer", "method", "explained", "n_selected", "axes_rows")  # of a map, besides its arrays
UMAP_NOTE = "Distances in UMAP are not distances, and sizes and gaps mean nothing: only who is near whom counts."
DENSE_NOTE = "Clusters are where this map is dense: no test says that they are groups."
Senses = tuple[NDArray[np.int8], int, list[str]]  # the cluster of each row, how many there are, and what speaks against


@dataclass(frozen=True)
class Projection:
    """A map as it is kept: what `es.analysis.project` returns."""

    layer: int
    method: str
    rows: NDArray[np.int64]
    points: NDArray[np.float32]
    explained: tuple[float, float] | None
    n_selected: int
    axes_rows: int

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes + self.points.nbytes)


def map(
    asked: Asked,
    *,
    store: Number = 0,
    layer: Layer = "-1",
    word: Word | None = None,
    where: Where | None = None,
    rows: Rows | None = None,
    sample: Annotated[int, Bounds(3, MAX_SAMPLE)] = 100_000,
    seed: Annotated[int, Bounds(0, 2**31)] = 0,
    method: Literal["pca", "umap"] = "pca",
    color: Annotated[str, Bounds(1, 200)] | None = None,
    parts: Literal["all", "points"] = "all",
) -> Arrays:
    """Map a sample of occurrences: arrays `row` [n], the same at every layer, `x`, `y` and `color` [n], -1 for none.

    `color`: word, cluster, a label column or a field. `parts`: points leaves out `row`, for a layer whose rows
    are known. Attention sinks are left out, since all others would be one point.
    """
    one = asked.store(store)
    number = layer_of(one.store, layer)
    found = found_rows(one, word, where, rows)
    chosen = Selection(one.store, rows=slice(found.start, found.stop) if isinstance(found, range) else found)
    if not one.store.finished:
        chosen = chosen.written()
    kept = one.sinkless(chosen)
    n_sinks, chosen = len(chosen) - len(kept), kept
    size = min(sample, MAX_UMAP) if method == "umap" else sample
    made = _projection(asked, one, chosen, number, method, size, seed)
    regions = find_regions(made.points)
    names = name_groups(one, made.rows, regions.codes, len(regions.counts), by_context=word is not None)
    key = ("map clusters", word, number, hashlib.sha256(made.rows.tobytes()).hexdigest())
    senses = one.once(key, lambda: _clusters(one.store, str(word), made)) if color == "cluster" and word else None
    codes, colors, scale = _colors(one, made, color, senses, regions, names)
    dense = [DENSE_NOTE] if color == "cluster" else []
    ends = np.percentile(made.points[:: max(1, len(made.rows) // 100_000)], (0.02, 99.98), axis=0, method="nearest")
    places = zip(regions.centers.tolist(), names, regions.counts.tolist(), strict=True)
    given = selecting(word, where=where, rows=rows, sinks=not n_sinks)
    call = f"layers={number}, method={method!r}, sample={size}" + (f", seed={seed}" if seed else "")
    data = {
        "layer": number,
        "method": method,
        "total": made.n_selected,
        "shown": len(made.rows),
        "seed": seed,
        "explained": None if made.explained is None else list(made.explained),
        "middle": ends.mean(0).tolist(),
        "extent": float(np.ptp(ends, axis=0).max() / 2),
        "colors": colors,
        "scale": scale,
        "regions": [{"x": x, "y": y, "name": name, "count": count} for (x, y), name, count in places],
        "note": " ".join([*_notes(made, sample, n_sinks), *(senses[2] if senses else dense)]) or None,
        "python": one.python(f"es.analysis.project({given}, {call})"),
    }
    arrays: dict[str, NDArray[Any]] = {"x": made.points[:, 0], "y": made.points[:, 1], "color": codes}
    if parts == "all":
        arrays["row"] = made.rows.astype(np.int32 if one.store.n_rows < 2**31 else np.float64)
    return Arrays(arrays, data)


def _notes(made: Projection, sample: int, n_sinks: int) -> list[str]:
    said = [f"{n_sinks:,} attention sink{'s are' if n_sinks > 1 else ' is'} left out."] if n_sinks else []
    if made.method == "umap":
        said.append(UMAP_NOTE)
        if sample > MAX_UMAP < made.n_selected:
            said.append(f"UMAP maps {MAX_UMAP:,} points at most.")
    elif made.axes_rows < len(made.rows):
        said.append(f"The axes are learned from {made.axes_rows:,} of these rows.")
    return said


def _projection(
    asked: Asked, one: Explored, chosen: Selection, layer: int, method: str, sample: int, seed: int
) -> Projection:
    """Compute a map once: kept in memory, and in the user's cache."""
    rows = chosen.rows if chosen.span is None else np.array([chosen.span.start, chosen.span.stop])
    key = [VERSION, one.store.digest, hashlib.sha256(rows.tobytes()).hexdigest(), layer, method, sample, seed]
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:40]
    path = user_cache() / "maps" / f"{name}.safetensors"

    def make() -> Projection:
        with suppress(OSError, ValueError, LookupError, TypeError, SafetensorError):
            return _read(path, name)
        if method == "pca":
            with es.config(progress=asked.report):
                made = _kept(es.analysis.project(chosen, layers=layer, sample=sample, seed=seed))
        else:  # in a process of its own, as it would block all others for minutes
            given = chosen.rows if chosen.span is None else slice(chosen.span.start, chosen.span.stop)
            made = in_process(_umap, chosen.store, given, layer, sample, seed, report=asked.report)
        with suppress(OSError):
            _write(path, name, made)
        return made

    return one.once(("map", name), make) if min(sample, len(chosen)) <= KEPT_POINTS else make()


def _umap(
    store: Store, rows: slice | NDArray[np.int64], layer: int, sample: int, seed: int, *, progress: Report
) -> Projection:
    given = Selection(store, rows=rows)
    with es.config(progress=progress):
        return _kept(es.analysis.project(given, layers=layer, method="umap", sample=sample, seed=seed))


def _kept(projection: Any) -> Projection:
    return Projection(**{name: getattr(projection, name) for name in (*FACTS, "rows", "points")})


def _read(path: Path, name: str) -> Projection:
    with safe_open(path, "numpy") as file:
        facts = json.loads(file.metadata()["json"])
        if facts.pop("name") != name:
            raise ValueError("another map")
        arrays = {each: file.get_tensor(each) for each in ("rows", "points")}
        if facts.pop("crc") != crc32(arrays["points"].tobytes(), crc32(arrays["rows"].tobytes())):
            raise ValueError("a damaged map")
    path.touch()
    return Projection(**facts, **arrays)


def _write(path: Path, name: str, made: Projection) -> None:
    """Save a map, and remove those that were not read for longest where all take more than the limit."""
    arrays = {each: np.ascontiguousarray(getattr(made, each)) for each in ("rows", "points")}
    facts = {"name": name, "crc": crc32(arrays["points"].tobytes(), crc32(arrays["rows"].tobytes()))}
    facts |= {each: getattr(made, each) for each in FACTS}
    write_file(path, save(arrays, {"json": json.dumps(facts)}))
    files = sorted((each.stat().st_mtime_ns, each.stat().st_size, each) for each in path.parent.glob("*.safetensors"))
    whole = sum(size for _, size, _ in files)
    for _, size, each in files[:-1]:
        if whole > CACHE_NBYTES:
            each.unlink(missing_ok=True)
            whole -= size


def _colors(
    one: Explored, made: Projection, color: str | None, senses: Senses | None, regions: Regions, names: list[str]
) -> tuple[NDArray[np.int8], list[str], str]:
    """Return the colour of each row, -1 for none, the name of each colour, and their kind: categories or ordered."""
    index = one.store.index
    if color is None:
        return np.full(len(made.rows), -1, np.int8), [], "categories"
    if color == "cluster":
        if senses is None:
            return (*_frequent(regions.codes, names), "categories")
        groups, n_clusters, _ = senses
        markers = name_groups(one, made.rows, groups, n_clusters, by_context=True)
        titles = [f"{number + 1}: {words}" if words else str(number + 1) for number, words in enumerate(markers)]
        return (*_frequent(groups, titles), "categories")
    if color == "word":
        return (*_frequent(index.type[made.rows], index.words), "categories")
    if color not in index.labels:
        allowed = ", ".join(["word", "cluster", *index.labels])
        raise InvalidValueError(f"color {quoted(color)} is not allowed: choose one of {allowed}")
    labels = index.labels[color]
    codes = np.asarray(labels.codes[made.rows])
    if color in index.fields and index.fields[color].kind != "str":
        return (*_ordered(codes, list(labels.names)), "ordered")
    return (*_frequent(codes, list(labels.names)), "categories")


def _frequent(codes: NDArray[Any], names: Sequence[str] | Strings) -> tuple[NDArray[np.int8], list[str]]:
    """The most frequent values, each with a colour of its own, and the others together."""
    counts = np.bincount(codes[codes >= 0], minlength=len(names))
    present = int((counts > 0).sum())
    order = np.argsort(-counts, kind="stable")[: present if present <= COLORS + 1 else COLORS]
    numbers = np.full(len(names) + 1, COLORS if present > COLORS + 1 else -1, np.int8)
    numbers[order] = np.arange(len(order))
    numbers[-1] = -1
    others = [f"{present - COLORS:,} others"] if present > COLORS + 1 else []
    return numbers[codes], [names[number] for number in order.tolist()] + others


def _ordered(codes: NDArray[np.int32], names: list[str]) -> tuple[NDArray[np.int8], list[str]]:
    """Values that ascend, in up to seven bins of about equally many points."""
    known = np.sort(codes[codes >= 0])
    if not len(known):
        return codes.astype(np.int8), []
    firsts = np.unique(known[np.arange(COLORS) * len(known) // COLORS])
    bins = np.searchsorted(firsts, codes, side="right").astype(np.int8) - np.int8(1)
    lasts = [*(firsts[1:] - 1).tolist(), int(known[-1])]
    ends = [(names[first], names[last]) for first, last in zip(firsts.tolist(), lasts, strict=True)]
    return bins, [first if first == last else f"{first} to {last}" for first, last in ends]


def _clusters(store: Store, word: str, made: Projection) -> Senses:
    """The sense of each row: that of `senses`, or for rows it has not sampled the nearest center's."""
    found = es.senses(Selection(store, rows=made.rows), word, layers=made.layer, sample=CLUSTERED)
    own = found.occurrences["cluster"].to_numpy() - 1
    unit = unit_rows(found.vectors)
    centers = unit_rows(np.stack([unit[own == number].mean(0) for number in range(int(own.max()) + 1)]))
    codes = np.empty(len(made.rows), np.int8)
    for start in range(0, len(codes), 10_000):
        rows = made.rows[start : start + 10_000]
        codes[start : start + len(rows)] = (
            store.vectors(rows, layers=made.layer).astype(np.float64) @ centers.T
        ).argmax(1)
    codes[np.searchsorted(made.rows, found.occurrences["occurrence"].to_numpy())] = own
    return codes, len(centers), [f"{each[0].upper()}{each[1:]}." for each in found.caveats]
