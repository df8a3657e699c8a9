"""Which stage binds, and how far it is from the best that the machine can do: from times that are given."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import embstore as es
from embstore.errors import InvalidValueError
from embstore.extraction import bench
from embstore.extraction.bench import (
    ExtractionRate,
    Stage,
    binding,
    copy_rate,
    disk_rate,
    per_second,
    product_rate,
    verdict,
)
from embstore.extraction.partition import PASSAGE_NBYTES, passage_nbytes
from embstore.extraction.worker import Timings
from embstore.models import load_encoder
from tests.extraction.fake import FakeEncoder
from tests.models.tiny import SENTENCES, save

FORWARD = Stage("forward", 4.0, 37e12 * 4, "FLOP", 50e12, "matrix-multiply rate")
WRITE = Stage("write", 5.0, 8e9, "B", 2e9, "disk rate")
NOTHING = Stage("copy", 0.5, 0.0, "B", None, "nothing leaves a CPU")


def test_the_busiest_stage_binds() -> None:
    assert binding([FORWARD, NOTHING]) is FORWARD
    assert verdict([FORWARD, NOTHING], 5.0) == "forward is the bottleneck: 74 % of the matrix-multiply rate"
    assert verdict([FORWARD, WRITE, NOTHING], 5.0) == "write is the bottleneck: 80 % of the disk rate"
    assert verdict([NOTHING], 1.0) == "copy is the bottleneck: busy 50 % of the time; its limit is unknown"


def test_rates_and_shares_are_quotients() -> None:
    assert FORWARD.rate == 37e12
    assert FORWARD.share == pytest.approx(0.74)
    assert (NOTHING.rate, NOTHING.share) == (0.0, None)
    assert Stage("write", 0.0, 0.0, "B", 1.0, "").share == 0.0
    assert FORWARD.row(5.0) == {
        "stage": "forward",
        "busy %": 80.0,
        "rate": "37 TFLOP/s",
        "limit": "50 TFLOP/s matrix-multiply rate",
        "of limit %": pytest.approx(74),
    }
    assert NOTHING.row(5.0) == {"stage": "copy", "busy %": 10.0, "rate": "none", "limit": "none", "of limit %": None}


@pytest.mark.parametrize(
    ("rate", "unit", "written"),
    [(1.25e9, "B", "1.25 GB/s"), (7.98e14, "FLOP", "798 TFLOP/s"), (23_456, "subwords", "23.5 k subwords/s")],
)
def test_rates_are_written_as_people_read_them(rate: float, unit: str, written: str) -> None:
    assert per_second(rate, unit) == written
    assert per_second(12, "subwords") == "12 subwords/s"


def test_limits_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_best", lambda work, device: (work(), 0.01)[1])  # type: ignore[func-returns-value]
    cpu = torch.device("cpu")
    monkeypatch.setitem(bench.LARGEST_SIDE, "cpu", 512)
    assert product_rate(cpu, "float32") == 2 * 512**3 / 0.01
    assert copy_rate(cpu, nbytes=2**20) == 2**20 / 0.01
    assert disk_rate(tmp_path, nbytes=2**20) > 0
    assert not list(tmp_path.iterdir())


def test_a_product_that_takes_long_is_not_made_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = []
    monkeypatch.setattr(bench, "_product", lambda side, device, dtype: (sides.append(side), side / 8000)[1])
    assert product_rate(torch.device("cpu"), "bfloat16") == 2 * 512**3 / 0.064
    assert sides == [256, 512]


def test_the_work_of_an_extraction_is_that_of_its_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, rate in (("product_rate", 1e12), ("copy_rate", 1e10), ("disk_rate", 1e9)):
        monkeypatch.setattr(bench, name, lambda *args, rate=rate, **options: rate)
    encoder = load_encoder(save("bert", tmp_path / "model"))
    found = es.extraction.bench_extract(
        SENTENCES, model=encoder, options=es.ExtractionOptions(layers="0,2"), folder=tmp_path, suffix=".h5"
    )
    stages = {stage.name: stage for stage in found.limits}
    assert list(stages) == ["tokenize", "forward", "copy", "cast", "write"]
    tokenized = encoder.tokenize(SENTENCES)
    lengths = np.diff(tokenized.word_indptr[tokenized.sentence_indptr]) + 2
    assert stages["forward"].amount == encoder.forward_flops(lengths, layers=(0, 2))
    assert stages["forward"].seconds == found.timings.stages.forward + found.timings.stages.pool
    assert stages["tokenize"].amount == len(tokenized.ids) == found.n_subwords
    assert stages["write"].amount == found.nbytes == 2 * 32 * 2 * found.timings.n_rows
    assert stages["copy"].share is None
    document = json.loads(json.dumps(found.as_json()))
    assert document["verdict"] == found.verdict
    assert [stage["stage"] for stage in document["limits"]] == list(stages)
    assert document["limits"][1]["share"] == stages["forward"].rate / 1e12
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_encoder_of_unknown_shapes_has_no_limit_of_its_forward_pass(tmp_path: Path) -> None:
    found = es.extraction.bench_extract(SENTENCES, model=FakeEncoder(), folder=tmp_path, disk_nbytes=2**16)
    forward = found.limits[1]
    assert (forward.amount, forward.limit) == (0.0, None)
    assert found.verdict.split(" is the bottleneck")[0] in {stage.name for stage in found.limits}


def test_a_rate_without_limits_still_tells_its_stages() -> None:
    assert ExtractionRate(1, 2, 3, 4.0, 5.0, Timings()).as_json()["verdict"] is None
    with pytest.raises(InvalidValueError, match="disk_nbytes 0 is not allowed"):
        es.extraction.bench_extract(SENTENCES, model=FakeEncoder(), disk_nbytes=0)


def test_large_batches_come_from_large_passages() -> None:
    assert [passage_nbytes(size) for size in (1, 2048, 16383)] == [PASSAGE_NBYTES] * 3
    assert passage_nbytes(65536) == 8 * PASSAGE_NBYTES
