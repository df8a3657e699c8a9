"""Figures of traces: what probes of each layer hold of a sentence, in the manner of Figure 3 of Tenney et al. 2019."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from embstore.errors import InvalidValueError
from embstore.plot.drawing import PALETTE, plain, pyplot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.figure import Figure

    from embstore.probes.edges.traces import Annotation, SentenceTrace

RIGHT, WRONG, GREY, PALE = PALETTE[0], PALETTE[1], "#777777", "#f1f1f1"
ROW, PAIR_GAP = 0.27, 0.16  # inches: a row of bars, and between annotations
CELL, ALL_CELLS = 0.36, 7.0  # inches: a layer at most, and all of them
COLUMN_GAP, SPACE = 0.16, 0.07  # inches: between columns, between words
LINE, UNDERLINE = 0.24, 0.085  # inches: a line of the sentence, a line under its words
NARROWEST = 5.0  # inches of the whole
LONGEST = 34  # characters of a span that are shown
Span = tuple[int, int]


def trace_figure(trace: SentenceTrace, *, title: str | None = None) -> Figure:
    """Draw the annotations of a sentence, two rows of bars each: the right label blue, the best wrong one orange.

    A column is a layer, a full cell the probability 1. On top stands the sentence, the spans of the annotations under
    lines that bear their number (dashed: the second of two spans); on the right the average of the right label.
    Raises InvalidValueError for a trace without annotations.
    """
    if not trace.annotations:
        raise InvalidValueError(f"sentence {trace.number} has no annotation to draw: give a trace with some")
    numbers = _numbers(trace)
    held = sorted(trace.annotations, key=lambda each: numbers[each.span1, each.span2])
    names = [f"{numbers[each.span1, each.span2]}  {_spans(each, trace.words)}" for each in held]
    cell = min(CELL, ALL_CELLS / len(trace.layers))
    labels = [label for each in held for label in (each.right, each.wrong) if label is not None]
    left = max(*(_width(name, 10) for name in names), *(_width(each.task, 8.5) for each in held))
    bars = left + max(_width(label, 9) for label in labels) + 2 * COLUMN_GAP
    end = bars + cell * len(trace.layers)
    whole = max(end + 0.45, NARROWEST)
    lines = _broken(trace.words, whole)
    marks = _marked(numbers, lines)
    above = sum(LINE + UNDERLINE * line.depth for line in lines) + 0.2
    below = len(held) * (2 * ROW + PAIR_GAP) + 0.12
    figure, axis = _canvas(whole, above, below, title)
    _sentence(axis, lines, marks, above)
    for place, (each, name) in enumerate(zip(held, names, strict=True)):
        top = -place * (2 * ROW + PAIR_GAP)
        axis.text(0, top - 0.5 * ROW, plain(name), fontsize=10, va="center")
        axis.text(0, top - 1.45 * ROW, plain(each.task), fontsize=8.5, va="center", color=GREY)
        _bars(axis, each, top, bars, cell)
        axis.text(end + 0.08, top - 0.5 * ROW, f"{each.average:.2f}", fontsize=8.5, va="center", color=RIGHT)
    foot = -len(held) * (2 * ROW + PAIR_GAP) + PAIR_GAP - 0.06
    size = min(8.5, 30 * cell)
    for place, layer in enumerate(trace.layers):
        axis.text(bars + (place + 0.5) * cell, foot, str(layer), fontsize=size, ha="center", va="top")
    axis.text(bars - COLUMN_GAP, foot, "layers up to", fontsize=8.5, ha="right", va="top", color=GREY)
    axis.text(end + 0.08, foot, "mean", fontsize=8.5, va="top", color=GREY)
    return figure  # type: ignore[no-any-return]


def _canvas(whole: float, above: float, below: float, title: str | None) -> tuple[Any, Any]:
    """A figure whose axis counts inches, 0 at the left of the first row of bars."""
    head = 0.4 if title else 0.1
    figure = pyplot().figure(figsize=(whole + 0.2, above + below + head + 0.1))
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set_xlim(-0.1, whole + 0.1)
    axis.set_ylim(-below - 0.1, above + head)
    axis.axis("off")
    if title:
        axis.text(whole / 2, above + 0.2, plain(title), fontsize=11, ha="center", va="center")
    return figure, axis


@dataclass
class _Line:
    """A line of the sentence: its words `first`, ..., the inches where each begins and ends, `depth` lines below."""

    first: int
    begins: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    depth: int = 0


@dataclass(frozen=True)
class _Mark:
    """A line under the words of a span that stand in one line of the sentence."""

    line: int
    begin: float
    end: float
    depth: int
    text: str
    dashed: bool


def _numbers(trace: SentenceTrace) -> dict[tuple[Span, Span | None], int]:
    """A number for each span or pair of spans that annotations have, from left to right."""
    held = sorted(
        {(each.span1, each.span2) for each in trace.annotations}, key=lambda spans: (spans[0], spans[1] or ())
    )
    return {spans: number for number, spans in enumerate(held, 1)}


def _spans(each: Annotation, words: Sequence[str]) -> str:
    first = _short(" ".join(words[slice(*each.span1)]))
    return (
        first if each.span2 is None else f"{first} \N{RIGHTWARDS ARROW} {_short(' '.join(words[slice(*each.span2)]))}"
    )


def _short(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    half = (LONGEST - 3) // 2
    return f"{text[:half].rstrip()} ... {text[-half:].lstrip()}"


def _width(text: str, size: float) -> float:
    """The inches that a text takes."""
    from matplotlib.textpath import TextPath

    return float(TextPath((0, 0), plain(text), size=size).get_extents().x1) / 72 if text.strip() else 0.0


def _broken(words: Sequence[str], whole: float) -> list[_Line]:
    """The words in lines of no more than `whole` inches."""
    lines = [_Line(0)]
    for number, word in enumerate(words):
        wide = _width(word, 11)
        begin = lines[-1].ends[-1] + SPACE if lines[-1].ends else 0.0
        if begin + wide > whole and lines[-1].words:
            lines.append(_Line(number))
            begin = 0.0
        lines[-1].words.append(word)
        lines[-1].begins.append(begin)
        lines[-1].ends.append(begin + wide)
    return lines


def _marked(numbers: Mapping[tuple[Span, Span | None], int], lines: list[_Line]) -> list[_Mark]:
    """A line under each span, so deep that it meets no other; sets the depths of the lines of words."""
    marks: list[_Mark] = []
    for spans, number in numbers.items():
        for kind, span in enumerate(spans):
            if span is None:
                continue
            for place, line in enumerate(lines):
                start, stop = (min(max(end - line.first, 0), len(line.words)) for end in span)
                if start == stop:
                    continue
                begin, end = line.begins[start], line.ends[stop - 1]
                taken = {
                    mark.depth
                    for mark in marks
                    if mark.line == place and begin < mark.end + 0.1 and mark.begin < end + 0.1
                }
                depth = next(depth for depth in range(len(marks) + 1) if depth not in taken)
                line.depth = max(line.depth, depth + 1)
                marks.append(_Mark(place, begin, end, depth, str(number), dashed=kind == 1))
    return marks


def _sentence(axis: Any, lines: Sequence[_Line], marks: Sequence[_Mark], above: float) -> None:
    base = above
    for place, line in enumerate(lines):
        base -= LINE * 0.75
        for word, begin in zip(line.words, line.begins, strict=True):
            axis.text(begin, base, plain(word), fontsize=11, va="baseline")
        for mark in marks:
            if mark.line == place:
                height = base - 0.07 - UNDERLINE * mark.depth
                style = (0, (3, 1.5)) if mark.dashed else "-"
                across = [mark.begin + 0.07 * len(mark.text), mark.end]
                axis.plot(across, [height, height], color=GREY, linewidth=1, linestyle=style)
                axis.text(mark.begin, height, mark.text, fontsize=5.5, va="center", color="#333333")
        base -= LINE * 0.25 + UNDERLINE * line.depth


def _bars(axis: Any, each: Annotation, top: float, begin: float, cell: float) -> None:
    """Two rows of bars with their labels; a pale ground shows how high the probability 1 is."""
    rows = [(each.right, each.right_probability, RIGHT), (each.wrong, each.wrong_probability, WRONG)]
    for number, (label, values, color) in enumerate(rows):
        if label is None:
            continue
        floor = top - (number + 1) * ROW
        height = ROW - 0.04
        axis.text(begin - COLUMN_GAP, floor + ROW / 2, plain(label), fontsize=9, ha="right", va="center", color=color)
        places = [begin + (place + 0.5) * cell for place in range(len(values))]
        axis.bar(places, height, cell * 0.82, bottom=floor, color=PALE, linewidth=0)
        axis.bar(places, values * height, cell * 0.82, bottom=floor, color=color, linewidth=0)
