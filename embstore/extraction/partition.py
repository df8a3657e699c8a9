"""The rows of a group of partitions as text for the model: a part of the index, and its sentences in passages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from embstore.errors import StoreDamagedError
from embstore.extraction.options import CLS, ExtractionOptions
from embstore.extraction.windows import Fan, Places, Targets, cut_windows
from embstore.models.encoder import Encoder, Spans, Tokenized, indptr, words_of_subwords
from embstore.store import Index, Metadata
from embstore.store.index import Contexts
from embstore.store.layout import Layout

PASSAGE_SUBWORDS = 2**18  # batched at a time, for batches of up to PASSAGE_BATCH subwords
PASSAGE_BATCH = 8192
PASSAGE_WORDS = 2**20  # the words of all windows cut from a passage, at most
MAX_POOLED = int(np.iinfo(np.int16).max)  # subwords of a row, as they are stored
BATCHES_OF_A_LENGTH = 128  # a passage is this many batches long, so that windows of one length fill some
GROUP_BATCHES = 2  # a group has rows for this many batches of one position a row, or more positions
GROUP_NBYTES = 2**31  # at most, since two groups are in memory at a time
FEW_GROUPS = 4  # at least, as far as there are partitions: the last one is written while nothing else is left to do


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
        """Return the partitions of a group."""
        return range(group * self.size, min((group + 1) * self.size, self.layout.n_partitions))

    def span(self, group: int) -> tuple[int, int]:
        """Return the rows `[start, stop)` of a group."""
        partitions = self.partitions(group)
        return self.layout.span(partitions[0])[0], self.layout.span(partitions[-1])[1]


def group_partitions(n_partitions: int, *, partition_rows: int, partition_nbytes: int, batch_subwords: int) -> int:
    """Choose the partitions of a group: enough rows to fill batches, as far as memory allows.

    With all layers of a large model a partition has a few hundred rows, and a batch tens of thousands. `n_partitions`:
    of one site; `partition_nbytes`: of all sites.
    """
    wanted = -(-GROUP_BATCHES * batch_subwords // partition_rows)
    return max(1, min(wanted, GROUP_NBYTES // partition_nbytes, n_partitions // FEW_GROUPS))


@dataclass(frozen=True)
class Passage:
    """Consecutive contexts of a group, tokenized, with the spans to pool and the rows that get their vectors.

    `sentence_of_row`: int64 [n_rows], counted over the store. `fan`: which of the rows, counted from `first_row`, has
    which span; None if span i belongs to row i.
    """

    first_row: int
    sentence_of_row: NDArray[np.int64]
    tokenized: Tokenized
    spans: Spans
    fan: Fan | None = None

    @property
    def n_rows(self) -> int:
        return len(self.sentence_of_row)

    def rows_of(self, spans: NDArray[np.int64]) -> tuple[NDArray[np.int64] | None, NDArray[np.int64]]:
        """Return the rows of some spans, and the index of each in `spans` (None: one row each)."""
        return (None, spans) if self.fan is None else self.fan.rows_of(spans)


@dataclass(frozen=True)
class TextOptions:
    """What decides how rows become passages, besides the encoder.

    `limit`: the longest context in subwords, without special ones. `window`: the context window; None if contexts are
    not cut into windows. `batch_subwords` decides how much text a passage has. `numbered`: whether the number of the
    word of each subword is needed, as attention windows do. `cls_place`: where the vector of a sentence is that of
    [CLS], see `Encoder.cls_place`.
    """

    unit: str
    limit: int
    window: int | None = None
    batch_subwords: int = 0
    numbered: bool = False
    cls_place: int | None = None

    @classmethod
    def of(cls, options: ExtractionOptions, encoder: Encoder, limit: int) -> TextOptions:
        return cls(
            unit=options.unit,
            limit=limit,
            window=options.context_window,
            batch_subwords=options.batch_subwords or 0,
            numbered=options.attention_window is not None,
            cls_place=encoder.cls_place if options.pooling == CLS else None,
        )


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

    def passages(
        self,
        encoder: Encoder,
        options: TextOptions,
        *,
        is_needed: Callable[[int, int], bool] = lambda start, stop: True,
    ) -> Iterator[Passage]:
        """Yield the rows passage by passage, without passages of which no row is needed.

        `is_needed`: whether any of the rows `[start, stop)` of the store is.
        """
        begins, ends, rows_of = self._contexts()
        sizes = indptr(ends - begins)
        windows = None
        if options.window is not None:
            windows = indptr(np.diff(rows_of) * np.minimum(2 * options.window + 1, ends - begins))
        most_subwords, most_words = passage_subwords(options.batch_subwords), passage_words(options.batch_subwords)
        first, n_contexts = 0, len(begins)
        while first < n_contexts:
            last = int(np.searchsorted(sizes, int(sizes[first]) + most_subwords, "right")) - 1
            if windows is not None:
                most = int(windows[first]) + most_words
                last = min(last, int(np.searchsorted(windows, most, "right")) - 1)
            last = max(first + 1, last)
            rows = np.clip(rows_of[[first, last]] + self.first_row, self.start, self.stop)
            if is_needed(*rows.tolist()):
                some = slice(*rows_of[[first, last]].tolist())
                own = np.repeat(np.arange(last - first), np.diff(rows_of[first : last + 1]))
                yield self._passage(begins[first:last], ends[first:last], some, own, encoder, options)
            first = last

    def _contexts(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return where contexts begin and end, in subwords of the part, and the bounds of their rows."""
        bounds, contexts = self.index.text.subword_indptr, self.index.contexts
        if contexts is None:
            return bounds[:-1], bounds[1:], self.index.indptr
        return contexts.start, contexts.stop, contexts.indptr

    def _passage(
        self,
        begins: NDArray[np.int64],
        ends: NDArray[np.int64],
        rows: slice,
        context: NDArray[np.int64],
        encoder: Encoder,
        options: TextOptions,
    ) -> Passage:
        """Return some contexts `[begin, end)` as a passage; `rows`: those that they own, `context`: of each of them."""
        index = self.index
        tokenized = self._tokenized(begins, ends, encoder, options)
        targets = self._targets(rows, context, begins, ends, options)
        self._check(rows, targets)
        start, stop = self.start - self.first_row, self.stop - self.first_row
        own = slice(max(start - rows.start, 0), min(stop, rows.stop) - rows.start)
        targets = targets[own]
        limits: NDArray[np.int64] = np.minimum(ends - begins, options.limit)
        if encoder.causal and options.window is None:
            # after the last target, and after the context where a special subword there is a target
            needed = np.ones(len(tokenized), np.int64)
            np.maximum.at(needed, targets.context, targets.stop)
            limits = np.minimum(limits, needed)
        cut = truncated(tokenized, limits)
        first_row = self.first_row + rows.start + own.start
        sentence_of_row = np.asarray(index.sentence[rows][own]) + self.first_sentence
        if options.window is None:
            spans = Spans(targets.context, targets.start, targets.stop)
            return Passage(first_row, sentence_of_row, cut, spans)
        windows = cut_windows(cut, targets, options.window, self._places, begins, causal=encoder.causal)
        return Passage(first_row, sentence_of_row, *windows)

    @cached_property
    def _places(self) -> Places:
        """Where the words of the part begin and end, in its subwords."""
        text = self.index.text
        first = np.repeat(text.subword_indptr[:-1], np.diff(text.word_indptr)) + text.word_subword
        return Places(first, first + text.word_subwords)

    def _tokenized(
        self, begins: NDArray[np.int64], ends: NDArray[np.int64], encoder: Encoder, options: TextOptions
    ) -> Tokenized:
        """Return the subwords of contexts: from the index, or of the words if the model has no vocabulary."""
        text = self.index.text
        bounds = text.subword_indptr
        first, last = int(np.searchsorted(bounds, begins[0], "right")) - 1, int(np.searchsorted(bounds, ends[-1]))
        base, words, types = int(bounds[first]), None, None
        if encoder.has_vocabulary:
            ids = np.asarray(text.ids[base : bounds[last]])
        else:
            ids = encoder.tokenize([text.sentence(number) for number in range(first, last)], by="words").ids
            if len(ids) != bounds[last] - base:
                raise StoreDamagedError(
                    f"sentences {self.first_sentence + first} to {self.first_sentence + last - 1} have {len(ids)} "
                    f"subwords, the index says {bounds[last] - base}: the index is damaged or the model has changed; "
                    "run embstore verify"
                )
        if options.numbered:
            places = self._places
            words = words_of_subwords(places.first, places.last, bounds, text.word_indptr)[base : bounds[last]]
        if len(pairs := text.pairs):
            places = self._places
            types = encoder.pair_types(bounds, places.first[pairs], places.last[pairs])
            types = None if types is None else types[base : bounds[last]]
        return Tokenized(ids, np.array([0, len(ids)]), words, types).runs(begins - base, ends - base)

    def _targets(
        self,
        rows: slice,
        context: NDArray[np.int64],
        begins: NDArray[np.int64],
        ends: NDArray[np.int64],
        options: TextOptions,
    ) -> Targets:
        index, text = self.index, self.index.text
        sentence, position = np.asarray(index.sentence[rows]), np.asarray(index.position[rows], np.int64)
        bounds = text.subword_indptr[sentence]
        begin, length = begins[context], np.minimum(ends - begins, options.limit)[context]
        first_word, n_words = text.word_indptr[sentence], np.diff(text.word_indptr)[sentence]
        word = first_word + np.clip(position, 0, n_words - 1)
        after = word + 1
        if index.subword is not None:
            start = bounds + index.subword[rows]
            stop = start + 1
            if options.window is not None:  # around the word of the subword, in a phrase too
                after = np.searchsorted(self._places.first, start, "right")
                word = after - 1
        elif options.unit == "sentence":
            start, stop = bounds, text.subword_indptr[sentence + 1]
            stop = np.minimum(stop, start + MAX_POOLED)
        else:
            after = np.minimum(word + index.n_words[index.type[rows]], first_word + n_words)
            start, stop = self._places.first[word], self._places.last[after - 1]
        start, stop = start - begin, np.minimum(stop - begin, length)
        if options.cls_place is not None:
            start = np.full_like(start, options.cls_place) if options.cls_place < 0 else length + options.cls_place
            stop = start + 1
        special = np.flatnonzero((position < 0) | (position >= n_words))
        places = position[special]
        start[special] = np.where(places < 0, places, length[special] + places - n_words[special])
        stop[special] = start[special] + 1
        return Targets(context, start, stop, word, after)

    def _check(self, rows: slice, targets: Targets) -> None:
        """Check that the rows have the subwords that the plan counted."""
        counts, recorded = targets.stop - targets.start, self.index.subwords[rows]
        wrong = np.flatnonzero(counts != recorded)
        if len(wrong):
            row = rows.start + int(wrong[0])
            raise StoreDamagedError(
                f"row {self.first_row + row} (sentence {self.first_sentence + int(self.index.sentence[row])}) has "
                f"{int(counts[wrong[0]])} subwords, the index says {int(recorded[wrong[0]])}: the index is damaged; "
                "run embstore verify"
            )


def passage_words(batch_subwords: int) -> int:
    """Return how many words the windows of a passage have at most, unless a single sentence has more."""
    return max(PASSAGE_WORDS, BATCHES_OF_A_LENGTH * batch_subwords)


def passage_subwords(batch_subwords: int) -> int:
    """Return the size of a passage: enough for many batches, since a device idles between two passages."""
    return PASSAGE_SUBWORDS * max(1, batch_subwords // PASSAGE_BATCH)


def truncated(tokenized: Tokenized, limits: int | NDArray[np.int64]) -> Tokenized:
    """Cut every text to its first subwords: a number for all, or one for each."""
    lengths = np.minimum(np.diff(tokenized.bounds), limits)
    if lengths.sum() == len(tokenized.ids):
        return tokenized
    return tokenized.runs(tokenized.bounds[:-1], tokenized.bounds[:-1] + lengths)
