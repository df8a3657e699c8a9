"""What a plan spends on the time of an extraction and on the check of the batches, and what it advises."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import embstore as es
from embstore import devices
from embstore.models.encoder import Spans, Tokenized
from tests.extraction.fake import FakeEncoder
from tests.extraction.plans import plan_of


class Recording(FakeEncoder):
    """Records the sentences of each call of `encode`, in subwords, and what the self-check was asked for."""

    def __init__(self) -> None:
        super().__init__(max_subwords=60)
        self.runs: list[np.ndarray] = []
        self.spans: list[Spans] = []
        self.checked: dict[str, Any] = {}

    def encode(self, tokenized: Tokenized, spans: Spans, **options: Any) -> Iterator[Any]:
        self.runs.append(np.diff(tokenized.bounds))
        self.spans.append(spans)
        return super().encode(tokenized, spans, **options)

    def self_check(self, tokenized: Tokenized, **options: Any) -> float:
        self.checked = {**options, "n_sentences": len(tokenized)}
        return 0.0


def sentences(count: int) -> list[list[str]]:
    rng = np.random.default_rng(count)
    return [["word"] * int(rng.integers(1, 20)) for _ in range(count)]


@pytest.mark.parametrize("count", [600, 3000])
def test_a_calibration_runs_a_small_share_of_the_corpus(count: int) -> None:
    encoder = Recording()
    plan = es.plan(sentences(count), model=encoder, options=es.ExtractionOptions(batch_subwords=2048))
    run = encoder.runs[0]
    assert all(np.array_equal(run, again) for again in encoder.runs)
    assert len(encoder.runs) <= 3
    positions = plan.survey.n_subwords + plan.survey.n_sentences * encoder.n_specials
    assert 0.005 < (run.sum() + len(run) * encoder.n_specials) / positions < 0.045
    assert run.max() > 1.5 * run.min()  # short sentences and long ones
    assert plan.estimate.seconds is not None
    assert plan.estimate.subwords_per_second is not None
    assert plan.estimate.seconds == pytest.approx(plan.survey.n_subwords / plan.estimate.subwords_per_second)


def test_a_calibration_leaves_vectors_where_an_extraction_does() -> None:
    given = []

    class OnDevice(FakeEncoder):
        casts_on_device = True

        def encode(self, *arguments: Any, on_device: bool = False, **options: Any) -> Iterator[Any]:
            given.append(on_device)
            return super().encode(*arguments, **options)

    es.plan(sentences(600), model=OnDevice(), options=es.ExtractionOptions(batch_subwords=2048))
    assert set(given) == {True}


def test_few_sentences_are_not_timed() -> None:
    encoder = Recording()
    plan = es.plan(sentences(20), model=encoder)
    assert not encoder.runs
    assert plan.estimate.seconds is None
    assert "not measured" in str(plan)
    assert plan.as_json()["seconds"] is None


def test_the_self_check_knows_the_longest_sentence() -> None:
    encoder = Recording()
    plan = es.plan([["abc"] * 50, *sentences(40)], model=encoder)
    assert encoder.checked["longest"] == 50
    assert plan.encoder_spec.check.longest == 50
    assert encoder.checked["batch_subwords"] == plan.options.batch_subwords
    assert encoder.checked["n_sentences"] == 4
    es.plan([["abc"] * 90, ["abc"] * 7], model=encoder)
    assert encoder.checked["longest"] == 60  # more than the model accepts


def test_a_plan_and_an_extraction_keep_to_the_cpu_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    class Counting(FakeEncoder):
        def encode(self, *given: Any, **options: Any) -> Iterator[Any]:
            seen.append(torch.get_num_threads())
            return super().encode(*given, **options)

        def self_check(self, *given: Any, **options: Any) -> float:
            seen.append(torch.get_num_threads())
            return 0.0

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(devices, "cpu_quota", lambda: 2)
    with devices.torch_threads(3):
        encoder = Counting()
        plan = es.plan(sentences(8), model=encoder)
        es.extract(plan, tmp_path / "x.zarr")
        es.plan(sentences(8), model=encoder, options=es.ExtractionOptions(context_window=1))
        assert torch.get_num_threads() == 3
    assert len(seen) >= 3
    assert set(seen) == {2}


class Uncased(FakeEncoder):
    def pieces(self, word: str) -> list[str]:
        return super().pieces(word.lower())


@pytest.mark.parametrize(
    ("options", "advised"),
    [
        ({}, ["to the model The is the: normalize=lower makes them one"]),
        ({"normalize": "lower"}, []),
        ({"normalize": "lower", "words": "spaces"}, ["22% of the types end in a punctuation mark: words=punctuation"]),
        ({"normalize": "lower", "split": "lines"}, ["60% of the first 5 lines do not end a sentence: split=sentences"]),
    ],
)
def test_a_plan_says_what_is_probably_not_meant(tmp_path: Path, options: dict[str, str], advised: list[str]) -> None:
    (tmp_path / "a.txt").write_text("The bank.\nof a\nriver was\nsteep and\nold.\n")
    corpus = es.open_corpus(tmp_path / "a.txt", **options)
    assert [line.partition(" (")[0] for line in plan_of(corpus, model=Uncased()).advice] == advised
    assert "to the model" not in str(plan_of(corpus, model=FakeEncoder()).advice)


PROSE = "A man of the old town was seen there, and the wood burned high in the hills beyond it on that day of spring. "


@pytest.mark.parametrize(
    ("text", "advised"),
    [
        ("今天天气很好，我们去公园散步。他说：你好！", "types are runs of a script without spaces: language=zh"),
        (
            "これは日本語の文です。東京都庁舎へ行きました。",
            "types are runs of a script without spaces: language=zh (ja, th)",
        ),
        ("ฉันไปโรงเรียนทุกวัน", "1 types are runs of a script without spaces: language=zh (ja, th) finds their words"),
        ("The word 北京 and the word 東京 are names of cities.", None),
        (PROSE, None),
    ],
)
def test_text_that_is_not_words_with_spaces_gets_a_note(tmp_path: Path, text: str, advised: str | None) -> None:
    (tmp_path / "a.txt").write_text(text, "utf-8")
    advice = plan_of(tmp_path / "a.txt", model=FakeEncoder(max_subwords=None)).advice
    assert (advised is None) == (not advice), advice
    assert advised is None or advised in advice[0]


def test_a_word_cannot_write_a_line_of_the_plan() -> None:
    plan = plan_of([["the", "a\nnote         pay", "\x1b[2J"]], model=FakeEncoder())
    assert str(plan).count("\n") + 1 == len(plan.summary())
    assert r"a\nnote" in str(plan)
    assert r"a\nnote" in plan.text(verbose=True)
    assert r"\x1b[2J" in str(plan)
