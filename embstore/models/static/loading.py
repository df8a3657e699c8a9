"""Encoders without context from a name, a file, or vectors in memory."""

from __future__ import annotations

from pathlib import Path

import torch

from embstore.devices import choose_device
from embstore.errors import InvalidValueError, ModelError, WordVectorsError
from embstore.models.loading import choose_dtype, load, use_threads
from embstore.models.static.encoder import ContextFreeEncoder
from embstore.models.static.names import Missing, StaticName
from embstore.models.static.rows import SubwordRows, WordRows
from embstore.vectors import RandomVectors, VectorTable, WordVectors, open_vector_table
from embstore.vectors.table import table_of_vectors


def word_vector_encoder(
    vectors: WordVectors | VectorTable | str | Path,
    *,
    name: str | None = None,
    missing: Missing = "random",
    seed: int = 0,
    bag: bool = False,
    device: str = "auto",
    compute_dtype: str = "auto",
    threads: int | None = None,
) -> ContextFreeEncoder:
    """Make an encoder of word vectors: of a file of any kind, or of vectors in memory.

    `missing`: words that have no vector are drawn from N(0, I), seeded by `seed` and the word ("random"), or get no
    row ("drop"). `bag`: every word gets the mean over the words of its sentence. A word is looked up as it is
    spelled, then lower-cased; a phrase as one entry, its words joined by "_" or a space, else its words are pooled.

    Raises WordVectorsError for a file that cannot be read, ModelError for a device that is not there.
    """
    if missing not in ("random", "drop"):
        raise InvalidValueError(f"missing {missing!r} is not allowed: choose random or drop")
    if isinstance(vectors, WordVectors):
        table: VectorTable = table_of_vectors(vectors)
    else:
        table = vectors if isinstance(vectors, VectorTable) else open_vector_table(vectors)
    chosen = choose_device(device)
    use_threads(threads)
    dtype = torch.float32 if compute_dtype == "auto" else choose_dtype(compute_dtype, chosen)
    rows = WordRows(table, missing=missing, seed=seed, device=chosen, dtype=dtype)
    return ContextFreeEncoder(rows, name=name or _name(vectors), bag=bag)


def _name(vectors: WordVectors | VectorTable | str | Path) -> str:
    return str(vectors) if isinstance(vectors, str | Path) else "word vectors"


def load_context_free(
    named: StaticName, *, name: str, device: str, compute_dtype: str, revision: str | None, threads: int | None
) -> ContextFreeEncoder:
    """Load an encoder without context; see `embstore.models.load_encoder`."""
    if named.kind == "subwords":
        chosen = choose_device(device)
        use_threads(threads)
        dtype = torch.float32 if compute_dtype == "auto" else choose_dtype(compute_dtype, chosen)
        loaded = load(named.target, device=chosen, dtype=dtype, revision=revision)
        return ContextFreeEncoder(SubwordRows(loaded), name=name, bag=named.bag)
    if revision is not None:
        raise InvalidValueError(f"revision {revision!r} is of models of the hub; {name!r} is none")
    try:
        table = (
            RandomVectors(int(named.target), seed=named.seed)
            if named.kind == "random"
            else open_vector_table(named.target)
        )
    except WordVectorsError as error:
        if not named.plain:
            raise
        raise ModelError(
            f"the model {named.target!r} is a file; give the folder of a model, or a file of word vectors: {error}"
        ) from error
    return word_vector_encoder(
        table,
        name=name,
        missing=named.missing,
        seed=named.seed,
        bag=named.bag,
        device=device,
        compute_dtype=compute_dtype,
        threads=threads,
    )
