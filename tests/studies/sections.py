"""Read the tables of a study's report."""

from __future__ import annotations

from typing import Any

from embstore_studies import StudyResult


def rows_of(study: StudyResult, title: str) -> list[dict[str, Any]]:
    """Return the rows of the one section whose title begins so."""
    (found,) = (section for section in study.sections if section.title.startswith(title))
    return [dict(row) for row in found.rows]
