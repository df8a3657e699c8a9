"""Models in a GGUF file, as llama.cpp has them, saved as transformers and embstore load them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from embstore.arguments import checked
from embstore.errors import ModelError, StorageError
from embstore.models.checkpoint import quiet, reason
from embstore.store.storage.files import replacing


@checked
def convert_gguf(file: str | Path, folder: str | Path) -> Path:
    """Save the model of a GGUF file as safetensors in float32, with its tokenizer; returns the folder.

    Quantized weights are dequantized. `folder`: a new folder, written atomically. Needs
    the package gguf. Raises ModelError, in one line, for a file that transformers cannot read, StorageError if the
    folder exists.
    """
    out, source = Path(folder), Path(file)
    if out.exists():
        raise StorageError(f"{out} exists already: give a new folder")
    given: dict[str, Any] = {"gguf_file": source.name}
    auto: Any = transformers.AutoModelForCausalLM
    with quiet():
        try:
            quantized = auto.from_pretrained(source.parent, dtype=torch.float32, **given)
            tokenizer = transformers.AutoTokenizer.from_pretrained(source.parent, **given)
        except Exception as error:
            raise ModelError(f"the model {str(source)!r} cannot be read as GGUF: {reason(error)}") from error
        del quantized.config.quantization_config
        model = auto.from_config(quantized.config)
        model.load_state_dict(quantized.state_dict())
        with replacing(out) as new:
            model.save_pretrained(new)
            tokenizer.save_pretrained(new)
    return out
