"""SIGKILL at any call that changes the disk, or at any moment: the last whole state, or the same call resumes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from signal import SIGALRM, SIGKILL
from typing import Any

import numpy as np
import pytest

import embstore as es
from tests.resilience.conftest import campaign
from tests.resilience.running import Running, steps_of
from tests.resilience.scene import CountingEncoder, Reference, make_plan, write_tree
from tests.resilience.scenes import ALL_SCENES, BUCKETS, PROCESSES, SCENES, Whole

GetWhole = Callable[[str], Whole]
SEED = 7


def begin(scene: str, whole: Whole, folder: Path) -> Path:
    folder.mkdir()
    write_tree(whole.before, folder)
    return folder


def kill(scene: str, whole: Whole, folder: Path, *, at_once: bool = False, **when: Any) -> str:
    """Kill the work, look at what is left, and do it again to its end; returns the state between.

    `at_once`: without waiting for the end of worker processes that have lost their coordinator.
    """
    running = Running(scene, begin(scene, whole, folder), **when)
    status = running.join()
    if status == 1:  # the coordinator of a worker that was killed
        assert scene in PROCESSES
        assert re.search(r"ended abruptly.*: the same command continues", str(running.failure()))
    else:
        assert status in (-SIGKILL, -SIGALRM, 0)
    if not at_once:
        running.join_workers()
    state = ALL_SCENES[scene].state(folder, whole) if status else "it had ended"
    ALL_SCENES[scene].assert_resumes(folder, whole)
    if at_once:
        running.join_workers()
        ALL_SCENES[scene].assert_whole(folder, whole)
    return state


@pytest.mark.slow
@pytest.mark.parametrize("scene", ALL_SCENES)
def test_killed_anywhere(
    tmp_path: Path, whole: GetWhole, scene: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """At random calls, late ones more often than those of creation.

    Every fourth kill of a full campaign comes at a random moment instead, which may be inside a library. Of several
    processes, the one that comes to the call is killed, or all of them.
    """
    if scene in BUCKETS:
        request.getfixturevalue("scenes_bucket")
    uninterrupted = whole(scene)
    names, seconds = steps_of(scene, begin(scene, uninterrupted, tmp_path / "steps"))
    ALL_SCENES[scene].assert_whole(tmp_path / "steps", uninterrupted)
    rng = np.random.default_rng(SEED)
    states: Counter[str] = Counter()
    for number in range(campaign(52, 4)):
        where = rng.random()
        moment = number % 4 == campaign(3, 4)
        when = {"kill_after": where * seconds} if moment else {"kill_at": int(len(names) * where**0.5)}
        kill_all, at_once = scene in PROCESSES and number % 3 == 0, number % 2 == 1
        states[kill(scene, uninterrupted, tmp_path / str(number), **when, kill_all=kill_all, at_once=at_once)] += 1
    with capsys.disabled():
        print(f"\n{scene}: {sum(states.values())} kills, seed {SEED}, over {len(names)} calls: {dict(states)}")


@pytest.mark.slow
@pytest.mark.parametrize("scene", ["append", "append to a store that has grown"])
def test_an_append_killed_at_every_call(
    tmp_path: Path, whole: GetWhole, scene: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """At every call of a full campaign, else at every 12th and the last 12."""
    uninterrupted = whole(scene)
    names, _ = steps_of(scene, begin(scene, uninterrupted, tmp_path / "steps"))
    last = len(names) - 12
    steps = [*range(0, last, campaign(1, 12)), *range(last, len(names))]
    found = [kill(scene, uninterrupted, tmp_path / str(step), kill_at=step) for step in steps]
    states = list(dict.fromkeys(found))
    assert states == ["old", *(f"old, and {done} of 5 partitions" for done in range(6)), "new"]
    with capsys.disabled():
        print(f"\n{scene}: a kill at {len(steps)} of {len(names)} calls: {dict(Counter(found))}")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["Zarr", "HDF5"])
def test_nothing_that_is_committed_is_encoded_again(tmp_path: Path, whole: GetWhole, suffix: str) -> None:
    """Around the creation of the store, half way through, and at the end; again and again in one folder."""
    scene = f"extraction to {suffix}"
    uninterrupted = whole(scene)
    names, _ = steps_of(scene, begin(scene, uninterrupted, tmp_path / "steps"))
    store = next(name for name in uninterrupted.after if "/" not in name)
    created = names.index(f"replace {store}") + 1
    assert kill(scene, uninterrupted, tmp_path / "early", kill_at=created - 1) == "no store"
    folder = begin(scene, uninterrupted, tmp_path / "later")
    for step in (created, (len(names) - created) // 2, 12):
        assert Running(scene, folder, kill_at=step).join() == -SIGKILL
        state = SCENES[scene].state(folder, uninterrupted)
        assert state.endswith("of 5 partitions")
    encoder = CountingEncoder()
    done = int(state[0])
    es.extract(make_plan(encoder=encoder), folder / store)
    assert encoder.rows == 1200 - 256 * done
    SCENES[scene].assert_resumes(folder, uninterrupted)


@pytest.mark.parametrize("suffix", ["Zarr", "HDF5"])
@pytest.mark.slow
def test_a_repair_killed_around_its_end(
    tmp_path: Path, whole: GetWhole, suffix: str, reference: Callable[..., Reference]
) -> None:
    scene = f"repair of {suffix}"
    uninterrupted = whole(scene)
    names, _ = steps_of(scene, begin(scene, uninterrupted, tmp_path / "steps"))
    done = " zarr.json" if suffix == "Zarr" else " store.h5"
    last = max(number for number, name in enumerate(names) if name.startswith("re") and name.endswith(done))
    states = [kill(scene, uninterrupted, tmp_path / str(step), kill_at=step) for step in (last // 2, last, last + 1)]
    assert states == ["damaged", "damaged", "4 of 5 partitions"]
