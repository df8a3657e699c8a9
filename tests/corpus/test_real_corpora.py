"""The readers on real corpora, each against a count made in another way."""

from __future__ import annotations

from pathlib import Path

import pytest

from embstore.corpus import open_corpus


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
