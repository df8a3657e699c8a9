"""Checkpoints: the state of a training, written after each epoch, so that an interrupted training resumes."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embstore.errors import InvalidValueError, StorageError


class Checkpoint:
    """A file with the state of one training of `what`, such as edge probes; `digest` identifies the training.

    Raises InvalidValueError at once for a path that could not be written later.
    """

    def __init__(self, path: Path, *, what: str, digest: str) -> None:
        if path.is_dir():
            raise InvalidValueError(f"checkpoint {path} is a folder: give the name of a file")
        if not path.absolute().parent.is_dir():
            raise InvalidValueError(f"checkpoint {path}: the folder {path.parent} does not exist: create it first")
        self._path, self._what, self._digest = path, what, digest

    def write(self, state: dict[str, Any]) -> None:
        """Write a state of tensors and numbers, atomically. Raises StorageError."""
        partial = self._path.with_name(f".{self._path.name}.new")
        try:
            with partial.open("wb") as file:
                torch.save({"digest": self._digest, "state": state}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, self._path)
        except OSError as error:
            raise StorageError(f"checkpoint {self._path} cannot be written: {error.strerror or error}") from error
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)

    def read(self) -> dict[str, Any] | None:
        """Return the saved state, None if there is no file.

        Raises InvalidValueError for a checkpoint of another training or a file that is not a checkpoint, StorageError.
        """
        if not self._path.exists():
            return None
        try:
            saved = torch.load(self._path, weights_only=True, map_location="cpu")
            state: dict[str, Any] = saved["state"]
            digest = saved["digest"]
        except OSError as error:
            raise StorageError(f"checkpoint {self._path} cannot be read: {error.strerror or error}") from error
        except Exception:  # torch raises errors of many types for bytes that it did not write
            raise InvalidValueError(
                f"{self._path} is not a checkpoint of {self._what}: remove it, or give another name"
            ) from None
        if digest != self._digest:
            raise InvalidValueError(
                f"checkpoint {self._path} is of another training (other data, store or options): remove it, or give "
                "another name"
            )
        return state


def digest_of(*parts: object) -> str:
    """Return the SHA-256 over arrays (shape, dtype and bytes) and over the repr of everything else."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.shape} {part.dtype.str} ".encode() + np.ascontiguousarray(part).tobytes())
        else:
            digest.update(f"{part!r} ".encode())
    return digest.hexdigest()
