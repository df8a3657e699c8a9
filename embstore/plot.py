"""Figures of results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import ceil, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, MissingPackageError, StorageError

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

    from embstore.query.clusters import Clusters
    from embstore.query.senses import LabelledOccurrences
    from embstore.query.sentence import SentenceSimilarity

SUFFIXES = (".png", ".svg", ".pdf")
# Okabe and Ito's palette: told apart by every kind of colour vision, and in print.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*")
# Figures 1-4 of Ethayarajh 2019: metric, title, axis, column and its interval.
GEOMETRY_PANELS = (
    ("anisotropy", "Any two words", "mean cosine", ("value", "low", "high")),
    (
        "selfsim",
        "The same word in different sentences",
        "self-similarity, adjusted",
        ("adjusted", "adjusted_low", "adjusted_high"),
    ),
    (
        "intrasim",
        "Words of the same sentence",
        "intra-sentence similarity, adjusted",
        ("adjusted", "adjusted_low", "adjusted_high"),
    ),
    (
        "mev",
        "What one vector a word explains",
        "max. explainable variance, adjusted",
        ("adjusted", "adjusted_low", "adjusted_high"),
    ),
)
UNNAMED = ("in none", "no label")  # of a map, in grey
WRITTEN_CELLS = 16  # layers up to which a map of layers has its figures written in


def pyplot() -> Any:
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
    pyplot().close(figure)


def _plain(text: str) -> str:
    """Text as it is: dollars would begin a formula."""
    return text.replace("$", r"\$")


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
                axis.scatter(*points[mask].T, s=26, alpha=0.85, linewidths=0, label=_plain(label), **style)
            axis.set(xticks=[], yticks=[])
            axis.margins(0.12)
            for side in axis.spines.values():
                side.set_color("#bbbbbb")
        row[0].set_ylabel(_plain(word.word), fontsize=13, fontweight="bold")
        row[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, fontsize=10, handletextpad=0.2)
    for layer, axis in zip(layers, axes[0], strict=True):
        axis.set_title(_layer_name(layer), fontsize=11)
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
    figure.suptitle(f"{_plain(clusters.word)}, {_layer_name(clusters.layer)}: {MAP_NAMES[method]}", fontsize=12)
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
                     label=f"{_plain(title)} ({int(mask.sum())})")  # fmt: skip
    axis.set(xticks=[], yticks=[])
    axis.margins(0.08)
    axis.spines[:].set_color("#bbbbbb")
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.02), frameon=False, fontsize=8, ncols=2, handletextpad=0.1)


def _umap(vectors: NDArray[Any], seed: int) -> NDArray[np.float64]:
    from embstore.query.maps import umap_plane

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
    names = [_plain(word) for word in words]
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
        axis.set_title(_layer_name(layers[place]), fontsize=10)
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
        figure.suptitle(_plain(title), fontsize=12)
    return figure  # type: ignore[no-any-return]


def _grid(panels: int) -> tuple[int, int]:
    """Rows and columns for panels, near to a square and with few free places."""
    least = ceil(sqrt(panels))
    columns = min(range(least, least + 2), key=lambda columns: -panels % columns)
    return ceil(panels / columns), columns


def _layer_name(layer: int) -> str:
    return "layer 0 (no context)" if layer == 0 else f"layer {layer}"


def cka_map(frame: pl.DataFrame, *, names: tuple[str, str] | None = None) -> Figure:
    """Draw linear CKA, as `linear_cka` returns it, over the layers of one store or of two with `names`."""
    drawing = pyplot()
    _require_columns(frame, ("layer", "other_layer", "value"), "the frame of a CKA map")
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
    first, second = map(_plain, names or ("", ""))
    axis.set_xlabel(f"{first} layer".strip(), fontsize=10)
    axis.set_ylabel(f"{second} layer".strip(), fontsize=10)
    axis.set_xticks(range(len(layers)), layers, fontsize=9)
    axis.set_yticks(range(len(others)), others, fontsize=9)
    axis.tick_params(length=0)
    axis.set_title("Linear CKA between layers", fontsize=11)
    axis.spines[:].set_visible(False)
    figure.colorbar(image, ax=axis, aspect=25, pad=0.02).outline.set_visible(False)
    return figure  # type: ignore[no-any-return]


def geometry_figure(frames: Mapping[str, pl.DataFrame]) -> Figure:
    """Draw Figures 1-4 of Ethayarajh 2019: a panel a metric that a frame has, a line a store, by its name.

    Each frame has the columns `metric, layer` and, as the metric needs, `value` (anisotropy) or `adjusted` (selfsim,
    intrasim, mev), one row a metric and layer; where `low, high` or `adjusted_low, adjusted_high` are there too the
    interval is shaded.
    """
    for name, frame in frames.items():
        _require_columns(frame, ("metric", "layer"), f"the frame of {name}")
    found = {metric for frame in frames.values() for metric in frame["metric"].unique().to_list()}
    panels = [panel for panel in GEOMETRY_PANELS if panel[0] in found]
    if not panels:
        known = ", ".join(panel[0] for panel in GEOMETRY_PANELS)
        raise InvalidValueError(f"there is no metric to draw: give frames with one or more of {known}")
    drawing = pyplot()
    columns = min(2, len(panels))
    rows = ceil(len(panels) / columns)
    figure, axes = drawing.subplots(
        rows, columns, figsize=(4.4 * columns, 3.0 * rows + 0.5), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for (metric, title, label, names), axis in zip(panels, axes.flat, strict=False):
        for number, (name, frame) in enumerate(frames.items()):
            part = frame.filter(frame["metric"].cast(str) == metric).sort("layer")
            if len(part):
                _require_columns(part, names[:1], f"the frame of {name}, metric {metric},")
                _line(axis, part, names, name, number)
        axis.axhline(0, color="#999999", linewidth=0.8, zorder=0)
        axis.set_title(title, fontsize=11)
        axis.set_ylabel(label, fontsize=9)
        axis.set_xlabel("layer", fontsize=9)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.tick_params(labelsize=8)
        axis.grid(axis="y", color="#eeeeee")
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    _legend(figure, axes)
    return figure  # type: ignore[no-any-return]


def recall_curve(frames: Mapping[str, pl.DataFrame]) -> Figure:
    """Draw recall against queries per second, a line an index, as `measure_recall` gives them; exact search dashed."""
    drawing = pyplot()
    figure, axis = drawing.subplots(figsize=(5.6, 3.8), layout="constrained")
    exact = []
    for number, (name, frame) in enumerate(frames.items()):
        _require_columns(frame, ("setting", "recall", "queries_per_second"), f"the frame of {name}")
        tried = frame.filter(frame["setting"] != "exact search").sort("recall")
        color, marker = PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)]
        rates, recalls = _floats(tried, "queries_per_second"), _floats(tried, "recall")
        axis.plot(recalls, rates, color=color, marker=marker, markersize=4.5, linewidth=1.6, label=_plain(name))
        for setting, recall, rate in zip(tried["setting"], recalls, rates, strict=True):
            axis.annotate(setting, (recall, rate), xytext=(4, 4), textcoords="offset points", fontsize=7, color=color)
        exact += frame.filter(frame["setting"] == "exact search")["queries_per_second"].to_list()
    if exact:
        axis.axhline(float(np.median(exact)), color="#555555", linestyle="--", linewidth=1, label="exact search")
    axis.set_yscale("log")
    axis.set_xlabel("recall of the nearest", fontsize=9)
    axis.set_ylabel("queries a second", fontsize=9)
    axis.tick_params(labelsize=8)
    axis.grid(color="#eeeeee")
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=9)
    return figure  # type: ignore[no-any-return]


def probe_scores(summary: pl.DataFrame, *, metric: str = "f1", split: str | None = None) -> Figure:
    """Draw a score by layer, a line a store, from `ProbeResult.summary()`; a band of a deviation, control dashed."""
    _require_columns(summary, ("store", "task", "layer", "split", "metric", "value"), "the frame of scores")
    held = summary.filter((summary["metric"] == metric) & (summary["item"] == ""))
    held = held.filter(held["split"] == (split or ("test" if "test" in held["split"] else held["split"][0])))
    drawing = pyplot()
    figure, axis = drawing.subplots(figsize=(5.6, 3.8), layout="constrained")
    for (store, task), part in held.partition_by("store", "task", as_dict=True, maintain_order=True).items():
        number = held["store"].unique(maintain_order=True).to_list().index(store)
        color, marker = PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)]
        part = part.sort("layer")
        value, deviation = _floats(part, "value"), np.nan_to_num(_floats(part, "deviation"))
        own = task == held["task"][0]
        style = {"linestyle": "-" if own else "--", "label": _plain(f"{store}" if own else f"{store}, {task}")}
        axis.plot(part["layer"], value, color=color, marker=marker, markersize=4.5, linewidth=1.6, **style)
        axis.fill_between(part["layer"], value - deviation, value + deviation, color=color, alpha=0.18, linewidth=0)
    axis.set_xlabel("layer", fontsize=9)
    axis.set_ylabel(f"{metric} ({held['split'][0]})", fontsize=9)
    axis.set_xticks(sorted(set(held["layer"])))
    axis.tick_params(labelsize=8)
    axis.grid(color="#eeeeee")
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=9)
    return figure  # type: ignore[no-any-return]


def _line(axis: Any, part: pl.DataFrame, names: tuple[str, str, str], label: str, number: int) -> None:
    color, marker = PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)]
    layers = part["layer"].to_numpy()
    value, low, high = (_floats(part, name) for name in names)
    axis.plot(layers, value, color=color, marker=marker, markersize=4.5, linewidth=1.6, label=_plain(label))
    axis.fill_between(layers, low, high, color=color, alpha=0.18, linewidth=0)


def _floats(part: pl.DataFrame, name: str) -> NDArray[np.float64]:
    """A column as numbers, NaN where there is none."""
    if name not in part.columns:
        return np.full(len(part), np.nan)
    return np.array([np.nan if value is None else value for value in part[name].to_list()], np.float64)


def _legend(figure: Any, axes: Any) -> None:
    """One legend over all panels; a store that only some panels have is there once."""
    lines: dict[str, Any] = {}
    for axis in axes.flat:
        for line, name in zip(*axis.get_legend_handles_labels(), strict=True):
            lines.setdefault(name, line)
    figure.legend(
        lines.values(), lines.keys(), loc="outside upper center", ncols=min(len(lines), 4), frameon=False, fontsize=10
    )


def _require_columns(frame: pl.DataFrame, names: Sequence[str], what: str) -> None:
    for name in names:
        if name not in frame.columns:
            raise InvalidValueError(f"{what} has no column {name!r}: it has {', '.join(frame.columns) or 'none'}")


def attention_heatmap(frame: pl.DataFrame, *, title: str | None = None) -> Figure:
    """Draw the cosines of `attention_similarity` by head and layer, layer 1 at the bottom; darker is less alike."""
    drawing = pyplot()
    _require_columns(frame, ("layer", "head", "value"), "the frame of an attention map")
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
    axis.set_title(_plain(title or "Self-attention weights of two models"), fontsize=11)
    bar = figure.colorbar(image, ax=axis, aspect=18, pad=0.02)
    bar.set_label("cosine", fontsize=9)
    bar.outline.set_visible(False)
    return figure  # type: ignore[no-any-return]
