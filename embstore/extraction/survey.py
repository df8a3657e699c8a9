"""One pass over a corpus: the columns of every word that may get a row, spooled to disk."""

from __future__ import annotations

import errno
import hashlib
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, count, islice
from math import isnan
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from embstore.corpus.keep import blocks_of
from embstore.corpus.sentence import PAIR, Document, Sentence, is_encodable
from embstore.errors import CorpusError, InvalidValueError, ModelError, StorageError, check_column_name, quoted
from embstore.extraction.options import CLS, ExtractionOptions
from embstore.extraction.partition import MAX_POOLED
from embstore.models.encoder import Encoder, Tokenized, ragged_indices
from embstore.spacing import ATTACHED, join_marked, marked_words
from embstore.store.index import KINDS, SPECIAL, Strings, field_text
from embstore.store.metadata import Dropped
from embstore.store.storage.files import TOO_MANY_FILES, allow_files

BLOCK = 2**16  # entries of a column that are handled at a time
BLOCK_SENTENCES = 4096
SAMPLE_SENTENCES = 256
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
    content = Survey(spool, specials=options.specials)
    if options.specials:
        content.labels[SPECIAL] = numbering()
    sentences = iter(corpus)
    while block := list(islice(sentences, BLOCK_SENTENCES)):
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


def _survey_block(
    content: Survey, block: Sequence[Sentence], encoder: Encoder, options: ExtractionOptions, *, limit: int
) -> None:
    has_pairs = any(PAIR in sentence.words for sentence in block)
    if has_pairs:
        _check_pairs(block, encoder, options)
    marked = [marked_words(sentence.words, sentence.attached) for sentence in block]
    tokenized = encoder.tokenize(marked)
    is_sentence = options.unit == "sentence"
    units = _Units.of_sentences(tokenized, limit) if is_sentence else _Units.of(block, tokenized)
    _spool_sentences(content, block, marked, units)
    content.documents.add([sentence.document for sentence in block], content.spool)
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
        content.spool.append(name, numbers.astype(np.int32))
    usable = ~empty & ~long & (~marks | options.specials)
    for mask, reason in ((empty & ~long & ~marks, NO_SUBWORD), (long & ~marks, TOO_LONG)):
        _count_dropped(content, units, forms, mask, reason)
    lengths = np.diff(tokenized.word_indptr[tokenized.sentence_indptr])
    content.n_subwords += int(sizes.sum())
    content.any_long = content.any_long or bool((n_subwords > limit).any())
    content.longest = max(content.longest, int(lengths.max(initial=0)))
    content.sample.extend([list(words) for words in marked[: SAMPLE_SENTENCES - len(content.sample)]])

    types = np.fromiter(map(content.types.__getitem__, forms), np.int32, len(forms))
    base = tokenized.word_indptr[tokenized.sentence_indptr[units.sentence]]
    columns: dict[str, NDArray[Any]] = {
        "type": types,
        "sentence": units.sentence + content.n_sentences,
        "position": units.position.astype(np.int32),
        "subwords": (np.ones_like(sizes) if options.pooling == CLS else sizes).astype(np.int16),
        "first": base + units.start,
        **_labels(content, block, units),
    }
    if options.specials and marks.any():
        columns[f"label/{SPECIAL}"][marks] = content.labels[SPECIAL][PAIR]
    columns = {name: values[usable] for name, values in columns.items()}
    ids = tokenized.ids
    if options.specials:
        some = np.flatnonzero(lengths)
        columns, ids = _with_specials(content, columns, ids, encoder, some, np.diff(tokenized.sentence_indptr)[some])
    first = columns.pop("first")
    for name, values in columns.items():
        content.spool.append(name, values)
    if options.unit == "subword":
        content.spool.append("ids", ids[ragged_indices(first, columns["subwords"].astype(np.int64))])
    content.n_sentences += len(block)
    content.n_words += int(tokenized.sentence_indptr[-1])


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
    content: Survey,
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
    new["type"] = np.tile([content.types[form] for form in spelled], len(sentences)).astype(np.int32)
    new["sentence"] = np.repeat(sentences + content.n_sentences, len(added))
    new["position"] = position.ravel().astype(np.int32)
    new["subwords"] = np.ones(n_rows, np.int16)
    new["first"] = np.tile(len(ids) + np.arange(len(added)), len(sentences))
    new[f"label/{SPECIAL}"] = np.tile([content.labels[SPECIAL][form] for form in spelled], len(sentences)).astype(
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


def _spool_sentences(
    content: Survey, block: Sequence[Sentence], marked: Sequence[Sequence[str]], units: _Units
) -> None:
    texts = [join_marked(words).encode() for words in marked]
    joined = b"".join(texts)
    if joined.count(ATTACHED.encode()) != sum(len(sentence.attached) for sentence in block):
        at = next(at for at, sentence in enumerate(block) if ATTACHED in "".join(sentence.words))
        raise CorpusError(f"sentence {content.n_sentences + at} has the character U+001F in a word: remove it")
    content.spool.append("text", np.frombuffer(joined, np.uint8))
    lengths = np.fromiter(map(len, texts), np.int32, len(texts))
    content.spool.append("text_bytes", lengths)
    hashes = b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in texts)
    content.spool.append("context", np.frombuffer(hashes, np.uint64))
    for data in (lengths.tobytes(), joined, units.n_words.tobytes()):
        content.digest.update(data)


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
        codes = np.array([-1 if label is None else names[label] for label in labels], np.int32)[units.first_word]
        codes_of[f"label/{column}"] = codes
        if not (content.specials and column == SPECIAL):
            content.digest.update(codes.tobytes())
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
