"""The JSON Schema of the metadata of an index: valid fixtures pass, invalid ones fail for the defect in their name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from embstore.analysis.neighbors.index import build_index
from tests.analysis.index_store import LAYER, hard_store
from tests.json_schemas import validator_of

VALIDATOR = validator_of("index_file")
FIXTURES = Path(__file__).parents[1] / "schemas" / "index_file"
VALID = sorted((FIXTURES / "valid").glob("*.json"))
INVALID = sorted((FIXTURES / "invalid").glob("*.json"))
WHERE = {
    "checksum-beyond-32-bits": "$.files['index.faiss'].crc32c",
    "digest-cut-short": "$.settings.digest",
    "file-of-no-bytes": "$.files['index.faiss'].nbytes",
    "name-of-a-hidden-folder": "$.name",
    "negative-layer": "$.settings.layer",
    "newer-format": "$.format_version",
    "no-index-file": "$.files",
    "no-settings": "$",
    "unknown-member": "$",
    "unknown-metric": "$.settings.metric",
    "unknown-parameter": "$.parameters",
}


def load(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_valid(path: Path) -> None:
    VALIDATOR.validate(load(path))


@pytest.mark.parametrize("path", INVALID, ids=lambda path: path.stem)
def test_invalid(path: Path) -> None:
    errors = list(VALIDATOR.iter_errors(load(path)))
    assert [error.json_path for error in errors] == [WHERE[path.stem]]


def test_every_defect_has_its_fixture() -> None:
    assert {path.stem for path in INVALID} == set(WHERE)
    assert VALID


@pytest.mark.parametrize("kind", ["flat", "ivf", "ivfpq", "hnsw", "IVF4,SQ8"])
@pytest.mark.quick(2)
def test_metadata_of_new_indexes_is_valid(tmp_path: Path, kind: str) -> None:
    store = hard_store(tmp_path / "s.zarr").store
    index = build_index(store, layer=LAYER, kind=kind, n_components=1, threads=1)
    VALIDATOR.validate(load(index.path / "index.json"))
