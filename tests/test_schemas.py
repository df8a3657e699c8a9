"""The JSON Schemas of the metadata of stores and indexes: valid files pass, and fail with each defect where it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from embstore.analysis.neighbors.index import build_index
from embstore.store import verify
from embstore.store.metadata import parse
from tests.analysis.index_store import LAYER, hard_store
from tests.json_schemas import MISSING, changed, validator_of
from tests.store.example import DTYPES, example

FIXTURES = Path(__file__).parent / "schemas"
VALID = sorted(FIXTURES.glob("*/valid/*.json"))
# A valid file, and its defects by name: where it is reported, the member that is changed, its value.
STORE: dict[str, tuple[str, tuple[str, ...], Any]] = {
    "array of three dimensions": ("$.arrays.layer.shape", ("arrays", "layer", "shape"), [1, 2, 3]),
    "condition not text": ("$.extraction.keep.where", ("extraction", "keep"), {"where": ["upos = 'VERB'"]}),
    "dropped without count": ("$.dropped[0]", ("dropped",), [{"examples": ["x"], "reason": "no subword"}]),
    "index column missing": ("$.arrays", ("arrays", "words/start"), MISSING),
    "model without name": ("$.model", ("model", "name"), MISSING),
    "newer format": ("$.format_version", ("format_version",), 3),
    "older format": ("$.format_version", ("format_version",), 1),
    "partition rows not a multiple of 256": ("$.partition_rows", ("partition_rows",), 300),
    "software version not a string": ("$.software.embstore", ("software", "embstore"), 1),
    "unknown dtype": ("$.dtype", ("dtype",), "float64"),
    "unknown member": ("$", ("more",), 1),
    "unknown unit": ("$.extraction.unit", ("extraction", "unit"), "token"),
}
INDEX: dict[str, tuple[str, tuple[str, ...], Any]] = {
    "checksum beyond 32 bits": ("$.files['index.faiss'].crc32c", ("files", "index.faiss", "crc32c"), 2**32),
    "unknown kind": ("$.kind", ("kind",), "IVF4,Flat"),
    "newer format": ("$.format_version", ("format_version",), 2),
    "unknown member": ("$", ("notes",), ""),
    "unknown metric": ("$.metric", ("metric",), "jaccard"),
    "unknown parameter": ("$.parameters", ("parameters", "speed"), 3),
}
DEFECTS = [
    *(("store/valid/float16.json", *defect) for defect in STORE.items()),
    *(("index_file/valid/ivf.json", *defect) for defect in INDEX.items()),
]


def load(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_valid(path: Path) -> None:
    document, kind = load(path), path.parts[-3]
    validator_of(kind).validate(document)
    if kind == "store" and path.stem != "full-model-nothing-dropped":  # edited by hand, its checksum is another's
        metadata, arrays = parse(document, path=str(path))
        assert metadata.n_rows == 40
        assert ("center" in arrays) == (metadata.dtype == "int8")


@pytest.mark.parametrize(("file", "name", "defect"), DEFECTS, ids=[f"{each[0][:5]}: {each[1]}" for each in DEFECTS])
def test_invalid(file: str, name: str, defect: tuple[str, tuple[str, ...], Any]) -> None:
    where, path, value = defect
    errors = validator_of(file.split("/")[0]).iter_errors(changed(load(FIXTURES / file), path, value))
    assert [error.json_path for error in errors] == [where]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_store_that_is_written_is_valid(tmp_path: Path, dtype: str) -> None:
    path = example(dtype=dtype).make(tmp_path / "s.zarr").path
    validator_of("store").validate(load(path / "zarr.json")["attributes"]["embstore"])
    assert verify(path).ok


@pytest.mark.parametrize("kind", ["ivf", "ivfpq", "hnsw", "sketch"])
@pytest.mark.quick(2)
def test_an_index_that_is_built_is_valid(tmp_path: Path, kind: str) -> None:
    store = hard_store(tmp_path / "s.zarr").store
    index = build_index(store, LAYER, kind=kind)
    validator_of("index_file").validate(load(index.path / "index.json"))
