"""Compare the attention of two models: the cosine of their self-attention weights over a corpus, head by head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from embstore.analysis.attention.maps import Maps
from embstore.analysis.attention.measure import BATCH_SUBWORDS, Held, Pass, Reader, frame_of
from embstore.analysis.attention.statistic import Statistic, Values
from embstore.arguments import Count, Positive, checked
from embstore.config import settings
from embstore.corpus import Corpus, open_corpus
from embstore.devices import choose_device, torch_threads
from embstore.errors import ModelError
from embstore.models.transformer.attention import load_attention_model
from embstore.progress import reporting
from embstore.store import Store

if TYPE_CHECKING:
    import polars as pl


@checked
def attention_similarity(
    corpus: str | Path | Corpus | Store | Sequence[Any],
    *,
    model_a: str | Path,
    model_b: str | Path,
    max_length: Positive = 128,
    n_sentences: Positive | None = None,
    seed: Count = 0,
) -> pl.DataFrame:
    """Compare the self-attention weights of two models, as Figure 7 of Zhao et al. 2020 does.

    Returns a frame `layer, head, value`: the cosine of all the weights of a head in one model with those in the other,
    flattened over the sentences of the corpus. Layer l is the attention of block l, from 1, like the hidden states that
    it computes; heads count from 0, as in transformers. The other arguments are those of `attention`.

    Sums are in float64 and maps are not stored, so memory does not grow with the corpus; padding is left out.
    Raises ModelError if the models differ in layers, heads or tokenizer, or return no weights.
    """
    where = choose_device(settings().device)
    opened = corpus if isinstance(corpus, Store) else open_corpus(corpus)
    progress = reporting(settings().progress, unit="sentences", label="attention")
    with torch_threads(settings().threads), progress as report:
        first, second = (load_attention_model(model, device=where) for model in (model_a, model_b))
        names = f"{first.info.name!r} and {second.info.name!r}"
        for what, one, other in (("layers", first.n_layers, second.n_layers), ("heads", first.n_heads, second.n_heads)):
            if one != other:
                raise ModelError(f"{names} have {one} and {other} {what}: compare models of one shape")
        if first.info.tokenizer_sha256 != second.info.tokenizer_sha256:
            raise ModelError(f"{names} have different tokenizers: compare models with the same tokenizer")
        reader = Reader(opened, first, max_length=max_length, n_sentences=n_sentences, seed=seed)
        held = Held()
        cosines = _Cosines(held.values)
        first_pass = Pass(first, [held], layers=None, heads=None)
        second_pass = Pass(second, [cosines], layers=None, heads=None)
        for tokens, batch, inputs in reader.batches(BATCH_SUBWORDS.get(where.type, 2048)):
            held.values.clear()
            first_pass.add(tokens, batch, inputs)
            second_pass.add(tokens, batch, inputs)
            report(reader.n_done, reader.total)
    return frame_of([cosines], second_pass.shape).select("layer", "head", "value")


class _Cosines(Statistic):
    """Sums of a.b, a.a and b.b of maps a, and `others` b of the same batch."""

    def __init__(self, others: list[torch.Tensor]) -> None:
        super().__init__()
        self.others = others

    def update(self, maps: Maps) -> None:
        a, b = maps.values, self.others[maps.layer]
        dtype = torch.float32 if a.device.type == "mps" else torch.float64  # Apple GPUs have no float64
        sums = [(x * y).sum((0, 2, 3), dtype=dtype) for x, y in ((a, b), (a, a), (b, b))]
        self.add("products", maps.layer, torch.stack(sums))

    def results(self) -> Iterator[Values]:
        both, one, other = self.sums["products"].transpose(1, 0, 2)
        yield Values("cosine", "", both / np.sqrt(one * other), count=0)
