"""Code lengths by hand, against one probe after another, of planted signals and of labels that are noise."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from embstore.config import config
from embstore.errors import InvalidValueError
from embstore.probes import EdgeProbe, ProbeResult, Training, code_length
from embstore.probes.edges.model import EdgeBank, EdgeShape
from embstore.probes.edges.tasks import join_task
from embstore.probes.edges.training import EdgeStream, iter_logits, train_edges
from embstore.probes.mdl import CodeBank, block_ends, code_bits, frequency_bits, uniform_bits
from embstore.probes.training import Schedule
from tests.probes.edge_store import Made, make

CPU = torch.device("cpu")


def code(made: Made, dev: bool = True, **options: Any) -> ProbeResult:
    fractions, progress = options.pop("fractions", (10, 30, 100)), options.pop("progress", None)
    probe = EdgeProbe(**{"hidden_size": 10, **options})
    given = made.splits["train"], made.splits["dev"] if dev else None
    with config(progress=progress):
        return code_length(made.store, *given, probe=probe, fractions=fractions)


def lengths(result: ProbeResult, metric: str) -> dict[int | None, float]:
    rows = result.summary().filter(metric=metric)
    return dict(zip(rows["layer"], rows["value"], strict=True))


def test_code_lengths_by_hand() -> None:
    chances = torch.tensor([[[0.5, 0.25, 0.25], [0.125, 0.125, 0.75]]])
    gold = torch.tensor([[1.0, 0, 0], [0, 1, 0]])
    assert code_bits(chances.log() + 7, gold, single=True).tolist() == pytest.approx([1 + 3], rel=1e-6)
    odds = torch.log(chances / (1 - chances))
    bits = -(log2(0.5) + 2 * log2(0.75) + log2(0.875) + log2(0.125) + log2(0.25))
    assert code_bits(odds, gold, single=False).tolist() == pytest.approx([bits], rel=1e-6)
    assert uniform_bits(10, 8, single=True) == 30
    assert uniform_bits(10, 8, single=False) == 80
    seen = np.array([[1, 0], [1, 0], [0, 1]], bool)
    new = np.array([[1, 0], [0, 1]], bool)
    assert frequency_bits(seen, new, single=True) == pytest.approx(-log2(2.5 / 4) - log2(1.5 / 4))
    assert frequency_bits(seen, new, single=False) == pytest.approx(-2 * log2(2.5 / 4) - 2 * log2(1.5 / 4))


def test_blocks_end_at_the_fractions() -> None:
    assert block_ends((0.1, 10, 12.5, 50, 100), 1000).tolist() == [1, 100, 125, 500, 1000]
    assert block_ends((0.1, 0.2, 50, 100), 10).tolist() == [1, 5, 10], "blocks without a sentence are left out"
    for fractions, message in (
        ((10, 5, 100), r"fractions 10,5,100 are not allowed: give percent above 0, ascending to 100"),
        ((10, 10, 100), "are not allowed"),
        ((0, 100), "are not allowed"),
        ((), "are not allowed"),
        ((float("nan"), 100), "are not allowed"),
        ((10, 50), "fractions 10,50 are not allowed"),
        ((10, 200), "are not allowed"),
        ((100,), "fractions 100 of 10 sentences are one block: give more sentences, or a smaller first fraction"),
    ):
        with pytest.raises(InvalidValueError, match=message):
            block_ends(fractions, 10)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.slow
def test_codes_are_those_of_one_probe_after_another(tmp_path: Path, several: bool) -> None:
    made = make(tmp_path / "a.zarr", sentences=20, layers=(0, 1), planted=1, several=several)
    options: dict[str, Any] = {"training": Training(epochs=3, learning_rate=0.01, patience=1)}
    found = code(made, seeds=(0, 4), **options)
    task = join_task(made.store, made.splits["train"], made.splits["dev"])
    train, single, n_labels = task.train, task.labels.single, len(task.labels.labels)
    order = np.random.default_rng((0, train.n_sentences)).permutation(train.n_sentences)
    ends = [1, 4, 12]
    assert found.notes[0] == "edges: train: blocks end at 1, 4, 12 sentences"
    assert len(found.notes) == 1 or "the last epoch (3) ended the training of" in found.notes[1]
    stream = EdgeStream(made.store, (0, 1), Schedule(3, 32, 0.01, 1, min_steps=50))
    shape = EdgeShape(2, 12, 1, n_labels, 10)
    kind = CodeBank if single else EdgeBank
    each = log2(n_labels) if single else n_labels
    for row in found.frame.filter((pl.col("seed") == 0) == (pl.col("layer") == 0), metric="code_length").to_dicts():
        bank = kind(shape, np.eye(2, dtype=bool)[[row["layer"]]], np.array([row["seed"]]))
        bits = each * len(train.part(order[:1]))
        for start, stop in pairwise(ends):
            seen = train.part(order[:start])
            alone = replace(bank, weights=train_edges(bank, stream, seen, task.dev).weights)
            block = train.part(order[start:stop])
            for targets, logits in iter_logits(alone, stream, block):
                for place, target in enumerate(targets.tolist()):
                    gold = block.gold[target]
                    if single:
                        bits -= float(logits[0, place].double().log_softmax(0)[int(gold.argmax())]) / np.log(2)
                    else:
                        probability = logits[0, place].double().sigmoid().numpy()
                        bits -= float(np.log2(np.where(gold, probability, 1 - probability)).sum())
        assert (row["value"], row["count"]) == (pytest.approx(bits, rel=1e-4), len(train))
    uniform = lengths(found, "uniform_length")[None]
    assert uniform == pytest.approx(each * len(train))
    for layer, length in lengths(code(made, **options), "code_length").items():
        own = dict(found.frame.filter(layer=layer, seed=0).select("metric", "value").iter_rows())
        assert own["code_length"] == pytest.approx(length, rel=1e-4)
        assert own["compression"] == pytest.approx(uniform / own["code_length"])


@pytest.mark.parametrize("kind", ["linear", "mlp"])
@pytest.mark.quick(1)
def test_codes_are_shortest_in_the_planted_layer(tmp_path: Path, kind: str) -> None:
    made = make(tmp_path / "a.zarr", sentences=80, layers=(0, 1, 2), planted=1, longest=1)
    training = Training(epochs=8, learning_rate=0.01)
    found = code(made, kind=kind, control=True, training=training, fractions=(10, 40, 100))
    own, of_control = lengths(found, "code_length"), lengths(found, "control_length")
    uniform, frequency = lengths(found, "uniform_length")[None], lengths(found, "frequency_length")[None]
    assert own[1] < 0.7 * min(own[0], own[2])
    assert lengths(found, "compression")[1] == pytest.approx(uniform / own[1])
    assert min(own[0], own[2]) > 0.9 * frequency
    assert min(of_control.values()) > 0.9 * frequency, "words are not in their vectors"
    assert set(lengths(found, "control_compression")) == {0, 1, 2}
    assert found.notes[0] == "edges: train: blocks end at 5, 19, 48 sentences"
    assert any("all blocks: the last epoch (8) ended the training" in note for note in found.notes[1:])


@pytest.mark.slow
def test_shuffled_labels_do_not_compress(tmp_path: Path) -> None:
    made = make(tmp_path / "a.zarr", sentences=60, layers=(0, 1), planted=1, shuffled=True)
    reports: list[tuple[int, int | None]] = []
    training = Training(epochs=4, learning_rate=0.003)
    found = code(made, seeds=(0, 1), training=training, progress=lambda done, total: reports.append((done, total)))
    assert max(lengths(found, "compression").values()) < 1.05
    assert reports[-1][0] == reports[-1][1]
    assert reports == sorted(reports)
