"""What the first hour on a GPU must show: right vectors, the same bytes again, memory given back, two workers a card.

    python -m pytest -n 0 -m gpu -s tests/gpu

All but one run on a CPU too, among the slow tests. `-s` shows what ran where, how exact it was and what was chosen.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import embstore as es
from embstore.errors import SmallerBatchesWarning
from embstore.models.batched import word_spans
from embstore.models.transformer import inputs, varlen
from tests.models import tiny
from tests.models.oracle import tokenize
from tests.probes import class_store, edge_store, tree_store

ROOT = Path(__file__).parents[2]
SENTENCES = [*tiny.SENTENCES, *tiny.random_sentences(60, seed=3)]
EXTRACT = """
import json, os, sys
import embstore as es
from embstore.store import StoreWriter, layout
model, store, device, batching, last, options = sys.argv[1:]
layout.SHARD_NBYTES, write = 1, StoreWriter.write
StoreWriter.write = lambda self, n, data: os.kill(os.getpid(), 9) if n > int(last) else write(self, n, data)
with es.config(device=device, progress=False):
    encoder = es.load_encoder(model)
    type(encoder).candidate_batchings = lambda self, **_: (batching,)
    plan = es.plan(json.load(sys.stdin), model=encoder, options=es.ExtractionOptions(**json.loads(options)))
    es.extract(plan, store)
"""


@pytest.fixture(params=[pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA GPU")
    with es.config(device=request.param):
        yield request.param


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return cache(lambda name: tiny.save(name, tmp_path_factory.mktemp(name)))


def load(folder: Path, dtype: str, *, device: str) -> Any:
    with es.config(device=device):
        return es.load_encoder(folder, compute_dtype=dtype)


def encoded(encoder: Any, batching: str) -> NDArray[np.float64]:
    """Return the vectors of all words of the sentences, [layer, word, feature]; the host does not wait in a batch."""
    tokenized = tokenize(encoder, SENTENCES)
    spans = word_spans(tokenized, encoder.info.max_subwords)
    encoder.use_batching(batching)
    options: dict[str, Any] = {"layers": range(4), "pooling": "mean", "batch_subwords": 1 << 16, "on_device": True}
    waits = batching not in ("varlen", "packed") or encoder.info.architecture not in ("BertModel", "GPT2Model")
    for is_first in (True, False):  # the first time kernels are loaded
        if encoder.device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default" if is_first or waits else "error")
        batches = list(encoder.encode(tokenized, spans, **options))
    if encoder.device.type == "cuda":
        torch.cuda.set_sync_debug_mode("default")
    vectors = np.full((4, len(spans.start), encoder.info.hidden_size), np.nan)
    for pooled in batches:
        vectors[:, pooled.rows] = pooled.vectors.double().cpu().numpy()
    return vectors


def apart(vectors: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    """Return the largest difference relative to a vector's length but for 1 %: last bits decide between experts."""
    lengths = np.linalg.norm(vectors - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
    return float(np.quantile(lengths.max(0), 0.99))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "mamba", "mixtral"])
def test_vectors_are_as_exact_as_those_of_a_cpu(device: str, name: str, dtype: str, model: Any) -> None:
    """Next to float32 on a CPU: tiny models round much, on a CPU in the same dtype as well."""
    expected = encoded(load(model(name), "float32", device="cpu"), "equal")
    allowed = 1e-4 + 2 * apart(encoded(load(model(name), dtype, device="cpu"), "equal"), expected)
    encoder = load(model(name), dtype, device=device)
    encoder.self_check(tokenize(encoder, SENTENCES), layers=range(4), pooling="mean")
    print(f"{name}, {dtype}: {encoder.batching} was chosen, refused were {encoder.refused}")
    for batching in sorted(set(encoder.candidate_batchings()) - set(encoder.refused)):
        difference = apart(encoded(encoder, batching), expected)
        print(f"{name}, {dtype}, {batching}: {difference:.1e}, allowed {allowed:.1e}")
        assert difference < allowed, batching


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("is_broken", [False, True])
def test_a_broken_mask_is_refused_next_to_a_massive_value(
    device: str, dtype: str, is_broken: bool, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = load(model("gpt2"), dtype, device=device)
    with torch.no_grad():
        encoder.network.model.wpe.weight[0, 7] = 3000  # as GPT-2 has at its first position, in inner layers
    if is_broken:
        mask, of = inputs.InputMaker.mask, varlen.SentenceBounds.of
        monkeypatch.setattr(inputs.InputMaker, "mask", lambda self, owners, *more: mask(self, owners * 0 + 1, *more))
        one = classmethod(lambda cls, lengths, **more: of(lengths.sum(keepdims=True), **more))
        monkeypatch.setattr(varlen.SentenceBounds, "of", one)
    encoder.self_check(tokenize(encoder, SENTENCES), layers=[2], pooling="mean")
    print(f"{dtype}: {encoder.batching}, refused were {encoder.refused}")
    assert (encoder.batching in ("padded", "equal")) == is_broken


@pytest.mark.parametrize("options", [{"dtype": "int8"}, {"context_window": 2}, {"attention_window": 1}])
def test_stores_are_equal_under_checks_and_after_a_kill(
    device: str, options: dict[str, Any], model: Any, tmp_path: Path
) -> None:
    checks = {"plain": "", "CUDA_LAUNCH_BLOCKING": "1", **({"TORCH_CUDA_SANITIZER": "1"} if device == "cuda" else {})}
    batching = "equal" if "context_window" in options else "packed"

    def run(name: str, last: str = "999") -> subprocess.CompletedProcess[str]:
        given = [str(model("bert")), str(tmp_path / f"{name}.zarr"), device, batching, last, json.dumps(options)]
        command, text = [sys.executable, "-c", EXTRACT, *given], json.dumps(8 * SENTENCES)
        environment = {**os.environ, name: checks.get(name, "")}
        return subprocess.run(command, input=text, text=True, capture_output=True, check=False, env=environment)

    assert run("killed", "7").returncode == -9
    for name in (*checks, "killed"):
        done = run(name)
        assert done.returncode == 0, (name, done.stderr[-3000:])
        one, plain = (es.open(tmp_path / f"{each}.zarr").select().vectors() for each in (name, "plain"))
        np.testing.assert_array_equal(one, plain, name)
        assert len(one[0]) > 20 * 256, "partitions"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU")
def test_a_batch_that_does_not_fit_is_run_in_parts(model: Any) -> None:
    encoder = load(model("bert"), "float16", device="cuda")
    before, total = torch.cuda.memory_reserved(), torch.cuda.get_device_properties(0).total_memory
    expected = encoded(encoder, "packed")
    third = before + (torch.cuda.max_memory_reserved() - before) / 3
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(third / total)
    try:
        with pytest.warns(SmallerBatchesWarning) as warned:
            assert apart(encoded(encoder, "padded"), expected) < 1e-2
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()
    assert len(warned) == 1
    assert torch.cuda.memory_reserved() <= before


def test_two_workers_share_a_device(device: str, model: Any, tmp_path: Path) -> None:
    plan = es.plan(SENTENCES, model=load(model("bert"), "float32", device=device))
    one = es.extract(plan, tmp_path / "one.zarr").select().vectors()
    with es.executors.Processes(devices=[0 if device == "cuda" else "cpu"] * 2) as executor:
        two = es.extract(plan, tmp_path / "two.zarr", executor=executor).select().vectors()
    np.testing.assert_array_equal(one, two)
    print(f"{torch.cuda.memory_reserved() if device == 'cuda' else 0:,} bytes are held beside the workers")


def test_an_epoch_of_each_probe_is_that_of_a_cpu(device: str, tmp_path: Path) -> None:
    options = {"training": es.probes.Training(epochs=1)}
    words, edges = class_store.make(tmp_path / "words.zarr", words=90), edge_store.make(tmp_path / "edges.zarr")
    trees = tree_store.make(tmp_path / "trees.zarr", sentences=40)
    test, parts = {"test": trees.trees[30:]}, [edges.splits[name] for name in ("train", "dev")]
    fits: list[Callable[[], Any]] = [
        lambda: es.ClassProbe(**options).fit(words.store, es.probes.split_words(*words.lists)).score(),
        lambda: es.probes.StructuralProbe(**options).fit(trees.store, trees.trees[:30], test["test"]).score(test),
        lambda: es.probes.EdgeProbe(**options).fit(edges.store, *parts).score({"test": edges.splits["test"]}),
    ]
    for fit in fits:
        values = fit().frame["value"].to_numpy()
        with es.config(device="cpu"):
            np.testing.assert_allclose(values, fit().frame["value"].to_numpy(), atol=1e-3, rtol=1e-3)


def test_the_benchmark_runs(device: str, tmp_path: Path) -> None:
    out, script = tmp_path / "out.json", ROOT / "benchmarks" / "gpu" / "run.py"
    command = [sys.executable, str(script), "--device", device, "--tiny", "--seconds", "600", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    steps = json.loads(out.read_text())["steps"]
    compared = [case for name, case in steps["correctness"].items() if name != "took_s"]
    assert all(case["holds"] and case["relative"] > 0 for case in compared), "0: compared with itself"
    assert not steps["forward"]["tiny"]["failed"]
    assert steps["trace"]["tiny"]["kernels"] > 0
