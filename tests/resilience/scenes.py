"""Everything that writes: what exists before, the work, and what must hold wherever the work is cut off."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
import polars as pl
import pytest
import torch

import embstore as es
from embstore.errors import AppendedTwiceWarning, UnfinishedStoreWarning
from embstore.executors import Processes
from embstore.extraction.encoder_spec import EncoderSpec
from embstore.probes.result import ProbeResult
from embstore.probes.saved import write_tensors
from tests.extraction.fake import FakeEncoder
from tests.object_server import contents
from tests.resilience import virtual
from tests.resilience.faults import chunk
from tests.resilience.scene import Reference, assert_honest, make_plan, open_quietly, sentences, tree, write_tree
from tests.store.example import flip

Tree = dict[str, bytes | None]
Get = Callable[..., Reference]
FINISHED = ("finished", "5 of 5 partitions")  # a folder for temporary files may come back after a power failure


@dataclass(frozen=True)
class Whole:
    """A folder before and after the uninterrupted work."""

    before: Tree
    after: Tree
    reference: Reference | None = None


@dataclass(frozen=True)
class Scene:
    """Work in a folder that is done again after it was cut off.

    `state(folder, whole)`: asserts that what is there is whole, or says what is missing, and names it.
    `volatile`: names of files that differ each time.
    `final`: the states that are allowed once the work has ended, even if the power fails then.
    `warm`: whether it may be done once before processes are forked, which the threads of Polars do not survive.
    `resume`: how it is done again, by default in the same way.
    `look`: reads what is in the folder, or in a bucket below the same path.
    `encoder`: that of its worker processes.
    """

    work: Callable[[Path], object]
    state: Callable[[Path, Whole], str]
    before: Callable[[Path, Get], object] = lambda folder, get: None
    store: tuple[str, str] | None = None
    volatile: tuple[str, ...] = ()
    warm: bool = True
    final: tuple[str, ...] = ("new",)
    resume: Callable[[Path], object] | None = None
    look: Callable[[Path], Tree] = tree
    encoder: type[FakeEncoder] = FakeEncoder

    def tree(self, folder: Path) -> Tree:
        return {name: data for name, data in self.look(folder).items() if Path(name).name not in self.volatile}

    def whole(self, folder: Path, get: Get) -> Whole:
        """Do the work without interruption."""
        self.before(folder, get)
        before = tree(folder)
        (self.resume or self.work)(folder)
        return Whole(before, self.tree(folder), get(*self.store) if self.store else None)

    def assert_resumes(self, folder: Path, whole: Whole) -> None:
        """The same call again ends in the same bytes, and leaves nothing else."""
        (self.resume or self.work)(folder)
        self.assert_whole(folder, whole)

    def assert_whole(self, folder: Path, whole: Whole) -> None:
        """The folder holds what it holds after the uninterrupted work."""
        found = self.tree(folder)
        assert sorted(found) == sorted(whole.after)
        assert [name for name in found if found[name] != whole.after[name]] == []


class OnDevice(FakeEncoder):
    """Its vectors stay on a device, so that four threads write the partitions of a group at once."""

    casts_on_device = True


BUCKET = "kills"
LARGE_NBYTES = 20_000  # larger objects of a bucket, which are shards, are uploaded to a temporary name


def url(folder: Path) -> str:
    return f"s3://{BUCKET}{folder}/store.zarr"


def objects(folder: Path) -> Tree:
    prefix = f"{str(folder).lstrip('/')}/"
    return {key.removeprefix(prefix): data for key, data in contents(BUCKET).items() if key.startswith(prefix)}


def _extraction(
    suffix: str,
    dtype: str = "float32",
    *,
    threads: int = 0,
    processes: bool = False,
    in_groups: bool = False,
    in_bucket: bool = False,
) -> Scene:
    """An extraction: by one thread, by several or by two worker processes, whose work one process completes.

    `in_groups`: the five partitions are encoded as a group of three and one of two. `in_bucket`: in that of the
    loopback server; one process writes its record of each partition at once, the coordinator of two in time as usual.
    """

    def work(folder: Path, *, processes: bool = processes) -> None:
        with ExitStack() as stack:
            options: dict[str, Any] = {}
            if threads:
                stack.enter_context(mock.patch.object(EncoderSpec, "load", return_value=FakeEncoder()))
                options["executor"] = stack.enter_context(ThreadPoolExecutor(threads))
            elif processes:
                options["executor"] = stack.enter_context(Processes(2))
            elif in_bucket:
                stack.enter_context(mock.patch("embstore.store.zarr.writer.COMMIT_SECONDS", 0))
            plan = make_plan(dtype=dtype)
            if in_groups:
                stack.enter_context(mock.patch("embstore.extraction.partition.FEW_GROUPS", 1))
                plan = make_plan(encoder=OnDevice(), batch_subwords=384)
                assert plan.groups.size == 3
            es.extract(plan, url(folder) if in_bucket else folder / f"store{suffix}", **options)

    def state(folder: Path, whole: Whole) -> str:
        assert whole.reference is not None
        return assert_honest(url(folder), whole.reference)

    return Scene(
        work,
        state if in_bucket else _honest(suffix),
        store=(suffix, dtype),
        final=FINISHED,
        warm=not processes and not in_bucket,
        resume=partial(work, processes=False),
        look=objects if in_bucket else tree,
        encoder=OnDevice if in_groups else FakeEncoder,
    )


def _honest(suffix: str) -> Callable[[Path, Whole], str]:
    def state(folder: Path, whole: Whole) -> str:
        assert whole.reference is not None
        return assert_honest(folder / f"store{suffix}", whole.reference)

    return state


def _repair(suffix: str) -> Scene:
    def before(folder: Path, get: Get) -> None:
        path = folder / f"store{suffix}"
        write_tree(get(suffix).tree, path)
        damage(path)

    def state(folder: Path, whole: Whole) -> str:
        path = folder / f"store{suffix}"
        if es.verify(path).ok:
            return _honest(suffix)(folder, whole)
        with pytest.raises(es.errors.StoreDamagedError):
            es.open(path)
        return "damaged"

    def work(folder: Path) -> None:
        es.extract(make_plan(), folder / f"store{suffix}", repair=True)

    return Scene(work, state, before, store=(suffix, "float32"), final=FINISHED)


def damage(path: Path) -> None:
    """Flip a bit in the metadata and one in the first partition's vectors."""
    if path.is_dir():
        flip(path / "zarr.json", (path / "zarr.json").read_bytes().index(b'"pooling"') + 3)
        flip(path / "hidden_states/c/0/0/0", 1000)
        return
    flip(path, chunk(path, 0, 0) + 1000)
    flip(path, path.read_bytes().index(b'"pooling"') + 3)


def _append(corpus: int, *, second: bool = False) -> Scene:
    """A corpus is appended to a finished store, with `second` to one that has grown before; its rows stay in any case.

    The files of the store are those of before but for the list of its parts, and a part that is begun is warned of.
    """
    name, node = "store.zarr", "store.zarr/hidden_states/.appended/parts.json"

    def append(folder: Path, corpus: int = corpus) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AppendedTwiceWarning)
            es.extract(make_plan(corpus=sentences(seed=corpus)), folder / name, append=True)

    def before(folder: Path, get: Get) -> None:
        write_tree(get(".zarr").tree, folder / name)
        if second:
            append(folder, 9)

    def state(folder: Path, whole: Whole) -> str:
        assert whole.reference is not None
        found, path = tree(folder), folder / name
        assert [each for each, data in whole.before.items() if each != node and found.get(each) != data] == []
        store, warned = open_quietly(path)
        assert es.verify(path).ok
        first = store.vectors(np.arange(whole.reference.vectors.shape[1]))
        np.testing.assert_array_equal(first, whole.reference.vectors)
        part = path / "appended" / f"{1 + second:04}.zarr"
        if found.get(node) == whole.after[node]:
            assert warned == []
            assert [each for each, data in whole.after.items() if found.get(each) != data] == []
            return "new"
        assert found.get(node) == whole.before.get(node) or not second
        assert [str(part) in line and "--append" in line for line in warned] == [True] * part.exists()
        return f"old, and {assert_part(part)}" if part.exists() else "old"

    def assert_part(part: Path) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnfinishedStoreWarning)
            return f"{int(es.open(part).source.committed.sum())} of 5 partitions"

    return Scene(append, state, before, store=(".zarr", "float32"))


def _export() -> Scene:
    def before(folder: Path, get: Get) -> None:
        write_tree(get(".zarr").tree, folder / "source.zarr")

    def work(folder: Path) -> None:
        try:
            es.export(folder / "source.zarr", folder / "store.h5")
        except es.errors.InvalidValueError:  # it is finished, and nothing is overwritten
            assert es.open(folder / "store.h5").finished

    volatile = ("store.h5.lock",)  # stays where the copy is finished, since the next call only refuses
    return Scene(work, _honest(".h5"), before, store=(".h5", "float32"), volatile=volatile, final=FINISHED)


def _index(*, stale: bool, kind: Literal["ivf", "sketch"] = "ivf") -> Scene:
    """An index is built; with `stale`, over that of a store which had been at the same path."""
    name = "layer1-sketch" if kind == "sketch" else "layer1-ivf-cosine"
    index = f"hidden_states/.index/{name}"

    def before(folder: Path, get: Get) -> None:
        write_tree(get(".zarr").tree, folder / "store.zarr")
        if stale:
            write_tree(get(".zarr", "bfloat16").tree, folder / "other.zarr")
            with es.config(threads=1):
                es.analysis.build_index(es.open(folder / "other.zarr"), 1, kind=kind)
            shutil.move(folder / "other.zarr" / index, folder / "store.zarr" / index)
            shutil.rmtree(folder / "other.zarr")

    def work(folder: Path) -> None:
        store = es.open(folder / "store.zarr")
        es.analysis.build_index(store, 1, kind=kind)

    def state(folder: Path, whole: Whole) -> str:
        """The index is that of before or after, or it is absent: there is no file in its folder."""
        assert es.verify(folder / "store.zarr").ok
        found, *others = (
            {name: data for name, data in _below(files, f"store.zarr/{index}").items() if data is not None}
            for files in (tree(folder), whole.before, whole.after, {})
        )
        if found not in others:  # the old one was being removed: what is left is refused
            with pytest.raises(es.errors.SearchIndexError):
                es.analysis.open_index(es.open(folder / "store.zarr"), name=name)
            return "absent"
        return ("old", "new", "absent")[others.index(found)]

    return Scene(work, state, before)


def _below(found: Tree, target: str) -> Tree:
    return {name: data for name, data in found.items() if name == target or name.startswith(f"{target}/")}


def _replacement(name: str, write: Callable[[Path, int], object], *, warm: bool = True) -> Scene:
    """`write(path, version)` replaces version 1 by version 2: the file is whole as before or as after."""

    def state(folder: Path, whole: Whole) -> str:
        states = {"old": whole.before, "new": whole.after}
        found = tree(folder).get(name)
        return next(state for state, files in states.items() if files[name] == found)

    return Scene(lambda folder: write(folder / name, 2), state, lambda folder, get: write(folder / name, 1), warm=warm)


def _probes(path: Path, version: int) -> None:
    write_tensors(path, {"version": version}, {"w": torch.full((300, 8), float(version))})


def _result(path: Path, version: int) -> None:
    frame = pl.DataFrame({"item": [f"w{number}" for number in range(200)], "value": np.full(200, float(version))})
    ProbeResult(frame.with_columns(task=pl.lit("t"), metric=pl.lit("m"))).save(path)


def _thin(dtype: str) -> Scene:
    def before(folder: Path, get: Get) -> None:
        write_tree(get(".zarr", dtype).tree, folder / virtual.NAME)

    def state(folder: Path, whole: Whole) -> str:
        assert whole.reference is not None
        return virtual.state(folder, whole.reference)

    return Scene(
        virtual.thin, state, before, store=(".zarr", dtype), final=tuple(f"declared {left} whole" for left in range(6))
    )


def _compute_again() -> Scene:
    """A virtual store is read, so that its partitions are computed into the cache."""

    def state(folder: Path, whole: Whole) -> str:
        assert whole.reference is not None
        return virtual.state_of_cache(folder, whole.reference)

    return Scene(
        virtual.read_all,
        state,
        lambda folder, get: virtual.make_virtual(folder),
        store=(".zarr", "float32"),
        final=tuple(f"{held} cached" for held in range(6)),
        look=virtual.cached,
    )


SCENES: dict[str, Scene] = {
    "extraction to Zarr": _extraction(".zarr"),
    "extraction to HDF5": _extraction(".h5"),
    "extraction of int8 to Zarr": _extraction(".zarr", "int8"),
    "extraction of int8 to HDF5": _extraction(".h5", "int8"),
    "extraction by two threads to HDF5": _extraction(".h5", threads=2),
    "extraction in groups to Zarr": _extraction(".zarr", in_groups=True),
    "repair of Zarr": _repair(".zarr"),
    "repair of HDF5": _repair(".h5"),
    "append": _append(2),
    "append of another corpus": _append(3),
    "append to a store that has grown": _append(2, second=True),
    "export": _export(),
    "thinning": _thin("float32"),
    "thinning of int8": _thin("int8"),
    "computing again": _compute_again(),
    "index": _index(stale=False),
    "index over a stale one": _index(stale=True),
    "sketch": _index(stale=False, kind="sketch"),
    "saved probes": _replacement("probes", _probes),
    "result": _replacement("result.csv", _result, warm=False),
}
PROCESSES: dict[str, Scene] = {
    "extraction by two processes to Zarr": _extraction(".zarr", processes=True),
    "extraction by two processes to HDF5": _extraction(".h5", processes=True),
    "extraction in groups by two processes to HDF5": _extraction(".h5", processes=True, in_groups=True),
    "extraction by two processes to a bucket": _extraction(".zarr", processes=True, in_bucket=True),
}
BUCKETS = ("extraction to a bucket", "extraction by two processes to a bucket")
ALL_SCENES = {**SCENES, "extraction to a bucket": _extraction(".zarr", in_bucket=True), **PROCESSES}
