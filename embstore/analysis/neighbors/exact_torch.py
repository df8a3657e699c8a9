"""Candidates of an exact search by torch alone: what a GPU does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

if TYPE_CHECKING:
    from embstore.analysis.neighbors.exact import Search

BLOCK_NBYTES = 2**28  # of float32
_CANCELLED = 64.0


def torch_candidates(search: Search, device: torch.device) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The best of each query in float32, in no order: scores and rows [q, kept]; raises as `exact_search` does."""
    from embstore.analysis.neighbors.searched import refuse

    size = search.vectors.hidden_size
    queries = torch.from_numpy(search.queries32).to(device)
    best = torch.full((len(queries), search.kept), -torch.inf, device=device)
    best_rows = torch.full(best.shape, -1, device=device)
    for rows, read in search.vectors.blocks(search.rows, max(1, BLOCK_NBYTES // (4 * size))):
        vectors = torch.from_numpy(np.ascontiguousarray(read)).to(device).float()
        squares = vectors if search.space.metric == "cosine" else vectors.square().sum(1, keepdim=True)
        if not bool(torch.isfinite(squares).all()):
            wrong = int(torch.nonzero(~torch.isfinite(squares).all(1))[0])
            refuse(int(rows[wrong]), read[wrong])
        placed, bias, unsure = _placed(search, vectors)
        if bool(unsure.any()):
            search.unsure.append(rows[unsure.cpu().numpy()])
        scores = queries @ placed.T - bias
        scores.masked_fill_(unsure, -torch.inf)
        for of_rows, of_queries in zip(search.row_groups(rows), search.query_groups, strict=True):
            of, own = torch.from_numpy(of_rows).to(device), torch.from_numpy(of_queries).to(device)
            scores.masked_fill_((of[None] == own[:, None]) & (own >= 0)[:, None], -torch.inf)
        both = torch.cat([best, scores], 1)
        numbers = torch.from_numpy(rows).to(device).expand(len(queries), -1)
        best, places = both.topk(search.kept, 1, sorted=False)
        best_rows = torch.cat([best_rows, numbers], 1).gather(1, places)
        search.advance(len(rows))
    best_rows[best == -torch.inf] = -1
    return best.cpu().numpy(), best_rows.cpu().numpy()


def _placed(search: Search, vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Vectors as they are compared, their bias [n], and which of them are left to float64 [n]."""
    device = vectors.device
    if search.space.metric == "cosine" and not len(search.mean):
        largest = vectors.abs().amax(1, keepdim=True)
        vectors = vectors / torch.where(largest > 0, largest, 1)
    if len(search.mean):
        vectors = vectors - torch.from_numpy(search.mean).to(device)
    taken = torch.linalg.vector_norm(vectors, dim=1) + 2 * search.mean_length
    if len(search.components):
        directions = torch.from_numpy(search.components).to(device)
        vectors = vectors - (vectors.double() @ directions.T @ directions).float()
    lengths = torch.linalg.vector_norm(vectors, dim=1)
    none = torch.zeros_like(lengths)
    if search.space.metric != "cosine":
        search.lengths.append(float(lengths.max()))
        bias = lengths.square() / 2 if search.space.metric == "l2" else none
        return vectors, bias, none.bool()
    unsure = taken > _CANCELLED * lengths if len(search.mean) else none.bool()
    return vectors / torch.where(lengths > 0, lengths, 1)[:, None], none, unsure
