"""Exports that are refused: one line says why, and nothing is left behind or overwritten."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embstore.errors import (
    EmbstoreError,
    InvalidValueError,
    MissingRowsError,
    NonFiniteError,
    StorageError,
    StoreDamagedError,
    StoreFormatError,
    StoreNotFoundError,
)
from embstore.store import (
    Store,
    create_store,
    export,
)
from tests.store.exported import SUFFIXES, files, stored_as
from tests.store_making import Made, make_store


@pytest.fixture(scope="module", params=SUFFIXES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_store(tmp_path_factory.mktemp("export") / f"s{request.param}", sentences=170)


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let partitions of a copy have 256 rows, so that a small one has several."""
    monkeypatch.setattr("embstore.store.layout.SHARD_NBYTES", 1)


@pytest.mark.usefixtures("small_shards")
def test_another_store_of_the_same_recipe_is_not_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = make_store(tmp_path / "one.zarr", seed=1)
    other = make_store(tmp_path / "other.zarr", seed=1)
    object.__setattr__(other.store.index, "subwords", np.roll(other.store.index.subwords, 1))
    unlike = tmp_path / "unlike.zarr"
    create_store(unlike, metadata=other.store.metadata, index=other.store.index)
    before = files(unlike)
    with pytest.raises(InvalidValueError, match="exists already"):
        export(one.store, unlike)
    assert files(unlike) == before


def _flip(path: Path, find: bytes, offset: int = 0) -> None:
    data = bytearray(path.read_bytes())
    place = data.index(find) + offset
    data[place] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("what", ["vectors", "index"])
def test_damage_is_not_carried_over(made: Made, tmp_path: Path, what: str) -> None:
    source = export(made.store, tmp_path / f"source{made.store.path.suffix}")
    folder = source.path.is_dir()
    if what == "vectors":
        file = source.path / "hidden_states/c/0/1/0" if folder else source.path
        _flip(file, np.ascontiguousarray(made.vectors[1, 300]).tobytes())
    else:
        file = source.path / "sentence/text_bytes/c/0" if folder else source.path
        _flip(file, "évident".encode(), 2)
    out = tmp_path / "out.zarr"
    with pytest.raises(StoreDamagedError, match="embstore verify"):
        export(source.path, out)
    assert not out.exists()
    assert export(source.path, out, check=False).n_rows == made.store.n_rows
    if what == "vectors":
        assert export(source.path, tmp_path / "other.h5", rows=np.arange(200)).n_rows == 200


def one_line(error: EmbstoreError) -> str:
    message = str(error)
    assert message
    assert "\n" not in message
    return message


BAD: list[tuple[dict[str, Any], type[EmbstoreError], str]] = [
    ({"layers": "1"}, InvalidValueError, "layer 1 is not stored: choose among 0, 2, 5"),
    ({"layers": "0-5"}, InvalidValueError, "layer 1 is not stored"),
    ({"layers": [-4]}, InvalidValueError, "layer -4 is not stored"),
    ({"layers": [True]}, InvalidValueError, "layer True is not stored"),
    ({"layers": []}, InvalidValueError, "no layer is chosen"),
    ({"layers": "first"}, InvalidValueError, "layers 'first' cannot be read"),
    ({"layers": "5-2"}, InvalidValueError, "layers '5-2' cannot be read"),
    ({"layers": ""}, InvalidValueError, "layers '' cannot be read"),
    ({"words": ["bank", "Bank", "zebra"]}, InvalidValueError, "no word 'Bank', 'zebra'"),
    ({"words": list("123456789")}, InvalidValueError, "'5' and 4 more"),
    ({"words": []}, InvalidValueError, "no row was chosen"),
    ({"rows": []}, InvalidValueError, "no row was chosen"),
    ({"rows": [3, 2]}, InvalidValueError, "rows must be distinct and ascending, but 2 follows 3"),
    ({"rows": [2, 2]}, InvalidValueError, "2 follows 2"),
    ({"rows": [0, 10**6]}, InvalidValueError, "there is no row 1000000"),
    ({"rows": [-1]}, InvalidValueError, "there is no row -1"),
    ({"rows": [0.5]}, InvalidValueError, "rows must be integers"),
    ({"dtype": "float64"}, InvalidValueError, "dtype 'float64' is not known: choose one of float32"),
]


@pytest.mark.parametrize(("options", "kind", "message"), BAD, ids=lambda value: str(value)[:40])
def test_bad_options(
    made: Made, tmp_path: Path, options: dict[str, Any], kind: type[EmbstoreError], message: str
) -> None:
    with pytest.raises(kind, match=re.escape(message)) as caught:
        export(made.store, tmp_path / "out.zarr", **options)
    one_line(caught.value)
    assert list(tmp_path.iterdir()) == []


def _there(tmp_path: Path) -> Path:
    (tmp_path / "out.zarr").write_text("mine")
    return tmp_path / "out.zarr"


def _folder(tmp_path: Path) -> Path:
    (tmp_path / "out.h5").mkdir()
    return tmp_path / "out.h5"


PATHS: list[tuple[Callable[[Path], Path], str]] = [
    (_there, "exists already"),
    (_folder, "exists already"),
    (lambda folder: folder / "out.npz", "must end in .zarr or .h5"),
    (lambda folder: folder / "none" / "out.h5", "there is no folder"),
]


@pytest.mark.parametrize(("make", "message"), PATHS, ids=["file", "folder", "suffix", "no-folder"])
def test_bad_paths(made: Made, tmp_path: Path, make: Callable[[Path], Path], message: str) -> None:
    out = make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidValueError, match=message) as caught:
        export(made.store, out)
    one_line(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_onto_itself(made: Made) -> None:
    before = files(made.store.path)
    with pytest.raises(InvalidValueError, match="exists already"):
        export(made.store, made.store.path)
    assert files(made.store.path) == before


def test_no_source(tmp_path: Path) -> None:
    (tmp_path / "text.h5").write_text("no store")
    for path, kind in ((tmp_path / "none.zarr", StoreNotFoundError), (tmp_path / "text.h5", StoreFormatError)):
        with pytest.raises(kind) as caught:
            export(path, tmp_path / "out.zarr")
        one_line(caught.value)
    assert not (tmp_path / "out.zarr").exists()


@pytest.mark.filterwarnings("ignore::embstore.errors.UnfinishedStoreWarning")
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_unfinished_source(tmp_path: Path, suffix: str) -> None:
    unfinished = make_store(tmp_path / f"s{suffix}", sentences=170, leave_out=(1,)).store
    with pytest.raises(MissingRowsError, match=r"cannot be exported: 256 of its 7\d\d rows are not") as caught:
        export(unfinished.path, tmp_path / "out.zarr", rows=[0, 1])
    one_line(caught.value)
    assert not (tmp_path / "out.zarr").exists()


def _with_value(path: Path, value: float) -> Store:
    made = make_store(path)
    made.vectors[1, 300, 4] = value
    return stored_as(made, path.with_name(f"odd{path.suffix}"), "float32")


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        (65505.0, "float16", "layer 2, row 300 of .*: 65,505 is beyond float16's 65,504: choose float32 or bfloat16"),
        (-70000.0, "float16", "layer 2, row 300 of .*: -70,000 is beyond float16"),
        (3.4e38, "bfloat16", "layer 2, row 300 of .*: 3.4e\\+38 is beyond bfloat16's 3.38953e\\+38: choose float32"),
        (np.nan, "float16", "layer 2, row 300 of .*: nan is not finite"),
        (np.inf, "int8", "layer 2, row 300 of .*: inf is not finite"),
    ],
)
@pytest.mark.usefixtures("small_shards")
def test_values_beyond_the_dtype(tmp_path: Path, value: float, dtype: str, message: str) -> None:
    source = _with_value(tmp_path / "s.zarr", value)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(NonFiniteError, match=message) as caught:
        export(source, tmp_path / "out.h5", dtype=dtype)
    one_line(caught.value)
    assert sorted(tmp_path.iterdir()) == before


def test_the_largest_values_fit(tmp_path: Path) -> None:
    source = _with_value(tmp_path / "s.zarr", -65504.0)
    assert export(source, tmp_path / "out.h5", dtype="float16").gather([300], 2)[0, 4] == -65504


def test_too_small_a_disk(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 1000

    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage)
    with pytest.raises(StorageError, match=r"needs [0-9.,]+ MiB, but .* has 0\.0 MiB free") as caught:
        export(made.store, tmp_path / "out.zarr")
    one_line(caught.value)
    assert list(tmp_path.iterdir()) == []
