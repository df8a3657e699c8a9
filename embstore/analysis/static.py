"""Static vectors: one vector per word, made of its contextual vectors in one layer; also as a store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike

from embstore.analysis.geometry.spectra import largest_eigenpairs, word_grams, word_moment
from embstore.analysis.scan import layer_of, selected
from embstore.analysis.words import (
    Blocks,
    PerWord,
    Resources,
    WordBatch,
    all_types,
    compute_per_word,
    eligible_types,
    rows_of_words,
)
from embstore.arguments import Positive, checked
from embstore.config import settings
from embstore.errors import InvalidValueError
from embstore.progress import reporting
from embstore.store import Selection, Store
from embstore.store.convert.filling import require_free_path
from embstore.store.convert.words import fill_words, word_metadata
from embstore.store.layout import Layers, Layout
from embstore.vectors import WordVectors

_ORTHOGONAL = 1e-8  # the cosine with the mean below which rounding may decide its sign


@checked
def static_vectors(
    data: Store | Selection,
    *,
    layers: Layers = -1,
    method: Literal["pc1", "mean"] = "pc1",
    min_contexts: Positive = 1,
    types: ArrayLike | None = None,
) -> WordVectors:
    """Make one vector per word of a layer, for tools that expect static embeddings.

    Parameters
    ----------
    data : Store or Selection
        The occurrences.
    layers : int
        One layer.
    method : {"pc1", "mean"}
        Of the vectors X [n, feature] of a word, not normalized. `pc1`: their first principal component, not centered
        (Ethayarajh 2019, section 4.3), the unit vector v that maximizes |X v|, with the sign that points towards their
        mean (or, if it is orthogonal to the mean, a positive largest component); zeros for a word of zeros. `mean`:
        their mean.
    min_contexts : int
        Only words that occur in this many different sentences.
    types : array_like of int, optional
        These words instead: positions in `index.words`.

    Returns
    -------
    WordVectors
        In the order of `index.words`.

    Raises
    ------
    InvalidValueError
        For a layer that is not stored, and if no word remains.
    MissingRowsError, NonFiniteError
        For rows that are not written yet or not finite.
    """
    selection = selected(data, layer_of(data, layers))
    store = selection.store
    if types is None:
        types = all_types(selection) if min_contexts == 1 else eligible_types(selection, min_contexts=min_contexts)
        if not len(types):
            raise InvalidValueError(
                f"no word of {store.path} occurs in {min_contexts:,} different sentences: allow fewer contexts"
            )
    words = rows_of_words(selection, types)
    with reporting(settings().progress, total=words.n_rows, unit="vectors", label="static vectors") as report:
        options: dict[str, Any] = {"precision": "float64", "progress": report}
        (vectors,) = compute_per_word(_METHODS[method], store, selection.layers, words, **options)
    return WordVectors(tuple(store.index.words[int(number)] for number in words.types), vectors)


def _means(batch: WordBatch, resources: Resources) -> torch.Tensor:
    vectors = batch.vectors.to(resources.device)
    counts = torch.from_numpy(batch.counts).to(resources.device)
    return vectors.sum(1, dtype=torch.float64) / counts[:, None]


def _mean_of_blocks(blocks: Blocks, resources: Resources) -> torch.Tensor:
    parts = [(len(block), block.to(resources.device).sum(0, dtype=torch.float64)) for block in blocks()]
    return torch.stack([part for _, part in parts]).sum(0, keepdim=True) / sum(count for count, _ in parts)


def _first_components(batch: WordBatch, resources: Resources) -> torch.Tensor:
    vectors = batch.vectors.to(resources.device, resources.dtype)
    values, weights = largest_eigenpairs(word_grams(vectors))
    directions = (weights[:, None, :] @ vectors)[:, 0]
    return _with_sign(directions, values, vectors.sum(1), torch.from_numpy(batch.counts).to(resources.device))


def _first_component_of_blocks(blocks: Blocks, resources: Resources) -> torch.Tensor:
    parts, counts = [], []

    def summed() -> Iterator[torch.Tensor]:
        for block in blocks():
            parts.append(block.to(resources.device).sum(0, dtype=torch.float64))
            counts.append(len(block))
            yield block

    values, directions = largest_eigenpairs(word_moment(summed(), resources)[None])
    sums = torch.stack(parts).sum(0, keepdim=True)
    return _with_sign(directions, values, sums, torch.tensor([sum(counts)], device=values.device))


def _with_sign(
    directions: torch.Tensor, values: torch.Tensor, sums: torch.Tensor, counts: torch.Tensor
) -> torch.Tensor:
    """Unit vectors along `directions` with the sign of `sums`; zeros for a word whose vectors are all zero."""
    lengths = directions.norm(dim=1, keepdim=True)
    directions = torch.where((values > 0)[:, None], directions / lengths, torch.zeros_like(directions))
    along = (directions * sums).sum(1, keepdim=True)
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    is_orthogonal = along.abs() <= _ORTHOGONAL * (values.clamp(min=0) * counts).sqrt()[:, None]
    return torch.where(torch.where(is_orthogonal, largest, along) < 0, -directions, directions)


# How a method makes float64 vectors [w, feature]: of a batch of words, and of one word read in blocks.
_METHODS = {
    "pc1": PerWord(_first_components, _first_component_of_blocks, np.float32),
    "mean": PerWord(_means, _mean_of_blocks, np.float32),
}


@checked
def write_static_store(
    vectors: Mapping[int, WordVectors], path: str | Path, *, source: Store, made: Mapping[str, Any]
) -> Store:
    """Write static vectors as a float32 store, so that they can be analysed like contextual ones.

    The store has one row per word; each word is a sentence of its own. An unfinished store of the same vectors is
    resumed.

    Parameters
    ----------
    vectors : mapping of int to WordVectors
        Vectors of the same words by layer.
    path : str or Path
        Where the store is written.
    source : Store
        What they were made of; its name and fingerprint are stored.
    made : mapping
        How they were made (JSON: method and options); the metadata have it under `extraction.static`.

    Raises
    ------
    InvalidValueError
        For layers of different words, and a path that is in use.
    StorageError
        If the disk is full.
    """
    path, by_layer = Path(path), dict(sorted(vectors.items()))
    if len({each.words for each in by_layer.values()}) != 1:
        raise InvalidValueError("the layers have vectors of different words, or there are none: give the same words")
    first = next(iter(by_layer.values()))
    require_free_path(path)
    layout = Layout.of(n_rows=len(first.words), layers=tuple(by_layer), hidden_size=first.dimensions, dtype="float32")
    origin = {"name": source.path.name, "fingerprint": source.metadata.fingerprint}
    metadata = word_metadata(source.metadata, layout, made={**made, "source": origin})
    return fill_words(path, first.words, metadata, lambda layer, rows: by_layer[layer].vectors[rows])
