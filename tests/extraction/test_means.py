"""Means of words made in one pass equal those of a full store, after any interruption."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import embstore as es
from embstore.errors import (
    DeviceMemoryError,
    InvalidValueError,
    NonFiniteError,
    StoreBusyError,
    StoreDamagedError,
    StoreMismatchError,
)
from embstore.extraction import means as making
from embstore.extraction import sums as summing
from embstore.extraction.means import extract_means, means_estimate
from embstore.extraction.sums import Sums, sums_file, sums_lock
from embstore.store.storage.lock import ProcessLock
from tests.extraction.fake import FakeEncoder
from tests.extraction.plans import plan_of
from tests.extraction.test_groups import CallEncoder
from tests.extraction.test_pipeline import many, small_partitions
from tests.store.example import all_files

SENTENCES = many(600)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_partitions(monkeypatch)


def planned(encoder: FakeEncoder | None = None, **options: Any) -> es.Plan:
    return plan_of(SENTENCES, **{"model": encoder or CallEncoder(), "layers": [0, 2], "batch_subwords": 512, **options})


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The bytes of the store that an undisturbed run writes, compared with the means of a full store."""
    folder = tmp_path_factory.mktemp("means")
    with pytest.MonkeyPatch.context() as patch:
        small_partitions(patch)
        patch.setattr(making, "BLOCK", 3)
        plan = planned()
        assert plan.layout.n_partitions > 6
        assert len(plan.groups) > 2
        full = es.extract(plan, folder / "full.zarr", progress=False)
        store = extract_means(planned(), folder / "means.zarr", progress=False)
    assert list(store.index.words) == list(full.index.words)
    for layer in full.layers:
        vectors, means = (each.select(layers=[layer]).vectors()[0] for each in (full, store))
        for number in range(len(full.index.words)):
            own = vectors[np.asarray(full.index.type) == number].astype(np.float64)
            assert np.array_equal(means[number], own.mean(0).astype(np.float32))
        static = es.static_vectors(full, layer=layer, method="mean", progress=False)
        assert np.array_equal(means, static.vectors)
    made = store.metadata.extraction["static"]
    assert made == {"method": "mean", "occurrences": full.n_rows}
    assert not sums_file(folder / "means.zarr").exists()
    return all_files(folder / "means.zarr")


class Broken(CallEncoder):
    """Fails at a call of `encode`."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def encode(self, *given: Any, **options: Any) -> Any:
        if len(self.calls) == self.at:
            raise RuntimeError("broken")
        return super().encode(*given, **options)


@pytest.mark.parametrize("seconds", [0.0, 1e9])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_interrupted_pass_continues(
    tmp_path: Path, written: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, seconds: float, at: int
) -> None:
    monkeypatch.setattr(summing, "SAVE_SECONDS", seconds)
    monkeypatch.setattr(summing, "SAVE_TIMES", 0)
    path, encoder = tmp_path / "s.zarr", CallEncoder()
    with pytest.raises(RuntimeError, match="broken"):
        extract_means(planned(Broken(at)), path, progress=False)
    assert sums_file(path).exists() == (seconds == 0 and at > 0)
    assert not path.exists()
    seen: list[int] = []
    extract_means(planned(encoder), path, progress=lambda done, total: seen.append(done))
    assert all_files(path) == written
    assert min(seen) > 0 or not at or seconds
    n_groups = len(planned().groups)
    assert len(encoder.calls) == (n_groups - at if seconds == 0 else n_groups)
    assert seen[-1] == planned().layout.n_rows
    extract_means(planned(Broken(0)), path, progress=False)  # nothing is left to do


def test_one_process_adds_up_at_a_time(tmp_path: Path, written: dict[str, bytes]) -> None:
    path = tmp_path / "s.zarr"
    with sums_lock(path), pytest.raises(StoreBusyError, match=r"another process is adding up the words of .*s\.zarr;"):
        extract_means(planned(Broken(0)), path, progress=False)
    assert list(tmp_path.iterdir()) == []
    extract_means(planned(), path, progress=False)
    assert all_files(path) == written


def test_what_another_process_has_finished_is_not_done_again(
    tmp_path: Path, written: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.zarr"

    class AfterAnother(ProcessLock):
        def __enter__(self) -> ProcessLock:
            monkeypatch.setattr(making, "sums_lock", sums_lock)
            extract_means(planned(), path, progress=False)
            return super().__enter__()

    monkeypatch.setattr(making, "sums_lock", lambda store: AfterAnother(sums_lock(store).file, "busy"))
    extract_means(planned(Broken(0)), path, progress=False)
    assert all_files(path) == written


def test_what_a_kill_left_next_to_a_finished_store_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "s.zarr"
    extract_means(planned(), path, progress=False)
    for left in (sums_file(path), sums_lock(path).file):
        left.touch()
        extract_means(planned(Broken(0)), path, progress=False)
        assert list(tmp_path.iterdir()) == [path]


def test_a_partition_after_one_that_failed_is_not_added(
    tmp_path: Path, written: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is added comes before what is missing, or it would be lost; the rest of a group can be added later."""
    add, calls = Sums.add, []
    monkeypatch.setattr(summing, "SAVE_SECONDS", 0)
    monkeypatch.setattr(summing, "SAVE_TIMES", 0)

    def fails_once(self: Sums, *given: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("broken")
        add(self, *given)

    monkeypatch.setattr(Sums, "add", fails_once)
    with pytest.raises(RuntimeError, match="broken"):
        extract_means(planned(), tmp_path / "s.zarr", progress=False)
    assert len(calls) == 2 < planned().groups.size == 3
    extract_means(planned(), tmp_path / "s.zarr", progress=False)
    assert len(calls) == 1 + planned().layout.n_partitions
    assert all_files(tmp_path / "s.zarr") == written


def test_sums_of_float16_values_are_exact() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**16, (3, 500, 8), np.uint16)
    values = bits.view(np.float16)
    values = np.where(np.isfinite(values), values, np.float16(65504))
    types = rng.integers(0, 7, 500)
    plan = planned()
    sums = Sums(Path("none"), plan.metadata, 1, torch.device("cpu"))
    sums.units = torch.zeros(3, 7, 8, dtype=torch.int64)
    for some in np.array_split(rng.permutation(500), 4):
        sums.add(torch.from_numpy(values[:, some]), types[some])
    expected = np.zeros((3, 7, 8), object)
    for row, number in enumerate(types):
        expected[:, number] += (values[:, row].astype(np.float64) * 2**24).astype(np.int64).astype(object)
    assert (sums.units.numpy().astype(object) == expected).all()
    assert 65504 * 2**24 * summing.MOST_CONTEXTS < 2**63


def test_what_has_no_means_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.zarr"
    for options in ({"dtype": "float32"}, {"sites": "residual,query"}):
        with pytest.raises(InvalidValueError, match=r"residual in float16, not of .*: leave out sites and dtype"):
            extract_means(planned(**options), path)
    with pytest.raises(InvalidValueError, match="there is no folder"):
        extract_means(planned(), tmp_path / "none" / "s.zarr")
    monkeypatch.setattr(making, "MOST_CONTEXTS", 3)
    with pytest.raises(InvalidValueError, match=r"times: means are made of at most 3 occurrences of a word; give"):
        extract_means(planned(), path)


def test_sums_of_another_plan_or_damaged_ones_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.zarr"
    monkeypatch.setattr(summing, "SAVE_SECONDS", 0)
    monkeypatch.setattr(summing, "SAVE_TIMES", 0)
    with pytest.raises(RuntimeError):
        extract_means(planned(Broken(2)), path, progress=False)
    with pytest.raises(StoreMismatchError, match=r"s.zarr.sums was made with layers .*, this plan has"):
        extract_means(planned(layers=[1]), path, progress=False)
    file = sums_file(path)
    whole = file.read_bytes()
    for broken in (whole[:-100], whole[: len(whole) // 2], b"", whole.replace(whole[5000:5008], b"damaged!")):
        file.write_bytes(broken)
        with pytest.raises(StoreDamagedError, match=r"s\.zarr\.sums is damaged: remove it"):
            extract_means(planned(), path, progress=False)
    file.unlink()
    extract_means(planned(), path, progress=False)
    with pytest.raises(StoreMismatchError, match="was made with"):
        extract_means(planned(layers=[1]), path, progress=False)


class Infinite(CallEncoder):
    def encode(self, tokenized: Any, spans: Any, *, layers: Sequence[int], **options: Any) -> Any:
        for pooled in super().encode(tokenized, spans, layers=layers, **options):
            if len(self.calls) == 2:
                pooled.vectors[1, 5] = torch.inf
            yield pooled


def test_an_infinite_vector_is_named(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match=r"layer 2, sentence \d+, row \d+"):
        extract_means(planned(Infinite()), tmp_path / "s.zarr", progress=False)


def test_sums_that_do_not_fit_are_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    plan = planned()
    monkeypatch.setattr(summing.torch, "zeros", full)
    with pytest.raises(DeviceMemoryError, match=r"the sums of [\d,]+ words does not fit .*: choose fewer layers"):
        extract_means(plan, tmp_path / "s.zarr", progress=False)


def test_the_cost_is_that_of_words(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned()
    cost = means_estimate(plan)
    numbers = len(plan.index.words) * 2 * plan.metadata.hidden_size
    assert cost.store_nbytes == 12 * numbers
    assert cost.memory_nbytes == plan.estimate.memory_nbytes + 8 * numbers
    assert (cost.device_nbytes, cost.pinned_nbytes) == (None, None)
    monkeypatch.setattr(CallEncoder, "casts_on_device", True)
    plan = planned()
    cost = means_estimate(plan)
    assert plan.estimate.device_nbytes is not None
    assert (cost.device_nbytes, cost.pinned_nbytes) == (plan.estimate.device_nbytes + 8 * numbers, 0)


def test_a_gpu_continues_with_the_recorded_batch_size(
    tmp_path: Path, written: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.zarr"
    monkeypatch.setattr(summing, "SAVE_SECONDS", 0)
    monkeypatch.setattr(CallEncoder, "batch_depends_on_memory", True)
    for size, encoder in ((512, Broken(2)), (256, CallEncoder())):
        monkeypatch.setattr(CallEncoder, "default_batch_subwords", size)
        plan = planned(encoder, batch_subwords=None, store=path)
        assert plan.metadata.extraction["batch_subwords"] == 512
        if size == 512:
            with pytest.raises(RuntimeError, match="broken"):
                extract_means(plan, path, progress=False)
    extract_means(plan, path, progress=False)
    assert all_files(path) == written
