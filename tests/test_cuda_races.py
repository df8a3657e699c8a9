"""No race between the streams of a GPU where batches are encoded, cast and read for probes; played on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embstore.extraction.cast import Cast
from embstore.models import load_encoder
from embstore.models.batched import word_spans
from embstore.models.running import HostCopies
from embstore.probes.classes.examples import ArrayExamples, iter_batches
from embstore.store import Layout
from tests.models import tiny
from tests.played_cuda import GPU, PlayedCuda, played_cuda

Break = Callable[[PlayedCuda, pytest.MonkeyPatch], None]


def nothing(played: PlayedCuda, patch: pytest.MonkeyPatch) -> None:
    """Leave everything as it is."""


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


def encode(played: PlayedCuda, folder: Path, batching: str) -> None:
    """Encode some batches with a tiny model, which cuda:1 would run, and cast the vectors into a partition."""
    encoder: Any = load_encoder(tiny.save("bert", folder / "bert"), device="cpu")
    encoder.drop_fast_layers()
    model = encoder.network.model
    played.on_gpu |= {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    encoder.device, encoder._copies, encoder.batching = GPU, HostCopies(GPU), batching
    object.__setattr__(encoder.network.inputs, "device", GPU)
    tokenized = encoder.tokenize(tiny.random_sentences(40, seed=0))
    spans = word_spans(tokenized, encoder.info.max_subwords)
    spans = spans.where(spans.stop > spans.start)
    layers = (0, 1, 2)
    layout = Layout(layers=layers, n_rows=len(spans.start), hidden_size=encoder.info.hidden_size, dtype="float16",
                    partition_rows=2**20)  # fmt: skip
    cast = Cast(layout, center=None)
    buffer = cast.buffer()
    n_batches = 0
    for pooled in encoder.encode(
        tokenized, spans, layers=layers, pooling="mean", batch_subwords=64, dtype=torch.float16
    ):
        cast.check(pooled, None)  # type: ignore[arg-type]
        cast.into(buffer, pooled.vectors, np.asarray(pooled.rows), None)
        n_batches += 1
    assert n_batches > 4
    assert bool(torch.isfinite(buffer["hidden_states"].float()).all())


@pytest.mark.parametrize(
    ("fault", "is_safe", "batching"),
    [
        (nothing, True, "packed"),
        (nothing, True, "varlen"),
        (no_wait_of_streams, False, "packed"),
        (no_wait_of_the_host, False, "packed"),
        (streams_of_another_device, False, "packed"),
        (events_of_another_device, False, "packed"),
    ],
)
def test_encoded_vectors_leave_the_gpu_in_order(
    fault: Break, is_safe: bool, batching: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with played_cuda() as played, torch.inference_mode():
        fault(played, monkeypatch)
        encode(played, tmp_path, batching)
    assert (not played.races) == is_safe, played.races[:1]
    side = played.n_streams - 1
    assert set(played.kernels[side]) == {"copy_"}, "copies to the host have a stream of their own"
    assert len(played.kernels[1]) > 100, "the model runs in the current stream of cuda:1"
    assert not played.kernels[0], "nothing runs on cuda:0"


class WatchedExamples(ArrayExamples):
    """Examples whose reads into a buffer the played GPU knows of."""

    played: PlayedCuda

    def read(self, numbers: np.ndarray, layers: Sequence[int], out: np.ndarray, /) -> None:
        super().read(numbers, layers, out)
        self.played.host(out, writes=True)


@pytest.mark.parametrize(
    ("fault", "is_safe"),
    [
        (nothing, True),
        (no_wait_of_the_host, False),
        (streams_of_another_device, False),
        (events_of_another_device, False),
    ],
)
def test_examples_of_probes_are_not_overwritten_while_they_are_copied(
    fault: Break, is_safe: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = np.random.default_rng(0).normal(size=(100, 6)).astype(np.float32)
    examples = WatchedExamples({0: vectors, 3: 2 * vectors})
    order = np.random.default_rng(1).permutation(100)
    with played_cuda() as played:
        fault(played, monkeypatch)
        examples.played = played
        for numbers, columns in iter_batches(examples, order, [0, 3], batch_size=9, device=GPU):
            np.testing.assert_array_equal(columns[1, :, :-1].numpy(), 2 * vectors[numbers])
    assert (not played.races) == is_safe, played.races[:1]
    assert not played.kernels[0], "nothing runs on cuda:0"
