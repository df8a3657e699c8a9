"""Partitions that are encoded together: the bytes depend on their group alone, in any process and at any time."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import embstore as es
from embstore.errors import ExecutorError, NonFiniteError
from embstore.extraction.cast import Cast
from embstore.extraction.encoder_spec import EncoderSpec
from embstore.extraction.partition import Groups, group_partitions
from embstore.extraction.worker import Fetch
from embstore.models.encoder import Pooled, Spans, Tokenized
from embstore.models.memory import fitting_batch
from embstore.store import StoreWriter
from embstore.store.layout import Layout
from embstore.store.vectors import quantize
from embstore.store.zarr.writer import ZarrWriter
from tests.extraction.fake import HIDDEN_SIZE, FakeEncoder, site_vectors
from tests.extraction.oracle import expected_rows
from tests.extraction.plans import plan_of
from tests.extraction.test_pipeline import assert_rows, many, rows_of, small_partitions
from tests.store.example import all_files, flip

SENTENCES = many(1000)
FEW = many(600)


class CallEncoder(FakeEncoder):
    """Vectors that depend on the subword and on all that one call of `encode` is given, as those of a GPU may.

    `calls`: the number of spans of each call.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    def encode(
        self,
        tokenized: Tokenized,
        spans: Spans,
        *,
        layers: Sequence[int],
        sites: Sequence[str] = ("residual",),
        **_: Any,
    ) -> Iterator[Pooled]:
        self.calls.append(len(spans.sentence))
        ids = tokenized.ids[tokenized.bounds[spans.sentence] + spans.start].astype(np.float64)
        words = " ".join(self.spellings(tokenized.ids.tolist()))
        shift = sum(words.encode()) % 1009 + len(spans.start) / 1024
        features = np.arange(1, HIDDEN_SIZE + 1)
        for rows in np.array_split(np.random.default_rng(0).permutation(len(ids)), 5):
            vectors = np.sin(shift + np.array(layers)[:, None, None] + ids[rows][:, None] * features)
            for site in sites:
                yield Pooled(rows, torch.from_numpy(site_vectors(vectors.astype(np.float32), site)), site=site)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_partitions(monkeypatch)


def grouped(**options: Any) -> es.extraction.Plan:
    """A plan of 19 or more partitions of 256 rows, four of which are encoded together."""
    given = {"model": CallEncoder(), "dtype": "float32", "batch_subwords": 512, "layers": [1]} | options
    plan = plan_of(SENTENCES, **given)
    assert (plan.groups.size, plan.layout.n_partitions % 4 > 0) == (4, True)
    return plan


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """The bytes of an uninterrupted run on each backend."""
    folder, found = tmp_path_factory.mktemp("whole"), {}
    with pytest.MonkeyPatch.context() as patch:
        small_partitions(patch)
        for suffix in (".zarr", ".h5"):
            es.extract(grouped(), folder / f"s{suffix}")
            found[suffix] = all_files(folder / f"s{suffix}")
    return found


def test_a_group_is_one_call_and_its_vectors_depend_on_all_of_it(whole: dict[str, dict[str, bytes]]) -> None:
    plan = grouped()
    groups = plan.groups
    assert [groups.span(group) for group in range(len(groups))] == [
        (start, min(start + 1024, plan.layout.n_rows)) for start in range(0, plan.layout.n_rows, 1024)
    ]
    assert [one for group in range(len(groups)) for one in groups.partitions(group)] == list(
        range(plan.layout.n_partitions)
    )
    assert Groups.of(plan.metadata) == groups
    shown = rf"partitions +{plan.layout.n_partitions}\npartition rows +256\ngroup partitions +4\n"
    assert re.search(shown, plan.text(verbose=True))
    shards = {name: data for name, data in whole[".zarr"].items() if name.startswith("hidden_states/c/")}
    assert len(shards) == plan.layout.n_partitions


@pytest.mark.parametrize("suffix", [".zarr", ".h5"])
@pytest.mark.quick(1)
def test_any_partitions_that_are_missing_come_back_with_the_same_bytes(
    tmp_path: Path, suffix: str, whole: dict[str, dict[str, bytes]]
) -> None:
    path, rng = tmp_path / f"s{suffix}", np.random.default_rng(3)
    es.extract(grouped(), path)
    for share in (0.1, 0.5, 0.9):
        plan = grouped()
        missing = np.flatnonzero(rng.random(plan.layout.n_partitions) < share)
        with StoreWriter(path) as writer:
            writer.discard(missing.tolist())
        seen: list[int] = []
        with es.config(progress=lambda done, total, seen=seen: seen.append(done)):
            es.extract(plan, path)
        groups = np.unique(missing // 4).tolist()
        assert plan.encoder.calls == [int(np.diff(plan.groups.span(group))[0]) for group in groups]  # type: ignore[attr-defined]
        assert (all_files(path), seen[-1]) == (whole[suffix], plan.layout.n_rows)
        assert seen == sorted(seen)


def test_of_a_group_only_the_passages_with_missing_rows_are_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embstore.extraction.partition.PASSAGE_SUBWORDS", 500)
    path, plan = tmp_path / "s.zarr", grouped()
    es.extract(plan, path)
    bytes_before, calls = all_files(path), plan.encoder.calls  # type: ignore[attr-defined]
    assert len(calls) > 3 * len(plan.groups)
    bounds = np.cumsum([0, *calls])
    for partition in (1, 6, plan.layout.n_partitions - 1):
        again = grouped()
        with StoreWriter(path) as writer:
            writer.discard([partition])
        es.extract(again, path)
        start, stop = plan.layout.span(partition)
        needed = [n for n, a, b in zip(calls, bounds[:-1], bounds[1:], strict=True) if a < stop and b > start]
        assert again.encoder.calls == needed  # type: ignore[attr-defined]
        assert all_files(path) == bytes_before


def test_repair_of_one_partition_of_a_group(tmp_path: Path, whole: dict[str, dict[str, bytes]]) -> None:
    path = tmp_path / "s.zarr"
    es.extract(grouped(), path)
    flip(path / "hidden_states/c/0/5/0", 100)
    assert es.verify(path).damaged_partitions == [5]
    es.extract(grouped(), path, repair=True)
    assert all_files(path) == whole[".zarr"]


@pytest.mark.parametrize("suffix", [".zarr", ".h5"])
@pytest.mark.quick(1)
def test_two_workers_write_the_same_bytes(tmp_path: Path, suffix: str, whole: dict[str, dict[str, bytes]]) -> None:
    path = tmp_path / f"s{suffix}"
    es.extract(grouped(), path)
    with StoreWriter(path) as writer:
        writer.discard([2, 3, 4, 11, 17])
    with mock.patch.object(EncoderSpec, "load", return_value=CallEncoder()), ThreadPoolExecutor(2) as executor:
        es.extract(grouped(), path, executor=executor)
    assert all_files(path) == whole[suffix]


def test_a_worker_runs_a_group_that_fails_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The groups that it was sent before and after that one are written."""
    made = Interrupted()
    monkeypatch.setattr("embstore.extraction.extract.CALLS_PER_WORKER", 1)  # several groups a call
    monkeypatch.setattr(EncoderSpec, "load", lambda *_: made)
    error = pytest.raises(ExecutorError, match=r"4 of \d+ partitions of .* could not be written.* broken")
    with ThreadPoolExecutor(1) as executor, error:
        es.extract(grouped(), tmp_path / "s.zarr", executor=executor)
    assert len(made.calls) == len(grouped().groups)


class Interrupted(CallEncoder):
    """Fails in the second group."""

    def encode(self, *given: Any, **options: Any) -> Iterator[Pooled]:
        vectors = super().encode(*given, **options)
        yield next(vectors)
        if len(self.calls) == 2:
            raise RuntimeError("broken")
        yield from vectors


@pytest.mark.parametrize("options", [{"dtype": "int8"}, {"dtype": "bfloat16"}, {"sites": "residual,query"}])
@pytest.mark.quick(1)
def test_every_kind_of_store_resumes_within_a_group(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "s.zarr"
    es.extract(grouped(**options), path)
    before = all_files(path)
    with StoreWriter(path) as writer:
        last = writer.metadata.n_partitions - 1
        writer.discard([1, 2, 9, last])
    es.extract(grouped(**options), path)
    assert all_files(path) == before


class PlayedMemory(CallEncoder):
    """On a device of `free_nbytes`, 64 of which each position of a batch takes."""

    casts_on_device, free_nbytes = True, 0

    def batch_subwords_next_to(self, held: Callable[[int], int], *, n_features: int) -> int:
        return fitting_batch(self.free_nbytes, position_nbytes=64, held=held)

    def projected_nbytes(self, *, n_features: int, batch_subwords: int) -> int:
        return 64 * batch_subwords


@pytest.mark.parametrize(("free", "batch"), [(2**19, 1024), (2**20, 2048), (2**21, 4096)])
def test_the_batch_of_a_plan_has_space_for_the_groups_on_the_device(free: int, batch: int) -> None:
    """Where only batches had to fit, they would be four times as large."""
    encoder = PlayedMemory()
    encoder.free_nbytes = free
    plan = plan_of(SENTENCES, model=encoder, dtype="float32", layers=[0, 1])
    assert plan.metadata.extraction["batch_subwords"] == batch
    assert plan.estimate.device_nbytes is not None
    assert plan.estimate.device_nbytes <= free
    assert fitting_batch(free, position_nbytes=64) == 4 * batch


@pytest.mark.parametrize(
    ("n_partitions", "rows", "nbytes", "batch", "size"),
    [
        (1000, 8192, 163_577_856, 65536, 13),  # BERT-base, all layers, float16 on a GPU: as many as fit into 2 GiB
        (1000, 512, 138_412_032, 2048, 8),  # 7B on a CPU
        (1000, 8192, 163_577_856, 2048, 1),  # BERT-base on a CPU
        (30, 512, 138_412_032, 65536, 7),  # a quarter of a small store
        (1000, 256, 3 * 2**30, 65536, 1),  # a partition that is larger than a group may be
        (1000, 256, 2**20, 257, 3),
    ],
)
def test_the_partitions_of_a_group(n_partitions: int, rows: int, nbytes: int, batch: int, size: int) -> None:
    found = group_partitions(n_partitions, partition_rows=rows, partition_nbytes=nbytes, batch_subwords=batch)
    assert found == size


class PlayedDevice(Fetch):
    """Notes what is done to which partition, in order: "encode", "copy" and "write", as they begin.

    `waits`: for a stage and the number of a call of it, what must have been noted before it may end.
    """

    def __init__(self, waits: dict[tuple[str, int], tuple[str, int]]) -> None:
        super().__init__(torch.device("cpu"))
        self.waits, self.seen = waits, Counter[str]()
        self.noted: list[tuple[str, int]] = []
        self.changed = threading.Condition()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        with self.changed:
            self.seen[name] += 1
            own = (name, self.seen[name])
            self.noted.append(own)
            self.changed.notify_all()
            if own in self.waits:
                assert self.changed.wait_for(lambda: self.waits[own] in self.noted, timeout=600), own
        yield

    def __call__(self, pairs: Any) -> None:
        with self.stage("copy"):
            super().__call__(pairs)


class PlayedEncoder(CallEncoder):
    """Stays on the device; a call of `encode` is a stage."""

    casts_on_device = True
    played: PlayedDevice

    def encode(self, *arguments: Any, **options: Any) -> Iterator[Pooled]:
        assert options.pop("on_device")
        with self.played.stage("encode"):
            yield from super().encode(*arguments, **options)


def played(monkeypatch: pytest.MonkeyPatch, waits: dict[tuple[str, int], tuple[str, int]]) -> PlayedEncoder:
    """An encoder whose copies and writes to Zarr are noted too."""
    encoder = PlayedEncoder()
    encoder.played = device = PlayedDevice(waits)
    monkeypatch.setattr("embstore.extraction.worker.Fetch", lambda _: device)
    write = ZarrWriter.write

    def noted(self: ZarrWriter, partition: int, arrays: Any) -> int:
        with device.stage("write"):
            return write(self, partition, arrays)

    monkeypatch.setattr(ZarrWriter, "write", noted)
    return encoder


def test_stages_of_different_partitions_run_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, dict[str, bytes]]
) -> None:
    """No stage of the first group ends before the next group's stage before it has begun."""
    waits = {
        ("copy", 1): ("encode", 2),  # the second group is encoded while the first leaves the device
        ("write", 1): ("copy", 5),  # the second group leaves the device while the first is written
        ("write", 2): ("write", 4),  # four partitions are written at once
        ("encode", 3): ("write", 5),
    }
    es.extract(grouped(model=played(monkeypatch, waits)), tmp_path / "s.zarr")
    assert all_files(tmp_path / "s.zarr") == whole[".zarr"]


def test_buffers_are_bounded_however_slow_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, dict[str, bytes]]
) -> None:
    """With every write held back, copies fill the ring and two groups are encoded: no more is begun."""
    monkeypatch.setattr("embstore.extraction.worker.HOST_BUFFERS", 3)
    monkeypatch.setattr("embstore.extraction.worker.WRITERS", 2)
    made: Counter[str] = Counter()
    for name in ("buffer", "host_buffer"):
        make = getattr(Cast, name)
        monkeypatch.setattr(Cast, name, lambda self, *a, make=make, name=name: (made.update([name]), make(self, *a))[1])
    encoder = played(monkeypatch, {("write", 1): ("copy", 3), ("write", 2): ("encode", 2)})
    es.extract(grouped(model=encoder), tmp_path / "s.zarr")
    assert made == {"buffer": 2, "host_buffer": 3}
    order = encoder.played.noted
    for number in range(1, order.count(("encode", 1)) + encoder.played.seen["copy"] - 3):
        begun = order.index(("copy", number + 3)) if ("copy", number + 3) in order else len(order)
        assert order.index(("write", number)) < begun, "a fourth copy waits for a buffer"
    assert all_files(tmp_path / "s.zarr") == whole[".zarr"]


@pytest.mark.parametrize("stage", ["encode", "copy", "write"])
@pytest.mark.quick(1)
def test_a_stage_that_fails_once_leaves_what_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, dict[str, bytes]], stage: str
) -> None:
    """At some calls of the stage; nothing hangs, and the same call completes the store."""
    with monkeypatch.context() as patch:
        encoder = played(patch, {})
        begin = encoder.played.stage
        calls, before_failure = [count()], [0]  # a step of a count is one for all threads

        def failing(name: str) -> Any:
            if name == stage and next(calls[0]) == before_failure[0]:
                raise OSError(28, "No space left on device")
            return begin(name)

        encoder.played.stage = failing  # type: ignore[method-assign]
        for before_failure[0] in (0, 1, 4):
            encoder.played.seen.clear()
            calls[0] = count()
            with pytest.raises((OSError, es.errors.StorageError), match=r"[Nn]o space|disk is full"):
                es.extract(grouped(model=encoder), tmp_path / f"{before_failure[0]}.zarr")
    for number in (0, 1, 4):
        es.extract(grouped(), tmp_path / f"{number}.zarr")
        assert all_files(tmp_path / f"{number}.zarr") == whole[".zarr"]


def test_a_value_that_cannot_be_stored_is_found_before_any_partition_of_its_passage_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device the check comes with the copy: later partitions of the group are not stored either."""
    path, encoder = tmp_path / "s.zarr", played(monkeypatch, {})
    encode = PlayedEncoder.encode

    def spoiled(self: PlayedEncoder, *arguments: Any, **options: Any) -> Iterator[Pooled]:
        for pooled in encode(self, *arguments, **options):
            if self.played.seen["encode"] == 2:
                pooled.vectors[0, pooled.rows == 700, 3] = torch.nan
            yield pooled

    monkeypatch.setattr(PlayedEncoder, "encode", spoiled)
    with pytest.raises(NonFiniteError, match=r"^layer 1, sentence \d+, row 1724: the model computes nan in float32"):
        es.extract(grouped(model=encoder), path)
    with StoreWriter(path) as writer:
        missing = writer.missing()
    assert set(range(4, 8)) <= set(missing)
    assert not set(missing) & set(range(4))


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.quick(1)
def test_the_rows_of_a_group_are_in_their_places_in_all_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_device: bool
) -> None:
    monkeypatch.setattr(FakeEncoder, "casts_on_device", on_device)
    plan = grouped(model=FakeEncoder(), layers="all")
    store = es.extract(plan, tmp_path / "s.zarr")
    expected = expected_rows(SENTENCES, FakeEncoder(), limit=24, unit="word", pooling="mean", layers=[0, 1, 2])
    assert_rows(rows_of(store), expected)


@pytest.mark.parametrize("width", [0, 1])
def test_int8_is_that_of_quantize_to_the_bit(width: float) -> None:
    """Rows of zeros and of the smallest numbers too."""
    rng = np.random.default_rng(0)
    size, n_rows, features = 3, 1000, 16
    vectors = (rng.standard_normal((size, n_rows, features)) * 10.0 ** rng.integers(-42, 3, (size, n_rows, 1))).astype(
        np.float32
    )
    vectors[0, 5] = 0
    center = (width * rng.standard_normal((size, features))).astype(np.float32)
    cast = Cast(Layout(n_rows, tuple(range(size)), features, "int8", 256), center=center)
    buffer, rows = cast.buffer(4), rng.permutation(n_rows)
    cast.into(buffer, torch.from_numpy(vectors[:, rows]), rows, None)
    for name, expected in quantize(vectors, center).items():
        found = [cast.arrays(buffer, place, min(256, n_rows - 256 * place))[name] for place in range(4)]
        np.testing.assert_array_equal(np.concatenate(found, axis=1), expected)
