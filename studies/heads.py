"""Which attention heads a fine-tuned model needs: disabled heads and layers, importance by gradient, pruning."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import torch
import transformers
from numpy.typing import NDArray
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from embstore_studies.finetuning import (
    NO_LABEL,
    TASKS,
    Collator,
    encode,
    read_items,
    read_record,
    sampled,
    sentence_counts,
)
from embstore_studies.study import quiet

Head = tuple[int, int]  # layer from 1, head from 0
How = Literal["uniform", "zero"]
BATCH = 16  # sentences, sorted by length, so that little is padding
CHUNK = 100  # resamples at a time
CONFIDENCE = 0.95
TENTHS = 10


class HeadNetwork:
    """A model that `finetune` saved, whose heads can be disabled or weighted in a forward pass.

    The attention is computed by a function that is registered with transformers. `data`: labeled data in the format of
    the task; `n_sentences` of them are drawn at random.
    """

    def __init__(self, model: str | Path, data: str | Path, *, n_sentences: int | None, seed: int) -> None:
        record = read_record(model)
        self.task, self.metric = record["task"], TASKS[record["task"]].metric
        AttentionInterface.register("embstore_heads", self._attend)
        AttentionMaskInterface.register("embstore_heads", eager_mask)
        options = {"dtype": torch.float32, "attn_implementation": "embstore_heads"}
        with quiet():
            self.network: Any = transformers.AutoModelForTokenClassification.from_pretrained(model, **options)
        self.network.eval().requires_grad_(False)
        config = self.network.config
        self.layers = tuple(range(1, config.num_hidden_layers + 1))
        self.heads = tuple((layer, head) for layer in self.layers for head in range(config.num_attention_heads))
        self._disabled: Collection[Head] = ()
        self._how: How = "zero"
        self._weights: dict[int, torch.Tensor] | None = None
        self._called = 0
        items = sampled(read_items(self.task, Path(data)), n_sentences, seed)
        others = {label for item in items for label in item.labels if label is not None} - set(record["labels"])
        self.names = [*record["labels"], *sorted(others)]
        prefix = TASKS[self.task].n_sentences == 0
        tokenizer = transformers.AutoTokenizer.from_pretrained(model, add_prefix_space=prefix)
        settings = record["settings"]
        encoded = encode(tokenizer, items, self.names, self.task, settings["max_length"])
        self.examples = sorted(encoded, key=lambda example: len(example["input_ids"]))
        self._collator = Collator(tokenizer.pad_token_id or 0, settings["attention_window"])

    @property
    def n_labels(self) -> int:
        return sum(label != NO_LABEL for example in self.examples for label in example["labels"])

    def _attend(
        self, module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float | None = None, **_: Any
    ) -> Any:
        self._called += 1
        layer, n_heads = (self._called - 1) % len(self.layers) + 1, query.shape[1]
        kept = torch.ones(n_heads, 1, 1)
        kept[[head for of, head in self._disabled if of == layer]] = 0
        if self._how == "uniform":
            query = query * kept  # scores of 0: all weights are the same
        repeats = n_heads // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        weights = torch.softmax(scores if mask is None else scores + mask[..., : key.shape[2]], -1)
        output = weights @ value
        if self._how == "zero":
            output = output * kept
        if self._weights is not None:
            self._weights[layer] = torch.ones(output.shape[:2], requires_grad=True)
            output = output * self._weights[layer][..., None, None]
        return output.transpose(1, 2).contiguous(), weights

    def _batches(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        for start in range(0, len(self.examples), BATCH):
            inputs = self._collator(self.examples[start : start + BATCH])
            yield inputs, inputs.pop("labels")

    @torch.inference_mode()
    def counts(self, variants: Sequence[Collection[Head]], how: How) -> NDArray[np.int64]:
        """Return the counts of each sentence without the heads of each variant: int64 [variants, sentences, 3]."""
        distinct = list(dict.fromkeys(frozenset(heads) for heads in variants))
        parts = []
        for inputs, labels in self._batches():
            found = []
            for self._disabled in distinct:
                self._how, self._called = how, 0
                predicted = self.network(**inputs).logits.argmax(-1).numpy()
                found.append(sentence_counts(self.metric, self.names, labels.numpy(), predicted))
            parts.append(np.stack(found))
        self._disabled = ()
        return np.concatenate(parts, 1)[[distinct.index(frozenset(heads)) for heads in variants]]

    def gradients(self) -> NDArray[np.float64]:
        """Return |d loss / d weight| of each head for each sentence: float64 [sentences, layers, heads].

        The loss of a sentence is the mean over its labels; labels that the model does not have are left out.
        """
        parts = []
        for inputs, labels in self._batches():
            self._weights, self._called = {}, 0
            logits = self.network(**inputs).logits
            known = labels.masked_fill(labels >= logits.shape[-1], NO_LABEL)
            losses = torch.nn.functional.cross_entropy(
                logits.transpose(1, 2), known, ignore_index=NO_LABEL, reduction="none"
            )
            loss = (losses.sum(1) / (known != NO_LABEL).sum(1).clamp_min(1)).sum()
            gradients = torch.autograd.grad(loss, [self._weights[layer] for layer in self.layers])
            parts.append(torch.stack(gradients, 1).abs().double().numpy())
        self._weights = None
        return np.concatenate(parts)


def disable_heads(
    data: str | Path,
    *,
    model: str | Path,
    how: How = "uniform",
    n_sentences: int | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> pl.DataFrame:
    """Measure the effect of disabling each head, and all heads of each layer, on the score of a fine-tuned model.

    "uniform" sets the weights of a head to a constant (Kovaleva et al. 2019, section 4.6), "zero" its output to 0
    (Michel et al. 2019). Returns a frame `layer, head, metric, value, effect, low, high, clear, count`. The first row,
    without a layer, is the whole model; a row without a head is a layer without all of its heads. `effect`: the score
    less that of the whole model; `low`, `high`: a 95 % interval of it, by a paired bootstrap over sentences, that holds
    for all rows together; `clear`: whether it excludes 0. `count`: labels.
    """
    network = HeadNetwork(model, data, n_sentences=n_sentences, seed=seed)
    variants: dict[tuple[int | None, int | None], Collection[Head]] = {(None, None): ()}
    variants |= {head: [head] for head in network.heads}
    variants |= {(layer, None): [head for head in network.heads if head[0] == layer] for layer in network.layers}
    rows = pl.DataFrame(list(variants), {"layer": pl.Int64, "head": pl.Int64}, orient="row")
    return _frame(rows, network, list(variants.values()), how, resamples, seed)


def head_importance(
    data: str | Path, *, model: str | Path, n_sentences: int | None = None, resamples: int = 1000, seed: int = 0
) -> pl.DataFrame:
    """Measure the importance of each head of a fine-tuned model by the gradient of its loss (Michel et al. 2019).

    I_h = E_x |Att_h(x)^T dL(x)/dAtt_h(x)|, the mean over sentences x of the absolute derivative of the loss by a weight
    of 1 that the head's output is multiplied by; divided by the l2 norm of its layer. Returns a frame `layer, head,
    value, low, high, raw, count`: the normalised importance with a 95 % interval by a bootstrap over sentences, the
    mean before it was normalised, and the number of sentences.
    """
    network = HeadNetwork(model, data, n_sentences=n_sentences, seed=seed)
    gradients = network.gradients()
    raw, n = gradients.mean(0), len(gradients)

    def normalised(importance: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(importance / np.maximum(np.sqrt((importance**2).sum(-1, keepdims=True)), 1e-30))

    low = high = np.full_like(raw, np.nan)
    if resamples and n > 1:  # else every sample would be that sentence
        parts = [np.tensordot(drawn, gradients, 1) / n for drawn in resampled(n, resamples, seed)]
        low, high = np.quantile(normalised(np.concatenate(parts)), [0.025, 0.975], axis=0)
    columns = {"value": normalised(raw), "low": low, "high": high, "raw": raw}
    layers, heads = zip(*network.heads, strict=True)
    return pl.DataFrame(
        {"layer": layers, "head": heads, **{name: values.ravel() for name, values in columns.items()}}
    ).with_columns(pl.col("low", "high").fill_nan(None), count=pl.lit(n, pl.Int64))


def prune_heads(
    data: str | Path,
    *,
    model: str | Path,
    importance: pl.DataFrame,
    seeds: Sequence[int] = (0, 1, 2),
    n_sentences: int | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> pl.DataFrame:
    """Set the output of more and more heads to 0, the least important first, and score what remains.

    As in section 4 of Michel et al. 2019: heads of all layers in the order of `importance`, the frame of
    `head_importance`, at every tenth of the heads; without training in between. Each of `seeds` gives a random order to
    compare with. Returns a frame `order, seed, share, n_disabled` and the columns of `disable_heads`: `order` is
    "importance" or "random", `share` goes from 0 to 1.
    """
    network = HeadNetwork(model, data, n_sentences=n_sentences, seed=seed)
    ranked = [(layer, head) for layer, head in importance.sort("value").select("layer", "head").iter_rows()]
    orders: list[tuple[str, int | None, list[Head]]] = [("importance", None, ranked)]
    for each in seeds:
        shuffled = np.random.default_rng(each).permutation(np.array(network.heads)).tolist()
        orders.append(("random", each, [(layer, head) for layer, head in shuffled]))
    n_heads = len(network.heads)
    sizes = [round(n_heads * tenth / TENTHS) for tenth in range(TENTHS + 1)]
    rows: list[tuple[Any, ...]] = [(None, None, None, None)]  # the whole model, with which the others are compared
    rows += [(order, of_order, size / n_heads, size) for order, of_order, _ in orders for size in sizes]
    variants: list[Collection[Head]] = [(), *(heads[:size] for _, _, heads in orders for size in sizes)]
    schema = {"order": pl.String, "seed": pl.Int64, "share": pl.Float64, "n_disabled": pl.Int64}
    frame = pl.DataFrame(rows, schema, orient="row")
    return _frame(frame, network, variants, "zero", resamples, seed)[1:]


def _frame(
    rows: pl.DataFrame,
    network: HeadNetwork,
    variants: Sequence[Collection[Head]],
    how: How,
    resamples: int,
    seed: int,
) -> pl.DataFrame:
    """Add the score of each variant, and its effect next to the first one."""
    counts = network.counts(variants, how)
    effect, low, high = effects(counts, resamples=resamples, seed=seed)
    return rows.with_columns(
        metric=pl.lit(network.metric),
        value=score(counts.sum(1)),
        effect=effect,
        low=pl.Series(low).fill_nan(None),
        high=pl.Series(high).fill_nan(None),
        clear=(low > 0) | (high < 0),
        count=pl.lit(network.n_labels, pl.Int64),
    )


def score(counts: NDArray[np.number]) -> NDArray[np.float64]:
    """Return accuracies, or micro F1, of summed counts [..., 3]; 0 where nothing is gold or predicted."""
    result: NDArray[np.float64] = 2 * counts[..., 0] / np.maximum(counts[..., 1] + counts[..., 2], 1)
    return result


def resampled(n_sentences: int, resamples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """Yield how often each sentence is drawn in some bootstrap samples: float64 [samples, sentences]."""
    draws = np.random.default_rng(seed)
    share = np.full(n_sentences, 1 / n_sentences)
    for start in range(0, resamples, CHUNK):
        yield draws.multinomial(n_sentences, share, size=min(CHUNK, resamples - start)).astype(np.float64)


def effects(
    counts: NDArray[np.int64], *, resamples: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the effect of each variant on the score with simultaneous 95 % intervals.

    `counts`: int64 [variants, sentences, 3]; the first variant is the whole model, with which the others are compared.
    The intervals are from a paired bootstrap over sentences: effect - c s and effect + c s, where s is the deviation
    over the samples and c the .95 quantile of the largest |effect of the sample - effect| / s of all variants. So in
    95 % of cases all intervals hold together, however many heads are compared. They are NaN without samples, of a
    single sentence, and where an effect other than 0 is the same in all samples.
    """
    n_variants, n_sentences, _ = counts.shape
    values = score(counts.sum(1))
    effect = values - values[0]
    if not resamples or n_sentences < 2:
        return effect, effect * np.nan, effect * np.nan
    flat = counts.transpose(1, 0, 2).reshape(n_sentences, -1).astype(np.float64)
    parts = [score((drawn @ flat).reshape(-1, n_variants, 3)) for drawn in resampled(n_sentences, resamples, seed)]
    sampled = np.concatenate(parts)
    deviations = sampled - sampled[:, :1] - effect
    spread = deviations.std(0)
    varies = spread > 1e-12
    ratio = np.abs(deviations[:, varies]) / spread[varies]
    widest = float(np.quantile(ratio.max(1), CONFIDENCE)) if varies.any() else 0.0
    reach = np.where(varies | (effect == 0), widest * spread, np.nan)
    return effect, effect - reach, effect + reach
