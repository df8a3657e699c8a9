"""The statistics of attention against a plain loop over the maps of one sentence after another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import embstore as es
from embstore.analysis import Statistic, sentence_attention
from embstore.analysis.attention import measure
from embstore.analysis.attention.annotated import Mention, _mentions
from embstore.analysis.attention.maps import Values
from embstore.analysis.attention.measure import STATISTICS
from embstore.corpus import EdgeSentence, EdgeTarget, Tree
from embstore.errors import EmbstoreError
from embstore.models.transformer import attention
from embstore.models.transformer.attention import _plain_maps as plain_maps
from tests.analysis.attention_oracle import Plain, between_words, maps_of
from tests.models import tiny

SHAPES = {"bert": (1, 1), "gpt2": (0, 0), "llama": (1, 0)}  # the special subwords before and after a sentence
RELATIONS = ("nsubj", "obj", "det", "punct", "obl:tmod")
SENTENCES = [[*tiny.SENTENCES[0]], ["No"], *tiny.random_sentences(9, seed=3), ["\u200b", "the", "cat", "."]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: tiny.save(name, folder / name) for name in SHAPES}


def trees() -> list[Tree]:
    """A random tree for each sentence."""
    rng = np.random.default_rng(5)
    made = []
    for words in SENTENCES:
        heads = np.full(len(words), -1)
        order = rng.permutation(len(words))
        for place, word in enumerate(order[1:], 1):
            near = min(order[:place], key=lambda other: (abs(other - word), other))
            heads[word] = near if rng.random() < 0.7 else order[rng.integers(place)]
        relations = tuple("root" if head < 0 else RELATIONS[rng.integers(len(RELATIONS))] for head in heads)
        marks = [
            name == "punct" or not any(map(str.isalnum, word)) for word, name in zip(words, relations, strict=True)
        ]
        made.append(Tree(tuple(words), heads, np.array(marks), relations))
    return made


def write_conllu(path: Path, given: list[Tree]) -> Path:
    lines = []
    for tree in given:
        for number, word in enumerate(tree.words):
            upos = "PUNCT" if tree.punctuation[number] else "X"
            row = (number + 1, word, word, upos, "_", "_", tree.heads[number] + 1, tree.relations[number], "_", "_")
            lines.append("\t".join(map(str, row)))
        lines.append("")
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_conllu(tmp_path_factory.mktemp("corpus") / "c.conllu", trees())


@pytest.fixture(scope="module", params=list(SHAPES))
def plain(request: pytest.FixtureRequest, models: dict[str, Path]) -> tuple[str, Plain]:
    found = Plain(models[request.param], specials=SHAPES[request.param], causal=request.param != "bert")
    for tree in trees():
        found.add(tree.words, tree)
    return request.param, found


EVERY = [name for name in STATISTICS if name != "coreference"]


def grids(frame: pl.DataFrame) -> dict[Any, Any]:
    """Return {(metric, item): [layer, head]} of a frame."""
    found = {}
    for (metric, item), part in frame.filter(pl.col("layer").is_not_null()).group_by("metric", "item"):
        found[metric, item] = part.sort("layer", "head")["value"].to_numpy().reshape(part["layer"].n_unique(), -1)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("size", [2048, 40])
def test_statistics_equal_a_plain_loop(
    plain: tuple[str, Plain], models: dict[str, Path], corpus: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, slow = plain
    monkeypatch.setattr(measure, "BATCH_SUBWORDS", {"cpu": size})
    result = es.attention(corpus, model=models[name], statistics=EVERY)
    found = grids(result.frame)
    expected = slow.values()
    before, after = SHAPES[name]
    absent = {"first"} if before else {"cls"}
    absent |= {"sep", "sep_to_sep", "other_to_sep"} if not after else set()
    absent |= {"next"} if slow.causal else set()
    compared = 0
    for key, values in expected.items():
        metric, item = key
        if item in absent or metric in ("right", "random"):
            assert key not in found
            continue
        np.testing.assert_allclose(found.pop(key), values, atol=1e-5, err_msg=str(key))
        compared += 1
    assert compared > 20
    assert not found
    assert result.n_sentences == len(SENTENCES)


@pytest.mark.slow
def test_baselines_and_counts_need_no_model(plain: tuple[str, Plain], models: dict[str, Path], corpus: Path) -> None:
    name, slow = plain
    frame = es.attention(corpus, model=models[name], statistics=["relations", "trees"]).frame
    for relation, offsets in slow.offsets.items():
        rows = frame.filter(pl.col("item") == relation).group_by("metric").first().sort("metric")
        top = max(offsets.values())
        for metric, sign in (("relation_to_head", 1), ("relation_to_dependant", -1)):
            row = rows.filter(pl.col("metric") == metric).to_dicts()[0]
            assert row["count"] == offsets.total()
            assert row["baseline"] == pytest.approx(top / offsets.total())
            assert offsets[sign * row["offset"]] == top
    count = slow.counts["uuas", ""]
    uuas = frame.filter(pl.col("metric") == "uuas")
    assert uuas["count"].unique().to_list() == [count]
    assert uuas["baseline"][0] == pytest.approx(slow.sums["right", ""] / count)
    random = uuas.filter(pl.col("item") == "random")
    assert random["value"].to_list() == [pytest.approx(slow.sums["random", ""] / count)]
    assert random["layer"].to_list() == [None]


def test_layers_and_heads_are_parts_of_the_whole(models: dict[str, Path]) -> None:
    options: dict[str, Any] = {"model": models["bert"], "statistics": ["shares", "entropy"]}
    whole = es.attention(SENTENCES[:4], **options).frame
    part = es.attention(SENTENCES[:4], layers=[-1, 1], heads=[2, 0], **options).frame
    assert part["layer"].unique().sort().to_list() == [1, 3]
    assert part["head"].unique().sort().to_list() == [0, 2]
    keys = ["metric", "layer", "head", "item"]
    both = part.join(whole, on=keys)
    assert len(both) == len(part.filter(pl.col("layer").is_not_null())) > 2 * 2 * 9
    np.testing.assert_allclose(both["value"], both["value_right"], atol=1e-6)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.quick(1)
def test_mentions_that_corefer(name: str, models: dict[str, Path], tmp_path: Path) -> None:
    text = "the cat sat because the old cat was cold and it was the bank"
    spans = {"cat": [0, 2], "old cat": [4, 7], "it": [10, 11], "bank": [12, 14]}
    pairs = [("cat", "old cat", "1"), ("cat", "it", "1"), ("it", "old cat", "1"), ("bank", "it", "0")]
    targets = [{"span1": spans[one], "span2": spans[two], "label": label} for one, two, label in pairs]
    path = tmp_path / "coreference.jsonl"
    path.write_text(f'{{"text": "{text}", "targets": {str(targets).replace(chr(39), chr(34))}}}\n')
    options: dict[str, Any] = {"model": models[name]}
    result = es.attention(path, statistics=["coreference"], **options)
    plain = Plain(models[name], specials=SHAPES[name], causal=name != "bert")
    attention, _ = between_words(*maps_of(plain.model, plain.tokenizer, text.split()))
    attention[:, :, range(14), range(14)] = -1
    best = attention.argmax(-1)
    expected = ((best[:, :, 6] == 1).astype(float) + np.isin(best[:, :, 10], [1, 6])) / 2
    np.testing.assert_allclose(grids(result.frame)["coreference", ""], expected)
    assert result.frame["count"].unique().to_list() == [2]  # the old cat and it
    assert result.frame["baseline"].drop_nulls().unique().to_list() == [1.0]
    rules = result.frame.filter(pl.col("head").is_null())
    assert dict(zip(rules["item"], rules["value"], strict=True)) == {"head_match": 0.5, "string_match": 1.0}
    assert expected.any()
    assert "coreference" in es.attention(path, **options).frame["metric"]


def test_a_new_statistic_is_one_class(models: dict[str, Path]) -> None:
    class Strongest(Statistic):
        name = "strongest"

        def update(self, maps: Any) -> None:
            self.add("largest", maps.layer, maps.values.amax(-1).sum((0, 2)))
            self.add("queries", maps.layer, maps.tokens.lengths.sum())

        def results(self) -> Any:
            queries = self.sums["queries"]
            yield Values("strongest", "", self.sums["largest"] / queries[:, None], count=queries[0])

    result = es.attention(SENTENCES[:3], model=models["gpt2"], statistics=[Strongest()])
    assert result.frame["value"].min() > 0
    assert result.frame.shape == (12, 8)


def test_a_store_is_read_as_its_sentences(models: dict[str, Path], tmp_path: Path) -> None:
    store = es.extract(es.plan(SENTENCES[:5], model=models["bert"], calibrate=False), tmp_path / "s.zarr")
    one, two = (es.attention(source, model=models["bert"], statistics=["entropy"]) for source in (store, SENTENCES[:5]))
    assert one.frame.equals(two.frame)
    one.save(tmp_path / "a.csv")
    assert pl.read_csv(tmp_path / "a.csv").shape == one.frame.shape


def test_the_maps_of_one_sentence(models: dict[str, Path]) -> None:
    words = ["the", "cat", "deposit", "bank"]
    shown = sentence_attention(" ".join(words), model=models["bert"], layers=[3, 1], heads=[2])
    plain = Plain(models["bert"], specials=(1, 1), causal=False)
    maps, _ = maps_of(plain.model, plain.tokenizer, words)
    assert (shown.layers, shown.heads) == ((1, 3), (2,))
    assert (shown.subwords[0], shown.subwords[-1]) == ("[CLS]", "[SEP]")
    assert len(shown.subwords) == maps.shape[-1]
    np.testing.assert_allclose(shown.values, maps[[0, 2]][:, [2]], atol=1e-5)
    text = "  The cat,\n\tdidn't  sit. "
    expected = Plain(models["gpt2"], specials=(0, 0), causal=True).tokenizer(text, truncation=False).tokens()
    assert sentence_attention(text, model=models["gpt2"], layers=1).subwords == tuple(expected)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"layers": [4]}, "layer 4 has no attention in .*: choose among 1, 2, 3"),
        ({"layers": [0]}, "layer 0 has no attention"),
        ({"heads": [4]}, "there is no head 4; .* has heads 0 to 3"),
        ({"heads": []}, "heads"),
        ({"statistics": ["relations"]}, "relations cannot be measured: sentences has no trees"),
        ({"statistics": ["coreference"]}, "sentences has no coreference"),
        ({"statistics": ["cosines"]}, "unknown statistic 'cosines'"),
        ({"statistics": ["shares", "shares"]}, "shares is given twice"),
        ({"statistics": []}, "none are given"),
        ({"max_length": 2}, "leaves no space for words"),
        ({"corpus": [["\u200b"]]}, "no sentence has a subword"),
    ],
)
@pytest.mark.quick(6)
def test_bad_input_is_one_line(options: dict[str, Any], says: str, models: dict[str, Path]) -> None:
    arguments = {"corpus": SENTENCES[:2], "model": models["bert"], **options}
    with pytest.raises(EmbstoreError, match=says):
        es.attention(arguments.pop("corpus"), **arguments)


def test_a_model_whose_batches_have_other_maps_is_refused(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        attention, "_plain_maps", lambda network, ids: [maps + 0.01 for maps in plain_maps(network, ids)]
    )
    with pytest.raises(EmbstoreError, match=r"in a padded batch differ from its own by .* in layer 1"):
        es.attention(SENTENCES[:2], model=models["bert"])


# Words, two spans and the label of each pair, and the mention that is found, with what each rule guesses.
MENTIONS: dict[str, tuple[str, list[Any], Mention]] = {
    "one with the same last word is no antecedent": (
        "the old cat saw it",
        [((0, 3), (2, 3), ("1",)), ((4, 5), (2, 3), ("1",))],
        Mention(4, frozenset({2}), {"nearest": 2, "head_match": -1, "string_match": 2}),
    ),
    "a mention around another does not come before it": (
        "Eve saw the man with her dog there",
        [((5, 6), (0, 1), ("1",)), ((5, 6), (2, 8), ("0",))],
        Mention(5, frozenset({0}), {"nearest": 0, "head_match": -1, "string_match": 0}),
    ),
    "rules guess the nearest that is spelled alike": (
        "The cat saw the old cat , a dog and the cat",
        [((10, 12), (0, 2), ("1",)), ((10, 12), (3, 6), ("0",)), ((10, 12), (7, 9), ("0",))],
        Mention(11, frozenset({1}), {"nearest": 8, "head_match": 5, "string_match": 1}),
    ),
}


@pytest.mark.parametrize(("words", "pairs", "found"), MENTIONS.values(), ids=MENTIONS)
def test_mentions(words: str, pairs: list[Any], found: Mention) -> None:
    assert _mentions(EdgeSentence(words.split(), [EdgeTarget(*pair) for pair in pairs])) == (found,)
