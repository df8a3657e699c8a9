"""Figures show the values of their frames and leave the process as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from embstore import plot
from embstore.errors import InvalidValueError
from tests.drawn import svg_texts

pytest.importorskip("matplotlib", reason="figures need matplotlib")


def geometry_frame(metrics: tuple[str, ...], layers: int, *, seed: int = 0, intervals: bool = True) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    rows = []
    for metric in metrics:
        for layer in rng.permutation(layers).tolist():
            value, baseline = rng.uniform(0.4, 0.6), rng.uniform(0, 0.2)
            edges = (None, None) if metric == "anisotropy" else (value - 0.05, value + 0.05)
            adjusted = None if metric == "anisotropy" else value - baseline
            around = [None if edge is None else edge - baseline for edge in edges]
            rows.append((metric, layer, 40, value, *edges, baseline, adjusted, *around))
    names = ["metric", "layer", "count", "value", "low", "high", "baseline"]
    names += ["adjusted", "adjusted_low", "adjusted_high"]
    frame = pl.DataFrame(rows, schema=names, orient="row")
    return frame if intervals else frame.drop("low", "high", "adjusted_low", "adjusted_high")


def shown(figure: Any) -> list[Any]:
    return [axis for axis in figure.axes if axis.get_visible() and axis.get_title()]


def test_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    frame = geometry_frame(("mev",), 3)
    figure = plot.geometry_figure({"a$b$": frame, "a_b^c": frame})
    plot.save(figure, tmp_path / "name.svg")
    assert {"a$b$", "a_b^c"} <= svg_texts(tmp_path / "name.svg")
    assert figure.legends[0].get_texts()[0].get_text() == r"a\$b\$"


def test_a_cka_map_has_each_value_in_its_place() -> None:
    layers, others = (0, 3, 4), (0, 6)
    rows = [(layer, other, 10, layer / 10 + other / 100) for layer in layers for other in others]
    rows[-1] = (4, 6, 10, None)
    frame = pl.DataFrame(rows, schema=["layer", "other_layer", "count", "value"], orient="row")
    figure = plot.cka_map(frame, names=("bert", "gpt2"))
    axis = figure.axes[0]
    drawn = np.ma.filled(axis.images[0].get_array(), np.nan)
    np.testing.assert_allclose(drawn, [[0, 0.3, 0.4], [0.06, 0.36, np.nan]])
    assert [label.get_text() for label in axis.get_xticklabels()] == ["0", "3", "4"]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["0", "6"]
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("bert layer", "gpt2 layer")
    assert sorted(text.get_text() for text in axis.texts) == ["0.00", "0.06", "0.30", "0.36", "0.40", "–"]


def test_a_geometry_figure_has_a_line_a_store() -> None:
    metrics = ("anisotropy", "selfsim", "intrasim", "mev")
    frames = {
        "bert": geometry_frame(metrics, 7),
        "gpt2": geometry_frame(metrics[:3], 13, seed=1, intervals=False),
        "elmo": geometry_frame(metrics, 3, seed=2),
    }
    figure = plot.geometry_figure(frames)
    panels = shown(figure)
    assert len(panels) == 4
    for axis, metric in zip(panels, metrics, strict=True):
        lines = {line.get_label(): line for line in axis.get_lines() if not str(line.get_label()).startswith("_")}
        assert lines.keys() == {name for name, frame in frames.items() if metric in frame["metric"]}
        for name, line in lines.items():
            part = frames[name].filter(pl.col("metric") == metric).sort("layer")
            column = "value" if metric == "anisotropy" else "adjusted"
            np.testing.assert_array_equal(line.get_xdata(), part["layer"])
            np.testing.assert_array_equal(line.get_ydata(), part[column])
        bands = [band for band in axis.collections if band.get_paths() and len(band.get_paths()[0].vertices)]
        assert len(bands) == (0 if metric == "anisotropy" else 2)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["bert", "gpt2", "elmo"]


def test_an_interval_is_shaded_from_low_to_high() -> None:
    frame = geometry_frame(("selfsim",), 5)
    (axis,) = shown(plot.geometry_figure({"one": frame}))
    ordered = frame.sort("layer")
    edges = axis.collections[0].get_paths()[0].vertices
    for layer, low, high in ordered.select("layer", "adjusted_low", "adjusted_high").iter_rows():
        drawn = edges[edges[:, 0] == layer, 1]
        assert (drawn.min(), drawn.max()) == pytest.approx((low, high))


def test_other_metrics_are_not_drawn() -> None:
    frame = pl.concat([geometry_frame(("mev",), 4), geometry_frame(("mean_norm",), 4)])
    (axis,) = shown(
        plot.geometry_figure({"one": frame.with_columns(pl.col("metric").cast(pl.Enum(["mev", "mean_norm"])))})
    )
    assert axis.get_title() == "Maximum explainable variance"


def test_frames_that_cannot_be_drawn_are_refused() -> None:
    frame = geometry_frame(("selfsim",), 4)
    with pytest.raises(
        InvalidValueError, match="no metric to draw: give frames with one or more of anisotropy, selfsim"
    ):
        plot.geometry_figure({"one": frame.with_columns(metric=pl.lit("mean_norm"))})
    with pytest.raises(InvalidValueError, match="the frame of one, metric selfsim, has no column 'adjusted'"):
        plot.geometry_figure({"one": frame.drop("adjusted")})


@pytest.mark.slow
def test_figures_do_not_touch_pyplot(tmp_path: Path) -> None:
    code = (
        "import sys, polars as pl; from embstore import plot;"
        "frame = pl.DataFrame({'metric': ['mev'], 'layer': [0], 'adjusted': [0.5]});"
        "plot.save(plot.geometry_figure({'a': frame}), sys.argv[1]);"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.png")], check=True)
