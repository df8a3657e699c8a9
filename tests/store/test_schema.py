"""The JSON Schema of a store's metadata: valid fixtures pass, and fail with each defect where it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from embstore.store import verify
from embstore.store.metadata import parse
from tests.json_schemas import MISSING, changed, validator_of
from tests.store.example import DTYPES, example

VALIDATOR = validator_of("store")
FIXTURES = Path(__file__).parents[1] / "schemas" / "store" / "valid"
VALID = sorted(FIXTURES.glob("*.json"))
DEFECTS: dict[str, tuple[str, tuple[str, ...], Any]] = {  # where it is reported, the member that is changed, its value
    "array of three dimensions": ("$.arrays.layer.shape", ("arrays", "layer", "shape"), [1, 2, 3]),
    "array without checksum": ("$.arrays.layer", ("arrays", "layer", "crc32c"), MISSING),
    "checksum beyond 32 bits": ("$.crc32c", ("crc32c",), 2**32),
    "condition not text": ("$.extraction.keep.where", ("extraction", "keep"), {"where": ["upos = 'VERB'"]}),
    "corpus without name": ("$.corpus", ("corpus", "name"), MISSING),
    "dropped without count": ("$.dropped[0]", ("dropped",), [{"examples": ["x"], "reason": "no subword"}]),
    "index column missing": ("$.arrays", ("arrays", "types/occurrences"), MISSING),
    "layer twice": ("$.layers", ("layers",), [0, 3, 3]),
    "model without name": ("$.model", ("model", "name"), MISSING),
    "negative layer": ("$.layers[0]", ("layers",), [-1, 3]),
    "newer format": ("$.format_version", ("format_version",), 2),
    "no layers": ("$.layers", ("layers",), []),
    "no model": ("$", ("model",), MISSING),
    "no rows": ("$.n_rows", ("n_rows",), 0),
    "partition rows not a multiple of 256": ("$.partition_rows", ("partition_rows",), 300),
    "partition rows zero": ("$.partition_rows", ("partition_rows",), 0),
    "rows not a number": ("$.n_rows", ("n_rows",), "40"),
    "software version not a string": ("$.software.embstore", ("software", "embstore"), 1),
    "unknown dtype": ("$.dtype", ("dtype",), "float64"),
    "unknown member": ("$", ("more",), 1),
    "unknown unit": ("$.extraction.unit", ("extraction", "unit"), "token"),
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


@pytest.mark.parametrize("defect", DEFECTS)
def test_invalid(defect: str) -> None:
    where, path, value = DEFECTS[defect]
    errors = list(VALIDATOR.iter_errors(changed(load(FIXTURES / "float16.json"), path, value)))
    assert [error.json_path for error in errors] == [where]


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_written_is_valid(tmp_path: Path, dtype: str) -> None:
    path = example(dtype=dtype).make(tmp_path / "s.zarr").path
    VALIDATOR.validate(load(path / "zarr.json")["attributes"]["embstore"])
    assert verify(path).ok
