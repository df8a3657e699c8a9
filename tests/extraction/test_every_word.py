"""Corpora as people have them, from the file to the store: every word has its row, or is named with the reason."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import transformers

import embstore as es
from tests.corpus.test_chats import CHAT, CHATML
from tests.extraction.fake import FakeEncoder
from tests.extraction.plans import plan_of
from tests.models import tiny

WORDS = ["the", "bank", "of", "a", "river", "was", "steep", "and", "old", "on", "hill", "closed"]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny model of at most 320 subwords with a chat template."""
    folder = tiny.save("gpt2", tmp_path_factory.mktemp("every") / "gpt2")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    network = transformers.AutoModel.from_pretrained(folder)
    network.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    network.save_pretrained(folder)
    return folder


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


def extracted(
    corpus: es.corpus.Corpus, model: Path | str, folder: Path, **options: Any
) -> tuple[es.Store, Sequence[Any]]:
    """Extract a corpus, and check that its words are the rows of the store and the dropped words, each once."""
    model = model if isinstance(model, Path) else es.load_encoder(model)
    plan = es.plan(corpus, model=model, options=es.ExtractionOptions(**options))
    store = es.extract(plan, folder / "a.zarr")
    sentences = list(corpus)
    n_units = sum(len(each.words) - sum(stop - start - 1 for start, stop in each.targets) for each in sentences)
    assert store.n_rows + sum(each.count for each in plan.metadata.dropped) == n_units
    table = store.select().table().select("word", "source", "position")
    assert table.select("source", "position").is_duplicated().sum() == 0
    spans = [dict(each.targets) for each in sentences]
    for word, source, position in table.iter_rows():
        stop = spans[source].get(position, position + 1)
        assert word == " ".join(sentences[source].words[position:stop])
    return store, plan.metadata.dropped


@pytest.mark.slow
def test_a_line_of_100_000_words(gpt2: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    draws = np.random.default_rng(0)
    path.write_text(" ".join(draws.choice(WORDS, 100_000)))
    store, dropped = extracted(es.open_corpus(path, split="lines"), gpt2, tmp_path, layers=[0, -1])
    assert (store.n_rows, list(dropped)) == (100_000, [])


@pytest.mark.slow
def test_a_chat(gpt2: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"messages": CHAT * n, "id": f"chat {n}"}) + "\n" for n in (1, 2, 40)))
    corpus = es.open_corpus(path, chat=es.models.chat_template(gpt2))
    store, dropped = extracted(corpus, gpt2, tmp_path)
    assert not dropped
    markup = store.select(words="<|im_start|>").table()
    assert markup.group_by("id").len().sort("len")["len"].to_list() == [3, 6, 120]
    assert markup["role"].value_counts()["count"].to_list() == [43] * 3
    user = store.select(where="role = 'user'").table()
    assert "cat" in user["word"].to_list()
    assert "Rivers" not in user["word"].to_list()


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_a_table_with_years(suffix: str, gpt2: Path, tmp_path: Path) -> None:
    rows = [
        {"text": f"The bank, in {year}. It was old.", "year": year, "author": "AB"[year % 2], "wet": year % 3 == 0}
        for year in range(1900, 1920)
    ]
    path, frame = tmp_path / f"a.{suffix}", pl.DataFrame(rows)
    {"jsonl": frame.write_ndjson, "csv": frame.write_csv, "parquet": frame.write_parquet}[suffix](path)
    store, dropped = extracted(es.open_corpus(path), gpt2, tmp_path)
    assert not dropped
    early = store.select(words="bank", where="year < 1905 AND author = 'A'").table()
    assert early["year"].to_list() == [1900, 1902, 1904]
    assert len(store.select(words="old", labels={"author": "B"})) == 10


@pytest.mark.slow
def test_a_folder(gpt2: Path, tmp_path: Path) -> None:
    for name in ("novels/a.txt", "novels/old/b.txt", "c.txt"):
        path = tmp_path / "corpus" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"The bank was old. The {path.stem} was closed,\nand the river was steep.\n")
    store, dropped = extracted(es.open_corpus(tmp_path / "corpus"), gpt2, tmp_path)
    assert not dropped
    table = store.select(words="bank").table()
    assert table["file"].to_list() == ["c.txt", "novels/a.txt", "novels/old/b.txt"]


@pytest.mark.slow
def test_spans_of_the_user(gpt2: Path, tmp_path: Path) -> None:
    rows = [
        {"text": "The old bank, by the river.", "spans": [{"start": 4, "end": 12, "label": "building"}]},
        {"text": "Unbelievably old!", "spans": [{"start": 2, "end": 12, "label": None}]},
    ]
    path = tmp_path / "a.parquet"
    pl.DataFrame(rows).write_parquet(path)
    corpus = es.open_corpus(path, spans="spans")
    store, dropped = extracted(corpus, gpt2, tmp_path)
    assert not dropped
    spans = store.select(where="spans IS NOT NULL").table()
    assert spans["word"].to_list() == ["old bank", "believably"]
    assert spans["spans"].to_list() == ["building", "span"]
    assert spans["text"].to_list() == [row["text"] for row in rows]
    only = es.plan(corpus, model=gpt2, options=es.ExtractionOptions(keep=es.corpus.Keep(labelled="spans")))
    assert es.extract(only, tmp_path / "b.zarr").n_rows == 2


@pytest.mark.slow
def test_a_parquet_file_of_a_million_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    numbers = pl.int_range(1_000_000, eager=True)
    pl.DataFrame({"text": "bank " + (numbers % 1000).cast(pl.String), "n": numbers}).write_parquet(path)
    corpus = es.open_corpus(path, split="lines", words="spaces")
    plan = es.plan(corpus, model=es.load_encoder("random:2"))
    store = es.extract(plan, tmp_path / "a.zarr")
    assert (store.n_rows, list(plan.metadata.dropped)) == (2_000_000, [])
    last = store.select(where="n >= 999998").table()
    assert last["word"].to_list() == ["bank", "998", "bank", "999"]
    assert last["n"].to_list() == [999_998, 999_998, 999_999, 999_999]
