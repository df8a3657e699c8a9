"""ELMo's published files: options and weights, read and compared with each other before they are used."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
from numpy.typing import NDArray

from embstore.errors import ModelError
from embstore.models.checkpoint import reason
from embstore.models.names import require_name
from embstore.store.storage.files import read_json

Array = NDArray[np.float32]
Activation = Literal["relu", "tanh"]

CHARACTERS = 261  # the bytes 0-255, begin and end of sentence, begin and end of word, padding
LONGEST_WORD = 1 << 16  # characters
DIRECTIONS = ("RNN_0", "RNN_1")  # forward, backward


@dataclass(frozen=True)
class ElmoFiles:
    """The two files of a published biLM."""

    options: Path
    weights: Path


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
    activation: Activation
    num_layers: int
    cell_dim: int
    projection_dim: int
    cell_clip: float | None
    projection_clip: float | None
    skip_connections: bool

    @property
    def num_filters(self) -> int:
        return sum(count for _, count in self.filters)


@dataclass(frozen=True)
class LstmWeights:
    """One direction of one layer, as published.

    `kernel` [2 * projection_dim, 4 * cell_dim]: from the input and then from the last output, to the gates input,
    value, forget, output. `bias` [4 * cell_dim]: of the gates, without the 1 that is added to the forget gate's.
    `projection` [cell_dim, projection_dim].
    """

    kernel: Array
    bias: Array
    projection: Array


@dataclass(frozen=True)
class ElmoWeights:
    """The arrays of `weights.hdf5`.

    `characters` [261, character_dim]. `convolutions`: kernel [width, character_dim, filters] and bias of each.
    `highways`: carry kernel and bias, transform kernel and bias of each. `projection`: kernel and bias, None
    if there are as many filters as the projection is wide. `lstms` [direction][layer].
    """

    characters: Array
    convolutions: tuple[tuple[Array, Array], ...]
    highways: tuple[tuple[Array, Array, Array, Array], ...]
    projection: tuple[Array, Array] | None
    lstms: tuple[tuple[LstmWeights, ...], tuple[LstmWeights, ...]]


def find_elmo(model: str | Path) -> ElmoFiles | None:
    """Return the two files of a folder with a biLM; None for anything else.

    The folder has no `config.json`, one file that ends in `options.json` and one that ends in `weights.hdf5`.
    Raises ModelError if one of the two is missing or exists twice.
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
    for found, name in ((options, "options.json"), (weights, "weights.hdf5")):
        if not found:
            raise ModelError(f"the ELMo folder {str(folder)!r} has no file *{name}; add the published one")
        if len(found) > 1:
            names = ", ".join(file.name for file in found)
            raise ModelError(f"the ELMo folder {str(folder)!r} has several *{name}: {names}; remove all but one")
        if not found[0].is_file():
            raise ModelError(f"{str(found[0])!r} is not a file; add the published one")
    return ElmoFiles(options[0], weights[0])


def read_options(file: Path) -> ElmoOptions:
    """Read `options.json`; raises ModelError, naming the file and the key."""
    try:
        parsed = read_json(file)
    except OSError as error:
        raise ModelError(f"the options {str(file)!r} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"the options {str(file)!r} are not JSON: {reason(error)}") from error
    lstm, cnn = _Keys(file, parsed, "").section("lstm"), _Keys(file, parsed, "").section("char_cnn")
    cnn.number("n_characters", CHARACTERS, CHARACTERS + 1)
    activation = cnn.value("activation")
    if activation not in ("relu", "tanh"):
        raise cnn.error("activation", activation, "relu or tanh")
    options = ElmoOptions(
        filters=_filters(cnn),
        character_dim=cnn.section("embedding").number("dim", 1),
        highways=cnn.number("n_highway", 0) if cnn.value("n_highway", None) is not None else 0,
        max_characters=cnn.number("max_characters_per_token", 3, LONGEST_WORD),
        activation=activation,
        num_layers=lstm.number("n_layers", 1),
        cell_dim=lstm.number("dim", 1),
        projection_dim=lstm.number("projection_dim", 1),
        cell_clip=_clip(lstm, "cell_clip"),
        projection_clip=_clip(lstm, "proj_clip"),
        skip_connections=_flag(lstm, "use_skip_connections"),
    )
    widest = max(width for width, _ in options.filters)
    if widest > options.max_characters:
        raise cnn.error("filters", widest, f"a width of at most the {options.max_characters} characters of a word")
    return options


_REQUIRED = object()


@dataclass(frozen=True)
class _Keys:
    """A section of the options; its errors name the file and the key."""

    file: Path
    values: Any
    prefix: str

    def value(self, key: str, default: Any = _REQUIRED) -> Any:
        if not isinstance(self.values, Mapping):
            raise ModelError(f"the options {str(self.file)!r} have no object at {self.prefix.rstrip('.') or 'the top'}")
        if key not in self.values and default is _REQUIRED:
            raise ModelError(
                f"the options {str(self.file)!r} do not contain {self.prefix}{key}; use the published file"
            )
        return self.values.get(key, default)

    def section(self, key: str) -> _Keys:
        return _Keys(self.file, self.value(key), f"{self.prefix}{key}.")

    def number(self, key: str, least: int, most: int | None = None) -> int:
        value = self.value(key)
        if type(value) is not int or value < least or (most is not None and value > most):
            raise self.error(key, value, f"{least} or more" if most is None else f"{least} to {most}")
        return value

    def error(self, key: str, value: object, allowed: str) -> ModelError:
        return ModelError(f"the options {str(self.file)!r} have {self.prefix}{key} {value!r}; allowed is {allowed}")


def _filters(cnn: _Keys) -> tuple[tuple[int, int], ...]:
    value = cnn.value("filters")
    try:
        pairs = tuple((width, count) for width, count in value)
    except (TypeError, ValueError):
        pairs = ()
    if not pairs or not all(type(number) is int and number > 0 for pair in pairs for number in pair):
        raise cnn.error("filters", value, "a list of [width, count], both 1 or more")
    return pairs


def _clip(lstm: _Keys, key: str) -> float | None:
    value = lstm.value(key, None)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise lstm.error(key, value, "a number above 0, or null")
    return float(value)


def _flag(lstm: _Keys, key: str) -> bool:
    value = lstm.value(key, False)
    if value not in (True, False, None):
        raise lstm.error(key, value, "true or false")
    return bool(value)


def read_weights(file: Path, options: ElmoOptions, *, largest: float) -> ElmoWeights:
    """Read `weights.hdf5` as the options describe it; raises ModelError, naming the file and the array.

    `largest`: the largest value that the compute dtype can hold.
    """
    try:
        with h5py.File(file, "r") as opened:
            return _weights(_Arrays(file, opened, largest), options)
    except OSError as error:
        if error.errno:
            raise ModelError(f"the weights {str(file)!r} cannot be read: {os.strerror(error.errno)}") from error
        raise ModelError(f"the weights {str(file)!r} are damaged: {reason(error)}; download them again") from error


@dataclass(frozen=True)
class _Arrays:
    """The arrays of an open HDF5 file, checked for shape and values."""

    file: Path
    opened: Any
    largest: float

    def take(self, name: str, *shape: int) -> Array:
        found = self.opened.get(name)
        if not isinstance(found, h5py.Dataset):
            raise ModelError(f"the weights {str(self.file)!r} do not contain {name}; use the published file")
        if found.shape != shape or found.dtype.kind != "f":
            raise ModelError(
                f"the weights {str(self.file)!r} contain {name} as {found.dtype} {found.shape}; the options "
                f"require floats of shape {shape}"
            )
        array = np.asarray(found[()], np.float32)
        if not np.isfinite(array).all():
            raise ModelError(f"the weights {str(self.file)!r} contain NaN or infinity in {name}; download them again")
        if np.abs(array).max(initial=0) > self.largest:
            raise ModelError(
                f"the weights {str(self.file)!r} contain values beyond {self.largest:g} in {name}; "
                "choose a wider compute dtype"
            )
        return array


def _weights(arrays: _Arrays, options: ElmoOptions) -> ElmoWeights:
    filters, width = options.num_filters, options.projection_dim
    convolutions = tuple(
        (
            arrays.take(f"CNN/W_cnn_{number}", 1, reach, options.character_dim, count)[0],
            arrays.take(f"CNN/b_cnn_{number}", count),
        )
        for number, (reach, count) in enumerate(options.filters)
    )
    highways = tuple(
        (
            arrays.take(f"CNN_high_{number}/W_carry", filters, filters),
            arrays.take(f"CNN_high_{number}/b_carry", filters),
            arrays.take(f"CNN_high_{number}/W_transform", filters, filters),
            arrays.take(f"CNN_high_{number}/b_transform", filters),
        )
        for number in range(options.highways)
    )
    projection = None
    if filters != width or "CNN_proj" in arrays.opened:
        projection = arrays.take("CNN_proj/W_proj", filters, width), arrays.take("CNN_proj/b_proj", width)
    forward, backward = (
        tuple(_lstm(arrays, options, direction, layer) for layer in range(options.num_layers))
        for direction in DIRECTIONS
    )
    return ElmoWeights(
        characters=arrays.take("char_embed", CHARACTERS, options.character_dim),
        convolutions=convolutions,
        highways=highways,
        projection=projection,
        lstms=(forward, backward),
    )


def _lstm(arrays: _Arrays, options: ElmoOptions, direction: str, layer: int) -> LstmWeights:
    cell = f"{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
    return LstmWeights(
        kernel=arrays.take(f"{cell}/W_0", 2 * options.projection_dim, 4 * options.cell_dim),
        bias=arrays.take(f"{cell}/B", 4 * options.cell_dim),
        projection=arrays.take(f"{cell}/W_P_0", options.cell_dim, options.projection_dim),
    )
