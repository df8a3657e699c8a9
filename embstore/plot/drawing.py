"""What every figure is drawn with: colours that are told apart, files, legends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidValueError, MissingPackageError, StorageError

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure


SUFFIXES = (".png", ".svg", ".pdf")
# Okabe and Ito's palette: told apart by every kind of colour vision, and in print.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*")


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


def plain(text: str) -> str:
    """Text as it is: dollars would begin a formula."""
    return text.replace("$", r"\$")


def layer_name(layer: int) -> str:
    return "layer 0 (no context)" if layer == 0 else f"layer {layer}"


def floats(part: pl.DataFrame, name: str) -> NDArray[np.float64]:
    """A column as numbers, NaN where there is none."""
    if name not in part.columns:
        return np.full(len(part), np.nan)
    return np.array([np.nan if value is None else value for value in part[name].to_list()], np.float64)


def legend(figure: Any, axes: Any) -> None:
    """One legend over all panels; a store that only some panels have is there once."""
    lines: dict[str, Any] = {}
    for axis in axes.flat:
        for line, name in zip(*axis.get_legend_handles_labels(), strict=True):
            lines.setdefault(name, line)
    figure.legend(
        lines.values(), lines.keys(), loc="outside upper center", ncols=min(len(lines), 4), frameon=False, fontsize=10
    )


def require_columns(frame: pl.DataFrame, names: Sequence[str], what: str) -> None:
    for name in names:
        if name not in frame.columns:
            raise InvalidValueError(f"{what} has no column {name!r}: it has {', '.join(frame.columns) or 'none'}")
