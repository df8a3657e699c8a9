"""Labeled data as subwords, and examples of different lengths as one batch of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.models.batching import ROW_CAPACITY, pack
from embstore.models.encoder import ragged_indices
from embstore.models.transformer.inputs import NO_WORD, InputMaker, visible_words
from embstore.models.transformer.tokens import SubwordTokenizer
from embstore_studies.finetuning.data import LabeledText, LabeledWords

NO_LABEL = -100  # ignored by torch's cross entropy


@dataclass(frozen=True, slots=True)
class FineTuneExample:
    """The subwords of a sentence or pair, special ones included: four arrays of one length.

    `types`: the tokenizer's token types. `words`: the number of each subword's word, NO_WORD for special ones.
    `labels`: NO_LABEL except where the model predicts one: at a word's last subword, or at the one for the whole.
    """

    ids: NDArray[np.int64]
    types: NDArray[np.int64]
    words: NDArray[np.int64]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class FineTuneData:
    """The examples of a split, and how many labels they have.

    `n_cut`: labels that are neither trained on nor scored, because their word (or a part of it) is beyond the maximum
    length or has no subword.
    """

    examples: list[FineTuneExample]
    n_labels: int
    n_cut: int


def word_examples(
    sentences: Sequence[LabeledWords], tokenizer: SubwordTokenizer, numbers: dict[str, int], *, max_length: int
) -> FineTuneData:
    """Encode sentences with each word's label at its last subword; sentences without any label are left out."""
    tokenized = tokenizer.tokenize([sentence.words for sentence in sentences])
    specials = tokenizer.specials
    before = len(specials.prefix)
    limit = max_length - specials.count
    examples, n_labels, n_cut = [], 0, 0
    for number, sentence in enumerate(sentences):
        bounds = tokenized.word_indptr[tokenized.sentence_indptr[number] : tokenized.sentence_indptr[number + 1] + 1]
        ids = tokenized.ids[bounds[0] : bounds[-1]][:limit]
        counts, ends = np.diff(bounds), bounds[1:] - bounds[0]
        targets = np.array([NO_LABEL if label is None else numbers[label] for label in sentence.labels], np.int64)
        labeled = (counts > 0) & (ends <= limit) & (targets != NO_LABEL)
        n_labels += int(labeled.sum())
        n_cut += int((targets != NO_LABEL).sum() - labeled.sum())
        if not labeled.any():
            continue
        words = np.full(len(ids) + specials.count, NO_WORD, np.int64)
        words[before : before + len(ids)] = np.repeat(np.arange(len(counts)), counts)[:limit]
        labels = np.full(len(words), NO_LABEL, np.int64)
        labels[before + ends[labeled] - 1] = targets[labeled]
        whole, types = specials.around(ids)
        examples.append(FineTuneExample(whole, types, words, labels))
    return FineTuneData(examples, n_labels, n_cut)


def text_examples(
    items: Sequence[LabeledText], tokenizer: Any, numbers: dict[str, int], *, max_length: int, causal: bool
) -> FineTuneData:
    """Encode sentences or pairs as the tokenizer does, with their label at one subword.

    That is [CLS] if the tokenizer has one, else the first subword, or the last one of a causal model. Pairs are cut
    from the end of the longer sentence.
    """
    columns = zip(*(item.texts for item in items), strict=True)
    encoded = tokenizer(
        *map(list, columns), truncation=True, max_length=max_length, padding=False, return_token_type_ids=True
    )
    examples = []
    for item, ids, types in zip(items, encoded["input_ids"], encoded["token_type_ids"], strict=True):
        labels = np.full(len(ids), NO_LABEL, np.int64)
        cls = tokenizer.cls_token_id
        labels[ids.index(cls) if cls in ids else len(ids) - 1 if causal else 0] = numbers[item.label]
        examples.append(FineTuneExample(np.array(ids, np.int64), np.array(types, np.int64), labels * 0, labels))
    return FineTuneData(examples, len(examples), 0)


@dataclass(frozen=True)
class Collator:
    """Makes one batch of examples.

    `inputs`: what the model accepts. `attention_window`: words left and right; None: all. `packs`: examples are packed
    into rows one after the other, each attending to itself alone, so that little is computed for padding. Else each has
    a row, padded at the end.
    """

    inputs: InputMaker
    attention_window: int | None
    packs: bool = False

    def __call__(self, examples: Sequence[FineTuneExample]) -> dict[str, Any]:
        lengths = np.array([len(example.ids) for example in examples])
        rows, columns = np.arange(len(examples)), np.zeros(len(examples), np.int64)
        if self.packs:
            rows, columns, _ = pack(lengths, max(ROW_CAPACITY["cpu"], int(lengths.max())))
        shape = (int(rows.max()) + 1, int((columns + lengths).max()))
        positions = ragged_indices(rows * shape[1] + columns, lengths)

        def arranged(parts: Sequence[NDArray[np.int64]], fill: int) -> torch.Tensor:
            flat = np.full(shape[0] * shape[1], fill, np.int64)
            flat[positions] = np.concatenate(parts)
            return torch.from_numpy(flat.reshape(shape))

        batch: dict[str, Any] = {
            "input_ids": arranged([example.ids for example in examples], self.inputs.padding_id),
            "labels": arranged([example.labels for example in examples], NO_LABEL),
        }
        if self.inputs.takes_types:
            batch["token_type_ids"] = arranged([example.types for example in examples], 0)
        if self.packs:
            first = self.inputs.position_offset or 0
            batch["position_ids"] = arranged([np.arange(length) + first for length in lengths], first)
        owners = arranged([np.full(length, number) for number, length in enumerate(lengths, 1)], 0)
        within = None
        if self.attention_window is not None:
            within = visible_words(arranged([example.words for example in examples], NO_WORD), self.attention_window)
        batch["attention_mask"] = self.inputs.mask(owners, "packed" if self.packs else "padded", within)
        return batch
