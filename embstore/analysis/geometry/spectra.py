"""Maximum explainable variance of every word of a layer, from batched Gram matrices; Ethayarajh 2019, eq. 3."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from embstore.analysis.geometry.eigen import largest_eigenvalues
from embstore.analysis.scan import selected
from embstore.analysis.steps import WordsStep
from embstore.analysis.word_batches import Computing, WordBatch, map_words
from embstore.analysis.words import WordRows, all_types, rows_of_words
from embstore.errors import InvalidValueError, NonFiniteError
from embstore.store import Selection, Store

_HALVED = 192  # vectors from which on only half of a symmetric product is computed
_SMALL = 1e-20  # a sum of squares below which float32 may have lost some of them


def maximum_explainable_variance(
    source: Store | Selection,
    layer: int,
    types: ArrayLike | None = None,
    *,
    centered: bool = False,
    precision: str = "float32",
    device: str = "cpu",
    memory: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> NDArray[np.float64]:
    """The maximum explainable variance of words in one layer: float64 [types], in [0, 1].

    Of the matrix whose rows are a word's vectors, not normalised, sigma_1^2 / sum_i sigma_i^2 (Ethayarajh 2019,
    eq. 3); with `centered`, after the word's mean is subtracted. One occurrence has 1, and NaN when centred: where
    nothing varies (or all vectors are zero) there is nothing to explain.

    `types`: rows of `index.words`, by default all that have an occurrence. `precision`: float32 (off by about
    1e-7) or float64, for the products of vectors; all else is float64. `memory`: bytes to work in (1 GiB).
    `progress`: is told how many occurrences are done. Raises InvalidValueError, MissingRowsError, NonFiniteError.
    """
    selection = selected(source, layer)
    words = rows_of_words(selection, all_types(selection) if types is None else types)
    computing = {"precision": precision, "device": device, "memory": memory}
    return explained_shares(selection, layer, words, centered=centered, **computing).run(
        progress or (lambda done: None)
    )


def explained_shares(
    selection: Selection, layer: int, words: WordRows, *, centered: bool, **computing: Any
) -> WordsStep:
    """The step of a query that finds what `maximum_explainable_variance` does."""
    return WordsStep(selection.store, layer, words, partial(_shares, centered=centered), **computing)


def _shares(
    store: Store,
    layer: int,
    words: WordRows,
    computing: Computing,
    progress: Callable[[int], object],
    *,
    centered: bool,
) -> NDArray[np.float64]:
    def of_batch(batch: WordBatch) -> NDArray[np.float64]:
        vectors = batch.vectors.to(computing.device, computing.dtype)
        counts = torch.from_numpy(batch.counts).to(computing.device)
        return _share_of_first(word_grams(vectors, counts, centered=centered))

    def of_frequent(_place: int, blocks: Callable[[], Iterator[torch.Tensor]]) -> NDArray[np.float64]:
        return _share_of_first(word_moment(blocks(), centered=centered, computing=computing)[None])

    out = np.empty(len(words.types))
    for places, shares in map_words(
        store, layer, words, batch=of_batch, frequent=of_frequent, computing=computing, progress=progress
    ):
        out[places] = shares
    return out


def _share_of_first(matrices: torch.Tensor) -> NDArray[np.float64]:
    trace = matrices.diagonal(dim1=1, dim2=2).sum(1)
    share: NDArray[np.float64] = (largest_eigenvalues(matrices) / trace).clamp(0, 1).cpu().numpy()
    return share


def word_grams(vectors: torch.Tensor, counts: torch.Tensor, *, centered: bool) -> torch.Tensor:
    """The Gram matrix of each word's vectors [w, n, feature], of which `counts` [w] count; float64 [w, n, n].

    Centred: the vectors relative to the word's first and then to their mean, and what rounding left of it taken from
    the Gram matrix; so equal vectors give exact zeros, and a large common mean costs no digits.
    """
    grams = _grams(vectors, counts, centered=centered)
    if vectors.dtype == torch.float64:
        return grams
    trace = grams.diagonal(dim1=1, dim2=2).sum(1)
    if bool((torch.isfinite(trace) & (trace > _SMALL)).all()):
        return grams
    scale = _power_of_two(vectors.abs().amax((1, 2)))
    grams = _grams(vectors / scale[:, None, None], counts, centered=centered)
    return grams * scale.double().square()[:, None, None]


def _grams(vectors: torch.Tensor, counts: torch.Tensor, *, centered: bool) -> torch.Tensor:
    if not centered:
        return symmetric_product(vectors).double()
    own = torch.arange(vectors.shape[1], device=vectors.device) < counts[:, None]
    padded = not bool(own.all())
    vectors = vectors - vectors[:, :1]
    if padded:
        vectors *= own[:, :, None]
    mean = vectors.sum(1, keepdim=True) / counts[:, None, None]
    vectors -= mean * own[:, :, None] if padded else mean
    grams = symmetric_product(vectors).double()
    left = grams.sum(2) / counts[:, None]
    grams += (left.sum(1) / counts)[:, None, None] - left[:, :, None] - left[:, None, :]
    return grams * (own[:, :, None] & own[:, None, :]) if padded else grams


def _power_of_two(values: torch.Tensor) -> torch.Tensor:
    """The power of two at or below each value, so that dividing by it is exact and float32 squares do not overflow."""
    return torch.where(values > 0, torch.exp2(torch.log2(values).floor().clamp(min=-126)), torch.ones_like(values))


def symmetric_product(vectors: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """A A^T of [..., n, feature]; of a large one the half above the diagonal is copied."""
    size = vectors.shape[-2]
    if out is None:
        out = vectors.new_empty(*vectors.shape[:-1], size)
    if size < _HALVED:
        return torch.matmul(vectors, vectors.mT, out=out)
    half = size // 2
    upper, lower = vectors[..., :half, :], vectors[..., half:, :]
    symmetric_product(upper, out=out[..., :half, :half])
    symmetric_product(lower, out=out[..., half:, half:])
    torch.matmul(lower, upper.mT, out=out[..., half:, :half])
    out[..., :half, half:] = out[..., half:, :half].mT
    return out


def word_moment(blocks: Iterable[torch.Tensor], *, centered: bool, computing: Computing) -> torch.Tensor:
    """The sum of x x^T over vectors that come in blocks [n, feature], or over x less their mean; [feature, feature].

    Float64, and computed relative to about the mean where that is taken away. Raises NonFiniteError for vectors whose
    squares float32 cannot hold.
    """
    blocks = iter(blocks)
    first = next(blocks).to(computing.device, computing.dtype)
    scale = first.new_ones(())
    if computing.dtype == torch.float32 and not _SMALL < float(first.square().sum()) < float("inf"):
        scale = _power_of_two(first.abs().amax())
    shift = _near_mean(first / scale) if centered else torch.zeros_like(first[0])
    total = torch.zeros(len(shift), len(shift), dtype=torch.float64, device=first.device)
    sums = torch.zeros(len(shift), dtype=torch.float64, device=first.device)
    count = 0
    for block in chain([first], blocks):
        vectors = block.to(computing.device, computing.dtype)
        if float(scale) != 1:
            vectors = vectors / scale
        if centered:
            vectors = vectors - shift
        total += symmetric_product(vectors.T)
        sums += vectors.sum(0, dtype=torch.float64)
        count += len(vectors)
    if not bool(torch.isfinite(total).all()):
        raise NonFiniteError("a word's vectors differ too much in length for float32: choose the precision float64")
    if centered:
        total -= torch.outer(sums, sums) / count
    return total * scale.double().square()


def _near_mean(vectors: torch.Tensor) -> torch.Tensor:
    """About the mean of vectors [n, feature], and exactly it where they are equal."""
    return vectors[0] + (vectors - vectors[0]).mean(0)


def mev_of_moment(
    moment: NDArray[np.float64], mean: NDArray[np.float64], count: int, *, centered: bool = False
) -> float:
    """The maximum explainable variance of many vectors, exact, from figures that blocks of them add up to.

    `moment`: the sum of x x^T, float64 [feature, feature]. `mean`: of the vectors, float64 [feature]. `count`: how
    many there are. With `centered`, that of the vectors less their mean. NaN where nothing varies.
    """
    scatter = moment - count * np.outer(mean, mean) if centered else np.asarray(moment)
    if not np.isfinite(scatter).all():
        raise NonFiniteError("the second moment holds a value that is not finite: there are vectors that are not")
    total = float(np.trace(moment))
    variance = float(np.trace(scatter))
    if variance <= len(mean) * np.finfo(np.float64).eps * total:
        return float("nan")
    largest = float(largest_eigenvalues(torch.from_numpy(np.ascontiguousarray(scatter))[None])[0])
    return min(largest / variance, 1.0)


def sample_mev(vectors: ArrayLike, *, centered: bool = False) -> float:
    """The maximum explainable variance of vectors [n, feature], as of a word; the paper's baseline takes 1,000 drawn.

    Computed in float64. Raises InvalidValueError for no vector, NonFiniteError for one that is not finite.
    """
    array = np.asarray(vectors, np.float64)
    if array.ndim != 2 or not array.size:
        raise InvalidValueError(f"vectors must be [n, feature] with one or more rows, not of shape {array.shape}")
    if not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array).all(1))[0])
        raise NonFiniteError(f"the vector {row} of those drawn holds a value that is not finite: leave it out")
    held = torch.from_numpy(array)
    if len(array) <= array.shape[1]:
        return float(_share_of_first(word_grams(held[None], torch.tensor([len(held)]), centered=centered))[0])
    moment = word_moment([held], centered=centered, computing=Computing.of("float64", "cpu", None))
    return float(_share_of_first(moment[None])[0])
