"""Maximum explainable variance of every word of a layer, from batched Gram matrices; Ethayarajh 2019, eq. 3."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from embstore.analysis.geometry.eigen import largest_eigenvalues
from embstore.analysis.scan import layer_of, selected
from embstore.analysis.word_batches import Resources, WordBatch, compute_per_word, map_words
from embstore.analysis.words import WordRows, all_types, rows_of_words
from embstore.errors import InvalidValueError, NonFiniteError
from embstore.progress import Progress, reporting
from embstore.store import Selection, Store

_HALVED = 192  # from this number of vectors on, only half of a symmetric product is computed
_SMALL = 1e-20  # a sum of squares below which some may have underflowed in float32


def maximum_explainable_variance(
    data: Store | Selection,
    *,
    layer: int | str = -1,
    types: ArrayLike | None = None,
    centered: bool = False,
    precision: str = "float32",
    device: str = "auto",
    memory: int | str | None = None,
    progress: Progress = None,
) -> NDArray[np.float64]:
    """Measure how much of the variance of each word one static vector could explain: float64 [n_words], in [0, 1].

    sigma_1^2 / sum_i sigma_i^2 of the matrix whose rows are the vectors of a word, not normalized (Ethayarajh 2019,
    eq. 3); with `centered`, after subtracting the mean of the word. A word with one occurrence has 1, and NaN if
    centered, as has one whose vectors do not vary or are all zero.

    `types`: positions in `index.words`, by default all types with an occurrence. `precision`: float32 (error about
    1e-7) or float64 for products of vectors; everything else is float64. `memory`: bytes or a text such as "4GiB"
    (default 1 GiB). `progress(done, total)` counts occurrences.
    Raises InvalidValueError, MissingRowsError, NonFiniteError.
    """
    number = layer_of(data, layer)
    selection = selected(data, number)
    words = rows_of_words(selection, all_types(selection) if types is None else types)
    with reporting(progress, total=len(words.rows), unit="vectors", label="mev") as report:
        (values,) = compute_per_word(
            partial(explained_shares, centered=centered),
            selection.store,
            [number],
            words,
            precision=precision,
            device=device,
            memory=memory,
            executor=None,
            progress=report,
        )
    return values


def explained_shares(
    store: Store,
    layer: int,
    words: WordRows,
    resources: Resources,
    progress: Callable[[int], object],
    *,
    centered: bool,
) -> NDArray[np.float64]:
    """The maximum explainable variance of each word of a layer, float64 [n_words]."""

    def of_batch(batch: WordBatch) -> NDArray[np.float64]:
        vectors = batch.vectors.to(resources.device, resources.dtype)
        counts = torch.from_numpy(batch.counts).to(resources.device)
        return _share_of_first(word_grams(vectors, counts, centered=centered))

    def of_frequent(_number: int, blocks: Callable[[], Iterator[torch.Tensor]]) -> NDArray[np.float64]:
        return _share_of_first(word_moment(blocks(), centered=centered, resources=resources)[None])

    out = np.empty(len(words.types))
    for numbers, shares in map_words(
        store, layer, words, batch=of_batch, frequent=of_frequent, resources=resources, progress=progress
    ):
        out[numbers] = shares
    return out


def _share_of_first(matrices: torch.Tensor) -> NDArray[np.float64]:
    trace = matrices.diagonal(dim1=1, dim2=2).sum(1)
    share: NDArray[np.float64] = (largest_eigenvalues(matrices) / trace).clamp(0, 1).cpu().numpy()
    return share


def word_grams(vectors: torch.Tensor, counts: torch.Tensor, *, centered: bool) -> torch.Tensor:
    """The Gram matrices of the vectors of words [w, n, feature], of which `counts` [w] are valid; float64 [w, n, n].

    With `centered`, the first vector and then the mean are subtracted, and the rest of the mean that rounding left is
    removed from the Gram matrix: equal vectors give exact zeros, and a large common mean costs no precision.
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
    rest = grams.sum(2) / counts[:, None]
    grams += (rest.sum(1) / counts)[:, None, None] - rest[:, :, None] - rest[:, None, :]
    return grams * (own[:, :, None] & own[:, None, :]) if padded else grams


def _power_of_two(values: torch.Tensor) -> torch.Tensor:
    """The power of two at or below each value: dividing by it is exact and keeps float32 squares from overflowing."""
    return torch.where(values > 0, torch.exp2(torch.log2(values).floor().clamp(min=-126)), torch.ones_like(values))


def symmetric_product(vectors: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """A A^T of A [..., n, feature]; for large n the half above the diagonal is copied from the half below."""
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


def word_moment(blocks: Iterable[torch.Tensor], *, centered: bool, resources: Resources) -> torch.Tensor:
    """The sum of x x^T over blocks of vectors [n, feature], with the mean subtracted if centered: [feature, feature].

    Raises NonFiniteError for vectors whose squares overflow float32.
    """
    blocks = iter(blocks)
    first = next(blocks).to(resources.device, resources.dtype)
    scale = first.new_ones(())
    if resources.dtype == torch.float32 and not _SMALL < float(first.square().sum()) < float("inf"):
        scale = _power_of_two(first.abs().amax())
    shift = _near_mean(first / scale) if centered else torch.zeros_like(first[0])
    total = torch.zeros(len(shift), len(shift), dtype=torch.float64, device=first.device)
    sums = torch.zeros(len(shift), dtype=torch.float64, device=first.device)
    count = 0
    for block in chain([first], blocks):
        vectors = block.to(resources.device, resources.dtype)
        if float(scale) != 1:
            vectors = vectors / scale
        if centered:
            vectors = vectors - shift
        total += symmetric_product(vectors.T)
        sums += vectors.sum(0, dtype=torch.float64)
        count += len(vectors)
    if not bool(torch.isfinite(total).all()):
        raise NonFiniteError("the vectors of a word differ too much in length for float32: choose precision float64")
    if centered:
        total -= torch.outer(sums, sums) / count
    return total * scale.double().square()


def _near_mean(vectors: torch.Tensor) -> torch.Tensor:
    """Approximately the mean of vectors [n, feature]; exactly the mean if they are equal."""
    return vectors[0] + (vectors - vectors[0]).mean(0)


def mev_of_moment(
    moment: NDArray[np.float64], mean: NDArray[np.float64], count: int, *, centered: bool = False
) -> float:
    """The exact maximum explainable variance of any number of vectors, given their moments.

    `moment`: the sum of x x^T, float64 [feature, feature]. `mean`: the mean vector, float64 [feature]. `count`: the
    number of vectors. With `centered`, the mean is subtracted. NaN if nothing varies.
    """
    scatter = moment - count * np.outer(mean, mean) if centered else np.asarray(moment)
    if not np.isfinite(scatter).all():
        raise NonFiniteError("the second moment holds a value that is not finite: some vectors are not finite")
    total = float(np.trace(moment))
    variance = float(np.trace(scatter))
    if variance <= len(mean) * np.finfo(np.float64).eps * total:
        return float("nan")
    largest = float(largest_eigenvalues(torch.from_numpy(np.ascontiguousarray(scatter))[None])[0])
    return min(largest / variance, 1.0)


def sample_mev(vectors: ArrayLike, *, centered: bool = False) -> float:
    """The maximum explainable variance of vectors [n, feature] as if they were one word, in float64.

    The baseline of the paper is that of 1,000 random occurrences. Raises InvalidValueError if there is no vector and
    NonFiniteError for one that is not finite.
    """
    array = np.asarray(vectors, np.float64)
    if array.ndim != 2 or not array.size:
        raise InvalidValueError(f"vectors must be [n, feature] with one or more rows, not of shape {array.shape}")
    if not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array).all(1))[0])
        raise NonFiniteError(f"vector {row} of the sample holds a value that is not finite: leave it out")
    vectors = torch.from_numpy(array)
    if len(array) <= array.shape[1]:
        return float(_share_of_first(word_grams(vectors[None], torch.tensor([len(vectors)]), centered=centered))[0])
    moment = word_moment([vectors], centered=centered, resources=Resources.of("float64", "cpu"))
    return float(_share_of_first(moment[None])[0])
