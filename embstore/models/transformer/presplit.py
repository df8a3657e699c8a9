"""Words to subwords, as papers that tokenize pre-split sentences have them: each word by itself."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.corpus.sentence import PAIR, Sentence
from embstore.models.encoder import indptr

CACHED_WORDS = 1 << 16  # of a tokenizer without a fast form


class WordSplitter:
    """Splits words into subwords as a transformers tokenizer splits sentences that are split into words."""

    def __init__(self, tokenizer: Any) -> None:
        self._backend = copy.deepcopy(getattr(tokenizer, "backend_tokenizer", None))  # a copy, because it is changed
        self._lead = "" if self._backend is None else _restore_space_before_words(self._backend)
        self._bare = {PAIR, *getattr(tokenizer, "all_special_tokens", ())}

        def slowly(word: str) -> list[int]:
            return list(tokenizer([word], is_split_into_words=True, add_special_tokens=False)["input_ids"])

        self._slowly = lru_cache(CACHED_WORDS)(slowly)

    def split(
        self, sentences: Sequence[Sentence]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids of the words of sentences, how many each has, and where each begins and ends in its word."""
        words = list(chain.from_iterable(sentence.words for sentence in sentences))
        if self._backend is None:
            slow = list(map(self._slowly, words))
            lengths = np.fromiter(map(len, slow), np.int64, len(slow))
            stop = np.repeat(np.fromiter(map(len, words), np.int64, len(words)), lengths)
            return np.fromiter(chain.from_iterable(slow), np.int32, len(stop)), lengths, np.zeros_like(stop), stop
        leads = ["" if word in self._bare else self._lead for word in words]
        given = [lead + word for lead, word in zip(leads, words, strict=True)]
        first = indptr(np.fromiter((len(sentence.words) for sentence in sentences), np.int64, len(sentences)))
        each = [given[start:stop] for start, stop in zip(first[:-1].tolist(), first[1:].tolist(), strict=True)]
        encodings = self._backend.encode_batch(each, is_pretokenized=True, add_special_tokens=False)
        ids = np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), np.int32)
        word = np.fromiter(chain.from_iterable(encoding.word_ids for encoding in encodings), np.int64, len(ids))
        word += np.repeat(first[:-1], [len(encoding) for encoding in encodings])
        offsets = chain.from_iterable(chain.from_iterable(encoding.offsets for encoding in encodings))
        places = np.fromiter(offsets, np.int64, 2 * len(ids)).reshape(-1, 2)
        places = np.maximum(0, places - np.fromiter(map(len, leads), np.int64, len(leads))[word, None])
        return ids, np.bincount(word, minlength=len(words)), places[:, 0], places[:, 1]


def _restore_space_before_words(backend: Any) -> str:
    """Give pre-split words the space in front of them that byte-level BPE treats as part of their spelling.

    A byte-level step that is alone can add the space itself. After another step it would add one to every part of a
    word, so the returned string is to be put in front of each word instead.
    """
    step = json.loads(backend.to_str()).get("pre_tokenizer") or {}
    if step.get("type") == "ByteLevel":
        backend.pre_tokenizer.add_prefix_space = True
        return ""
    nested = [step]
    while nested:
        step = nested.pop()
        if step.get("type") == "ByteLevel":
            return " "
        nested += step.get("pretokenizers", [])
    return ""
