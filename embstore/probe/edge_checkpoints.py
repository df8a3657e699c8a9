"""The state of a training, kept on disk after each epoch so that an interrupted one goes on where it ended."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from embstore.errors import InvalidValueError, StorageError


def require_place(path: Path) -> None:
    """Raise InvalidValueError now where a checkpoint could not be written later."""
    if path.is_dir():
        raise InvalidValueError(f"checkpoint {path} is a folder: give the name of a file")
    if not path.absolute().parent.is_dir():
        raise InvalidValueError(f"checkpoint {path}: the folder {path.parent} does not exist: make it first")


def write_checkpoint(path: Path, made_from: str, state: dict[str, Any]) -> None:
    """Write a state of tensors and numbers, whole or not at all; `made_from` tells one training from another."""
    partial = path.with_name(f".{path.name}.new")
    try:
        with partial.open("wb") as file:
            torch.save({"made_from": made_from, "state": state}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise StorageError(f"checkpoint {path} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def read_checkpoint(path: Path, made_from: str) -> dict[str, Any] | None:
    """The state kept there, None where there is none. Raises InvalidValueError where it is of another training."""
    if not path.exists():
        return None
    try:
        held = torch.load(path, weights_only=True, map_location="cpu")
        state: dict[str, Any] = held["state"]
        other = held["made_from"]
    except OSError as error:
        raise StorageError(f"checkpoint {path} cannot be read: {error.strerror or error}") from error
    except Exception:  # what torch raises for bytes that are none of its own is of any kind
        raise InvalidValueError(f"{path} is no checkpoint of edge probes: remove it, or give another name") from None
    if other != made_from:
        raise InvalidValueError(
            f"checkpoint {path} is of another training (other targets, store or options): remove it, or give another "
            "name"
        )
    return state
