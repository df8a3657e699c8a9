"""Figures of points and of grids: occurrences in the plane, CKA of layers, attention of two models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, check_columns, quoted
from embstore.plot.drawing import (
    COLUMN,
    LABEL,
    PAGE,
    PALETTE,
    SMALL,
    TITLE,
    add_colorbar,
    check_drawable,
    draw_grid,
    fitted,
    grid,
    layer_name,
    literal,
    look,
    panels,
    style,
    subplots,
)
from embstore.store.layout import resolve_layers

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

    from embstore.analysis.neighbors.labels import LabelledOccurrences
    from embstore.analysis.neighbors.senses import Clusters

NO_LABEL = "no label"  # drawn in grey
GREY, FRAME = "#999999", "#bbbbbb"
MAX_WRITTEN_CELLS = 13  # layers up to which the cells of a map of layers have their values written in them


def sense_map(
    words: Sequence[LabelledOccurrences], *, layers: Sequence[int], title: str = "The same word in different sentences"
) -> Figure:
    """Draw the occurrences of ambiguous words in two dimensions: a row for each word, a column for each layer.

    Each panel shows the first two principal components of the word's vectors in that layer; colors and shapes are
    labels.
    """
    what = "a list of what labelled_occurrences returns"
    if not isinstance(words, Sequence) or not words:
        raise InvalidValueError(f"{quoted(words)} cannot be drawn: give {what}")
    for word in words:
        check_drawable(word, ("word", "vectors", "labels", "layers"), what)
        layers = resolve_layers(layers, word.layers)
    width = PAGE if len(layers) > 1 else COLUMN
    side = min(2.2, (width - 1.2) / len(layers))
    figure, axes = subplots(len(words), len(layers), figsize=(width, side * len(words) + 0.6))
    size = 14 if side > 1 else 5
    for word, row in zip(words, axes, strict=True):
        labels = sorted(set(word.labels))
        for layer, axis in zip(layers, row, strict=True):
            points = principal_plane(word.vectors[word.layers.index(layer)])
            for number, label in enumerate(labels):
                mask = np.array(word.labels) == label
                axis.scatter(*points[mask].T, s=size, alpha=0.85, linewidths=0, label=literal(label), **look(number))
            axis.set(xticks=[], yticks=[])
            axis.margins(0.12)
            axis.spines[:].set_color(FRAME)
        row[0].set_ylabel(literal(word.word), fontsize=TITLE + 1, fontweight="bold")
        if len(labels) > 1:
            place = {"loc": "center left", "bbox_to_anchor": (1.02, 0.5)}
            row[-1].legend(frameon=False, fontsize=SMALL, handletextpad=0.2, borderaxespad=0, **place)
    for layer, axis in zip(layers, axes[0], strict=True):
        name = layer_name(layer).replace(" (", " (" if side > 1.2 else "\n(")
        axis.set_title(name if side > 0.6 else layer, fontsize=TITLE)
    figure.suptitle(literal(title), fontsize=TITLE + 1)
    numbers = "" if side > 0.6 else "; a column for each layer, by its number"
    figure.supxlabel(f"first two principal components of each panel{numbers}", fontsize=LABEL)
    return figure  # type: ignore[no-any-return]


def principal_plane(vectors: NDArray[Any]) -> NDArray[np.float64]:
    """Project vectors [n, dimensions] onto their first two principal components, float64 [n, 2].

    The sign of each component makes the entry of largest magnitude positive.
    """
    centered = vectors.astype(np.float64) - np.mean(vectors, axis=0, dtype=np.float64)
    left, values, _ = np.linalg.svd(centered, full_matrices=False)
    plane = left[:, :2] * values[:2]
    if plane.shape[1] < 2:
        plane = np.pad(plane, ((0, 0), (0, 2 - plane.shape[1])))
    signs = np.sign(plane[np.abs(plane).argmax(0), np.arange(2)])
    return np.asarray(plane * np.where(signs == 0, 1, signs))


def cluster_map(clusters: Clusters) -> Figure:
    """Draw a word's occurrences by their principal components, colored by cluster and next to it by label."""
    check_drawable(clusters, ("vectors", "occurrences"), "what senses returns")
    points = principal_plane(clusters.vectors)
    numbers, labels = (clusters.occurrences[name].to_list() for name in ("cluster", "label"))
    drawn = [("by cluster" if len(set(numbers)) > 1 else "one cluster", [f"cluster {each}" for each in numbers])]
    if any(label is not None for label in labels):
        drawn.append(("by label", [NO_LABEL if label is None else str(label) for label in labels]))
    figure, axes = panels(len(drawn), height=3.2, margin=0.3)
    for (title, names), axis in zip(drawn, axes, strict=True):
        _scatter(axis, points, names)
        style(axis, title=title, x="first principal component", y="second principal component")
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set(visible=True, color=FRAME)
    titles = [f"Occurrences of {clusters.word}, {layer_name(clusters.layer)}", *_evidence(clusters)]
    lines = [line for text in titles for line in wrap(literal(text), 54 if len(drawn) == 1 else 110)]
    figure.suptitle("\n".join(lines), fontsize=TITLE)
    return figure  # type: ignore[no-any-return]


def _evidence(clusters: Clusters) -> list[str]:
    """Return what says how far the clusters are senses: the silhouette, and the purity next to that of no clusters."""
    said = [] if clusters.silhouette is None else [f"silhouette {clusters.silhouette:.2f} (p {clusters.p:.2f})"]
    purity, baseline = clusters.purity, clusters.baseline
    if purity is not None and baseline is not None and len(clusters.frame) > 1:
        worse = "" if purity > baseline else ": no better than one cluster"
        said.append(f"purity {purity:.2f}, of one cluster {baseline:.2f}{worse}")
    return [", ".join(said), *clusters.caveats]


def _scatter(axis: Any, points: NDArray[np.float64], names: Sequence[str]) -> None:
    """Draw points in color and shape by name, the most frequent first; names beyond the palette share one."""
    counts = Counter(name for name in names if name != NO_LABEL)
    shown = [name for name, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    if len(shown) > len(PALETTE):
        shown = shown[: len(PALETTE) - 1]
    rest = [name for name in dict.fromkeys(names) if name not in shown]
    groups = {name: [name] for name in shown}
    if others := [name for name in rest if name in counts]:
        groups[f"{len(others)} others"] = others
    groups |= {name: [name] for name in rest if name not in counts}
    for number, (title, members) in enumerate(groups.items()):
        mask = np.isin(names, members)
        point = look(number) if number < len(shown) else {"color": GREY, "marker": "."}
        label = f"{literal(title)} ({int(mask.sum())})"
        axis.scatter(*points[mask].T, s=14, alpha=0.8, linewidths=0, label=label, **point)
    axis.margins(0.08)
    if len(groups) > 1:
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.08)}
        axis.legend(frameon=False, fontsize=SMALL, ncols=2, handletextpad=0.1, **place)


def cka_map(frame: pl.DataFrame, *, names: tuple[str, str] | None = None) -> Figure:
    """Draw linear CKA, as `linear_cka` returns it, between the layers of one store or of two with `names`."""
    check_columns(frame, ("layer", "other_layer", "value"), "the frame of a CKA map")
    cells = layers, others, values = grid(frame, x="layer", y="other_layer")
    if not layers:
        raise InvalidValueError("the frame of a CKA map has no row: give what linear_cka returns")
    is_written = max(values.shape) <= MAX_WRITTEN_CELLS
    cell = (COLUMN - 1.1) / len(layers)  # inches
    figure, (axis,) = panels(1, height=min(1.3 * COLUMN, max(1.4, cell * len(others)) + 0.65))
    if is_written:
        for (row, column), value in np.ndenumerate(values):
            text = "–" if np.isnan(value) else f"{value:.2f}".lstrip("0")[:3]
            color = "#111111" if value > 0.46 else "white"  # of which viridis is brighter than a middle grey
            size = min(SMALL, 72 * cell / 1.8)  # three characters fit
            axis.text(column, row, text, ha="center", va="center", fontsize=size, color=color)
    if names is not None and (not isinstance(names, tuple | list) or len(names) != 2):
        raise InvalidValueError(f"names {quoted(names)} are not allowed: give two names, of the stores")
    first, second = map(literal, names or ("", ""))
    labels = {"x": f"{first} layer".strip(), "y": f"{second} layer".strip()}
    image = draw_grid(axis, cells, **labels, vmin=0, vmax=1, cmap="viridis")
    axis.set_title("Linear CKA between layers", fontsize=TITLE)
    axis.spines[:].set_visible(False)
    add_colorbar(axis, image, "linear CKA", aspect=25)
    return figure  # type: ignore[no-any-return]


def attention_heatmap(frame: pl.DataFrame, *, title: str | None = None) -> Figure:
    """Draw the cosine similarities of `attention_similarity` by head and layer; darker is less similar."""
    check_columns(frame, ("layer", "head", "value"), "the frame of an attention map")
    if frame.is_empty():
        raise InvalidValueError("the frame of an attention map has no row: give what attention_similarity returns")
    cells = _, layers, values = grid(frame)
    figure, (axis,) = panels(1, height=min(COLUMN, max(1.4, 0.2 * len(layers)) + 0.8))
    image = draw_grid(axis, cells, vmin=min(0.0, np.nanmin(values)), vmax=1, cmap="gray")
    axis.set_title(fitted(axis, title or "Self-attention weights of two models", TITLE, beside=0.85), fontsize=TITLE)
    add_colorbar(axis, image, "cosine", aspect=18)
    return figure  # type: ignore[no-any-return]
