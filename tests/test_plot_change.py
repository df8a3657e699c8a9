"""Figures of change draw the values of the frame."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from embstore import plot
from embstore.analysis.change import ChangeTests, measure_periods
from embstore.errors import InvalidValueError
from tests.analysis.change.made import YEARS, with_years


def change_frame() -> pl.DataFrame:
    rows = [
        {"word": word, "layer": layer, "metric": metric, "value": value + layer, "low": value, "high": value + 2,
         "q": q, "expected": 0.5, "count_old": count, "count_new": 4 * count}
        for metric in ("prt", "apd")
        for layer in (0, 3)
        for word, value, q, count in (("$a", 0.4, 0.01, 10), ("b", 0.1, 0.2, 40), ("c", 0.9, 0.05, 20))
    ]  # fmt: skip
    return pl.DataFrame(rows)


def test_significant_words_are_named_at_their_frequency_and_change() -> None:
    [axis] = plot.change_map(change_frame(), metric="prt").axes
    others, significant = (part.get_offsets().tolist() for part in axis.collections)
    np.testing.assert_allclose(others, [[80, 3.1]])
    np.testing.assert_allclose(significant, [[20, 3.4], [40, 3.9]])
    assert [text.get_text() for text in axis.texts] == ["c", r"\$a"]
    assert axis.lines[0].get_xdata().tolist() == [20, 40, 80]
    assert axis.get_title() == "Change by frequency, layer 3"
    assert axis.get_ylabel() == "prototype distance"
    assert len(plot.change_map(change_frame(), metric="prt", layer=0, n_words=1).axes[0].texts) == 1


def test_names_of_words_do_not_lie_on_each_other() -> None:
    close = change_frame().with_columns(
        pl.lit(0.0).alias("q"), pl.lit(20).alias("count_old"), pl.lit(20).alias("count_new")
    )
    close = close.with_columns(pl.when(pl.col("value") < 3.2).then(3.0).otherwise(3.9).alias("value"))
    [axis] = plot.change_map(close, metric="prt").axes
    boxes = [text.get_window_extent() for text in axis.texts]
    assert len(boxes) == 2
    assert not boxes[0].overlaps(boxes[1])


def test_measures_of_words_are_drawn_by_layer() -> None:
    figure = plot.change_by_layer_figure(change_frame(), words=["c", "b"])
    first, second = figure.axes
    assert [first.get_title(), second.get_title()] == ["prototype distance", "average pairwise distance"]
    assert [line.get_label() for line in first.lines] == ["c", "b"]
    assert first.lines[0].get_xdata().tolist() == [0, 3]
    assert first.lines[0].get_ydata().tolist() == pytest.approx([0.9, 3.9])


def test_series_are_drawn_with_intervals_and_change_points(tmp_path: Path) -> None:
    store = with_years(tmp_path, n_periods=5, layers=(0, 2))
    series = measure_periods(store, by="year", tests=ChangeTests(permutations=99, resamples=20))
    figure = plot.series_figure(series)
    first, second = figure.axes
    assert [first.get_title(), second.get_title(), first.get_xlabel()] == ["a", "b", "period"]
    assert figure.get_suptitle() == "Change over periods, layer 2: pairwise distance beyond that within sides"
    line, point = first.lines
    rows = [series.frame.filter(word="a", metric="apd_excess", layer=2, period=new, reference=old).to_dicts()[0]
            for old, new in pairwise(YEARS)]  # fmt: skip
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == ([1, 2, 3, 4], [row["value"] for row in rows])
    ends = [segment[:, 1].tolist() for segment in first.collections[0].get_segments()]
    assert ends == [[row["low"], row["high"]] for row in rows]
    assert (set(point.get_xdata()), len(second.lines)) == ({1.5}, 1), "a change point only where one was planted"
    assert [tick.get_text() for tick in first.get_xticklabels()] == YEARS
    below = plot.series_figure(series, layer=0, words=["a"])
    assert below.get_suptitle().startswith("Change over periods, layer 0 (no context): ")
    values = [series.frame.filter(word="a", metric="apd_excess", layer=0, period=new, reference=old)["value"][0]
              for old, new in pairwise(YEARS)]  # fmt: skip
    assert below.axes[0].lines[0].get_ydata().tolist() == values
    assert plot.series_figure(series, metric="prt", words=["b"]).axes[0].get_title() == "b"
    assert len(plot.series_figure(series, n_words=1).axes) == 1
    paper = plot.series_figure(series, words=["a"], style="paper")
    paper.draw_without_rendering()
    assert paper.get_tightbbox().height <= paper.get_size_inches()[1]
    for wrong in ({"words": ["none"]}, {"words": []}, {"metric": "jsd"}, {"layer": 9}):
        with pytest.raises(InvalidValueError):
            plot.series_figure(series, **wrong)  # type: ignore[arg-type]
