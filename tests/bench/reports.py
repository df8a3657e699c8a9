"""Reports held against their schema."""

import json
from importlib import resources

import jsonschema


def validate(report: dict[str, object]) -> None:
    against = json.loads(resources.files("embstore.schemas").joinpath("bench.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(against)
    jsonschema.validate(report, against)
