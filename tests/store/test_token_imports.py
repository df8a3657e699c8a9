"""Imports of token sequences: safetensors files as vLLM writes them, datasets as SAELens writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from tokenizers import Tokenizer

import embstore as es
from embstore.errors import CorpusError, EmbstoreError, InvalidValueError, StoreFormatError
from tests.models import tiny
from tests.store.example import SUFFIXES

TEXTS = ["The bank of the river was steep", "Rivers flow to the sea ; Café naïve", "She didn't deposit 1,234 dollars"]
KINDS = {
    "byte_level": tiny.byte_level,
    "unigram": lambda: tiny.unigram("<s> $A </s>", "<s>", "</s>"),
    "wordpiece": tiny.wordpiece,
}


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    made = KINDS[request.param]()
    made.save(str(tmp_path / "tokenizer.json"))
    made.no_truncation()
    made.no_padding()
    return made


def sequences(tokenizer: Tokenizer, *, layers: int = 2) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    ids = [np.array(tokenizer.encode(text).ids) for text in TEXTS]
    return [(each, rng.normal(size=(len(each), layers, 6)).astype(np.float32)) for each in ids]


def write_vllm(folder: Path, made: list[tuple[np.ndarray, np.ndarray]], key: str = "token_ids") -> Path:
    folder.mkdir()
    for number, (ids, vectors) in enumerate(made):
        tensors = {key: torch.from_numpy(ids), "hidden_states": torch.from_numpy(vectors)}
        safetensors.torch.save_file(tensors, folder / f"hs_{number * 5}.safetensors")  # hs_10 follows hs_5
    return folder


def write_saelens(folder: Path, made: list[tuple[np.ndarray, np.ndarray]], hook: str) -> Path:
    folder.mkdir()
    files = []
    for number, (ids, vectors) in enumerate(made):
        files.append({"filename": f"data-{number:05d}.arrow"})
        frame = pl.DataFrame({"token_ids": [ids], hook: [vectors[:, 0].tolist()]})
        frame.with_columns(pl.col(hook).cast(pl.List(pl.List(pl.Float32)))).write_ipc_stream(
            folder / files[-1]["filename"]
        )
    (folder / "state.json").write_text(json.dumps({"_data_files": files}))
    return folder


@pytest.mark.parametrize("key", ["token_ids", "input_ids"])
@pytest.mark.quick(2)
def test_tokens_of_vllm_become_rows(tmp_path: Path, tokenizer: Tokenizer, key: str) -> None:
    made = sequences(tokenizer)
    folder = write_vllm(tmp_path / "hs", made, key)
    for suffix in SUFFIXES:
        store = es.store.import_store(
            folder, tmp_path / f"s{suffix}", model=tmp_path, layers=[2, 5], corpus=TEXTS, dtype="float32"
        )
        assert store.layers == (2, 5)
        assert np.array_equal(store.select().vectors(), np.concatenate([each[1] for each in made]).transpose(1, 0, 2))
        table = store.table()
        spelled = [[tokenizer.id_to_token(int(number)) for number in ids] for ids, _ in made]
        assert table["word"].cast(str).to_list() == [each for ids in spelled for each in ids]
        assert table["source"].to_list() == [at for at, each in enumerate(spelled) for _ in each]
        assert store.metadata.extraction["unit"] == "subword"
        assert store.metadata.model["name"] == tmp_path.name
        assert es.verify(store.path).ok
        for at, text in enumerate(store.index.texts):
            positions = table.filter(pl.col("sentence") == at)["position"]
            assert positions.max() == len(text.split(" ")) - 1
            words = [word for word in text.split(" ") if word not in ("<s>", "</s>", "[CLS]", "[SEP]")]
            if tokenizer.normalizer is None or "##" not in tokenizer.to_str():
                assert words == TEXTS[at].split()
            else:
                assert "".join(words) == tokenizer.normalizer.normalize_str(TEXTS[at]).replace(" ", "")


def test_one_file_of_bfloat16_and_one_layer(tmp_path: Path) -> None:
    tokenizer = tiny.byte_level()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ids = tokenizer.encode("the bank").ids
    vectors = torch.randn(len(ids), 6, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    safetensors.torch.save_file(
        {"token_ids": torch.tensor([ids]), "hidden_states": vectors, "loss_mask": torch.ones(len(ids), dtype=bool)},
        tmp_path / "one.safetensors",
    )
    store = es.store.import_store(
        tmp_path / "one.safetensors", tmp_path / "s.zarr", model=tmp_path / "tokenizer.json", layers=7, dtype="bfloat16"
    )
    assert torch.equal(torch.from_numpy(store.select().vectors()[0]), vectors.float())


@pytest.mark.parametrize(("hook", "layer"), [("blocks.4.hook_resid_pre", 4), ("blocks.4.hook_resid_post", 5)])
def test_datasets_of_saelens_become_rows(tmp_path: Path, tokenizer: Tokenizer, hook: str, layer: int) -> None:
    made = sequences(tokenizer, layers=1)
    folder = write_saelens(tmp_path / "cache", made, hook)
    store = es.store.import_store(folder, tmp_path / "s.zarr", model=tmp_path, dtype="float32")
    assert store.layers == (layer,)
    assert np.array_equal(store.gather(range(store.n_rows), layer), np.concatenate([each[1][:, 0] for each in made]))
    (folder / "data-00001.arrow").write_bytes(b"no arrow")
    with pytest.raises(StoreFormatError, match=r"data-00001.arrow is not an Arrow stream"):
        es.store.import_store(folder, tmp_path / "t.zarr", model=tmp_path)
    other = write_saelens(tmp_path / "other", made, "blocks.4.hook_mlp_out")
    with pytest.raises(StoreFormatError, match=r"hook_mlp_out: token_ids and one of the residual stream"):
        es.store.import_store(other, tmp_path / "t.zarr", model=tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ids, vectors: (ids[:-1], vectors), "token ids and hidden states of"),
        (
            lambda ids, vectors: (np.append(ids[:-1], 10**6), vectors),
            "has the id 1000000, which the tokenizer",
        ),
        (lambda ids, vectors: (np.append(ids[:-1], -1), vectors), "has the id -1, which the tokenizer does not have"),
        (lambda ids, vectors: (ids[::-1].copy(), vectors), "the token ids spell .* but its text is 'The bank"),
        (lambda ids, vectors: (ids, vectors[..., :3].copy()), "layers and features, the first one"),
        (lambda ids, vectors: (ids, vectors.astype(np.int32)), "token ids .* and hidden states"),
        (lambda ids, vectors: (ids[:0], vectors[:0]), r"token ids \[0\]"),
        (lambda ids, vectors: (ids, np.full_like(vectors, np.nan)), "nan is not finite"),
    ],
)
def test_wrong_ids_are_refused_in_one_line(tmp_path: Path, change: Any, message: str) -> None:
    tokenizer = tiny.byte_level()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    made = sequences(tokenizer)
    at = 1 if "first one" in message else 0
    made[at] = change(*made[at])
    folder = write_vllm(tmp_path / "hs", made)
    with pytest.raises(EmbstoreError, match=message) as raised:
        es.store.import_store(folder, tmp_path / "s.zarr", model=tmp_path, layers=[1, 2], corpus=TEXTS)
    assert f"hs_{at * 5}.safetensors" in str(raised.value)
    assert not (tmp_path / "s.zarr").exists()


def test_what_is_not_said_is_asked_for(tmp_path: Path) -> None:
    tokenizer = tiny.wordpiece()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    folder = write_vllm(tmp_path / "hs", sequences(tokenizer))
    (tmp_path / "broken.safetensors").write_bytes(b"\xff" * 40)
    safetensors.numpy.save_file({"x": np.zeros(3, np.float32)}, tmp_path / "other.safetensors")
    for source, given, kind, message in [
        (folder, {"layers": [1, 2]}, InvalidValueError, "give the model, its folder or name"),
        (folder, {"model": tmp_path}, InvalidValueError, "holds 2 layers and does not say which"),
        (folder, {"model": tmp_path, "layers": [1]}, InvalidValueError, r"layers \[1\] do not fit"),
        (folder, {"model": tmp_path, "layers": [2, 1]}, InvalidValueError, r"layers \[2, 1\] do not fit"),
        (folder, {"model": folder, "layers": [1, 2]}, InvalidValueError, "has no tokenizer.json"),
        (folder, {"model": tmp_path, "layers": [1, 2], "corpus": TEXTS[:2]}, CorpusError, "has no text in the corpus"),
        (folder, {"model": tmp_path, "layers": [1, 2], "corpus": [*TEXTS, "x"]}, CorpusError, "more texts than the 3"),
        (tmp_path / "broken.safetensors", {"model": tmp_path, "layers": 1}, EmbstoreError, "not a safetensors file"),
        (tmp_path / "other.safetensors", {"model": tmp_path, "layers": 1}, StoreFormatError, "has x, not token_ids or"),
    ]:
        with pytest.raises(kind, match=message):
            es.store.import_store(source, tmp_path / "s.zarr", **given)
