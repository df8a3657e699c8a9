"""What all figures share: how they are made and saved, colors, axes, lines and legends."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from functools import wraps
from inspect import Parameter, signature
from math import ceil
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, MissingPackageError, check_choice, quoted
from embstore.store.storage.files import replacing

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
# The palette of Okabe and Ito, distinguishable with every kind of color vision and in print.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*")
GRID = "#eeeeee"


# Style -> width of a figure in inches, and how many times the size of text and lines: a column of a paper, a slide.
STYLES: dict[str, tuple[float, float]] = {"paper": (3.35, 0.78), "talk": (10.0, 1.5)}
TWO_COLUMNS = 6.9  # inches: the width on paper of a figure that is a sentence, or large panels
LARGE_PANEL = 4.0  # inches
MANY_TICKS, FEW_TICKS = 13, 7  # labels that fit below a panel, and on paper; the size of more follows their panel
LETTER = 0.55  # the mean width of a letter, in sizes of its text
LEGEND = 10  # points: the size of the text of a legend
HANDLE = 6  # letters: the line of an entry of a legend, and the space around it
Grid = tuple[list[int], list[int], NDArray[np.float64]]
_style: ContextVar[str | None] = ContextVar("style", default=None)


def drawn(function: Callable[..., Figure]) -> Callable[..., Figure]:
    """Give a function that makes a figure the keywords `title`, `size` and `style`.

    `title` replaces the title. `size`: width and height in inches. `style`: "paper", as wide as a column (two columns
    for a sentence and for large panels), or "talk", as large as a slide; text and lines have the size that fits.
    """
    own = signature(function).parameters

    @wraps(function)
    def call(
        *arguments: Any,
        title: str | None = None,
        size: tuple[float, float] | None = None,
        style: str | None = None,
        **named: Any,
    ) -> Figure:
        if style is not None:
            check_choice("style", style, STYLES)
        if title is not None and not isinstance(title, str):
            raise InvalidValueError(f"title {quoted(title)} is not allowed: give a text")
        if size is not None and not _is_size(size):
            raise InvalidValueError(f"size {quoted(size)} is not allowed: give width and height in inches, such as 6x4")
        if title is not None and "title" in own:
            named["title"] = title
        token = _style.set(style)
        try:
            figure = function(*arguments, **named)
        finally:
            _style.reset(token)
        if title is not None and "title" not in own:
            _set_title(figure, title)
        if style is not None or size is not None:
            _resize(figure, size, style)
        return figure

    more = [Parameter(name, Parameter.KEYWORD_ONLY, default=None) for name in ("title", "size", "style")]
    parameters = [each for each in own.values() if each.name != "title"]
    call.__dict__["__signature__"] = signature(function).replace(
        parameters=sorted([*parameters, *more], key=lambda each: each.kind)
    )
    return call


def on_paper() -> bool:
    """Whether the figure that is being made is for a column of a paper."""
    return _style.get() == "paper"


def _is_size(size: Any) -> bool:
    if not isinstance(size, tuple | list) or len(size) != 2:
        return False
    return all(isinstance(each, int | float) and not isinstance(each, bool) and 1 <= each <= 100 for each in size)


def _set_title(figure: Any, title: str) -> None:
    """Give a figure of one panel, or of several, its title."""
    main = [axis for axis in figure.axes if axis.get_visible() and axis.get_label() != "<colorbar>"]
    if len(main) == 1 and figure._suptitle is None:
        main[0].set_title(literal(title), fontsize=11)
    else:
        figure.suptitle(literal(title), fontsize=12)
        for legend in figure.legends:  # above the panels it would be drawn over the title
            legend.set_loc("outside lower center")


def _resize(figure: Any, size: tuple[float, float] | None, style: str | None) -> None:
    """Give a figure its size in inches, and its text, lines and points the size of the style."""
    before, is_inches = figure.get_size_inches(), figure.get_layout_engine() is None
    width, times = STYLES.get(style or "", (before[0], 1.0))
    is_large = style == "paper" and not is_inches and _is_large(figure)
    if style == "paper" and (is_inches or is_large):
        width = TWO_COLUMNS
    height = before[1] * width / before[0]
    if style == "paper" and not is_inches:
        is_square = any(axis.get_aspect() == 1 for axis in figure.axes)
        if is_large:
            height *= 0.75  # many rows of large panels must fit on a page
        else:
            height *= 1.15 if is_square or len(figure.axes) < 3 else 1.4  # text shrinks less than the panels
        height += 0.17 * sum(len(legend.texts) for legend in figure.legends)
    figure.set_size_inches(*(size or (width, height)))
    if is_inches:
        times = min(figure.get_size_inches() / before)
    from matplotlib.collections import PathCollection
    from matplotlib.lines import Line2D
    from matplotlib.text import Text

    both = [each for axis in figure.axes for each in (axis.xaxis, axis.yaxis)]
    for each in both:
        if labels := each.get_ticklabels():
            dense = min(times, 1.3 * width / before[0]) if len(labels) > MANY_TICKS else times
            each.set_tick_params(which="both", labelsize=labels[0].get_fontsize() * dense)
    # smaller labels leave space for more ticks: those made now have their size already
    made = [tick for each in both for tick in (*each.get_major_ticks(), *each.get_minor_ticks())]
    ticks = {label for tick in made for label in (tick.label1, tick.label2)}
    for text in figure.findobj(Text):
        if text not in ticks:
            text.set_fontsize(text.get_fontsize() * times)
    for line in figure.findobj(Line2D):
        line.set(linewidth=line.get_linewidth() * times, markersize=line.get_markersize() * times)
    for points in figure.findobj(PathCollection):
        points.set_sizes(points.get_sizes() * times**2)
    if not is_inches:
        _wrap_titles(figure)


def _is_large(figure: Any) -> bool:
    """Whether a figure has large panels next to each other with legends of their own."""
    spec = figure.axes[0].get_subplotspec()
    n_columns = 1 if spec is None else spec.get_gridspec().ncols
    has_legends = any(axis.get_legend() for axis in figure.axes)
    return n_columns > 1 and has_legends and figure.get_size_inches()[0] / n_columns > LARGE_PANEL


def _wrap_titles(figure: Any) -> None:
    """Break the titles of panels and the labels of their axes into lines that fit."""
    width, height = figure.get_size_inches()
    share = 0.75 if any(axis.get_label() == "<colorbar>" for axis in figure.axes) else 0.9
    for axis in figure.axes:
        spec = axis.get_subplotspec()
        rows, columns = (1, 1) if spec is None else spec.get_gridspec().get_geometry()
        for text, inches in (
            (axis.title, width / columns),
            (axis.xaxis.label, width / columns),
            (axis.yaxis.label, 0.85 * height / rows),
        ):
            letters = max(8, int(share * inches * 72 / (LETTER * text.get_fontsize())))
            text.set_text("\n".join(wrap(text.get_text(), letters)))
    if figure._suptitle is not None:
        letters = max(8, int(width * 72 / (LETTER * figure._suptitle.get_fontsize())))
        figure._suptitle.set_text("\n".join(wrap(figure._suptitle.get_text(), letters)))


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


def panels(
    count: int, *, columns: int, size: tuple[float, float], margin: tuple[float, float], **options: Any
) -> tuple[Any, Any]:
    """Make `count` panels of `size` inches in rows of at most `columns`; the rest of the grid is hidden."""
    n_columns = min(count, columns if _style.get() is None else min(columns, 2))
    n_rows = ceil(count / n_columns)
    figsize = (size[0] * n_columns + margin[0], size[1] * n_rows + margin[1])
    figure, axes = subplots(n_rows, n_columns, figsize=figsize, **options)
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    return figure, axes


def colormap(name: str) -> Any:
    """Return a colormap of matplotlib, a function from numbers in [0, 1] to colors RGBA [n, 4]."""
    import matplotlib

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
    with replacing(target) as partial:
        figure.savefig(partial, format=target.suffix[1:], dpi=160, bbox_inches="tight")


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
        figure.savefig(buffer, format="svg", bbox_inches="tight", transparent=True, metadata=metadata)
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
    axis.set_xticks(range(len(across)), across, fontsize=8)
    axis.set_yticks(range(len(up)), up, fontsize=8)
    axis.tick_params(length=0)
    axis.set_xlabel(x, fontsize=9)
    axis.set_ylabel(y, fontsize=9)
    return image


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

    Of more layers than there is space for every second, third ... has a tick.
    """
    axis.set_title(title, fontsize=11)
    axis.set_xlabel(x, fontsize=9)
    axis.set_ylabel(y, fontsize=9)
    if layers:
        numbers = sorted(set(layers))
        axis.set_xticks(numbers[:: ceil(len(numbers) / (FEW_TICKS if on_paper() else MANY_TICKS))])
    else:
        axis.xaxis.get_major_locator().set_params(integer=True)
    axis.tick_params(labelsize=8)
    axis.grid(axis="y", color=GRID)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def look(number: int) -> dict[str, str]:
    """Return the color and the marker of a series."""
    return {"color": PALETTE[number % len(PALETTE)], "marker": MARKERS[number % len(MARKERS)]}


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
    line = {**look(number), "markersize": 4.5, "linewidth": 1.6, "linestyle": linestyle}
    axis.plot(part["layer"], value / unit, label=literal(label), **line)
    axis.fill_between(part["layer"], low / unit, high / unit, color=line["color"], alpha=0.18, linewidth=0)


def add_legend(figure: Any, axes: Any, *, where: str = "upper") -> None:
    """Add one legend above all panels, or below them (`where="lower"`), with each label once."""
    handles: dict[str, Any] = {}
    for axis in axes.flat:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        width, times = STYLES.get(_style.get() or "", (figure.get_size_inches()[0], 1.0))
        letters = width * 72 / (LETTER * LEGEND * times)
        columns = max(1, min(len(handles), 4, int(letters / (max(map(len, handles)) + HANDLE))))
        options = {"loc": f"outside {where} center", "ncols": columns, "frameon": False, "fontsize": LEGEND}
        figure.legend(handles.values(), handles.keys(), **options)
