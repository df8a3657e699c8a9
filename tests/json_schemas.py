"""The JSON Schemas that come with the package."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources

import jsonschema


@cache
def validator_of(name: str) -> jsonschema.Draft202012Validator:
    """Return what validates documents by a schema, which is checked itself."""
    schema = json.loads(resources.files("embstore.schemas").joinpath(f"{name}.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)
