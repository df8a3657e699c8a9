"""What is read from maps: kernels, patterns, pairs, bounded state, and their cosine, against torch and numpy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import embstore as es
from embstore.analysis.attention import measure, shares
from embstore.analysis.attention.annotated import Annotated
from embstore.analysis.attention.maps import Maps, Shape, Tokens, read_maps
from embstore.analysis.attention.measure import STATISTICS, Pass, Reader, attention_similarity
from embstore.analysis.attention.shares import PATTERNS, Entropy, Patterns
from embstore.analysis.attention.syntax import arborescences, plain_arborescence
from embstore.config import config
from embstore.corpus.sentence import Sentence, sentence_pair
from embstore.errors import EmbstoreError
from embstore.models.batching import Batch
from embstore.models.encoder import Split
from embstore.models.transformer.attention import load_attention_model
from embstore.models.transformer.tokens import Specials
from tests.analysis.attention_oracle import arborescence as oracle_arborescence
from tests.analysis.attention_oracle import load
from tests.analysis.test_attention import SENTENCES, trees, write_conllu
from tests.extraction.test_pairs import PAIRED, model
from tests.models import tiny


def random_maps(width: int, lengths: np.ndarray, *, seed: int = 0) -> torch.Tensor:
    """Maps of 2 heads with zeros, tiny numbers and padding."""
    rng = np.random.default_rng(seed)
    scores = rng.exponential(size=(len(lengths), 2, width, width)) ** 3
    scores[rng.random(scores.shape) < 0.1] = 0
    scores[rng.random(scores.shape) < 0.05] = 1e-41
    inside = np.arange(width) < lengths[:, None]
    scores *= inside[:, None, :, None] & inside[:, None, None, :]
    scores[:, :, np.arange(width), np.arange(width)] += inside[:, None]
    return torch.from_numpy(scores / np.maximum(scores.sum(-1, keepdims=True), 1e-30)).float()


@pytest.mark.parametrize("width", [1, 7, 33])
def test_maps_are_read_as_by_numpy(width: int) -> None:
    lengths = np.array([width, max(1, width - 5), 1])
    values = random_maps(width, lengths)
    whole = values.double().numpy()
    plain = -np.where(whole > 1e-37, whole * np.log(np.maximum(whole, 1e-37)), 0).sum(-1)
    diagonals = [whole.diagonal(offset, 2, 3).sum(-1) for offset in range(1 - width, width)]
    for made, expected in zip(read_maps(values), (plain, whole.sum(-2), np.stack(diagonals, -1)), strict=True):
        np.testing.assert_allclose(made.numpy(), expected, atol=2e-6)


def test_words_are_sums_to_and_means_from_their_subwords() -> None:
    values = random_maps(9, np.array([9, 6]))
    bounds = [[(1, 2), (2, 5), (5, 6), (7, 8)], [(1, 3), (3, 4)]]
    members = torch.zeros(2, 9, 4)
    expected = np.zeros((2, 4, 2, 4))
    for row, words in enumerate(bounds):
        for word, (start, stop) in enumerate(words):
            members[row, start:stop, word] = 1
            for other, (first, last) in enumerate(words):
                expected[row, word, :, other] = values[row, :, start:stop, first:last].sum(2).mean(1)
    means = (members / members.sum(1, keepdim=True).clamp_min(1)).transpose(1, 2).contiguous()
    tokens: Any = SimpleNamespace(members=members, means=means)
    maps = Maps(values, tokens, layer=0, last=True)
    np.testing.assert_allclose(maps.words, expected, atol=1e-6)
    maps.words[0, 2, 1] = 0  # a word that attends to no other
    for row, word, head in np.ndindex(2, 4, 2):
        others = [other for other in range(len(bounds[row])) if other != word] if word < len(bounds[row]) else []
        nearest = max(others, key=lambda other: maps.words[row, word, head, other], default=-1)
        is_attended = others and maps.words[row, word, head, nearest] > 0
        assert maps.most_attended[row, word, head] == (nearest if is_attended else -1)
    assert maps.most_attended[0, 2, 1] == -1


def test_a_subword_belongs_to_all_its_words_and_white_space_to_none() -> None:
    sentence = Sentence(["x", ",", '"', "y", "...", "z"], text='x,"  y...z', starts=[0, 1, 2, 5, 6, 9])  # x ," _ y... z
    first, last = np.array([0, 1, 1, 3, 3, 4]), np.array([1, 2, 2, 4, 4, 5])
    bounds = np.array([0, 5])
    split = Split(np.zeros(5, np.int32), bounds, np.array([0, 6]), first, last, *np.zeros((2, 5), np.int32))
    batch = Batch(*np.zeros((3, 1), np.int64), shape=(1, 6))
    given = [Annotated(sentence, np.arange(7))], split, batch, np.array([5])
    tokens = Tokens(*given, Specials((7,), (), (0,), 0, ()), torch.device("cpu"))
    assert tokens.members[0].tolist() == [
        [0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0], [0] * 6, [0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 1],
    ]  # fmt: skip
    assert [np.flatnonzero(kind[0]).tolist() for kind in tokens.kinds.values()] == [[0], [0], [], [2], []]


def made_map(name: str, n: int, first: int) -> np.ndarray:
    """A map of `n` positions of a pattern; `first`: those of the first sentence."""
    made = np.full((n, n), 0.2 / n)
    if name == "vertical":
        made[:, [0, n - 1]] += 0.4
    elif name == "diagonal":
        made += 0.8 * np.eye(n)
    elif name == "vertical+diagonal":
        made += 0.4 * np.eye(n)
        made[:, 2] += 0.4
    elif name == "block":
        made[:first, :first] += 0.8 / first
        made[first:, first:] += 0.8 / (n - first)
    else:
        made += 0.8 / n
    return made


@pytest.mark.parametrize("is_pair", [True, False])
def test_made_maps_have_their_pattern(is_pair: bool) -> None:
    values = torch.tensor(np.stack([made_map(name, 12, 5) for name in PATTERNS])[None]).float()
    pairs = np.array([[4, 5]]) if is_pair else np.zeros((1, 2), int)
    own: Any = SimpleNamespace(n_positions=12, lengths=np.array([12]), pairs=pairs)
    own.first = torch.from_numpy(np.arange(12) < 5)[None]
    statistic = Patterns()
    statistic.begin(Shape((1,), tuple(range(5)), causal=False, n_before=1, n_after=1))
    statistic.update(Maps(values, own, layer=0, last=True))
    found = {each.item: np.asarray(each.values)[0] for each in statistic.results()}
    expected = dict(zip(PATTERNS, np.eye(5), strict=True))
    if not is_pair:
        expected["heterogeneous"] = expected["heterogeneous"] + expected.pop("block")
    assert {name: list(row) for name, row in found.items()} == {name: list(row) for name, row in expected.items()}


def pair_maps(folder: Path, first: list[str], second: list[str]) -> tuple[np.ndarray, np.ndarray, list[Any]]:
    network, tokenizer = load(folder)
    texts, options = (" ".join(first), " ".join(second)), {"truncation": False, "padding": False}
    given = tokenizer(*texts, return_tensors="pt", **options)
    with torch.no_grad():
        maps = torch.cat(network(**given, output_attentions=True).attentions).double().numpy()
    return maps, given["token_type_ids"][0].numpy(), given.sequence_ids(0)


@pytest.mark.quick(1)
def test_pairs_are_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, share, least = model("bert", tmp_path / "model"), 0.15, 0.01
    monkeypatch.setattr(shares, "SHARE", share)  # maps of random weights have no pattern of .5
    monkeypatch.setattr(shares, "LEAST", least)
    corpus = [sentence_pair(*map(Sentence, pair)) for pair in PAIRED]
    frame = es.attention(corpus, model=folder, statistics=["shares", "patterns", "entropy"]).frame
    sums: dict[str, Any] = {}
    counts: dict[str, int] = {}

    def count(name: str, value: np.ndarray, n: int) -> None:
        sums[name], counts[name] = sums.get(name, 0) + value, counts.get(name, 0) + n

    for first, second in PAIRED:
        maps, types, sides = pair_maps(folder, first, second)
        n = len(types)
        seps = [place for place, side in enumerate(sides) if side is None][1:]
        assert len(seps) == 2
        count("sep", maps[..., seps].sum((2, 3)), n)
        count("sep_to_sep", maps[:, :, seps][..., seps].sum((2, 3)), 2)
        count("cls", maps[..., 0].sum(2), n)
        entropies = -(maps * np.log(maps)).sum((2, 3))
        count("all", entropies, n)
        v = (np.sort(maps.sum(2), axis=-1)[..., -2:].sum(-1) / n - 2 / n) / (1 - 2 / n)
        near = sum(maps.diagonal(offset, 2, 3).sum(-1) for offset in (-1, 0, 1)) / n
        d = (near - (3 * n - 2) / n**2) / (1 - (3 * n - 2) / n**2)
        chance = ((types == 0).sum() ** 2 + (types == 1).sum() ** 2) / n**2
        b = ((maps * (types[:, None] == types)).sum((2, 3)) / n - chance) / (1 - chance)
        both = (v + d >= share) & (np.minimum(v, d) >= least)
        is_v, is_d, is_b = (~both & (v >= share), d >= share, b >= share)
        count("vertical+diagonal", both, 1)
        count("vertical", is_v, 1)
        count("diagonal", ~both & ~is_v & is_d, 1)
        count("block", ~both & ~is_v & ~is_d & is_b, 1)
    for item, total in sums.items():
        metric = "entropy" if item == "all" else "pattern" if item in PATTERNS else "share"
        rows = frame.filter(metric=metric, item=item).sort("layer", "head")
        np.testing.assert_allclose(rows["value"].to_numpy().reshape(3, 4), total / counts[item], atol=1e-5)
    assert 0 < sums["block"].sum() < sums["block"].size


def state_nbytes(statistics: list[Any]) -> int:
    arrays = [array for each in statistics for array in each.sums.values()]
    held = [array for each in statistics for array in getattr(each, "_waiting", [])]
    assert not held
    assert all(set(vars(each)) <= {"sums", "shape", "reach", "every", "_waiting"} for each in statistics)
    return sum(array.nbytes for array in arrays)


def test_no_statistic_grows_with_the_corpus(tmp_path: Path) -> None:
    network = load_attention_model(tiny.save("bert", tmp_path / "m"), device=torch.device("cpu"))
    sizes = []
    for times in (1, 10):
        corpus = write_conllu(tmp_path / f"{times}.conllu", trees() * times)
        chosen = [kind() for kind in STATISTICS.values() if kind.needs != "mentions"]
        measured = Pass(network, chosen, layers=None, heads=None)
        reader = Reader(es.open_corpus(corpus), network, needs=("trees",))
        for tokens, batch, inputs in reader.batches(256):
            measured.add(tokens, batch, inputs)
        sizes.append(state_nbytes(chosen))
        assert reader.n_done == times * len(SENTENCES)
    assert sizes[0] == sizes[1] > 1000


def test_a_mark_between_sentences_is_no_word(tmp_path: Path) -> None:
    folder, pair = model("bert", tmp_path / "m"), sentence_pair(Sentence(["the", "cat"]), Sentence(["a", "mat", "."]))
    network = load_attention_model(folder, device=torch.device("cpu"))
    reader = Reader(es.open_corpus([pair]), network)
    (tokens, _, inputs), *_ = reader.batches(100)
    assert isinstance(tokens, Tokens)
    assert tokens.n_words.tolist() == [5]
    assert inputs["token_type_ids"].sum() == int(tokens.lengths[0] - tokens.pairs[0, 1]) > 3
    assert (tokens.kinds["sep"].sum(), tokens.kinds["punctuation"].sum()) == (2, 1)
    shown = es.analysis.sentence_attention(pair, model=folder, layers=1)
    assert shown.subwords == tuple(load(folder)[1]("the cat", "a mat .", truncation=False, padding=False).tokens())


def test_trees_are_those_of_networkx() -> None:
    rng = np.random.default_rng(4)
    for size in (1, 2, 3, 8, 25):
        weights, root = rng.random((5, size, size)).astype(np.float32), int(rng.integers(size))
        for graph, heads in zip(weights, arborescences(weights, root).tolist(), strict=True):
            assert plain_arborescence(graph, root).tolist() == heads
            assert heads.pop(root) == -1
            expected = oracle_arborescence(graph.astype(np.float64), root)
            assert heads == [expected[node] for node in range(size) if node != root]


def test_entropies_are_of_every_subword_and_of_the_first() -> None:
    lengths = np.array([7, 4, 9])
    values = random_maps(9, lengths)
    statistic = Entropy()
    statistic.begin(Shape((1,), tuple(range(values.shape[1])), False, 1, 1))
    statistic.update(Maps(values.clone(), SimpleNamespace(lengths=lengths), layer=0, last=True))  # type: ignore[arg-type]
    every, first = statistic.results()
    values = values.double().numpy()
    by_query = -np.where(values > 0, values * np.log(np.maximum(values, 1e-30)), 0).sum(-1)  # [sentence, head, query]
    np.testing.assert_allclose(every.values[0], by_query.sum((0, 2)) / lengths.sum(), rtol=1e-5)
    np.testing.assert_allclose(first.values[0], by_query[:, :, 0].mean(0), rtol=1e-5)
    assert (every.count, first.count) == (20, 3)


SAMPLE = tiny.random_sentences(25, seed=2)


@pytest.fixture(scope="module", params=["bert", "roberta", "distilbert", "gpt2"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two models of one architecture with other weights."""
    folder = tmp_path_factory.mktemp("models")
    first, second = (tiny.save(request.param, folder / f"seed{seed}", seed=seed) for seed in (0, 1))
    shutil.copyfile(first / "tokenizer.json", second / "tokenizer.json")
    return first, second


def slow(first: Path, second: Path, sentences: list[list[str]], max_length: int) -> np.ndarray:
    """Return one cosine per layer and head over all weights of all sentences."""
    weights = []
    options: dict[str, Any] = {"max_length": max_length, "truncation": True, "padding": False, "return_tensors": "pt"}
    for network, tokenizer in map(load, (first, second)):
        with torch.no_grad():
            given = (tokenizer(" ".join(sentence), **options) for sentence in sentences)
            maps = [network(**each, output_attentions=True).attentions for each in given]
        weights.append(np.concatenate([torch.cat(each).double().flatten(2).numpy() for each in maps], axis=-1))
    a, b = weights
    result: np.ndarray = (a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
    return result


@pytest.mark.parametrize(("max_length", "batch"), [(20, 2048), (320, 60)])
@pytest.mark.quick(1)
def test_values_equal_a_slow_cosine(
    pair: tuple[Path, Path], max_length: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "BATCH_SUBWORDS", {"cpu": batch})
    calls: list[tuple[int, int]] = []
    with config(device="cpu", progress=lambda done, total: calls.append((done, total))):
        table = attention_similarity(SAMPLE, model_a=pair[0], model_b=pair[1], max_length=max_length)
    expected = slow(*pair, SAMPLE, max_length)
    assert table.columns == ["layer", "head", "value"]
    assert table["layer"].to_list() == [layer for layer in (1, 2, 3) for _ in range(4)]
    assert table["head"].to_list() == [0, 1, 2, 3] * 3
    np.testing.assert_allclose(table["value"].to_numpy().reshape(3, 4), expected, atol=1e-5)
    assert expected.min() < 0.9  # otherwise nothing would be tested
    assert calls[-1] == (25, 25)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save("bert", tmp_path_factory.mktemp("model") / "bert")


@pytest.mark.slow
def test_a_sample_is_seeded(bert: Path, tmp_path: Path) -> None:
    other = tiny.save("bert", tmp_path / "other", seed=1)
    first, again, second = (
        attention_similarity(SAMPLE, model_a=bert, model_b=other, n_sentences=4, seed=seed) for seed in (0, 0, 1)
    )
    assert first.equals(again)
    assert not first.equals(second)
    chosen = np.sort(np.random.default_rng(0).choice(25, 4, replace=False))
    whole = attention_similarity([SAMPLE[index] for index in chosen], model_a=bert, model_b=other)
    np.testing.assert_allclose(first["value"].to_numpy(), whole["value"].to_numpy(), atol=1e-9)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_length": 2}, "leaves no space for words"),
        ({"max_length": 999}, "is more than the model accepts: give 320 or less"),
        ({"corpus": [["\u200b"]]}, "no sentence has a subword"),
        ({"model_b": "gone/model/here"}, "no model folder"),
    ],
)
@pytest.mark.quick(4)
def test_bad_input_is_one_line(options: dict[str, object], says: str, bert: Path) -> None:
    arguments = {"model_a": bert, "model_b": bert, "corpus": SAMPLE[:2], **options}
    with pytest.raises(EmbstoreError, match=says):
        attention_similarity(**arguments)  # type: ignore[arg-type]


def test_models_of_other_shapes_are_refused(bert: Path, tmp_path: Path) -> None:
    for key, value, says in (("num_hidden_layers", 2, "3 and 2 layers"), ("num_attention_heads", 2, "4 and 2 heads")):
        other = tmp_path / key
        shutil.copytree(bert, other)
        config = json.loads((other / "config.json").read_text())
        (other / "config.json").write_text(json.dumps(config | {key: value}))
        with pytest.raises(EmbstoreError, match=says):
            attention_similarity(SAMPLE, model_a=bert, model_b=other)
    with pytest.raises(EmbstoreError, match="different tokenizers"):
        attention_similarity(SAMPLE, model_a=bert, model_b=tiny.save("roberta", tmp_path / "roberta"))
