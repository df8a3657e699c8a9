"""A device without enough memory: batches are split, no row is lost, and one warning reports it."""

from __future__ import annotations

import warnings
import weakref
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module

import numpy as np
import pytest
import torch

import embstore as es
from embstore.errors import DeviceMemoryError, SmallerBatchesWarning, StoreMismatchError
from embstore.extraction.estimate import buffered_nbytes
from embstore.extraction.worker import run_tasks
from embstore.models import batched, load_encoder
from embstore.models.batching import BATCHINGS, make_batches, split_batch
from embstore.models.memory import SIZES, fitting_batch, is_out_of_memory
from embstore.models.running import RunningBatch, launched
from embstore.models.transformer import encoder as transformer
from embstore.models.transformer.encoder import TransformerEncoder
from tests.extraction.plans import plan_of
from tests.models.oracle import gather, relative_error, tokenize, word_spans
from tests.models.tiny import SENTENCES, random_sentences, save

GIB = 2**30


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save("bert", tmp_path_factory.mktemp("bert"))


@pytest.fixture
def encoder(folder):
    return load_encoder(folder)


class SmallMemory:
    """A memory for `capacity` positions: the second block of the model raises an error for larger batches."""

    def __init__(self, encoder, capacity, *, error=None):
        self.capacity = capacity
        self.error = error or torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        self.ran = []
        encoder.network.model.encoder.layer[1].register_forward_pre_hook(self.run, with_kwargs=True)

    def run(self, module, args, kwargs):
        rows, columns = args[0].shape[:2]
        self.ran.append(rows * columns)
        if rows * columns > self.capacity:
            raise self.error


def sentences():
    return [*SENTENCES, *random_sentences(20, seed=4), *[SENTENCES[0]] * 30]


@pytest.fixture(scope="module")
def expected(folder):
    encoder = load_encoder(folder)
    tokenized = tokenize(encoder, sentences())
    return encoder.plain_vectors(tokenized, word_spans(tokenized)[0], layers=(0, 3), pooling="mean")


@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.quick(1)
def test_split_batches_contain_every_row_once(encoder, expected, batching):
    tokenized = tokenize(encoder, sentences())
    spans, _ = word_spans(tokenized)
    longest = int(np.diff(tokenized.word_indptr[tokenized.sentence_indptr]).max()) + 2
    memory = SmallMemory(encoder, longest + 3)
    encoder.use_batching(batching)
    with pytest.warns(SmallerBatchesWarning, match="did not fit into the memory of cpu") as caught:
        vectors = gather(
            encoder.encode(tokenized, spans, layers=(0, 3), pooling="mean", batch_subwords=700), spans, 2, 32
        )
    assert len(caught) == 1
    assert relative_error(vectors, expected) < 2e-5
    failed = [positions for positions in memory.ran if positions > memory.capacity]
    assert 1 <= len(failed) <= 6  # once the size that fits is known, no larger batch is tried


def test_the_size_that_fits_is_remembered(encoder):
    tokenized = tokenize(encoder, sentences())
    spans, _ = word_spans(tokenized)
    memory = SmallMemory(encoder, 300)
    options = {"layers": (3,), "pooling": "mean", "batch_subwords": 512}
    with pytest.warns(SmallerBatchesWarning, match=r"--batch-subwords \d+"):
        first = gather(encoder.encode(tokenized, spans, **options), spans, 1, 32)
    memory.ran.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = gather(encoder.encode(tokenized, spans, **options), spans, 1, 32)
    assert max(memory.ran) <= 300
    assert relative_error(again, first) < 2e-5


def test_one_sentence_that_does_not_fit_is_named(encoder):
    tokenized = tokenize(encoder, SENTENCES)
    spans, _ = word_spans(tokenized)
    longest = int(np.diff(tokenized.word_indptr[tokenized.sentence_indptr]).max()) + 2
    SmallMemory(encoder, longest - 1)
    passes = encoder.encode(tokenized, spans, layers=(3,), pooling="mean", batch_subwords=128)
    with (
        pytest.warns(SmallerBatchesWarning),
        pytest.raises(DeviceMemoryError, match=rf"one sentence of {longest} subwords.*--max-length.*cpu"),
    ):
        list(passes)


@pytest.mark.parametrize(
    ("error", "means"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
            True,
        ),
        (MemoryError(), True),
        (RuntimeError("shape mismatch"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_errors_that_mean_out_of_memory(error, means):
    assert is_out_of_memory(error) == means


def test_a_batching_that_needs_too_much_memory_is_skipped(encoder):
    model = encoder.network.model
    forward = model.forward

    def of_rows(**inputs):
        if inputs["attention_mask"].dim() == 4:
            raise RuntimeError(
                "DefaultCPUAllocator: can't allocate memory: you tried to allocate 140737488355328 bytes"
            )
        return forward(**inputs)

    model.forward = of_rows
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder.self_check(tokenize(encoder, SENTENCES), layers=(3,), pooling="mean")
    assert encoder.batching == "padded"
    assert encoder.runner.max_positions is None


def test_a_self_check_without_memory_is_one_line(encoder):
    SmallMemory(encoder, 0)
    with pytest.raises(DeviceMemoryError, match=r"the self-check of .* does not fit into the memory of cpu"):
        encoder.self_check(tokenize(encoder, SENTENCES), layers=(3,), pooling="mean")


@pytest.mark.parametrize(
    ("free", "position_nbytes", "size"),
    [
        (78 * GIB, 100_000, 65536),  # BERT-base on an H100
        (12 * GIB, 100_000, 32768),
        (2**17, 1, 65536),
        (2**17 - 2, 1, 32768),
        (2**20, 100_000, 1024),  # hardly any memory: batches are split
    ],
)
def test_a_batch_takes_half_of_what_is_free(free, position_nbytes, size):
    assert fitting_batch(free, position_nbytes=position_nbytes) == size
    assert size == SIZES[-1] or size * position_nbytes <= free / 2


@pytest.mark.parametrize("free", [3, 6, 8, 12, 24, 80])
def test_a_batch_of_all_layers_fits_next_to_the_groups_that_are_held(free):
    """BERT-base, BERT-large and 7B on GPUs of which this many GiB are free."""
    for n_features, position_nbytes in ((13 * 768, 115_000), (25 * 1024, 210_000), (33 * 4096, 800_000)):
        held = partial(buffered_nbytes, n_features=n_features, dtype="float16")
        size = fitting_batch(free * GIB, position_nbytes=position_nbytes, held=held)
        assert held(size) <= 4 * GIB
        assert 2 * size * position_nbytes + held(size) <= free * GIB
    assert fitting_batch(6 * GIB, position_nbytes=46_000, held=held) < fitting_batch(6 * GIB, position_nbytes=46_000)


def test_the_memory_of_a_position_is_that_of_a_batch(encoder):
    each = encoder.network.position_nbytes(128)
    small, large = (encoder.projected_nbytes(n_features=128, batch_subwords=n) for n in (8192, 16384))
    assert each == pytest.approx((large - small) / 8192, rel=0.05)
    assert not encoder.choices_vary


def test_the_default_batch_of_a_gpu_depends_on_its_memory(encoder, monkeypatch):
    network, size = encoder.network, encoder.info.hidden_size
    few, every = (network.position_nbytes(n * size) for n in (1, 4))
    monkeypatch.setattr(transformer, "free_nbytes", lambda device: 20_000 * every * 2)
    encoder.device = torch.device("cuda")
    assert encoder.default_batch_subwords == 16384
    chosen = partial(encoder.batch_subwords_next_to, n_features=4 * size)
    assert chosen(lambda size: 0) == 16384
    assert chosen(lambda size: 10_000 * every) == 8192
    monkeypatch.setattr(transformer, "free_nbytes", lambda device: 2 * 16384 * few)
    found = [encoder.batch_subwords_next_to(lambda size: 0, n_features=n * size) for n in (1, 4, 80)]
    assert found == [16384, 8192, 4096]  # one layer, all of them, all of several sites


def test_vectors_on_a_device_are_freed_before_the_next_batch(encoder, monkeypatch):
    run, seen = encoder._run, []

    def checked(*given):
        assert all(reference() is None for reference in seen)
        return run(*given)

    monkeypatch.setattr(encoder, "_run", checked)
    tokenized = tokenize(encoder, SENTENCES * 20)
    given = {"layers": (0, 3), "pooling": "mean", "batch_subwords": 128, "on_device": True}
    for pooled in encoder.encode(tokenized, word_spans(tokenized)[0], **given):
        seen.append(weakref.ref(pooled.vectors))
        del pooled
    assert len(seen) > 3


def test_vectors_that_stay_on_the_device_are_yielded_as_soon_as_they_are_launched():
    """The host waits for a batch only when two later ones are launched, also across calls; not at the end of one."""
    log, waiting, last = [], deque(), torch.zeros(1)

    class Mark:
        def __init__(self, number):
            self.synchronize = lambda: log.append(number)

    def batches(*numbers):
        for number in numbers:
            yield None if number < 0 else RunningBatch(np.array([number]), (last,), Mark(number + 0.5))

    def run(*numbers):
        return [(int(pooled.rows[0]), list(log)) for pooled in launched(batches(*numbers), waiting, ahead=2)]

    assert run(0, 1, 2, 3) == [(0, []), (1, []), (2, []), (3, [0.5])]
    assert log == [0.5, 1.5]
    assert run(4) == [(4, [0.5, 1.5])]
    assert log == [0.5, 1.5, 2.5]
    assert all(isinstance(done, Mark) for done in waiting), "what waits holds no vectors"
    run(-1)
    assert log == [0.5, 1.5, 2.5, 3.5, 4.5], "memory is short"


def test_a_resumed_store_uses_its_recorded_batch_size(encoder, tmp_path, monkeypatch):
    today = [1024]
    monkeypatch.setattr(TransformerEncoder, "choices_vary", True)
    monkeypatch.setattr(TransformerEncoder, "default_batch_subwords", property(lambda encoder: today[0]))

    def plan(store, **options):
        made = plan_of(SENTENCES, model=encoder, store=store, **options)
        return made, made.metadata.extraction["batch_subwords"]

    first, size = plan(tmp_path / "s.zarr")
    assert size == 1024
    es.extract(first, tmp_path / "s.zarr")
    today[0] = 2048
    again, size = plan(tmp_path / "s.zarr")
    assert size == 1024
    es.extract(again, tmp_path / "s.zarr")
    with pytest.raises(StoreMismatchError, match="batch_subwords 1024, this plan has 77"):
        plan(tmp_path / "s.zarr", batch_subwords=77)
    assert plan(tmp_path / "t.zarr")[1] == 2048
    (tmp_path / "broken.zarr").mkdir()
    assert (plan(tmp_path / "broken.zarr")[1], plan(None)[1]) == (2048, 2048)


def test_the_process_of_a_plan_holds_no_weights_while_workers_have_theirs(folder, tmp_path, monkeypatch):
    plan = plan_of(SENTENCES, model=folder)
    model, alive = weakref.ref(plan.encoder.network.model), []
    module = import_module("embstore.extraction.extract")
    monkeypatch.setattr(module, "run_tasks", lambda *given: alive.append(model()) or run_tasks(*given))
    with ThreadPoolExecutor(1) as executor:
        made = es.extract(plan, tmp_path / "s.zarr", executor=executor)
    assert set(alive) == {None}
    again = es.extract(plan, tmp_path / "t.zarr")  # the weights are loaded again
    every = np.arange(made.n_rows)
    assert np.array_equal(np.asarray(made.vectors(every)), np.asarray(again.vectors(every)))


@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.quick(1)
def test_a_resumed_store_keeps_its_batching(encoder, tmp_path, monkeypatch, is_named):
    """On a GPU another one may be the fastest when it is resumed, by a plan that knows the store or does not."""
    monkeypatch.setattr(TransformerEncoder, "choices_vary", True)
    monkeypatch.setattr(TransformerEncoder, "default_batch_subwords", 1024)
    monkeypatch.setattr(batched, "TIMED_SHARE", float("inf"))  # else so few sentences are not worth it
    path = tmp_path / "s.zarr"
    for today in ("packed", "padded"):
        monkeypatch.setattr(batched, "fastest", lambda batchings, run, today=today: today)
        encoder._fastest_of.clear()  # as in another process
        plan = plan_of(SENTENCES, model=encoder, store=path if is_named else None)
        assert plan.metadata.extraction["batching"] == ("packed" if is_named else today)
        assert es.extract(plan, path).metadata.extraction["batching"] == encoder.batching == "packed"
    assert plan_of(SENTENCES, model=encoder, store=tmp_path / "t.zarr").metadata.extraction["batching"] == "padded"


@pytest.mark.parametrize("how", BATCHINGS)
@pytest.mark.parametrize("seed", range(5))
def test_split_batches_contain_the_sentences_of_the_batch(how, seed):
    lengths = np.random.default_rng(seed).integers(1, 90, 80)
    for batch in make_batches(lengths, how=how, batch_subwords=1000, row_capacity=64):
        made = split_batch(batch, lengths, how=how, batch_subwords=max(1, batch.positions // 2), row_capacity=64)
        together = np.concatenate([part.sentences for part in made])
        assert np.array_equal(np.sort(together), np.sort(batch.sentences))
        if len(batch.sentences) == 1:
            assert made == [batch]
            continue
        assert len(made) > 1
        longest = lengths[batch.sentences].max()
        assert all(part.positions <= max(batch.positions // 2, longest, 128) for part in made)
        for part in made:
            assert (part.columns + lengths[part.sentences] <= part.shape[1]).all()
