"""Sweeps over windows: what they run, how they go on, what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import embstore as es
from embstore.errors import InvalidValueError, StorageError, StoreMismatchError
from embstore.extraction.options import sorted_windows
from embstore.extraction.window_plan import extract_windows, plan_windows, store_path
from embstore.extraction.worker import Timings
from embstore.store import Store, StoreWriter
from tests.extraction.fake import FakeEncoder
from tests.extraction.plans import plan_of
from tests.extraction.test_pipeline import SENTENCES as FAKE_SENTENCES
from tests.extraction.test_pipeline import small_partitions, tree_bytes
from tests.extraction.window_scene import CORPUS, Scene, occurrences, relative, scenes, sweep, vectors_of
from tests.models.tiny import random_sentences

KINDS = ("bert", pytest.param("roberta", marks=pytest.mark.slow), "gpt2")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Scene]]:
    yield from scenes(tmp_path_factory)


@pytest.mark.slow
def test_a_sweep_gives_what_each_window_gives_alone(tmp_path: Path, scene: Callable[[str], Scene]) -> None:
    used = scene("gpt2")
    stores = extract_windows(sweep(used), tmp_path / "x.zarr")
    for width in (0, 2):
        alone = es.plan(
            list(CORPUS),
            model=used.encoder,
            options=es.ExtractionOptions(dtype="float32", context_window=width),
            calibrate=False,
        )
        store = es.extract(alone, tmp_path / f"alone{width}.zarr")
        np.testing.assert_array_equal(store.index.type, stores[width].index.type)
        assert relative(vectors_of(store), vectors_of(stores[width])) < 2e-5


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_run_is_every_different_window_once(tmp_path: Path, scene: Callable[[str], Scene], kind: str) -> None:
    used = scene(kind)
    plan = sweep(used, [*CORPUS, *CORPUS[:4]])
    counted = Timings()
    stores = extract_windows(plan, tmp_path / "x.zarr", timings=counted)
    wanted: dict[Any, tuple[str, ...]] = {}  # for a causal model the longest window that begins at a place
    for width, store in stores.items():
        for row, (words, start, stop) in enumerate(occurrences(store)):
            first, last = (0, len(words)) if width is None else (max(0, start - width), min(len(words), stop + width))
            if kind == "gpt2":
                key = (int(store.index.sentence[row]), first)
                wanted[key] = max(wanted.get(key, ()), tuple(words[first:stop]), key=len)
            else:
                wanted[tuple(words[first:last])] = tuple(words[first:last])
    tokenized = used.encoder.tokenize([list(words) for words in wanted.values()])
    runs = np.split(tokenized.ids, tokenized.word_indptr[tokenized.sentence_indptr[1:-1]])
    different = {run.tobytes(): len(run) for run in runs}
    assert counted.n_subwords == sum(different.values())
    assert plan.estimate.subwords_to_run == counted.n_subwords
    assert plan.estimate.counted


class _Killed(Exception):
    pass


@pytest.mark.parametrize(
    ("suffix", "dtype"),
    [
        (".zarr", "float16"),
        pytest.param(".h5", "float16", marks=pytest.mark.slow),
        (".h5", "int8"),
        pytest.param(".zarr", "int8", marks=pytest.mark.slow),
    ],
)
def test_a_killed_sweep_resumes_to_the_same_bytes(
    tmp_path: Path, scene: Callable[[str], Scene], suffix: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_partitions(monkeypatch)
    monkeypatch.setattr("embstore.extraction.partition.PASSAGE_NBYTES", 700)
    sentences = random_sentences(56, seed=5)
    widths = (0, 2, None)
    plan = sweep(scene("bert"), sentences, context_windows=widths, dtype=dtype, layers=[0, 2])
    assert next(iter(plan.plans.values())).layout.n_partitions >= 3
    straight = extract_windows(plan, tmp_path / f"straight{suffix}")
    write, written = StoreWriter.write, 0

    def failing(self: StoreWriter, partition: int, arrays: Any) -> None:
        nonlocal written
        if written == 4:  # in the middle of the second partition: one store has it, two have not
            raise _Killed
        written += 1
        write(self, partition, arrays)

    monkeypatch.setattr(StoreWriter, "write", failing)
    with pytest.raises(_Killed):
        extract_windows(plan, tmp_path / f"x{suffix}")
    monkeypatch.setattr(StoreWriter, "write", write)
    seen: list[tuple[int, int | None]] = []
    resumed = extract_windows(
        sweep(scene("bert"), sentences, context_windows=widths, dtype=dtype, layers=[0, 2]),
        tmp_path / f"x{suffix}",
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen[-1] == (3 * resumed[0].n_rows,) * 2
    for width in widths:
        assert resumed[width].finished
        assert tree_bytes(resumed[width].path) == tree_bytes(straight[width].path)


@pytest.mark.parametrize("suffix", [".zarr", ".h5"])
def test_another_window_is_refused_by_name(tmp_path: Path, scene: Callable[[str], Scene], suffix: str) -> None:
    encoder, path = scene("bert").encoder, tmp_path / f"x{suffix}"

    def extracted(**windows: int | None) -> Store:
        return es.extract(plan_of(list(CORPUS[:3]), model=encoder, **windows), path)

    extracted(context_window=2)
    with pytest.raises(StoreMismatchError, match=r"was made with extraction.context_window 2, this plan has 3"):
        extracted(context_window=3)
    with pytest.raises(StoreMismatchError, match=r"extraction.context_window 2, this plan has None"):
        extracted(attention_window=2)
    path = tmp_path / f"x-k2{suffix}"
    extracted(context_window=2)
    with pytest.raises(StoreMismatchError, match=r"extraction.context_windows None, this plan has \[0, 2\]"):
        extract_windows(
            sweep(scene("bert"), CORPUS[:3], context_windows=[0, 2], dtype="float16"), tmp_path / f"x{suffix}"
        )
    assert not (tmp_path / f"x-k0{suffix}").exists()


def test_the_estimate_is_projected_from_a_sample_of_a_larger_corpus(
    tmp_path: Path, scene: Callable[[str], Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_partitions(monkeypatch)
    plan = sweep(scene("bert"), random_sentences(110, seed=9), context_windows=[1, 4, None], layers=[0], calibrate=True)
    assert next(iter(plan.plans.values())).layout.n_partitions > 3
    counted = Timings()
    extract_windows(plan, tmp_path / "x.zarr", timings=counted)
    assert not plan.estimate.counted
    assert plan.estimate.subwords_to_run == pytest.approx(counted.n_subwords, rel=0.15)
    assert plan.estimate.seconds is not None
    assert plan.estimate.seconds > 0
    assert "projected from a sample" in str(plan)


def test_plans_are_valid_against_their_schema(scene: Callable[[str], Scene]) -> None:
    schema = json.loads((Path(__file__).parents[2] / "schemas" / "plan.schema.json").read_text())
    for windows in ({"context_windows": [0, None]}, {"attention_windows": [1, 2]}):
        jsonschema.validate(json.loads(json.dumps(sweep(scene("bert"), CORPUS[:3], **windows).as_json())), schema)
    plan = es.plan(
        list(CORPUS[:3]), model=scene("bert").encoder, calibrate=False, options=es.ExtractionOptions(context_window=3)
    )
    jsonschema.validate(json.loads(json.dumps(plan.as_json())), schema)


def test_an_encoder_takes_the_batching_of_the_plan_at_hand(tmp_path: Path, scene: Callable[[str], Scene]) -> None:
    encoder = scene("bert").encoder
    packed = es.plan(list(CORPUS), model=encoder, options=es.ExtractionOptions(dtype="float32"), calibrate=False)
    es.plan(
        list(CORPUS), model=encoder, options=es.ExtractionOptions(dtype="float32", context_window=1), calibrate=False
    )
    assert encoder.batching == "equal"
    es.extract(packed, tmp_path / "x.zarr")
    assert encoder.batching == "packed"


def test_too_little_space_is_reported_before_the_first_store(
    tmp_path: Path, scene: Callable[[str], Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = sweep(scene("bert"), CORPUS[:3], context_windows=[0, 1])
    object.__setattr__(plan.estimate, "free_nbytes", plan.estimate.store_nbytes - 1)
    with pytest.raises(StorageError, match="the store needs"):
        extract_windows(plan, tmp_path / "x.zarr")
    assert not list(tmp_path.iterdir())


def test_bad_sweeps(tmp_path: Path) -> None:
    for windows, message in (
        ({}, "give several context windows or several attention windows, one of the two"),
        ({"context_windows": [0], "attention_windows": [0]}, "one of the two"),
        ({"context_windows": []}, "no context window is given"),
        ({"context_windows": [0, -3]}, "context window -3 is not allowed"),
    ):
        with pytest.raises(InvalidValueError, match=message):
            plan_windows(FAKE_SENTENCES, model=FakeEncoder(), calibrate=False, **windows)


def test_windows_in_order_and_as_names() -> None:
    assert sorted_windows([16, None, 0, 2, 2]) == (0, 2, 16, None)
    assert store_path("a/x.zarr", kind="context", window=0) == Path("a/x-k0.zarr")
    assert store_path("a/x.zarr", kind="context", window=None) == Path("a/x-full.zarr")
    assert store_path("a/x.h5", kind="attention", window=4) == Path("a/x-a4.h5")
    assert store_path("a/x{window}y.h5", kind="context", window=None) == Path("a/xfully.h5")
