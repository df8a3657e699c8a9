"""Load the encoder of a model folder or of a model of the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from embstore.devices import choose_device, choose_dtype
from embstore.models.checkpoint import load
from embstore.models.elmo.encoder import ElmoEncoder
from embstore.models.elmo.weights import find_elmo
from embstore.models.encoder import Encoder
from embstore.models.transformer.encoder import TransformerEncoder


def load_encoder(
    model: str | Path, *, device: str = "auto", compute_dtype: str = "auto", revision: str | None = None
) -> Encoder:
    """Load the encoder that extraction runs: a transformer, or ELMo.

    `model`: a folder, or a name of the Hugging Face hub (downloaded once). A folder with `*options.json` and
    `*weights.hdf5`, and no `config.json`, is ELMo as published. `device`: "auto" (a CUDA GPU if there is one), "cpu",
    "cuda", "cuda:N", "mps" or "xpu". `compute_dtype`: "auto" (float16 on CUDA, float32 elsewhere), "float32", "float16"
    or "bfloat16". `revision`: of a hub model. For vectors without context see `vector_encoder`, `random_encoder`,
    `subword_encoder` and `bag_encoder` of `embstore.models`.

    Only safetensors weights are read and no code from the folder is run. Raises ModelError, in one line, for whatever
    prevents the model from being used, InvalidValueError for an unknown device or dtype.
    """
    chosen = choose_device(device)
    dtype = choose_dtype(compute_dtype, chosen)
    if (files := find_elmo(model)) is not None:
        return ElmoEncoder(files, name=str(model), device=chosen, dtype=dtype)
    return TransformerEncoder(load(model, device=chosen, dtype=dtype, revision=revision), device=chosen, dtype=dtype)
