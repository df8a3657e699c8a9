"""Figures show the values of their frames and leave the process as it is."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from embstore import plot
from embstore.errors import InvalidValueError, StorageError
from embstore.plot.attention import SHARES
from embstore.plot.curves import STRUCTURE_PANELS
from embstore.plot.drawing import look
from embstore.plot.maps import principal_plane
from tests.drawn import misplaced, svg_texts

ATTENTION = {"share": SHARES, "entropy": ("all", "cls"), "pattern": ("diagonal", "vertical", "block"), "uuas": ("",),
             "relation_to_head": ("nsubj", "obj:lvc", "advmod"), "coreference": ("",)}  # fmt: skip
pytest.importorskip("matplotlib", reason="figures need matplotlib")


def frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Return a summary of probes; columns that a row does not give have a default or are null."""
    text = {"store": "s", "task": "t", "split": "test", "metric": "f1", "item": ""}
    numbers = {"layer": pl.Int64, **dict.fromkeys(("value", "low", "high", "deviation"), pl.Float64)}
    schema = dict.fromkeys(text, pl.String) | numbers
    return pl.DataFrame([text | dict.fromkeys(numbers) | row for row in rows], schema=schema)


def edge_frame(tasks: tuple[str, ...] = ("pos", "roles"), layers: int = 4) -> pl.DataFrame:
    rows: list[dict[str, Any]] = []
    for number, task in enumerate(tasks):
        for layer in range(layers):
            rows.append({"task": task, "layer": layer, "split": "train", "metric": "mixing", "value": (layer + 1) / 10})
            for split, shift in (("dev", 0.3), ("test", 0)):
                value = 0.5 + 0.1 * layer + shift
                rows.append({"task": task, "layer": layer, "split": split, "metric": "f1", "value": value})
            if layer:
                rows.append({"task": task, "layer": layer, "metric": "differential", "value": 0.1 * layer})
        rows += [
            {"task": task, "split": "train", "metric": "center_of_gravity", "value": 1 + number, "deviation": 0.25},
            {"task": task, "metric": "expected_layer", "value": 2.0, "low": 1.5, "high": 2.5},
        ]
    return frame(rows)


def test_edge_layers_draws_weights_and_shares_of_differential_scores() -> None:
    figure = plot.edge_layers({"bert": edge_frame(), "gpt": edge_frame(("pos",))})
    axis = figure.axes[0]
    assert axis.get_xticks().tolist() == [0, 1, 2, 3]
    filled = [bar.get_height() for bar in axis.patches if bar.get_fill()]
    outlines = [bar.get_height() for bar in axis.patches if not bar.get_fill()]
    assert filled == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert outlines == pytest.approx([1 / 6, 2 / 6, 3 / 6]), "shares of the sum, from layer 1 on"
    assert axis.get_title(loc="left") == "pos   center 1.00, expected 2.00"
    assert axis.patches[0].get_alpha() < 0.5, "the line of the center is seen on its bars"
    assert [line.get_linestyle() for line in axis.lines[-2:]] == ["--", ":"]
    keys = {"mixing weight", "center of gravity", "expected layer", "differential score (test), share of the sum"}
    assert {text.get_text() for text in figure.legends[0].texts} == keys, "every colour has a key"
    assert [axis.get_xlabel() for axis in figure.axes[-2:]] == ["layer of bert", "layer of gpt"]
    with pytest.raises(InvalidValueError, match="there are no mixing weights to draw"):
        plot.edge_layers(edge_frame().head(0))


def test_edge_summary_draws_expectations_intervals_and_scores() -> None:
    [axis] = plot.edge_summary(edge_frame()).axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["pos\n50.0 → 80.0", "roles\n50.0 → 80.0"]
    assert [bar.get_width() for bar in axis.patches] == pytest.approx([1, 2, 2, 2])
    spans = [np.array(path)[:, 0].tolist() for bars in axis.containers[1:] for path in _segments(bars)]
    assert spans == [pytest.approx(span) for span in ([0.75, 1.25], [1.75, 2.25], [1.5, 2.5], [1.5, 2.5])]
    assert {"1.00", "2.00"} <= {text.get_text() for text in axis.texts}
    dev = plot.edge_summary(edge_frame(), split="dev").axes[0]
    assert dev.get_yticklabels()[0].get_text() == "pos\n80.0 → 110.0"
    [axis] = plot.edge_summary(edge_frame(layers=5).with_columns(low=pl.col("low") - 1.4)).axes
    assert [text.xy[0] for text in axis.texts[:4]] == [0, 0, 2.5, 2.5], "no error bar crosses a number"


@pytest.mark.parametrize(
    "changed",
    [{"value": None, "item": "not determined: why"}, {"value": -0.96}, {"low": -24.5, "high": 0.92}, {"high": 3.1}],
)
def test_an_expected_layer_that_is_no_position_is_not_drawn(changed: dict[str, Any]) -> None:
    rows = [row | {"high": 2.5} for row in edge_frame(("pos",)).to_dicts()]
    rows = [row | changed if row["metric"] == "expected_layer" else row for row in rows]
    [axis] = plot.edge_summary(frame(rows)).axes
    assert [bar.get_width() for bar in axis.patches] == pytest.approx([1, 0])
    assert "not determined" in [text.get_text() for text in axis.texts]
    axis = plot.edge_layers(frame(rows)).axes[0]
    assert axis.get_title(loc="left") == "pos   center 1.00, expected not determined"
    assert "expected layer" not in {line.get_label() for line in axis.lines}


def _segments(container: Any) -> list[Any]:
    lines = getattr(container, "lines", None)
    return [segment for group in lines[2] for segment in group.get_segments()] if lines else []


def test_scores_of_class_probes_have_a_band_and_dashed_controls() -> None:
    rows = [
        {"task": task, "layer": layer, "split": split, "value": 0.1 * layer, "deviation": 0.05}
        for task in ("class", "control")
        for split in ("dev", "test")
        for layer in (4, 0, 2)
    ]
    axis = plot.probe_scores(frame(rows)).axes[0]
    assert [line.get_linestyle() for line in axis.lines] == ["-", "--"]
    assert axis.lines[0].get_xdata().tolist() == [0, 2, 4]
    assert axis.lines[0].get_ydata().tolist() == pytest.approx([0, 0.2, 0.4])
    edges = axis.collections[0].get_paths()[0].vertices
    assert (edges[:, 1].min(), edges[:, 1].max()) == pytest.approx((-0.05, 0.45))
    assert axis.get_ylabel() == "f1 (test)"
    others = frame([{"metric": name, "layer": 1, "value": 1.0} for name in ("best_epoch", "accuracy")])
    assert plot.probe_scores(others).axes[0].get_ylabel().startswith("accuracy ")


def test_code_lengths_are_drawn_in_kbit() -> None:
    rows = [
        {"task": task, "layer": layer, "metric": metric, "value": value + layer, "deviation": 100.0}
        for task in ("t", "$u")
        for metric, value in (("code_length", 2000.0), ("control_length", 1000.0))
        for layer in (3, 0)
    ]
    rows.append({"metric": "frequency_length", "value": 5000.0})
    figure = plot.code_lengths(frame(rows))
    axis, other = figure.axes
    assert [axis.get_title(), other.get_title(), axis.get_ylabel()] == ["t", r"\$u", "code length (kbit)"]
    assert [line.get_label() for line in axis.lines] == ["each layer alone", "control task", "label frequencies"]
    assert axis.lines[0].get_xdata().tolist() == [0, 3]
    assert axis.lines[0].get_ydata().tolist() == pytest.approx([2, 2.003])
    assert axis.lines[1].get_ydata().tolist() == pytest.approx([1, 1.003])
    assert axis.lines[2].get_ydata()[0] == 5
    assert len(other.lines) == 2, "no label frequencies are known there"
    band = axis.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((1.9, 2.103))
    with pytest.raises(InvalidValueError, match="no code lengths to draw"):
        plot.code_lengths(frame(rows[-1:]))


def test_scores_of_structural_probes_have_a_panel_a_metric() -> None:
    rows = [
        {"store": store, "layer": layer, "metric": metric, "value": 0.1 * layer, "split": split}
        for store in ("bert", "gpt")
        for metric in ("nspr", "uuas")
        for layer in (3, 1)
        for split in ("dev", "test")
    ]
    rows.append({"store": "bert: linear order", "metric": "uuas", "value": 0.4})
    figure = plot.structure_figure(frame(rows))
    assert [axis.get_title() for axis in figure.axes] == ["edges found (UUAS)", "depths (NSpr)"]
    assert figure.axes[0].get_ylabel() == "share of gold edges\n(test)"
    assert [line.get_label() for line in figure.axes[0].lines] == ["bert", "gpt", "linear order"]
    assert figure.axes[0].lines[0].get_ydata().tolist() == pytest.approx([0.1, 0.3])
    with pytest.raises(InvalidValueError, match="there is no metric to draw"):
        plot.structure_figure(frame(rows).head(0))


def test_a_figure_of_a_page_has_the_colors_of_the_page() -> None:
    text = plot.svg(plot.probe_scores(frame([{"layer": layer, "value": 0.1 * layer} for layer in range(3)])))
    assert "stroke: currentColor; stroke-opacity: 0.1" in text
    assert "#eeeeee" not in text
    assert "#000000" not in text


def test_senses_have_a_row_a_word_and_a_column_a_layer() -> None:
    vectors = np.random.default_rng(0).normal(size=(2, 6, 4))
    word = SimpleNamespace(word="$uit", layers=(0, 5), labels=("a", "b", "a", "b", "a", "a"), vectors=vectors)
    figure = plot.sense_map([word, word], layers=(5, 0))  # type: ignore[list-item]
    assert len(figure.axes) == 4
    assert [axis.get_title() for axis in figure.axes[:2]] == ["layer 5", "layer 0 (no context)"]
    for axis, layer in zip(figure.axes, (1, 0, 1, 0), strict=True):
        points = principal_plane(vectors[layer])
        drawn = [part.get_offsets() for part in axis.collections]
        assert [len(part) for part in drawn] == [4, 2]
        np.testing.assert_allclose(drawn[1], points[[1, 3]])
    assert len({tuple(look(number).values()) for number in range(64)}) == 64, "no two labels look alike"


def test_attention_is_drawn_by_head_and_layer() -> None:
    rows = [(layer, head, layer / 10 + head / 100) for layer in (2, 1) for head in (1, 0, 2)]
    axis = plot.attention_heatmap(pl.DataFrame(rows, schema=["layer", "head", "value"], orient="row")).axes[0]
    np.testing.assert_allclose(axis.images[0].get_array(), [[0.1, 0.11, 0.12], [0.2, 0.21, 0.22]])
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("head", "layer")
    patterns = [{"metric": "pattern", "layer": 1, "head": 0, "item": item, "offset": 0, "value": 0.5} for item in "abc"]
    (axis,) = plot.attention_figure(pl.DataFrame(patterns).with_columns(baseline=0.0)).axes
    assert len({bar.get_hatch() for bar in axis.patches}) == 3, "they differ in grey"


@pytest.mark.slow
def test_figures_are_saved_only_with_known_suffixes(tmp_path: Path) -> None:
    figure = plot.edge_layers(edge_frame())
    for suffix, magic in ((".png", b"\x89PNG"), (".pdf", b"%PDF")):
        plot.save(figure, tmp_path / f"a{suffix}")
        assert (tmp_path / f"a{suffix}").read_bytes().startswith(magic)
    plot.save(figure, tmp_path / "a.svg")
    texts = svg_texts(tmp_path / "a.svg")
    assert {"layer", "mixing weight", "center of gravity", "pos   center 1.00, expected 2.00"} <= texts
    with pytest.raises(InvalidValueError, match=r"has no known suffix: choose \.png, \.svg, \.pdf"):
        plot.save(figure, tmp_path / "a.jpg")
    with pytest.raises(StorageError, match=r"cannot write .*a\.png: No such file"):
        plot.save(figure, tmp_path / "none" / "a.png")


@pytest.mark.parametrize("value", [None, 3, "x", [], object(), pl.DataFrame()])
def test_what_cannot_be_drawn_is_refused_in_one_line(value: Any, tmp_path: Path) -> None:
    drawn = re.compile(r".*_(figure|map|heatmap|layers|summary|scores|lengths)$")
    named = [name for name in plot.__all__ if drawn.match(name)]
    assert len(named) == 11
    calls: list[Any] = [getattr(plot, name) for name in named if name != "sense_map"]
    calls += [partial(plot.sense_map, layers=[0])]
    calls += [partial(plot.save, path=tmp_path / "a.png")]
    for call in calls:
        with pytest.raises(InvalidValueError):
            call(value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", [3, "x", b"x", object()])
def test_wrong_options_of_figures_are_refused_in_one_line(value: Any) -> None:
    cka = pl.DataFrame({"layer": [0], "other_layer": [0], "value": [1.0]})
    for call in (
        partial(plot.cka_map, cka, names=value),
        partial(plot.edge_layers, edge_frame(), split=value),
        partial(plot.probe_scores, frame([{}]), metric=value),
        partial(plot.probe_scores, frame([{}]), split=value),
        partial(plot.save, plot.edge_layers(edge_frame()), value),
    ):
        with pytest.raises(InvalidValueError):
            call()


def geometry_frame(metrics: tuple[str, ...], layers: int, *, seed: int = 0, intervals: bool = True) -> pl.DataFrame:
    values = np.random.default_rng(seed).uniform(0.4, 0.6, (len(metrics), layers))
    pairs = zip(metrics, values, strict=True)
    rows = [(metric, layer, value) for metric, own in pairs for layer, value in enumerate(own)]
    frame = pl.DataFrame(rows, schema=["metric", "layer", "value"], orient="row")
    frame = frame.sample(fraction=1, shuffle=True, seed=seed)
    adjusted = pl.when(pl.col("metric") != "anisotropy").then(pl.col("value") - 0.1)
    ends = {"adjusted_low": adjusted - 0.05, "adjusted_high": adjusted + 0.05}
    return frame.with_columns(adjusted=adjusted, **(ends if intervals else {}))


def shown(figure: Any) -> list[Any]:
    return [axis for axis in figure.axes if axis.get_visible() and axis.get_title()]


def test_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    frame = geometry_frame(("mev",), 3)
    figure = plot.geometry_figure({"a$b$": frame, "a_b^c": frame})
    plot.save(figure, tmp_path / "name.svg")
    assert {"a$b$", "a_b^c"} <= svg_texts(tmp_path / "name.svg")
    assert figure.legends[0].get_texts()[0].get_text() == r"a\$b\$"
    assert not plot.geometry_figure(frame).legends


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
    assert sorted(text.get_text() for text in axis.texts) == [".00", ".06", ".30", ".36", ".40", "–"]


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
        for name, band in zip(("bert", "elmo"), bands, strict=False):
            edges, part = band.get_paths()[0].vertices, frames[name].filter(pl.col("metric") == metric)
            for layer, low, high in part.select("layer", "adjusted_low", "adjusted_high").iter_rows():
                drawn = edges[edges[:, 0] == layer, 1]
                assert (drawn.min(), drawn.max()) == pytest.approx((low, high))
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["bert", "gpt2", "elmo"]


def test_other_metrics_are_not_drawn() -> None:
    frame = pl.concat([geometry_frame((metric,), 4) for metric in ("mev", "mean_norm")])
    (axis,) = shown(plot.geometry_figure({"one": frame.cast({"metric": pl.Enum(["mev", "mean_norm"])})}))
    assert axis.get_title() == "Maximum explainable variance"


def test_frames_that_cannot_be_drawn_are_refused() -> None:
    frame = geometry_frame(("selfsim",), 4)
    with pytest.raises(InvalidValueError, match="to draw: give frames with one or more of anisotropy, selfsim"):
        plot.geometry_figure({"one": frame.with_columns(metric=pl.lit("mean_norm"))})
    with pytest.raises(InvalidValueError, match="the frame of one, metric selfsim, has no column 'adjusted'"):
        plot.geometry_figure({"one": frame.drop("adjusted")})


def figures() -> Iterator[Any]:
    metrics = ("anisotropy", "selfsim", "intrasim", "mev")
    for drawn in (metrics, metrics[2:], metrics[:1]):
        yield plot.geometry_figure({name: geometry_frame(drawn, 13) for name in ("bert-base-uncased", "gpt2", "a $")})
    long = "a long name of a task that is broken"
    for tasks in (("pos",), ("pos", "roles", long)):
        yield from (plot.edge_layers(edge_frame(tasks)), plot.edge_summary({"a": edge_frame(tasks), "b": edge_frame()}))
    layers = [
        {"task": task, "layer": layer, "value": 0.1 * layer} for task in ("t", long, "u", "v") for layer in range(25)
    ]
    yield plot.probe_scores(frame(layers))
    yield plot.code_lengths(frame([row | {"metric": "code_length"} for row in layers]))
    yield plot.structure_figure(frame([row | {"metric": each} for row in layers for each in STRUCTURE_PANELS]))
    for most, other in ((25, 33), (13, 13)):
        cells = [{"layer": a, "other_layer": b, "value": a / most} for a in range(most) for b in range(other)]
        yield plot.cka_map(pl.DataFrame(cells), names=("a", "b"))
    points = np.random.default_rng(0).normal(size=(13, 6, 4))
    word = SimpleNamespace(word="a", layers=range(13), labels=tuple("ababaa"), vectors=points)
    yield from (plot.sense_map([word], layers=range(number)) for number in (1, 7, 13))  # type: ignore[list-item]
    heads = [(metric, layer, head, item, None, 0.5, 0.4, 9) for metric, items in ATTENTION.items() for item in items
             for layer in range(1, 31) for head in range(12)]  # fmt: skip
    columns = ["metric", "layer", "head", "item", "offset", "value", "baseline", "count"]
    attention = pl.DataFrame(heads, schema=columns, orient="row")
    for most in (6, 5, 1):
        yield plot.attention_figure(attention.filter(pl.col("metric").is_in([*ATTENTION][:most])), title="a model")


def test_figures_fit_a_column_or_a_page_and_no_text_covers_another() -> None:
    for number, figure in enumerate(figures()):
        assert figure.get_size_inches()[0] in (3.3, 7.0)
        assert (number, misplaced(figure)) == (number, [])


@pytest.mark.slow
def test_figures_do_not_touch_pyplot(tmp_path: Path) -> None:
    code = (
        "import sys, polars as pl; from embstore import plot;"
        "frame = pl.DataFrame({'metric': ['mev'], 'layer': [0], 'adjusted': [0.5]});"
        "plot.save(plot.geometry_figure({'a': frame}), sys.argv[1]);"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.png")], check=True)
