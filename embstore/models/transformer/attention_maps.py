"""How alike two models attend: the cosine of their self-attention weights over a corpus, head by head."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.corpus import Corpus, open_corpus
from embstore.devices import choose_device
from embstore.errors import InvalidValueError, ModelError
from embstore.models.loading import Loaded, load, use_threads
from embstore.models.padding import padded, within_specials
from embstore.models.transformer.inputs import forward_parameters
from embstore.models.transformer.tokens import SubwordTokenizer

if TYPE_CHECKING:
    import polars as pl

BATCH_SUBWORDS = {"cpu": 2048, "cuda": 8192}


def attention_similarity(
    model_a: str | Path,
    model_b: str | Path,
    corpus: str | Path | Corpus | Sequence[Any],
    *,
    max_length: int = 128,
    sentences: int | None = None,
    seed: int = 0,
    device: str = "auto",
    threads: int | None = None,
    batch_subwords: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> pl.DataFrame:
    """Compare the self-attention weights of two models, as Figure 7 of Zhao et al. 2020 does.

    Returns a frame `layer, head, value`: the cosine of all the weights of a head in one model with those in the
    other, flattened over the sentences of the corpus. Layer l is the attention of block l, from 1, as the hidden
    states that it leads to are counted; heads count from 0, as in transformers. `corpus`: all that `open_corpus`
    takes. `max_length`: subwords a sentence, special ones included; the rest is cut. `sentences`: how many are
    drawn by the seed, None for all. `progress` is told of sentences done, and of how many.

    The sums are kept in float64 and no weights are, so memory does not grow with the corpus; padding counts for
    nothing. Raises ModelError where the models differ in layers, heads or tokenizer, or give no weights.
    """
    for name, value in (("max length", max_length), ("sentences", sentences), ("batch of subwords", batch_subwords)):
        if value is not None and value < 1:
            raise InvalidValueError(f"{name} is {value}; it must be 1 or more")
    if not 0 <= seed < 2**32:
        raise InvalidValueError(f"the seed is {seed}; it must be 0 or more and below 2**32")
    where = choose_device(device)
    use_threads(threads)
    read = open_corpus(corpus)
    first, second = (_Attending.of(model, where) for model in (model_a, model_b))
    _require_alike(first, second)
    first.require_length(max_length)
    second.require_length(max_length)
    ids = _sentences(read, first, max_length=max_length, count=sentences, seed=seed)
    sums = torch.zeros(3, first.layers, first.heads, dtype=torch.float64, device=where)
    done = 0
    size, specials = batch_subwords or BATCH_SUBWORDS.get(where.type, 2048), first.tokenizer.specials.count
    for batch in _batches(ids, size, specials):
        sums += _products(first, second, batch)
        done += len(batch)
        if progress is not None:
            progress(done, len(ids))
    return _frame(sums.cpu().numpy())


@dataclass(frozen=True)
class _Attending:
    """A model that gives its attention weights."""

    loaded: Loaded
    tokenizer: SubwordTokenizer
    device: torch.device
    layers: int
    heads: int

    @classmethod
    def of(cls, name: str | Path, device: torch.device) -> _Attending:
        loaded = load(name, device=device, dtype=torch.float32, revision=None)
        config = loaded.model.config
        layers, heads = (getattr(config, key, None) for key in ("num_hidden_layers", "num_attention_heads"))
        if not isinstance(layers, int) or not isinstance(heads, int):
            raise ModelError(f"the model {loaded.name!r} does not say how many layers and attention heads it has")
        try:
            loaded.model.set_attn_implementation("eager")
        except Exception as error:
            raise ModelError(f"the model {loaded.name!r} gives no attention weights: {error}") from error
        subwords = loaded.model.get_input_embeddings().num_embeddings
        return cls(loaded, SubwordTokenizer(loaded.tokenizer, vocabulary=subwords), device, layers, heads)

    def require_length(self, max_length: int) -> None:
        specials = self.tokenizer.specials.count
        limit = getattr(self.loaded.model.config, "max_position_embeddings", None)
        if max_length <= specials:
            raise InvalidValueError(f"max length is {max_length}: {specials} special subwords leave no room for a word")
        if isinstance(limit, int) and max_length > limit:
            raise InvalidValueError(f"max length is {max_length}; {self.loaded.name!r} takes {limit} subwords at most")

    @torch.inference_mode()
    def weights(self, batch: Sequence[NDArray[np.int64]], stands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return for each layer its weights [sentences, heads, queries, keys]; `batch`: subwords without specials."""
        takes = forward_parameters(self.loaded.model)
        padding = getattr(self.loaded.model.config, "pad_token_id", None)
        ids, types = zip(*(within_specials(part, self.tokenizer.specials) for part in batch), strict=True)
        fill = padding if isinstance(padding, int) and padding >= 0 else 0
        inputs = {"attention_mask": stands.long(), "input_ids": padded(ids, fill).to(self.device)}
        if self.tokenizer.takes_types and "token_type_ids" in takes:
            inputs["token_type_ids"] = padded(types, 0).to(self.device)
        fixed = {name: False for name in ("use_cache",) if name in takes}
        given = self.loaded.model(**inputs, **fixed, output_attentions=True).attentions
        if given is None or len(given) != self.layers or given[0].ndim != 4 or given[0].shape[1] != self.heads:
            raise ModelError(f"the model {self.loaded.name!r} gives no attention weights by layer and head")
        return tuple(given)


def _require_alike(first: _Attending, second: _Attending) -> None:
    names = f"{first.loaded.name!r} and {second.loaded.name!r}"
    for what in ("layers", "heads"):
        one, other = getattr(first, what), getattr(second, what)
        if one != other:
            raise ModelError(f"{names} have {one} and {other} {what}: compare models of one shape")
    if first.tokenizer.sha256() != second.tokenizer.sha256():
        raise ModelError(f"{names} have different tokenizers: compare models that split words alike")


def _sentences(
    corpus: Corpus, model: _Attending, *, max_length: int, count: int | None, seed: int
) -> list[NDArray[np.int64]]:
    """The subwords of sentences without the special ones, the shortest first; those without any are left out."""
    words = [sentence.words for sentence in corpus]
    if count is not None and count < len(words):
        chosen = np.random.default_rng(seed).choice(len(words), count, replace=False)
        words = [words[index] for index in np.sort(chosen)]
    tokenized = model.tokenizer.tokenize(words)
    bounds = tokenized.word_indptr[tokenized.sentence_indptr]
    room = max_length - model.tokenizer.specials.count
    parts = [tokenized.ids[start:stop][:room].astype(np.int64) for start, stop in pairwise(bounds) if stop > start]
    if not parts:
        raise InvalidValueError(f"{corpus.name}: no sentence of it has a subword that {model.loaded.name!r} knows")
    return sorted(parts, key=len)


def _batches(ids: Sequence[NDArray[np.int64]], subwords: int, specials: int) -> Iterator[Sequence[NDArray[np.int64]]]:
    """Sentences of about one length together, so many that with padding they have at most so many subwords."""
    start = 0
    for stop in range(1, len(ids) + 1):
        if stop == len(ids) or (stop - start + 1) * (len(ids[stop]) + specials) > subwords:
            yield ids[start:stop]
            start = stop


def _products(first: _Attending, second: _Attending, batch: Sequence[NDArray[np.int64]]) -> torch.Tensor:
    """The sums of a.b, a.a and b.b over a batch, float64 [3, layers, heads]."""
    specials = first.tokenizer.specials.count
    lengths = torch.tensor([len(ids) + specials for ids in batch], device=first.device)
    stands = torch.arange(len(batch[-1]) + specials, device=first.device) < lengths[:, None]
    one, two = first.weights(batch, stands), second.weights(batch, stands)
    empty = ~(stands[:, None, :, None] & stands[:, None, None, :])
    sums = []
    for a, b in zip(one, two, strict=True):
        a, b = a.masked_fill(empty, 0), b.masked_fill(empty, 0)
        sums.append(torch.stack([(x * y).sum((0, 2, 3), dtype=torch.float64) for x, y in ((a, b), (a, a), (b, b))]))
    return torch.stack(sums, dim=1)


def _frame(sums: NDArray[np.float64]) -> pl.DataFrame:
    import polars as pl

    both, one, other = sums
    cosines = both / np.sqrt(one * other)
    layers, heads = np.indices(cosines.shape)
    return pl.DataFrame(
        {"layer": layers.ravel() + 1, "head": heads.ravel(), "value": cosines.ravel()},
        schema={"layer": pl.Int64, "head": pl.Int64, "value": pl.Float64},
    )
