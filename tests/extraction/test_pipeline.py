"""Extraction against what a store must hold, worked out word by word; into a bucket, the bytes of a disk."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import embstore as es
from embstore.corpus import Sentence
from embstore.corpus.keep import Keep
from embstore.errors import (
    CorpusError,
    InvalidValueError,
    MissingRowsError,
    NonFiniteError,
    StoreDamagedError,
    StoreMismatchError,
    UnfinishedStoreWarning,
)
from embstore.models.encoder import Pooled, Spans, Tokenized
from embstore.store import Store, create_store
from tests.extraction.fake import FakeEncoder
from tests.extraction.oracle import Row, expected_rows
from tests.extraction.plans import plan_of
from tests.store.example import all_files
from tests.store.memory_bucket import URL, MemoryBucket

SENTENCES = [
    Sentence(["the", "bank", "of", "the", "river"], {"class": [None, "nature", None, None, "nature"]}),
    Sentence(["new", "york", "is", "extraordinarily", "large"], {"class": ["city", None, None, None, None]}, [(0, 2)]),
    Sentence(["~", "nothing", "~~"], {}),
    Sentence(["~"]),
    Sentence(
        ["a", "bank", "may", "fail"], {"class": [None, "money", None, None], "upos": ["DET", "NOUN", "AUX", None]}
    ),
    Sentence([f"word{number}" for number in range(20)]),
]


def rows_of(store: Store) -> list[Row]:
    """The rows of a store in the oracle's shape."""
    index = store.index
    vectors = [store.vectors(np.arange(store.n_rows), layers=layer) for layer in store.layers]
    rows = []
    for row in range(store.n_rows):
        sentence = int(index.sentence[row])
        labels = {}
        for name, column in index.labels.items():
            code = int(column.codes[row])
            labels[name] = None if code < 0 else column.names[code]
        rows.append(
            Row(
                form=index.words[int(index.type[row])],
                source=int(index.source[sentence]),
                text=index.text[sentence],
                position=int(index.position[row]),
                subwords=int(index.subwords[row]),
                labels=labels,
                vectors=np.stack([layer[row] for layer in vectors]),
            )
        )
    return rows


def assert_rows(found: Sequence[Row], expected: Sequence[Row], *, atol: float = 0, rtol: float = 0) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.form, ours.source, ours.text) == (theirs.form, theirs.source, theirs.text)
        assert (ours.position, ours.subwords) == (theirs.position, theirs.subwords)
        assert {name: label for name, label in ours.labels.items() if label is not None} == {
            name: label for name, label in theirs.labels.items() if label is not None
        }
        np.testing.assert_allclose(ours.vectors, theirs.vectors, atol=atol, rtol=rtol)


def extracted(
    path: Path, sentences: Sequence[Sentence] = SENTENCES, **options: object
) -> tuple[es.extraction.Plan, Store]:
    plan = plan_of(list(sentences), **({"model": FakeEncoder(), "dtype": "float32"} | options))
    return plan, es.extract(plan, path)


@pytest.mark.parametrize("pooling", ["mean", "first", "last", "max"])
@pytest.mark.parametrize("unit", ["word", "subword"])
@pytest.mark.quick(3)
def test_store_holds_every_word(tmp_path: Path, unit: str, pooling: str) -> None:
    _, store = extracted(tmp_path / "s.zarr", unit=unit, pooling=pooling)
    expected = expected_rows(SENTENCES, FakeEncoder(), limit=24, unit=unit, pooling=pooling, layers=[0, 1, 2])
    assert_rows(rows_of(store), expected)


@pytest.mark.parametrize(("dtype", "rtol", "atol"), [("float16", 1e-3, 1e-3), ("bfloat16", 8e-3, 0), ("int8", 0, 0.02)])
@pytest.mark.quick(3)
def test_every_dtype(tmp_path: Path, dtype: str, rtol: float, atol: float) -> None:
    _, store = extracted(tmp_path / "s.zarr", dtype=dtype, layers=[0, 2])
    expected = expected_rows(SENTENCES, FakeEncoder(), limit=24, unit="word", pooling="mean", layers=[0, 2])
    assert_rows(rows_of(store), expected, rtol=rtol, atol=atol)


def test_every_word_has_a_row_or_a_reason(tmp_path: Path) -> None:
    plan, store = extracted(tmp_path / "s.zarr", keep=Keep(words=frozenset(["bank", "new york"])))
    forms = [row.form for row in rows_of(store)]
    assert forms == ["bank", "new york", "bank"]
    dropped = {drop.reason.split(":")[0]: drop.count for drop in plan.metadata.dropped}
    units = sum(len(s.words) - sum(stop - start - 1 for start, stop in s.targets) for s in SENTENCES)
    assert dropped == {"no subword": 3, "not chosen": units - 3 - 3}
    lines = [line.split(maxsplit=3) for line in repr(plan).splitlines() if line.startswith("dropped ")]
    assert [each[1:3] for each in lines] == [["3", "no"], [str(units - 6), "not"]]
    assert store.index.text[0] == "the bank of the river"
    assert store.index.source.tolist() == [0, 1, 4]
    examples = plan.metadata.dropped[0].examples
    assert examples[0] == "'~' (sentence 2, position 0)"


word = st.text(st.sampled_from("abcdef~é"), min_size=1, max_size=10)


@st.composite
def sentence(draw: st.DrawFn) -> Sentence:
    words = draw(st.lists(word, min_size=1, max_size=14))
    targets, at = [], 0
    while at + 2 <= len(words) and draw(st.booleans()):
        start = draw(st.integers(at, len(words) - 2))
        stop = draw(st.integers(start + 2, min(start + 4, len(words))))
        targets.append((start, stop))
        at = stop
    labels = {}
    for column in draw(st.sets(st.sampled_from(["class", "upos"]))):
        labels[column] = draw(st.lists(st.sampled_from([None, "a", "b"]), min_size=len(words), max_size=len(words)))
    return Sentence(words, labels, targets)


@settings(max_examples=8)
@given(
    sentences=st.lists(sentence(), min_size=1, max_size=60),
    limit=st.integers(1, 30),
    unit=st.sampled_from(["word", "subword"]),
    suffix=st.sampled_from([".zarr", ".h5"]),
    seed=st.integers(0, 5),
)
def test_any_corpus(
    tmp_path_factory: pytest.TempPathFactory, sentences: list[Sentence], limit: int, unit: str, suffix: str, seed: int
) -> None:
    encoder = FakeEncoder(shuffle_seed=seed)
    expected = expected_rows(sentences, encoder, limit=min(limit, 24), unit=unit, pooling="mean", layers=[1])
    path = tmp_path_factory.mktemp("any") / f"s{suffix}"
    if not expected:
        with pytest.raises(CorpusError, match="no word is left"):
            extracted(path, sentences, model=encoder, unit=unit, layers=[1], max_length=min(limit, 24) + 2)
        return
    _, store = extracted(path, sentences, model=encoder, unit=unit, layers=[1], max_length=min(limit, 24) + 2)
    assert_rows(rows_of(store), expected)


def many(count: int) -> list[Sentence]:
    """Sentences enough for several partitions of 256 rows, whose edges fall inside sentences."""
    rng = np.random.default_rng(1)
    words = np.array(["bank", "river", "the", "of", "money", "extraordinary", "a", "in"])
    return [Sentence(words[rng.integers(0, len(words), size)].tolist()) for size in rng.integers(1, 11, count)]


def small_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embstore.store.layout.SHARD_NBYTES", 1)


@pytest.mark.parametrize("unit", ["word", "subword"])
@pytest.mark.quick(1)
def test_partitions_meet_inside_sentences(tmp_path: Path, unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small_partitions(monkeypatch)
    monkeypatch.setattr("embstore.extraction.partition.PASSAGE_SUBWORDS", 150)
    sentences = many(200)
    plan, store = extracted(tmp_path / "s.zarr", sentences, unit=unit)
    assert plan.layout.n_partitions >= 4
    edges = [plan.layout.span(k)[0] for k in range(1, plan.layout.n_partitions)]
    assert any(store.index.sentence[edge] == store.index.sentence[edge - 1] for edge in edges)
    expected = expected_rows(sentences, FakeEncoder(), limit=24, unit=unit, pooling="mean", layers=[0, 1, 2])
    assert_rows(rows_of(store), expected)


def test_values_beyond_float16_are_refused(tmp_path: Path) -> None:
    class Large(FakeEncoder):
        def encode(self, *args: object, **options: object):  # type: ignore[no-untyped-def]
            for pooled in super().encode(*args, **options):  # type: ignore[arg-type]
                pooled.vectors[1, 0, 0] = 70000.0
                yield pooled

    with pytest.raises(NonFiniteError, match=r"layer 1.*70,000 is beyond float16's 65,504.*float32 or bfloat16"):
        extracted(tmp_path / "s.zarr", model=Large(), dtype="float16")
    extracted(tmp_path / "t.zarr", model=Large(), dtype="bfloat16")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"pooling": "last"}, "extraction.pooling"),
        ({"layers": [0]}, "layers"),
        ({"dtype": "float16"}, "dtype"),
        ({"unit": "subword"}, "extraction.unit"),
        ({"keep": Keep(min_contexts=2)}, "extraction.keep.min_contexts"),
        ({"max_length": 10}, "extraction.max_length"),
    ],
)
@pytest.mark.quick(4)
def test_another_plan_is_refused(tmp_path: Path, change: dict[str, object], named: str) -> None:
    path = tmp_path / "s.zarr"
    extracted(path)
    before = all_files(path)
    with pytest.raises(StoreMismatchError, match=f"was made with {named} "):
        extracted(path, **change)
    with pytest.raises(StoreMismatchError, match="corpus"):
        extracted(path, SENTENCES[1:])
    assert all_files(path) == before


def test_the_same_call_on_a_finished_store_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.zarr"
    extracted(path)
    before = all_files(path)
    _, store = extracted(path)
    assert store.finished
    assert all_files(path) == before


def test_a_sentence_beyond_the_limit_is_run_in_blocks() -> None:
    plan = plan_of([Sentence(["abc"] * 9)], model=FakeEncoder(), max_length=6)
    assert (plan.survey.n_words, plan.survey.n_subwords, plan.layout.n_rows) == (9, 9, 9)
    assert plan.estimate.subwords_to_run == 9
    assert plan.index.contexts is not None
    assert plan.index.contexts.indptr.tolist() == [0, 4, 8, 9]


def test_a_word_of_more_subwords_than_are_counted_is_dropped() -> None:
    endless = Sentence(["a", "abc" * 40_000, "b"])
    plan = plan_of([endless, Sentence(["c"])], model=FakeEncoder(max_subwords=None), max_length=100_000)
    assert list(plan.index.words) == ["a", "b", "c"]
    assert plan.index.subwords.tolist() == [1, 1, 1]
    assert [(drop.reason, drop.count) for drop in plan.metadata.dropped] == [("beyond the length limit", 1)]


def test_a_pipe_is_read_once_and_whole(tmp_path: Path) -> None:
    row = "{}\t{}\tl\tNOUN\tX\t_\t0\tdep\t_\t_\n"
    text = "\n".join(row.format(1, f"word{number}") for number in range(50))
    (tmp_path / "a.conllu").write_text(text)
    pipe = tmp_path / "pipe.conllu"
    os.mkfifo(pipe)
    for _ in range(2):  # the second time the store exists
        writer = threading.Thread(target=lambda: pipe.write_text(text), daemon=True)
        writer.start()
        options = {"model": FakeEncoder(), "keep": Keep(where="upos IS NOT NULL"), "store": tmp_path / "s.zarr"}
        plan = plan_of(pipe, **options)
        writer.join(timeout=600)
        assert (plan.survey.n_sentences, plan.layout.n_rows) == (50, 50)
        assert es.extract(plan, tmp_path / "s.zarr").finished
    assert es.extract(plan_of(tmp_path / "a.conllu", **options), tmp_path / "s.zarr").finished


def test_layers_mean_the_same_in_an_extraction_and_in_a_selection(tmp_path: Path) -> None:
    _, whole = extracted(tmp_path / "s.zarr")
    for given_, meant in [
        ("all", (0, 1, 2)),
        (-1, (2,)),
        ("-1", (2,)),
        ("0-1", (0, 1)),
        ("0,last", (0, 2)),
        ([2, 0, 2, -1], (0, 2)),
        (np.array([1, 2]), (1, 2)),
    ]:
        plan = plan_of(SENTENCES[:1], model=FakeEncoder(), layers=given_)
        assert plan.layout.layers == meant
        assert tuple(sorted(set(whole.select(layers=given_).layers))) == meant
    for wrong in (3, -4, "3", "-4", "0,3", [0, -4], "first", []):
        with pytest.raises(InvalidValueError, match=r"does not exist|no layer"):
            plan_of(SENTENCES[:1], model=FakeEncoder(), layers=wrong)
        with pytest.raises(InvalidValueError, match=r"is not stored|no layer|is not allowed"):
            whole.select(layers=wrong)


def test_other_labels_are_another_corpus(tmp_path: Path) -> None:
    sentences = [Sentence(["a", "bank"], {"class": [None, name]}) for name in ("money", "nature", "money")]
    extracted(tmp_path / "s.zarr", sentences)
    with pytest.raises(StoreMismatchError, match=r"corpus\.sha256"):
        extracted(tmp_path / "s.zarr", [*sentences[:2], Sentence(["a", "bank"], {"class": [None, "nature"]})])


def test_a_store_of_an_earlier_call_is_never_removed(tmp_path: Path) -> None:
    encoder = FakeEncoder()
    plan = plan_of([Sentence(["zzz", "poison"])], model=encoder)
    encoder.poison = "zzz"
    with pytest.raises(NonFiniteError):
        es.extract(plan, tmp_path / "new.zarr")
    assert not (tmp_path / "new.zarr").exists()  # nothing can be written into it
    create_store(tmp_path / "s.zarr", metadata=plan.metadata, index=plan.index)
    with pytest.raises(NonFiniteError):
        es.extract(plan, tmp_path / "s.zarr")
    assert (tmp_path / "s.zarr").exists()


class Forgetful(FakeEncoder):
    """Leaves the last span of a call out; `repeats`: gives the first one in its place, so that the number is right."""

    repeats = False

    def encode(self, tokenized: Tokenized, spans: Spans, **options: Any) -> Iterator[Pooled]:
        for pooled in super().encode(tokenized, spans, **options):
            rows = pooled.rows.copy()
            last = rows == len(spans.sentence) - 1
            if self.repeats:
                rows[last] = 0
                yield Pooled(rows, pooled.vectors)
            else:
                yield Pooled(rows[~last], pooled.vectors[:, torch.from_numpy(~last)])


@pytest.mark.parametrize("suffix", [".zarr", ".h5"])
@pytest.mark.parametrize("repeats", [False, True])
def test_a_row_that_no_vector_came_for_is_never_written(tmp_path: Path, suffix: str, repeats: bool) -> None:
    encoder = Forgetful()
    encoder.repeats = repeats
    plan = plan_of(SENTENCES, model=encoder)
    with pytest.raises(StoreDamagedError, match="the encoder is at fault; nothing of this partition was written"):
        es.extract(plan, tmp_path / f"store{suffix}")
    with pytest.warns(UnfinishedStoreWarning):
        store = es.open(tmp_path / f"store{suffix}")
    assert store.n_committed_rows == 0
    with pytest.raises(MissingRowsError):
        store.vectors(np.arange(1), layers=store.layers[0])


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> MemoryBucket:
    pytest.importorskip("obstore", reason="no obstore: pip install 'embstore[objects]'")
    small_partitions(monkeypatch)
    held = MemoryBucket()
    monkeypatch.setattr("embstore.store.storage.objects.ObjectStorage.at", held.at)
    return held


def plan(sentences: list[Sentence], *, model: FakeEncoder | None = None, **options: Any) -> es.extraction.Plan:
    return plan_of(sentences, model=model or FakeEncoder(), **({"dtype": "float32"} | options))


@pytest.mark.parametrize("dtype", ["float32", pytest.param("int8", marks=pytest.mark.slow)])
def test_a_bucket_gets_the_bytes_of_a_disk(memory: MemoryBucket, tmp_path: Path, dtype: str) -> None:
    sentences = many(150)
    store = es.extract(plan(sentences, dtype=dtype, store=URL), URL)
    assert store.finished
    assert str(store.path) == URL
    near = es.extract(plan(sentences, dtype=dtype), tmp_path / "x.zarr")
    assert near.metadata.layout.n_partitions > 2
    assert memory.files() == all_files(near.path)
    before = memory.files()
    assert es.extract(plan(sentences, dtype=dtype), URL).finished
    assert memory.files() == before


def test_repair_encodes_what_is_damaged(memory: MemoryBucket) -> None:
    sentences = many(150)
    es.extract(plan(sentences), URL)
    before = memory.files()
    for name in ("hidden_states/c/0/1/0", "occurrences/type/c/0", "commits/c/0/0"):
        memory.storage.put(name, [before[name][:-9] + bytes(9)])
        assert es.extract(plan(sentences), URL, repair=True).finished
        assert memory.files() == before


def test_what_cannot_be_stored_leaves_nothing(memory: MemoryBucket) -> None:
    encoder = FakeEncoder()
    poisoned = plan([Sentence(["zzz", "poison"])], model=encoder)
    encoder.poison = "zzz"
    with pytest.raises(NonFiniteError):
        es.extract(poisoned, URL)
    assert memory.files() == {}
