"""The readers on real corpora, each against a count made in another way."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from embstore.corpus import open_corpus, read_word_classes

TASKS = ["constituents", "coreference", "dependencies", "entities", "pos", "protoroles", "relations", "semantic-roles"]


@pytest.mark.parametrize(
    ("part", "many"), [pytest.param("train", 12_544, marks=pytest.mark.slow), ("dev", 2_001), ("test", 2_077)]
)
def test_ewt(data: Path, part: str, many: int) -> None:
    path = data / "ud-ewt" / f"en_ewt-ud-{part}.conllu"
    found = list(open_corpus(path))
    assert len(found) == many
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n") if line[:1].isdigit()]
    rows = [row for row in rows if row[0].isdigit()]
    assert [word for s in found for word in s.words] == [row[1] for row in rows]
    for column, name in {2: "lemma", 3: "upos", 4: "xpos", 7: "deprel"}.items():
        labels = [label for s in found for label in s.labels[name]]
        expected = [row[column] for row in rows]
        different = [(a, b) for a, b in zip(labels, expected, strict=True) if a != b]
        assert set(different) <= {(None, "_")}


@pytest.mark.slow
def test_sts(data: Path) -> None:
    found = list(open_corpus(data / "sts"))
    assert len(found) == 2 * 11_794
    lines = [line for path in sorted((data / "sts").iterdir()) for line in path.read_text("utf-8").splitlines()]
    for line, one, two in zip(lines, found[::2], found[1::2], strict=True):
        name, score, *texts = line.split("\t")
        for side, sentence, text in zip("12", (one, two), texts, strict=True):
            assert "".join(sentence.words) == "".join(text.split())
            expected = {"set": {name}, "score": {score}, "side": {side}}
            assert {column: set(labels) for column, labels in sentence.labels.items()} == expected


@pytest.mark.slow
def test_semcor_targets_are_those_of_its_lists(data: Path) -> None:
    folder = data / "semcor-pse"
    train, test = (read_word_classes(folder / f"{part}.tsv") for part in ("train", "test"))
    assert not train.keys() & test.keys()
    listed = Counter({(word, c): n for word, cs in {**train, **test}.items() for c, n in cs.items()})
    found: Counter[tuple[str, str]] = Counter()
    many = 0
    for sentence in open_corpus(folder / "corpus.txt", format="pse"):
        many += 1
        stops = dict(sentence.targets)
        for at, name in enumerate(sentence.labels["class"]):
            if name is not None:
                found[" ".join(sentence.words[at : stops.get(at, at + 1)]), name] += 1
    assert many == 25_289
    text = (folder / "corpus.txt").read_text(encoding="utf-8")
    assert found.total() == len(re.findall(r"(?:^| )@\S+@-\S+", text, re.M))
    assert found == listed


@pytest.mark.slow
def test_wnut17(data: Path) -> None:
    for path in sorted((data / "wnut17").iterdir()):
        found = list(open_corpus(path))
        expected: list[list[list[str]]] = [[]]
        for line in path.read_text(encoding="utf-8").split("\n"):
            if line.strip():
                expected[-1].append(line.split("\t"))
            elif expected[-1]:
                expected.append([])
        if not expected[-1]:
            expected.pop()
        pairs = [list(map(list, zip(s.words, s.labels["label"], strict=True))) for s in found]
        assert pairs == expected


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_edge_probing(data: Path, task: str) -> None:
    for path in sorted((data / "edge-probing" / task).iterdir()):
        lines = path.read_text(encoding="utf-8").split("\n")
        records = [json.loads(line) for line in lines if line]
        for sentence, record in zip(open_corpus(path), records, strict=True):
            assert " ".join(sentence.words) == record["text"]
            assert not sentence.targets
            for at in range(len(sentence.words)):
                label, target = oracle(record, at)
                assert sentence.labels["label"][at] == label
                assert sentence.labels["target"][at] == target


def oracle(record: dict, at: int) -> tuple[str | None, str | None]:  # type: ignore[type-arg]
    labels, spans = set(), set()
    for target in record["targets"]:
        for name in ("span1", "span2"):
            if name in target and target[name][0] <= at < target[name][1]:
                spans.add(name)
        if "span2" not in target and target["span1"] == [at, at + 1]:
            names = target["label"]
            labels.update([names] if isinstance(names, str) else names)
    return "|".join(sorted(labels)) or None, "|".join(sorted(spans)) or None


@pytest.mark.slow
def test_litbank(data: Path) -> None:
    found = list(open_corpus(data / "litbank", split="lines", words="spaces"))
    texts = [path.read_text(encoding="utf-8") for path in sorted((data / "litbank").iterdir())]
    assert [word for sentence in found for word in sentence.words] == " ".join(texts).split()
    assert len(found) == sum(bool(line.strip()) for text in texts for line in text.split("\n"))
