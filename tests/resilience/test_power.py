"""Power failures: the order of write, fsync and rename, and every state of the disk that it allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore as es
from embstore.store import StoreWriter
from tests.resilience.conftest import campaign
from tests.resilience.disk import Disk, Recorder, Synced, recorded, replayed
from tests.resilience.scene import write_tree
from tests.resilience.scenes import SCENES, Tree, Whole

GetWhole = Callable[[str], Whole]
GetRecord = Callable[[str], Recorder]
SEED = 11
ENDED = 10**6  # reported as done once the work has returned
TRACED = [scene for scene in SCENES if "two threads" not in scene and "groups" not in scene]  # in one order


@pytest.fixture(scope="session")
def record(tmp_path_factory: pytest.TempPathFactory, whole: GetWhole) -> GetRecord:
    """Gives what the work of a scene does to the disk."""

    @cache
    def made(scene: str) -> Recorder:
        folder = tmp_path_factory.mktemp("recorded")
        write_tree(whole(scene).before, folder)
        with pytest.MonkeyPatch.context() as patch, recorded(folder) as recorder:
            patch.setattr("embstore.store.layout.SHARD_NBYTES", 1)
            patch.setattr(StoreWriter, "_commit", noting(recorder, StoreWriter._commit))
            SCENES[scene].work(folder)
            recorder.note(ENDED)
        return recorder

    return made


def noting(recorder: Recorder, commit: Callable[..., None]) -> Callable[..., None]:
    """Note how many partitions are committed once a commit has returned."""

    def commit_and_note(self: StoreWriter, *arguments: Any) -> None:
        commit(self, *arguments)
        recorder.note(self.metadata.layout.n_partitions - len(np.flatnonzero(~self._committed)))

    return commit_and_note


def distinct(disks: Iterator[Disk], *, count: int, seed: int = SEED) -> Iterator[tuple[int, Tree]]:
    """Yield (what was reported as done, the tree) of every power failure, each different one once.

    From the last disk to the first, since a tree must have all that was reported at any time when it is possible.
    """
    rng = np.random.default_rng(seed)
    seen: set[tuple[tuple[str, bytes | None], ...]] = set()
    for disk in reversed(list(disks)):
        for found in disk.states(rng, count):
            key = tuple(sorted(found.items()))
            if key not in seen:
                seen.add(key)
                yield disk.done, found


def require_survives(scene: str, whole: Whole, folder: Path, done: int, found: Tree, *, resume: bool) -> str:
    """What a power failure left is whole or honest, has all that was reported as done, and the work can go on."""
    folder.mkdir()
    write_tree(found, folder)
    state = SCENES[scene].state(folder, whole)
    if done == ENDED:
        assert state in SCENES[scene].final
    elif done and not scene.startswith("append"):  # what an append has committed is in a part that is not listed yet
        assert whole.reference is not None
        assert es.open(folder / whole.reference.path.name).source.committed.sum() >= done
    if resume:
        SCENES[scene].assert_resumes(folder, whole)
    return state


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::embstore.errors.UnfinishedStoreWarning")
@pytest.mark.parametrize("scene", TRACED)
def test_no_power_failure_loses_anything(
    tmp_path: Path, whole: GetWhole, record: GetRecord, scene: str, capsys: pytest.CaptureFixture[str]
) -> None:
    states = list(distinct(replayed(record(scene).start, record(scene).events), count=campaign(3, 1)))
    rng = np.random.default_rng(SEED)
    chosen = rng.permutation(len(states))[: campaign(len(states), 25)].tolist()
    found = {
        require_survives(scene, whole(scene), tmp_path / str(number), *states[number], resume=number % 4 == 0)
        for number in chosen
    }
    with capsys.disabled():
        print(f"\n{scene}: {len(chosen)} of {len(states)} states of the disk, seed {SEED}: {sorted(found)}")


FOLDER = "files.fsync < files.fsync_folder"
TREE = "files.fsync < files.fsync_tree"
REPLACED = {f"{TREE} < files.replacing": 1, f"{FOLDER} < files.replacing": 1}
SYNCS: dict[str, dict[str, int]] = {
    "extraction to Zarr": {
        f"{TREE} < files.replacing": 81,
        f"{FOLDER} < files.fsync_tree": 77,
        f"{FOLDER} < files.replacing": 6,
        f"{FOLDER} < files.make_folders": 7,
        "local.write_at < writer._set < writer.commit": 5,
    },
    "extraction to HDF5": {
        **REPLACED,
        "writer._sync < writer.write < writer.write": 5,
        "writer._sync < writer.commit < writer._commit": 5,
    },
    "repair of Zarr": {
        "local.write_at < writer._set < writer.discard": 1,
        f"{TREE} < files.replacing": 2,
        f"{FOLDER} < files.replacing": 2,
        f"{FOLDER} < files.make_folders": 1,
        "local.write_at < writer._set < writer.commit": 1,
    },
    "repair of HDF5": {
        **REPLACED,
        "writer._sync < writer.write < writer.write": 1,
        "writer._sync < writer.commit < writer._commit": 1,
    },
    "saved probes": REPLACED,
    "result": REPLACED,
}


@pytest.mark.parametrize("scene", SYNCS)
@pytest.mark.quick(1)
def test_each_writer_syncs_what_it_must(record: GetRecord, scene: str) -> None:
    """Not one fsync of a writer is left out."""
    found = Counter(event.site for event in record(scene).events if isinstance(event, Synced))
    assert dict(found) == SYNCS[scene]


@pytest.mark.parametrize(
    ("suffix", "expected"),
    [("Zarr", ["data", "fsync", "link", "fsync", "record", "fsync"]), ("HDF5", ["data", "fsync", "record", "fsync"])],
)
@pytest.mark.quick(1)
def test_a_partition_is_durable_before_its_record(record: GetRecord, suffix: str, expected: list[str]) -> None:
    """Rows, fsync, (their name, fsync of the folder,) the record of 16 bytes in place, fsync."""
    recorder = record(f"extraction to {suffix}")
    kind = {True: "record", False: "data"}
    names = [kind[size == 16] if name == "pwrite" else name for name, size in recorder.calls]
    last = len(names) - 1 - names[::-1].index("record")
    steps = [name for name in names[:last] if name in expected]
    begin = len(steps) - steps[::-1].index("record") if "record" in steps else 0
    run = [*steps[begin:], "record", "fsync"]
    run = run[run.index("data") :]
    assert [name for number, name in enumerate(run) if number == 0 or run[number - 1] != name] == expected
