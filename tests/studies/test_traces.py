"""Traces of sentences: what they hold is what the probes predict, and their figures show it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embstore.errors import InvalidValueError
from embstore.probes import EdgeProbe, Training
from embstore_studies.tenney2019.trace_figure import RIGHT as RIGHT_COLOR
from embstore_studies.tenney2019.trace_figure import ROW, trace_figure
from embstore_studies.tenney2019.trace_figure import WRONG as WRONG_COLOR
from embstore_studies.tenney2019.traces import (
    Annotation,
    SentenceTrace,
    Traces,
    ambiguous_sentences,
    decision_reversals,
    trace,
)
from tests.probes.edge_store import make


def texts(axis: Any) -> list[str]:
    return [text.get_text() for text in axis.texts]


def color(artist: Any) -> str:
    from matplotlib.colors import to_hex

    return to_hex(artist.get_facecolor()).upper()


def annotation(task: str, span1: Any, span2: Any, wrong: str | None) -> Annotation:
    right, others = np.array([0.1, 0.4, 0.8]), np.array([0.7, 0.5, 0.1])
    return Annotation(task, span1, span2, "RIGHT", wrong, right, others, right > others)


def test_bars_of_a_trace_are_as_high_as_the_probabilities() -> None:
    words = ("he", "smoked", "$toronto", "in", "the", "playoffs")
    annotations = (annotation("roles", (1, 2), (2, 3), "ARG0"), annotation("pos", (2, 3), None, None))
    trace = SentenceTrace(3, words, (0, 1, 4), annotations)
    axis = trace_figure(trace, title="a title").axes[0]
    expected = {"smoked", r"\$toronto", "1  smoked → \\$toronto", "2  \\$toronto", "RIGHT", "ARG0", "0.43", "4"}
    assert expected <= set(texts(axis))
    heights: dict[str, list[float]] = {RIGHT_COLOR: [], WRONG_COLOR: []}
    for bar in axis.patches:
        if (name := color(bar)) in heights:
            heights[name].append(bar.get_height() / (ROW - 0.04))
    assert heights[RIGHT_COLOR] == pytest.approx([0.1, 0.4, 0.8] * 2)
    assert heights[WRONG_COLOR] == pytest.approx([0.7, 0.5, 0.1]), "an edge without a wrong label has no orange row"
    assert [line.get_linestyle() for line in axis.lines].count("--") == 1, "the second span of the pair"
    assert len(axis.lines) == 3
    with pytest.raises(InvalidValueError, match="sentence 3 has no annotation to draw"):
        trace_figure(replace(trace, annotations=()))


@pytest.mark.slow
def test_long_sentences_of_a_trace_are_broken_into_lines() -> None:
    words = tuple(f"word{number}" for number in range(60))
    trace = SentenceTrace(0, words, (0, 1, 4), (annotation("pos", (5, 40), None, "X"),))
    axis = trace_figure(trace).axes[0]
    heights = {text.get_position()[1] for text in axis.texts if text.get_text() in words}
    assert len(heights) > 3
    assert len(axis.lines) > 1, "a span over several lines has a line under each"


def test_underlines_of_narrow_words_are_right_of_their_numbers() -> None:
    spans = [annotation("pos", (place, place + 1), None, "X") for place in range(12)]
    axis = trace_figure(SentenceTrace(0, ("i",) * 12, (0, 1), tuple(spans))).axes[0]
    numbers = {text.get_position(): text.get_window_extent().x1 for text in axis.texts if text.get_fontsize() == 5.5}
    lines = sorted(tuple(axis.transData.transform(line.get_xydata())[:, 0]) for line in axis.lines)
    assert len(lines) == len(numbers) == 12
    assert all(start < end for start, end in lines)
    assert all(end <= start for end, (start, _) in zip(sorted(numbers.values()), lines, strict=True))


@pytest.mark.parametrize("several", [False, True])
def test_traces_hold_the_probabilities_of_the_probes(several: bool, tmp_path: Path) -> None:
    made = make(tmp_path / "a.zarr", sentences=30, several=several)
    training = Training(epochs=2, batch_size=8, learning_rate=0.01, patience=0)
    probe = EdgeProbe(projection=6, hidden_size=6, training=training).fit(
        made.store, made.splits["train"], name="spans"
    )
    given = made.splits["test"]
    traces = trace(made.store, [(probe, given)], split="test")
    shares = probe.predict(given).astype(float)
    if not several:
        shares /= shares.sum(2, keepdims=True)
    names = probe.fitted_.labels.labels
    edges = [edge for sentence in traces.sentences for edge in sentence.annotations]
    wanted = [(number, label) for number, target in enumerate(
        target for sentence in given for target in sentence.targets) for label in sorted(target.labels)]  # fmt: skip
    assert len(edges) == len(wanted)
    for edge, (number, label) in zip(edges, wanted, strict=True):
        assert edge.right == label
        np.testing.assert_allclose(edge.right_probability, shares[:, number, names.index(label)])
        if edge.wrong is not None:
            np.testing.assert_allclose(edge.wrong_probability, shares[:, number, names.index(edge.wrong)])


def traces_of(*answers: list[list[bool]]) -> Traces:
    """Sentences with an edge for each list of answers by layer; the right label is ahead where the answer is."""
    sentences = []
    for number, edges in enumerate(answers):
        annotations = tuple(
            Annotation("pos", (place, place + 1), None, "a", "b", 0.3 + 0.2 * now, 0.4 + 0 * now, now.astype(bool))
            for place, now in enumerate(np.array(edges, float))
        )
        sentences.append(SentenceTrace(number, ("w",) * len(edges), (0, 2, 3), annotations))
    return Traces((0, 2, 3), ("pos",), tuple(sentences))


def test_reversals_and_ambiguous_sentences_are_counted() -> None:
    traces = traces_of([[False, True, False], [True, True, True]], [[False, False, True]])
    rows = decision_reversals(traces).select("layer", "edges", "gained", "lost", "returned").rows()
    assert rows == [(2, 3, 1, 0, 0), (3, 3, 1, 1, 1)]
    other = traces_of([[True, True, False], [True, False, True]], [[False, False, False]])
    assert decision_reversals(traces, other)["by_seed"].to_list() == [1, 1]
    with pytest.raises(InvalidValueError, match="not of the same edges"):
        decision_reversals(traces, traces_of([[True, True, True]]))
    assert ambiguous_sentences(traces).select("sentence", "ambiguous", "turned", "edges").rows() == [(0, 2, 0, 2)]
