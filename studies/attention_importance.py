"""How much the attention to [SEP] matters to a language model: gradients of its loss (Clark et al. 2019, Figure 3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.analysis.attention.maps import Maps, Shape, Tokens
from embstore.analysis.attention.measure import Reader, frame_of
from embstore.analysis.attention.statistic import Statistic, Values
from embstore.arguments import checked
from embstore.corpus import Corpus, open_corpus
from embstore.devices import choose_device, torch_threads
from embstore.models.transformer.language import LanguageModel, load_language_model
from embstore.progress import Progress, reporting
from embstore.store import Store

if TYPE_CHECKING:
    import polars as pl

BATCH_SUBWORDS = 1024
MASKED = 0.15  # of the subwords of a sentence, as in the training of BERT
KINDS = ("cls", "sep", "period_comma")


@checked
def attention_importance(
    corpus: str | Path | Corpus | Store | Sequence[Any],
    *,
    model: str | Path,
    n_sentences: int | None = None,
    max_length: int | None = None,
    seed: int = 0,
    batch_subwords: int = BATCH_SUBWORDS,
    device: str = "auto",
    threads: int | None = None,
    progress: Progress = None,
) -> pl.DataFrame:
    """Measure how much a language model's loss depends on the attention to [SEP] and to other subwords.

    Returns the frame of `attention` with the metric `importance` and the items `cls`, `sep`, `period_comma`, `other`:
    of each head the mean of |d loss / d a| over the pairs of a query and a key of that kind, where a is the attention
    of the query to the key and the loss is of one sentence. Of a masked language model it is the mean cross-entropy of
    15 % of the sentence's subwords (at least one), chosen with the `seed` and replaced by the mask; of a causal one
    that of each subword after those before it. A pair that a causal model masks does not count. Clark et al. 2019 take
    the gradient of the loss of masked language modeling; these details are ours.

    The other arguments are those of `attention`. Raises ModelError for a model without a language modeling head.
    """
    where = choose_device(device)
    source = corpus if isinstance(corpus, Store) else open_corpus(corpus)
    with torch_threads(threads), reporting(progress, unit="sentences", label="importance") as report:
        lm = load_language_model(model, device=where)
        reader = Reader(source, lm.attention, max_length=max_length, n_sentences=n_sentences, seed=seed)
        found = _Importance()
        specials, n_layers, n_heads = lm.attention.network.inputs.specials, lm.attention.n_layers, lm.attention.n_heads
        around = len(specials.prefix), len(specials.suffix)
        found.begin(Shape(tuple(range(1, n_layers + 1)), tuple(range(n_heads)), lm.mask_id is None, *around))
        for tokens, _, inputs in reader.batches(batch_subwords):
            for layer, gradient in enumerate(_gradients(lm, tokens, inputs, seed=seed)):
                found.update(Maps(gradient, tokens, layer=layer, last=layer == n_layers - 1))
            report(reader.n_done, reader.total)
    return frame_of([found], found.shape)


def _gradients(lm: LanguageModel, tokens: Tokens, inputs: dict[str, Any], *, seed: int) -> Sequence[torch.Tensor]:
    """Return by layer the derivatives of each sentence's loss: [sentences, heads, queries, keys]."""
    ids = inputs["input_ids"]
    predicted = _predicted(tokens, seed=seed, masked=lm.mask_id is not None)
    chosen = torch.from_numpy(predicted).to(ids.device)
    if lm.mask_id is not None:
        inputs = inputs | {"input_ids": ids.masked_fill(chosen, lm.mask_id)}
    with torch.enable_grad():
        out = lm.network(**inputs, output_attentions=True)
        rows, places = chosen.nonzero(as_tuple=True)
        logits = out.logits[rows, places if lm.mask_id is not None else places - 1]
        losses = torch.nn.functional.cross_entropy(logits.float(), ids[rows, places], reduction="none")
        loss = (losses / chosen.sum(1)[rows]).sum()  # sentences do not meet: the gradient of each is its own
        return tuple(torch.autograd.grad(loss, out.attentions))


def _predicted(tokens: Tokens, *, seed: int, masked: bool) -> NDArray[np.bool_]:
    """Return which positions are predicted: bool [sentences, positions], all but the first or those masked."""
    found = np.zeros(tokens.words.shape, np.bool_)
    for row, (number, length) in enumerate(zip(tokens.numbers.tolist(), tokens.lengths.tolist(), strict=True)):
        body = np.arange(tokens.n_before, length - tokens.n_after)
        body = body[(body < tokens.pairs[row, 0]) | (body >= tokens.pairs[row, 1])]
        if masked:
            rng = np.random.default_rng((seed, number))
            body = rng.choice(body, max(1, round(MASKED * len(body))), replace=False)
        found[row, body[body > 0]] = True
    return found


class _Importance(Statistic):
    """Sums of absolute derivatives, given as maps, by kind of key."""

    def update(self, maps: Maps) -> None:
        tokens = maps.tokens
        # a causal model predicts nothing in a sentence of one position
        predicts = tokens.lengths - tokens.n_after > self.shape.causal
        inside = (np.arange(tokens.n_positions) < tokens.lengths[:, None]) & predicts[:, None]
        allowed = inside[:, :, None] & inside[:, None, :]
        if self.shape.causal:
            allowed &= np.tri(tokens.n_positions, dtype=np.bool_)
        kinds = {name: tokens.kinds[name] & inside for name in KINDS}
        kinds["other"] = inside & ~np.any(list(kinds.values()), axis=0)
        columns = (maps.values.abs() * torch.from_numpy(allowed).to(maps.values.device)[:, None]).sum(2).cpu().numpy()
        for name, mask in kinds.items():
            self.add(name, maps.layer, np.einsum("shk,sk->h", columns, mask, dtype=np.float64))
            self.add(f"pairs {name}", maps.layer, (allowed.sum(1) * mask).sum())

    def results(self) -> Iterator[Values]:
        for name in (*KINDS, "other"):
            if count := float(self.sums[f"pairs {name}"][0]):
                yield Values("importance", name, self.sums[name] / count, count=count)
