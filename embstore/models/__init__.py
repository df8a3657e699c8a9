"""Models that turn sentences into vectors of words; torch and transformers load with the first encoder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embstore.models.transformer import TransformerEncoder

__all__ = ["load_encoder"]


def load_encoder(
    model: str | Path,
    *,
    device: str = "auto",
    compute_dtype: str = "auto",
    revision: str | None = None,
    threads: int | None = None,
) -> TransformerEncoder:
    """Load the encoder of a model folder or of a model of the Hugging Face hub.

    `device`: auto (CUDA where there is one), cpu, cuda, cuda:N or mps. `compute_dtype`: auto (float16 on CUDA,
    float32 elsewhere), float32, float16 or bfloat16. `revision`: of a hub model. `threads`: CPU threads of torch.
    Only safetensors weights are read and no code from the folder is run. Raises ModelError, in one line, for
    all that keeps the model from being used.
    """
    from embstore.models.transformer import load_transformer

    return load_transformer(model, device=device, compute_dtype=compute_dtype, revision=revision, threads=threads)
