"""Windows against plain passes: the model called on the truncated words, or with a mask written by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore as es
from embstore.corpus import Sentence
from embstore.errors import InvalidValueError, ModelError
from embstore.extraction.window_plan import extract_windows, plan_windows
from embstore.extraction.worker import Timings
from tests.extraction.fake import FakeEncoder, span_vector
from tests.extraction.plans import plan_of
from tests.extraction.test_pipeline import SENTENCES as FAKE_SENTENCES
from tests.extraction.test_pipeline import small_partitions
from tests.extraction.window_scene import CORPUS, WIDTHS, Scene, occurrences, relative, scenes, sweep, vectors_of
from tests.models.tiny import SENTENCES as TINY_SENTENCES
from tests.models.tiny import random_sentences
from tests.models.tiny_elmo import save_elmo

KINDS = ("bert", pytest.param("roberta", marks=pytest.mark.slow), "gpt2")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Scene]]:
    yield from scenes(tmp_path_factory)


@pytest.mark.parametrize(
    ("kind", "suffix"), [("bert", ".zarr"), ("gpt2", ".h5"), pytest.param("roberta", ".h5", marks=pytest.mark.slow)]
)
def test_a_context_window_is_a_pass_over_the_truncated_words(
    tmp_path: Path, scene: Callable[[str], Scene], kind: str, suffix: str
) -> None:
    used = scene(kind)
    stores = extract_windows(sweep(used), tmp_path / f"x{suffix}")
    assert set(stores) == set(WIDTHS)
    assert any(stop - start > 1 for _, start, stop in occurrences(stores[None]))
    for width, store in stores.items():
        expected = []
        for words, start, stop in occurrences(store):
            first, last = (0, len(words)) if width is None else (max(0, start - width), min(len(words), stop + width))
            expected.append(used.plain.span(words[first:last], start - first, stop - first, "mean"))
        assert relative(vectors_of(store), np.stack(expected, axis=1)) < 2e-5
        assert store.metadata.extraction["context_window"] == width
        assert store.metadata.extraction["context_windows"] == list(WIDTHS)


def test_a_window_as_wide_as_the_sentence_is_the_sentence(tmp_path: Path, scene: Callable[[str], Scene]) -> None:
    used = scene("bert")
    ordinary = es.extract(
        es.plan(list(CORPUS), model=used.encoder, options=es.ExtractionOptions(dtype="float32"), calibrate=False),
        tmp_path / "x.zarr",
    )
    wide = es.plan(
        list(CORPUS),
        model=used.encoder,
        options=es.ExtractionOptions(dtype="float32", context_window=1000),
        calibrate=False,
    )
    assert ordinary.metadata.extraction["batching"] == "packed"
    assert wide.metadata.extraction["batching"] == "equal"
    counted = Timings()
    store = es.extract(wide, tmp_path / "wide.zarr", timings=counted)
    assert counted.n_subwords == wide.n_subwords  # each sentence once, however many targets it has
    assert relative(vectors_of(store), vectors_of(ordinary)) < 2e-5


@pytest.mark.parametrize(
    ("kind", "batching"),
    [
        ("bert", "packed"),
        ("roberta", "packed"),
        ("gpt2", "packed"),
        ("bert", "padded"),
        ("gpt2", "equal"),
        *[pytest.param(kind, how, marks=pytest.mark.slow) for kind, how in (("roberta", "equal"), ("gpt2", "padded"))],
    ],
)
def test_an_attention_window_is_a_pass_with_the_mask_written_by_hand(
    tmp_path: Path, scene: Callable[[str], Scene], kind: str, batching: str
) -> None:
    used = scene(kind)
    plan = sweep(used, attention_windows=WIDTHS[:-1])
    for one in plan.plans.values():  # what a model that bears no packing would get
        one.metadata.extraction["batching"] = batching  # type: ignore[index]
    stores = extract_windows(plan, tmp_path / "x.zarr")
    for reach, store in stores.items():
        assert reach is not None
        expected = []
        for words, start, stop in occurrences(store):
            states, owners = used.masked(words, reach)
            places = [place for place, word in enumerate(owners) if word is not None and start <= word < stop]
            expected.append(np.stack([layer[places].mean(axis=0) for layer in states]))
        assert relative(vectors_of(store), np.stack(expected, axis=1)) < 2e-5
        assert store.metadata.extraction["attention_window"] == reach


@pytest.mark.parametrize("kind", KINDS)
def test_what_lies_beyond_an_attention_window_changes_nothing(
    tmp_path: Path, scene: Callable[[str], Scene], kind: str
) -> None:
    used, reach, changed = scene(kind), 2, 10
    words = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t"]
    sentences = [words, [*words[:changed], "z", *words[changed + 1 :]]]
    plan = es.plan(
        sentences,
        model=used.encoder,
        options=es.ExtractionOptions(dtype="float32", attention_window=reach),
        calibrate=False,
    )
    vectors = vectors_of(es.extract(plan, tmp_path / "x.zarr"))
    before, after = vectors[:, : len(words)], vectors[:, len(words) :]
    apart = np.abs(before - after).max(axis=2)
    far = np.abs(np.arange(len(words)) - changed)
    for layer, row in enumerate(apart):
        assert row[far > layer * reach].max(initial=0) < 1e-5
    assert (apart[1, changed + 1 : changed + reach + 1] > 1e-4).all()
    assert apart[3, changed + 2 * reach + 1 : changed + 3 * reach + 1].max() > 0  # it does reach so far


def test_both_kinds_of_window_differ(tmp_path: Path, scene: Callable[[str], Scene]) -> None:
    used = scene("bert")
    one = es.plan(
        list(CORPUS),
        model=used.encoder,
        options=es.ExtractionOptions(dtype="float32", context_window=1),
        calibrate=False,
    )
    other = es.plan(
        list(CORPUS),
        model=used.encoder,
        options=es.ExtractionOptions(dtype="float32", attention_window=1),
        calibrate=False,
    )
    first, second = es.extract(one, tmp_path / "c.zarr"), es.extract(other, tmp_path / "a.zarr")
    assert np.abs(vectors_of(first) - vectors_of(second)).max() > 0.1


@pytest.mark.parametrize("unit", ["word", "subword"])
@pytest.mark.parametrize("words", [2**20, 40])
def test_an_encoder_that_knows_nothing_of_windows_gets_shorter_sentences(
    tmp_path: Path, unit: str, words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_partitions(monkeypatch)
    monkeypatch.setattr("embstore.extraction.partition.PASSAGE_WORDS", words)
    monkeypatch.setattr("embstore.extraction.partition.BATCHES_OF_A_LENGTH", 0)
    encoder, limit = FakeEncoder(), 24
    sentences = [*FAKE_SENTENCES, *[Sentence(words) for words in random_sentences(40, seed=2)]]
    plan = plan_windows(
        sentences,
        model=encoder,
        context_windows=[0, 2, None],
        options=es.ExtractionOptions(unit=unit, dtype="float32"),
        calibrate=False,
    )
    for width, store in extract_windows(plan, tmp_path / "x.zarr").items():
        vectors, index = vectors_of(store), store.index
        run = 0
        for row in range(store.n_rows):
            again = row and (index.sentence[row], index.position[row]) == (
                index.sentence[row - 1],
                index.position[row - 1],
            )
            run = run + 1 if again else 0
            text, first = index.texts[int(index.sentence[row])].split(" "), int(index.position[row])
            stop = first + index.words[int(index.type[row])].count(" ") + 1
            if unit == "subword":  # of a target of two words there are subwords in both
                stop = first + (2 if text[first : first + 2] == ["new", "york"] else 1)
            pieces = [encoder.pieces(word) for word in text]
            ends = np.minimum(np.cumsum([0, *map(len, pieces)]), limit)
            flat = [piece for word in pieces for piece in word][:limit]
            left, right = (0, len(text)) if width is None else (max(0, first - width), min(len(text), stop + width))
            seen = flat[ends[left] : ends[right]]
            start, end = (run, run + 1) if unit == "subword" else (0, ends[stop] - ends[first])
            shift = ends[first] - ends[left]
            expected = [
                span_vector(seen, int(shift + start), int(shift + end), layer=layer, pooling="mean")
                for layer in range(3)
            ]
            np.testing.assert_array_equal(vectors[:, row], np.stack(expected))


@pytest.mark.parametrize("name", ["xlnet", "deberta_v2"])
def test_a_model_that_does_not_respect_a_mask_of_pairs_is_refused(scene: Callable[[str], Scene], name: str) -> None:
    encoder = scene(name).encoder
    with pytest.raises(
        ModelError, match=r"does not respect a mask of pairs of subwords.*use context windows"
    ) as caught:
        es.plan(list(CORPUS), model=encoder, calibrate=False, options=es.ExtractionOptions(attention_window=2))
    assert str(caught.value).endswith("use context windows")
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["albert", "distilbert", "electra", "gpt_neox", "llama", "mistral", "modernbert", "t5"]
)
def test_other_architectures_bear_attention_windows(tmp_path: Path, scene: Callable[[str], Scene], name: str) -> None:
    used, reach = scene(name), 2
    words = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t"]
    split = np.diff(used.encoder.tokenize([words]).word_indptr)
    alike = words[int(np.flatnonzero(split[:-1] == split[-1])[0])]  # so that nothing moves
    sentences = [words, [*words[:-1], alike]]
    plan = es.plan(
        sentences,
        model=used.encoder,
        options=es.ExtractionOptions(dtype="float32", attention_window=reach),
        calibrate=False,
    )
    vectors = vectors_of(es.extract(plan, tmp_path / "x.zarr"))
    before, after = vectors[1, : len(words)], vectors[1, len(words) :]
    np.testing.assert_allclose(before[: -reach - 1], after[: -reach - 1], atol=1e-5)
    assert np.abs(before[-1] - after[-1]).max() > 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context_window": -1}, "context window -1 is not allowed: give 0 or more words"),
        ({"attention_window": -2}, "attention window -2 is not allowed"),
        ({"context_window": True}, "context window True is not allowed"),
        ({"context_window": 1.5}, "context window 1.5 is not allowed"),
        (
            {"context_window": 1, "attention_window": 2},
            "context window 1 and attention window 2 exclude each other",
        ),
        ({"attention_window": 2}, "attention windows need a transformer, whose attention can be masked; Fake has none"),
    ],
)
def test_bad_windows(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        plan_of(FAKE_SENTENCES, model=FakeEncoder(), **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_elmo_has_context_windows_and_no_attention_windows(tmp_path: Path) -> None:
    folder = save_elmo(tmp_path / "elmo")
    sentences = [list(words) for words in TINY_SENTENCES[:3]]
    plan = es.plan(
        sentences, model=folder, options=es.ExtractionOptions(dtype="float32", context_window=1), calibrate=False
    )
    store = es.extract(plan, tmp_path / "x.zarr")
    cut = [words[max(0, place - 1) : place + 2] for words in sentences for place in range(len(words))]
    alone = es.extract(
        es.plan(cut, model=folder, options=es.ExtractionOptions(dtype="float32"), calibrate=False), tmp_path / "y.zarr"
    )
    rows, at = [], 0
    for words in sentences:
        for place in range(len(words)):
            rows.append(at + min(place, 1))
            at += min(len(words), place + 2) - max(0, place - 1)
    assert relative(vectors_of(store), vectors_of(alone)[:, rows]) < 2e-5
    with pytest.raises(InvalidValueError, match="attention windows need a transformer"):
        es.plan(sentences, model=folder, calibrate=False, options=es.ExtractionOptions(attention_window=1))
