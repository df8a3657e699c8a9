"""Functions that make encoders: of models, and of vectors without context."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import torch

from embstore.arguments import checked
from embstore.devices import choose_device, choose_dtype
from embstore.errors import InvalidValueError, ModelError, WordVectorsError, check_whole, quoted
from embstore.models.checkpoint import load, open_checkpoint
from embstore.models.elmo.encoder import ElmoEncoder
from embstore.models.elmo.weights import find_elmo
from embstore.models.encoder import Encoder
from embstore.models.placing import Device, Place
from embstore.models.static.encoder import StaticEncoder
from embstore.models.static.shorthand import BAG, Missing, parse_shorthand, parse_vllm, require_name
from embstore.models.static.tables import SubwordTable, WordTable
from embstore.models.transformer.encoder import TransformerEncoder
from embstore.models.vllm.encoder import VllmEncoder
from embstore.vectors.files import open_vector_table
from embstore.vectors.word_vectors import MAX_DIMENSIONS, RandomVectors, RowTable, VectorTable, WordVectors


def load_encoder(
    model: str | Path,
    *,
    device: Device = "auto",
    compute_dtype: str = "auto",
    revision: str | None = None,
    layers: str | int | Iterable[int | str] = "all",
) -> Encoder:
    """Load the encoder that extraction runs: a transformer, also one that vLLM runs, or ELMo.

    `model`: a folder, or a name of the Hugging Face hub (downloaded once). A folder with `*options.json` and
    `*weights.hdf5`, and no `config.json`, is ELMo as published. `device`: "auto" (a CUDA GPU if there is one), "cpu",
    "cuda", "cuda:N", "mps" or "xpu"; "split": over all CUDA GPUs, what does not fit in main memory, the rest on the
    disk; "split:20GiB": at most that much of the weights on each GPU (without one, in main memory); "tensor" or
    "tensor:4": all CUDA GPUs, or four (on a CPU, four processes) run it together, each with a part of every
    matrix; or a map of modules to devices, as `accelerate` takes it. `compute_dtype`: "float32", "float16", "bfloat16"
    or "auto": float32, but on CUDA, and of a split model, that of a checkpoint in half precision, and float16 on CUDA
    otherwise. `revision`: of a hub model. `layers`: those that will be asked for; a GPU, and a split model, need not
    load the blocks above them. Quantized checkpoints are loaded as transformers loads them. For vectors without context
    see `vector_encoder`, `random_encoder`, `subword_encoder` and `bag_encoder` of `embstore.models`.

    "vllm:MODEL" is a decoder that vLLM runs, "vllm:MODEL?tensor_parallel_size=N" on N GPUs.

    Only safetensors weights are read and no code from the folder is run. Raises ModelError, in one line, for whatever
    prevents the model from being used, InvalidValueError for an unknown device or dtype.

    Example::

        plan = es.plan("novel.txt", model=es.load_encoder("minilm", compute_dtype="float32"))
    """
    if (vllm := parse_vllm(model)) is not None:
        given: dict[str, Any] = {"device": device, "compute_dtype": compute_dtype, "revision": revision}
        return VllmEncoder(*vllm, source=str(model), layers=layers, **given)
    place = Place.of(device)
    dtype = choose_dtype(compute_dtype, place.main)
    if (files := find_elmo(model)) is not None:
        if place.n_ranks > 1:
            raise InvalidValueError(f"the model {str(model)!r} is ELMo, which is not divided: use device cpu or cuda")
        return ElmoEncoder(files, name=str(model), device=place.main, dtype=dtype)
    own = None if compute_dtype == "auto" else dtype
    return TransformerEncoder(load(model, device=device, dtype=own, revision=revision, layers=layers))


@checked
def vector_encoder(
    vectors: WordVectors | VectorTable | str | Path,
    *,
    missing: Missing = "random",
    seed: int = 0,
    device: str = "auto",
    compute_dtype: str = "auto",
) -> StaticEncoder:
    """Make an encoder of word vectors, to compare contextual vectors with.

    `vectors`: a file of any kind that `WordVectors` reads, or vectors in memory. `missing`: words without a vector get
    random ones from N(0, I), seeded by `seed` and the word ("random"), or no row ("drop"). A word is looked up as it is
    spelled, then in lower case; a phrase as one entry, its words joined by "_" or a space, else its words are pooled.
    `compute_dtype`: "auto" is float32.

    Raises WordVectorsError for a file that cannot be read, InvalidValueError for an argument that is not allowed.
    """
    if missing not in ("random", "drop"):
        raise InvalidValueError(f"missing {quoted(missing)} is not allowed: choose random or drop")
    check_whole("seed", seed, 0)
    name = "word vectors"
    if isinstance(vectors, VectorTable):
        table = vectors
    elif isinstance(vectors, WordVectors):
        table = RowTable(vectors)
    else:
        table = open_vector_table(require_name(vectors))
        options = ["missing=drop"] if missing == "drop" else [f"seed={seed}"] if seed else []
        name = f"vectors:{vectors}" + "".join(f"?{option}" for option in options)
    return _word_encoder(table, name, missing=missing, seed=seed, device=device, compute_dtype=compute_dtype)


@checked
def random_encoder(
    n_dimensions: int, *, seed: int = 0, device: str = "auto", compute_dtype: str = "auto"
) -> StaticEncoder:
    """Make an encoder with a random vector from N(0, I) for every word, seeded by `seed` and the word: a baseline.

    Raises InvalidValueError for a number of dimensions that is not allowed.
    """
    check_whole("dimensions", n_dimensions, 1, MAX_DIMENSIONS)
    check_whole("seed", seed, 0)
    name = f"random:{n_dimensions}" + (f"?seed={seed}" if seed else "")
    table = RandomVectors(n_dimensions, seed=seed)
    return _word_encoder(table, name, missing="random", seed=seed, device=device, compute_dtype=compute_dtype)


def _word_encoder(
    table: VectorTable, name: str, *, missing: Missing, seed: int, device: str, compute_dtype: str
) -> StaticEncoder:
    chosen, dtype = _device_and_dtype(device, compute_dtype)
    return StaticEncoder(WordTable(table, missing=missing, seed=seed, device=chosen, dtype=dtype), name=name)


def subword_encoder(
    model: str | Path, *, device: str = "auto", compute_dtype: str = "auto", revision: str | None = None
) -> StaticEncoder:
    """Make an encoder of the input embeddings of a model: its subwords without context and without a forward pass.

    Raises ModelError, in one line, if the model cannot be loaded.
    """
    chosen, dtype = _device_and_dtype(device, compute_dtype)
    loaded = load(model, device=chosen, dtype=dtype, revision=revision)
    return StaticEncoder(SubwordTable(loaded), name=f"subwords:{model}")


@checked
def bag_encoder(encoder: Encoder) -> StaticEncoder:
    """Make an encoder that gives every word the mean vector of its sentence, from an encoder without context.

    Raises InvalidValueError for any other encoder.
    """
    if not isinstance(encoder, StaticEncoder):
        raise InvalidValueError("a bag needs an encoder without context, such as that of vector_encoder")
    return StaticEncoder(encoder.table, name=BAG + encoder.source.removeprefix(BAG), bag=True)


def _device_and_dtype(device: str, compute_dtype: str) -> tuple[torch.device, torch.dtype]:
    chosen = choose_device(device)
    return chosen, torch.float32 if compute_dtype == "auto" else choose_dtype(compute_dtype, chosen)


@checked
def encoder_from_shorthand(
    model: str | Path,
    *,
    device: Device = "auto",
    compute_dtype: str = "auto",
    revision: str | None = None,
    layers: str | int | Iterable[int | str] = "all",
) -> Encoder:
    """Load the encoder that the command line or the metadata of a store names.

    Besides the names of `load_encoder` these are "vectors:FILE" (or just FILE), "random:DIMENSIONS", "subwords:MODEL",
    each optionally after "bag:". After a file, "?missing=drop" leaves out words without a vector; "?seed=N" seeds
    random vectors. Raises InvalidValueError for options that are not known, ModelError for a bag of a model with
    context and for a model that cannot be loaded.
    """
    parsed = parse_shorthand(model)
    options: dict[str, Any] = {"device": device, "compute_dtype": compute_dtype}
    if parsed is None:
        return load_encoder(model, revision=revision, layers=layers, **options)
    if revision is not None and parsed.kind != "subwords":
        raise InvalidValueError(f"revision {revision!r} belongs to models of the hub; {str(model)!r} is not one")
    if parsed.kind == "subwords":
        encoder = subword_encoder(parsed.target, revision=revision, **options)
    elif parsed.kind == "random":
        encoder = random_encoder(int(parsed.target), seed=parsed.seed, **options)
    else:
        try:
            encoder = vector_encoder(parsed.target, missing=parsed.missing, seed=parsed.seed, **options)
        except WordVectorsError as error:
            if not parsed.bare:
                raise
            raise ModelError(
                f"the model {parsed.target!r} is a file; give the folder of a model, or a file of word vectors: {error}"
            ) from error
    return bag_encoder(encoder) if parsed.bag else encoder


@checked
def model_kind(model: str | Path) -> Literal["static", "elmo", "vllm", "transformer"]:
    """Return what a name of `encoder_from_shorthand` means, without loading weights.

    Raises ModelError, in one line, for a transformer whose files are missing or damaged.
    """
    if parse_shorthand(model) is not None:
        return "static"
    if parse_vllm(model) is not None:
        return "vllm"
    if find_elmo(model) is not None:
        return "elmo"
    open_checkpoint(model, revision=None)
    return "transformer"
