"""One vector a word out of its vectors in context: first component, mean, medoid, or mean less the top components."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from embstore.analysis.geometry.eigen import largest_eigenpairs
from embstore.analysis.geometry.spectra import word_grams, word_moment
from embstore.analysis.scan import selected
from embstore.analysis.steps import WordsStep, results_of
from embstore.analysis.word_batches import Computing, WordBatch, map_words
from embstore.analysis.words import WordRows, all_types, eligible_types, rows_of_words
from embstore.errors import InvalidValueError
from embstore.store import Selection, Store
from embstore.vectors import WordVectors

Method = Literal["pc1", "mean", "medoid", "abtt"]
Scale = Literal["unit", "rms"]
Blocks = Callable[[], Iterator[torch.Tensor]]

_TIE = 1e-12  # mean cosines that differ by less are equal but for rounding
_ORTHOGONAL = 1e-8  # a cosine with the mean below which rounding may have decided its sign
_BLOCK_ROWS = 4096


@dataclass(frozen=True)
class _Way:
    """How one method makes vectors [words, feature] float64 of a batch, and of a word that comes in blocks."""

    of_batch: Callable[[WordBatch, Computing], torch.Tensor]
    of_blocks: Callable[[Blocks, Computing], torch.Tensor]


@overload
def static_vectors(
    source: Store | Selection,
    *,
    layer: int,
    layers: None = None,
    method: str = "pc1",
    min_contexts: int = 1,
    types: ArrayLike | None = None,
    scale: str = "unit",
    components: int | None = None,
    precision: str = "float64",
    device: str = "cpu",
    memory: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> WordVectors: ...


@overload
def static_vectors(
    source: Store | Selection,
    *,
    layer: None = None,
    layers: Sequence[int],
    method: str = "pc1",
    min_contexts: int = 1,
    types: ArrayLike | None = None,
    scale: str = "unit",
    components: int | None = None,
    precision: str = "float64",
    device: str = "cpu",
    memory: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> dict[int, WordVectors]: ...


def static_vectors(
    source: Store | Selection,
    *,
    layer: int | None = None,
    layers: Sequence[int] | None = None,
    method: str = "pc1",
    min_contexts: int = 1,
    types: ArrayLike | None = None,
    scale: str = "unit",
    components: int | None = None,
    precision: str = "float64",
    device: str = "cpu",
    memory: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> WordVectors | dict[int, WordVectors]:
    """One vector a word of a layer, or of each of several `layers`; words in the order of the store's `index.words`.

    `method`, of a word's vectors X [n, feature], not normalised:
    `pc1`: their first principal component, not centred (Ethayarajh 2019, section 4.3): the unit vector v that
    maximises |X v|, turned towards their mean (where it is orthogonal to it, its largest component is positive). Where
    several directions explain as much it is one of them. `scale="rms"` gives it the length sigma_1 / sqrt(n), which
    words of one occurrence keep as it was. `mean`: their mean. `medoid`: the occurrence that is most alike to the
    others by mean cosine, as it is, the first of equals. `abtt`: the mean, less the mean of all these words and the
    top `components` of their principal components (Mu & Viswanath 2018; one in a hundred features by default).
    A word whose vectors are all zero gets zeros.

    `min_contexts`: only words in so many different sentences; or `types`: these rows of `index.words`. `precision`:
    float32 or float64, what products of vectors are computed in. `memory`: bytes to work in (1 GiB), beside the result.
    `executor`: who does groups of words, each worker within `memory` and with one thread; the vectors are the same to
    the bit. `progress`: is told how many occurrences are done, of how many, over all layers.

    Raises InvalidValueError for an option not allowed, a layer not stored, and where no word is left;
    MissingRowsError, NonFiniteError, ExecutorError.
    """
    _check(layer, layers, method, scale, components)
    selection = selected(source, [layer] if layer is not None else layers)
    computing: dict[str, Any] = {"precision": precision, "device": device, "memory": memory, "local": executor is None}
    Computing.of(precision, device if executor is None else "cpu", memory)
    words = rows_of_words(selection, _chosen(selection, min_contexts) if types is None else types)
    forms = tuple(selection.store.index.words[int(number)] for number in words.types)
    total = len(words.rows) * len(selection.layers)
    made = partial(_vectors, way=f"{method} {scale}" if method == "pc1" else method)
    steps = [WordsStep(selection.store, number, words, made, **computing) for number in selection.layers]
    results = results_of(
        steps,
        selection.store,
        executor=executor,
        progress=lambda done: None if progress is None else progress(done, total),
    )
    found = {}
    for number, vectors in zip(selection.layers, results, strict=True):
        found[number] = WordVectors(forms, all_but_the_top(vectors, components) if method == "abtt" else vectors)
    return found if layer is None else found[layer]


def _check(layer: int | None, layers: Sequence[int] | None, method: str, scale: str, components: int | None) -> None:
    if (layer is None) == (layers is None):
        raise InvalidValueError("give the layer of static vectors: either layer, for one, or layers, for several")
    if method not in get_args(Method):
        raise InvalidValueError(f"unknown method {method!r}; allowed are {', '.join(get_args(Method))}")
    if scale not in get_args(Scale):
        raise InvalidValueError(f"unknown scale {scale!r}; allowed are {', '.join(get_args(Scale))}")
    if scale != "unit" and method != "pc1":
        raise InvalidValueError(f"scale {scale!r} is for the method pc1; {method} keeps its own lengths")
    if components is not None and method != "abtt":
        raise InvalidValueError(f"components is for the method abtt, not for {method}: leave it out")


def _chosen(selection: Selection, min_contexts: int) -> NDArray[np.int64]:
    types = all_types(selection) if min_contexts == 1 else eligible_types(selection, min_contexts)
    if not len(types):
        raise InvalidValueError(
            f"no word of {selection.store.path} occurs in {min_contexts:,} different sentences: ask for fewer contexts"
        )
    return types


def _vectors(
    store: Store, layer: int, words: WordRows, computing: Computing, progress: Callable[[int], object], *, way: str
) -> NDArray[np.float32]:
    """The vectors of all words of a layer, float32 [words, feature]; those of abtt are the means."""
    chosen = _WAYS[way]
    out = np.empty((len(words.types), store.hidden_size), np.float32)
    for places, vectors in map_words(
        store,
        layer,
        words,
        batch=lambda batch: chosen.of_batch(batch, computing).cpu().numpy(),
        frequent=lambda _place, blocks: chosen.of_blocks(blocks, computing).cpu().numpy(),
        computing=computing,
        progress=progress,
    ):
        out[places] = vectors
    return out


def _means(batch: WordBatch, computing: Computing) -> torch.Tensor:
    vectors = batch.vectors.to(computing.device)
    counts = torch.from_numpy(batch.counts).to(computing.device)
    return vectors.sum(1, dtype=torch.float64) / counts[:, None]


def _mean_of_blocks(blocks: Blocks, computing: Computing) -> torch.Tensor:
    parts = [(len(block), block.to(computing.device).sum(0, dtype=torch.float64)) for block in blocks()]
    return torch.stack([part for _, part in parts]).sum(0, keepdim=True) / sum(count for count, _ in parts)


def _first_components(batch: WordBatch, computing: Computing, *, rms: bool = False) -> torch.Tensor:
    vectors = batch.vectors.to(computing.device, computing.dtype)
    counts = torch.from_numpy(batch.counts).to(computing.device)
    values, weights = largest_eigenpairs(word_grams(vectors, counts, centered=False))
    directions = (weights[:, None, :].to(vectors.dtype) @ vectors)[:, 0].double()
    sums = vectors.sum(1, dtype=torch.float64)
    return _turned(directions, values, sums, counts, rms=rms)


def _first_component_of_blocks(blocks: Blocks, computing: Computing, *, rms: bool = False) -> torch.Tensor:
    parts = []
    count = 0

    def counted() -> Iterator[torch.Tensor]:
        nonlocal count
        for block in blocks():
            parts.append(block.to(computing.device).sum(0, dtype=torch.float64))
            count += len(block)
            yield block

    values, directions = largest_eigenpairs(word_moment(counted(), centered=False, computing=computing)[None])
    sums = torch.stack(parts).sum(0, keepdim=True)
    return _turned(directions, values, sums, torch.tensor([count], device=values.device), rms=rms)


def _turned(
    directions: torch.Tensor, values: torch.Tensor, sums: torch.Tensor, counts: torch.Tensor, *, rms: bool
) -> torch.Tensor:
    """Unit vectors along `directions` that point where `sums` do; zeros where all of a word's vectors are zero."""
    lengths = directions.norm(dim=1, keepdim=True)
    directions = torch.where((values > 0)[:, None], directions / lengths, torch.zeros_like(directions))
    along = (directions * sums).sum(1, keepdim=True)
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    tied = along.abs() <= _ORTHOGONAL * (values.clamp(min=0) * counts).sqrt()[:, None]
    directions = torch.where(torch.where(tied, largest, along) < 0, -directions, directions)
    return directions * (values.clamp(min=0) / counts).sqrt()[:, None] if rms else directions


def _medoids(batch: WordBatch, computing: Computing) -> torch.Tensor:
    vectors = batch.vectors.to(computing.device)
    own = (
        torch.arange(vectors.shape[1], device=vectors.device)
        < torch.from_numpy(batch.counts).to(vectors.device)[:, None]
    )
    units = _units(vectors)
    scores = _alike(units, units.sum(1))
    scores = torch.where(own, scores, torch.full_like(scores, -torch.inf))
    equal = scores >= scores.amax(1, keepdim=True) - _TIE * vectors.shape[1]
    first = equal.to(torch.uint8).argmax(1)
    return vectors[torch.arange(len(vectors), device=vectors.device), first].double()


def _medoid_of_blocks(blocks: Blocks, computing: Computing) -> torch.Tensor:
    parts = [(len(block), _units(block.to(computing.device)).sum(0)) for block in blocks()]
    count = sum(rows for rows, _ in parts)
    total = torch.stack([part for _, part in parts]).sum(0)
    most, best = -torch.inf, None
    for block in blocks():
        vectors = block.to(computing.device)
        scores = _alike(_units(vectors), total)
        place = int((scores >= scores.max() - _TIE * count).to(torch.uint8).argmax())
        if best is None or float(scores[place]) > most + _TIE * count:
            most, best = float(scores[place]), vectors[place].double()
    if best is None:
        raise InvalidValueError("a word without occurrences has no medoid")
    return best[None]


def _units(vectors: torch.Tensor) -> torch.Tensor:
    vectors = vectors.double()
    lengths = vectors.norm(dim=-1, keepdim=True)
    return vectors / torch.where(lengths > 0, lengths, torch.ones_like(lengths))


def _alike(units: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """The sum of each vector's cosines with the others of its word; a zero vector's cosines are 0."""
    return (units @ sums[..., None])[..., 0] - units.square().sum(-1)


def all_but_the_top(vectors: ArrayLike, components: int | None = None) -> NDArray[np.float32]:
    """Take from vectors [n, feature] their mean and what lies along their top principal components; float32.

    `components`: how many; by default one in a hundred features, at least one. Mu & Viswanath 2018, algorithm 1.
    """
    given = np.asarray(vectors)
    count, size = given.shape
    components = max(1, size // 100) if components is None else components
    if not 0 <= components < size:
        raise InvalidValueError(
            f"components {components} is not allowed: vectors of {size} numbers have 0 to {size - 1}"
        )
    mean = given.mean(0, dtype=np.float64)
    scatter = np.zeros((size, size))
    for start in range(0, count, _BLOCK_ROWS):
        block = given[start : start + _BLOCK_ROWS] - mean
        scatter += block.T @ block
    top = np.linalg.eigh(scatter)[1][:, size - components :]
    out = np.empty(given.shape, np.float32)
    for start in range(0, count, _BLOCK_ROWS):
        block = given[start : start + _BLOCK_ROWS] - mean
        out[start : start + _BLOCK_ROWS] = block - (block @ top) @ top.T
    return out


_WAYS = {
    "pc1 unit": _Way(_first_components, _first_component_of_blocks),
    "pc1 rms": _Way(partial(_first_components, rms=True), partial(_first_component_of_blocks, rms=True)),
    "mean": _Way(_means, _mean_of_blocks),
    "medoid": _Way(_medoids, _medoid_of_blocks),
    "abtt": _Way(_means, _mean_of_blocks),
}
