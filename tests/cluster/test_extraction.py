"""Extraction on executors: the bytes of one process, whatever happens to the workers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore as es
from embstore.corpus import Sentence
from embstore.errors import ExecutorError, NonFiniteError, StorageError, StoreMismatchError
from embstore.executors import Processes
from embstore.extraction.encoder_spec import EncoderSpec, require_software, software_versions
from embstore.extraction.partition import Part, Reader
from embstore.models.names import absolute_name
from embstore.store import StoreWriter
from tests.cluster.specs import use_fake_specs
from tests.extraction.fake import FakeEncoder
from tests.extraction.plans import plan_of
from tests.extraction.test_pipeline import many, small_partitions
from tests.models import tiny
from tests.store.example import all_files


@pytest.fixture(autouse=True)
def partitions_of_256_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    small_partitions(monkeypatch)


def make_plan(sentences: list[Sentence] | None = None, **options: Any) -> es.extraction.Plan:
    given = {"model": FakeEncoder(), "dtype": "float32"} | options
    return plan_of(many(220) if sentences is None else sentences, **given)


def n_missing(path: Path) -> tuple[int, int]:
    """Return how many partitions of a store are missing, and how many there are."""
    with StoreWriter(path) as writer:
        return len(writer.missing()), writer.metadata.layout.n_partitions


@pytest.mark.parametrize("suffix", [".zarr", ".h5"])
@pytest.mark.parametrize(
    "options", [{"dtype": "float16"}, {"dtype": "int8"}, {"unit": "subword"}, {"context_window": 1}]
)
@pytest.mark.quick(1)
def test_threads_write_the_same_bytes(
    tmp_path: Path, suffix: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_fake_specs(monkeypatch)
    es.extract(make_plan(**options), tmp_path / f"plain{suffix}")
    seen: list[int] = []
    plan = make_plan(**options)
    with ThreadPoolExecutor(2) as executor, es.config(progress=lambda done, total: seen.append(done)):
        store = es.extract(plan, tmp_path / f"s{suffix}", executor=executor)
    assert plan.layout.n_partitions >= 4
    assert store.finished
    assert all_files(tmp_path / f"s{suffix}") == all_files(tmp_path / f"plain{suffix}")
    assert seen == sorted(seen)
    assert seen[-1] == store.n_rows
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"plain{suffix}", f"s{suffix}"]


@pytest.mark.parametrize("unit", ["word", "subword"])
@pytest.mark.parametrize("window", [None, 2])
def test_a_part_has_the_passages_of_the_whole_index(
    monkeypatch: pytest.MonkeyPatch, unit: str, window: int | None
) -> None:
    monkeypatch.setattr("embstore.extraction.partition.PASSAGE_SUBWORDS", 90)
    plan = make_plan(many(120), unit=unit, context_window=window)
    rows: list[np.ndarray] = []
    for partition in range(plan.layout.n_partitions):
        start, stop = plan.layout.span(partition)
        part = Part.of(plan.index, start, stop)
        passages = list(Reader(plan.encoder, plan.options, plan.limit).passages(part))
        assert len(passages) > 1
        assert passages[0].first_row == start
        assert sum(passage.n_rows for passage in passages) == stop - start == part.n_rows
        rows.extend(passage.sentence_of_row for passage in passages)
        assert part.first_sentence == int(plan.index.sentence[start])
    np.testing.assert_array_equal(np.concatenate(rows), plan.index.sentence)


def poisoned() -> list[Sentence]:
    return [*many(150), Sentence(["zzz", "poison"]), *many(60)]


def partition_of(plan: es.extraction.Plan, word: str) -> int:
    (row,) = (row for row in range(plan.layout.n_rows) if plan.index.words[int(plan.index.type[row])] == word)
    return row // plan.layout.partition_rows


@pytest.mark.parametrize(("n_workers", "calls_per_worker"), [(2, 8), (1, 1)], ids=["calls of one", "calls of all"])
@pytest.mark.quick(1)
def test_a_partition_that_fails_is_named_and_the_others_are_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_workers: int, calls_per_worker: int
) -> None:
    monkeypatch.setattr("embstore.extraction.extract.CALLS_PER_WORKER", calls_per_worker)
    monkeypatch.setattr("embstore.extraction.extract.MAX_TASKS_PER_CALL", 100)
    es.extract(make_plan(poisoned()), tmp_path / "plain.zarr")
    plan = make_plan(poisoned())
    left, n_partitions = partition_of(plan, "zzz"), plan.layout.n_partitions
    use_fake_specs(monkeypatch, poison="zzz")
    with ThreadPoolExecutor(n_workers) as executor:
        with pytest.raises(NonFiniteError) as caught:
            es.extract(plan, tmp_path / "s.zarr", executor=executor)
        message = str(caught.value)
        assert f"1 of {n_partitions} partitions" in message
        assert f"partition {left} (rows" in message
        assert f"{n_partitions - 1} of {n_partitions} partitions were committed: the same command continues" in message
        assert n_missing(tmp_path / "s.zarr") == (1, n_partitions)
        use_fake_specs(monkeypatch)
        es.extract(make_plan(poisoned()), tmp_path / "s.zarr", executor=executor)
    assert all_files(tmp_path / "s.zarr") == all_files(tmp_path / "plain.zarr")


def test_many_failures_end_the_extraction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embstore.extraction.extract.MAX_FAILURES", 2)
    sentences = [Sentence(["zzz", *sentence.words]) for sentence in many(400)]
    use_fake_specs(monkeypatch, poison="zzz")
    with ThreadPoolExecutor(1) as executor, pytest.raises(NonFiniteError, match="first partition 0"):
        es.extract(make_plan(sentences), tmp_path / "s.zarr", executor=executor)
    assert not (tmp_path / "s.zarr").exists()  # nothing can be written into it


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".zarr", ".h5"])
def test_a_full_disk_on_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    es.extract(make_plan(poisoned()), tmp_path / f"plain{suffix}")
    use_fake_specs(monkeypatch, word="zzz", fault="full disk", folder=tmp_path)
    with Processes(1) as executor, pytest.raises(StorageError, match="the disk is full"):
        es.extract(make_plan(poisoned()), tmp_path / f"s{suffix}", executor=executor)
    missing, n_partitions = n_missing(tmp_path / f"s{suffix}")
    assert 0 < missing < n_partitions
    es.extract(make_plan(poisoned()), tmp_path / f"s{suffix}")
    assert all_files(tmp_path / f"s{suffix}") == all_files(tmp_path / f"plain{suffix}")


@pytest.mark.slow
def test_processes_load_the_model_and_write_the_same_bytes(tmp_path: Path) -> None:
    folder = tiny.save("bert", tmp_path / "model")
    sentences = tiny.random_sentences(60, seed=4)
    plan = plan_of(sentences, model=folder)
    es.extract(plan, tmp_path / "plain.zarr")
    with Processes(2) as executor:
        es.extract(plan, tmp_path / "s.zarr", executor=executor)
    assert all_files(tmp_path / "s.zarr") == all_files(tmp_path / "plain.zarr")


def test_another_model_on_a_worker_is_refused(tmp_path: Path) -> None:
    folder = tiny.save("bert", tmp_path / "model")
    plan = plan_of(tiny.random_sentences(5, seed=4), model=folder)
    for part in ("weights", "tokenizer"):
        spec = replace(plan.encoder_spec, info=replace(plan.encoder.info, **{f"{part}_sha256": "0" * 64}))
        with pytest.raises(ExecutorError, match=f"has other {part} on this worker"):
            spec.load()
    spec = replace(plan.encoder_spec, model=str(tmp_path / "nowhere"))
    with pytest.raises(ExecutorError, match="cannot load the model of the plan"):
        spec.load()


def test_other_software_on_a_worker() -> None:
    ours = software_versions()
    require_software(ours)
    for package in ("embstore", "torch"):
        with pytest.raises(ExecutorError, match=rf"the worker has {package} .* plan was made with 0\.0\.0: install"):
            require_software({**ours, package: "0.0.0"})


def test_a_model_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    assert absolute_name("model") == str(tmp_path / "model")
    assert absolute_name("vectors:model") == f"vectors:{tmp_path / 'model'}"
    assert absolute_name("bert-base-uncased") == "bert-base-uncased"
    assert isinstance(EncoderSpec, type)


def test_a_store_of_other_options_is_refused_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = tmp_path / "one.txt"
    one.write_text("the bank of the river\na new bank\n")
    es.extract(plan_of(one, model=FakeEncoder()), tmp_path / "s.zarr")

    def refuse(*args: Any, **options: Any) -> None:
        raise AssertionError("the model is loaded")

    monkeypatch.setattr("embstore.extraction.plan.encoder_on", refuse)
    for corpus, options, message in (
        (one, {"pooling": "last"}, "extraction.pooling 'mean', this plan has 'last'"),
        (one, {"layers": [0]}, "layers"),
        (one, {"dtype": "float32"}, "dtype 'float16', this plan has 'float32'"),
        (es.open_corpus(one, split="lines"), {}, "corpus.options.split"),
    ):
        with pytest.raises(StoreMismatchError, match=message):
            plan_of(corpus, model="a-model", store=tmp_path / "s.zarr", **options)
    with pytest.raises(AssertionError, match="the model is loaded"):
        plan_of(one, model="a-model", store=tmp_path / "s.zarr")
    with pytest.raises(es.errors.InvalidValueError, match="there is no folder"):
        plan_of(one, model="a-model", store=tmp_path / "nowhere" / "s.zarr")
