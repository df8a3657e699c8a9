"""Vectors that the GPU casts are those that are stored; values that cannot be stored are named as on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import embstore as es
from embstore.corpus import Sentence
from embstore.errors import NonFiniteError
from embstore.extraction.cast import Cast
from embstore.models import load_encoder
from embstore.models.transformer.encoder import TransformerEncoder
from embstore.store.layout import Layout
from tests.extraction.plans import plan_of
from tests.models.tiny import SENTENCES, save


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("bert", tmp_path_factory.mktemp("bert"))


@pytest.fixture
def casting_on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransformerEncoder, "casts_on_device", True)


@pytest.fixture
def spoil(folder: Path) -> Callable[[float, str], TransformerEncoder]:
    """An encoder whose layer 2 has a value planted at the word zebra, and so has layer 3."""

    def made(value: float, compute_dtype: str) -> TransformerEncoder:
        encoder = load_encoder(folder, compute_dtype=compute_dtype)
        zebra = encoder.tokenize([Sentence(["zebra"])]).ids.tolist()
        seen: list[torch.Tensor] = []
        encoder.network.model.embeddings.register_forward_pre_hook(
            lambda module, args, kwargs: seen.append(kwargs["input_ids"]), with_kwargs=True
        )

        def plant(module: torch.nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
            first = (seen[-1] == zebra[0]) & (seen[-1].roll(-1, 1) == zebra[1])
            output[first, 5] = value
            return output

        encoder.network.model.encoder.layer[1].register_forward_hook(plant)
        assert isinstance(encoder, TransformerEncoder)
        return encoder

    return made


def planned(encoder: TransformerEncoder, monkeypatch: pytest.MonkeyPatch, dtype: str) -> es.extraction.Plan:
    """A plan whose self-check has not seen what is planted."""
    monkeypatch.setattr(encoder, "self_check", lambda *args, **options: 0.0)
    corpus = [*SENTENCES, ["the", "zebra", "sat"]]
    return plan_of(corpus, model=encoder, dtype=dtype, pooling="first")


@pytest.mark.parametrize("on_device", [True, False])
@pytest.mark.parametrize(
    ("value", "compute", "dtype", "message"),
    [
        (float("inf"), "float32", "float16", "the model computes inf in float32: check its weights"),
        (float("inf"), "bfloat16", "bfloat16", "the model computes inf in bfloat16: check its weights, or compute in"),
        (float("-inf"), "float16", "float16", "the model computes -inf in float16: .* compute in bfloat16 or float32"),
        (float("nan"), "float16", "float32", "the model computes nan in float16"),
        (-70000.0, "float32", "float16", "-70,000 is beyond float16's 65,504"),
        (65510.0, "float32", "float16", "65,510 is beyond float16's 65,504"),  # the cast alone would round it down
        (98304.0, "bfloat16", "float16", "98,304 is beyond float16's 65,504"),
    ],
)
@pytest.mark.quick(1)
def test_layer_sentence_and_dtype_are_named(
    spoil: Callable[[float, str], TransformerEncoder],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    on_device: bool,
    value: float,
    compute: str,
    dtype: str,
    message: str,
) -> None:
    monkeypatch.setattr(TransformerEncoder, "casts_on_device", on_device)
    plan = planned(spoil(value, compute), monkeypatch, dtype)
    sentence = len(SENTENCES)
    row = plan.layout.n_rows - 2
    with pytest.raises(NonFiniteError, match=rf"^layer 2, sentence {sentence}, row {row}: {message}"):
        es.extract(plan, tmp_path / "s.zarr")


QUICK = {("float32", "float16"), ("float16", "float32"), ("bfloat16", "int8")}


@pytest.mark.parametrize(
    ("compute", "dtype"),
    [
        pytest.param(compute, dtype, marks=() if (compute, dtype) in QUICK else pytest.mark.slow)
        for compute in ("float32", "float16", "bfloat16")
        for dtype in ("float32", "float16", "bfloat16", "int8")
    ],
)
@pytest.mark.quick(1)
def test_the_store_is_the_same_wherever_the_cast_is_made(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compute: str, dtype: str
) -> None:
    encoder = load_encoder(folder, compute_dtype=compute)
    plan = plan_of(SENTENCES, model=encoder, dtype=dtype)
    plain = es.extract(plan, tmp_path / "plain.zarr")
    monkeypatch.setattr(TransformerEncoder, "casts_on_device", True)
    stayed: list[bool] = []
    run = encoder.encode
    monkeypatch.setattr(encoder, "encode", lambda *a, **o: stayed.append(o.get("on_device", False)) or run(*a, **o))
    cast = es.extract(plan, tmp_path / "cast.zarr")
    every = np.arange(plain.n_rows)
    for layer in plain.layers:
        assert np.array_equal(
            np.asarray(cast.vectors(every, layers=layer)), np.asarray(plain.vectors(every, layers=layer))
        )
    assert stayed[-1:] == [True]
    assert stayed.count(False) == (dtype == "int8")  # its center is computed first


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_only_what_can_be_stored_passes(dtype: str) -> None:
    cast = Cast(Layout.of(n_rows=40, layers=(0, 1), hidden_size=8, dtype=dtype), center=None)
    buffer = cast.buffer(1)
    largest = 65504.0 if dtype == "float16" else float(np.finfo(np.float32).max)
    for value in (1.0, 64000.0, 65504.0, -65504.0, 65505.0, -65512.0, 7e4, 1e20, -3e38, np.inf, -np.inf, np.nan):
        vectors = torch.ones(2, 3, 8)
        vectors[1, 2, 5] = value
        extremes = cast.into(buffer, vectors, np.arange(3), None)
        assert (extremes is None) == bool(abs(vectors[1, 2, 5]) <= largest), value
