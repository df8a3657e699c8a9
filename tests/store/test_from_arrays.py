"""Stores that are written from words and arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore as es
from embstore.errors import InvalidValueError, NonFiniteError
from embstore.store.writer import StoreWriter

SENTENCES = [["the", "bank"], ["it"], ["a", "river", "bank"]] * 200
ARRAYS = [np.random.default_rng(n).normal(size=(2, len(words), 8)) for n, words in enumerate(SENTENCES)]


@pytest.mark.parametrize("name", ["made.zarr", "made.h5"])
def test_words_and_vectors_are_those_given(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embstore.store.layout.SHARD_NBYTES", 1)  # partitions of 256 rows: sentences cross their ends
    store = es.store.write_arrays(
        tmp_path / name, SENTENCES, iter(ARRAYS), model="tool 1.0", layers=[3, 7], dtype="float32"
    )
    assert store.metadata.n_partitions > 2
    np.testing.assert_array_equal(store.select().vectors(), np.concatenate(ARRAYS, 1).astype(np.float32))
    table = store.table()
    assert table["word"].to_list() == [word for words in SENTENCES for word in words]
    assert table["text"].to_list() == [" ".join(words) for words in SENTENCES for _ in words]
    assert (store.layers, store.metadata.model["name"]) == ((3, 7), "tool 1.0")
    assert es.verify(store.path).ok


def test_an_interrupted_call_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embstore.store.layout.SHARD_NBYTES", 1)
    whole = es.store.write_arrays(tmp_path / "whole.zarr", SENTENCES, ARRAYS, model="m")
    write = StoreWriter.write

    def killed(writer: StoreWriter, partition: int, arrays: Any) -> None:
        if partition == 2:
            raise KeyboardInterrupt
        write(writer, partition, arrays)

    monkeypatch.setattr(StoreWriter, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        es.store.write_arrays(tmp_path / "some.zarr", SENTENCES, ARRAYS, model="m")
    monkeypatch.setattr(StoreWriter, "write", write)
    some = es.store.write_arrays(tmp_path / "some.zarr", SENTENCES, ARRAYS, model="m")
    assert some.digest == whole.digest


@pytest.mark.parametrize(
    ("sentences", "arrays", "error", "match"),
    [
        ([["a b"]], ARRAYS, InvalidValueError, "sentence 0 is not a list of words"),
        ([["a"], []], ARRAYS, InvalidValueError, "sentence 1 is not"),
        (["the bank"], ARRAYS, InvalidValueError, "not allowed: give Sequence|sentence 0"),
        ([["a"]], ARRAYS, InvalidValueError, r"sentence 0 is float64 \(2, 2, 8\), not floats \(2, 1, 8\)"),
        ([["a", "b"], ["c"]], ARRAYS[:1], InvalidValueError, "sentence 1 is"),
        ([["a", "b"]], [], InvalidValueError, "give .layer, word, feature"),
        ([["a", "b"]], [np.full((1, 2, 3), 1e6)], NonFiniteError, r"sentence 0, word 0: 1e\+06 is beyond float16"),
    ],
)
def test_what_does_not_fit(sentences: Any, arrays: Any, error: type[Exception], match: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=match):
        es.store.write_arrays(tmp_path / "x.zarr", sentences, arrays, model="m")
    assert not list(tmp_path.iterdir()), "nothing is left behind"
