"""Functions that make encoders: of models, and of vectors without context."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch

from embstore.arguments import Count, checked
from embstore.config import settings
from embstore.devices import choose_dtype
from embstore.errors import InvalidValueError
from embstore.models.checkpoint import load, open_checkpoint
from embstore.models.elmo.encoder import ElmoEncoder
from embstore.models.elmo.weights import find_elmo
from embstore.models.encoder import Encoder
from embstore.models.names import require_name, static_kind
from embstore.models.placing import DeviceMap, Place
from embstore.models.static import Missing, StaticEncoder, SubwordTable, WordTable
from embstore.models.transformer.encoder import TransformerEncoder
from embstore.vectors.files import open_vector_table
from embstore.vectors.word_vectors import RandomVectors, RowTable, VectorTable, WordVectors


@checked
def load_encoder(
    model: str | Path,
    *,
    compute_dtype: str = "auto",
    revision: str | None = None,
    device_map: str | Mapping[str, int | str] | None = None,
) -> Encoder:
    """Load the encoder that extraction runs: a transformer, ELMo, or vectors without context.

    Only safetensors weights are read and no code from the folder is run; quantized checkpoints are loaded as
    transformers loads them. The device is that of `es.config`.

    Parameters
    ----------
    model : str or Path
        A folder, or a name of the Hugging Face hub (downloaded once). A folder with `*options.json` and
        `*weights.hdf5`, and no `config.json`, is ELMo as published. Without context: a file of word vectors (or
        vectors:FILE), random:DIMENSIONS, or subwords:MODEL, the input embeddings of a model.
    compute_dtype : str
        "float32", "float16", "bfloat16" or "auto": float32, but on CUDA, and of a split model, that of a checkpoint in
        half precision, and on CUDA otherwise float16, or bfloat16 for T5 and others that need its range.
    revision : str or None
        Of a hub model.
    device_map : str, mapping or None
        "auto" splits a model over all GPUs, then main memory, then the disk, as the device "split" does; or a map of
        modules to devices, as `accelerate` takes it.

    Returns
    -------
    Encoder

    Raises
    ------
    ModelError
        In one line, for whatever prevents the model from being used.
    InvalidValueError
        For an unknown device or dtype.
    """
    return encoder_on(settings().device, model, compute_dtype=compute_dtype, revision=revision, device_map=device_map)


def encoder_on(
    device: str,
    model: str | Path,
    *,
    compute_dtype: str = "auto",
    revision: str | None = None,
    device_map: DeviceMap | None = None,
) -> Encoder:
    """Load an encoder on a device; see `load_encoder`."""
    place = Place.of(device, device_map)
    static = static_kind(model)
    if static is not None and static[0] != "subwords" and revision is not None:
        raise InvalidValueError(f"revision {revision!r} belongs to models of the hub; {str(model)!r} is not one")
    if static is not None:
        kind, target = static
        if kind == "subwords":
            loaded = load(target, Place(place.main), dtype=_dtype(compute_dtype, place.main), revision=revision)
            return StaticEncoder(SubwordTable(loaded), name=f"subwords:{target}", source=f"subwords:{target}")
        if kind == "random":
            table = RandomVectors(int(target))
            return _vectors(table, "random", 0, place.main, compute_dtype, name=f"random:{int(target)}")
        return _vectors(target, "random", 0, place.main, compute_dtype)
    dtype = choose_dtype(compute_dtype, place.main)
    if (files := find_elmo(model)) is not None:
        return ElmoEncoder(*files, name=str(model), device=place.main, dtype=dtype)
    own = None if compute_dtype == "auto" else dtype
    return TransformerEncoder(load(model, place, dtype=own, revision=revision))


@checked
def vector_encoder(
    vectors: WordVectors | VectorTable | str | Path,
    *,
    missing: Missing = "random",
    seed: Count = 0,
    compute_dtype: str = "auto",
) -> StaticEncoder:
    """Make an encoder of word vectors, to compare contextual vectors with.

    A word is looked up as it is spelled, then in lower case; a phrase as one entry, its words joined by "_" or a space,
    else its words are pooled.

    Parameters
    ----------
    vectors : WordVectors, str or Path
        Vectors in memory, or a file of any kind that `WordVectors` reads.
    missing : str
        Words without a vector get random ones from N(0, I), seeded by `seed` and the word ("random"), or no row
        ("drop").
    seed : int
        Of the random vectors.
    compute_dtype : str
        "auto" is float32.

    Raises
    ------
    WordVectorsError
        For a file that cannot be read.
    """
    return _vectors(vectors, missing, seed, Place.of(settings().device).main, compute_dtype)


@checked
def bag_encoder(encoder: Encoder) -> StaticEncoder:
    """Make an encoder that gives every word the mean vector of its sentence, from an encoder without context.

    Raises InvalidValueError for any other encoder.
    """
    if not isinstance(encoder, StaticEncoder):
        raise InvalidValueError("a bag needs an encoder without context, such as that of vector_encoder")
    return StaticEncoder(encoder.table, name=f"bag:{encoder.info.name.removeprefix('bag:')}", bag=True)


@checked
def model_kind(model: str | Path) -> Literal["static", "elmo", "transformer"]:
    """Return what a name of `load_encoder` means, without loading weights.

    Raises ModelError, in one line, for a transformer whose files are missing or damaged.
    """
    if static_kind(model) is not None:
        return "static"
    if find_elmo(model) is not None:
        return "elmo"
    open_checkpoint(model, revision=None)
    return "transformer"


def _vectors(
    vectors: WordVectors | VectorTable | str | Path,
    missing: Missing,
    seed: int,
    device: torch.device,
    compute_dtype: str,
    *,
    name: str = "",
) -> StaticEncoder:
    source = name
    if isinstance(vectors, VectorTable):
        table = vectors
    elif isinstance(vectors, WordVectors):
        table = RowTable(vectors)
    else:
        table = open_vector_table(require_name(vectors))
        name = f"vectors:{vectors}"
        source = name if (missing, seed) == ("random", 0) else ""
    words = WordTable(table, missing=missing, seed=seed, device=device, dtype=_dtype(compute_dtype, device))
    return StaticEncoder(words, name=name or "word vectors", source=source)


def _dtype(compute_dtype: str, device: torch.device) -> torch.dtype:
    """Return the dtype of vectors without context, which is float32 on a GPU too."""
    return torch.float32 if compute_dtype == "auto" else choose_dtype(compute_dtype, device)
