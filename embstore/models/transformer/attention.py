"""Compare the attention of two models: the cosine of their self-attention weights over a corpus, head by head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.corpus import Corpus, open_corpus
from embstore.devices import choose_device, torch_threads
from embstore.errors import InvalidValueError, ModelError
from embstore.models.checkpoint import Loaded, load
from embstore.models.transformer.probing import forward_parameters, padding_id
from embstore.models.transformer.tokens import SubwordTokenizer
from embstore.progress import Progress, reporting

if TYPE_CHECKING:
    import polars as pl

BATCH_SUBWORDS = {"cpu": 2048, "cuda": 8192}


def attention_similarity(
    corpus: str | Path | Corpus | Sequence[Any],
    *,
    model_a: str | Path,
    model_b: str | Path,
    max_length: int = 128,
    n_sentences: int | None = None,
    seed: int = 0,
    device: str = "auto",
    threads: int | None = None,
    batch_subwords: int | None = None,
    progress: Progress = None,
) -> pl.DataFrame:
    """Compare the self-attention weights of two models, as Figure 7 of Zhao et al. 2020 does.

    Returns a frame `layer, head, value`: the cosine of all the weights of a head in one model with those in the other,
    flattened over the sentences of the corpus. Layer l is the attention of block l, from 1, like the hidden states that
    it computes; heads count from 0, as in transformers. `corpus`: whatever `open_corpus` reads. `max_length`: subwords
    of a sentence, special ones included; the rest is cut. `n_sentences`: how many are chosen at random; None: all.
    `threads`: CPU threads. `progress`: called with (sentences done, of how many).

    Sums are in float64 and weights are not stored, so memory does not grow with the corpus; padding is left out.
    Raises ModelError if the models differ in layers, heads or tokenizer, or return no weights.
    """
    for name, value in (("max length", max_length), ("sentences", n_sentences), ("batch of subwords", batch_subwords)):
        if value is not None and value < 1:
            raise InvalidValueError(f"{name} is {value}; it must be 1 or more")
    if not 0 <= seed < 2**32:
        raise InvalidValueError(f"the seed is {seed}; it must be 0 or more and below 2**32")
    where = choose_device(device)
    opened = open_corpus(corpus)
    with torch_threads(threads), reporting(progress, unit="sentences", label="attention") as report:
        first, second = (_AttentionModel.load(model, where) for model in (model_a, model_b))
        _require_comparable(first, second)
        first.require_length(max_length)
        second.require_length(max_length)
        ids = _sentences(opened, first, max_length=max_length, count=n_sentences, seed=seed)
        sums = np.zeros((3, first.n_layers, first.n_heads))
        done = 0
        for batch in _batches(ids, batch_subwords or BATCH_SUBWORDS.get(where.type, 2048), first.n_specials):
            sums += _products(first, second, batch)
            done += len(batch)
            report(done, len(ids))
    return _frame(sums)


@dataclass(frozen=True)
class _AttentionModel:
    """A model that returns its attention weights."""

    loaded: Loaded
    tokenizer: SubwordTokenizer
    device: torch.device
    n_layers: int
    n_heads: int

    @classmethod
    def load(cls, name: str | Path, device: torch.device) -> _AttentionModel:
        loaded = load(name, device=device, dtype=torch.float32, revision=None)
        config = loaded.model.config
        layers, heads = (getattr(config, key, None) for key in ("num_hidden_layers", "num_attention_heads"))
        if not isinstance(layers, int) or not isinstance(heads, int):
            raise ModelError(f"the config of the model {loaded.name!r} has no number of layers or attention heads")
        try:
            loaded.model.set_attn_implementation("eager")
        except Exception as error:
            raise ModelError(f"the model {loaded.name!r} returns no attention weights: {error}") from error
        vocabulary = loaded.model.get_input_embeddings().num_embeddings
        return cls(loaded, SubwordTokenizer(loaded.tokenizer, vocabulary=vocabulary), device, layers, heads)

    @property
    def n_specials(self) -> int:
        return self.tokenizer.specials.count

    def require_length(self, max_length: int) -> None:
        limit = getattr(self.loaded.model.config, "max_position_embeddings", None)
        if max_length <= self.n_specials:
            raise InvalidValueError(
                f"max length is {max_length}: {self.n_specials} special subwords leave no space for a word"
            )
        if isinstance(limit, int) and max_length > limit:
            raise InvalidValueError(
                f"max length is {max_length}; {self.loaded.name!r} accepts at most {limit} subwords"
            )

    @torch.inference_mode()
    def weights(self, batch: Sequence[NDArray[np.int32]], mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return for each layer its weights [sentences, heads, queries, keys].

        `batch`: subwords of sentences without special ones. `mask`: bool [sentences, positions], False for padding.
        """
        model = self.loaded.model
        accepted = forward_parameters(model)
        ids, types = zip(*(self.tokenizer.specials.around(part) for part in batch), strict=True)
        fill = padding_id(model.config, model.get_input_embeddings().num_embeddings)
        inputs = {"attention_mask": mask.long(), "input_ids": _padded(ids, fill).to(self.device)}
        if self.tokenizer.takes_types and "token_type_ids" in accepted:
            inputs["token_type_ids"] = _padded(types, 0).to(self.device)
        fixed = {name: False for name in ("use_cache",) if name in accepted}
        layers = model(**inputs, **fixed, output_attentions=True).attentions
        if layers is None or len(layers) != self.n_layers or layers[0].ndim != 4 or layers[0].shape[1] != self.n_heads:
            raise ModelError(f"the model {self.loaded.name!r} returns no attention weights by layer and head")
        return tuple(layers)


def _require_comparable(first: _AttentionModel, second: _AttentionModel) -> None:
    names = f"{first.loaded.name!r} and {second.loaded.name!r}"
    for what, one, other in (
        ("layers", first.n_layers, second.n_layers),
        ("heads", first.n_heads, second.n_heads),
    ):
        if one != other:
            raise ModelError(f"{names} have {one} and {other} {what}: compare models of one shape")
    if first.tokenizer.sha256() != second.tokenizer.sha256():
        raise ModelError(f"{names} have different tokenizers: compare models with the same tokenizer")


def _padded(arrays: Sequence[NDArray[np.int64]], fill: int) -> torch.Tensor:
    rows = [torch.from_numpy(array) for array in arrays]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=fill)


def _sentences(
    corpus: Corpus, model: _AttentionModel, *, max_length: int, count: int | None, seed: int
) -> list[NDArray[np.int32]]:
    """Return the subwords of sentences without special ones, the shortest first; sentences without any are left out."""
    words = [sentence.words for sentence in corpus]
    if count is not None and count < len(words):
        chosen = np.random.default_rng(seed).choice(len(words), count, replace=False)
        words = [words[index] for index in np.sort(chosen)]
    tokenized = model.tokenizer.tokenize(words)
    limit = max_length - model.n_specials
    parts = [tokenized.ids[start:stop][:limit] for start, stop in pairwise(tokenized.sentence_bounds) if stop > start]
    if not parts:
        raise InvalidValueError(f"{corpus.name}: no sentence has a subword that {model.loaded.name!r} knows")
    return sorted(parts, key=len)


def _batches(
    ids: Sequence[NDArray[np.int32]], batch_subwords: int, n_specials: int
) -> Iterator[Sequence[NDArray[np.int32]]]:
    """Yield sentences of similar length that have at most `batch_subwords` positions together, padding included."""
    start = 0
    for stop in range(1, len(ids) + 1):
        if stop == len(ids) or (stop - start + 1) * (len(ids[stop]) + n_specials) > batch_subwords:
            yield ids[start:stop]
            start = stop


def _products(
    first: _AttentionModel, second: _AttentionModel, batch: Sequence[NDArray[np.int32]]
) -> NDArray[np.float64]:
    """Return the sums of a.b, a.a and b.b over a batch: float64 [3, n_layers, n_heads]."""
    lengths = torch.tensor([len(ids) + first.n_specials for ids in batch], device=first.device)
    mask = torch.arange(int(lengths[-1]), device=first.device) < lengths[:, None]
    padding = ~(mask[:, None, :, None] & mask[:, None, None, :])
    dtype = torch.float32 if first.device.type == "mps" else torch.float64  # Apple GPUs have no float64
    sums = []
    for a, b in zip(first.weights(batch, mask), second.weights(batch, mask), strict=True):
        a, b = a.masked_fill(padding, 0), b.masked_fill(padding, 0)
        sums.append(torch.stack([(x * y).sum((0, 2, 3), dtype=dtype) for x, y in ((a, b), (a, a), (b, b))]))
    return np.asarray(torch.stack(sums, dim=1).cpu().numpy(), np.float64)


def _frame(sums: NDArray[np.float64]) -> pl.DataFrame:
    import polars as pl

    both, one, other = sums
    cosines = both / np.sqrt(one * other)
    layers, heads = np.indices(cosines.shape)
    return pl.DataFrame(
        {"layer": layers.ravel() + 1, "head": heads.ravel(), "value": cosines.ravel()},
        schema={"layer": pl.Int64, "head": pl.Int64, "value": pl.Float64},
    )
