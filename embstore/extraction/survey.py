"""One pass over a corpus: the columns of every word that may get a row, spooled to disk."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.corpus import Sentence
from embstore.corpus.keep import blocks_of
from embstore.corpus.sentence import PAIR
from embstore.errors import CorpusError, InvalidValueError, ModelError
from embstore.extraction.documents import Documents
from embstore.extraction.options import CLS, ExtractionOptions
from embstore.extraction.partition import MAX_POOLED
from embstore.extraction.spool import BLOCK, Spool
from embstore.models.encoder import Encoder, Spans, Tokenized, ragged_indices
from embstore.spacing import ATTACHED, join_marked, marked_words
from embstore.store.index import SPECIAL
from embstore.store.metadata import Dropped

BLOCK_SENTENCES = 4096
SAMPLE_SENTENCES = 256
NO_SUBWORD = "no subword: the tokenizer returns nothing for the word"
TOO_LONG = "beyond the length limit"
NO_VECTOR = "no vector: the table of words has none"
NOT_CHOSEN = "not chosen: excluded by the options that select occurrences"
MAX_EXAMPLES = 5


def numbering() -> defaultdict[str, int]:
    """Return a table that numbers strings in the order in which they are first looked up."""
    return defaultdict(count().__next__)


@dataclass
class Survey:
    """The content of a corpus, as columns of the spool with one entry for each unit (a word or a phrase).

    `type`, `sentence` (its number in the corpus), `position`, `subwords` and `label/<column>`; for each sentence
    `context` (a hash of its text), `text_bytes`, its share of `text` and, if the corpus has documents, `document`; for
    each document `field/<name>`; for the unit subword also `ids`, the
    subwords of all units one after another. `any_long`: whether a sentence is longer than the limit.
    `context_subwords`: of each context of the index, if it has contexts. `specials`: whether special subwords are
    units, whose label column SPECIAL has their spelling. `sample`: the first sentences, as marked words.
    """

    spool: Spool
    specials: bool = False
    types: defaultdict[str, int] = field(default_factory=numbering)
    labels: dict[str, defaultdict[str, int]] = field(default_factory=dict)
    n_sentences: int = 0
    n_words: int = 0
    n_subwords: int = 0
    longest: int = 0
    any_long: bool = False
    context_subwords: NDArray[np.int64] | None = None
    dropped: dict[str, Dropped] = field(default_factory=dict)
    sample: list[list[str]] = field(default_factory=list)
    documents: Documents = field(default_factory=Documents)
    digest: Any = field(default_factory=hashlib.sha256)

    @property
    def sha256(self) -> str:
        return str(self.digest.hexdigest())


def survey(
    corpus: Iterable[Sentence],
    encoder: Encoder,
    options: ExtractionOptions,
    *,
    limit: int,
    spool: Spool,
    report: Callable[[int], object],
) -> Survey:
    """Read a corpus once; `limit`: the longest sentence in subwords, without special ones.

    `report`: called with the number of sentences read.
    """
    found = Survey(spool, specials=options.specials)
    if options.specials:
        found.labels[SPECIAL] = numbering()
    sentences = iter(corpus)
    while block := list(islice(sentences, BLOCK_SENTENCES)):
        _survey_block(found, block, encoder, options, limit=limit)
        report(found.n_sentences)
        del block  # or it would be held while the next one is read
    _check_names(found)
    found.documents.finish(found.spool, found.digest)
    for column, names in found.labels.items():
        if found.specials and column == SPECIAL:
            continue
        found.digest.update("\0".join([column, *names]).encode())
    return found


def _survey_block(
    found: Survey, block: Sequence[Sentence], encoder: Encoder, options: ExtractionOptions, *, limit: int
) -> None:
    has_pairs = any(PAIR in sentence.words for sentence in block)
    if has_pairs:
        _check_pairs(block, encoder, options)
    marked = [marked_words(sentence.words, sentence.attached) for sentence in block]
    tokenized = encoder.tokenize(marked)
    is_sentence = options.unit == "sentence"
    units = _Units.of_sentences(tokenized, limit) if is_sentence else _Units.of(block, tokenized)
    _spool_sentences(found, block, marked, units)
    found.documents.add([sentence.document for sentence in block], found.spool)
    forms = _forms(block, units)
    empty = units.stop <= units.start
    marks = np.array([form == PAIR for form in forms]) if has_pairs else np.zeros(len(empty), np.bool_)
    is_whole = np.array([is_sentence or (has_pairs and PAIR in sentence.words) for sentence in block])[units.sentence]
    long = (units.stop - units.start > min(limit, MAX_POOLED)) | (is_whole & (units.stop > limit))
    most = np.where(is_whole, limit, units.stop)  # what is never divided is cut
    sizes = np.minimum(units.stop, most) - np.minimum(units.start, most)
    n_units, n_subwords = (np.bincount(units.sentence, weights, len(block)) for weights in (None, sizes))
    counts = {"unit/subwords": sizes, "unit/words": units.n_words, "sentence/units": n_units}
    for name, numbers in (*counts.items(), ("sentence/subwords", n_subwords)):
        found.spool.append(name, numbers.astype(np.int32))
    usable = ~empty & ~long & (~marks | options.specials)
    spans = Spans(units.sentence[usable], units.start[usable], units.stop[usable])
    unknown = np.zeros(len(usable), np.bool_)
    unknown[usable] = encoder.without_vector(tokenized, spans)
    for mask, reason in ((empty & ~long & ~marks, NO_SUBWORD), (long & ~marks, TOO_LONG), (unknown, NO_VECTOR)):
        _count_dropped(found, units, forms, mask, reason)
    usable &= ~unknown
    lengths = np.diff(tokenized.word_indptr[tokenized.sentence_indptr])
    found.n_subwords += int(sizes.sum())
    found.any_long = found.any_long or bool((n_subwords > limit).any())
    found.longest = max(found.longest, int(lengths.max(initial=0)))
    found.sample.extend([list(words) for words in marked[: SAMPLE_SENTENCES - len(found.sample)]])

    types = np.fromiter(map(found.types.__getitem__, forms), np.int32, len(forms))
    base = tokenized.word_indptr[tokenized.sentence_indptr[units.sentence]]
    columns: dict[str, NDArray[Any]] = {
        "type": types,
        "sentence": units.sentence + found.n_sentences,
        "position": units.position.astype(np.int32),
        "subwords": (np.ones_like(sizes) if options.pooling == CLS else sizes).astype(np.int16),
        "first": base + units.start,
        **_labels(found, block, units),
    }
    if options.specials and marks.any():
        columns[f"label/{SPECIAL}"][marks] = found.labels[SPECIAL][PAIR]
    columns = {name: values[usable] for name, values in columns.items()}
    ids = tokenized.ids
    if options.specials:
        some = np.flatnonzero(lengths)
        columns, ids = _with_specials(found, columns, ids, encoder, some, np.diff(tokenized.sentence_indptr)[some])
    first = columns.pop("first")
    for name, values in columns.items():
        found.spool.append(name, values)
    if options.unit == "subword":
        found.spool.append("ids", ids[ragged_indices(first, columns["subwords"].astype(np.int64))])
    found.n_sentences += len(block)
    found.n_words += int(tokenized.sentence_indptr[-1])


@dataclass(frozen=True)
class _Units:
    """The words and phrases of a block of sentences: the subwords `[start, stop)` of each in its sentence.

    `first_word`: counted over the block; `sentence`: counted in the block; `n_words`: of the unit.
    """

    first_word: NDArray[np.int64]
    sentence: NDArray[np.int64]
    position: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    n_words: NDArray[np.int64]

    @classmethod
    def of_sentences(cls, tokenized: Tokenized, limit: int) -> _Units:
        """Return a unit for each sentence, of its subwords within the limit."""
        n_words = np.diff(tokenized.sentence_indptr)
        some = np.flatnonzero(n_words)
        zeros = np.zeros(len(some), np.int64)
        stop = np.minimum(np.diff(tokenized.sentence_bounds), min(limit, MAX_POOLED))[some]
        return cls(tokenized.sentence_indptr[some], some, zeros, zeros, stop, n_words[some])

    @classmethod
    def of(cls, block: Sequence[Sentence], tokenized: Tokenized) -> _Units:
        sentence_indptr, word_indptr = tokenized.sentence_indptr, tokenized.word_indptr
        inside = np.zeros(int(sentence_indptr[-1]), bool)
        for begin, sentence in zip(sentence_indptr.tolist(), block, strict=False):
            for start, stop in sentence.targets:
                inside[begin + start + 1 : begin + stop] = True
        first = np.flatnonzero(~inside).astype(np.int64)
        last = np.append(first[1:], len(inside))
        of_word = np.repeat(np.arange(len(block), dtype=np.int64), np.diff(sentence_indptr))
        numbers = of_word[first]
        base = word_indptr[sentence_indptr[numbers]]
        return cls(
            first_word=first,
            sentence=numbers,
            position=first - sentence_indptr[numbers],
            start=word_indptr[first] - base,
            stop=word_indptr[last] - base,
            n_words=last - first,
        )


def _check_pairs(block: Sequence[Sentence], encoder: Encoder, options: ExtractionOptions) -> None:
    """Raise an error in one line if the pairs of a block cannot be encoded."""
    if not encoder.takes_pairs:
        raise ModelError(f"{encoder.info.architecture} takes no pairs of sentences: give each sentence on its own")
    if options.context_window is not None or options.attention_window is not None or options.context != "sentence":
        raise InvalidValueError(
            "pairs of sentences are encoded whole: leave out the context, and the context or attention window"
        )
    for sentence in block:
        words = sentence.words
        if words.count(PAIR) > 1 or PAIR in (words[0], words[-1]):
            raise CorpusError(f"{' '.join(words)!r}: {PAIR} separates two sentences of a pair, and may occur once")


def _with_specials(
    found: Survey,
    columns: Mapping[str, NDArray[Any]],
    ids: NDArray[np.int32],
    encoder: Encoder,
    sentences: NDArray[np.int64],
    n_words: NDArray[np.int64],
) -> tuple[dict[str, NDArray[Any]], NDArray[np.int32]]:
    """Add a row for each special subword of some sentences of a block; returns the columns, and the ids they refer to.

    Those before the first word have negative positions, those after the last the positions after its own.
    """
    before, after = encoder.special_ids
    added = np.array([*before, *after], np.int32)
    spelled = [encoder.subword_text(number) for number in added.tolist()]
    places = np.arange(len(added)) - len(before)
    position = np.where(places < 0, places, places + n_words[:, None])
    n_rows = position.size
    new: dict[str, NDArray[Any]] = {name: np.full(n_rows, -1, values.dtype) for name, values in columns.items()}
    new["type"] = np.tile([found.types[form] for form in spelled], len(sentences)).astype(np.int32)
    new["sentence"] = np.repeat(sentences + found.n_sentences, len(added))
    new["position"] = position.ravel().astype(np.int32)
    new["subwords"] = np.ones(n_rows, np.int16)
    new["first"] = np.tile(len(ids) + np.arange(len(added)), len(sentences))
    new[f"label/{SPECIAL}"] = np.tile([found.labels[SPECIAL][form] for form in spelled], len(sentences)).astype(
        np.int32
    )
    joined = {name: np.concatenate([values, new[name]]) for name, values in columns.items()}
    order = np.lexsort((joined["position"], joined["sentence"]))
    return {name: values[order] for name, values in joined.items()}, np.concatenate([ids, added])


def _forms(block: Sequence[Sentence], units: _Units) -> Sequence[str]:
    words = list(chain.from_iterable(sentence.words for sentence in block))
    if len(words) == len(units.first_word):
        return words
    spans = zip(units.first_word.tolist(), units.n_words.tolist(), strict=True)
    return [words[first] if size == 1 else " ".join(words[first : first + size]) for first, size in spans]


def _spool_sentences(found: Survey, block: Sequence[Sentence], marked: Sequence[Sequence[str]], units: _Units) -> None:
    texts = [join_marked(words).encode() for words in marked]
    joined = b"".join(texts)
    if joined.count(ATTACHED.encode()) != sum(len(sentence.attached) for sentence in block):
        at = next(at for at, sentence in enumerate(block) if ATTACHED in "".join(sentence.words))
        raise CorpusError(f"sentence {found.n_sentences + at} has the character U+001F in a word: remove it")
    found.spool.append("text", np.frombuffer(joined, np.uint8))
    lengths = np.fromiter(map(len, texts), np.int32, len(texts))
    found.spool.append("text_bytes", lengths)
    hashes = b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in texts)
    found.spool.append("context", np.frombuffer(hashes, np.uint64))
    for data in (lengths.tobytes(), joined, units.n_words.tobytes()):
        found.digest.update(data)


def _labels(found: Survey, block: Sequence[Sentence], units: _Units) -> dict[str, NDArray[np.int32]]:
    """Return the codes of the labels of all units; a new column has none for the units before."""
    before, codes_of = found.spool.length("type"), {}
    for column in dict.fromkeys(chain.from_iterable(sentence.labels for sentence in block)):
        if found.specials and column == SPECIAL:
            raise CorpusError(f"the corpus has a label column {SPECIAL!r}, and so have special tokens: rename it")
        if column not in found.labels:
            found.labels[column] = numbering()
            for rows in blocks_of(before, BLOCK):
                found.spool.append(f"label/{column}", np.full(rows.stop - rows.start, -1, np.int32))
    for column, names in found.labels.items():
        labels = chain.from_iterable(
            sentence.labels[column] if column in sentence.labels else [None] * len(sentence.words) for sentence in block
        )
        codes = np.array([-1 if label is None else names[label] for label in labels], np.int32)[units.first_word]
        codes_of[f"label/{column}"] = codes
        if not (found.specials and column == SPECIAL):
            found.digest.update(codes.tobytes())
    return codes_of


def _check_names(found: Survey) -> None:
    """Raise CorpusError for a name that is a label column and a field of documents."""
    for name in found.documents.numbers:
        if name in found.labels:
            raise CorpusError(f"{name!r} is both a label column and a field of documents: rename one")


def _count_dropped(found: Survey, units: _Units, forms: Sequence[str], mask: NDArray[np.bool_], reason: str) -> None:
    n_dropped = int(mask.sum())
    if not n_dropped:
        return
    examples = [
        f"{forms[at]!r} (sentence {units.sentence[at] + found.n_sentences}, position {units.position[at]})"
        for at in np.flatnonzero(mask)[:MAX_EXAMPLES].tolist()
    ]
    before = found.dropped.get(reason, Dropped(reason, 0, ()))
    found.dropped[reason] = Dropped(reason, before.count + n_dropped, (*before.examples, *examples)[:MAX_EXAMPLES])
