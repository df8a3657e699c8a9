"""No race between the streams of a GPU where batches are encoded, cast and stored, probes read and vectors searched.

All is played on the CPU (see `played_cuda`). A planted race in each of these shows that it would be found.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from embstore.analysis.neighbors import exact
from embstore.analysis.neighbors.exact import Search
from embstore.analysis.neighbors.space import ArrayVectors, Space
from embstore.extraction import cast as casting
from embstore.extraction import worker
from embstore.extraction.cast import Cast
from embstore.extraction.means import Summing
from embstore.extraction.options import ExtractionOptions
from embstore.extraction.partition import Groups, Part, TextOptions
from embstore.extraction.sums import Sums
from embstore.extraction.worker import Destination, Job, Ring, Task, Worker
from embstore.models import load_encoder, running
from embstore.models.batched import word_spans
from embstore.models.running import HostCopies, HostCopy, LayerPooling
from embstore.models.transformer import varlen
from embstore.probes.classes.examples import ArrayExamples, iter_batches
from embstore.probes.edges import batches as edges
from embstore.probes.edges.batches import EdgeSplit
from embstore.store import Layout
from embstore.store.reading import ahead
from tests.extraction.plans import plan_of
from tests.models import tiny
from tests.played_cuda import GPU, HOST, PlayedCuda, played_cuda, played_threads

Break = Callable[[PlayedCuda, pytest.MonkeyPatch], None]


def found(played: PlayedCuda) -> set[str]:
    """Return the accesses that are in no order: where and by which operator, the earlier one first."""

    def named(access: Any) -> str:
        lines = {0: "cuda:0", 1: "model"}
        return ("host" if access.stream >= HOST else lines.get(access.stream, "copies")) + f":{access.operator}"

    return {f"{named(race.previous_access)}, {named(race.current_access)}" for race in played.races}


def no_wait_of_streams(played: PlayedCuda, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(played.Stream, "wait_stream", lambda self, other: None)


def no_wait_of_the_host(played: PlayedCuda, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(played.Event, "synchronize", lambda self: None)


def streams_of_another_device(played: PlayedCuda, patch: pytest.MonkeyPatch) -> None:
    """The current stream of cuda:0 is taken for that of cuda:1."""
    first = played.current[0][-1]
    patch.setattr(torch.cuda, "current_stream", lambda device=None: first)


def events_of_another_device(played: PlayedCuda, patch: pytest.MonkeyPatch) -> None:
    """Events are recorded in the current stream of cuda:0."""
    record = played.Event.record
    patch.setattr(played.Event, "record", lambda self, stream=None: record(self))


def copies_in_a_stream_that_did_not_wait(played: PlayedCuda, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.cuda, "stream", lambda stream: played.stream(played.Stream(GPU)))


def an_event_before_the_copy(played: PlayedCuda, patch: pytest.MonkeyPatch) -> None:
    """What marks the end of a copy is recorded before it begins."""
    begin = HostCopies.begin

    def early(self: HostCopies, tensors: Any, clock: Any) -> HostCopy:
        ended = clock.mark()
        copy = begin(self, tensors, clock)
        return HostCopy(copy.device, copy.host, copy.began, ended)

    patch.setattr(HostCopies, "begin", early)


def one_buffer_on_the_host(played: PlayedCuda, patch: pytest.MonkeyPatch) -> None:
    """All batches are copied into the same memory of the host: a ring of buffers that is too small."""
    memory, make = torch.zeros(2**16), torch.empty
    played.keep(memory)

    def empty(*shape: Any, **options: Any) -> torch.Tensor:
        if not options.get("pin_memory"):
            return make(*shape, **options)
        count = int(np.prod(shape[0]))
        return memory.view(options["dtype"])[:count].view(shape[0])

    patch.setattr(running.torch, "empty", empty)


def one_buffer_on_the_gpu(played: PlayedCuda, patch: pytest.MonkeyPatch) -> None:
    """The vectors of a batch are overwritten by the next one while they are copied, as freed memory would be."""
    made = LayerPooling.__init__
    buffers: dict[str, torch.Tensor] = {}

    def again(self: LayerPooling, *arguments: Any) -> None:
        made(self, *arguments)
        for site, own in self._gathered.items():
            wide = buffers.setdefault(site, torch.empty(2**16, dtype=own.dtype, device=GPU))
            self._gathered[site] = wide[: own.numel()].view(own.shape)

    patch.setattr(LayerPooling, "__init__", again)


def no_wait_for_copies(played: PlayedCuda, patch: pytest.MonkeyPatch) -> None:
    """Tensors go to the GPU without the host waiting for it."""
    to = torch.Tensor.to
    patch.setattr(torch.Tensor, "to", lambda *given, **more: to(*given, **{**more, "non_blocking": True}))


def no_wait_for_results(played: PlayedCuda, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.Tensor, "cpu", lambda tensor: tensor.to("cpu", non_blocking=True))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tiny model that cuda:1 would run in half precision."""
    made: Any = load_encoder(tiny.save("bert", tmp_path_factory.mktemp("bert")), device="cpu", compute_dtype="float16")
    made.row_capacity = 16
    place(made, GPU)
    return made


def place(encoder: Any, device: torch.device) -> None:
    encoder.device = device
    object.__setattr__(encoder.network.inputs, "device", device)
    encoder._copies = HostCopies(torch.device("cpu"))


def encode(played: PlayedCuda, encoder: Any, batching: str) -> None:
    """Encode some batches, and cast the vectors into a partition."""
    model = encoder.network.model
    played.on_gpu |= {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    encoder._copies, encoder.batching = HostCopies(GPU), batching
    tokenized = encoder.tokenize(tiny.random_sentences(14, seed=0))
    spans = word_spans(tokenized, encoder.info.max_subwords)
    layers = (0, 1)
    layout = Layout(layers=layers, n_rows=len(spans.start), hidden_size=encoder.info.hidden_size, dtype="float16",
                    partition_rows=2**20)  # fmt: skip
    cast = Cast(layout, center=None)
    buffer = cast.buffer(1)
    n_batches = 0
    for pooled in encoder.encode(tokenized, spans, layers=layers, pooling="mean", batch_subwords=48):
        assert cast.into(buffer, pooled.vectors, np.asarray(pooled.rows), None) is None
        n_batches += 1
    assert n_batches > 4
    assert bool(torch.isfinite(buffer["hidden_states"].float()).all())


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel for sentences end to end, which attends to the whole row: its values do not matter here."""

    def attend(query: Any, key: Any, value: Any, *_: Any, scale: float, window_size: Any) -> torch.Tensor:
        states = (each.transpose(0, 1) for each in (query, key, value))
        return torch.nn.functional.scaled_dot_product_attention(*states).transpose(0, 1)

    monkeypatch.setattr(varlen, "_fused_kernel", lambda: attend)


@pytest.mark.parametrize("batching", ["varlen", "packed", "padded", "equal"])
@pytest.mark.quick(2)
def test_encoded_vectors_leave_the_gpu_in_order(encoder: Any, kernel: None, batching: str) -> None:
    with played_cuda() as played, torch.inference_mode():
        encode(played, encoder, batching)
    assert not played.races, played.races[:1]
    side = played.n_streams - 1
    assert set(played.kernels[side]) == {"copy_"}, "copies to the host have a stream of their own"
    assert len(played.kernels[1]) > 50, "the model runs in the current stream of cuda:1"
    assert not played.kernels[0], "nothing runs on cuda:0"


@pytest.mark.parametrize(
    ("fault", "pair"),
    [
        (no_wait_of_streams, "model:index_select, copies:copy_"),
        (no_wait_of_the_host, "copies:copy_, host:index_put_"),
        (streams_of_another_device, "model:index_select, copies:copy_"),
        (events_of_another_device, "copies:copy_, host:index_put_"),
        (copies_in_a_stream_that_did_not_wait, "model:index_select, copies:copy_"),
        (an_event_before_the_copy, "copies:copy_, host:index_put_"),
        (one_buffer_on_the_host, "copies:copy_, host:index_put_"),
        (one_buffer_on_the_gpu, "copies:copy_, model:index_select"),
    ],
)
@pytest.mark.quick(4)
def test_races_of_encoded_vectors_are_found(
    encoder: Any, fault: Break, pair: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with played_cuda() as played, torch.inference_mode():
        fault(played, monkeypatch)
        encode(played, encoder, "packed")
    assert pair in found(played)


def no_wait_for_events(played: PlayedCuda, patch: pytest.MonkeyPatch) -> None:
    """A partition is copied before its rows are in the buffers."""
    patch.setattr(played.Stream, "wait_event", lambda self, event: None)


def no_wait_for_streams(played: PlayedCuda, patch: pytest.MonkeyPatch) -> None:
    """Pinned memory is written to the disk before the copy has ended."""
    patch.setattr(played.Stream, "synchronize", lambda self: None)


def group_left_before_it_is_copied(played: PlayedCuda, patch: pytest.MonkeyPatch) -> None:
    bring = Worker._bring

    def early(self: Worker, full: Any, place: int, host: Any) -> None:
        full.group.leave(full.partition)
        bring(self, full, place, host)

    patch.setattr(Worker, "_bring", early)


def pinned_memory_given_back_before_it_is_written(played: PlayedCuda, patch: pytest.MonkeyPatch) -> None:
    write = Worker._write

    def early(self: Worker, full: Any, buffers: Any, place: int, leave: Callable[[], object]) -> Any:
        leave()
        return write(self, full, buffers, place, lambda: None)

    patch.setattr(Worker, "_write", early)


def _ring_of_one(patch: pytest.MonkeyPatch, *, pinned: bool) -> None:
    """The first buffer of a ring is handed out again and again, free or not."""
    take = Ring.take

    def first(self: Ring[Any]) -> Any:
        made = self._made and self._made[0]
        return made if made and (made[0]["hidden_states"].shape[0] == 1) == pinned else take(self)

    patch.setattr(Ring, "take", first)


def one_pinned_buffer(played: PlayedCuda, patch: pytest.MonkeyPatch) -> None:
    _ring_of_one(patch, pinned=True)


def one_group_of_buffers(played: PlayedCuda, patch: pytest.MonkeyPatch) -> None:
    _ring_of_one(patch, pinned=False)


def extremes_freed_while_another_stream_reads_them(played: PlayedCuda, patch: pytest.MonkeyPatch) -> None:
    """What is checked in the stream of the copies has memory that the next batch is given, without record_stream."""
    memory = torch.empty(2, len(LAYERS), device=GPU)
    extremes = casting._extremes
    patch.setattr(casting, "_extremes", lambda vectors: memory.copy_(extremes(vectors), non_blocking=True))


def copies_in_the_stream_of_the_model(played: PlayedCuda, patch: pytest.MonkeyPatch) -> None:
    """The stream that is waited for is another one than that of the copies."""
    patch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())


LAYERS = (0, 1)


@dataclass(frozen=True)
class Played:
    """Three groups of three partitions and one of one, with their text, and what a CPU writes and adds up of them."""

    job: Job
    tasks: list[Task]
    types: np.ndarray
    written: dict[Any, np.ndarray]
    sums: np.ndarray


def made_job(encoder: Any, dtypes: Sequence[str]) -> Played:
    """Return a job with a store of each dtype."""
    place(encoder, torch.device("cpu"))
    plan = plan_of([each for seed in range(6) for each in tiny.random_sentences(14, seed=seed)], model=encoder)
    n_rows, size = plan.layout.n_rows, plan.layout.hidden_size
    layouts = [Layout(n_rows, LAYERS, size, dtype, n_rows // 10 + 1) for dtype in dtypes]
    center = np.linspace(-1, 1, len(LAYERS) * size, dtype=np.float32).reshape(len(LAYERS), size)
    stores = [
        Destination(number, layout, 0, center if layout.dtype == "int8" else None)
        for number, layout in enumerate(layouts)
    ]
    groups, every = Groups(layouts[0], 3), tuple(range(len(dtypes)))
    tasks = [Task(Part.of(plan.index, *groups.span(k)), dict.fromkeys(groups.partitions(k), every)) for k in range(4)]
    text = TextOptions("word", plan.text.limit, batch_subwords=64)
    made = Job(LAYERS, ExtractionOptions(batch_subwords=64), text, tuple(stores), 3)
    types = np.asarray(plan.index.type)
    sums = added(encoder, made, tasks, types) if len(dtypes) == 1 else np.empty(0)
    played = Played(made, tasks, types, work(encoder, made, tasks), sums)
    place(encoder, GPU)
    return played


@pytest.fixture(scope="module")
def job(encoder: Any) -> Played:
    return made_job(encoder, ["float16"])


@pytest.fixture(scope="module")
def several(encoder: Any) -> Played:
    return made_job(encoder, ["int8", "float16"])


def work(encoder: Any, job: Job, tasks: list[Task]) -> dict[Any, np.ndarray]:
    """Let a worker do its tasks; returns what it writes of each store and partition."""
    written: dict[Any, np.ndarray] = {}

    def write(store: int, partition: int, arrays: Any) -> None:
        written.update({(store, partition, name): array.copy() for name, array in arrays.items()})

    encoder.batching = "packed"
    done = list(Worker(encoder, job, [partial(write, store) for store in range(len(job.destinations))]).run(tasks))
    assert [one.partition for one in done] == list(range(10))
    return written


def added(encoder: Any, job: Job, tasks: list[Task], types: np.ndarray) -> np.ndarray:
    """Let a worker add up the vectors of each word."""
    encoder.batching = "packed"
    shape: Any = SimpleNamespace(layers=LAYERS, hidden_size=job.layout.hidden_size)
    sums = Sums(Path("none"), shape, int(types.max()) + 1, encoder.device)
    assert len(list(Summing(encoder, job, sums, types).run(tasks))) == sums.done == 10
    return sums.units.cpu().numpy()


def on_threads(played: PlayedCuda, encoder: Any, patch: pytest.MonkeyPatch) -> None:
    """Let workers use the GPU and its threads."""
    model = encoder.network.model
    played.on_gpu |= {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    pool, queue = played_threads(played)
    patch.setattr(worker, "ThreadPoolExecutor", pool)
    patch.setattr(worker, "SimpleQueue", queue)


@pytest.mark.parametrize("name", ["job", pytest.param("several", marks=pytest.mark.slow)])
def test_partitions_are_stored_in_order(
    encoder: Any, name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: Played = request.getfixturevalue(name)
    with played_cuda() as played:
        on_threads(played, encoder, monkeypatch)
        written = work(encoder, given.job, given.tasks)
    assert not played.races, played.races[:1]
    assert not played.kernels[0], "nothing runs on cuda:0"
    assert written.keys() == given.written.keys()
    for key, array in given.written.items():
        np.testing.assert_array_equal(written[key], array)


def test_sums_are_added_in_order(encoder: Any, job: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    with played_cuda() as played:
        on_threads(played, encoder, monkeypatch)
        sums = added(encoder, job.job, job.tasks, job.types)
    assert not played.races, played.races[:1]
    assert not played.kernels[0], "nothing runs on cuda:0"
    np.testing.assert_array_equal(sums, job.sums)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "pair"),
    [
        (no_wait_for_events, "model:index_put_, copies:copy_"),
        (no_wait_for_streams, "copies:copy_, host:host"),
        (events_of_another_device, "model:index_put_, copies:copy_"),
        (copies_in_the_stream_of_the_model, "model:copy_, host:host"),
        (group_left_before_it_is_copied, "copies:copy_, model:index_put_"),
        (pinned_memory_given_back_before_it_is_written, "host:host, copies:copy_"),
        (one_pinned_buffer, "host:host, copies:copy_"),
        (one_group_of_buffers, "model:index_put_, copies:copy_"),
        (extremes_freed_while_another_stream_reads_them, "model:copy_, copies:stack"),
    ],
)
def test_races_of_stored_partitions_are_found(
    encoder: Any, several: Played, fault: Break, pair: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with played_cuda() as played:
        fault(played, monkeypatch)
        on_threads(played, encoder, monkeypatch)
        work(encoder, several.job, several.tasks)
    assert pair in found(played)


def group_left_before_it_is_added(played: PlayedCuda, patch: pytest.MonkeyPatch) -> None:
    leave = Summing._leave

    def early(self: Summing, disk: Any, full: Any) -> Any:
        full.group.leave(full.partition)
        return leave(self, disk, full)

    patch.setattr(Summing, "_leave", early)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "pair"),
    [
        (no_wait_for_events, "model:index_put_, copies:_to_copy"),
        (no_wait_for_streams, "copies:index_add_, model:clone"),
        (group_left_before_it_is_added, "copies:_to_copy, model:index_put_"),
    ],
)
def test_races_of_sums_are_found(
    encoder: Any, job: Played, fault: Break, pair: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with played_cuda() as played:
        fault(played, monkeypatch)
        on_threads(played, encoder, monkeypatch)
        added(encoder, job.job, job.tasks, job.types)
    assert pair in found(played)


class WatchedExamples(ArrayExamples):
    """Examples whose reads into a buffer the played GPU knows of."""

    played: PlayedCuda

    def read(self, numbers: np.ndarray, layers: Sequence[int], out: np.ndarray, /) -> None:
        super().read(numbers, layers, out)
        self.played.host(out, writes=True)


class WatchedStore:
    """A store that is read into a buffer."""

    hidden_size, vector_dtype = 6, np.dtype(np.float32)

    def __init__(self, played: PlayedCuda, vectors: np.ndarray) -> None:
        self.played, self.values = played, vectors

    def vectors(self, rows: np.ndarray, *, layers: Sequence[int], out: np.ndarray) -> None:
        out[:] = self.values[rows]
        self.played.host(out, writes=True)


class WatchedVectors(ArrayVectors):
    """Vectors that are searched in blocks, all of which are read into one buffer."""

    played: PlayedCuda

    def blocks(self, rows: Any, block_rows: int) -> Iterator[Any]:
        buffer = np.empty((9, self.hidden_size), np.float32)
        for numbers, vectors in super().blocks(rows, 9):
            self.played.host(buffer, writes=True)
            buffer[: len(vectors)] = vectors
            yield numbers, buffer[: len(vectors)]


VECTORS = np.random.default_rng(0).normal(size=(100, 6)).astype(np.float32)


def read_classes(played: PlayedCuda) -> None:
    examples = WatchedExamples({0: VECTORS, 3: 2 * VECTORS})
    examples.played = played
    order = np.random.default_rng(1).permutation(100)
    for numbers, columns in iter_batches(examples, order, [0, 3], batch_size=9, device=GPU):
        assert np.array_equal(played.peek(columns[1, :, :-1]), 2 * VECTORS[numbers])


def read_edges(played: PlayedCuda) -> None:
    each = np.arange(100)
    split = EdgeSplit("train", np.arange(101), (np.stack([each, each + 1], 1),), np.ones((100, 2), bool), 0 * each)
    store: Any = WatchedStore(played, VECTORS)
    for batch in edges.iter_batches(store, split, each[::-1].copy(), [2], batch_size=9, device=GPU):
        assert np.array_equal(played.peek(batch.vectors[0]), VECTORS[batch.targets])


def search(played: PlayedCuda) -> None:
    vectors = WatchedVectors(VECTORS)
    vectors.played = played
    queries = VECTORS[:4].astype(np.float64)
    one = Search(vectors, queries / np.linalg.norm(queries, axis=1)[:, None], 3, Space("cosine"), range(100), (), None)
    one.n_candidates = 5
    scores, rows = exact._gpu_candidates(one, GPU)
    assert (rows[np.arange(4), scores.argmax(1)] == np.arange(4)).all()


@pytest.mark.parametrize(
    ("read", "fault", "pairs"),
    [
        *((each, None, set()) for each in (read_classes, read_edges, search)),
        (read_classes, no_wait_of_the_host, {"model:_to_copy, host:host"}),
        (read_classes, streams_of_another_device, {"model:_to_copy, host:host"}),
        (read_classes, events_of_another_device, {"model:_to_copy, host:host"}),
        (read_edges, no_wait_for_copies, {"model:_to_copy, host:host"}),
        (search, no_wait_for_results, {"model:clone, host:host"}),
    ],
)
def test_what_is_read_is_not_overwritten_while_it_is_copied(
    read: Callable[[PlayedCuda], None], fault: Break | None, pairs: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "QUICK_SECONDS", float("inf"))  # all in this thread, however slow it is
    monkeypatch.setattr(edges, "GROUP_NBYTES", 1)
    with played_cuda() as played:
        if fault is not None:
            fault(played, monkeypatch)
        read(played)
    assert found(played) == pairs, played.races[:1]
    assert not played.kernels[0], "nothing runs on cuda:0"
