"""One reading of a corpus: every word that may get a row, spooled to disk as columns."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, count, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.corpus import Sentence
from embstore.extraction.spool import Spool
from embstore.models.encoder import Encoder, Spans, Tokenized
from embstore.store.metadata import Dropped

BLOCK_SENTENCES = 4096
NO_SUBWORD = "no subword: the tokenizer makes nothing of the word"
TOO_LONG = "beyond the length limit"
NO_VECTOR = "no vector: the table of words has none"
NOT_CHOSEN = "not chosen: left out by the options that say which occurrences to keep"
EXAMPLES = 5


def numbering() -> defaultdict[str, int]:
    """A table that numbers strings in the order in which they are first seen."""
    return defaultdict(count().__next__)


@dataclass
class Survey:
    """What a corpus holds, in columns of the spool, one entry a candidate (a word or a target of several words).

    `type`, `sentence` (its number in the corpus), `position`, `subwords` and `label/<column>`; of every sentence
    `context` (a hash of its words), `text_bytes` and its share of `text`; for the unit subword also `ids`, the
    subwords of the candidates one after the other.
    """

    spool: Spool
    types: defaultdict[str, int] = field(default_factory=numbering)
    labels: dict[str, defaultdict[str, int]] = field(default_factory=dict)
    sentences: int = 0
    words: int = 0
    candidates: int = 0
    subwords: int = 0
    longest: int = 0
    cut_sentences: int = 0
    dropped: dict[str, Dropped] = field(default_factory=dict)
    sample: list[list[str]] = field(default_factory=list)
    digest: Any = field(default_factory=hashlib.sha256)

    @property
    def sha256(self) -> str:
        return str(self.digest.hexdigest())


def survey(
    corpus: Iterable[Sentence],
    encoder: Encoder,
    *,
    limit: int,
    keep_ids: bool,
    spool: Spool,
    progress: Callable[[int], object] | None = None,
) -> Survey:
    """Read the corpus once; `limit` is the longest sentence in subwords, specials not counted."""
    found = Survey(spool)
    for block in _blocks(corpus, BLOCK_SENTENCES):
        _survey_block(found, block, encoder, limit=limit, keep_ids=keep_ids)
        if progress is not None:
            progress(len(block))
    for column, names in found.labels.items():
        found.digest.update("\0".join([column, *names]).encode())
    return found


def _blocks(corpus: Iterable[Sentence], size: int) -> Iterator[list[Sentence]]:
    sentences = iter(corpus)
    while block := list(islice(sentences, size)):
        yield block


def _survey_block(found: Survey, block: Sequence[Sentence], encoder: Encoder, *, limit: int, keep_ids: bool) -> None:
    tokenized = encoder.tokenize([sentence.words for sentence in block])
    units = _Units.of(block, tokenized)
    _spool_sentences(found, block, units)
    usable = (units.stop > units.start) & (units.stop <= limit)
    forms = _forms(block, units)
    _count_dropped(found, units, forms, (units.stop <= units.start) & (units.stop <= limit), NO_SUBWORD)
    _count_dropped(found, units, forms, units.stop > limit, TOO_LONG)
    lacking = _lacking(encoder, tokenized, units, usable)
    _count_dropped(found, units, forms, lacking, NO_VECTOR)
    usable &= ~lacking
    lengths = np.diff(tokenized.word_indptr[tokenized.sentence_indptr])
    found.subwords += int(np.minimum(lengths, limit).sum())
    found.longest = max(found.longest, int(lengths.max(initial=0)))
    found.cut_sentences += int((lengths > limit).sum())
    if len(found.sample) < 256:
        found.sample.extend([list(s.words) for s in block[: 256 - len(found.sample)]])

    spool = found.spool
    types = np.fromiter(map(found.types.__getitem__, forms), np.int32, len(forms))
    spool.append("type", types[usable])
    spool.append("sentence", (units.sentence + found.sentences)[usable])
    spool.append("position", units.position[usable].astype(np.int32))
    spool.append("subwords", (units.stop - units.start)[usable].astype(np.int16))
    _spool_labels(found, block, units, usable)
    if keep_ids:
        base = tokenized.word_indptr[tokenized.sentence_indptr[units.sentence]]
        spool.append("ids", tokenized.ids[ranges((base + units.start)[usable], (base + units.stop)[usable])])
    found.sentences += len(block)
    found.words += int(tokenized.sentence_indptr[-1])
    found.candidates += len(units.sentence)


@dataclass(frozen=True)
class _Units:
    """The words and targets of a block of sentences: the subwords `[start, stop)` of each in its sentence."""

    first_word: NDArray[np.int64]  # among the block's words
    sentence: NDArray[np.int64]  # in the block
    position: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    words: NDArray[np.int64]

    @classmethod
    def of(cls, block: Sequence[Sentence], tokenized: Tokenized) -> _Units:
        sentence_indptr, word_indptr = tokenized.sentence_indptr, tokenized.word_indptr
        inside = np.zeros(int(sentence_indptr[-1]), bool)
        for begins, read in zip(sentence_indptr.tolist(), block, strict=False):
            for start, stop in read.targets:
                inside[begins + start + 1 : begins + stop] = True
        first = np.flatnonzero(~inside).astype(np.int64)
        last = np.append(first[1:], len(inside))
        of_word = np.repeat(np.arange(len(block), dtype=np.int64), np.diff(sentence_indptr))
        sentence = of_word[first]
        base = word_indptr[sentence_indptr[sentence]]
        return cls(
            first_word=first,
            sentence=sentence,
            position=first - sentence_indptr[sentence],
            start=word_indptr[first] - base,
            stop=word_indptr[last] - base,
            words=last - first,
        )


def _forms(block: Sequence[Sentence], units: _Units) -> Sequence[str]:
    words = list(chain.from_iterable(sentence.words for sentence in block))
    if len(words) == len(units.first_word):
        return words
    spans = zip(units.first_word.tolist(), units.words.tolist(), strict=True)
    return [words[first] if many == 1 else " ".join(words[first : first + many]) for first, many in spans]


def _spool_sentences(found: Survey, block: Sequence[Sentence], units: _Units) -> None:
    texts = [" ".join(sentence.words).encode() for sentence in block]
    joined = b"".join(texts)
    spool = found.spool
    spool.append("text", np.frombuffer(joined, np.uint8))
    lengths = np.fromiter(map(len, texts), np.int32, len(texts))
    spool.append("text_bytes", lengths)
    hashes = b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in texts)
    spool.append("context", np.frombuffer(hashes, np.uint64))
    found.digest.update(lengths.tobytes())
    found.digest.update(joined)
    found.digest.update(units.words.tobytes())


def _lacking(encoder: Encoder, tokenized: Tokenized, units: _Units, usable: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Say which usable units the encoder has no vector for."""
    lacking = np.zeros(len(usable), np.bool_)
    spans = Spans(units.sentence[usable], units.start[usable], units.stop[usable])
    lacking[usable] = encoder.without_vector(tokenized, spans)
    return lacking


def _spool_labels(found: Survey, block: Sequence[Sentence], units: _Units, usable: NDArray[np.bool_]) -> None:
    columns = dict.fromkeys(chain.from_iterable(sentence.labels for sentence in block))
    before = found.spool.length("type") - int(usable.sum())
    for column in columns:
        if column not in found.labels:
            found.labels[column] = numbering()
            found.spool.fill(f"label/{column}", -1, before, np.int32)
    for column, names in found.labels.items():
        labels = chain.from_iterable(
            sentence.labels[column] if column in sentence.labels else [None] * len(sentence.words) for sentence in block
        )
        codes = [-1 if label is None else names[label] for label in labels]
        kept = np.array(codes, np.int32)[units.first_word]
        found.spool.append(f"label/{column}", kept[usable])
        found.digest.update(kept.tobytes())


def _count_dropped(found: Survey, units: _Units, forms: Sequence[str], mask: NDArray[np.bool_], reason: str) -> None:
    many = int(mask.sum())
    if not many:
        return
    places = np.flatnonzero(mask)[:EXAMPLES]
    named = [
        f"{forms[at]!r} (sentence {units.sentence[at] + found.sentences}, position {units.position[at]})"
        for at in places.tolist()
    ]
    before = found.dropped.get(reason, Dropped(reason, 0, ()))
    found.dropped[reason] = Dropped(reason, before.count + many, (*before.examples, *named)[:EXAMPLES])


def ranges(start: NDArray[np.int64], stop: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers of many half-open ranges, one after the other."""
    lengths = stop - start
    ends = np.cumsum(lengths)
    numbers = np.arange(int(ends[-1]) if len(ends) else 0, dtype=np.int64)
    numbers += np.repeat(start - (ends - lengths), lengths)
    return numbers
