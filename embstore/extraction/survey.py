"""One pass over a corpus: the columns of every word that may get a row, spooled to disk."""

from __future__ import annotations

import errno
import hashlib
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, count
from math import isnan
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from embstore.corpus import Corpus
from embstore.corpus.keep import blocks_of
from embstore.corpus.sentence import PAIR, Document, Sentence, is_encodable
from embstore.errors import CorpusError, InvalidValueError, ModelError, StorageError, check_column_name, quoted
from embstore.extraction.options import CLS, ExtractionOptions
from embstore.extraction.partition import MAX_POOLED
from embstore.models.encoder import Encoder, Scope, Split, ragged_indices
from embstore.store.index import KINDS, SPECIAL, field_text
from embstore.store.metadata import Dropped
from embstore.store.storage.files import TOO_MANY_FILES, allow_files
from embstore.store.strings import Strings

BLOCK = 2**16  # entries of a column that are handled at a time
BLOCK_SENTENCES = 4096
SAMPLE_SENTENCES = 256
LONG_TEXT = 2**20  # characters of a document that is tokenized in parts, where an exact check finds a place for a cut
CUT_CHECK = 2**12  # characters on both sides of a cut that the check reads
CUT_TRIES = 16
NO_SUBWORD = "no subword: the tokenizer, or the table of words, has nothing for the word"
TOO_LONG = "beyond the length limit"
NOT_CHOSEN = "not chosen: excluded by the options that select occurrences"
MAX_EXAMPLES = 5


@dataclass
class _Column:
    file: IO[bytes]
    dtype: np.dtype[Any]
    length: int = 0


class Spool:
    """Named columns in temporary files without a name, which vanish with the object or its process.

    Columns grow on disk block by block, so that a plan of any size needs little memory, and are read back
    memory-mapped.
    """

    def __init__(self) -> None:
        self._columns: dict[str, _Column] = {}

    def append(self, name: str, values: NDArray[Any]) -> None:
        """Add values to the end of a column; the first call fixes its dtype."""
        with _storing():
            if name not in self._columns:
                file = tempfile.TemporaryFile()  # noqa: SIM115
                self._columns[name] = _Column(file, values.dtype)
                allow_files(8 * len(self._columns))
            column = self._columns[name]
            column.file.write(np.ascontiguousarray(values, column.dtype).data)
        column.length += len(values)

    def length(self, name: str) -> int:
        return self._columns[name].length if name in self._columns else 0

    def read(self, name: str, dtype: DTypeLike) -> NDArray[Any]:
        """Map a column; a column that was never written is empty."""
        if not self.length(name):
            return np.empty(0, dtype)
        column = self._columns[name]
        with _storing():
            column.file.flush()
        return np.memmap(column.file, column.dtype, "r", shape=(column.length,)).view(np.ndarray)

    def rename(self, name: str, new: str) -> None:
        """Rename a column, replacing one of the new name; arrays read before stay valid."""
        self._columns.pop(new, None)
        if name in self._columns:
            self._columns[new] = self._columns.pop(name)


@contextmanager
def _storing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.EMFILE:
            raise StorageError(f"a column of the plan cannot be opened: {TOO_MANY_FILES}") from error
        raise StorageError(
            f"the columns of the plan do not fit into {tempfile.gettempdir()}: {error.strerror}; "
            "make space there or set TMPDIR to a larger folder"
        ) from error


def numbering() -> defaultdict[str, int]:
    """Return a table that numbers strings in the order in which they are first looked up."""
    return defaultdict(count().__next__)


@dataclass
class Documents:
    """Numbers the documents of sentences, and the distinct values of each field.

    `n`: the documents so far. `numbers`: field -> its distinct values, of each type, and their numbers. `kinds` and
    `values`, after `finish`: the kind of each field, and its distinct values as text in ascending order.
    """

    n: int = 0
    any_given: bool = False
    numbers: dict[str, defaultdict[Any, int]] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    values: dict[str, Strings] = field(default_factory=dict)
    _last: Document | None = None

    def add(self, documents: Sequence[Document | None], spool: Spool) -> None:
        """Add the documents of consecutive sentences."""
        numbers = np.empty(len(documents), np.int64)
        codes: dict[str, list[int]] = {}
        first = self.n
        for at, document in enumerate(documents):
            if document is None or document is not self._last:
                self.n += 1
                for name, value in (document.fields if document is not None else {}).items():
                    if name not in self.numbers:
                        self._begin(name, first, spool)
                    own = codes.setdefault(name, [])
                    own.extend([-1] * (self.n - 1 - first - len(own)))
                    own.append(self._number(name, value))
            self._last = document
            numbers[at] = self.n - 1
        self.any_given = self.any_given or any(document is not None for document in documents)
        spool.append("document", numbers)
        for name in self.numbers:
            new = np.full(self.n - first, -1, np.int32)
            new[: len(codes.get(name, ()))] = codes.get(name, ())
            spool.append(f"field/{name}", new)

    def _begin(self, name: str, n_before: int, spool: Spool) -> None:
        try:
            check_column_name(name)
        except InvalidValueError as error:
            raise CorpusError(str(error).replace("label column", "field of documents", 1)) from None
        self.numbers[name] = numbering()
        for block in blocks_of(n_before, BLOCK):
            spool.append(f"field/{name}", np.full(block.stop - block.start, -1, np.int32))

    def _number(self, name: str, value: Any) -> int:
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or (isinstance(value, float) and isnan(value)):
            return -1
        if isinstance(value, str) and is_encodable(value):
            return self.numbers[name][value]
        if isinstance(value, (bool, int, float)):
            return self.numbers[name][type(value), value]  # 1, 1.0 and True are equal
        raise CorpusError(
            f"document {self.n - 1} has the field {name!r} {quoted(value)}: a value is text, a number, true, false or "
            "None"
        )

    def finish(self, spool: Spool, digest: Any) -> None:
        """Sort the values of each field, renumber its codes, and add all to the digest of the corpus."""
        if not self.any_given:
            return
        for block in blocks_of(spool.length("document"), BLOCK):
            digest.update(spool.read("document", np.int64)[block].tobytes())
        for name, numbers in self.numbers.items():
            self.kinds[name] = kind = _kind_of(list(numbers))
            texts = [_text_of(key, kind) for key in numbers]
            ascending = sorted(set(texts), key=KINDS[kind])
            places = {text: place for place, text in enumerate(ascending)}
            new = np.array([*(places[text] for text in texts), -1], np.int32)
            codes = spool.read(f"field/{name}", np.int32)
            for block in blocks_of(len(codes), BLOCK):
                spool.append(f"new/{name}", new[codes[block]])
            spool.rename(f"new/{name}", f"field/{name}")
            self.values[name] = Strings.of(ascending)
            digest.update(f"\0{name}\0{kind}\0".encode() + self.values[name].offsets.tobytes())
            digest.update(self.values[name].data)
            codes = spool.read(f"field/{name}", np.int32)
            for block in blocks_of(len(codes), BLOCK):
                digest.update(codes[block].tobytes())
            numbers.clear()


def _kind_of(keys: list[Any]) -> str:
    """Return the kind of values: that of all, float for numbers of both types, else str."""
    types = {str if isinstance(key, str) else key[0] for key in keys}
    if types == {int} and all(-(2**63) <= key[1] < 2**63 for key in keys):
        return "int"
    if types and types <= {int, float} and all(abs(key[1]) < 2**1023 or key[0] is float for key in keys):
        return "float"
    return "bool" if types == {bool} else "str"


def _text_of(key: Any, kind: str) -> str:
    if isinstance(key, str):
        return key
    return field_text(float(key[1]) + 0.0 if kind == "float" else key[1])  # no -0.0


@dataclass
class Survey:
    """The content of a corpus, as columns of the spool.

    One entry for each unit (a word, phrase, subword or sentence): `type`, `sentence` (its number in the corpus),
    `position`, `first` (its first subword, counted from the sentence's first), `subwords`, `label/<column>`, and of
    subwords `id`. One for each sentence: `context` (a hash of its words), `start`, `stop`, `words` and `subwords` (how
    many), `piece_bytes`, its share of `piece` and, if the corpus has documents, `document`. One for each word:
    `word/start`, `word/stop`, `word/subword`, `word/subwords`, and for each subword `ids`, as in
    `embstore.store.text.Text`. One for each document: `field/<name>`. `any_long`: whether a text is longer than the
    limit and may be divided. `n_shared`: subwords that two words share. `context_subwords`: of each context of the
    index, if it has contexts. `specials`: whether special subwords are units, whose label column SPECIAL has their
    spelling. `sample`: the first sentences.
    """

    spool: Spool
    specials: bool = False
    types: defaultdict[str, int] = field(default_factory=numbering)
    labels: dict[str, defaultdict[str, int]] = field(default_factory=dict)
    n_sentences: int = 0
    n_words: int = 0
    n_subwords: int = 0
    n_shared: int = 0
    longest: int = 0
    any_long: bool = False
    context_subwords: NDArray[np.int64] | None = None
    dropped: dict[str, Dropped] = field(default_factory=dict)
    sample: list[Sentence] = field(default_factory=list)
    documents: Documents = field(default_factory=Documents)
    digest: Any = field(default_factory=hashlib.sha256)

    @property
    def sha256(self) -> str:
        return str(self.digest.hexdigest())


def survey(
    corpus: Corpus,
    encoder: Encoder,
    options: ExtractionOptions,
    *,
    limit: int,
    spool: Spool,
    report: Callable[[int], object],
) -> Survey:
    """Read a corpus once; `limit`: the longest context in subwords, without special ones.

    `report`: called with the number of sentences read.
    """
    content = Survey(spool, specials=options.specials)
    if options.specials:
        content.labels[SPECIAL] = numbering()
    for block in _blocks(corpus.sentences(encoder.write_chat), encoder, options.scope):
        _survey_block(content, block, encoder, options, limit=limit)
        report(content.n_sentences)
        del block  # or it would be held while the next one is read
    if both := content.documents.numbers.keys() & content.labels.keys():
        raise CorpusError(f"{min(both)!r} is both a label column and a field of documents: rename one")
    content.documents.finish(content.spool, content.digest)
    for column, names in content.labels.items():
        if content.specials and column == SPECIAL:
            continue
        content.digest.update("\0".join([column, *names]).encode())
    return content


def _blocks(sentences: Iterable[Sentence], encoder: Encoder, scope: Scope) -> Iterator[list[Sentence]]:
    """Yield the sentences that are tokenized together: those of one text are in one block, unless it is very long."""
    block: list[Sentence] = []
    n_characters, most = 0, LONG_TEXT  # of the last text
    for sentence in sentences:
        document = sentence.document
        continues = bool(block) and document is not None and document is block[-1].document
        is_text = continues and document is not None and (scope == "document" or document.ids is not None)
        if not is_text:
            n_characters, most = 0, LONG_TEXT
            if len(block) >= BLOCK_SENTENCES:
                yield block
                block = []
        block.append(sentence)
        n_characters += len(sentence.text)
        if is_text and n_characters > most:
            cut = _cut(block, encoder)
            if cut is not None:
                yield block[:cut]
                block = block[cut:]
                n_characters, most = sum(len(each.text) for each in block), LONG_TEXT
            else:
                most *= 2
    if block:
        yield block


def _cut(block: Sequence[Sentence], encoder: Encoder) -> int | None:
    """Return where the last document of a block can be divided so that its subwords stay the same; None for nowhere."""
    document, right, tries = block[-1].document, "", 0
    if document is None or document.ids is not None:
        return None
    for at in range(len(block) - 1, 0, -1):
        right = block[at].text + right
        if block[at - 1].document is not document or tries == CUT_TRIES:
            return None
        if len(right) >= CUT_CHECK:
            left, before = "", at
            while len(left) < CUT_CHECK and before and block[before - 1].document is document:
                before -= 1
                left = block[before].text + left
            if encoder.cut_is_exact(left, right):
                return at
            tries += 1
    return None


def _survey_block(
    content: Survey, block: Sequence[Sentence], encoder: Encoder, options: ExtractionOptions, *, limit: int
) -> None:
    has_pairs = any(PAIR in sentence.words for sentence in block)
    if has_pairs:
        _check_pairs(block, encoder, options)
    split, n_shared = _placed(
        encoder.tokenize(block, scope=options.scope, by=options.tokenize), owned=options.pooling in ("first", "last")
    )
    content.n_shared += n_shared
    if options.unit == "sentence":
        units = _Units.of_sentences(split, limit)
    else:
        units = (_Units.of_subwords if options.unit == "subword" else _Units.of_words)(block, split)
    _spool_text(content, block, split, options)
    content.documents.add([sentence.document for sentence in block], content.spool)
    forms = _forms(block, units, split, encoder)
    sizes = units.stop - units.start
    marks = units.in_pair
    is_whole = np.array([options.unit == "sentence" or (has_pairs and PAIR in each.words) for each in block])
    lengths = np.diff(split.bounds)
    empty = sizes <= 0
    long = (sizes > min(limit, MAX_POOLED)) | (is_whole[units.sentence] & (units.stop > limit))
    usable = ~empty & ~long & (~marks | options.specials)
    for mask, reason in ((empty & ~long & ~marks, NO_SUBWORD), (long & ~marks, TOO_LONG)):
        _count_dropped(content, units, forms, mask, reason)
    content.n_subwords += len(split.ids)
    content.any_long = content.any_long or bool((lengths[~is_whole] > limit).any())
    content.longest = max(content.longest, int(lengths.max(initial=0)))
    content.spool.append("whole", is_whole)
    some = block[: SAMPLE_SENTENCES - len(content.sample)]
    content.sample.extend(replace(sentence, labels={}, targets=(), document=None) for sentence in some)

    columns: dict[str, NDArray[Any]] = {
        "type": np.fromiter(map(content.types.__getitem__, forms), np.int32, len(forms)),
        "sentence": units.sentence + content.n_sentences,
        "position": units.position.astype(np.int32),
        "first": units.start.astype(np.int32),
        "subwords": (np.ones_like(sizes) if options.pooling == CLS else sizes).astype(np.int16),
        **_labels(content, block, units),
    }
    if options.unit == "subword":
        columns["id"] = split.ids
    if options.specials and marks.any():
        names = content.labels[SPECIAL]
        columns[f"label/{SPECIAL}"][marks] = [names[forms[at]] for at in np.flatnonzero(marks).tolist()]
    columns = {name: values[usable] for name, values in columns.items()}
    if options.specials:
        own = np.flatnonzero(lengths)
        columns = _with_specials(content, columns, encoder, own, np.diff(split.indptr)[own], lengths[own])
    for name, values in columns.items():
        content.spool.append(name, values)
    content.n_sentences += len(block)
    content.n_words += int(split.indptr[-1])


def _placed(split: Split, *, owned: bool) -> tuple[Split, int]:
    """Put each word without a subword where the word before ends; also returns how many subwords words share.

    `owned`: words have only the subwords that begin in them.
    """
    some = split.last > split.first
    before = np.maximum.accumulate(np.append(0, np.where(some, split.last, 0)))[:-1]
    shared = np.where(some, np.minimum(before, split.last) - split.first, 0).clip(0)
    n_shared = len(np.unique(ragged_indices(split.first, shared)))
    first = np.maximum(split.first, before) if owned else split.first
    some &= split.last > first
    first = np.where(some, first, before)
    return replace(split, first=first, last=np.where(some, split.last, first)), n_shared


@dataclass(frozen=True)
class _Units:
    """What may get a row in a block of sentences: the subwords `[start, stop)` of each, counted from its sentence's.

    `first_word`: whose labels it has, counted over the block, -1 for none; `sentence`: counted in the block; `n_words`:
    of the unit. `in_pair`: whether it is the special subwords between the texts of a pair.
    """

    first_word: NDArray[np.int64]
    sentence: NDArray[np.int64]
    position: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    n_words: NDArray[np.int64]
    in_pair: NDArray[np.bool_]

    @classmethod
    def of_sentences(cls, split: Split, limit: int) -> _Units:
        """Return a unit for each sentence, of its subwords within the limit."""
        n_words = np.diff(split.indptr)
        some = np.flatnonzero(n_words)
        zeros = np.zeros(len(some), np.int64)
        stop = np.minimum(np.diff(split.bounds), min(limit, MAX_POOLED))[some]
        return cls(split.indptr[some], some, zeros, zeros, stop, n_words[some], zeros.astype(bool))

    @classmethod
    def of_words(cls, block: Sequence[Sentence], split: Split) -> _Units:
        """Return a unit for each word or phrase."""
        first = np.flatnonzero(_heads(block, split.indptr) == np.arange(split.indptr[-1]))
        after = np.append(first[1:], split.indptr[-1])
        numbers = np.repeat(np.arange(len(block)), np.diff(split.indptr))[first]
        return cls(
            first_word=first,
            sentence=numbers,
            position=first - split.indptr[numbers],
            start=split.first[first] - split.bounds[numbers],
            stop=split.last[after - 1] - split.bounds[numbers],
            n_words=after - first,
            in_pair=_lengths(block)[first] == 0,
        )

    @classmethod
    def of_subwords(cls, block: Sequence[Sentence], split: Split) -> _Units:
        """Return a unit for each subword, of the word in which it begins; white space has the word before it."""
        number = np.arange(len(split.ids))
        sentence = np.repeat(np.arange(len(block)), np.diff(split.bounds))
        heads, n_words = _heads(block, split.indptr), np.diff(split.indptr)[sentence]
        word = np.clip(split.words, split.indptr[sentence], split.indptr[sentence] + np.maximum(n_words, 1) - 1)
        in_pair = _lengths(block)[word] == 0
        is_space = (split.start == split.stop) & ~in_pair
        start = number - split.bounds[sentence]
        return cls(
            first_word=np.where(is_space, -1, heads[word]),
            sentence=sentence,
            position=heads[word] - split.indptr[sentence],
            start=start,
            stop=start + 1,
            n_words=np.ones_like(start),
            in_pair=in_pair,
        )


def _lengths(block: Sequence[Sentence]) -> NDArray[np.int32]:
    """Return the characters of all words."""
    return np.fromiter(map(len, chain.from_iterable(sentence.words for sentence in block)), np.int32)


def _heads(block: Sequence[Sentence], indptr: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first word of each word's phrase; of other words the word itself."""
    heads = np.arange(indptr[-1])
    for begin, sentence in zip(indptr.tolist(), block, strict=False):
        for start, stop in sentence.targets:
            heads[begin + start : begin + stop] = begin + start
    return heads


def _check_pairs(block: Sequence[Sentence], encoder: Encoder, options: ExtractionOptions) -> None:
    """Raise an error in one line if the pairs of a block cannot be encoded."""
    if not encoder.takes_pairs:
        raise ModelError(f"{encoder.info.architecture} takes no pairs of sentences: give each sentence on its own")
    if options.context_window is not None or options.attention_window is not None or options.context != "sentence":
        raise InvalidValueError(
            "pairs of sentences are encoded whole: leave out the context, and the context or attention window"
        )


def _with_specials(
    content: Survey,
    columns: Mapping[str, NDArray[Any]],
    encoder: Encoder,
    sentences: NDArray[np.int64],
    n_words: NDArray[np.int64],
    n_subwords: NDArray[np.int64],
) -> dict[str, NDArray[Any]]:
    """Add a row for each special subword of some sentences of a block.

    Those before the first word have negative positions, those after the last the positions after its own.
    """
    before, after = encoder.special_ids
    added = np.array([*before, *after], np.int32)
    spelled = [encoder.subword_text(number) for number in added.tolist()]
    places = np.arange(len(added)) - len(before)
    position = np.where(places < 0, places, places + n_words[:, None])
    n_rows = position.size
    new: dict[str, NDArray[Any]] = {name: np.full(n_rows, -1, values.dtype) for name, values in columns.items()}
    new["type"] = np.tile([content.types[form] for form in spelled], len(sentences)).astype(np.int32)
    new["sentence"] = np.repeat(sentences + content.n_sentences, len(added))
    new["position"] = position.ravel().astype(np.int32)
    new["subwords"] = np.ones(n_rows, np.int16)
    new["first"] = np.where(places < 0, 0, n_subwords[:, None] - 1).ravel().astype(np.int32)
    if "id" in new:
        new["id"] = np.tile(added, len(sentences))
    new[f"label/{SPECIAL}"] = np.tile([content.labels[SPECIAL][form] for form in spelled], len(sentences)).astype(
        np.int32
    )
    joined = {name: np.concatenate([values, new[name]]) for name, values in columns.items()}
    order = np.lexsort((joined["position"], joined["sentence"]))
    return {name: values[order] for name, values in joined.items()}


def _forms(block: Sequence[Sentence], units: _Units, split: Split, encoder: Encoder) -> Sequence[str]:
    words = list(chain.from_iterable(sentence.words for sentence in block))
    if len(words) == len(units.first_word) and not units.in_pair.any() and (units.n_words == 1).all():
        at = units.first_word
        if at[0] == 0 and at[-1] == len(words) - 1 and (np.diff(at) == 1).all():
            return words
    words.append("")  # of white space
    spans = zip(units.first_word.tolist(), units.n_words.tolist(), strict=True)
    forms = [words[first] if size == 1 else " ".join(words[first : first + size]) for first, size in spans]
    for unit in np.flatnonzero(units.in_pair).tolist():
        begin = int(split.bounds[units.sentence[unit]])
        ids = split.ids[begin + int(units.start[unit]) : begin + int(units.stop[unit])].tolist()
        forms[unit] = "".join(map(encoder.subword_text, ids))
    return forms


def _spool_text(content: Survey, block: Sequence[Sentence], split: Split, options: ExtractionOptions) -> None:
    spool = content.spool
    pieces = [sentence.text.encode() for sentence in block]
    joined = b"".join(pieces)
    sizes = np.fromiter(map(len, pieces), np.int32, len(pieces))
    starts = np.fromiter(chain.from_iterable(sentence.starts for sentence in block), np.int32, split.indptr[-1])
    stops, base = starts + _lengths(block), np.repeat(split.bounds[:-1], np.diff(split.indptr))
    for name, values in (
        ("piece", np.frombuffer(joined, np.uint8)),
        ("piece_bytes", sizes),
        ("start", np.fromiter((sentence.start for sentence in block), np.int32, len(block))),
        ("stop", np.fromiter((sentence.stop for sentence in block), np.int32, len(block))),
        ("words", np.diff(split.indptr).astype(np.int32)),
        ("n_subwords", np.diff(split.bounds).astype(np.int32)),
        ("word/start", starts),
        ("word/stop", stops),
        ("word/subword", (split.first - base).astype(np.int32)),
        ("word/subwords", np.minimum(split.last - split.first, MAX_POOLED).astype(np.int16)),
        ("ids", split.ids),
        *([("subword/start", split.start), ("subword/stop", split.stop)] if options.unit == "subword" else []),
    ):
        spool.append(name, values)
    texts = (" ".join(sentence.words).encode() for sentence in block)
    hashes = b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in texts)
    spool.append("context", np.frombuffer(hashes, np.uint64))
    targets = [[number, *target] for number, sentence in enumerate(block) for target in sentence.targets]
    for data in (sizes, joined, starts, stops, split.indptr, np.array(targets, np.int64)):
        content.digest.update(data if isinstance(data, bytes) else data.tobytes())
    given = [sentence.document for sentence in block if sentence.document and sentence.document.ids is not None]
    for document in dict.fromkeys(given):
        content.digest.update(np.array(document.ids, np.int64).tobytes())


def _labels(content: Survey, block: Sequence[Sentence], units: _Units) -> dict[str, NDArray[np.int32]]:
    """Return the codes of the labels of all units; a new column has none for the units before."""
    before, codes_of = content.spool.length("type"), {}
    for column in dict.fromkeys(chain.from_iterable(sentence.labels for sentence in block)):
        if content.specials and column == SPECIAL:
            raise CorpusError(f"the corpus has a label column {SPECIAL!r}, and so have special tokens: rename it")
        if column not in content.labels:
            content.labels[column] = numbering()
            for rows in blocks_of(before, BLOCK):
                content.spool.append(f"label/{column}", np.full(rows.stop - rows.start, -1, np.int32))
    for column, names in content.labels.items():
        labels = chain.from_iterable(
            sentence.labels[column] if column in sentence.labels else [None] * len(sentence.words) for sentence in block
        )
        of_words = np.array([*(-1 if label is None else names[label] for label in labels), -1], np.int32)
        codes_of[f"label/{column}"] = of_words[units.first_word]
        if not (content.specials and column == SPECIAL):
            content.digest.update(of_words.tobytes())
    return codes_of


def _count_dropped(content: Survey, units: _Units, forms: Sequence[str], mask: NDArray[np.bool_], reason: str) -> None:
    n_dropped = int(mask.sum())
    if not n_dropped:
        return
    examples = [
        f"{forms[at]!r} (sentence {units.sentence[at] + content.n_sentences}, position {units.position[at]})"
        for at in np.flatnonzero(mask)[:MAX_EXAMPLES].tolist()
    ]
    before = content.dropped.get(reason, Dropped(reason, 0, ()))
    content.dropped[reason] = Dropped(reason, before.count + n_dropped, (*before.examples, *examples)[:MAX_EXAMPLES])
