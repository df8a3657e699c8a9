"""The state of a training, kept on disk after each epoch so that an interrupted one goes on where it ended."""

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
    """A file for the state of one training of `what`, such as edge probes; `made_from` tells it from any other.

    Raises InvalidValueError now where it could not be written later.
    """

    def __init__(self, path: Path, *, what: str, made_from: str) -> None:
        if path.is_dir():
            raise InvalidValueError(f"checkpoint {path} is a folder: give the name of a file")
        if not path.absolute().parent.is_dir():
            raise InvalidValueError(f"checkpoint {path}: the folder {path.parent} does not exist: make it first")
        self._path, self._what, self._made_from = path, what, made_from

    def write(self, state: dict[str, Any]) -> None:
        """Write a state of tensors and numbers, whole or not at all."""
        partial = self._path.with_name(f".{self._path.name}.new")
        try:
            with partial.open("wb") as file:
                torch.save({"made_from": self._made_from, "state": state}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, self._path)
        except OSError as error:
            raise StorageError(f"checkpoint {self._path} cannot be written: {error.strerror or error}") from error
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)

    def read(self) -> dict[str, Any] | None:
        """The state kept there, None where there is none. Raises InvalidValueError where it is of another training."""
        if not self._path.exists():
            return None
        try:
            held = torch.load(self._path, weights_only=True, map_location="cpu")
            state: dict[str, Any] = held["state"]
            other = held["made_from"]
        except OSError as error:
            raise StorageError(f"checkpoint {self._path} cannot be read: {error.strerror or error}") from error
        except Exception:  # what torch raises for bytes that are none of its own is of any kind
            raise InvalidValueError(
                f"{self._path} is no checkpoint of {self._what}: remove it, or give another name"
            ) from None
        if other != self._made_from:
            raise InvalidValueError(
                f"checkpoint {self._path} is of another training (other data, store or options): remove it, or give "
                "another name"
            )
        return state


def digest_of(*parts: object) -> str:
    """SHA-256 over arrays, by shape, kind and bytes, and over all else by how it is shown."""
    known = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            known.update(f"{part.shape} {part.dtype.str} ".encode() + np.ascontiguousarray(part).tobytes())
        else:
            known.update(f"{part!r} ".encode())
    return known.hexdigest()
