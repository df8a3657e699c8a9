"""Indexes on disk: killed builds resume, damaged and stale indexes are refused, the store is not affected."""

from __future__ import annotations

import errno
import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import embstore as es
from embstore.analysis.neighbors import index_files, index_kinds
from embstore.analysis.neighbors.index import build_index, list_indexes, open_index
from embstore.analysis.neighbors.index_files import building_folder, folder_of
from embstore.errors import EmbstoreError, InvalidValueError, SearchIndexError, StoreBusyError
from embstore.store import Store, StoreWriter, open_store, verify
from embstore.store.check.repair import repair_layout
from embstore.store.metadata import document_crc32c
from embstore.store.storage.files import crc32c_of_file
from tests.analysis.index_store import LAYER, hard_store
from tests.store.example import all_files, example, flip

SUFFIXES = (".zarr", ".h5")
KINDS = ("flat", "ivf", "ivfpq", "hnsw")


class Stop(Exception):
    """Ends a build, as any error would."""


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_files, "BLOCK_ROWS", 64)


def files_of(store: Store, name: str) -> dict[str, bytes]:
    return all_files(folder_of(store) / name)


def fresh(path: Path) -> Store:
    """A store of 809 rows."""
    return hard_store(path).store


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("suffix", "metric"), [(".zarr", "cosine"), (".h5", "l2")])
@pytest.mark.quick(1)
def test_an_interrupted_build_resumes_to_the_same_bytes(tmp_path: Path, suffix: str, kind: str, metric: str) -> None:
    store = fresh(tmp_path / f"s{suffix}")

    def build(name: str, stop: int = -1) -> None:
        steps: list[int] = []

        def progress(done: int, total: int) -> None:
            assert total == store.n_rows
            steps.append(done)
            if len(steps) == stop:
                raise Stop

        build_index(
            store, layer=LAYER, kind=kind, metric=metric, n_components=2, name=name, threads=1, checkpoint_seconds=0,
            progress=progress,
        )  # fmt: skip
        steps_by[name] = steps

    steps_by: dict[str, list[int]] = {}
    build("whole")
    ended = 0
    for stop in np.random.default_rng(1).integers(1, 4, 20).tolist():
        try:
            build("parts", stop)
        except Stop:
            ended += 1
            assert [state.state for state in list_indexes(store)] == ["building", "ready"]
            with pytest.raises(EmbstoreError, match="has no index 'parts'"):
                open_index(store, name="parts")
        else:
            break
    build("parts")
    assert ended > 3
    assert steps_by["whole"][0] == 64
    whole, parts = files_of(store, "whole"), files_of(store, "parts")
    assert set(whole) == set(parts) == {"index.faiss", "index.json", "space.npz"}
    assert whole["index.faiss"] == parts["index.faiss"]
    assert whole["index.json"].replace(b"whole", b"parts").splitlines()[2:] == parts["index.json"].splitlines()[2:]
    assert not building_folder(folder_of(store) / "parts").exists()


def test_a_build_resumes_at_its_last_checkpoint_with_the_same_settings(tmp_path: Path) -> None:
    store = fresh(tmp_path / "s.zarr")

    def stop(done: int, total: int) -> None:
        if done >= 512:
            raise Stop

    def steps(**options: Any) -> list[int]:
        done: list[int] = []
        build_index(store, layer=LAYER, kind="flat", progress=lambda rows, total: done.append(rows), **options)
        return done

    for name in ("a", "other"):
        with pytest.raises(Stop):
            build_index(store, layer=LAYER, kind="flat", name=name, checkpoint_seconds=0, progress=stop)
    assert steps(name="a")[0] == 576
    assert steps(name="a") == []
    for name in ("other", "whole"):
        assert steps(name=name, metric="ip", centered=True)[0] == 64
    assert files_of(store, "other")["index.faiss"] == files_of(store, "whole")["index.faiss"]


def flip_anywhere(file: Path, rng: np.random.Generator) -> None:
    flip(file, int(rng.integers(file.stat().st_size)), bit=int(rng.integers(8)))


@pytest.mark.parametrize("file", ["index.faiss", "space.npz", "progress.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "of another build", "pipe"])
@pytest.mark.quick(1)
def test_a_damaged_checkpoint_is_never_used(tmp_path: Path, file: str, damage: str) -> None:
    store = fresh(tmp_path / "s.zarr")
    rng = np.random.default_rng(5)
    options: dict[str, Any] = {"layer": LAYER, "kind": "flat", "centered": True, "threads": 1, "checkpoint_seconds": 0}

    def begin(name: str, **others: Any) -> Path:
        def stop(done: int, total: int) -> None:
            if done >= 512:
                raise Stop

        with pytest.raises(Stop):
            build_index(store, name=name, progress=stop, **(options | others))
        return building_folder(folder_of(store) / name) / file

    build_index(store, name="whole", **options)
    for number in range(3 if damage == "flip" else 1):
        path = begin(f"x{number}")
        if damage == "flip":
            flip_anywhere(path, rng)
        elif damage == "cut":
            os.truncate(path, path.stat().st_size // 2)
        elif damage == "pipe":
            piped(path)
        else:
            path.unlink()
        if damage == "of another build":
            shutil.copy(begin("other", n_components=2), path)
        steps: list[tuple[int, int]] = []
        build_index(store, name=f"x{number}", progress=lambda *step, steps=steps: steps.append(step), **options)
        assert steps[0][0] == 64  # from the beginning
        whole, parts = files_of(store, "whole"), files_of(store, f"x{number}")
        assert {**whole, "index.json": b""} == {**parts, "index.json": b""}
        longest = [json.loads(each["index.json"])["longest"] for each in (whole, parts)]
        assert longest[0] == longest[1]


def test_a_build_killed_before_a_checkpoint_has_its_name_resumes_at_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fresh(tmp_path / "s.zarr")
    options: dict[str, Any] = {"layer": LAYER, "kind": "flat", "name": "a", "checkpoint_seconds": 0}
    replace = os.replace
    named: list[str] = []

    def kill(old: Path, new: Path) -> None:
        named.append(Path(new).name)
        if named.count("index.faiss") == 4:
            raise Stop
        replace(old, new)

    monkeypatch.setattr(os, "replace", kill)
    with pytest.raises(Stop):
        build_index(store, **options)
    monkeypatch.undo()
    monkeypatch.setattr(index_files, "BLOCK_ROWS", 64)
    steps: list[tuple[int, int]] = []
    build_index(store, progress=lambda *step: steps.append(step), **options)
    assert steps[0][0] == 192  # of the checkpoints of 0, 64, 128 and 192 rows the third is there


def test_one_process_builds_an_index_at_a_time(tmp_path: Path) -> None:
    store = fresh(tmp_path / "s.zarr")
    busy = pytest.raises(StoreBusyError, match="another process is building the index layer2-flat-cosine")
    with index_files.building(folder_of(store) / "layer2-flat-cosine"), busy:
        build_index(store, layer=LAYER, kind="flat")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_the_last_bytes_of_an_index_on_a_full_disk_are_an_error() -> None:
    index = index_kinds.faiss_package().IndexFlatL2(2)
    with pytest.raises(OSError, match="No space left on device"):
        index_kinds.write_index(index, "/dev/full")


def test_an_index_that_exists_is_opened_on_a_read_only_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fresh(tmp_path / "s.zarr")
    built = build_index(store, layer=LAYER, kind="sketch")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    for name in ("unlink", "rename", "replace", "mkdir"):
        monkeypatch.setattr(os, name, refuse)
    assert build_index(store, layer=LAYER, kind="sketch").info == built.info


def test_a_store_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    store = example(rows=600, seed=1).make(tmp_path / "s.zarr")

    def write(done: int, total: int) -> None:
        if done == total:
            rewritten(store.path)

    with pytest.raises(SearchIndexError, match="changed while it was indexed: run the same command again"):
        build_index(store, layer=3, kind="flat", progress=write)
    assert list_indexes(store) == []
    assert build_index(store, layer=3, kind="flat").info.settings.digest == store.digest


def rewritten(path: Path) -> Store:
    """The same store with other vectors in one partition."""
    made = example(rows=600, seed=1)
    with StoreWriter(path) as writer:
        writer.discard([1])
        arrays = {name: array.copy() for name, array in made.partition(1).items()}
        arrays["hidden_states"][0, 5] += 1
        writer.write(1, arrays)
        writer.finish()
    return open_store(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_index_of_a_changed_store_is_stale(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"s{suffix}"
    store = example(rows=600, seed=1).make(path)
    build_index(store, layer=3, kind="flat")
    assert open_index(store, layer=3).search(np.ones(16), k=2).rows.shape == (1, 2)
    store = rewritten(path)
    for call in (lambda: open_index(store, layer=3), lambda: open_index(store, name="layer3-flat-cosine")):
        with pytest.raises(SearchIndexError, match=r"is stale: .* has changed since, .*: build it again with"):
            call()
    assert [state.state for state in list_indexes(store)] == ["stale"]
    index = build_index(store, layer=3, kind="flat")
    assert index.info.settings.digest == store.digest
    hits = index.search(store.vectors([261], layers=3)[0], k=1)
    assert hits.rows.tolist() == [[261]]


def test_an_index_of_another_store_is_refused(tmp_path: Path) -> None:
    store, other = fresh(tmp_path / "a.zarr"), hard_store(tmp_path / "b.h5", words=3).store
    same = hard_store(tmp_path / "c.h5").store
    build_index(store, layer=LAYER, kind="flat", name="x")
    for taker, says in ((other, "is of another store"), (same, "is stale: .* or is another store")):
        shutil.copytree(folder_of(store) / "x", folder_of(taker) / "x")
        with pytest.raises(SearchIndexError, match=says):
            open_index(taker, name="x")
        assert [state.state for state in list_indexes(taker)] == ["stale"]
    shutil.copytree(folder_of(store) / "x", folder_of(store) / "y")
    with pytest.raises(SearchIndexError, match="was built as x"):
        open_index(store, name="y")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut": lambda folder: os.truncate(folder / "index.faiss", 100),
    "empty": lambda folder: os.truncate(folder / "index.faiss", 0),
    "gone": lambda folder: (folder / "index.faiss").unlink(),
    "longer": lambda folder: (folder / "index.faiss").write_bytes((folder / "index.faiss").read_bytes() + b"x"),
    "space gone": lambda folder: (folder / "space.npz").unlink(),
    "space cut": lambda folder: os.truncate(folder / "space.npz", 9),
    "no metadata": lambda folder: (folder / "index.json").unlink(),
    "metadata cut": lambda folder: os.truncate(folder / "index.json", 50),
    "metadata of a list": lambda folder: (folder / "index.json").write_text("[]"),
    "metadata of nothing": lambda folder: (folder / "index.json").write_text("{}"),
    "metadata changed": lambda folder: (folder / "index.json").write_text(
        (folder / "index.json").read_text().replace('"layer": 2', '"layer": 1')
    ),
}


def crafted(folder: Path, change: Callable[[dict[str, Any]], object] | None = None) -> None:
    """Change the metadata of an index, and give it and its files the checksums that they should have."""
    document = json.loads((folder / "index.json").read_text())
    for name, file in document["files"].items():
        crc, nbytes = crc32c_of_file(folder / name)
        file |= {"crc32c": crc, "nbytes": nbytes}
    if change is not None:
        change(document)
    document["crc32c"] = document_crc32c(document)
    (folder / "index.json").write_text(json.dumps(document))


def rewritten_space(folder: Path, **arrays: np.ndarray) -> None:
    np.savez(folder / "space.npz", **arrays)
    crafted(folder)


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


# What nobody but a person would make: the checksums are right.
CRAFTED: dict[str, Callable[[Path], object]] = {
    "pipe for the index": lambda folder: piped(folder / "index.faiss"),
    "pipe for the metadata": lambda folder: piped(folder / "index.json"),
    "index not vouched for": lambda folder: crafted(folder, lambda fields: fields["files"].pop("index.faiss")),
    "no files": lambda folder: crafted(folder, lambda fields: fields.update(files={})),
    "file elsewhere": lambda folder: crafted(folder, lambda fields: fields["files"].update({"../x": {}})),
    "parameters as text": lambda folder: crafted(folder, lambda fields: fields.update(parameters={"nlist": "x"})),
    "rows as text": lambda folder: crafted(folder, lambda fields: fields["settings"].update(n_rows="many")),
    "layer as a list": lambda folder: crafted(folder, lambda fields: fields["settings"].update(layer=[2])),
    "longest as text": lambda folder: crafted(folder, lambda fields: fields.update(longest="x")),
    "mean of another size": lambda folder: rewritten_space(folder, mean=np.zeros(5)),
    "mean of objects": lambda folder: rewritten_space(folder, mean=np.array([{}] * 12, object)),
    "mean with NaN": lambda folder: rewritten_space(folder, mean=np.full(12, np.nan)),
    "no mean": lambda folder: rewritten_space(folder, other=np.zeros(12)),
    "space is no archive": lambda folder: ((folder / "space.npz").write_bytes(b"x" * 99), crafted(folder)),
    "index is no index": lambda folder: ((folder / "index.faiss").write_bytes(b"x" * 99), crafted(folder)),
}  # fmt: skip


@pytest.mark.parametrize("name", CRAFTED)
@pytest.mark.quick(8)
def test_a_crafted_index_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    store = fresh(tmp_path / "s.zarr")
    index = build_index(store, layer=LAYER, kind="flat", centered=True, threads=1)
    CRAFTED[name](index.path)
    with pytest.raises(EmbstoreError):
        open_index(store, name=index.name)
    assert [state.name for state in list_indexes(store)] == [index.name]


def test_a_large_index_is_checked_before_faiss_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = fresh(tmp_path / "s.zarr")
    index = build_index(store, layer=LAYER, kind="flat", threads=1)
    content = bytearray((index.path / "index.faiss").read_bytes())
    content[-1] ^= 1
    (index.path / "index.faiss").write_bytes(content)
    monkeypatch.setattr(index_kinds, "read_index", lambda *arguments, **options: pytest.fail("read"))
    with pytest.raises(SearchIndexError, match="was changed"):
        open_index(store, name=index.name)


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.quick(3)
def test_a_damaged_index_is_refused_and_rebuilt(tmp_path: Path, suffix: str, damage: str) -> None:
    store = fresh(tmp_path / f"s{suffix}")
    index = build_index(store, layer=LAYER, kind="ivf", centered=True, threads=1)
    before = files_of(store, index.name)
    DAMAGE[damage](index.path)
    assert [state.state for state in list_indexes(store)] == ["damaged"]
    with pytest.raises(SearchIndexError, match="is damaged") as raised:
        open_index(store, name=index.name)
    assert "build it again with embstore index (--set name=layer2-ivf-cosine-centered)" in str(raised.value)
    build_index(store, layer=LAYER, kind="ivf", centered=True, threads=1)
    assert files_of(store, index.name) == before


def test_any_flipped_bit_is_detected(tmp_path: Path) -> None:
    store = fresh(tmp_path / "s.zarr")
    index = build_index(store, layer=LAYER, kind="hnsw", centered=True, threads=1)
    random = np.random.default_rng(0)
    for name in os.listdir(index.path):
        file = index.path / name
        content = file.read_bytes()
        for place in random.integers(0, len(content), 25).tolist():
            changed = bytearray(content)
            changed[place] ^= 1 << int(random.integers(8))
            file.write_bytes(changed)
            with pytest.raises(SearchIndexError):
                open_index(store, name=index.name)
        file.write_bytes(content)
    open_index(store, name=index.name)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    store = fresh(tmp_path / "s.zarr")
    file = build_index(store, layer=LAYER, kind="flat", name="a").path / "index.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format_version": 2}))
    with pytest.raises(SearchIndexError, match=r"format 2; this version reads up to 1: upgrade embstore"):
        open_index(store, name="a")


def test_other_settings_under_the_same_name_are_refused(tmp_path: Path) -> None:
    store = fresh(tmp_path / "s.zarr")
    build_index(store, layer=LAYER, kind="flat", name="a")
    with pytest.raises(InvalidValueError, match=r"index a with another metric \(cosine, not l2\): choose another name"):
        build_index(store, layer=LAYER, kind="flat", metric="l2", name="a")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.quick(1)
def test_indexes_do_not_affect_the_store(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"s{suffix}"
    made = example(rows=600)
    store = made.make(path)
    checked = verify(path).checked_nbytes
    for kind in ("flat", "hnsw"):
        build_index(store, layer=3, kind=kind, threads=1)
    report = verify(path)
    assert report.ok
    assert report.checked_nbytes == checked
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if suffix == ".zarr":
            members = dict(zarr.open_group(str(path), mode="r").members(max_depth=None))
            assert "hidden_states" in members
            assert not any("index" in name.split("/") for name in members)
    copy = es.export(store, tmp_path / "copy.zarr")
    assert verify(copy.path).ok
    assert list_indexes(copy) == []
    with StoreWriter(path) as writer:  # what a resumed extraction does
        assert writer.missing() == []
        writer.finish()
    assert open_index(open_store(path), kind="flat").search(np.ones(16), k=1).rows.shape == (1, 1)
    repair_layout(path, metadata=made.metadata, index=made.index, center=made.center)
    with StoreWriter(path) as writer:
        writer.finish()
    assert verify(path).ok
    states = {state.state for state in list_indexes(open_store(path))}
    assert states == {"ready"}
