"""Plans from keyword arguments, those of `ExtractionOptions` among them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest import mock

import embstore as es

_FIELDS = {field.name for field in fields(es.ExtractionOptions)}


def plan_of(corpus: Any, **arguments: Any) -> es.extraction.Plan:
    """Return a plan without calibration; the fields of `ExtractionOptions` are keywords."""
    options = es.ExtractionOptions(**{name: value for name, value in arguments.items() if name in _FIELDS})
    rest = {name: value for name, value in arguments.items() if name not in _FIELDS}
    return es.plan(corpus, **({"options": options, "calibrate": False} | rest))


def counted(plan: es.extraction.Plan, path: Path) -> tuple[es.Store, int]:
    """Extract, and count the subwords that the model is given."""
    given: list[int] = []
    encode = plan.encoder.encode

    def counting(tokenized: Any, *rest: Any, **options: Any) -> Any:
        given.append(len(tokenized.ids))
        return encode(tokenized, *rest, **options)

    with mock.patch.object(plan.encoder, "encode", counting):
        return es.extract(plan, path), sum(given)
