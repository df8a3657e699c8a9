"""A model as it was before its training: the same architecture and tokenizer, weights drawn at random."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
import transformers

from embstore.errors import ModelError, StorageError
from embstore.models.loading import open_checkpoint, quiet


def save_untrained(model: str | Path, folder: str | Path, *, seed: int = 0) -> Path:
    """Save the architecture and the tokenizer of a model with weights drawn as its own training began with.

    The control of a probe: what can be read from these vectors the probe has learnt, not the model. `folder`: one
    that is not there yet; it comes whole or not at all. `seed`: of the weights, by which they are the same on every
    machine of one version of torch. Raises ModelError, in one line, where the model is none that can be drawn,
    StorageError where the folder is there.
    """
    out = Path(folder)
    if out.exists():
        raise StorageError(f"{out} is there already: give a folder that is not there yet")
    found = open_checkpoint(model, revision=None)
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = _drawn(found.config, model)
        new = out.with_name(f".{out.name}.new")
        shutil.rmtree(new, ignore_errors=True)
        try:
            network.save_pretrained(new, safe_serialization=True)
            found.tokenizer.save_pretrained(new)
            new.rename(out)
        except OSError as error:
            raise StorageError(f"{out} cannot be written: {error.strerror or error}") from error
    return out


def _drawn(config: Any, model: str | Path) -> Any:
    try:
        kind: Any = transformers.AutoModel
        return kind.from_config(config)
    except Exception as error:
        raise ModelError(f"no weights can be drawn for {str(model)!r}: {' '.join(str(error).split())[:200]}") from error
