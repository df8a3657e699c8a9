"""Windows against plain passes: the model called on the truncated words, or with a mask written by hand; and sweeps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

import embstore as es
from embstore.corpus import Sentence
from embstore.errors import InvalidValueError, ModelError, StoreMismatchError
from embstore.extraction.windows import Places, Targets, cut_windows
from embstore.models.encoder import Encoder, Split, Tokenized
from embstore.store import Store
from tests.extraction.fake import FakeEncoder, span_vector
from tests.extraction.plans import counted, plan_of
from tests.extraction.test_pipeline import SENTENCES as FAKE_SENTENCES
from tests.extraction.test_pipeline import small_partitions
from tests.models.oracle import PlainScript
from tests.models.tiny import SENTENCES as TINY_SENTENCES
from tests.models.tiny import random_sentences, save

WIDTHS = (0, 1, 2, 8, None)
KINDS = ("bert", pytest.param("roberta", marks=pytest.mark.slow), "gpt2")

CORPUS = [
    Sentence(["New", "York", "is", "large", "but", "the", "old", "bank", "of", "New", "York"], {}, [(0, 2), (9, 11)]),
    Sentence([*TINY_SENTENCES[6], "cold"], {}, [(1, 4), (15, 17)]),
    Sentence(["antidisestablishmentarianism"]),
    *[Sentence(words) for words in TINY_SENTENCES[:5]],
    *[Sentence(words) for words in random_sentences(5, seed=3)],
]


@dataclass
class Scene:
    """A tiny model as embstore loads it and as a plain script does; `passes`: those with masks made by hand."""

    encoder: Encoder
    plain: PlainScript
    passes: dict[Any, Any] = field(default_factory=dict)

    def split(self, sentence: Sentence) -> Split:
        """The subwords of a sentence; their exactness is tested elsewhere."""
        return self.encoder.tokenize([sentence])

    def states(self, ids: Sequence[int]) -> np.ndarray:
        """All layers of subwords, [layer, subword, feature], without the special ones around them."""
        key = tuple(ids)
        if key not in self.passes:
            before, after = self.encoder.special_ids
            given = torch.tensor([[*before, *ids, *after]])
            options = {"attention_mask": torch.ones_like(given), "output_hidden_states": True}
            with torch.inference_mode():
                states = self.plain.model(input_ids=given, **options).hidden_states
            self.passes[key] = torch.cat(states).numpy()[:, len(before) : len(before) + len(ids)]
        return self.passes[key]

    def masked(self, sentence: Sentence, reach: int) -> np.ndarray:
        """All layers of a sentence, [layer, subword, feature], under an attention window made pair by pair."""
        key = (str(sentence), reach)
        if key not in self.passes:
            split, (before, after) = self.split(sentence), self.encoder.special_ids
            owners = [*[None] * len(before), *split.words.tolist(), *[None] * len(after)]
            causal = type(self.plain.model).__name__ in ("GPT2Model", "MixtralModel", "Qwen2MoeModel")
            mask = torch.full((1, 1, len(owners), len(owners)), torch.finfo(torch.float32).min)
            for query, word in enumerate(owners):
                for key_place, other in enumerate(owners):
                    near = word is not None and other is not None and abs(word - other) <= reach
                    if (other is None or near) and not (causal and key_place > query):
                        mask[0, 0, query, key_place] = 0
            ids = torch.tensor([[*before, *split.ids.tolist(), *after]])
            with torch.inference_mode():
                states = self.plain.model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
            self.passes[key] = torch.cat(states).numpy()[:, len(before) : len(owners) - len(after)]
        return self.passes[key]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Scene]]:
    """Gives the scene of an architecture, made once; on one thread as long as it is used."""
    made: dict[str, Scene] = {}

    def of(kind: str) -> Scene:
        if kind not in made:
            folder = save(kind, tmp_path_factory.mktemp("models") / kind)
            made[kind] = Scene(es.load_encoder(folder), PlainScript.open(folder))
        return made[kind]

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield of
    torch.set_num_threads(before)


def occurrences(store: Store) -> list[tuple[Sentence, int, int]]:
    """Of each row its sentence, and its first word and the one after its last."""
    index = store.index
    found = []
    for row in range(store.n_rows):
        first = int(index.position[row])
        width = index.words[int(index.type[row])].count(" ") + 1
        found.append((index.text.sentence(int(index.sentence[row])), first, first + width))
    return found


def vectors_of(store: Store) -> np.ndarray:
    return np.asarray(store.vectors(np.arange(store.n_rows)))


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    apart = np.abs(found - expected).max(axis=(1, 2)) / np.abs(expected).max(axis=(1, 2))
    return float(apart.max())


@pytest.mark.parametrize(
    ("kind", "suffix"), [("bert", ".zarr"), ("gpt2", ".h5"), pytest.param("roberta", ".h5", marks=pytest.mark.slow)]
)
@pytest.mark.quick(1)
def test_a_context_window_is_a_pass_over_the_truncated_words(
    tmp_path: Path, scene: Callable[[str], Scene], kind: str, suffix: str
) -> None:
    used = scene(kind)
    for width in WIDTHS:
        plan = plan_of(CORPUS, model=used.encoder, dtype="float32", context_window=width)
        store = es.extract(plan, tmp_path / f"x{width}{suffix}")
        assert any(stop - start > 1 for _, start, stop in occurrences(store))
        expected = []
        for sentence, start, stop in occurrences(store):
            split, n = used.split(sentence), len(sentence.words)
            first, last = (0, n) if width is None else (max(0, start - width), min(n, stop + width))
            begin = int(split.first[first])
            states = used.states(split.ids[begin : split.last[last - 1]].tolist())
            expected.append(states[:, split.first[start] - begin : split.last[stop - 1] - begin].mean(1))
        assert relative(vectors_of(store), np.stack(expected, axis=1)) < 2e-5
        assert store.metadata.extraction["context_window"] == width


def test_a_window_as_wide_as_the_sentence_is_the_sentence(tmp_path: Path, scene: Callable[[str], Scene]) -> None:
    used = scene("bert")
    ordinary = es.extract(plan_of(list(CORPUS), model=used.encoder, dtype="float32"), tmp_path / "x.zarr")
    wide = plan_of(list(CORPUS), model=used.encoder, dtype="float32", context_window=1000)
    assert ordinary.metadata.extraction["batching"] == "varlen"
    assert wide.metadata.extraction["batching"] == "equal"
    store, n_run = counted(wide, tmp_path / "wide.zarr")
    assert n_run == wide.survey.n_subwords  # each sentence once, however many targets it has
    assert relative(vectors_of(store), vectors_of(ordinary)) < 2e-5


@pytest.mark.parametrize(
    ("kind", "batching"),
    [
        ("bert", "packed"),
        ("roberta", "packed"),
        ("gpt2", "packed"),
        ("qwen2_moe", "packed"),
        ("t5", "packed"),
        ("bert", "padded"),
        ("gpt2", "equal"),
        *[
            pytest.param(kind, how, marks=pytest.mark.slow)
            for kind, how in (("mixtral", "packed"), ("roberta", "equal"), ("gpt2", "padded"))
        ],
    ],
)
@pytest.mark.quick(1)
def test_an_attention_window_is_a_pass_with_the_mask_written_by_hand(
    tmp_path: Path, scene: Callable[[str], Scene], kind: str, batching: str
) -> None:
    used = scene(kind)
    for reach in (0, 1, 2, 8):
        plan = plan_of(CORPUS, model=used.encoder, dtype="float32", attention_window=reach)
        plan.metadata.extraction["batching"] = batching  # type: ignore[index]  # what one without packing would get
        store = es.extract(plan, tmp_path / f"x{reach}.zarr")
        expected = []
        for sentence, start, stop in occurrences(store):
            split = used.split(sentence)
            expected.append(used.masked(sentence, reach)[:, split.first[start] : split.last[stop - 1]].mean(1))
        assert relative(vectors_of(store), np.stack(expected, axis=1)) < 2e-5
        assert store.metadata.extraction["attention_window"] == reach


@pytest.mark.parametrize("unit", ["word", "subword"])
@pytest.mark.parametrize("words", [2**20, 40])
@pytest.mark.slow
def test_an_encoder_that_knows_nothing_of_windows_gets_shorter_sentences(
    tmp_path: Path, unit: str, words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_partitions(monkeypatch)
    monkeypatch.setattr("embstore.extraction.partition.PASSAGE_WORDS", words)
    monkeypatch.setattr("embstore.extraction.partition.BATCHES_OF_A_LENGTH", 0)
    encoder, limit = FakeEncoder(), 24
    sentences = [*FAKE_SENTENCES, *[Sentence(words) for words in random_sentences(40, seed=2)]]
    for width in (0, 2, None):
        plan = plan_of(sentences, model=encoder, unit=unit, dtype="float32", context_window=width)
        store = es.extract(plan, tmp_path / f"x{width}.zarr")
        vectors, index = vectors_of(store), store.index
        run = 0
        for row in range(store.n_rows):
            again = row and (index.sentence[row], index.position[row]) == (
                index.sentence[row - 1],
                index.position[row - 1],
            )
            run = run + 1 if again else 0
            text, first = index.text.words(int(index.sentence[row])), int(index.position[row])
            stop = first + index.words[int(index.type[row])].count(" ") + 1
            pieces = [encoder.pieces(word) for word in text]
            ends = np.cumsum([0, *map(len, pieces)])
            begin = ends[first]
            if unit == "subword":  # the window is around the word of the subword, in a phrase too
                first = int(np.searchsorted(ends, begin + run, "right")) - 1
                stop = first + 1
            flat = [piece for word in pieces for piece in word]
            contexts, before = index.contexts, index.text.subword_indptr[index.sentence[row]]
            assert contexts is not None
            own = np.searchsorted(contexts.indptr, row, "right") - 1
            low, high = int(contexts.start[own] - before), int(contexts.stop[own] - before)
            inside = [at for at in range(len(text)) if low <= ends[at] and ends[at + 1] <= high]
            left, right = low, high
            if width is not None:
                left = ends[max(inside[0], first - width)]
                right = ends[min(inside[-1] + 1, stop + width)]
            assert high - low <= limit
            start, end = (run, run + 1) if unit == "subword" else (0, int(index.subwords[row]))
            start, end = int(begin + start), int(begin + end)
            left, right = min(left, start), max(right, end)
            seen = flat[left:right]
            expected = [span_vector(seen, start - left, end - left, layer=layer, pooling="mean") for layer in range(3)]
            np.testing.assert_array_equal(vectors[:, row], np.stack(expected))


@pytest.mark.parametrize(("ids", "n_windows"), [([5, 6, 5, 6], 1), ([5, 6, 6, 5], 2)])
def test_windows_are_equal_if_their_subwords_are(ids: list[int], n_windows: int) -> None:
    """Whatever the words are that the subwords are of: one, or two of one subword each."""
    two = Tokenized(np.array(ids, np.int32), np.array([0, 2, 4]))
    targets = Targets(*(np.array(each) for each in ([0, 1], [0, 0], [2, 1], [0, 1], [1, 2])))
    places, begins = Places(np.array([0, 2, 3]), np.array([2, 3, 4])), np.array([0, 2])
    tokenized, spans, _ = cut_windows(two, targets, 9, places, begins, causal=False)
    assert len(tokenized) == n_windows
    assert (spans.stop - spans.start).tolist() == ([1, 2] if n_windows == 1 else [2, 1])


@pytest.mark.parametrize("name", ["xlnet", "deberta_v2"])
@pytest.mark.quick(1)
def test_a_model_that_does_not_respect_a_mask_of_pairs_is_refused(scene: Callable[[str], Scene], name: str) -> None:
    encoder = scene(name).encoder
    with pytest.raises(
        ModelError, match=r"does not respect a mask of pairs of subwords.*use context windows"
    ) as caught:
        plan_of(list(CORPUS), model=encoder, attention_window=2)
    assert str(caught.value).endswith("use context windows")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["albert", "distilbert", "electra", "gpt_neox", "llama", "mistral", "modernbert", "t5"]
)
def test_other_architectures_bear_attention_windows(tmp_path: Path, scene: Callable[[str], Scene], name: str) -> None:
    used, reach = scene(name), 2
    words = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t"]
    split = np.diff(used.encoder.tokenize([Sentence(words)]).last, prepend=0)  # with the white space before a word
    alike = words[1 + int(np.flatnonzero(split[1:-1] == split[-1])[0])]  # so that nothing moves
    sentences = [words, [*words[:-1], alike]]
    plan = plan_of(sentences, model=used.encoder, dtype="float32", attention_window=reach)
    vectors = vectors_of(es.extract(plan, tmp_path / "x.zarr"))
    before, after = vectors[1, : len(words)], vectors[1, len(words) :]
    np.testing.assert_allclose(before[: -reach - 1], after[: -reach - 1], atol=1e-5)
    assert np.abs(before[-1] - after[-1]).max() > 1e-3


@pytest.mark.parametrize("width", [0, 2, 8])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.quick(1)
def test_what_is_run_is_every_different_window_once(
    tmp_path: Path, scene: Callable[[str], Scene], kind: str, width: int
) -> None:
    used = scene(kind)
    plan = plan_of([*CORPUS, *CORPUS[:4]], model=used.encoder, dtype="float32", context_window=width)
    store, n_run = counted(plan, tmp_path / "x.zarr")
    distinct: dict[Any, tuple[int, ...]] = {}  # for a causal model the longest window that begins at a place
    for row, (sentence, start, stop) in enumerate(occurrences(store)):
        split = used.split(sentence)
        first, last = max(0, start - width), min(len(sentence.words), stop + width)
        end = stop if kind == "gpt2" else last
        ids = tuple(split.ids[split.first[first] : split.last[end - 1]].tolist())
        key = (int(store.index.sentence[row]), first) if kind == "gpt2" else ids
        distinct[key] = max(distinct.get(key, ()), ids, key=len)
    different = {ids: len(ids) for ids in distinct.values()}
    assert n_run == plan.estimate.subwords_to_run == sum(different.values())
    assert plan.estimate.subwords_counted


def test_another_window_is_refused_by_name(tmp_path: Path, scene: Callable[[str], Scene]) -> None:
    encoder, path = scene("bert").encoder, tmp_path / "x.zarr"

    def extracted(**windows: int | None) -> Store:
        return es.extract(plan_of(list(CORPUS[:3]), model=encoder, **windows), path)

    extracted(context_window=2)
    with pytest.raises(StoreMismatchError, match=r"was made with extraction.context_window 2, this plan has 3"):
        extracted(context_window=3)
    with pytest.raises(StoreMismatchError, match=r"extraction.context_window 2, this plan has None"):
        extracted(attention_window=2)


def test_plans_are_valid_against_their_schema(scene: Callable[[str], Scene]) -> None:
    schema = json.loads((Path(__file__).parents[2] / "schemas" / "plan.schema.json").read_text())
    for window in ("context_window", "attention_window"):
        plan = plan_of(list(CORPUS[:3]), model=scene("bert").encoder, **{window: 3})
        jsonschema.validate(json.loads(json.dumps(plan.as_json())), schema)


def test_an_encoder_takes_the_batching_of_the_plan_at_hand(tmp_path: Path, scene: Callable[[str], Scene]) -> None:
    encoder = scene("bert").encoder
    packed = plan_of(list(CORPUS), model=encoder, dtype="float32")
    plan_of(list(CORPUS), model=encoder, dtype="float32", context_window=1)
    assert encoder.batching == "equal"
    es.extract(packed, tmp_path / "x.zarr")
    assert encoder.batching == "varlen"


def test_windows_that_exclude_each_other() -> None:
    for options, message in (
        ({"context_window": 1, "attention_window": 2}, "exclude each other"),
        ({"attention_window": 2}, "attention windows need a transformer"),
    ):
        with pytest.raises(InvalidValueError, match=message):
            plan_of(FAKE_SENTENCES, model=FakeEncoder(), **options)


class MemoryBoundEncoder(FakeEncoder):
    """On a device whose free memory decides the size of a batch."""

    choices_vary, free = True, 64

    def batch_subwords_next_to(self, held: Callable[[int], int], *, n_features: int) -> int:
        return self.free


def test_a_resumed_store_has_the_recorded_batch_size(tmp_path: Path) -> None:
    encoder, path = MemoryBoundEncoder(), tmp_path / "s.zarr"
    for free in (64, 32):
        encoder.free = free
        plan = plan_of(FAKE_SENTENCES, model=encoder, store=path, context_window=1)
        assert es.extract(plan, path).metadata.extraction["batch_subwords"] == 64
