"""Models that turn sentences into vectors of words; torch and transformers load with the first encoder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embstore.models.encoder import Encoder

__all__ = ["load_encoder"]


def load_encoder(
    model: str | Path,
    *,
    device: str = "auto",
    compute_dtype: str = "auto",
    revision: str | None = None,
    threads: int | None = None,
) -> Encoder:
    """Load the encoder of a model folder, of a model of the Hugging Face hub, or one without context.

    A folder with `*options.json` and `*weights.hdf5`, and no `config.json`, is ELMo as published. Without context
    are a file of word vectors ("FILE" or "vectors:FILE"), "random:DIMENSIONS" and "subwords:MODEL", a model's own
    table of subwords; "bag:" before any of these gives every word the mean over its sentence. After a file
    "?missing=drop" leaves words without a vector out, and "?seed=N" seeds those that are drawn.

    `device`: auto (CUDA where there is one), cpu, cuda, cuda:N or mps. `compute_dtype`: auto (float16 on CUDA,
    float32 elsewhere), float32, float16 or bfloat16. `revision`: of a hub model. `threads`: CPU threads of torch.
    Only safetensors weights are read and no code from the folder is run. Raises ModelError, in one line, for
    all that keeps the model from being used.
    """
    from embstore.models.elmo.encoder import load_elmo
    from embstore.models.elmo.weights import find_elmo
    from embstore.models.static.names import parse_static_name
    from embstore.models.transformer.encoder import load_transformer

    if (named := parse_static_name(model)) is not None:
        from embstore.models.static.loading import load_context_free  # loads polars, which takes Ctrl-C to itself

        return load_context_free(
            named, name=str(model), device=device, compute_dtype=compute_dtype, revision=revision, threads=threads
        )
    if (files := find_elmo(model)) is not None:
        return load_elmo(files, name=str(model), device=device, compute_dtype=compute_dtype, threads=threads)
    return load_transformer(model, device=device, compute_dtype=compute_dtype, revision=revision, threads=threads)
