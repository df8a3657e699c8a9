"""The JSON Schemas that come with the package, and documents with one defect."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache
from importlib import resources
from typing import Any

import jsonschema

MISSING = object()


@cache
def validator_of(name: str) -> jsonschema.Draft202012Validator:
    """Return what validates documents by a schema, which is checked itself."""
    schema = json.loads(resources.files("embstore.schemas").joinpath(f"{name}.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def changed(document: Any, path: tuple[str, ...], value: Any) -> Any:
    """Return a copy of a document with the member at `path` set to a value, or left out for MISSING."""
    found = inner = deepcopy(document)
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    if value is MISSING:
        del inner[path[-1]]
    return found
