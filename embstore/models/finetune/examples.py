"""Labelled data as subwords, and examples of many lengths as one batch of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.models.finetune.data import Labelled, Tagged
from embstore.models.padding import within_specials
from embstore.models.transformer.batches import ROW_CAPACITY, pack
from embstore.models.transformer.inputs import NO_WORD, seen_words
from embstore.models.transformer.tokens import SubwordTokenizer, ragged_indices

NO_LABEL = -100  # what torch's cross entropy leaves out


@dataclass(frozen=True, slots=True)
class Example:
    """The subwords of a sentence or pair, special ones included: four arrays of one length.

    `types`: the tokenizer's token types. `words`: the number of each subword's word, NO_WORD for special ones.
    `labels`: NO_LABEL but where the model is asked: a word's last subword, or the one that stands for it all.
    """

    ids: NDArray[np.int64]
    types: NDArray[np.int64]
    words: NDArray[np.int64]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class Examples:
    """Examples, and how many labels they hold and how many were lost.

    `cut`: labels whose word (or part of it) lies beyond the length, or has no subword; neither learnt nor scored.
    """

    items: list[Example]
    labels: int
    cut: int


def tagged_examples(
    sentences: Sequence[Tagged], tokenizer: SubwordTokenizer, numbers: dict[str, int], *, max_length: int
) -> Examples:
    """Encode sentences with each word's label at its last subword; those without any label are left out."""
    tokenized = tokenizer.tokenize([sentence.words for sentence in sentences])
    specials = tokenizer.specials
    before = len(specials.prefix)
    room = max_length - specials.count
    examples, labelled, cut = [], 0, 0
    for number, sentence in enumerate(sentences):
        bounds = tokenized.word_indptr[tokenized.sentence_indptr[number] : tokenized.sentence_indptr[number + 1] + 1]
        ids = tokenized.ids[bounds[0] : bounds[-1]][:room]
        counts, ends = np.diff(bounds), bounds[1:] - bounds[0]
        wanted = np.array([NO_LABEL if label is None else numbers[label] for label in sentence.labels], np.int64)
        asked = (counts > 0) & (ends <= room) & (wanted != NO_LABEL)
        labelled += int(asked.sum())
        cut += int((wanted != NO_LABEL).sum() - asked.sum())
        if not asked.any():
            continue
        words = np.full(len(ids) + specials.count, NO_WORD, np.int64)
        words[before : before + len(ids)] = np.repeat(np.arange(len(counts)), counts)[:room]
        labels = np.full(len(words), NO_LABEL, np.int64)
        labels[before + ends[asked] - 1] = wanted[asked]
        whole, types = within_specials(ids, specials)
        examples.append(Example(whole, types, words, labels))
    return Examples(examples, labelled, cut)


def labelled_examples(
    items: Sequence[Labelled], tokenizer: Any, numbers: dict[str, int], *, max_length: int, causal: bool
) -> Examples:
    """Encode sentences or pairs as the tokenizer does, with their label at the one subword that stands for them.

    That is [CLS] where the tokenizer has one, else the first subword, or the last of a model that reads from left
    to right. Pairs are cut from the end of the longer.
    """
    columns = zip(*(item.texts for item in items), strict=True)
    encoded = tokenizer(
        *map(list, columns), truncation=True, max_length=max_length, padding=False, return_token_type_ids=True
    )
    examples = []
    for item, ids, types in zip(items, encoded["input_ids"], encoded["token_type_ids"], strict=True):
        labels = np.full(len(ids), NO_LABEL, np.int64)
        labels[_whole(ids, tokenizer.cls_token_id, causal)] = numbers[item.label]
        examples.append(Example(np.array(ids, np.int64), np.array(types, np.int64), labels * 0, labels))
    return Examples(examples, len(examples), 0)


def _whole(ids: Sequence[int], cls: int | None, causal: bool) -> int:
    """The place of the subword that stands for the whole."""
    if cls in ids:
        return ids.index(cls)
    return len(ids) - 1 if causal else 0


@dataclass(frozen=True)
class Collator:
    """Puts examples into one batch.

    `position_offset`: the number of the first position; where it is given, examples are packed into rows one after
    the other, each seeing itself alone, so that little is computed for padding. None: each has a row, filled up at
    the end. `attention_window`: None for all words.
    """

    padding_id: int
    takes_types: bool
    causal: bool
    attention_window: int | None
    position_offset: int | None = None

    def __call__(self, examples: Sequence[Example]) -> dict[str, torch.Tensor]:
        lengths = np.array([len(example.ids) for example in examples])
        if self.position_offset is None:
            rows, columns = np.arange(len(examples)), np.zeros(len(examples), np.int64)
        else:
            rows, columns, _ = pack(lengths, max(ROW_CAPACITY["cpu"], int(lengths.max())))
        width = int((columns + lengths).max())
        shape = (int(rows.max()) + 1, width)
        places = ragged_indices(rows * width + columns, lengths)

        def laid(parts: Sequence[NDArray[np.int64]], fill: int) -> torch.Tensor:
            flat = np.full(shape[0] * shape[1], fill, np.int64)
            flat[places] = np.concatenate(parts)
            return torch.from_numpy(flat.reshape(shape))

        batch = {
            "input_ids": laid([example.ids for example in examples], self.padding_id),
            "labels": laid([example.labels for example in examples], NO_LABEL),
        }
        if self.takes_types:
            batch["token_type_ids"] = laid([example.types for example in examples], 0)
        if self.position_offset is not None:
            numbers = [np.arange(length) + self.position_offset for length in lengths]
            batch["position_ids"] = laid(numbers, self.position_offset)
        owners = laid([np.full(length, number) for number, length in enumerate(lengths)], -1)
        if self.position_offset is None and self.attention_window is None:
            batch["attention_mask"] = (owners >= 0).long()
        else:
            words = laid([example.words for example in examples], NO_WORD)
            batch["attention_mask"] = pair_mask(owners, words, reach=self.attention_window, causal=self.causal)
        return batch


def pair_mask(owners: torch.Tensor, words: torch.Tensor, *, reach: int | None, causal: bool) -> torch.Tensor:
    """Return the mask of which subword sees which, float32 [rows, 1, positions, positions], added to the scores.

    `owners` [rows, positions]: the example at each place; each sees itself alone. Empty places are one of their own,
    lest they see nothing. `words`: as `seen_words` takes them. `reach`: of the attention window, None for all.
    """
    allowed = owners[:, None, :, None] == owners[:, None, None, :]
    if reach is not None:
        allowed &= seen_words(words, reach)
    if causal:
        allowed &= torch.ones(owners.shape[1], owners.shape[1], dtype=torch.bool).tril()
    return torch.zeros(allowed.shape).masked_fill_(~allowed, torch.finfo(torch.float32).min)
