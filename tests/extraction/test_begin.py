"""What a context begins with: the tokenizer's own special tokens, the token that begins a text, or none."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import embstore as es
from embstore.errors import InvalidValueError, ModelError, StoreMismatchError
from tests.extraction.test_text import decoders  # noqa: F401  (a fixture)

TEXT = "The cat sat on the mat.\n\nDon't go (yet)! It was 7 o'clock: rain fell on the river, and the boats turned."
NAMES = ["gpt2", pytest.param("llama", marks=pytest.mark.slow), pytest.param("smollm2", marks=pytest.mark.slow)]


def with_end(folder: Path) -> Path:
    """Return the folder of a tiny decoder, whose tokenizer has an end of text."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    if tokenizer.eos_token is None:
        tokenizer.eos_token = "Ā"  # a byte that no text has
        tokenizer.save_pretrained(folder)
    return folder


@torch.inference_mode()
def plain_states(folder: Path, blocks: list[list[int]], n_before: int) -> np.ndarray:
    """All layers of blocks of ids, without the first of each: [layer, subword, feature]."""
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    states = [torch.cat(model(torch.tensor([ids]), output_hidden_states=True).hidden_states) for ids in blocks]
    return torch.cat([state[:, n_before:] for state in states], 1).numpy()


@pytest.mark.parametrize("context", ["document", 12])
@pytest.mark.parametrize("name", NAMES)
def test_each_context_begins_with_bos(name: str, context: Any, decoders: Any, tmp_path: Path) -> None:  # noqa: F811
    folder = with_end(decoders(name))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    bos = tokenizer.bos_token_id if tokenizer.bos_token else tokenizer.eos_token_id
    size = len(ids) if context == "document" else context - 1
    expected = plain_states(folder, [[bos, *ids[at : at + size]] for at in range(0, len(ids), size)], 1)
    options = es.ExtractionOptions(unit="subword", context=context, begin="always", dtype="float32")
    store = es.extract(es.plan([TEXT], model=folder, options=options), tmp_path / "store.zarr")
    assert store.index.text.ids.tolist() == ids
    assert store.metadata.model["name"] == f"bos:{folder.name}"
    assert store.metadata.extraction["begin"] == "always"
    scale = np.maximum.accumulate(np.abs(expected).max((1, 2)))
    assert (np.abs(store.select().vectors() - expected).max((1, 2)) / scale).max() < 2e-5


@pytest.mark.parametrize("unit", ["subword", "word"])
@pytest.mark.parametrize("name", NAMES)
def test_documents_are_packed_as_sparse_autoencoders_are_trained(
    name: str,
    unit: Any,
    decoders: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    folder, size = with_end(decoders(name)), 12
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    bos = tokenizer.bos_token_id if tokenizer.bos_token else tokenizer.eos_token_id
    texts = [TEXT, "Short.", TEXT[30:], "A boat\nturned on the river"]
    given = tokenizer(texts, add_special_tokens=False)["input_ids"]
    stream = [number for ids in given for number in [bos, *ids]][1:]
    own = [not is_separator for ids in given for is_separator in [True, *(False for _ in ids)]][1:]
    blocks = [[bos, *stream[at : at + size - 1]] for at in range(0, len(stream), size - 1)]
    expected = plain_states(folder, blocks, 1)
    options = es.ExtractionOptions.like("saelens", context=size, unit=unit, dtype="float32")
    documents = [es.corpus.Document(text) for text in texts]
    store = es.extract(es.plan(documents, model=folder, options=options), tmp_path / "a.zarr")
    index = store.index
    assert index.text.ids.tolist() == stream
    assert [index.text.document(*run) for run in pairwise(np.searchsorted(index.document, range(5)))] == texts
    scale = np.maximum.accumulate(np.abs(expected).max((1, 2)))
    if unit == "subword":
        expected = expected[:, own]
        assert store.table(columns=["token"])["token"].to_list() == [number for ids in given for number in ids]
    else:  # of a word that is divided by a block the part that begins in it
        start, stop = index.subword_spans(np.arange(store.n_rows))
        stop = np.minimum(stop, (start // (size - 1) + 1) * (size - 1))
        expected = np.stack([expected[:, a:b].mean(1) for a, b in zip(start, stop, strict=True)], 1)
    assert (np.abs(store.select().vectors() - expected).max((1, 2)) / scale).max() < 2e-5
    assert es.verify(store.path).ok
    with pytest.raises(StoreMismatchError, match=r"extraction.begin 'always', this plan has None"):
        es.plan(
            documents, model=folder / "none", options=es.ExtractionOptions(unit=unit, context=size), store=store.path
        )


def test_a_query_begins_as_the_store_does(decoders: Any, tmp_path: Path) -> None:  # noqa: F811
    folder = with_end(decoders("gpt2"))
    plan = es.plan([TEXT], model=folder, options=es.ExtractionOptions(begin="always", context="document"))
    store = es.extract(plan, tmp_path / "store.zarr")
    found = es.neighbors(store, TEXT.replace("mat", "[mat]"), layers=-1, k=1, model=folder)
    assert found["score"][0] == pytest.approx(1, abs=1e-5), "found again by the model's plain name"
    assert es.analysis.encoder_of(store, folder).special_ids[0] == es.load_encoder(f"bos:{folder}").special_ids[0]


def test_none_leaves_special_tokens_out(decoders: Any) -> None:  # noqa: F811
    folder = decoders("bert")
    options = es.ExtractionOptions(begin="none", context="document")
    assert es.plan([TEXT], model=folder).encoder.n_specials == 2
    assert es.plan([TEXT], model=folder, options=options).encoder.n_specials == 0
    assert es.load_encoder(f"nobos:{folder}").n_specials == 0


def test_what_cannot_begin_so_is_refused(decoders: Any, tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(InvalidValueError, match="load the encoder as bos:NAME"):
        es.plan([TEXT], model=es.load_encoder("random:4"), options=es.ExtractionOptions(begin="always"))
    with pytest.raises(ModelError, match="has no token that begins a text: leave out bos:"):
        es.load_encoder(f"bos:{decoders('bert')}")
    with pytest.raises(ModelError, match="has no token eos between documents: leave out pack"):
        es.plan([TEXT], model=decoders("bert"), options=es.ExtractionOptions(context=32, pack="eos"))
    with pytest.raises(InvalidValueError, match="pack eos does not go with context document"):
        es.ExtractionOptions(context="document", pack="eos")
    with pytest.raises(InvalidValueError, match="there is no preset 'nnsight'"):
        es.ExtractionOptions.like("nnsight")  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="there is no model folder"):
        es.load_encoder(f"bos:{tmp_path}/none")
