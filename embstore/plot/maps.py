"""Figures of points and of grids: occurrences in the plane, similarities as heat maps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import ceil, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError
from embstore.plot.drawing import MARKERS, PALETTE, layer_name, plain, pyplot, require_columns

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

    from embstore.analysis.neighbors.clusters import Clusters
    from embstore.analysis.neighbors.senses import LabelledOccurrences
    from embstore.analysis.similarity.sentence import SentenceSimilarity

UNNAMED = ("in none", "no label")  # of a map, in grey
WRITTEN_CELLS = 16  # layers up to which a map of layers has its figures written in


def sense_map(words: Sequence[LabelledOccurrences], *, layers: Sequence[int]) -> Figure:
    """Draw the occurrences of ambiguous words in two dimensions, a row a word, a column a layer.

    Each panel shows the first two principal components of the word's centred vectors; a colour and shape a label.
    """
    drawing = pyplot()
    figure, axes = drawing.subplots(
        len(words), len(layers), figsize=(2.6 * len(layers) + 1.6, 2.4 * len(words)), squeeze=False
    )
    for word, row in zip(words, axes, strict=True):
        labels = sorted(set(word.labels))
        for layer, axis in zip(layers, row, strict=True):
            points = principal_plane(word.vectors[word.layers.index(layer)])
            for number, label in enumerate(labels):
                mask = np.array(word.labels) == label
                style = {"color": PALETTE[number % len(PALETTE)], "marker": MARKERS[number % len(MARKERS)]}
                axis.scatter(*points[mask].T, s=26, alpha=0.85, linewidths=0, label=plain(label), **style)
            axis.set(xticks=[], yticks=[])
            axis.margins(0.12)
            for side in axis.spines.values():
                side.set_color("#bbbbbb")
        row[0].set_ylabel(plain(word.word), fontsize=13, fontweight="bold")
        row[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, fontsize=10, handletextpad=0.2)
    for layer, axis in zip(layers, axes[0], strict=True):
        axis.set_title(layer_name(layer), fontsize=11)
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


def cluster_map(clusters: Clusters, *, method: str = "pca", seed: int = 0) -> Figure:
    """Draw a word's occurrences in two dimensions, by cluster and, where they have labels, by label beside it.

    `method`: pca, the first two principal components, or umap (the extra `umap`), which the `seed` is for.
    """
    if method not in MAPS:
        raise InvalidValueError(f"unknown method {method!r} of a map; allowed are {', '.join(MAPS)}")
    points = MAPS[method](clusters.vectors, seed)
    drawing = pyplot()
    numbers, labels = (clusters.occurrences[name].to_list() for name in ("cluster", "label"))
    panels = [
        (f"cluster ({clusters.method})", ["in none" if number < 0 else f"cluster {number}" for number in numbers])
    ]
    if any(label is not None for label in labels):
        panels.append(("label", ["no label" if label is None else str(label) for label in labels]))
    figure, axes = drawing.subplots(
        1, len(panels), figsize=(3.9 * len(panels) + 0.4, 3.9), squeeze=False, layout="constrained"
    )
    for (title, names), axis in zip(panels, axes[0], strict=True):
        _scatter(axis, points, names)
        axis.set_title(f"by {title}", fontsize=10)
    figure.suptitle(f"{plain(clusters.word)}, {layer_name(clusters.layer)}: {MAP_NAMES[method]}", fontsize=12)
    return figure  # type: ignore[no-any-return]


def _scatter(axis: Any, points: NDArray[np.float64], names: Sequence[str]) -> None:
    """Points in colour and shape by name, the most frequent first; those of no name grey, past the palette alike."""
    counts = Counter(name for name in names if name not in UNNAMED)
    shown = [name for name, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    if len(shown) > len(PALETTE):
        shown = shown[: len(PALETTE) - 1]
    rest = [name for name in dict.fromkeys(names) if name not in shown]
    groups = {name: [name] for name in shown}
    if others := [name for name in rest if name not in UNNAMED]:
        groups[f"{len(others)} others"] = others
    groups |= {name: [name] for name in rest if name in UNNAMED}
    for number, (title, members) in enumerate(groups.items()):
        mask = np.isin(names, members)
        grey = number >= len(shown)
        color = "#999999" if grey else PALETTE[number]
        marker = "." if grey else MARKERS[number]
        axis.scatter(*points[mask].T, s=24, alpha=0.8, linewidths=0, color=color, marker=marker,
                     label=f"{plain(title)} ({int(mask.sum())})")  # fmt: skip
    axis.set(xticks=[], yticks=[])
    axis.margins(0.08)
    axis.spines[:].set_color("#bbbbbb")
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.02), frameon=False, fontsize=8, ncols=2, handletextpad=0.1)


def _umap(vectors: NDArray[Any], seed: int) -> NDArray[np.float64]:
    from embstore.analysis.neighbors.maps import umap_plane

    return umap_plane(vectors, seed=seed)


MAPS: dict[str, Callable[[NDArray[Any], int], NDArray[np.float64]]] = {
    "pca": lambda vectors, _seed: principal_plane(vectors),
    "umap": _umap,
}
MAP_NAMES = {"pca": "the first two principal components", "umap": "map by UMAP"}


def heat_map(similarity: SentenceSimilarity, *, title: str | None = None) -> Figure:
    """Draw how similar the words of a sentence are to each other, a panel a layer."""
    drawing = pyplot()
    words, layers = similarity.words, similarity.layers
    if not words or not layers:
        raise InvalidValueError("there is no word or no layer to draw: choose a sentence and layers that have some")
    names = [plain(word) for word in words]
    rows, columns = _grid(len(layers))
    side = min(max(1.9, 0.17 * len(words) + 0.3), 7.0)
    size = min(9.0, max(3.0, 62 * side / len(words)))
    margin = 0.075 * size / 9 * max(map(len, words)) + 0.3
    figure, axes = drawing.subplots(
        rows,
        columns,
        figsize=(side * columns + margin + 1.0, (side + 0.3) * rows + margin + 0.4),
        squeeze=False,
        sharex=True,
        sharey=True,
        layout="constrained",
    )
    apart = similarity.values[:, ~np.eye(len(words), dtype=bool)]
    low = float(apart.min()) if apart.size else 0.0
    image = None
    for place, axis in enumerate(axes.flat):
        if place >= len(layers):
            axis.set_visible(False)
            continue
        image = axis.imshow(similarity.values[place], vmin=low, vmax=1, cmap="viridis", interpolation="nearest")
        axis.set_title(layer_name(layers[place]), fontsize=10)
        axis.set_xticks(range(len(words)), names, rotation=90, fontsize=size)
        axis.set_yticks(range(len(words)), names, fontsize=size)
        axis.tick_params(length=0, labelbottom=place + columns >= len(layers), labelleft=place % columns == 0)
        if place + columns < rows * columns:
            for text in axis.get_xticklabels():
                text.set_in_layout(False)  # those above a free place take no room from the row
    bar = figure.colorbar(image, ax=axes, shrink=min(1.0, 3.2 / (side * rows)), aspect=18, pad=0.02)
    bar.set_label("cosine", fontsize=10)
    bar.outline.set_visible(False)
    if title is not None:
        figure.suptitle(plain(title), fontsize=12)
    return figure  # type: ignore[no-any-return]


def _grid(panels: int) -> tuple[int, int]:
    """Rows and columns for panels, near to a square and with few free places."""
    least = ceil(sqrt(panels))
    columns = min(range(least, least + 2), key=lambda columns: -panels % columns)
    return ceil(panels / columns), columns


def cka_map(frame: pl.DataFrame, *, names: tuple[str, str] | None = None) -> Figure:
    """Draw linear CKA, as `linear_cka` returns it, over the layers of one store or of two with `names`."""
    drawing = pyplot()
    require_columns(frame, ("layer", "other_layer", "value"), "the frame of a CKA map")
    layers, others = (frame[name].unique(maintain_order=True).to_list() for name in ("layer", "other_layer"))
    if not layers:
        raise InvalidValueError("the frame of a CKA map has no row: give what linear_cka returns")
    values = np.full((len(others), len(layers)), np.nan)
    for layer, other, value in frame.select("layer", "other_layer", "value").iter_rows():
        values[others.index(other), layers.index(layer)] = np.nan if value is None else value
    cell = 0.42 if max(values.shape) <= WRITTEN_CELLS else 0.2
    figure, axis = drawing.subplots(
        figsize=(max(2.4, cell * len(layers)) + 1.6, max(2.2, cell * len(others)) + 0.9), layout="constrained"
    )
    image = axis.imshow(values, vmin=0, vmax=1, cmap="viridis", origin="lower", interpolation="nearest")
    if max(values.shape) <= WRITTEN_CELLS:
        for (row, column), value in np.ndenumerate(values):
            text = "–" if np.isnan(value) else f"{value:.2f}"
            axis.text(
                column, row, text, ha="center", va="center", fontsize=7, color="black" if value > 0.6 else "white"
            )
    first, second = map(plain, names or ("", ""))
    axis.set_xlabel(f"{first} layer".strip(), fontsize=10)
    axis.set_ylabel(f"{second} layer".strip(), fontsize=10)
    axis.set_xticks(range(len(layers)), layers, fontsize=9)
    axis.set_yticks(range(len(others)), others, fontsize=9)
    axis.tick_params(length=0)
    axis.set_title("Linear CKA between layers", fontsize=11)
    axis.spines[:].set_visible(False)
    figure.colorbar(image, ax=axis, aspect=25, pad=0.02).outline.set_visible(False)
    return figure  # type: ignore[no-any-return]


def attention_heatmap(frame: pl.DataFrame, *, title: str | None = None) -> Figure:
    """Draw the cosines of `attention_similarity` by head and layer, layer 1 at the bottom; darker is less alike."""
    drawing = pyplot()
    require_columns(frame, ("layer", "head", "value"), "the frame of an attention map")
    if frame.is_empty():
        raise InvalidValueError("the frame of an attention map has no row: give what attention_similarity returns")
    layers, heads = (sorted(frame[name].unique().to_list()) for name in ("layer", "head"))
    values = np.full((len(layers), len(heads)), np.nan)
    for layer, head, value in frame.select("layer", "head", "value").iter_rows():
        values[layers.index(layer), heads.index(head)] = value
    figure, axis = drawing.subplots(
        figsize=(0.34 * len(heads) + 1.7, max(1.6, 0.34 * len(layers)) + 0.9), layout="constrained"
    )
    image = axis.imshow(values, vmin=min(0.0, np.nanmin(values)), vmax=1, cmap="gray", origin="lower", aspect="auto")
    axis.set_xlabel("head", fontsize=10)
    axis.set_ylabel("layer", fontsize=10)
    axis.set_xticks(range(len(heads)), heads, fontsize=8)
    axis.set_yticks(range(len(layers)), layers, fontsize=8)
    axis.tick_params(length=0)
    axis.set_title(plain(title or "Self-attention weights of two models"), fontsize=11)
    bar = figure.colorbar(image, ax=axis, aspect=18, pad=0.02)
    bar.set_label("cosine", fontsize=9)
    bar.outline.set_visible(False)
    return figure  # type: ignore[no-any-return]
