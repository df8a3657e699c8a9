"""The largest eigenvalue of many symmetric matrices at once, with a bound on its error."""

from __future__ import annotations

import torch

_DIRECT = 64  # up to this size all eigenvalues are computed at once
_BLOCK = 4
_STEPS = (4, 7, 12)  # blocks of the Krylov space: more of them where the bounds do not meet
TOLERANCE = 1e-8  # of the sum of all eigenvalues
_ANGLE = 1e-7  # of an eigenvector, in radians


def largest_eigenvalues(matrices: torch.Tensor) -> torch.Tensor:
    """The largest eigenvalue of symmetric positive semidefinite matrices: float64 [w, n, n] -> [w].

    Exact to `TOLERANCE` of the trace. Small matrices are solved directly. For a large one, a block Krylov space gives a
    lower bound and the rest of the Frobenius norm an upper bound; if they do not meet, it is solved directly too.
    """
    if matrices.shape[1] <= _DIRECT:
        every: torch.Tensor = torch.linalg.eigvalsh(matrices)
        return every[:, -1]
    values = torch.empty(len(matrices), dtype=matrices.dtype, device=matrices.device)
    for members, found, _ in _solved(matrices, vectors=False):
        values[members] = found
    return values


def largest_eigenpairs(matrices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest eigenvalue and a unit eigenvector: float64 [w, n, n] -> [w], [w, n]. See `largest_eigenvalues`.

    If the largest eigenvalue is not single, the vector is one of many.
    """
    if matrices.shape[1] <= _DIRECT:
        every, vectors = torch.linalg.eigh(matrices)
        return every[:, -1], vectors[:, :, -1]
    values = torch.empty(len(matrices), dtype=matrices.dtype, device=matrices.device)
    out = torch.empty(matrices.shape[:2], dtype=matrices.dtype, device=matrices.device)
    for members, found, vectors in _solved(matrices, vectors=True):
        values[members] = found
        out[members] = vectors
    return values, out


def _solved(matrices: torch.Tensor, *, vectors: bool) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Solve each matrix by the cheapest reliable method: (indices, largest eigenvalues, eigenvectors) per method."""
    left = torch.arange(len(matrices), device=matrices.device)
    some, space, images = matrices, *_start(matrices)
    parts = []
    for steps in _STEPS:
        if 2 * steps * _BLOCK > matrices.shape[1] or not len(left):
            break
        space, images = _extended(some, space, images, steps * _BLOCK)
        values, found, error, angle = _ritz(some, space, images)
        sure = error <= TOLERANCE * some.diagonal(dim1=1, dim2=2).sum(1)
        if vectors:
            sure &= angle <= _ANGLE
        parts.append((left[sure], values[sure], found[sure]))
        left = left[~sure]
        if len(left):
            some, space, images = matrices[left], space[~sure], images[~sure]
    if len(left) and vectors:
        every, whole = torch.linalg.eigh(matrices[left])
        parts.append((left, every[:, -1], whole[:, :, -1]))
    elif len(left):
        parts.append((left, torch.linalg.eigvalsh(matrices[left])[:, -1], matrices[left, 0]))
    return parts


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
    error_of_basis = (
        (space.mT @ space - torch.eye(space.shape[2], dtype=space.dtype, device=space.device)).abs().amax((1, 2))
    )
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
