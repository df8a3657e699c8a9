"""Description length: by hand, against one probe after another, planted signals, labels that are noise."""

from __future__ import annotations

from itertools import pairwise
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from embstore.errors import InvalidValueError
from embstore.probes.edges.model import EdgeBank, EdgeShape
from embstore.probes.edges.tasks import join_task
from embstore.probes.edges.training import EdgeTraining, Stream, iter_logits, train_edges
from embstore.probes.mdl import EPOCH, MdlResult, probe_mdl, split_part
from embstore.probes.mdl_code import CodeBank, block_ends, coded, frequency_bits, uniform_bits
from tests.probes.edge_store import Made, make

CPU = torch.device("cpu")


def probe(made: Made, **options: Any) -> MdlResult:
    splits = {name: made.splits[name] for name in ("train", "dev")}
    small: dict[str, Any] = {"device": "cpu", "projection": 8, "hidden_size": 10, "fractions": (10, 30, 100)}
    return probe_mdl(made.store, **{**splits, **small, **options})


def lengths(result: MdlResult, metric: str) -> dict[int | None, float]:
    held = result.summary().filter(pl.col("metric") == metric)
    return dict(zip(held["layer"], held["value"], strict=True))


def test_code_lengths_by_hand() -> None:
    chances = torch.tensor([[[0.5, 0.25, 0.25], [0.125, 0.125, 0.75]]])
    gold = torch.tensor([[1.0, 0, 0], [0, 1, 0]])
    assert coded(chances.log() + 7, gold, single=True).tolist() == pytest.approx([1 + 3], rel=1e-6)
    odds = torch.log(chances / (1 - chances))
    bits = -(log2(0.5) + 2 * log2(0.75) + log2(0.875) + log2(0.125) + log2(0.25))
    assert coded(odds, gold, single=False).tolist() == pytest.approx([bits], rel=1e-6)
    assert uniform_bits(10, 8, single=True) == 30
    assert uniform_bits(10, 8, single=False) == 80
    seen = np.array([[1, 0], [1, 0], [0, 1]], bool)
    new = np.array([[1, 0], [0, 1]], bool)
    assert frequency_bits(seen, new, single=True) == pytest.approx(-log2(2.5 / 4) - log2(1.5 / 4))
    assert frequency_bits(seen, new, single=False) == pytest.approx(-2 * log2(2.5 / 4) - 2 * log2(1.5 / 4))


def test_blocks_end_at_the_fractions() -> None:
    assert block_ends((0.1, 10, 12.5, 50, 100), 1000).tolist() == [1, 100, 125, 500, 1000]
    assert block_ends((0.1, 0.2, 50, 100), 10).tolist() == [1, 5, 10], "two of no sentence are one of one"
    for fractions, message in (
        ((10, 5, 100), r"fractions 10,5,100 are not allowed: give percent above 0, ascending to 100"),
        ((10, 10, 100), "are not allowed"),
        ((0, 100), "are not allowed"),
        ((), "are not allowed"),
        ((float("nan"), 100), "are not allowed"),
        ((10, 50), "fractions 10,50 end at 50 percent: let the last be 100"),
        ((10, 200), "end at 200 percent"),
        ((100,), "fractions 100 of 10 sentences are one block: give more sentences, or a smaller first fraction"),
    ):
        with pytest.raises(InvalidValueError, match=message):
            block_ends(fractions, 10)


@pytest.mark.parametrize("several", [False, True])
def test_codes_are_those_of_one_probe_after_another(tmp_path: Path, several: bool) -> None:
    made = make(tmp_path / "a.zarr", sentences=20, layers=(0, 1), planted=1, several=several)
    options: dict[str, Any] = {"epochs": 3, "learning_rate": 0.01, "patience": 1, "seeds": (0, 4)}
    found = probe(made, **options)
    task = join_task(made.store, train=made.splits["train"], dev=made.splits["dev"])
    train, dev = task.splits["train"], task.splits["dev"]
    order = np.random.default_rng((0, train.sentences)).permutation(train.sentences)
    ends = [1, 4, 12]
    assert found.code.ends.tolist() == ends
    training = EdgeTraining(3, 32, 0.01, 1e-2, 0.2, 1, 0)
    stream = Stream(made.store, (0, 1), 32, CPU)
    shape = EdgeShape(2, 12, 1, len(task.labels), 8, 10)
    kind = CodeBank if task.single else EdgeBank
    each = log2(len(task.labels)) if task.single else len(task.labels)
    for row in found.frame.filter(pl.col("metric") == "code_length").to_dicts():
        begun = kind.initial(shape, np.eye(2, dtype=bool)[[row["layer"]]], np.array([row["seed"]]), device=CPU)
        bits = each * float((_sentence_of(train) == order[0]).sum())
        for start, stop in pairwise(ends):
            passes = -(-EPOCH // start)
            seen = split_part(train, np.concatenate([order[:start]] * passes))
            assert seen.sentences >= EPOCH
            alone = train_edges(begun, stream, seen, dev, training=training).bank
            block = split_part(train, order[start:stop])
            for targets, logits in iter_logits(alone, stream, block):
                for place, target in enumerate(targets.tolist()):
                    gold = block.gold[target]
                    if task.single:
                        bits -= float(logits[0, place].double().log_softmax(0)[int(gold.argmax())]) / np.log(2)
                    else:
                        chance = logits[0, place].double().sigmoid().numpy()
                        bits -= float(np.log2(np.where(gold, chance, 1 - chance)).sum())
        assert row["value"] == pytest.approx(bits, rel=1e-4)
        assert row["count"] == len(train)
    assert found.code.bits.sum() == pytest.approx(found.frame.filter(pl.col("metric") == "code_length")["value"].sum())
    uniform = lengths(found, "uniform_length")[None]
    assert uniform == pytest.approx(each * len(train))
    for layer, length in lengths(probe(made, **{**options, "seeds": (0,)}), "code_length").items():
        own = found.frame.filter(pl.col("layer") == layer, pl.col("seed") == 0)
        held = dict(zip(own["metric"], own["value"], strict=True))
        assert held["code_length"] == pytest.approx(length, rel=1e-4)
        assert held["compression"] == pytest.approx(uniform / held["code_length"])


def _sentence_of(split: Any) -> np.ndarray:
    return np.repeat(np.arange(split.sentences), np.diff(split.first))


def test_parts_of_a_split_are_its_targets(tmp_path: Path) -> None:
    made = make(tmp_path / "a.zarr", sentences=20, layers=(0,), planted=None, pairs=True)
    split = join_task(made.store, train=made.splits["train"]).splits["train"]
    part = split_part(split, np.array([7, 2, 2]))
    wanted = np.concatenate([np.flatnonzero(_sentence_of(split) == number) for number in (2, 2, 7)])
    assert part.first.tolist() == [0, 3, 6, 9]
    assert (part.gold == split.gold[wanted]).all()
    assert all((own == each[wanted]).all() for own, each in zip(part.spans, split.spans, strict=True))
    assert len(part.unknown) == 9


@pytest.mark.parametrize("kind", ["mlp", "linear"])
def test_labels_are_shortest_where_they_were_planted(tmp_path: Path, kind: str) -> None:
    made = make(tmp_path / "a.zarr", sentences=80, layers=(0, 1, 2), planted=1, longest=1)
    options: dict[str, Any] = {"epochs": 8, "learning_rate": 0.01, "mixing_rate": 0.1, "fractions": (10, 40, 100)}
    found = probe(made, kind=kind, cumulative=True, control=True, **options)
    code, of_control = lengths(found, "code_length"), lengths(found, "control_length")
    uniform, frequency = lengths(found, "uniform_length")[None], lengths(found, "frequency_length")[None]
    assert code[1] < 0.7 * min(code[0], code[2])
    assert lengths(found, "compression")[1] == pytest.approx(uniform / code[1])
    assert min(code[0], code[2]) > 0.9 * frequency
    assert min(of_control.values()) > 0.9 * frequency, "a word is not in its vector"
    mixed = lengths(found, "cumulative_length")
    assert mixed[0] == code[0]
    assert mixed[1] < 0.75 * mixed[0]
    assert set(lengths(found, "control_cumulative_compression")) == {0, 1, 2}
    assert found.notes == ("edges: train: blocks end at 5, 19, 48 sentences",)


def test_shuffled_labels_do_not_compress(tmp_path: Path) -> None:
    made = make(tmp_path / "a.zarr", sentences=60, layers=(0, 1), planted=1, shuffled=True)
    told: list[tuple[int, int]] = []
    found = probe(made, epochs=4, learning_rate=0.003, progress=lambda done, total: told.append((done, total)))
    assert max(lengths(found, "compression").values()) < 1.05
    assert told[-1][0] == told[-1][1]
    assert all(earlier[0] <= later[0] for earlier, later in pairwise(told))


def test_what_cannot_be_coded_is_one_line(tmp_path: Path) -> None:
    made = make(tmp_path / "a.zarr", sentences=20, layers=(0, 1), planted=1)
    for options, message in (
        ({"fractions": (50, 10, 100)}, "fractions 50,10,100 are not allowed"),
        ({"kind": "tree"}, "kind 'tree' is not allowed: choose mlp or linear"),
        ({"seeds": (0, 0)}, "seeds must be one or more, each once"),
        ({"dev": None}, "patience 3 needs dev targets"),
        ({"layers": [7]}, "layer 7 is not stored"),
        ({"epochs": 0}, "epochs 0 is not allowed"),
    ):
        with pytest.raises(InvalidValueError, match=message) as caught:
            probe(made, **options)
        assert "\n" not in str(caught.value)
