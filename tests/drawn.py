"""What is written in a figure that was saved."""

from __future__ import annotations

import re
from html import unescape
from itertools import combinations
from pathlib import Path
from typing import Any


def svg_texts(path: Path) -> set[str]:
    """Return every text of an SVG file, which matplotlib draws as outlines and names in a comment."""
    return {unescape(text) for text in re.findall(r"<!-- (.*?) -->", path.read_text("utf-8"))}


def misplaced(figure: Any) -> list[tuple[str, ...]]:
    """Return the texts of a figure outside it or below 6 pt, and the pairs of which one covers or touches the other."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    axes = [each for axis in figure.axes for each in (axis.xaxis, axis.yaxis)]
    ticks = [(tick, sorted(axis.get_view_interval())) for axis in axes for tick in axis.get_major_ticks()]
    beyond = {tick.label1 for tick, (low, high) in ticks if not low - 1e-9 <= tick.get_loc() <= high + 1e-9}
    shown = [
        each for each in figure.findobj(Text) if each.get_text().strip() and each.get_visible() and each not in beyond
    ]
    boxes = [(each.get_text(), each.get_window_extent(canvas.get_renderer()).padded(0.75)) for each in shown]
    inside = figure.bbox.padded(1)
    outside = [(text,) for text, box in boxes if not all(inside.contains(*corner) for corner in (box.min, box.max))]
    outside += [(each.get_text(),) for each in shown if each.get_fontsize() < 6]
    return outside + [(text, other) for (text, box), (other, its) in combinations(boxes, 2) if box.overlaps(its)]
