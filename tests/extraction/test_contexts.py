"""Contexts against a plain loop: cut a document by the rule, run the model on each block alone, and pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import embstore as es
from embstore.corpus import Keep, Sentence
from embstore.corpus.sentence import Document, sentence_pair
from embstore.errors import InvalidValueError
from embstore.extraction.windows import Overlap, Places, cut_texts
from embstore.models.encoder import indptr
from embstore.store import StoreWriter, verify
from embstore.store.check.consistency import index_faults
from embstore.store.index import Index
from tests.cluster.test_extraction import use_fake_specs
from tests.extraction.fake import FakeEncoder
from tests.extraction.oracle import documents_of, expected_rows, plain_contexts
from tests.extraction.plans import plan_of
from tests.extraction.test_pipeline import assert_rows, rows_of, small_partitions
from tests.models.oracle import PlainScript
from tests.models.tiny import random_sentences, save
from tests.store.example import all_files

WORDS = ["bank", "the", "extraordinary", "of", "~", "constantinople", "a"]


def corpus(*sizes: Sequence[int], seed: int = 0, words: Sequence[str] = WORDS) -> list[Sentence]:
    """Documents of sentences of these numbers of words, every third sentence with a phrase; an empty one is None."""
    random = np.random.default_rng(seed)
    found = []
    for document in sizes:
        own = Document()
        for number, size in enumerate(document):
            phrase = [(1, 3)] if number % 3 == 0 and size > 2 else []
            found.append(Sentence(random.choice(np.array(words), size).tolist(), {}, phrase, own))
    return found


TEXTS = [*corpus([5, 9, 12, 4, 30], [1], [3, 3], [40, 2]), Sentence(["alone"]), Sentence(["~"])]


@pytest.mark.parametrize("seed", range(3))
def test_cuts_are_those_of_a_plain_loop(seed: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(40):
        sizes = random.integers(0, 5, int(random.integers(1, 40)))
        sizes[random.random(len(sizes)) < 0.05] = 30
        bounds, words = indptr(sizes), np.repeat(np.arange(len(sizes)), sizes)
        n, limit = int(bounds[-1]), int(random.integers(3, 20))
        n_words, n_subwords, both = int(random.integers(0, 3)), int(random.integers(0, 3)), bool(random.integers(2))
        places = Places(bounds[:-1], bounds[1:])
        overlap = Overlap(n_words, n_subwords, both)
        found = np.concatenate(list(cut_texts(np.array([0, n]), limit, overlap, lambda text, places=places: places)))
        expected = plain_contexts(words.tolist(), limit, n_words=n_words, n_subwords=n_subwords, both=both)
        assert found.tolist() == [list(each[:3]) for each in expected]
        assert [at for *_, owned, stop in expected for at in range(owned, stop)] == list(range(n))
        assert all(stop - start <= limit for start, stop, *_ in expected)
    contiguous = np.concatenate(list(cut_texts(np.array([0, 7, 99]), 10, Overlap(), lambda text: places)))
    assert contiguous.tolist() == [[0, 7, 0], *([at, min(at + 10, 99), at] for at in range(7, 99, 10))]


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("suffix", "unit", "context", "min_left"),
    [
        (".zarr", "word", 20, 2),
        (".h5", "subword", "document", None),
        pytest.param(".zarr", "sentence", "document", 3, marks=SLOW),
        pytest.param(".h5", "word", 20, None, marks=SLOW),
        pytest.param(".zarr", "word", "document", 3, marks=SLOW),
        pytest.param(".zarr", "subword", 20, 2, marks=SLOW),
        pytest.param(".h5", "sentence", 20, None, marks=SLOW),
    ],
)
@pytest.mark.quick(1)
def test_every_word_has_the_vector_of_its_block(
    tmp_path: Path, suffix: str, unit: str, context: str | int, min_left: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_partitions(monkeypatch)
    monkeypatch.setattr("embstore.extraction.partition.PASSAGE_SUBWORDS", 40)
    texts = [*TEXTS, *corpus(*[[7] * 9] * 4, seed=2)]
    encoder = FakeEncoder()
    plan = plan_of(texts, model=encoder, dtype="float32", unit=unit, context=context, min_left=min_left)
    store = es.extract(plan, tmp_path / f"x{suffix}")
    limit = 24 if context == "document" else 18
    options = {"limit": limit, "unit": unit, "pooling": "mean", "layers": [0, 1, 2], "context": "document"}
    left = 0 if context == 20 and min_left is None else min_left
    assert_rows(rows_of(store), expected_rows(texts, FakeEncoder(), min_left=left, **options))
    contexts = store.index.contexts
    assert contexts is not None
    assert unit == "sentence" or any(edge not in contexts.indptr for edge in range(256, store.n_rows, 256))
    assert verify(store.path).ok


@torch.inference_mode()
def states_of(plain: PlainScript, encoder: Any, ids: list[int]) -> np.ndarray:
    """All hidden states of subwords [layer, subword, feature], with the special ones around them left out."""
    before, after = encoder.special_ids
    given = torch.tensor([[*before, *ids, *after]])
    states = plain.model(input_ids=given, attention_mask=torch.ones_like(given), output_hidden_states=True)
    return torch.cat(states.hidden_states).numpy()[:, len(before) : len(before) + len(ids)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama"])
@pytest.mark.parametrize(("context", "min_left"), [("sentence", None), ("document", 4), (40, 0), (40, 7)])
def test_models_against_each_block_alone(
    tmp_path: Path, tiny: Callable[[str], tuple[Any, PlainScript]], kind: str, context: str | int, min_left: int | None
) -> None:
    encoder, plain = tiny(kind)
    own, texts = Document(), [words for words in random_sentences(12, seed=4) if words]
    sentences = [Sentence(words, document=own) for words in texts] + [
        Sentence(texts[0]),
        Sentence([word for words in texts for word in words]),
    ]
    sentences = list(es.open_corpus(sentences))  # with a space between those of a document
    length = {} if context == 40 else {"max_length": 60}
    plan = plan_of(
        sentences, model=encoder, dtype="float32", context=context, min_left=min_left, pooling="last", **length
    )
    store = es.extract(plan, tmp_path / "x.zarr")
    limit, left = (40 if context == 40 else 60) - encoder.n_specials, min_left
    overlap = (0, limit // (4 if encoder.causal else 8)) if left is None else (left, 0)
    expected = []
    for document in [[each] for each in enumerate(sentences)] if context == "sentence" else documents_of(sentences):
        split = encoder.tokenize([sentence for _, sentence in document], scope=plan.options.scope)
        for start, stop, first, last in plain_contexts(
            split.words.tolist(), limit, n_words=overlap[0], n_subwords=overlap[1], both=not encoder.causal
        ):
            states = states_of(plain, encoder, split.ids[start:stop].tolist())
            ends = np.minimum(split.last, stop) - 1 - start
            own = (split.last > split.first) & (split.first >= first) & (split.first < last)
            expected += [states[:, end] for end in ends[own].tolist()]
    found = np.asarray(store.vectors(np.arange(store.n_rows)))
    apart = np.abs(found - np.stack(expected, axis=1)).max(axis=(1, 2)) / np.abs(found).max(axis=(1, 2))
    assert apart.max() < 2e-5


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], tuple[Any, PlainScript]]]:
    made: dict[str, tuple[Any, PlainScript]] = {}

    def of(kind: str) -> tuple[Any, PlainScript]:
        if kind not in made:
            folder = save(kind, tmp_path_factory.mktemp("models") / kind)
            made[kind] = es.load_encoder(folder), PlainScript.open(folder)
        return made[kind]

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield of
    torch.set_num_threads(before)


def test_every_row_has_words_before_it() -> None:
    """And contexts of one sentence are not stored."""
    sentences = corpus([200, 7, 90], [3], [33], words=["bank", "the", "of", "a"])
    encoder = FakeEncoder()
    encoder.causal = True
    plan = plan_of(sentences, model=encoder, context="document", min_left=4, keep=Keep(words=frozenset(WORDS)))
    index, contexts = plan.index, plan.index.contexts
    assert contexts is not None
    text, word = index.text, index.word_indptr[index.sentence] + index.position
    context = np.searchsorted(contexts.indptr, np.arange(len(word)), "right") - 1
    first = index.word_indptr[np.searchsorted(index.document, index.document[index.sentence])]
    begins = np.repeat(text.subword_indptr[:-1], np.diff(text.word_indptr)) + text.word_subword
    assert (contexts.start[context] <= begins[np.maximum(first, word - 4)]).all()
    assert (begins[word] + text.word_subwords[word] <= contexts.stop[context]).all()
    assert plan.as_json()["subwords_run_again"] >= 4 * (len(contexts.start) - 3)
    assert plan_of(corpus([3], [4]), model=encoder, context="document").index.contexts is None
    assert plan_of(corpus([3, 4]), model=encoder).index.contexts is None


def test_what_is_as_long_as_the_limit_fits() -> None:
    """The limit is 10 subwords, 2 of them special: a word or a sentence of 8 is whole."""
    for letters, dropped in ((24, 0), (25, 1)):
        plan = plan_of([["a", "b" * letters]], model=FakeEncoder(), max_length=10)
        assert (plan.metadata.n_rows, len(plan.metadata.dropped)) == (2 - dropped, dropped)
    for n_words, is_cut in ((8, False), (9, True)):
        plan = plan_of([["a"] * n_words], model=FakeEncoder(), max_length=10)
        assert (plan.metadata.n_rows, plan.index.contexts is not None) == (n_words, is_cut)


def test_sentences_without_a_row_are_stored_where_a_context_has_them(tmp_path: Path) -> None:
    sentences = [*corpus([3, 3]), *corpus([4, 4, 4], words=["zzz"]), Sentence(["bank"]), *corpus([2], words=["zzz"])]
    document = Document()
    sentences[2:5] = [
        Sentence(each.words, document=document) for each in [sentences[2], Sentence(["bank"]), sentences[4]]
    ]
    plan = plan_of(
        sentences, model=FakeEncoder(), context="document", keep=Keep(words=frozenset(["bank"])), dtype="float32"
    )
    store = es.extract(plan, tmp_path / "x.zarr")
    assert {2, 3, 4, 5} <= set(store.index.source.tolist())
    assert 6 not in store.index.source
    every = expected_rows(
        sentences, FakeEncoder(), limit=24, unit="word", pooling="mean", layers=[0, 1, 2], context="document"
    )
    assert_rows(rows_of(store), [row for row in every if row.form == "bank"])
    assert verify(store.path).ok


def test_a_word_counts_the_contexts_that_the_model_saw() -> None:
    same = ["bank", "of"]
    sentences = [Sentence(same, document=document) for document in (Document(), Document()) for _ in range(2)]
    keep = Keep(min_contexts=2)
    encoder = FakeEncoder()
    assert len(plan_of([*sentences, Sentence(["bank"])], model=encoder, keep=keep).index.type) == 5
    assert list(
        plan_of([*sentences, Sentence(["bank"])], model=encoder, keep=keep, context="document").index.words
    ) == ["bank"]
    other = [*sentences, Sentence(["of", "of"])]
    assert list(plan_of(other, model=encoder, keep=keep, context="document").index.words) == ["of"]


@pytest.mark.parametrize("suffix", [".zarr", pytest.param(".h5", marks=SLOW)])
def test_missing_partitions_come_back_with_the_same_bytes(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_partitions(monkeypatch)
    use_fake_specs(monkeypatch)
    path = tmp_path / f"a{suffix}"
    plan = plan_of(corpus([50] * 9, [90] * 3, [300]), model=FakeEncoder(), dtype="float32", context=20, min_left=3)
    es.extract(plan, path)
    whole = all_files(path)
    for executor in (None, ThreadPoolExecutor(2)):
        with StoreWriter(path) as writer:
            writer.discard([1, 3])
        es.extract(plan, path, executor=executor)
        assert all_files(path) == whole


def test_windows_cross_sentences_within_a_document(tmp_path: Path) -> None:
    texts = corpus([5, 1, 9, 40, 3], [8, 8], words=["bank", "the", "of", "a"])
    plan = plan_of(texts, model=FakeEncoder(), dtype="float32", context="document", context_window=2)
    store = es.extract(plan, tmp_path / "x.zarr")
    expected = []
    for document in documents_of([Sentence(each.words, document=each.document) for each in texts]):
        words = [word for _, sentence in document for word in sentence.words]
        spans, before = [], 0
        for source, _ in document:
            size, targets = len(texts[source].words), dict(texts[source].targets)
            inside = {at for start, stop in targets.items() for at in range(start + 1, stop)}
            spans += [(before + at, before + targets.get(at, at + 1)) for at in range(size) if at not in inside]
            before += size
        for start, stop in spans:
            low, high = max(0, start - 2), min(len(words), stop + 2)
            window = Sentence(words[low:high], {}, [(start - low, stop - low)] if stop > start + 1 else [])
            rows = expected_rows([window], FakeEncoder(), limit=24, unit="word", pooling="mean", layers=[0, 1, 2])
            expected += [row.vectors for row in rows if row.position == start - low]
    np.testing.assert_array_equal(np.asarray(store.vectors(np.arange(store.n_rows))), np.stack(expected, axis=1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": "chapter"}, "unknown context 'chapter': choose sentence, document or a number of subwords"),
        ({"context": 2}, "context 2 leaves no space for words"),
        ({"context": 99}, "context 99 is more than the model accepts: give 26 or less"),
        (
            {"context": "document", "unit": "sentence", "pooling": "cls"},
            "context document does not go with pooling cls",
        ),
        ({"context": 20, "min_left": 18}, "min left 18 leaves no space in a context of 20 subwords"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        plan_of(TEXTS, model=FakeEncoder(), **options)
    assert message in str(caught.value)


def test_pairs_are_given_whole(tmp_path: Path) -> None:
    encoder = FakeEncoder()
    encoder.takes_pairs = True
    with pytest.raises(InvalidValueError, match="pairs of sentences are encoded whole: leave out the context"):
        plan_of([sentence_pair(Sentence(["a"]), Sentence(["b"]))], model=encoder, context="document")
    long = sentence_pair(Sentence(["abc"] * 20), Sentence(["abc"] * 9))
    plan = plan_of([long, Sentence(["abc"] * 30)], model=encoder)
    assert plan.index.contexts is not None
    assert plan.index.contexts.stop.tolist()[0] == 24
    assert [drop.count for drop in plan.metadata.dropped] == [5]


def test_some_rows_keep_their_contexts() -> None:
    index = plan_of(TEXTS, model=FakeEncoder(), context=20, min_left=2).index
    contexts = index.contexts
    assert contexts is not None
    rows = np.flatnonzero(np.random.default_rng(0).random(len(index.type)) < 0.1)
    some = index.subset(rows)
    assert some.contexts is not None
    assert not list(index_faults(some, len(rows)))
    assert len(some.text) < len(index.text)

    def seen(whole: Index, row: int) -> list[int]:
        assert whole.contexts is not None
        context = int(whole.contexts.of_rows(np.array([row]))[0])
        return whole.text.ids[whole.contexts.start[context] : whole.contexts.stop[context]].tolist()

    for number, row in enumerate(rows.tolist()):
        assert seen(some, number) == seen(index, row)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"start": lambda old: old[1:]}, "do not fit each other"),
        ({"start": lambda old: old[::-1]}, "not ascending runs"),
        ({"start": lambda old: old + 999}, "not ascending runs"),
        ({"start": lambda old: old - 1}, "not ascending runs"),
        ({"stop": lambda old: old + 1}, "beyond the subwords"),
        ({"indptr": lambda old: old + 1}, "contexts/indptr does not give"),
        ({"indptr": lambda old: np.minimum(old, old[-2])}, "contexts/indptr does not give"),
    ],
)
def test_contexts_that_cannot_be(change: dict[str, Callable[[np.ndarray], np.ndarray]], fault: str) -> None:
    index = plan_of(TEXTS, model=FakeEncoder(), context=20, min_left=2).index
    ((name, changed),) = change.items()
    assert index.contexts is not None
    wrong = replace(index.contexts, **{name: changed(getattr(index.contexts, name))})
    assert [line for line in index_faults(index.changed(contexts=wrong), len(index.type)) if fault in line]


@pytest.mark.slow
def test_every_word_of_a_line_of_100_000_words(tmp_path: Path, tiny: Callable[[str], tuple[Any, PlainScript]]) -> None:
    encoder, plain = tiny("bert")
    words = [word for words in random_sentences(5000, seed=1) for word in words if len(word) > 1]
    line = (words * (1 + 100_000 // len(words)))[:100_000]
    plan = plan_of([line], model=encoder, layers="last")
    store = es.extract(plan, tmp_path / "x.zarr")
    assert store.n_rows == 100_000 - sum(drop.count for drop in plan.metadata.dropped)
    contexts = store.index.contexts
    assert contexts is not None
    for row in (0, 51_234, store.n_rows - 1):
        context = int(contexts.of_rows(np.array([row]))[0])
        start, stop = int(contexts.start[context]), int(contexts.stop[context])
        own, text = int(store.index.position[row]), store.index.text
        first = int(text.word_subword[own]) - start
        states = states_of(plain, encoder, text.ids[start:stop].tolist())[-1]
        expected = states[first : first + int(store.index.subwords[row])].mean(0)
        np.testing.assert_allclose(store.vectors(np.array([row]), layers=store.layers[-1])[0], expected, atol=2e-3)
