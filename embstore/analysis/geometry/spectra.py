"""Maximum explainable variance of every word of a layer, from batched Gram matrices; Ethayarajh 2019, eq. 3."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.analysis.words import PerWord, Resources
from embstore.errors import NonFiniteError

_HALVED = 192  # from this number of vectors on, only half of a symmetric product is computed
_SMALL = 1e-20  # a sum of squares below which some may have underflowed in float32
_DIRECT = 64  # up to this size all eigenvalues are computed at once
_BLOCK = 4  # columns of a block of the Krylov space
_STEPS = (4, 7, 12)  # blocks of the Krylov space: more of them where the bounds do not meet
TOLERANCE = 1e-8  # of the sum of all eigenvalues
_ANGLE = 1e-7  # of an eigenvector, in radians


def share_of_first(matrices: torch.Tensor) -> torch.Tensor:
    """The share of the largest eigenvalue in the sum of all, [w]; NaN where all are zero."""
    trace = matrices.diagonal(dim1=1, dim2=2).sum(1)
    return (largest_eigenpairs(matrices, vectors=False)[0] / trace).clamp(0, 1)


MEV = PerWord(  # the maximum explainable variance of each word, [w]
    lambda batch, use: share_of_first(word_grams(batch.vectors.to(use.device, use.dtype))),
    lambda blocks, use: share_of_first(word_moment(blocks(), use)[None]),
)


def word_grams(vectors: torch.Tensor) -> torch.Tensor:
    """The Gram matrices of the vectors of words [w, n, feature], in which missing ones are zero; float64 [w, n, n]."""
    grams = symmetric_product(vectors).double()
    if vectors.dtype == torch.float64:
        return grams
    trace = grams.diagonal(dim1=1, dim2=2).sum(1)
    if bool((torch.isfinite(trace) & (trace > _SMALL)).all()):
        return grams
    scale = _power_of_two(vectors.abs().amax((1, 2)))
    return symmetric_product(vectors / scale[:, None, None]).double() * scale.double().square()[:, None, None]


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


def word_moment(blocks: Iterable[torch.Tensor], resources: Resources) -> torch.Tensor:
    """The sum of x x^T over blocks of vectors [n, feature]: [feature, feature].

    Raises NonFiniteError for vectors whose squares overflow float32.
    """
    blocks = iter(blocks)
    first = next(blocks).to(resources.device, resources.dtype)
    scale = first.new_ones(())
    if resources.dtype == torch.float32 and not _SMALL < float(first.square().sum()) < float("inf"):
        scale = _power_of_two(first.abs().amax())
    total = torch.zeros(first.shape[1], first.shape[1], dtype=torch.float64, device=first.device)
    for block in chain([first], blocks):
        vectors = block.to(resources.device, resources.dtype)
        total += symmetric_product((vectors if float(scale) == 1 else vectors / scale).T)
    if not bool(torch.isfinite(total).all()):
        raise NonFiniteError("the vectors of a word differ too much in length for float32: choose precision float64")
    return total * scale.double().square()


def sample_mev(stored: NDArray[Any]) -> float:
    """The maximum explainable variance of vectors [n, feature] as if they were one word, in float64.

    The baseline of the paper is that of 1,000 random occurrences. Raises NonFiniteError.
    """
    array = np.asarray(stored, np.float64)
    if not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array).all(1))[0])
        raise NonFiniteError(f"vector {row} of the sample holds a value that is not finite: leave it out")
    shorter = torch.from_numpy(array if len(array) <= array.shape[1] else array.T)
    return float(share_of_first(symmetric_product(shorter[None]))[0])


def mev_influences(stored: NDArray[Any]) -> NDArray[np.float64]:
    """How far each vector moves the maximum explainable variance of vectors [n, feature], times n; their mean is 0."""
    array = np.asarray(stored, np.float64)
    shorter = torch.from_numpy(array if len(array) <= array.shape[1] else array.T)
    value, first = (each[0].numpy() for each in largest_eigenpairs(symmetric_product(shorter[None])))
    along = np.square(first * np.sqrt(value) if len(first) == len(array) else array @ first)
    squares = np.square(array).sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):  # NaN if all vectors are zero
        return np.asarray((along - along.sum() / squares.sum() * squares) / squares.mean())


def largest_eigenpairs(matrices: torch.Tensor, *, vectors: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest eigenvalue and a unit eigenvector of symmetric positive semidefinite matrices.

    float64 [w, n, n] -> [w], [w, n]. The values are exact to `TOLERANCE` of the trace. With `vectors=False` only the
    values are computed, which is faster. If the largest eigenvalue is not single, the vector is one of many.

    Small matrices are solved directly. For a large one, a block Krylov space gives a lower bound and the rest of the
    Frobenius norm an upper bound; if they do not meet, it is solved directly too.
    """
    if matrices.shape[1] <= _DIRECT:
        return _solved(matrices, vectors)
    values, out = torch.empty_like(matrices[:, 0, 0]), torch.empty_like(matrices[:, 0])
    left = torch.arange(len(matrices), device=matrices.device)
    some, space, images = matrices, *_start(matrices)
    for steps in _STEPS:
        if 2 * steps * _BLOCK > matrices.shape[1] or not len(left):
            break
        space, images = _extended(some, space, images, steps * _BLOCK)
        value, vector, error, angle = _ritz(some, space, images)
        sure = error <= TOLERANCE * some.diagonal(dim1=1, dim2=2).sum(1)
        if vectors:
            sure &= angle <= _ANGLE
        values[left[sure]], out[left[sure]] = value[sure], vector[sure]
        left = left[~sure]
        some, space, images = matrices[left], space[~sure], images[~sure]
    if len(left):
        values[left], out[left] = _solved(matrices[left], vectors)
    return values, out


def _solved(matrices: torch.Tensor, vectors: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest eigenvalues and, if they are needed, the eigenvectors; all of them are computed."""
    if not vectors:
        return torch.linalg.eigvalsh(matrices)[:, -1], matrices[:, 0]
    values, every = torch.linalg.eigh(matrices)
    return values[:, -1], every[:, :, -1]


def _ritz(
    matrices: torch.Tensor, space: torch.Tensor, images: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rayleigh-Ritz approximation: value, vector, bounds on the error of the value and the angle of the vector."""
    projected = space.mT @ images
    values, ritz = torch.linalg.eigh((projected + projected.mT) / 2)
    values, ritz = values.flip(1), ritz.flip(2)
    images = images @ ritz
    vectors = (space @ ritz[:, :, :1])[:, :, 0]
    residual = (images[:, :, 0] - values[:, :1] * vectors).norm(dim=1)
    rest = _bound_of_others(matrices, values, images.square().sum(1))
    gap = values[:, 0] - rest
    infinite = torch.full_like(gap, torch.inf)
    small = torch.finfo(gap.dtype).eps * matrices.shape[1] * values[:, 0].abs()
    error = torch.where(gap > 0, residual**2 / gap, infinite)
    angle = torch.where(gap > 0, (residual + small) / gap, infinite)
    error_of_basis = (space.mT @ space - torch.eye(space.shape[2]).to(space)).abs().amax((1, 2))
    sound = error_of_basis < 1e-12 * matrices.shape[1]
    return values[:, 0], vectors, torch.where(sound, error, infinite), torch.where(sound, angle, infinite)


def _start(matrices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first orthonormal columns and their images, both [w, n, block]."""
    count, size = matrices.shape[:2]
    start = torch.randn(size, _BLOCK, generator=torch.Generator().manual_seed(size), dtype=matrices.dtype)
    start[:, 0] = 1  # the sum of the vectors of a word is close to their first component
    space = torch.linalg.qr(start.to(matrices.device))[0].expand(count, -1, -1)
    return space, matrices @ space


def _extended(
    matrices: torch.Tensor, space: torch.Tensor, images: torch.Tensor, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Extend the block Krylov space V, GV, GGV ... to `width` orthonormal columns; returns it and its images."""
    while space.shape[2] < width:
        block = images[:, :, -_BLOCK:]
        for _ in range(2):  # twice, because rounding leaves parts of the known columns
            block = torch.linalg.qr(block - space @ (space.mT @ block))[0]
        space = torch.cat([space, block], 2)
        images = torch.cat([images, matrices @ block], 2)
    return space, images


def _bound_of_others(matrices: torch.Tensor, values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """An upper bound on the eigenvalues in the complement of the first Ritz vector, for each matrix.

    Given the Ritz values t_i and squared lengths l_i = |G y_i|^2 of the first m Ritz vectors, the complement of these m
    has a Frobenius norm b with b^2 = |G|^2 - 2 sum l_i + sum t_i^2, and is coupled to the other m - 1 by a block of
    norm e with e^2 = sum (l_i - t_i^2). All eigenvalues are therefore at most the larger one of [[t_2, e], [e, b]];
    the smallest bound over m is returned.
    """
    whole = matrices.square().sum((1, 2))[:, None]
    squares = values.square()
    slack = 64 * torch.finfo(values.dtype).eps * whole
    outside = (whole - 2 * lengths.cumsum(1) + squares.cumsum(1)).clamp(min=0) + slack
    coupling = (lengths - squares).clamp(min=0)
    coupled = coupling.cumsum(1) - coupling[:, :1] + slack
    b, second = outside.sqrt(), values[:, 1:2]
    bounds = (second + b) / 2 + (((second - b) / 2).square() + coupled).sqrt()
    bounds[:, 0] = b[:, 0]
    return bounds.amin(1)
