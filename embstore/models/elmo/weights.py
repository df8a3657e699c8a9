"""ELMo's published files: options and weights, read and compared with each other before they are used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import h5py
import jsonschema
import numpy as np
from numpy.typing import NDArray

from embstore.errors import ModelError
from embstore.models.checkpoint import reason
from embstore.models.names import require_name
from embstore.store.storage.files import read_json

Array = NDArray[np.float32]

CHARACTERS = 261  # the bytes 0-255, begin and end of sentence, begin and end of word, padding


@dataclass(frozen=True)
class ElmoOptions:
    """The network that `options.json` describes.

    `filters`: (width in characters, count) of each convolution. `cell_clip`, `projection_clip`: bounds of the
    cell state and of the projected output, None if unbounded.
    """

    filters: tuple[tuple[int, int], ...]
    character_dim: int
    highways: int
    max_characters: int
    activation: str
    num_layers: int
    cell_dim: int
    projection_dim: int
    cell_clip: float | None
    projection_clip: float | None
    skip_connections: bool


def find_elmo(model: str | Path) -> tuple[Path, Path] | None:
    """Return the options and the weights of a folder with a biLM; None for anything else.

    The folder has no `config.json`, one file that ends in `options.json` and one that ends in `weights.hdf5`.
    Raises ModelError if one of the two is missing, exists twice or is not a file.
    """
    folder = Path(require_name(model)).expanduser()
    try:
        if not folder.is_dir() or (folder / "config.json").exists():
            return None
        options, weights = sorted(folder.glob("*options.json")), sorted(folder.glob("*weights.hdf5"))
    except OSError:
        return None  # an unreadable folder is reported by the loader of transformers
    if not options and not weights:
        return None
    for files, name in ((options, "options.json"), (weights, "weights.hdf5")):
        if len(files) != 1 or not files[0].is_file():
            found = ", ".join(file.name for file in files) or "nothing"
            raise ModelError(f"the ELMo folder {str(folder)!r} has {found} as *{name}: give one published file")
    return options[0], weights[0]


def read_options(file: Path) -> ElmoOptions:
    """Read `options.json`; raises ModelError, naming the file and the key."""
    try:
        parsed = read_json(file)
    except (OSError, ValueError) as error:
        raise ModelError(f"the options {str(file)!r} cannot be read: {reason(error)}") from error
    schema = json.loads(resources.files("embstore.schemas").joinpath("elmo_options.schema.json").read_text("utf-8"))
    for fault in jsonschema.Draft202012Validator(schema).iter_errors(parsed):
        key = ".".join(map(str, fault.absolute_path)) or "the top"
        raise ModelError(f"the options {str(file)!r} are not those of ELMo at {key}: {fault.message[:200]}")
    lstm, cnn = parsed["lstm"], parsed["char_cnn"]
    return ElmoOptions(
        filters=tuple((width, count) for width, count in cnn["filters"]),
        character_dim=cnn["embedding"]["dim"],
        highways=cnn.get("n_highway") or 0,
        max_characters=cnn["max_characters_per_token"],
        activation=cnn["activation"],
        num_layers=lstm["n_layers"],
        cell_dim=lstm["dim"],
        projection_dim=lstm["projection_dim"],
        cell_clip=lstm.get("cell_clip"),
        projection_clip=lstm.get("proj_clip"),
        skip_connections=bool(lstm.get("use_skip_connections")),
    )


@contextmanager
def opened_weights(file: Path) -> Iterator[ElmoArrays]:
    """Open `weights.hdf5`; raises ModelError, naming file and array."""
    try:
        with h5py.File(file, "r") as opened:
            yield ElmoArrays(file, opened)
    except OSError as error:
        raise ModelError(f"the weights {str(file)!r} cannot be read, or are damaged: {reason(error)}") from error


@dataclass(frozen=True)
class ElmoArrays:
    """The arrays of an open HDF5 file, checked for shape and values."""

    file: Path
    opened: Any

    def take(self, name: str, *shape: int) -> Array:
        """Return an array of that shape as float32."""
        stored = self.opened.get(name)
        if not isinstance(stored, h5py.Dataset):
            raise ModelError(f"the weights {str(self.file)!r} do not contain {name}; use the published file")
        if stored.shape != shape or stored.dtype.kind != "f":
            raise ModelError(
                f"the weights {str(self.file)!r} contain {name} as {stored.dtype} {stored.shape}; the options "
                f"require floats of shape {shape}"
            )
        array = np.asarray(stored[()], np.float32)
        if not np.isfinite(array).all():
            raise ModelError(f"the weights {str(self.file)!r} contain NaN or infinity in {name}; download them again")
        return array
