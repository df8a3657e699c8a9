"""Rows are chosen and numbered block after block: the same whatever the block."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import embstore as es
from embstore.corpus import Keep, Sentence
from embstore.corpus.sentence import Document
from embstore.errors import StoreDamagedError
from embstore.extraction import rows as rows_module
from embstore.extraction import windows
from embstore.extraction.options import ExtractionOptions
from embstore.extraction.rows import make_index
from embstore.extraction.survey import Survey, survey
from embstore.extraction.windows import Overlap
from embstore.store import Index
from embstore.store.check.consistency import index_faults
from embstore.store.metadata import Dropped
from tests.extraction.fake import FakeEncoder
from tests.extraction.plans import plan_of

KEEPS = [
    Keep(),
    Keep(words=frozenset({"bank", "river"})),
    Keep(where="tag IS NOT NULL", max_contexts=3),
    Keep(min_contexts=4),
    Keep(words=frozenset({"nowhere"})),
]


def index_of(
    found: Survey, keep: Keep, unit: str, context: str = "sentence", encoder: FakeEncoder | None = None
) -> tuple[Index, tuple[Dropped, ...]]:
    options = ExtractionOptions(unit=unit, context=context, min_left=2)
    overlap = Overlap.of(options, limit=24, causal=False)
    object.__setattr__(options, "keep", keep)  # of unit sentence too
    return make_index(found, options=options, encoder=encoder or FakeEncoder(), limit=24, overlap=overlap)


def surveyed(unit: str) -> tuple[Survey, FakeEncoder]:
    """Sentences whose words have no piece, one or several."""
    random = np.random.default_rng(5)
    words = np.array(["bank", "river", "a", "~", "evening", "Constantinople", "der", "so"])
    sentences = []
    documents = [Document() for _ in range(9)]
    for number in range(60):
        chosen = random.choice(words, random.integers(0, 9)).tolist()
        tags = random.choice(np.array(["NOUN", "VERB", ""]), len(chosen)).tolist()
        sentences.append(Sentence(chosen, {"tag": [tag or None for tag in tags]}, document=documents[number // 7]))
    encoder, options = FakeEncoder(), ExtractionOptions(unit=unit)
    corpus = es.open_corpus([sentence for sentence in sentences if sentence.words])
    return survey(corpus, encoder, options, limit=24, report=lambda n_sentences: None), encoder


@pytest.mark.parametrize("context", ["sentence", "document"])
@pytest.mark.parametrize("unit", ["word", "subword", "sentence"])
@pytest.mark.parametrize("keep", KEEPS, ids=["all", "words", "labelled", "frequent", "none"])
@pytest.mark.quick(3)
def test_any_block_gives_the_same_index(keep: Keep, unit: str, context: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, encoder = surveyed(unit)
    whole, dropped = index_of(found, keep, unit, context, encoder)
    assert not len(whole.type) or not list(index_faults(whole, len(whole.type)))
    for block in (1, 3, 50):
        monkeypatch.setattr(rows_module, "BLOCK", block)
        monkeypatch.setattr(windows, "CUT_TOGETHER", block)
        found, encoder = surveyed(unit)
        index, same = index_of(found, keep, unit, context, encoder)
        assert same == dropped
        expected = whole.arrays()
        for name, column in index.arrays().items():
            assert column.dtype == expected[name].dtype, name
            np.testing.assert_array_equal(column, expected[name], err_msg=name)


def test_a_model_whose_words_change_after_the_plan_is_noticed(tmp_path: Path) -> None:
    encoder = FakeEncoder()
    encoder.has_vocabulary = False
    plan = plan_of([Sentence(["bank", "extraordinary"])], model=encoder)
    assert plan.index.text.ids.tolist() == [-1] * 7
    encoder.pieces = lambda word: [word]  # type: ignore[method-assign]
    with pytest.raises(StoreDamagedError, match=r"sentences 0 to 0 have 2 subwords, the index says 7: .* has changed"):
        es.extract(plan, tmp_path / "s.zarr")
