"""What all figures share: how they are made and saved, colors, axes, lines and legends."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from math import ceil, lcm
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, MissingPackageError, check_choice, quoted
from embstore.store.storage.files import replacing, require_outside

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
# The palette of Okabe and Ito, distinguishable with every kind of color vision and in print.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*")
GRID = "#eeeeee"
MAX_TICKS = 13  # labels that fit below a panel
COLUMN, PAGE = 3.3, 7.0  # inches: the width of a column of a paper, and of its page
TITLE, LABEL, SMALL = 8.5, 8.0, 7.0  # points: titles, labels of axes; ticks and legends
Grid = tuple[list[int], list[int], NDArray[np.float64]]


def subplots(n_rows: int = 1, n_columns: int = 1, *, figsize: tuple[float, float], **options: Any) -> tuple[Any, Any]:
    """Make a figure with a grid of axes; returns the Figure and the axes, object [rows, columns].

    `options`: further arguments of `Figure.subplots`, and `layout` ("constrained" by default). The figure does not
    belong to pyplot, so that neither its backend nor its list of open figures changes. Raises MissingPackageError
    without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError('figures need matplotlib: pip install "embstore[plots]"') from error
    figure = Figure(figsize=figsize, layout=options.pop("layout", "constrained"))
    return figure, figure.subplots(n_rows, n_columns, squeeze=False, **options)


def panels(count: int, *, columns: int = 3, height: float = 2.1, margin: float = 0.0) -> tuple[Any, list[Any]]:
    """Make `count` panels of some height in inches; returns the Figure and its axes.

    One is as wide as a column of a paper, several as its page, in rows of at most `columns` that are all filled.
    `margin`: inches above all. Raises MissingPackageError.
    """
    n_rows = ceil(count / columns)
    sizes = [count // n_rows + (row < count % n_rows) for row in range(n_rows)]
    units = lcm(*sizes)
    figure, axes = subplots(figsize=(PAGE if count > 1 else COLUMN, n_rows * height + margin))
    axes[0, 0].remove()
    cells = figure.add_gridspec(n_rows, units)
    places = [
        (row, at * units // size, (at + 1) * units // size) for row, size in enumerate(sizes) for at in range(size)
    ]
    return figure, [figure.add_subplot(cells[row, start:stop]) for row, start, stop in places]


def fitted(axis: Any, text: str, size: float, *, upright: bool = False, beside: float = 1.0) -> str:
    """Break a text into lines that fit along a side of a panel; `beside`: the share of its width that they have."""
    place = axis.get_position()
    inches = axis.figure.get_size_inches() * (place.width, place.height)
    letters = int((0.85 * inches[1] if upright else beside * inches[0]) * 144 / size)  # a letter is half its size wide
    return "\n".join(wrap(literal(text), max(12, letters), break_long_words=False, break_on_hyphens=False))


def fitting(axis: Any) -> float:
    """Return how many numbers of two digits fit below a panel."""
    return float(min(MAX_TICKS, 5.1 * axis.figure.get_size_inches()[0] * axis.get_position().width))


def colormap(name: str) -> Any:
    """Return a colormap of matplotlib, a function from numbers in [0, 1] to colors RGBA [n, 4]."""
    import matplotlib

    check_choice("colormap", name, tuple(matplotlib.colormaps))
    return matplotlib.colormaps[name]


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure to a .png, .svg or .pdf file, atomically and durably.

    Raises InvalidValueError for another suffix and StorageError if the file cannot be written.
    """
    check_drawable(figure, ("savefig",), "a figure")
    if not isinstance(path, str | os.PathLike):
        raise InvalidValueError(f"{quoted(path)} is not the path of a file")
    target = Path(path)
    if target.suffix not in SUFFIXES:
        raise InvalidValueError(f"figure {path} has no known suffix: choose {', '.join(SUFFIXES)}")
    require_outside(target)
    with replacing(target) as partial:
        figure.savefig(partial, format=target.suffix[1:], dpi=300)


def svg(figure: Figure, *, name: str = "figure") -> str:
    """Return a figure as the text of an <svg> element for an HTML page, the same bytes each time.

    Text stays text, black and grids take the color of the page's text, and there is no background. `name`: begins the
    ids of its parts, which must differ from those of other figures of the page.
    """
    import io

    import matplotlib

    check_drawable(figure, ("savefig",), "a figure")
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>|\sxmlns(:xlink)?=\"[^\"]*\"", "", text[text.index("<svg") :], flags=re.S)
    text = text.replace(f"stroke: {GRID}", "stroke: currentColor; stroke-opacity: 0.1")
    return text.replace("#000000", "currentColor").replace("<text ", '<text fill="currentColor" ')


def literal(text: object) -> str:
    """Return text that matplotlib draws as it is, without formulas between dollars."""
    return str(text).encode(errors="replace").decode().replace("$", r"\$")


def layer_name(layer: int) -> str:
    """Return the title of a layer."""
    return "layer 0 (no context)" if layer == 0 else f"layer {layer}"


def floats(frame: pl.DataFrame, name: str) -> NDArray[np.float64]:
    """Return a column as float64 [rows], NaN for nulls and for a missing column."""
    if name not in frame.columns:
        return np.full(len(frame), np.nan)
    return np.array([np.nan if value is None else value for value in frame[name].to_list()], np.float64)


def grid(frame: pl.DataFrame, *, x: str = "head", y: str = "layer", value: str = "value") -> Grid:
    """Return the distinct values of two columns, ascending, and those of a third, float64 [y, x]; NaN where none is."""
    frame = frame.filter(frame[x].is_not_null())
    across, up = (sorted(frame[name].unique().to_list()) for name in (x, y))
    values = np.full((len(up), len(across)), np.nan)
    for row, column, number in frame.select(y, x, value).iter_rows():
        values[up.index(row), across.index(column)] = np.nan if number is None else number
    return across, up, values


def draw_grid(axis: Any, given: Grid, *, x: str = "head", y: str = "layer", **colors: Any) -> Any:
    """Draw a grid as colored cells with its numbers at both axes; returns the image. `colors`: of `Axes.imshow`."""
    across, up, values = given
    image = axis.imshow(values, **{"origin": "lower", "aspect": "auto", "interpolation": "nearest", **colors})
    step = ceil(len(across) / fitting(axis))
    axis.set_xticks(range(0, len(across), step), across[::step], fontsize=SMALL)
    step = ceil(len(up) / MAX_TICKS)
    axis.set_yticks(range(0, len(up), step), up[::step], fontsize=SMALL)
    axis.tick_params(length=0, pad=2)
    axis.set_xlabel(x, fontsize=LABEL)
    axis.set_ylabel(y, fontsize=LABEL)
    return image


def add_colorbar(axis: Any, image: Any, label: str, **options: Any) -> None:
    """Add the key of the colors of an image beside it; `options`: of `Figure.colorbar`."""
    bar = axis.figure.colorbar(image, ax=axis, pad=0.02, **options)
    bar.set_label(label, fontsize=LABEL)
    bar.ax.tick_params(labelsize=SMALL)
    bar.outline.set_visible(False)


def check_drawable(value: object, names: Sequence[str], what: str) -> None:
    """Raise InvalidValueError for an object without all these attributes; `what`: what can be drawn."""
    if not all(hasattr(value, name) for name in names):
        raise InvalidValueError(f"{quoted(value)} cannot be drawn: give {what}")


def choose_split(splits: Iterable[str], split: str | None) -> str:
    """Return the split whose scores are drawn: the given one, else test, dev or the first one that exists."""
    known = list(dict.fromkeys(splits))
    if split is None or not known:
        return next((name for name in ("test", "dev", *known) if name in known), "")
    check_choice("split", split, known)
    return split


def style(axis: Any, *, title: str = "", x: str = "", y: str = "", layers: Sequence[int] = ()) -> None:
    """Give an axis its title, labels, ticks at `layers` (whole numbers by default), grid and open frame.

    Titles and labels that are longer than the axis are broken, and drawn as they are, without formulas.
    Of more layers than there is space for every second, third ... has a tick.
    """
    axis.set_title(fitted(axis, title, TITLE), fontsize=TITLE)
    axis.set_xlabel(fitted(axis, x, LABEL), fontsize=LABEL)
    axis.set_ylabel(fitted(axis, y, LABEL, upright=True), fontsize=LABEL)
    if layers:
        numbers = sorted(set(layers))
        axis.set_xticks(numbers[:: ceil(len(numbers) / fitting(axis))])
    else:
        axis.xaxis.get_major_locator().set_params(integer=True)
    axis.tick_params(labelsize=SMALL)
    axis.grid(axis="y", color=GRID)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def look(number: int) -> dict[str, str]:
    """Return the color and the marker of a series, those of no other of 64."""
    return {"color": PALETTE[number % len(PALETTE)], "marker": MARKERS[(number + number // 8) % len(MARKERS)]}


def draw_line(
    axis: Any,
    part: pl.DataFrame,
    *,
    number: int,
    label: str,
    columns: tuple[str, str, str] | None = None,
    unit: float = 1.0,
    linestyle: str = "-",
) -> None:
    """Draw the values of a frame by layer, divided by `unit`, with a band.

    `columns`: of the value and of both ends of the band, by default the value minus and plus its deviation.
    """
    part = part.sort("layer")
    if columns is None:
        value, deviation = floats(part, "value"), np.nan_to_num(floats(part, "deviation"))
        low, high = value - deviation, value + deviation
    else:
        value, low, high = (floats(part, column) for column in columns)
    line = {**look(number), "markersize": 3.5, "linewidth": 1.3, "linestyle": linestyle}
    axis.plot(part["layer"], value / unit, label=literal(label), **line)
    axis.fill_between(part["layer"], low / unit, high / unit, color=line["color"], alpha=0.18, linewidth=0)


def add_legend(figure: Any, axes: Iterable[Any]) -> None:
    """Add one legend above all panels, which keep their size, with each label once; none for a single one."""
    handles: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if len(handles) > 1:
        width, height = figure.get_size_inches()
        letters = width * 72 / (0.55 * SMALL)
        columns = max(1, min(len(handles), 4, int((letters + 3) / (max(map(len, handles)) + 9))))
        figure.set_size_inches(width, height + 0.05 + 1.55 * ceil(len(handles) / columns) * SMALL / 72)
        options = {"loc": "outside upper center", "ncols": columns, "frameon": False, "fontsize": SMALL}
        figure.legend(handles.values(), handles.keys(), handlelength=2.6, **options)
