"""The JSON Schema of a store's metadata: valid fixtures pass, each invalid one fails for the defect in its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from embstore.store import verify
from embstore.store.metadata import parse
from tests.json_schemas import validator_of
from tests.store.example import DTYPES, example

VALIDATOR = validator_of("store")
FIXTURES = Path(__file__).parents[1] / "schemas" / "store"
VALID = sorted((FIXTURES / "valid").glob("*.json"))
INVALID = sorted((FIXTURES / "invalid").glob("*.json"))
WHERE = {
    "array-of-three-dimensions": "$.arrays.layer.shape",
    "array-without-checksum": "$.arrays.layer",
    "checksum-beyond-32-bits": "$.crc32c",
    "condition-not-text": "$.extraction.keep.where",
    "corpus-without-name": "$.corpus",
    "dropped-without-count": "$.dropped[0]",
    "index-column-missing": "$.arrays",
    "layer-twice": "$.layers",
    "model-without-name": "$.model",
    "negative-layer": "$.layers[0]",
    "newer-format": "$.format_version",
    "no-layers": "$.layers",
    "no-model": "$",
    "no-rows": "$.n_rows",
    "partition-rows-not-a-multiple-of-256": "$.partition_rows",
    "partition-rows-zero": "$.partition_rows",
    "rows-not-a-number": "$.n_rows",
    "software-version-not-a-string": "$.software.embstore",
    "unknown-dtype": "$.dtype",
    "unknown-member": "$",
    "unknown-unit": "$.extraction.unit",
}


def load(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_valid(path: Path) -> None:
    document = load(path)
    VALIDATOR.validate(document)
    if path.stem != "full-model-nothing-dropped":  # edited by hand, its checksum is another's
        metadata, arrays = parse(document, path=str(path))
        assert metadata.n_rows == 40
        assert ("center" in arrays) == (metadata.dtype == "int8")


@pytest.mark.parametrize("path", INVALID, ids=lambda path: path.stem)
def test_invalid(path: Path) -> None:
    errors = list(VALIDATOR.iter_errors(load(path)))
    assert [error.json_path for error in errors] == [WHERE[path.stem]]


def test_every_defect_has_its_fixture() -> None:
    assert {path.stem for path in INVALID} == set(WHERE)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_written_is_valid(tmp_path: Path, dtype: str) -> None:
    path = example(dtype=dtype).make(tmp_path / "s.zarr").path
    VALIDATOR.validate(load(path / "zarr.json")["attributes"]["embstore"])
    assert verify(path).ok
