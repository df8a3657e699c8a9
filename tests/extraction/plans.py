"""Plans from keyword arguments, those of `ExtractionOptions` among them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import embstore as es
from embstore.extraction.window_plan import WindowPlan

_FIELDS = {field.name for field in fields(es.ExtractionOptions)}


def plan_of(corpus: Any, **arguments: Any) -> es.extraction.Plan:
    """Return a plan without calibration; the fields of `ExtractionOptions` are keywords."""
    return es.plan(corpus, **_arguments(arguments))


def window_plan_of(corpus: Any, **arguments: Any) -> WindowPlan:
    """Return a plan of several windows without calibration; the fields of `ExtractionOptions` are keywords."""
    return es.extraction.plan_windows(corpus, **_arguments(arguments))


def _arguments(given: dict[str, Any]) -> dict[str, Any]:
    options = es.ExtractionOptions(**{name: value for name, value in given.items() if name in _FIELDS})
    rest = {name: value for name, value in given.items() if name not in _FIELDS}
    return {"options": options, "calibrate": False} | rest
