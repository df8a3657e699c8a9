"""The readers on real corpora, each against a count made in another way."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from embstore.corpus import open_corpus, read_word_classes


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
