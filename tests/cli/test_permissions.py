"""What may not be read or written is said in one line."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Ran
from tests.privileges import reachable_folder, without_privileges


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the first test has made."""
    return tmp_path_factory.mktemp("template") / "work"


@pytest.fixture
def shared(made: Path, template: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder with model, corpus and stores, in a place that every user reaches."""
    if not template.exists():
        shutil.copytree(made, template)
        monkeypatch.chdir(template)
        for command in ("extract corpus.txt first.h5 --model model", "lookup first.h5 bank --out first.csv"):
            assert run(*command.split()).status == 0  # loads whatever that user might not be allowed to load
        assert run("export", "first.h5", "second.zarr").status == 0
    with reachable_folder() as folder:
        shutil.copytree(template, folder, dirs_exist_ok=True)
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o777 if path.is_dir() else 0o666)
        monkeypatch.chdir(folder)
        yield folder


EXTRACT = "extract corpus.txt new.zarr --model model"
DENIED = "ermission denied"
SHUT = {
    "corpus": (EXTRACT, "corpus.txt", ("corpus.txt", DENIED), 2),
    "folder of corpora": ("extract texts new.zarr --model model", "texts", ("texts", DENIED), 2),
    "folder of the store": ("extract corpus.txt shut/new.zarr --model model", "shut", ("shut", DENIED, "another"), 1),
    "model folder": (EXTRACT, "model", ("'model'", DENIED), 2),
    "weights": (EXTRACT, "model/model.safetensors", ("model.safetensors", DENIED), 2),
    "Zarr store": ("info store.zarr", "store.zarr", ("store.zarr", DENIED), 1),
    "metadata": ("info store.zarr", "store.zarr/zarr.json", ("store.zarr/zarr.json", DENIED), 1),
    "store that is verified": ("verify store.zarr", "store.zarr", ("store.zarr", DENIED), 1),
    "metadata that are verified": ("verify store.zarr", "store.zarr/zarr.json", ("store.zarr/zarr.json", DENIED), 1),
    "column that is verified": ("verify store.zarr", "store.zarr/types/indptr/c/0", ("types/indptr", DENIED), 1),
    "HDF5 store that is verified": ("verify first.h5", "first.h5", ("first.h5", DENIED), 1),
    "HDF5 store": ("info first.h5", "first.h5", ("first.h5", DENIED), 1),
    "lookup to a folder": ("lookup store.zarr bank --out shut/bank.csv", "shut", ("shut/bank.csv", DENIED), 1),
    "export to a folder": ("export store.zarr shut/new.h5", "shut", ("shut/new.h5", DENIED), 1),
}


@pytest.mark.parametrize("name", SHUT)
@pytest.mark.quick(1)
def test_what_is_shut_is_said_in_one_line(name: str, shared: Path, run: Callable[..., Ran]) -> None:
    command, shut, says, status = SHUT[name]
    (shared / "words.txt").write_text("bank\n")
    for folder in ("shut", "texts"):
        (shared / folder).mkdir(mode=0o777)
    before = {str(path) for path in shared.rglob("*")}
    (shared / shut).chmod(0)
    with without_privileges():
        ran = run(*command.split())
    (shared / shut).chmod(0o777)
    assert ran.err.startswith("embstore: "), ran.err
    assert ran.err.count("\n") == 1, ran.err
    assert ran.status == status, ran.err
    for part in says:
        assert part in ran.err, ran.err
    assert "EMBSTORE_DEBUG" not in ran.err
    assert {str(path) for path in shared.rglob("*")} == before


def test_a_finished_store_that_may_not_be_written_is_left_as_it_is(shared: Path, run: Callable[..., Ran]) -> None:
    folder = shared / "kept"
    folder.mkdir()
    shutil.move(shared / "store.zarr", folder / "store.zarr")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    with without_privileges():
        ran = run("extract", "corpus.txt", "kept/store.zarr", "--model", "model")
    assert (ran.status, ran.err) == (0, "")
