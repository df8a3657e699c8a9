"""Figures of results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, MissingPackageError, StorageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from embstore.query.senses import LabelledOccurrences

SUFFIXES = (".png", ".svg", ".pdf")
# Okabe and Ito's palette: told apart by every kind of colour vision, and in print.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*")


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise MissingPackageError('figures need matplotlib: pip install "embstore[plots]"') from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure to a .png, .svg or .pdf file."""
    if Path(path).suffix not in SUFFIXES:
        raise InvalidValueError(f"figure {path} has no known suffix: choose {', '.join(SUFFIXES)}")
    try:
        figure.savefig(path, dpi=160, bbox_inches="tight")
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error
    _pyplot().close(figure)


def sense_map(words: Sequence[LabelledOccurrences], *, layers: Sequence[int]) -> Figure:
    """Draw the occurrences of ambiguous words in two dimensions, a row a word, a column a layer.

    Each panel shows the first two principal components of the word's centred vectors; a colour and shape a label.
    """
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(
        len(words), len(layers), figsize=(2.6 * len(layers) + 1.6, 2.4 * len(words)), squeeze=False
    )
    for word, row in zip(words, axes, strict=True):
        labels = sorted(set(word.labels))
        for layer, axis in zip(layers, row, strict=True):
            points = principal_plane(word.vectors[word.layers.index(layer)])
            for number, label in enumerate(labels):
                mask = np.array(word.labels) == label
                style = {"color": PALETTE[number % len(PALETTE)], "marker": MARKERS[number % len(MARKERS)]}
                axis.scatter(*points[mask].T, s=26, alpha=0.85, linewidths=0, label=label, **style)
            axis.set(xticks=[], yticks=[])
            axis.margins(0.12)
            for side in axis.spines.values():
                side.set_color("#bbbbbb")
        row[0].set_ylabel(word.word, fontsize=13, fontweight="bold")
        row[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, fontsize=10, handletextpad=0.2)
    for layer, axis in zip(layers, axes[0], strict=True):
        axis.set_title("layer 0 (no context)" if layer == 0 else f"layer {layer}", fontsize=11)
    figure.suptitle("The same word, pulled apart by its sentences", fontsize=13, y=1.0)
    figure.tight_layout()
    return figure  # type: ignore[no-any-return]


def principal_plane(vectors: NDArray[Any]) -> NDArray[np.float64]:
    """Project vectors [n, d] onto their first two principal components; the sign makes the largest entry positive."""
    centred = np.asarray(vectors, np.float64) - np.mean(vectors, axis=0, dtype=np.float64)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    plane = left[:, :2] * values[:2]
    if plane.shape[1] < 2:
        plane = np.pad(plane, ((0, 0), (0, 2 - plane.shape[1])))
    signs = np.sign(plane[np.abs(plane).argmax(0), np.arange(2)])
    return np.asarray(plane * np.where(signs == 0, 1, signs))
