"""Whether an existing store was made by the plan at hand; what can be checked without a model is checked first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from embstore.corpus import Corpus
from embstore.corpus.sentence import PAIR
from embstore.errors import InvalidValueError, StoreDamagedError, StoreFormatError, StoreMismatchError, quoted
from embstore.extraction.options import MAX_SUBWORDS, ExtractionOptions, Window, model_layers
from embstore.extraction.rows import make_index
from embstore.extraction.survey import BLOCK_SENTENCES, Spool, survey
from embstore.extraction.windows import Overlap
from embstore.models.loading import encoder_on
from embstore.spacing import join_marked, marked_words
from embstore.store import Metadata, Store
from embstore.store.backend import exists, open_reader, require_writable
from embstore.store.collection import COMPUTED, FREE, SAME
from embstore.store.conditions import names_in, rows_where
from embstore.store.index import SPECIAL
from embstore.store.layout import RESIDUAL
from embstore.store.source import FileSource
from embstore.store.storage.location import ObjectPath

# Names may differ between machines; the hashes next to them may not.
IGNORED = {"model.name", "model.revision", "corpus.name"}


def require_same_plan(planned: Metadata, stored: Metadata, *, path: Path | ObjectPath) -> None:
    """Raise StoreMismatchError, naming the first difference, if the store was made by another plan."""
    for part in ("corpus", "model", "extraction"):
        _require_equal(part, getattr(planned, part), getattr(stored, part), path)
    for part in ("dtype", "layers", "sites", "hidden_size", "n_rows", "partition_rows", "format_version"):
        _require_equal(part, getattr(planned, part), getattr(stored, part), path)


def require_same_options(planned: Metadata, stored: Metadata, *, path: Path | ObjectPath) -> None:
    """Raise StoreMismatchError, naming the first difference, for a plan whose vectors are of another kind or choice."""
    for part, free in {**FREE, "extraction": COMPUTED}.items():
        now, then = (
            {key: value for key, value in getattr(each, part).items() if key not in free} for each in (planned, stored)
        )
        _require_equal(part, now, then, path)
    for part in SAME:
        _require_equal(part, getattr(planned, part), getattr(stored, part), path)


def _require_equal(name: str, planned: Any, stored: Any, path: Path | ObjectPath) -> None:
    for key, now, then in _differences(name, planned, stored):
        if key not in IGNORED:
            raise StoreMismatchError(
                f"{path} was made with {key} {then!r}, this plan has {now!r}: "
                "give the same options again, or another path for the store"
            )


def _differences(name: str, now: Any, then: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted key, planned, stored) for all values that differ."""
    if isinstance(now, Mapping) and isinstance(then, Mapping):
        for key in (*now, *(key for key in then if key not in now)):
            yield from _differences(f"{name}.{key}", now.get(key), then.get(key))
    elif now != then:
        yield name, now, then


def _is_read_twice(corpus: Corpus) -> bool:
    """Return whether reading a corpus now takes nothing from it, as it would from a pipe or an iterator."""
    return bool(corpus.paths) and all(path.is_file() for path in corpus.paths)


def check_choice(corpus: Corpus, options: ExtractionOptions) -> None:
    """Raise InvalidValueError if a small corpus has no column that the options name, or no word that they choose."""
    keep = options.keep
    named = [column for column in (keep.labelled, keep.per) if isinstance(column, str)]
    names = set() if keep.where is None else names_in(keep.where)
    if not (named or keep.where) or not _is_read_twice(corpus):
        return
    sentences = list(islice(corpus, BLOCK_SENTENCES))
    if len(sentences) == BLOCK_SENTENCES:
        return
    columns = dict.fromkeys(column for sentence in sentences for column in sentence.labels)
    for column in named:
        if column not in columns:
            raise InvalidValueError(
                f"there is no label column {column!r} in {corpus.name}; there are: {', '.join(columns) or 'none'}"
            )
    is_pair = any(PAIR in sentence.words for sentence in sentences)
    if keep.where is None or is_pair or (options.specials and SPECIAL in names):
        return
    # each word is one subword here: how many there are, and which words have none, only the model knows
    own = ExtractionOptions(unit="sentence" if options.unit == "sentence" else "word")
    encoder = encoder_on("cpu", "random:1")
    found = survey(sentences, encoder, own, limit=MAX_SUBWORDS, spool=Spool(), report=lambda n_sentences: None)
    index, _ = make_index(found, options=own, encoder=encoder, limit=MAX_SUBWORDS, overlap=Overlap())
    known = {"word", "position", "source", "text", "length", "from_end", *index.labels}
    if not any(map(len, rows_where(index, keep.where))) and names <= known:
        raise InvalidValueError(
            f"where {quoted(keep.where)} is true for none of the {len(index.type):,} words of {corpus.name}: change it"
        )


def check_store(
    path: Path | ObjectPath, corpus: Corpus, options: ExtractionOptions, contexts: tuple[Window, ...]
) -> None:
    """Refuse a path that no store can have, and a store of another corpus or of other options, without a model.

    Raises InvalidValueError and StoreMismatchError. A damaged store passes, since it may be repaired.
    """
    require_writable(path)
    if not exists(path):
        return
    with suppress(StoreDamagedError, StoreFormatError):
        store = Store(FileSource(open_reader(path)))
        metadata = store.metadata
        if "static" in metadata.extraction:
            return  # its rows are words, which only the plan knows
        known = options.as_json(contexts)
        for name in ("max_length", "batch_subwords"):  # those of the store, unless given
            known[name] = known[name] or metadata.extraction.get(name)
        for name in ("batching", "compute_dtype", "group_partitions"):
            known[name] = metadata.extraction.get(name)
        known |= {name: given for name, given in metadata.extraction.items() if name == "attention"}
        _require_equal("extraction", known, metadata.extraction, path)
        if (depth := metadata.model.get("num_hidden_layers")) is not None:
            _require_equal("layers", model_layers(options.layers, depth), metadata.layers, path)
        _require_equal("dtype", options.dtype, metadata.dtype, path)
        _require_equal("sites", options.sites, tuple(metadata.sites) or (RESIDUAL,), path)
        for name in ("format", "options"):
            _require_equal(f"corpus.{name}", getattr(corpus, name), metadata.corpus.get(name), path)
        if _is_read_twice(corpus):
            _check_first_sentences(store, corpus, path)


def _check_first_sentences(store: Store, corpus: Corpus, path: Path | ObjectPath) -> None:
    """Compare the first sentences of the corpus with those of the store; the plan compares hashes of all."""
    index = store.index
    sentences = [
        join_marked(marked_words(sentence.words, sentence.attached)) for sentence in islice(corpus, BLOCK_SENTENCES)
    ]
    for number, source in enumerate(index.source[:BLOCK_SENTENCES].tolist()):
        if source >= BLOCK_SENTENCES:
            return
        if source >= len(sentences) or index.texts[number] != sentences[source]:
            raise StoreMismatchError(
                f"{path} was made from another corpus: sentence {source} is not that of {corpus.name}; "
                "give the same corpus again, or another path for the store"
            )
