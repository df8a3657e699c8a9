"""A fine-tuned model whose heads can be disabled, run over labeled sentences."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.models.transformer.heads import Head, How, Replay, Weighted, find_heads
from embstore.models.transformer.sites import SiteTap
from embstore_studies.finetuning.examples import NO_LABEL, FineTuneExample
from embstore_studies.finetuning.tuned import Tuned, load_tuned
from embstore_studies.heads.scores import sentence_counts

BATCH_SUBWORDS = {"cpu": 1024, "cuda": 16384}
Report = Callable[[int, int], None]
Heads = Collection[Head]


@dataclass(frozen=True)
class Sentences:
    """Labeled sentences, sorted by length; `names`: of all labels, those that the model does not have last."""

    examples: Sequence[FineTuneExample]
    names: Sequence[str]

    @property
    def n_labels(self) -> int:
        """How many labels there are."""
        return sum(int((example.labels != NO_LABEL).sum()) for example in self.examples)

    def batches(self, n_subwords: int) -> Iterator[Sequence[FineTuneExample]]:
        """Yield batches whose padded rows have at most `n_subwords` positions together, or one sentence."""
        start = 0
        for stop in range(1, len(self.examples) + 1):
            longest = len(self.examples[min(stop, len(self.examples) - 1)].ids)
            if stop == len(self.examples) or longest * (stop + 1 - start) > n_subwords:
                yield self.examples[start:stop]
                start = stop


class HeadNetwork:
    """A fine-tuned model with the places of its heads; layers from 1, heads from 0."""

    def __init__(self, model: str | Path, device: torch.device) -> None:
        self.tuned: Tuned = load_tuned(model)
        trainable = self.tuned.trainable
        self._network: Any = trainable.network.to(device).eval().requires_grad_(False)
        self._network.config.use_cache = False
        self._device = device
        given = {"input_ids": trainable.probe.to(device)}
        with torch.no_grad():
            self.sites: SiteTap = find_heads(self._network, self._network.base_model, given, name=self.tuned.name)
        self.layers = tuple(range(1, self.sites.tap.num_hidden_layers + 1))
        self.heads = tuple((layer, head) for layer in self.layers for head in range(self.sites.n_heads))

    def read(self, path: str | Path, *, n_sentences: int | None, seed: int) -> Sentences:
        """Read labeled sentences, or a random sample of them."""
        data, names = self.tuned.examples(path, n_sentences=n_sentences, seed=seed)
        return Sentences(sorted(data.examples, key=lambda example: len(example.ids)), names)

    @torch.inference_mode()
    def counts(self, sentences: Sentences, variants: Sequence[Heads], how: How, report: Report) -> NDArray[np.int64]:
        """Return the counts of each sentence with the heads of each variant disabled: int64 [variants, sentences, 3].

        Of a batch the layers below the first one with a disabled head are computed once for all variants.
        """
        parts: list[NDArray[np.int64]] = []
        metric, done = self.tuned.task.metric, 0
        distinct = list(dict.fromkeys(frozenset(heads) for heads in variants))
        for examples in self._batches(sentences):
            inputs, labels = self._inputs(examples)
            replay = Replay(self.sites, self._network, inputs)
            found = []
            for heads in distinct:
                predicted = replay.without(heads, how).argmax(-1).cpu().numpy()
                found.append(sentence_counts(metric, sentences.names, labels.cpu().numpy(), predicted))
            parts.append(np.stack(found))
            done += len(examples)
            report(done, len(sentences.examples))
        return np.concatenate(parts, 1)[[distinct.index(frozenset(heads)) for heads in variants]]

    def gradients(self, sentences: Sentences, report: Report) -> NDArray[np.float64]:
        """Return |d loss / d weight| of each head for each sentence: float64 [sentences, layers, heads].

        The loss of a sentence is the mean over its labels; labels that the model does not have are left out.
        """
        parts: list[NDArray[np.float64]] = []
        done = 0
        for examples in self._batches(sentences):
            inputs, labels = self._inputs(examples)
            weighted = Weighted()
            with torch.enable_grad(), self.sites.changing(weighted):
                logits = self._network(**inputs)[0]
                known = labels.masked_fill(labels >= logits.shape[-1], NO_LABEL)
                losses = torch.nn.functional.cross_entropy(
                    logits.transpose(1, 2), known, ignore_index=NO_LABEL, reduction="none"
                )
                loss = (losses.sum(1) / (known != NO_LABEL).sum(1).clamp_min(1)).sum()
                found = torch.autograd.grad(loss, [weighted.weights[layer] for layer in self.layers])
            parts.append(torch.stack(found, 1).abs().double().cpu().numpy())
            done += len(examples)
            report(done, len(sentences.examples))
        return np.concatenate(parts)

    def _batches(self, sentences: Sentences) -> Iterator[Sequence[FineTuneExample]]:
        return sentences.batches(BATCH_SUBWORDS.get(self._device.type, 1024))

    def _inputs(self, examples: Sequence[FineTuneExample]) -> tuple[dict[str, Any], torch.Tensor]:
        inputs = {name: self._moved(value) for name, value in self.tuned.collator(examples).items()}
        return inputs, inputs.pop("labels")

    def _moved(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: self._moved(each) for name, each in value.items()}
        return value.to(self._device)
