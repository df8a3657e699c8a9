"""SIGKILL at random moments and at every call that changes the disk; the same call resumes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL

import numpy as np
import pytest

import embstore as es
from embstore.store.storage.files import remove
from tests.resilience.faults import chunk, flip
from tests.resilience.scene import (
    BACKENDS,
    CountingEncoder,
    Reference,
    assert_honest,
    assert_whole,
    make_plan,
    write_tree,
)
from tests.resilience.steps import Running, steps_of

Get = Callable[..., Reference]

PAUSE = 0.002  # asleep this long a batch, so that most of the time goes into encoding, as it does with a model


def resumed(path: Path, reference: Reference, *, dtype: str = "float32") -> int:
    """Repeat the call and compare the result with the uninterrupted run; returns the number of rows encoded."""
    encoder = CountingEncoder()
    es.extract(make_plan(dtype=dtype, encoder=encoder), path)
    assert_whole(path, reference)
    return encoder.rows


def killed_at_moment(path: Path, seconds: float, *, dtype: str = "float32") -> int | None:
    """Kill an extraction that long after it began; returns its exit status."""
    running = Running(path, dtype=dtype, pause=PAUSE)
    running.wait_for("begun")
    running.wait(seconds)
    running.kill()
    return running.join()


def moments(duration: dict[str, float], fifths: int, *, seed: int) -> list[float]:
    """Moments in creation (a fifth), over all of the encoding (three) and around its end (one), drawn at random."""
    rng = np.random.default_rng(seed)
    created, encoded, end = duration["created"], duration["encoded"], duration["seconds"]
    body = created + (encoded - created) * (np.arange(3 * fifths) + rng.random(3 * fifths)) / (3 * fifths)
    return [*(rng.random(fifths) * created), *body.tolist(), *(encoded + rng.random(fifths) * (end - encoded))]


def duration_of(path: Path, *, dtype: str = "float32") -> dict[str, float]:
    """When the uninterrupted run has created its store, has encoded all, and has ended."""
    running = Running(path, dtype=dtype, pause=PAUSE)
    found = {name: running.wait_for(name) for name in ("created", "encoded", "seconds")}
    running.join()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "dtype", "fifths"),
    [(".zarr", "float32", 5), (".h5", "float32", 5), (".zarr", "int8", 2), (".h5", "bfloat16", 2)],
)
def test_killed_at_random_moments(
    tmp_path: Path, reference: Get, suffix: str, dtype: str, fifths: int, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = reference(suffix, dtype)
    duration = duration_of(tmp_path / f"duration{suffix}", dtype=dtype)
    states: Counter[str] = Counter()
    for number, moment in enumerate(moments(duration, fifths, seed=7)):
        path = tmp_path / str(number) / f"store{suffix}"
        path.parent.mkdir()
        while killed_at_moment(path, moment, dtype=dtype) != -SIGKILL:  # it had ended: a moment earlier, then
            remove(path)
            moment *= 0.95
        states[assert_honest(path, whole)] += 1
        resumed(path, whole, dtype=dtype)
    assert sum(states.values()) == 5 * fifths
    assert len(states) >= 4  # the kills were spread over the run
    with capsys.disabled():
        print(f"\n{suffix} {dtype}: {5 * fifths} kills in {duration['seconds']:.2f} s of run: {dict(states)}")


def killed_at_steps(folder: Path, whole: Reference, suffix: str, chosen: list[int], *, dtype: str) -> Counter[str]:
    """Kill at each step and resume; returns the states after the kills."""
    states: Counter[str] = Counter()
    for step in chosen:
        path = folder / str(step) / f"store{suffix}"
        path.parent.mkdir()
        running = Running(path, dtype=dtype, kill_at=step)
        assert running.join() == -SIGKILL
        state = assert_honest(path, whole)
        states[state] += 1
        done = {"no store": 0, "finished": 5}[state] if state[0] not in "012345" else int(state[0])
        encoded = resumed(path, whole, dtype=dtype)
        assert dtype == "int8" or encoded == max(0, whole.vectors.shape[1] - 256 * done)
    return states


def all_steps(tmp_path: Path, suffix: str, *, dtype: str = "float32") -> tuple[list[str], int]:
    """The steps of an uninterrupted run, and the first of them after which a store exists at the path."""
    names = steps_of(tmp_path / "steps" / f"store{suffix}", dtype=dtype)
    return names, names.index(f"rename store{suffix}") + 1


def that_differ(steps: list[int], names: list[str]) -> list[int]:
    """The steps without those after an fsync, before which the disk is as it was before the fsync."""
    return [step for step in steps if step == 0 or names[step - 1] != "fsync"]


@pytest.fixture(autouse=True)
def folder_of_steps(tmp_path: Path) -> None:
    (tmp_path / "steps").mkdir()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "dtype"), [(".zarr", "float32"), (".h5", "float32"), (".zarr", "int8"), (".h5", "int8")]
)
def test_killed_at_every_step(
    tmp_path: Path, reference: Get, suffix: str, dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names, created = all_steps(tmp_path, suffix, dtype=dtype)
    stride = 3 if dtype == "int8" else 1  # int8 differs by one array of each partition
    chosen = that_differ([*range(0, created - 4, 9), *range(created - 4, len(names), stride)], names)
    states = killed_at_steps(tmp_path, reference(suffix, dtype), suffix, chosen, dtype=dtype)
    assert states["no store"]
    assert all(states[f"{done} of 5 partitions"] for done in range(5))
    with capsys.disabled():
        print(f"\n{suffix} {dtype}: killed at {len(chosen)} of {len(names)} steps: {dict(states)}")


@pytest.mark.parametrize("suffix", BACKENDS)
def test_killed_at_a_few_steps(tmp_path: Path, reference: Get, suffix: str) -> None:
    names, created = all_steps(tmp_path, suffix)
    chosen = [created - 1, created, (created + len(names)) // 2, len(names) - 6]
    states = killed_at_steps(tmp_path, reference(suffix), suffix, chosen, dtype="float32")
    assert states["no store"] == 1


@pytest.mark.parametrize("suffix", BACKENDS)
def test_killed_again_and_again(tmp_path: Path, reference: Get, suffix: str) -> None:
    names, created = all_steps(tmp_path, suffix)
    path = tmp_path / "again" / f"store{suffix}"
    path.parent.mkdir()
    rng = np.random.default_rng(3)
    first = [created - 2, created + 12]
    for step in [*first, *rng.integers(10, (len(names) - created) // 2, 4).tolist()]:
        assert Running(path, kill_at=step).join() == -SIGKILL
        assert_honest(path, reference(suffix))
    resumed(path, reference(suffix))


def damage(path: Path) -> None:
    """Flip a bit in the metadata and one in the first partition's vectors."""
    if path.is_dir():
        flip(path / "zarr.json", (path / "zarr.json").read_bytes().index(b'"pooling"') + 3)
        flip(path / "hidden_states/c/0/0/0", 1000)
        return
    flip(path, chunk(path, 0, 0) + 1000)
    flip(path, path.read_bytes().index(b'"pooling"') + 3)


def damaged_copy(whole: Reference, path: Path) -> None:
    path.parent.mkdir()
    write_tree(whole.tree, path)
    damage(path)


def killed_repairs(tmp_path: Path, whole: Reference, suffix: str, chosen: list[int]) -> Counter[str]:
    """Kill a repair at each step and repair again; nothing that was intact is encoded again."""
    states: Counter[str] = Counter()
    for step in chosen:
        path = tmp_path / f"repair-{step}" / f"store{suffix}"
        damaged_copy(whole, path)
        assert Running(path, repair=True, kill_at=step).join() == -SIGKILL
        states[state_of(path, whole)] += 1
        encoder = CountingEncoder()
        es.extract(make_plan(encoder=encoder), path, repair=True)
        assert encoder.rows in (0, 256)
        assert_whole(path, whole)
    return states


def state_of(path: Path, whole: Reference) -> str:
    """What exists after a killed repair: the damaged store, or one that is honest about what is missing."""
    if es.verify(path).ok:
        return assert_honest(path, whole)
    with pytest.raises(es.errors.StoreDamagedError):
        es.open(path)
    return "damaged"


def repair_steps(tmp_path: Path, whole: Reference, suffix: str) -> list[str]:
    path = tmp_path / "repair" / f"store{suffix}"
    damaged_copy(whole, path)
    return steps_of(path, repair=True)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", BACKENDS)
def test_repair_killed_at_every_step(
    tmp_path: Path, reference: Get, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = repair_steps(tmp_path, reference(suffix), suffix)
    last = last_of_repair(names, suffix)
    chosen = {*range(0, len(names), 9), *range(max(0, last - 30), last + 3)}
    steps = that_differ(sorted(chosen), names)
    states = killed_repairs(tmp_path, reference(suffix), suffix, steps)
    assert states["damaged"]
    assert states["4 of 5 partitions"]
    with capsys.disabled():
        print(f"\n{suffix}: repair killed at {len(steps)} of {len(names)} steps: {dict(states)}")


def last_of_repair(names: list[str], suffix: str) -> int:
    """The rename that completes the repair: of the root's metadata, or of the whole file."""
    done = " zarr.json" if suffix == ".zarr" else f" store{suffix}"
    return [number for number, name in enumerate(names) if name.endswith(done)][-1]


@pytest.mark.parametrize("suffix", BACKENDS)
def test_repair_killed_around_its_end(tmp_path: Path, reference: Get, suffix: str) -> None:
    names = repair_steps(tmp_path, reference(suffix), suffix)
    last = last_of_repair(names, suffix)
    states = killed_repairs(tmp_path, reference(suffix), suffix, [last // 2, last, last + 1])
    assert states["damaged"] == 2
    assert states["4 of 5 partitions"] == 1
