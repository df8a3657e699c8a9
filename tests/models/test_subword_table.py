"""Word vectors from the input embeddings, against the rows of the weights file one by one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from embstore.errors import InvalidValueError, ModelError
from embstore.models import load_encoder, loading, subword_table_vectors
from tests.models import tiny

TABLES = {
    "bert": "embeddings.word_embeddings.weight",
    "gpt2": "wte.weight",
    "albert": "embeddings.word_embeddings.weight",
}
WORDS = ("bank", "antidisestablishmentarianism", "Straße", "the old bank", "zebra", "日本語")


@pytest.mark.parametrize("name", list(TABLES))
def test_vectors_are_means_of_rows(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_WORDS_AT_ONCE", 2)
    folder = tiny.save(name, tmp_path / name)
    table = load_file(folder / "model.safetensors")[TABLES[name]]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    lead = " " if name == "gpt2" else ""
    vectors = subword_table_vectors(load_encoder(folder, device="cpu"), WORDS)
    assert vectors.words == WORDS
    assert vectors.vectors.dtype == np.float32
    pieces = []
    for word, vector in zip(WORDS, vectors.vectors, strict=True):
        ids = [
            index for part in word.split(" ") for index in tokenizer.encode(lead + part, add_special_tokens=False).ids
        ]
        pieces.append(len(ids))
        np.testing.assert_allclose(vector, np.mean([table[index] for index in ids], axis=0), atol=1e-6)
    assert max(pieces) > 3


def test_bad_input_is_refused_in_one_line(tmp_path: Path) -> None:
    encoder = load_encoder(tiny.save("bert", tmp_path / "bert"), device="cpu")
    with pytest.raises(InvalidValueError, match=r"^no word is given.*$"):
        subword_table_vectors(encoder, [])
    with pytest.raises(InvalidValueError, match=r"^the word '\\u200b' has no subword.*$"):
        subword_table_vectors(encoder, ["bank", "\u200b"])


def test_a_model_without_a_table_is_refused() -> None:
    encoder: Any = SimpleNamespace(info=SimpleNamespace(name="characters"))
    with pytest.raises(ModelError, match=r"^the model 'characters' has no table of subwords.*$"):
        subword_table_vectors(encoder, ["bank"])
