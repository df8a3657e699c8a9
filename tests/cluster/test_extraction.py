"""Extractions by executors: the bytes of one process, whatever befalls the workers."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore as es
from embstore.cluster.processes import Processes
from embstore.corpus import Sentence
from embstore.errors import ExecutorError, InvalidValueError, NonFiniteError, WorkerWarning
from embstore.executor import InProcess
from embstore.extraction import distribution
from embstore.extraction.distribution import job_of
from embstore.extraction.encoder_recipe import with_absolute_path
from embstore.extraction.piece import cut_pieces
from embstore.store import StoreWriter, create_store
from tests.cluster.troubles import Troubled, Troubles, quick_workers
from tests.extraction.fake import FakeEncoder
from tests.extraction.test_pipeline import many, small_partitions, tree_bytes
from tests.models import tiny

__all__ = ["quick_workers"]


@pytest.fixture(autouse=True)
def partitions_of_256_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    small_partitions(monkeypatch)


def made(sentences: list[Sentence] | None = None, **options: Any) -> es.Plan:
    given: dict[str, Any] = {"model": FakeEncoder(), "calibrate": False, "dtype": "float32"}
    return es.plan(many(220) if sentences is None else sentences, **(given | options))


@pytest.mark.parametrize("suffix", [".zarr", ".h5"])
@pytest.mark.parametrize(
    "options", [{"dtype": "float16"}, {"dtype": "int8"}, {"unit": "subword"}, {"context_window": 1}]
)
def test_in_process_writes_the_same_bytes(tmp_path: Path, suffix: str, options: dict[str, Any]) -> None:
    es.extract(made(**options), tmp_path / f"plain{suffix}")
    seen: list[es.extraction.Progress] = []
    plan = made(**options)
    store = es.extract(plan, tmp_path / f"s{suffix}", executor=InProcess(), progress=seen.append)
    assert plan.layout.n_partitions >= 4
    assert store.finished
    assert tree_bytes(tmp_path / f"s{suffix}") == tree_bytes(tmp_path / f"plain{suffix}")
    assert [state.rows for state in seen] == [plan.layout.span(k)[1] for k in range(plan.layout.n_partitions)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"plain{suffix}", f"s{suffix}"]


@pytest.mark.parametrize("unit", ["word", "subword"])
@pytest.mark.parametrize("window", [None, 2])
def test_a_piece_has_the_passages_of_the_whole_index(
    monkeypatch: pytest.MonkeyPatch, unit: str, window: int | None
) -> None:
    monkeypatch.setattr("embstore.extraction.partition.PASSAGE_NBYTES", 300)
    sentences = [*many(120), Sentence(["new", "york", "is", "large"], {}, [(0, 2)]), *many(60)]
    plan = made(sentences, unit=unit, context_window=window)
    reader, passages = plan.reader(), 0
    for piece in cut_pieces(plan.index, plan.layout, range(plan.layout.n_partitions)):
        whole = list(reader.passages(*plan.layout.span(piece.partition), plan.encoder))
        ours = list(piece.passages(plan.encoder, plan.options, limit=plan.limit))
        for one, other in zip(ours, whole, strict=True):
            assert one.first_row == other.first_row
            np.testing.assert_array_equal(one.sentence_of_row, other.sentence_of_row)
            for name in ("tokenized", "spans"):
                for field, array in vars(getattr(one, name)).items():
                    np.testing.assert_array_equal(array, getattr(getattr(other, name), field))
        passages += len(ours)
    assert passages > plan.layout.n_partitions


def poisoned() -> list[Sentence]:
    return [*many(100), Sentence(["a", "zzz"]), *many(120)]


def test_a_poisoned_sentence_is_named_and_the_rest_is_committed(tmp_path: Path) -> None:
    encoder = FakeEncoder()
    plan = made(poisoned(), model=encoder)
    encoder.poison = "zzz"
    with pytest.raises(NonFiniteError) as raised:
        es.extract(plan, tmp_path / "s.zarr", executor=InProcess(attempts=2))
    message = str(raised.value)
    (row,) = (row for row in range(plan.layout.n_rows) if plan.index.words[int(plan.index.type[row])] == "zzz")
    partition = row // plan.layout.partition_rows
    start, stop = plan.layout.span(partition)
    first, last = int(plan.index.sentence[start]), int(plan.index.sentence[stop - 1])
    assert f"1 of {plan.layout.n_partitions} partitions of {tmp_path / 's.zarr'} could not be written" in message
    assert (
        f"partition {partition} (rows {start}-{stop - 1}, sentences {first}-{last}): layer 0, sentence 100" in message
    )
    assert "the last of 2 attempts" in message
    assert "the same command again goes on with the rest" in message
    assert "\n" not in message
    with StoreWriter(tmp_path / "s.zarr") as writer:
        assert writer.missing() == [partition]
    es.extract(made(poisoned()), tmp_path / "s.zarr", executor=InProcess())
    es.extract(made(poisoned()), tmp_path / "plain.zarr")
    assert tree_bytes(tmp_path / "s.zarr") == tree_bytes(tmp_path / "plain.zarr")


def test_it_gives_up_where_all_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "GIVEN_UP_AFTER", 2)
    encoder = FakeEncoder()
    plan = made([Sentence([*sentence.words, "zzz"]) for sentence in many(220)], model=encoder)
    encoder.poison = "zzz"
    with pytest.raises(NonFiniteError, match=rf"{plan.layout.n_partitions - 2} more were then not tried"):
        es.extract(plan, tmp_path / "s.zarr", executor=InProcess())
    assert list(tmp_path.iterdir()) == [], "a store that this call began and in which nothing can be is removed"


def test_several_context_windows_are_refused(tmp_path: Path) -> None:
    plan = es.extraction.plan_windows(many(20), model=FakeEncoder(), calibrate=False, context_windows=[0, 1])
    with pytest.raises(InvalidValueError, match="several context windows share one pass"):
        es.extraction.extract_windows(plan, tmp_path / "s.zarr", executor=InProcess())
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save("bert", tmp_path_factory.mktemp("models") / "tiny-bert")


@pytest.mark.slow
def test_a_worker_that_is_not_like_the_coordinator_says_so(tmp_path: Path, model: Path) -> None:
    plan = made([Sentence(words) for words in tiny.random_sentences(20, seed=1)], model=model)
    path = tmp_path / "s.zarr"
    create_store(path, metadata=plan.metadata, index=plan.index)
    with StoreWriter(path) as writer:
        job = replace(job_of(plan, writer), encoder=None)
        assert job.begin() is not None
        versions = dict(job.software)
        for changed, told in (
            (
                {"software": versions | {"embstore": "0.0.9"}},
                r"embstore .* is here, 0\.0\.9 made the plan: install the same",
            ),
            ({"mark": "0" * 32}, "the store .*s.zarr is not to be seen here"),
            ({"path": tmp_path / "t.zarr"}, "the store .*t.zarr is not to be seen here"),
            ({"recipe_sha256": "0" * 64}, "the store .*s.zarr is not to be seen here"),
            (
                {"recipe": replace(job.recipe, model=str(tmp_path / "none"))},
                f"there is no model folder '{tmp_path}/none'",
            ),
            ({"recipe": replace(job.recipe, weights_sha256="0" * 64)}, "has other weights here"),
            ({"recipe": replace(job.recipe, tokenizer_sha256="0" * 64)}, "has other tokenizer"),
        ):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("embstore.store.zarr.shard_writer.MARK_SECONDS", 0.0)
                with pytest.raises(ExecutorError, match=told) as raised:
                    replace(job, **changed).begin()
            assert "\n" not in str(raised.value)
        with pytest.warns(WorkerWarning, match=r"torch .* \(the plan's is 1\.0\): the last bits of vectors may differ"):
            replace(job, software=versions | {"torch": "1.0"}).begin()


def test_a_relative_name_of_a_model_is_the_same_folder_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "v.vec").touch()
    for name, absolute in (
        ("model", f"{tmp_path}/model"),
        ("subwords:model", f"subwords:{tmp_path}/model"),
        ("bag:vectors:v.vec?seed=1", f"bag:vectors:{tmp_path}/v.vec?seed=1"),
        ("v.vec", f"{tmp_path}/v.vec"),
        ("random:8?seed=1", "random:8?seed=1"),
        ("bert-base-uncased", "bert-base-uncased"),
    ):
        assert with_absolute_path(name) == absolute


@pytest.mark.slow
def test_a_process_with_a_model_writes_the_same_bytes(tmp_path: Path, model: Path) -> None:
    sentences = [Sentence(words) for words in tiny.random_sentences(120, seed=1)]
    es.extract(made(sentences, model=model, dtype="float16"), tmp_path / "plain.zarr")
    plan = made(sentences, model=model, dtype="float16")
    assert plan.layout.n_partitions >= 4
    es.extract(plan, tmp_path / "s.zarr", executor=Processes(["cpu"]))
    assert tree_bytes(tmp_path / "s.zarr") == tree_bytes(tmp_path / "plain.zarr")


@pytest.mark.slow
@pytest.mark.usefixtures("quick_workers")
def test_processes_through_all_that_may_go_wrong(tmp_path: Path) -> None:
    """A worker killed, one with a full disk and a poisoned sentence leave one partition; it is then done."""
    folder, executor, name = tmp_path, Processes(["cpu", "cpu"]), "s.h5"
    sentences = poisoned()
    es.extract(made(sentences), folder / f"plain{name}")
    plan = made(sentences)
    (row,) = (row for row in range(plan.layout.n_rows) if plan.index.words[int(plan.index.type[row])] == "zzz")
    left = row // plan.layout.partition_rows
    killed_at = next(partition for partition in range(plan.layout.n_partitions) if partition != left)
    troubles = Troubles(folder, poison="zzz", killed_at=killed_at, full_disk=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(NonFiniteError, match=rf"1 of {plan.layout.n_partitions} partitions .* partition {left} \("):
            es.extract(plan, folder / name, executor=Troubled(executor, troubles))  # type: ignore[arg-type]
    told = [str(one.message) for one in caught if issubclass(one.category, WorkerWarning)]
    assert any("was done again" in line and "the disk is full" in line for line in told)
    assert any(f"partition {killed_at} was done again" in line and "the worker was lost" in line for line in told)
    es.extract(made(sentences), folder / name, executor=InProcess())
    assert tree_bytes(folder / name) == tree_bytes(folder / f"plain{name}")
