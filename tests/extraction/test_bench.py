"""The stages of a measured extraction, their limits, and which one is the bottleneck."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import embstore as es
from embstore.errors import InvalidValueError
from embstore.extraction import bench
from embstore.extraction.bench import (
    IDLE,
    ExtractionRate,
    Stage,
    busy_seconds,
    copy_rate,
    covered,
    disk_rates,
    per_second,
    product_rate,
)
from embstore.extraction.partition import PASSAGE_NBYTES, passage_nbytes
from embstore.models import load_encoder
from tests.extraction.fake import FakeEncoder
from tests.models.tiny import SENTENCES, save

FORWARD = Stage("forward", 4.0, 37e12 * 4, "FLOP", 50e12, "matrix-multiply rate")
WRITE = Stage("write", 5.0, 8e9, "B", 2e9, "disk rate", parallel=True)
NOTHING = Stage("copy", 0.5, 0.0, "B", None, "nothing leaves a CPU")
REST = Stage("open, close, rest", 9.0)


@pytest.fixture(autouse=True)
def small_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COPIED_NBYTES", "DISK_NBYTES"):
        monkeypatch.setattr(bench, name, 2**16)
    monkeypatch.setitem(bench.PRODUCT_SIDE, "cpu", 64)


def test_the_busiest_stage_is_the_bottleneck() -> None:
    rate = ExtractionRate(1, 2, 3, 10.0, 1.0, (FORWARD, NOTHING, REST))
    assert rate.verdict == "forward is the bottleneck: 74 % of the matrix-multiply rate"
    assert replace(rate, stages=(FORWARD, WRITE)).verdict == "write is the bottleneck: 80 % of the disk rate"
    idle = Stage(IDLE, 6.0, limit_name="the cuda waits for them")
    waits = "launching operators is the bottleneck: the cuda waits for them 60 % of the time"
    assert replace(rate, stages=(FORWARD, WRITE, idle)).verdict == waits
    unknown = "copy is the bottleneck: busy 5 % of the time; its limit is unknown"
    assert replace(rate, stages=(NOTHING, REST)).verdict == unknown


def test_rates_and_shares_are_quotients() -> None:
    assert FORWARD.rate == 37e12
    assert FORWARD.share == pytest.approx(0.74)
    assert (NOTHING.rate, NOTHING.share) == (0.0, None)
    assert replace(WRITE, seconds=0.0).share == 0.0
    row = FORWARD.row(5.0)
    assert (row["share %"], row["runs"]) == (80, "in line")
    assert (row["rate"], row["limit"]) == ("37 TFLOP/s", "50 TFLOP/s matrix-multiply rate")
    assert row["of limit %"] == pytest.approx(74)
    assert WRITE.row(5.0)["runs"] == "parallel"


@pytest.mark.parametrize(
    ("rate", "unit", "written"),
    [
        (1.25e9, "B", "1.25 GB/s"),
        (7.98e14, "FLOP", "798 TFLOP/s"),
        (23_456, "subwords", "23.5 k subwords/s"),
        (12, "subwords", "12 subwords/s"),
    ],
)
def test_rates_have_prefixes(rate: float, unit: str, written: str) -> None:
    assert per_second(rate, unit) == written


def test_a_device_is_busy_while_a_kernel_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert covered([]) == 0
    assert covered([(5, 6), (0, 2), (1, 3), (1, 2), (3, 4)]) == 5
    cuda = torch.autograd.DeviceType.CUDA
    names = {"gemm": (0, 2e6, cuda), "norm": (1e6, 3e6, cuda), "Memcpy DtoH": (3e6, 9e6, cuda),
             "aten::linear": (0, 9e6, torch.autograd.DeviceType.CPU)}  # fmt: skip
    events = [
        SimpleNamespace(name=name, time_range=SimpleNamespace(start=start, end=end), device_type=kind)
        for name, (start, end, kind) in names.items()
    ]
    found = nullcontext(SimpleNamespace(events=lambda: events))
    monkeypatch.setattr(torch.profiler, "profile", lambda activities: found)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    assert busy_seconds(lambda: None, torch.device("cuda")) == 3.0
    monkeypatch.setattr(bench.time, "process_time", iter([1.0, 7.0]).__next__)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert busy_seconds(lambda: None, torch.device("cpu")) == 1.5


def test_limits_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_fastest", lambda work, device: (work(), 0.01)[1])  # type: ignore[func-returns-value]
    cpu = torch.device("cpu")
    assert product_rate(cpu, "float32") == product_rate(cpu, "bfloat16") == 2 * 64**3 / 0.01
    assert copy_rate(cpu) == 2**16 / 0.01
    assert min(disk_rates(tmp_path, 2**20)) > 0
    assert not list(tmp_path.iterdir())


def test_the_work_of_an_extraction_is_that_of_its_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, rate in (("product_rate", 1e12), ("copy_rate", 1e10), ("disk_rates", [1e9])):
        monkeypatch.setattr(bench, name, lambda *args, rate=rate: rate)
    encoder = load_encoder(save("bert", tmp_path / "model"))
    found = es.extraction.bench_extract(
        SENTENCES, model=encoder, options=es.ExtractionOptions(layers="0,2"), folder=tmp_path, suffix=".h5"
    )
    stages = {stage.name: stage for stage in found.stages}
    assert list(stages)[:6] == ["tokenize", "forward", "copy", "cast", "write", IDLE]
    tokenized = encoder.tokenize(SENTENCES)
    lengths = np.diff(tokenized.word_indptr[tokenized.sentence_indptr]) + 2
    assert stages["forward"].amount == encoder.forward_flops(lengths, layers=(0, 2))
    assert stages["tokenize"].amount == len(tokenized.ids) == found.n_subwords
    assert stages["write"].amount == found.nbytes == 2 * 32 * 2 * found.n_words
    assert stages["copy"].share is None
    in_line = sum(stage.seconds for stage in found.stages if not stage.parallel)
    assert in_line == pytest.approx(found.seconds)
    document = json.loads(json.dumps(found.as_json()))
    assert document["verdict"] == found.verdict
    assert [stage["name"] for stage in document["stages"]] == list(stages)
    assert document["stages"][1]["share"] == stages["forward"].rate / 1e12
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_forward_pass_of_an_unknown_architecture_has_no_limit(tmp_path: Path) -> None:
    found = es.extraction.bench_extract(SENTENCES, model=FakeEncoder(), folder=tmp_path)
    assert (found.stages[1].amount, found.stages[1].limit) == (0.0, None)
    with pytest.raises(InvalidValueError, match="sentences 0 is not allowed"):
        es.extraction.bench_extract(SENTENCES, model=FakeEncoder(), n_sentences=0)


def test_large_batches_come_from_large_passages() -> None:
    assert passage_nbytes(2048) == passage_nbytes(8192) == PASSAGE_NBYTES
    assert passage_nbytes(65536) == 8 * PASSAGE_NBYTES
