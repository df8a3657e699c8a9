"""A disk that fails in any call: one line that says what to do, nothing is lost, and the same call goes on."""

from __future__ import annotations

import errno
import gc
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from embstore.errors import EmbstoreError, StorageError
from tests.resilience.calls import Failing, watched
from tests.resilience.conftest import campaign
from tests.resilience.scene import write_tree
from tests.resilience.scenes import SCENES, Whole

SEED = 5
ERRORS = ("ENOSPC", "EDQUOT", "EIO", "EROFS", "EACCES", "EMFILE", "ESTALE")


@pytest.mark.slow
@pytest.mark.parametrize("scene", SCENES)
def test_a_call_that_fails(
    tmp_path: Path, whole: Callable[[str], Whole], scene: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of the faults are in calls that change the disk, half in any call."""
    uninterrupted = whole(scene)
    rng = np.random.default_rng(SEED)
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    for number in range(campaign(20, 3)):
        reads = bool(number % 2)
        folder = tmp_path / str(number)
        total = failed_at(scene, uninterrupted, folder, reads=reads)[1].count
        error = ERRORS[int(rng.integers(len(ERRORS)))]
        folder = tmp_path / f"{number} {error}"
        caught, failing = failed_at(
            scene, uninterrupted, folder, reads=reads, at=int(rng.integers(total)), number=getattr(errno, error)
        )
        outcome = f"{error} at {failing.name}: {type(caught).__name__} {caught}"
        if caught is not None and not (isinstance(caught, EmbstoreError) and "\n" not in str(caught)):
            wrong.append(outcome)
        outcomes["went on" if caught is None else type(caught).__name__] += 1
        try:
            SCENES[scene].state(folder, uninterrupted)
            SCENES[scene].assert_resumes(folder, uninterrupted)
        except (AssertionError, EmbstoreError, OSError) as after:
            wrong.append(f"{outcome}; then {type(after).__name__} {after}")
    with capsys.disabled():
        print(f"\n{scene}: {sum(outcomes.values())} faults, seed {SEED}: {dict(outcomes)}")
    assert wrong == []


def failed_at(
    scene: str, whole: Whole, folder: Path, *, reads: bool, at: int | None = None, number: int = 0
) -> tuple[Exception | None, Failing]:
    """Do the work in a folder while one call fails; returns the error that comes of it."""
    folder.mkdir()
    write_tree(whole.before, folder)
    failing = Failing(folder, at, number)
    try:
        with watched(failing, reads=reads):
            SCENES[scene].work(folder)
    except Exception as error:
        gc.collect()  # what the failed call held open
        return error.with_traceback(None), failing
    return None, failing


@pytest.mark.parametrize(
    "scene",
    [*(pytest.param(name, marks=pytest.mark.slow) for name in ("extraction to Zarr", "repair of HDF5")), "result"],
)
def test_a_full_disk_is_reported_in_one_line(tmp_path: Path, whole: Callable[[str], Whole], scene: str) -> None:
    """What was there stays, and nothing else does, at calls up to the one by which the work gets its name."""
    before = {name for name in whole(scene).before if "/" not in name}
    total = failed_at(scene, whole(scene), tmp_path / "all", reads=False)[1].count
    n_refused = 0
    for at in range(2, total, 1 + total // 8):
        folder = tmp_path / str(at)
        caught, failing = failed_at(scene, whole(scene), folder, reads=False, at=at, number=errno.ENOSPC)
        names = {name for name in os.listdir(folder) if not name.endswith(".lock")}
        if names != before and not any(name.startswith(".") for name in names):
            break  # it has its name already
        if caught is not None:  # a folder that cannot be made may exist already
            assert isinstance(caught, StorageError)
            assert "the disk is full; free some space and run the same command again" in str(caught)
            assert names == before, failing.name
            n_refused += 1
    assert n_refused >= (1 if scene == "result" else 3)
