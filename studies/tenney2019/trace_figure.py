"""The figure of one sentence: what the probes of each layer predict (Tenney et al. 2019, Figure 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from embstore.errors import InvalidValueError
from embstore.plot.drawing import PALETTE, literal, subplots
from embstore_studies.tenney2019.traces import Annotation, SentenceTrace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RIGHT, WRONG, GREY, PALE = PALETTE[0], PALETTE[1], "#777777", "#f1f1f1"
# Sizes in inches.
ROW, PAIR_GAP = 0.27, 0.16  # height of a row of bars, and space between annotations
MAX_CELL, MAX_CELLS = 0.36, 7.0  # width of a layer at most, and of all layers
COLUMN_GAP, WORD_GAP = 0.16, 0.07  # between columns, between words
LINE, UNDERLINE = 0.24, 0.085  # height of a line of the sentence, and of a line under its words
NUMBER = 0.07  # width of a digit next to such a line
MIN_WIDTH = 5.0  # of the figure
MAX_SPAN = 34  # characters of a span that are shown
KEY = "bar: probability in each layer, full height 1   blue: right label   orange: most probable wrong label"
Span = tuple[int, int]
Spans = tuple[Span, Span | None]


def trace_figure(trace: SentenceTrace, *, title: str | None = None) -> Figure:
    """Draw the annotations of a sentence, two rows of bars each: the right label blue, the best wrong one orange.

    A column is a layer; a full cell is the probability 1, and the number on the right is the mean of the right label's
    probability. Above is the sentence; the spans of the annotations have numbered lines under them, dashed for the
    second of two spans. Raises InvalidValueError for a trace without annotations.
    """
    if not trace.annotations:
        raise InvalidValueError(f"sentence {trace.number} has no annotation to draw: give a trace with some")
    numbers = _span_numbers(trace)
    annotations = sorted(trace.annotations, key=lambda each: numbers[each.span1, each.span2])
    names = [f"{numbers[each.span1, each.span2]}  {_span_text(each, trace.words)}" for each in annotations]
    cell = min(MAX_CELL, MAX_CELLS / len(trace.layers))
    labels = [label for each in annotations for label in (each.right, each.wrong) if label is not None]
    left = max(*(_text_width(name, 10) for name in names), *(_text_width(each.task, 8.5) for each in annotations))
    bars = left + max(_text_width(label, 9) for label in labels) + 2 * COLUMN_GAP
    end = bars + cell * len(trace.layers)
    width = max(end + 0.45, MIN_WIDTH)
    lines = _break_lines(trace.words, width)
    underlines = _place_underlines(numbers, lines)
    above = sum(LINE + UNDERLINE * line.depth for line in lines) + 0.2
    below = len(annotations) * (2 * ROW + PAIR_GAP) + 0.3
    figure, axis = _canvas(width, above, below, title)
    _draw_sentence(axis, lines, underlines, above)
    for number, (each, name) in enumerate(zip(annotations, names, strict=True)):
        top = -number * (2 * ROW + PAIR_GAP)
        axis.text(0, top - 0.5 * ROW, literal(name), fontsize=10, va="center")
        axis.text(0, top - 1.45 * ROW, literal(each.task), fontsize=8.5, va="center", color=GREY)
        _draw_bars(axis, each, top, bars, cell)
        axis.text(end + 0.08, top - 0.5 * ROW, f"{each.average:.2f}", fontsize=8.5, va="center", color=RIGHT)
    foot = -len(annotations) * (2 * ROW + PAIR_GAP) + PAIR_GAP - 0.06
    fontsize = min(8.5, 30 * cell)
    for number, layer in enumerate(trace.layers):
        axis.text(bars + (number + 0.5) * cell, foot, str(layer), fontsize=fontsize, ha="center", va="top")
    axis.text(bars - COLUMN_GAP, foot, "layers up to", fontsize=8.5, ha="right", va="top", color=GREY)
    axis.text(end + 0.08, foot, "mean", fontsize=8.5, va="top", color=GREY)
    axis.text(0, foot - 0.2, KEY, fontsize=6.5, va="top", color=GREY)
    return figure  # type: ignore[no-any-return]


def _canvas(width: float, above: float, below: float, title: str | None) -> tuple[Any, Any]:
    """Return a figure and its axis, whose unit is an inch, with y = 0 at the top of the first row of bars."""
    head = 0.4 if title else 0.1
    figure, axes = subplots(figsize=(width + 0.2, above + below + head + 0.1), layout="none")
    axis = axes[0, 0]
    axis.set_position((0, 0, 1, 1))
    axis.set_xlim(-0.1, width + 0.1)
    axis.set_ylim(-below - 0.1, above + head)
    axis.axis("off")
    if title:
        axis.text(width / 2, above + 0.2, literal(title), fontsize=11, ha="center", va="center")
    return figure, axis


@dataclass
class _Line:
    """A line of the sentence, from word `first` on.

    `begins`, `ends`: where each word begins and ends. `depth`: the number of underlines below each other.
    """

    first: int
    begins: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    depth: int = 0


@dataclass(frozen=True)
class _Underline:
    """A line under the words of a span that are in one line of the sentence."""

    line: int
    begin: float
    end: float
    depth: int
    text: str
    dashed: bool


def _span_numbers(trace: SentenceTrace) -> dict[Spans, int]:
    """Number the spans and pairs of spans of the annotations from left to right."""
    spans = {(each.span1, each.span2) for each in trace.annotations}
    ordered = sorted(spans, key=lambda pair: (pair[0], pair[1] or ()))
    return {pair: number for number, pair in enumerate(ordered, 1)}


def _span_text(each: Annotation, words: Sequence[str]) -> str:
    spans = [each.span1] if each.span2 is None else [each.span1, each.span2]
    return " \N{RIGHTWARDS ARROW} ".join(_shortened(" ".join(words[slice(*span)])) for span in spans)


def _shortened(text: str) -> str:
    if len(text) <= MAX_SPAN:
        return text
    half = (MAX_SPAN - 3) // 2
    return f"{text[:half].rstrip()} ... {text[-half:].lstrip()}"


def _text_width(text: str, fontsize: float) -> float:
    from matplotlib.textpath import TextPath

    return float(TextPath((0, 0), literal(text), size=fontsize).get_extents().x1) / 72 if text.strip() else 0.0


def _break_lines(words: Sequence[str], width: float) -> list[_Line]:
    """Break the words into lines of at most `width`."""
    lines = [_Line(0)]
    for number, word in enumerate(words):
        word_width = _text_width(word, 11)
        begin = lines[-1].ends[-1] + WORD_GAP if lines[-1].ends else 0.0
        if begin + word_width > width and lines[-1].words:
            lines.append(_Line(number))
            begin = 0.0
        lines[-1].words.append(word)
        lines[-1].begins.append(begin)
        lines[-1].ends.append(begin + word_width)
    return lines


def _place_underlines(numbers: Mapping[Spans, int], lines: list[_Line]) -> list[_Underline]:
    """Place a line under each span, deep enough not to meet another; sets the depths of the lines of words."""
    underlines: list[_Underline] = []
    for spans, number in numbers.items():
        for kind, span in enumerate(spans):
            if span is None:
                continue
            for index, line in enumerate(lines):
                start, stop = (min(max(end - line.first, 0), len(line.words)) for end in span)
                if start == stop:
                    continue
                begin = line.begins[start]
                end = max(line.ends[stop - 1], begin + NUMBER * len(str(number)) + 0.04)  # right of its number
                taken = {
                    other.depth
                    for other in underlines
                    if other.line == index and begin < other.end + 0.1 and other.begin < end + 0.1
                }
                depth = next(depth for depth in range(len(underlines) + 1) if depth not in taken)
                line.depth = max(line.depth, depth + 1)
                underlines.append(_Underline(index, begin, end, depth, str(number), dashed=kind == 1))
    return underlines


def _draw_sentence(axis: Any, lines: Sequence[_Line], underlines: Sequence[_Underline], above: float) -> None:
    base = above
    for index, line in enumerate(lines):
        base -= LINE * 0.75
        for word, begin in zip(line.words, line.begins, strict=True):
            axis.text(begin, base, literal(word), fontsize=11, va="baseline")
        for mark in underlines:
            if mark.line == index:
                y = base - 0.07 - UNDERLINE * mark.depth
                x = [mark.begin + NUMBER * len(mark.text), mark.end]
                axis.plot(x, [y, y], color=GREY, linewidth=1, linestyle=(0, (3, 1.5)) if mark.dashed else "-")
                axis.text(mark.begin, y, mark.text, fontsize=5.5, va="center", color="#333333")
        base -= LINE * 0.25 + UNDERLINE * line.depth


def _draw_bars(axis: Any, each: Annotation, top: float, begin: float, cell: float) -> None:
    """Draw two rows of bars with their labels; the pale background shows the height of probability 1."""
    rows = [(each.right, each.right_probability, RIGHT), (each.wrong, each.wrong_probability, WRONG)]
    for number, (label, values, color) in enumerate(rows):
        if label is None:
            continue
        floor = top - (number + 1) * ROW
        height = ROW - 0.04
        axis.text(begin - COLUMN_GAP, floor + ROW / 2, literal(label), fontsize=9, ha="right", va="center", color=color)
        x = [begin + (layer + 0.5) * cell for layer in range(len(values))]
        axis.bar(x, height, cell * 0.82, bottom=floor, color=PALE, linewidth=0)
        axis.bar(x, values * height, cell * 0.82, bottom=floor, color=color, linewidth=0)
