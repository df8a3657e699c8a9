"""The JSON Schema of the metadata of an index: valid fixtures pass, and fail with each defect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from embstore.analysis.neighbors.index import build_index
from tests.analysis.index_store import LAYER, hard_store
from tests.json_schemas import MISSING, changed, validator_of

VALIDATOR = validator_of("index_file")
FIXTURES = Path(__file__).parents[1] / "schemas" / "index_file" / "valid"
VALID = sorted(FIXTURES.glob("*.json"))
DEFECTS: dict[str, tuple[str, tuple[str, ...], Any]] = {  # where it is reported, the member that is changed, its value
    "checksum beyond 32 bits": ("$.files['index.faiss'].crc32c", ("files", "index.faiss", "crc32c"), 2**32),
    "digest cut short": ("$.settings.digest", ("settings", "digest"), "abc"),
    "file of no bytes": ("$.files['index.faiss'].nbytes", ("files", "index.faiss", "nbytes"), 0),
    "name of a hidden folder": ("$.name", ("name",), ".x"),
    "negative layer": ("$.settings.layer", ("settings", "layer"), -1),
    "newer format": ("$.format_version", ("format_version",), 2),
    "no index file": ("$.files", ("files", "index.faiss"), MISSING),
    "no settings": ("$", ("settings",), MISSING),
    "unknown member": ("$", ("notes",), ""),
    "unknown metric": ("$.settings.metric", ("settings", "metric"), "jaccard"),
    "unknown parameter": ("$.parameters", ("parameters", "speed"), 3),
}


def load(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_valid(path: Path) -> None:
    VALIDATOR.validate(load(path))


@pytest.mark.parametrize("defect", DEFECTS)
def test_invalid(defect: str) -> None:
    where, path, value = DEFECTS[defect]
    document = changed(load(FIXTURES / "ivf-less-two-components.json"), path, value)
    assert [error.json_path for error in VALIDATOR.iter_errors(document)] == [where]


@pytest.mark.parametrize("kind", ["flat", "ivf", "ivfpq", "hnsw", "IVF4,SQ8"])
@pytest.mark.quick(2)
def test_metadata_of_new_indexes_is_valid(tmp_path: Path, kind: str) -> None:
    store = hard_store(tmp_path / "s.zarr").store
    index = build_index(store, layer=LAYER, kind=kind, n_components=1, threads=1)
    VALIDATOR.validate(load(index.path / "index.json"))
