"""A model before its training: the same architecture and tokenizer with random weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
import transformers

from embstore.errors import ModelError, StorageError
from embstore.models.checkpoint import open_checkpoint, quiet


def save_untrained(model: str | Path, folder: str | Path, *, seed: int = 0) -> Path:
    """Save the architecture and the tokenizer of a model with random weights, as its own training began.

    The control of a probe: whatever it predicts from these vectors it has learned itself, not from the model. `folder`:
    a new folder, written atomically. `seed`: of the weights, which are then the same on every machine with one version
    of torch. Raises ModelError, in one line, for a model that cannot be initialized, StorageError if the folder exists.
    """
    out = Path(folder)
    if out.exists():
        raise StorageError(f"{out} exists already: give a new folder")
    checkpoint = open_checkpoint(model, revision=None)
    auto: Any = transformers.AutoModel
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            network = auto.from_config(checkpoint.config)
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise ModelError(f"the model {str(model)!r} cannot be initialized: {reason}") from error
        new = out.with_name(f".{out.name}.new")
        shutil.rmtree(new, ignore_errors=True)
        try:
            network.save_pretrained(new, safe_serialization=True)
            checkpoint.tokenizer.save_pretrained(new)
            new.rename(out)
        except OSError as error:
            raise StorageError(f"{out} cannot be written: {error.strerror or error}") from error
    return out
