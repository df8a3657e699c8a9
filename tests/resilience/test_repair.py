"""Every fault is found, named and repaired byte for byte, and only what is lost is encoded again."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import h5py
import numpy as np
import pytest
import zarr
from hypothesis import given, settings

import embstore as es
from embstore.errors import (
    EmbstoreError,
    StoreBusyError,
    StoreDamagedError,
    StoreFormatError,
    StoreMismatchError,
    StoreNotFoundError,
)
from embstore.store import StoreWriter
from embstore.store.storage.lock import StoreLock
from tests.extraction.fake import FakeEncoder
from tests.hostile.defects import Kind, defects
from tests.resilience.conftest import campaign
from tests.resilience.faults import INJURIES, cut, edit, half
from tests.resilience.scene import (
    BACKENDS,
    CountingEncoder,
    Reference,
    assert_whole,
    make_plan,
    sentences,
    tree,
    write_tree,
)
from tests.store.example import flip

Get = Callable[..., Reference]
NAMED = [(suffix, name) for suffix, injuries in INJURIES.items() for name in injuries]
# One in three is quick.
FAULTS = [pytest.param(*pair, marks=[pytest.mark.slow] * (n % 3 > 0)) for n, pair in enumerate(NAMED)]


def damaged(tmp_path: Path, whole: Reference) -> Path:
    """A copy of a store, to be damaged."""
    path = tmp_path / "alone" / whole.path.name
    path.parent.mkdir(parents=True)
    write_tree(whole.tree, path)
    return path


def rows_of(partitions: tuple[int, ...]) -> int:
    return sum(1200 - 4 * 256 if partition == 4 else 256 for partition in partitions)


def assert_repaired(path: Path, whole: Reference, *, lost: tuple[int, ...], is_structure: bool = False) -> None:
    """A repair gives the store as it was and encodes the lost partitions only.

    `is_structure`: the structure of an HDF5 file is damaged, so that intact rows may be reported as lost.
    """
    encoder = CountingEncoder()
    store = es.extract(make_plan(encoder=encoder), path, repair=True)
    assert store.finished
    assert es.verify(path).faults == ()
    assert_whole(path, whole)
    assert encoder.rows == rows_of(lost) or (is_structure and encoder.rows < rows_of(lost))


@pytest.mark.parametrize(("suffix", "name"), FAULTS, ids=[f"{suffix[1:]}: {name}" for suffix, name in NAMED])
@pytest.mark.quick(3)
def test_fault(tmp_path: Path, reference: Get, suffix: str, name: str) -> None:
    whole = reference(suffix)
    injury = INJURIES[suffix][name]
    path = damaged(tmp_path, whole)
    lost = injury.inject(path)
    assert tree(path) != whole.tree
    report = es.verify(path)
    found = {fault.partition for fault in report.faults}
    assert report.faults or report.missing
    if injury.named:
        assert {*found, *report.missing} - {None} == set(injury.named)
    elif lost is None:
        assert None in found
    assert all("\n" not in str(fault) for fault in report.faults)
    assert_repaired(path, whole, lost=injury.lost if lost is None else lost)


@pytest.mark.parametrize("suffix", BACKENDS)
def test_a_sound_store_has_no_fault_and_a_repair_leaves_it(tmp_path: Path, reference: Get, suffix: str) -> None:
    whole = reference(suffix)
    path = damaged(tmp_path, whole)
    report = es.verify(path)
    assert (report.faults, report.missing, report.n_partitions) == ((), (), 5)
    before = {item: item.stat() for item in (path, *path.rglob("*"))}
    assert_repaired(path, whole, lost=())
    for item, stat in before.items():
        assert (item.stat().st_ino, item.stat().st_mtime_ns) == (stat.st_ino, stat.st_mtime_ns)


@pytest.mark.parametrize("suffix", BACKENDS)
def test_any_damage_is_repaired_or_the_plan_is_unknown(tmp_path: Path, reference: Get, suffix: str) -> None:
    """Bits, cuts, zeros and swaps anywhere; that verify finds all of them is what tests/hostile shows."""
    whole = reference(suffix)
    kind = Kind(lambda folder: whole.path, es.open)

    @given(defect=defects(kind, places=("nothing",)))
    @settings(max_examples=campaign(200, 4))
    def repaired(defect: Any) -> None:
        path = damaged(Path(mkdtemp(dir=tmp_path)), whole)
        defect.make(path, kind)
        with suppress(StoreDamagedError, StoreFormatError, StoreNotFoundError):  # nothing left identifies the plan
            es.extract(make_plan(), path, repair=True)
            assert_whole(path, whole)

    repaired()


OTHERS: dict[str, dict[str, Any]] = {
    "pooling": {"pooling": "last"},
    "corpus": {"corpus": sentences(seed=2)},
    "model": {
        "encoder": type("Other", (FakeEncoder,), {"info": replace(FakeEncoder().info, weights_sha256="2" * 64)})()
    },
}
HURT: dict[str, dict[str, Callable[[Path], object]]] = {
    ".zarr": {
        "nothing": lambda path: None,
        "index": lambda path: flip(path / "occurrences/type/c/0", 9),
        "vectors": lambda path: flip(path / "hidden_states/c/0/2/0", 9),
        "metadata": lambda path: edit(path / "zarr.json", b'"embstore": "', b'"embstorE": "'),
        "root": lambda path: half(path / "zarr.json"),
        "no root": lambda path: (path / "zarr.json").unlink(),
        "both copies of the recipe": lambda path: [half(path / name / "zarr.json") for name in ("", "hidden_states")],
    },
    ".h5": {
        "nothing": lambda path: None,
        "index": INJURIES[".h5"]["bit in occurrences/type"].inject,
        "vectors": INJURIES[".h5"]["bit in layer 1 of partition 2"].inject,
        "metadata": lambda path: edit(path, b'"embstore":"', b'"embstorE":"'),
        "root": INJURIES[".h5"]["bit 4 into the header of /"].inject,
        "no root": INJURIES[".h5"]["superblock of zeros"].inject,
        "both copies of the recipe": lambda path: cut(path, 200),
    },
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize(("suffix", "hurt"), [(suffix, hurt) for suffix, kinds in HURT.items() for hurt in kinds])
@pytest.mark.quick(3)
def test_another_plan_repairs_nothing(tmp_path: Path, reference: Get, suffix: str, hurt: str, other: str) -> None:
    path = damaged(tmp_path, reference(suffix))
    HURT[suffix][hurt](path)
    before = tree(path)
    with pytest.raises((StoreMismatchError, StoreDamagedError, StoreFormatError)):
        es.extract(make_plan(**OTHERS[other]), path, repair=True)
    assert tree(path) == before
    assert [item.name for item in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", BACKENDS)
def test_a_store_of_unknown_origin_is_not_repaired(tmp_path: Path, reference: Get, suffix: str) -> None:
    path = damaged(tmp_path, reference(suffix))
    HURT[suffix]["both copies of the recipe"](path)
    before = tree(path)
    with pytest.raises(StoreDamagedError, match="remove it"):
        es.extract(make_plan(), path, repair=True)
    assert tree(path) == before


def foreign(path: Path, kind: str) -> None:
    """Make what is no store of ours at a path."""
    if kind == "file":
        path.write_bytes(b"my thesis")
    elif kind == "folder":
        path.mkdir()
        (path / "thesis.txt").write_text("my thesis")
    elif kind == "store of another tool" and path.suffix == ".zarr":
        zarr.create_group(str(path)).create_array("hidden_states", data=np.ones((3, 1200, 8), np.float32))
    else:
        with h5py.File(path, "w") as file:
            file["hidden_states"] = np.ones((3, 1200, 8), np.float32)


@pytest.mark.parametrize("repair", [False, True])
@pytest.mark.parametrize("kind", ["file", "folder", "store of another tool"])
@pytest.mark.parametrize("suffix", BACKENDS)
@pytest.mark.quick(4)
def test_what_is_no_store_is_left_alone(tmp_path: Path, suffix: str, kind: str, repair: bool) -> None:
    path = tmp_path / f"store{suffix}"
    foreign(path, kind)
    before = tree(path)
    with pytest.raises(EmbstoreError):
        es.extract(make_plan(), path, repair=repair)
    assert tree(path) == before
    assert [item.name for item in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("version", "reason"), [(3, "newer than 2.*upgrade embstore"), (1, "extract its corpus again")]
)
@pytest.mark.parametrize("suffix", BACKENDS)
@pytest.mark.quick(2)
def test_a_store_of_another_format_is_left_alone(
    tmp_path: Path, suffix: str, version: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"store{suffix}"
    with monkeypatch.context() as patch:
        patch.setattr("embstore.store.metadata.FORMAT_VERSION", version)
        plan = make_plan()
        es.extract(replace(plan, metadata=replace(plan.metadata, format_version=version)), path)
    before = tree(path)
    with pytest.raises(StoreFormatError, match=reason):
        es.extract(make_plan(), path, repair=True)
    assert tree(path) == before


@pytest.mark.parametrize("is_relative", [False, True])
@pytest.mark.parametrize("hurt", ["index", "vectors", "root"])
@pytest.mark.parametrize("suffix", BACKENDS)
@pytest.mark.quick(1)
def test_a_store_behind_a_link_is_repaired_where_it_is(
    tmp_path: Path, reference: Get, suffix: str, hurt: str, is_relative: bool
) -> None:
    whole = reference(suffix)
    real = damaged(tmp_path / "scratch", whole)
    HURT[suffix][hurt](real)
    link = tmp_path / f"home/mine{suffix}"
    link.parent.mkdir()
    link.symlink_to(os.path.relpath(real, link.parent) if is_relative else real)
    with StoreLock(real), pytest.raises(StoreBusyError):
        es.extract(make_plan(), link, repair=True)
    es.extract(make_plan(), link, repair=True)
    assert link.is_symlink()
    assert [path.name for path in link.parent.iterdir()] == [link.name]
    assert_whole(real, whole)
    assert es.verify(link).ok


@pytest.mark.parametrize("suffix", BACKENDS)
@pytest.mark.quick(1)
def test_repair_of_a_store_in_writing_is_refused(tmp_path: Path, reference: Get, suffix: str) -> None:
    for hurt in ("nothing", "index", "vectors"):
        path = tmp_path / hurt / f"store{suffix}"
        path.parent.mkdir()
        write_tree(reference(suffix).tree, path)
        with StoreWriter(path):
            HURT[suffix][hurt](path)
            before = tree(path)
            with pytest.raises(StoreBusyError):
                es.extract(make_plan(), path, repair=True)
            assert tree(path) == before
