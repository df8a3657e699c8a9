"""Which attention heads a fine-tuned model needs: the effects of disabled heads and layers on its score."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

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
BATCH = 16  # sentences, sorted by length, so that little is padding
ERROR = 0.05  # how often an interval of any head or layer may miss


class HeadNetwork:
    """A model that `finetune` saved, whose heads can be made to attend to all subwords alike.

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
        self._called = 0
        items = sampled(read_items(self.task, Path(data)), n_sentences, seed)
        others = {label for item in items for label in item.labels if label is not None} - set(record["labels"])
        self.names = [*record["labels"], *sorted(others)]
        prefix = TASKS[self.task].n_sentences == 0
        tokenizer = transformers.AutoTokenizer.from_pretrained(model, add_prefix_space=prefix)
        encoded = encode(tokenizer, items, self.names, self.task, record["settings"]["max_length"])
        self.examples = sorted(encoded, key=lambda example: len(example["input_ids"]))
        self._collator = Collator(tokenizer.pad_token_id or 0)

    def _attend(
        self, module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float | None = None, **_: Any
    ) -> Any:
        self._called += 1
        layer, n_heads = (self._called - 1) % len(self.layers) + 1, query.shape[1]
        kept = torch.ones(n_heads, 1, 1)
        kept[[head for of, head in self._disabled if of == layer]] = 0
        query = query * kept  # scores of 0: all weights are the same
        repeats = n_heads // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        weights = torch.softmax(scores if mask is None else scores + mask[..., : key.shape[2]], -1)
        return (weights @ value).transpose(1, 2).contiguous(), weights

    def _batches(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        for start in range(0, len(self.examples), BATCH):
            inputs = self._collator(self.examples[start : start + BATCH])
            yield inputs, inputs.pop("labels")

    @torch.inference_mode()
    def counts(self, variants: Sequence[Collection[Head]]) -> NDArray[np.int64]:
        """Return the counts of each sentence without the heads of each variant: int64 [variants, sentences, 3]."""
        parts = []
        for inputs, labels in self._batches():
            of_batch = []
            for self._disabled in variants:
                self._called = 0
                predicted = self.network(**inputs).logits.argmax(-1).numpy()
                of_batch.append(sentence_counts(self.metric, self.names, labels.numpy(), predicted))
            parts.append(np.stack(of_batch))
        self._disabled = ()
        return np.concatenate(parts, 1)


def disable_heads(
    data: str | Path, *, model: str | Path, n_sentences: int | None = None, seed: int = 0
) -> pl.DataFrame:
    """Measure the effect of disabling each head, and all heads of each layer, on the score of a fine-tuned model.

    A disabled head gives all subwords the same weight (Kovaleva et al. 2019, section 4.6). Returns a frame `layer,
    head, metric, value, effect, low, high, clear, count`. The first row, without a layer, is the whole model; a row
    without a head is a layer without all of its heads. `effect`: the score less that of the whole model; `low`, `high`:
    its interval, see `effects`; `clear`: whether it excludes 0. `count`: labels.
    """
    network = HeadNetwork(model, data, n_sentences=n_sentences, seed=seed)
    variants: dict[tuple[int | None, int | None], Collection[Head]] = {(None, None): ()}
    variants |= {head: [head] for head in network.heads}
    variants |= {(layer, None): [head for head in network.heads if head[0] == layer] for layer in network.layers}
    counts = network.counts(list(variants.values()))
    effect, low, high = effects(counts)
    low[0] = high[0] = 0  # of the whole model, which is compared with itself
    labels = sum(label != NO_LABEL for example in network.examples for label in example["labels"])
    rows = pl.DataFrame(list(variants), {"layer": pl.Int64, "head": pl.Int64}, orient="row")
    return rows.with_columns(
        metric=pl.lit(network.metric),
        value=score(counts.sum(1)),
        effect=effect,
        low=low,
        high=high,
        clear=(low > 0) | (high < 0),
        count=pl.lit(labels, pl.Int64),
    )


def score(counts: NDArray[np.number]) -> NDArray[np.float64]:
    """Return accuracies, or micro F1, of summed counts [..., 3]; 0 where nothing is gold or predicted."""
    result: NDArray[np.float64] = 2 * counts[..., 0] / np.maximum(counts[..., 1] + counts[..., 2], 1)
    return result


def effects(counts: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the effect of each variant on the score with 95 % intervals that hold for all variants together.

    `counts`: int64 [variants, sentences, 3]; the first variant is the whole model, with which the others are compared.
    What a variant gains and what it loses are two small shares of the labels, each with an exact binomial interval
    (Clopper & Pearson), at an error of 5 % divided by the number of variants; their difference has the interval of
    Zou & Donner 2008. A bootstrap would give a head that changes nothing in the sample an interval without width.
    Changes within a sentence are not independent: as in Korn & Graubard 1998 the sample counts as smaller by the factor
    by which they exceed independent ones. An entity of an F1 counts as a label, by the derivative of the score.
    """
    from scipy.stats import beta

    right, size = counts[..., 0], (counts[..., 1] + counts[..., 2]) / 2
    value, total = score(counts.sum(1)), np.maximum(size.sum(1), 1)
    effect = value - value[0]
    changed = right - right[0] - value[0] * (size - size[0])  # labels of each sentence; the sum is total * effect
    together = np.square(changed).sum(1) / np.maximum(np.abs(changed).sum(1), 1e-9)
    usual = np.median(together[together > 0]) if together.any() else 1.0
    n = total / np.maximum(together, max(1.0, usual))
    error = ERROR / 2 / max(len(counts) - 1, 1)
    gained, lost = (np.maximum(sign * changed, 0).sum(1) / total for sign in (1, -1))

    def reach(share: NDArray[np.float64]) -> NDArray[np.float64]:
        """How far the interval of a share reaches below and above it."""
        low, high = beta.ppf(error, share * n, n - share * n + 1), beta.ppf(1 - error, share * n + 1, n - share * n)
        return np.stack([share - np.nan_to_num(low), np.nan_to_num(high, nan=1.0) - share])

    (less, more), (less_lost, more_lost) = reach(gained), reach(lost)
    return effect, effect - np.hypot(less, more_lost), effect + np.hypot(more, less_lost)
