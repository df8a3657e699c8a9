"""The rows of a group of partitions as text for the model: a part of the index, and its sentences in passages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from embstore.errors import StoreDamagedError
from embstore.extraction.options import CLS, ExtractionOptions
from embstore.extraction.windows import Places, Targets, cut_windows
from embstore.models.encoder import Encoder, Spans, Tokenized, indptr, ragged_indices, words_of_subwords
from embstore.store import Index, Metadata
from embstore.store.index import Contexts
from embstore.store.layout import Layout

PASSAGE_SUBWORDS = 2**18  # batched at a time, for batches of up to PASSAGE_BATCH subwords
PASSAGE_BATCH = 8192
PASSAGE_WORDS = 2**20  # the words of all windows cut from a passage, at most
MAX_POOLED = int(np.iinfo(np.int16).max)  # subwords of a row, as they are stored
BATCHES_OF_A_LENGTH = 128  # a passage is this many batches long, so that windows of one length fill some
GROUP_BATCHES = 2  # a group has rows for this many batches of one position a row, or more positions
GROUP_CONTEXTS = 4  # a group has at least as many, since one that is of two groups is run twice
GROUP_NBYTES = 2**31  # at most, since two groups are in memory at a time
FEW_GROUPS = 4  # at least, as far as there are partitions: the last one is written while nothing else is left to do
_Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Groups:
    """Consecutive partitions that are encoded together, `size` at a time: the unit of batches, resume and repair.

    Batches are made of the rows of one group and depend on nothing else, so that a partition has the same bytes
    in any process, and after any interruption. `layout`: of any site.
    """

    layout: Layout
    size: int

    @classmethod
    def of(cls, metadata: Metadata) -> Groups:
        """Return the groups of a store, which are recorded in its metadata."""
        return cls(metadata.layout, metadata.extraction["group_partitions"])

    def __len__(self) -> int:
        return -(-self.layout.n_partitions // self.size)

    def partitions(self, group: int) -> range:
        return range(group * self.size, min((group + 1) * self.size, self.layout.n_partitions))

    def span(self, group: int) -> tuple[int, int]:
        """Return the rows `[start, stop)` of a group."""
        partitions = self.partitions(group)
        return self.layout.span(partitions[0])[0], self.layout.span(partitions[-1])[1]


def group_partitions(
    n_partitions: int, *, partition_rows: int, partition_nbytes: int, batch_subwords: int, longest_context: int = 0
) -> int:
    """Choose the partitions of a group: enough rows to fill batches and for some contexts, as far as memory allows.

    With all layers of a large model a partition has a few hundred rows, and a batch tens of thousands; a context may
    have thousands. `n_partitions`: of one site; `partition_nbytes`: of all sites.
    """
    for_batches = -(-GROUP_BATCHES * batch_subwords // partition_rows)
    for_contexts = -(-GROUP_CONTEXTS * longest_context // partition_rows)
    wanted = max(min(for_batches, n_partitions // FEW_GROUPS), min(for_contexts, n_partitions))
    return max(1, min(wanted, GROUP_NBYTES // partition_nbytes))


@dataclass(frozen=True)
class Passage:
    """Consecutive contexts of a group, tokenized, with the spans to pool and the rows that get their vectors.

    `sentence_of_row`: int64 [n_rows], counted over the store. `rows_by_span`: the rows in the order of their spans, and
    where those of each span begin and end, since rows of equal windows share one; None if span i belongs to row i.
    """

    first_row: int
    sentence_of_row: _Numbers
    tokenized: Tokenized
    spans: Spans
    rows_by_span: tuple[_Numbers, _Numbers] | None = None

    @property
    def n_rows(self) -> int:
        return len(self.sentence_of_row)

    def rows_of(self, spans: _Numbers) -> tuple[_Numbers | None, _Numbers]:
        """Return the rows of some spans, and the index of each in `spans` (None: one row each)."""
        if self.rows_by_span is None:
            return None, spans
        rows, bounds = self.rows_by_span
        counts = bounds[spans + 1] - bounds[spans]
        return np.repeat(np.arange(len(spans)), counts), rows[ragged_indices(bounds[spans], counts)]


@dataclass(frozen=True)
class Part:
    """Consecutive rows `[start, stop)` of a store with all that is needed to encode them again.

    `index`: that of the sentences that contain these rows and their contexts, counted from row `first_row` and
    sentence `first_sentence` of the store. A part depends on the index alone and can be sent to any process; with the
    same model and options it gives the same batches there.
    """

    start: int
    stop: int
    first_row: int
    first_sentence: int
    index: Index

    @classmethod
    def of(cls, index: Index, start: int, stop: int) -> Part:
        """Copy the rows `[start, stop)` out of the index of a store."""
        first, last = int(index.sentence[start]), int(index.sentence[stop - 1]) + 1
        contexts = index.contexts
        if contexts is not None:
            chosen = slice(*(np.searchsorted(contexts.indptr, [start + 1, stop]) - [1, 0]).tolist())
            begins, ends = contexts.start[chosen], contexts.stop[chosen]
            bounds = index.text.subword_indptr
            first = min(first, int(np.searchsorted(bounds, begins[0], "right")) - 1)
            last = max(last, int(np.searchsorted(bounds, ends[-1])))
            rows_of = contexts.indptr[chosen.start : chosen.stop + 1] - index.indptr[first]
            contexts = Contexts(begins - bounds[first], ends - bounds[first], rows_of)
        rows = slice(int(index.indptr[first]), int(index.indptr[last]))
        types, renumbered = np.unique(np.asarray(index.type[rows]), return_inverse=True)
        own = Index.of(
            text=index.text.range(first, last),
            type=renumbered.astype(np.int32),
            sentence=np.asarray(index.sentence[rows]) - first,
            position=np.array(index.position[rows]),
            subwords=np.array(index.subwords[rows]),
            subword=None if index.subword is None else np.array(index.subword[rows]),
            words=index.words.subset(types.astype(np.int64)),
            indptr=np.asarray(index.indptr[first : last + 1]) - rows.start,
            source=np.array(index.source[first:last]),
            contexts=contexts,
        )
        return cls(start, stop, rows.start, first, own)

    @property
    def n_rows(self) -> int:
        return self.stop - self.start

    @cached_property
    def contexts(self) -> Contexts:
        """What the model is given, in subwords of the part, and which rows have their vectors from it."""
        bounds = self.index.text.subword_indptr
        return self.index.contexts or Contexts(bounds[:-1], bounds[1:], self.index.indptr)

    @cached_property
    def places(self) -> Places:
        """Where the words of the part begin and end, in its subwords."""
        text = self.index.text
        first = np.repeat(text.subword_indptr[:-1], np.diff(text.word_indptr)) + text.word_subword
        return Places(first, first + text.word_subwords)


@dataclass(frozen=True)
class Reader:
    """Makes passages of the rows of a part; `limit`: the longest context in subwords, without special ones."""

    encoder: Encoder
    options: ExtractionOptions
    limit: int

    def passages(
        self, part: Part, is_needed: Callable[[int, int], bool] = lambda start, stop: True
    ) -> Iterator[Passage]:
        """Yield the rows passage by passage, without passages of which no row is needed.

        `is_needed`: whether any of the rows `[start, stop)` of the store is.
        """
        window, batch = self.options.context_window, self.options.batch_subwords or 0
        lengths, rows_of = part.contexts.stop - part.contexts.start, part.contexts.indptr
        n_words = 0 if window is None else np.diff(rows_of) * np.minimum(2 * window + 1, lengths)
        subwords, words = indptr(lengths), indptr(np.broadcast_to(n_words, lengths.shape))
        first = 0
        while first < len(lengths):
            last = min(
                int(np.searchsorted(each, int(each[first]) + most, "right")) - 1
                for each, most in zip((subwords, words), passage_sizes(batch), strict=True)
            )
            last = max(first + 1, last)
            rows = np.clip(rows_of[[first, last]], part.start - part.first_row, part.stop - part.first_row)
            if is_needed(*(rows + part.first_row).tolist()):
                yield self._passage(part, slice(first, last), slice(*rows.tolist()))
            first = last

    def _passage(self, part: Part, contexts: slice, rows: slice) -> Passage:
        """Return some contexts of a part as a passage; `rows`: those that have their vectors from them."""
        encoder, window = self.encoder, self.options.context_window
        begins, ends = part.contexts.start[contexts], part.contexts.stop[contexts]
        tokenized = self._tokenized(part, begins, ends)
        context = part.contexts.of_rows(np.arange(rows.start, rows.stop)) - contexts.start
        targets = self._targets(part, rows, context, begins, ends)
        limits: _Numbers = np.minimum(ends - begins, self.limit)
        if encoder.causal and window is None:
            # after the last target, and after the context where a special subword there is a target
            needed = np.ones(len(tokenized), np.int64)
            np.maximum.at(needed, targets.context, targets.stop)
            limits = np.minimum(limits, needed)
        cut = truncated(tokenized, limits)
        first_row = part.first_row + rows.start
        sentence_of_row = np.asarray(part.index.sentence[rows]) + part.first_sentence
        if window is None:
            return Passage(first_row, sentence_of_row, cut, Spans(targets.context, targets.start, targets.stop))
        windows = cut_windows(cut, targets, window, part.places, begins, causal=encoder.causal)
        return Passage(first_row, sentence_of_row, *windows)

    def _tokenized(self, part: Part, begins: _Numbers, ends: _Numbers) -> Tokenized:
        """Return the subwords of contexts: from the index, or of the words if the model has no vocabulary."""
        text, encoder, places = part.index.text, self.encoder, part.places
        bounds = text.subword_indptr
        first, last = int(np.searchsorted(bounds, begins[0], "right")) - 1, int(np.searchsorted(bounds, ends[-1]))
        own, words, types = slice(int(bounds[first]), int(bounds[last])), None, None
        if encoder.has_vocabulary:
            ids = np.asarray(text.ids[own])
        else:
            ids = encoder.tokenize([text.sentence(number) for number in range(first, last)], by="words").ids
            if len(ids) != own.stop - own.start:
                raise StoreDamagedError(
                    f"sentences {part.first_sentence + first} to {part.first_sentence + last - 1} have {len(ids)} "
                    f"subwords, the index says {own.stop - own.start}: the index is damaged or the model has changed; "
                    "run embstore verify"
                )
        if self.options.attention_window is not None:
            words = words_of_subwords(places.first, places.last, bounds, text.word_indptr)[own]
        if len(pairs := text.pairs):
            types = encoder.pair_types(bounds, places.first[pairs], places.last[pairs])
            types = None if types is None else types[own]
        return Tokenized(ids, np.array([0, len(ids)]), words, types).runs(begins - own.start, ends - own.start)

    def _targets(self, part: Part, rows: slice, context: _Numbers, begins: _Numbers, ends: _Numbers) -> Targets:
        """Return what rows are pooled from; raises StoreDamagedError if it is not what the plan counted."""
        index, text, places = part.index, part.index.text, part.places
        sentence, position = np.asarray(index.sentence[rows]), np.asarray(index.position[rows], np.int64)
        bounds = text.subword_indptr[sentence]
        begin, length = begins[context], np.minimum(ends - begins, self.limit)[context]
        first_word, n_words = text.word_indptr[sentence], np.diff(text.word_indptr)[sentence]
        word = first_word + np.clip(position, 0, n_words - 1)
        after = word + 1
        if index.subword is not None:
            start = bounds + index.subword[rows]
            stop = start + 1
            if self.options.context_window is not None:  # around the word of the subword, in a phrase too
                after = np.searchsorted(places.first, start, "right")
                word = after - 1
        elif self.options.unit == "sentence":
            start, stop = bounds, text.subword_indptr[sentence + 1]
            stop = np.minimum(stop, start + MAX_POOLED)
        else:
            after = np.minimum(word + index.n_words[index.type[rows]], first_word + n_words)
            start, stop = places.first[word], places.last[after - 1]
        start, stop = start - begin, np.minimum(stop - begin, length)
        cls_place = self.encoder.cls_place if self.options.pooling == CLS else None
        if cls_place is not None:
            start = np.full_like(start, cls_place) if cls_place < 0 else length + cls_place
            stop = start + 1
        special = np.flatnonzero((position < 0) | (position >= n_words))
        number = position[special]
        start[special] = np.where(number < 0, number, length[special] + number - n_words[special])
        stop[special] = start[special] + 1
        counts, recorded = stop - start, index.subwords[rows]
        for at in np.flatnonzero(counts != recorded)[:1].tolist():
            raise StoreDamagedError(
                f"row {part.first_row + rows.start + at} (sentence {part.first_sentence + int(sentence[at])}) has "
                f"{int(counts[at])} subwords, the index says {int(recorded[at])}: the index is damaged; run embstore "
                "verify"
            )
        return Targets(context, start, stop, word, after)


def passage_sizes(batch_subwords: int) -> tuple[int, int]:
    """Return the most subwords of a passage, enough for many batches, and the most words of its windows.

    A device idles between two passages. A single context may be larger.
    """
    n_words = max(PASSAGE_WORDS, BATCHES_OF_A_LENGTH * batch_subwords)
    return PASSAGE_SUBWORDS * max(1, batch_subwords // PASSAGE_BATCH), n_words


def truncated(tokenized: Tokenized, limits: int | _Numbers) -> Tokenized:
    """Cut every text to its first subwords: a number for all, or one for each."""
    lengths = np.minimum(np.diff(tokenized.bounds), limits)
    if lengths.sum() == len(tokenized.ids):
        return tokenized
    return tokenized.runs(tokenized.bounds[:-1], tokenized.bounds[:-1] + lengths)
