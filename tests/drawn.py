"""What is written in a figure that was saved."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path


def svg_texts(path: Path) -> set[str]:
    """Return every text of an SVG file, which matplotlib draws as outlines and names in a comment."""
    return {unescape(text) for text in re.findall(r"<!-- (.*?) -->", path.read_text("utf-8"))}
