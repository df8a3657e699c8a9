"""A tiny biLM with random weights, written as the published ones are, and what it must say of a sentence."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LSTM = {"cell_clip": 0.4, "proj_clip": 0.3, "use_skip_connections": True, "n_layers": 2, "projection_dim": 6, "dim": 10}
CNN = {
    "embedding": {"dim": 3}, "filters": [[1, 4], [2, 5], [4, 6]], "n_highway": 2, "n_characters": 262,
    "max_characters_per_token": 50, "activation": "relu",
}  # fmt: skip


def save_elmo(
    folder: Path, *, seed: int = 0, lstm: dict[str, Any] | None = None, cnn: dict[str, Any] | None = None
) -> Path:
    """Write `options.json` and `lm_weights.hdf5`; `lstm` and `cnn` change options."""
    folder.mkdir(parents=True, exist_ok=True)
    options = {"lstm": LSTM | (lstm or {}), "char_cnn": CNN | (cnn or {})}
    (folder / "options.json").write_text(json.dumps(options), "utf-8")
    random = np.random.default_rng(seed)
    with h5py.File(folder / "lm_weights.hdf5", "w") as file:
        for name, shape in shapes(options).items():
            file[name] = random.uniform(-0.8, 0.8, shape).astype(np.float32)
    return folder


def shapes(options: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The published arrays and their shapes."""
    lstm, cnn = options["lstm"], options["char_cnn"]
    width, cell, letters = lstm["projection_dim"], lstm["dim"], cnn["embedding"]["dim"]
    filters = sum(count for _, count in cnn["filters"])
    found: dict[str, tuple[int, ...]] = {"char_embed": (261, letters)}
    for place, (reach, count) in enumerate(cnn["filters"]):
        found |= {f"CNN/W_cnn_{place}": (1, reach, letters, count), f"CNN/b_cnn_{place}": (count,)}
    for place in range(cnn["n_highway"] or 0):
        for name in ("carry", "transform"):
            found |= {f"CNN_high_{place}/W_{name}": (filters, filters), f"CNN_high_{place}/b_{name}": (filters,)}
    if filters != width:
        found |= {"CNN_proj/W_proj": (filters, width), "CNN_proj/b_proj": (width,)}
    for direction in range(2):
        for layer in range(lstm["n_layers"]):
            at = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            found |= {f"{at}/W_0": (2 * width, 4 * cell), f"{at}/B": (4 * cell,), f"{at}/W_P_0": (cell, width)}
    return found


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


@dataclass
class PlainBiLm:
    """The biLM as its paper has it: float64, one character, one word, one direction at a time.

    `states`: where the sentences of each row of a batch ended, (output, cell) by (row, direction, layer).
    """

    lstm: dict[str, Any]
    cnn: dict[str, Any]
    arrays: dict[str, Array]
    states: dict[tuple[int, int, int], tuple[Array, Array]] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path) -> PlainBiLm:
        options = json.loads((folder / "options.json").read_text("utf-8"))
        arrays = {}
        with h5py.File(folder / "lm_weights.hdf5") as file:
            for name in shapes(options):
                arrays[name] = file[name][()].astype(np.float64)
        return cls(options["lstm"], options["char_cnn"], arrays)

    def spelt(self, word: str) -> list[int]:
        """The published ids of a word's characters."""
        width = self.cnn["max_characters_per_token"]
        letters = {"<S>": [256], "</S>": [257]}.get(word) or list(word.encode("utf-8"))[: width - 2]
        ids = [258, *letters, 259]
        return ids + [260] * (width - len(ids))

    def word(self, word: str) -> Array:
        characters = self.arrays["char_embed"][self.spelt(word)]
        found = []
        for place, (reach, count) in enumerate(self.cnn["filters"]):
            kernel, bias = self.arrays[f"CNN/W_cnn_{place}"][0], self.arrays[f"CNN/b_cnn_{place}"]
            best = np.full(count, -np.inf)
            for start in range(len(characters) - reach + 1):
                heard = bias.copy()
                for offset in range(reach):
                    heard += characters[start + offset] @ kernel[offset]
                best = np.maximum(best, heard)
            found.append(np.maximum(best, 0) if self.cnn["activation"] == "relu" else np.tanh(best))
        hidden = np.concatenate(found)
        for place in range(self.cnn["n_highway"] or 0):
            layer = {name: self.arrays[f"CNN_high_{place}/{name}"] for name in ("W_carry", "b_carry")}
            carry = sigmoid(hidden @ layer["W_carry"] + layer["b_carry"])
            kernel, bias = (self.arrays[f"CNN_high_{place}/{name}_transform"] for name in "Wb")
            hidden = carry * np.maximum(hidden @ kernel + bias, 0) + (1 - carry) * hidden
        if "CNN_proj/W_proj" in self.arrays:
            hidden = hidden @ self.arrays["CNN_proj/W_proj"] + self.arrays["CNN_proj/b_proj"]
        return hidden

    def layers(self, words: list[str], *, row: int | None = None) -> Array:
        """Every layer of a sentence, [layer, words, 2 * projection_dim]; `row`: whose states to begin with and keep."""
        embedded = np.stack([self.word(word) for word in ["<S>", *words, "</S>"]])
        found = [np.concatenate([embedded, embedded], -1)]
        sides = [embedded, embedded[::-1]]
        for layer in range(self.lstm["n_layers"]):
            outputs = [self._lstm(sides[direction], direction, layer, row) for direction in range(2)]
            if self.lstm["use_skip_connections"] and layer > 0:
                outputs = [output + side for output, side in zip(outputs, sides, strict=True)]
            sides = outputs
            found.append(np.concatenate([sides[0], sides[1][::-1]], -1))
        return np.stack(found)[:, 1:-1]

    def _lstm(self, words: Array, direction: int, layer: int, row: int | None) -> Array:
        at = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
        kernel, bias, projection = (self.arrays[f"{at}/{name}"] for name in ("W_0", "B", "W_P_0"))
        start = np.zeros(self.lstm["projection_dim"]), np.zeros(self.lstm["dim"])
        output, cell = start if row is None else self.states.get((row, direction, layer), start)
        outputs = []
        for word in words:
            admit, value, forget, emit = np.split(np.concatenate([word, output]) @ kernel + bias, 4)
            cell = sigmoid(forget + 1) * cell + sigmoid(admit) * np.tanh(value)
            cell = self._clipped(cell, "cell_clip")
            output = self._clipped((sigmoid(emit) * np.tanh(cell)) @ projection, "proj_clip")
            outputs.append(output)
        if row is not None:
            self.states[row, direction, layer] = output, cell
        return np.stack(outputs)

    def _clipped(self, values: Array, option: str) -> Array:
        bound = self.lstm[option]
        return values if bound is None else np.clip(values, -bound, bound)
