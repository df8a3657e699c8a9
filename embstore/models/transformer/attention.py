"""Compare the attention of two models: the cosine of their self-attention weights over a corpus, head by head."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.arguments import checked
from embstore.corpus import Corpus, open_corpus
from embstore.devices import choose_device, torch_threads
from embstore.errors import InvalidValueError, ModelError, check_whole
from embstore.models.batching import make_batches
from embstore.models.checkpoint import load
from embstore.models.transformer.network import Network
from embstore.progress import Progress, reporting

if TYPE_CHECKING:
    import polars as pl

BATCH_SUBWORDS = {"cpu": 2048, "cuda": 8192}


@checked
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
    check_whole("max length", max_length, 1)
    for name, value in (("sentences", n_sentences), ("batch of subwords", batch_subwords)):
        if value is not None:
            check_whole(name, value, 1)
    check_whole("seed", seed, 0, 2**32 - 1)
    where = choose_device(device)
    opened = open_corpus(corpus)
    with torch_threads(threads), reporting(progress, unit="sentences", label="attention") as report:
        first, second = (_load(model, where, max_length) for model in (model_a, model_b))
        shape = _common_shape(first, second)
        ids, starts, lengths = _sentences(opened, first, max_length=max_length, count=n_sentences, seed=seed)
        sums, done = np.zeros((3, *shape)), 0
        size = batch_subwords or BATCH_SUBWORDS.get(where.type, 2048)
        for batch in make_batches(lengths + first.inputs.specials.count, how="padded", batch_subwords=size):
            chosen = starts[batch.sentences], lengths[batch.sentences]
            inputs = [network.inputs.batch(batch, ids, *chosen, "padded") for network in (first, second)]
            one, two = _weights(first, inputs[0], shape), _weights(second, inputs[1], shape)
            sums += _products(one, two, inputs[0]["attention_mask"].bool())
            done += len(batch.sentences)
            report(done, len(lengths))
    return _frame(sums)


def _load(model: str | Path, device: torch.device, max_length: int) -> Network:
    """Load a model that returns its attention weights; raises InvalidValueError if it is too short for `max_length`."""
    network = Network(
        load(model, device=device, dtype=torch.float32, revision=None), device=device, dtype=torch.float32
    )
    specials, limit = network.inputs.specials.count, network.info.max_subwords
    if max_length <= specials:
        raise InvalidValueError(f"max length is {max_length}: {specials} special subwords leave no space for a word")
    if limit is not None and max_length > limit + specials:
        raise InvalidValueError(
            f"max length is {max_length}; {network.info.name!r} accepts at most {limit + specials} subwords"
        )
    try:
        network.model.set_attn_implementation("eager")
    except Exception as error:
        raise ModelError(f"the model {network.info.name!r} returns no attention weights: {error}") from error
    return network


def _common_shape(first: Network, second: Network) -> tuple[int, int]:
    """Return the numbers of layers and heads; raises ModelError if the models cannot be compared."""
    names = f"{first.info.name!r} and {second.info.name!r}"
    shape = []
    for what, key in (("layers", "num_hidden_layers"), ("heads", "num_attention_heads")):
        one, other = (getattr(network.model.config, key, None) for network in (first, second))
        if not isinstance(one, int) or one != other:
            raise ModelError(f"{names} have {one} and {other} {what}: compare models of one shape")
        shape.append(one)
    if first.info.tokenizer_sha256 != second.info.tokenizer_sha256:
        raise ModelError(f"{names} have different tokenizers: compare models with the same tokenizer")
    return shape[0], shape[1]


def _sentences(
    corpus: Corpus, network: Network, *, max_length: int, count: int | None, seed: int
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Return subwords without special ones, and the start and the length of each sentence that has any."""
    words = [sentence.words for sentence in corpus]
    if count is not None and count < len(words):
        chosen = np.random.default_rng(seed).choice(len(words), count, replace=False)
        words = [words[index] for index in np.sort(chosen)]
    tokenized = network.tokenizer.tokenize(words)
    starts, stops = tokenized.sentence_bounds[:-1], tokenized.sentence_bounds[1:]
    mask = stops > starts
    if not mask.any():
        raise InvalidValueError(f"{corpus.name}: no sentence has a subword that {network.info.name!r} knows")
    lengths = np.minimum(stops - starts, max_length - network.inputs.specials.count)
    return tokenized.ids, starts[mask], lengths[mask]


@torch.inference_mode()
def _weights(network: Network, inputs: dict[str, Any], shape: tuple[int, int]) -> tuple[torch.Tensor, ...]:
    """Return for each layer its weights [sentences, heads, queries, keys]."""
    layers = network.model(**inputs, output_attentions=True).attentions
    if layers is None or len(layers) != shape[0] or layers[0].ndim != 4 or layers[0].shape[1] != shape[1]:
        raise ModelError(f"the model {network.info.name!r} returns no attention weights by layer and head")
    return tuple(layers)


def _products(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor], mask: torch.Tensor) -> NDArray[np.float64]:
    """Return the sums of a.b, a.a and b.b over a batch: float64 [3, n_layers, n_heads].

    `mask`: bool [sentences, positions], False for padding.
    """
    padding = ~(mask[:, None, :, None] & mask[:, None, None, :])
    dtype = torch.float32 if mask.device.type == "mps" else torch.float64  # Apple GPUs have no float64
    sums = []
    for a, b in zip(first, second, strict=True):
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
