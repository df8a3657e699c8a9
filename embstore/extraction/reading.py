"""The one reading of a corpus that plans are made of: its rows, and the encoder that they are for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from embstore.corpus import Corpus, open_corpus
from embstore.errors import CorpusError, EmbstoreError, InvalidValueError
from embstore.extraction.options import UNLIMITED_LENGTH, Options, parse_layers
from embstore.extraction.rows import index_of
from embstore.extraction.spool import Spool
from embstore.extraction.survey import Survey, survey
from embstore.models import load_encoder
from embstore.models.encoder import Encoder
from embstore.store import Index
from embstore.store.backend import exists, open_reader
from embstore.store.metadata import Dropped
from embstore.store.storage.location import ObjectPath, parse_location

CHECK_SENTENCES = 8


@dataclass
class Reading:
    """What a corpus gives, whatever the windows: the rows do not depend on them.

    `limit`: the longest sentence in subwords, specials not counted. The index is memory-mapped from `spool`, a
    temporary folder that lives as long as this.
    """

    source: Corpus
    encoder: Encoder
    options: Options
    layers: tuple[int, ...]
    limit: int
    found: Survey
    index: Index
    dropped: tuple[Dropped, ...]
    spool: Spool

    def check_sentences(self) -> list[list[str]]:
        """A few sentences of every length for the encoder's self-check."""
        ordered = sorted(self.found.sample, key=len)
        step = max(1, len(ordered) // CHECK_SENTENCES)
        return ordered[::-1][::step][:CHECK_SENTENCES]


def read(
    corpus: str | Path | Corpus | Iterable[Any],
    *,
    model: str | Path | Encoder,
    options: Options,
    layers: str | Iterable[int] = "all",
    batch_subwords: int | None = None,
    store: str | Path | ObjectPath | None = None,
    masks_words: bool = False,
    format: str | None = None,
    split: str | None = None,
    normalize: str | None = None,
    columns: str | None = None,
    encoding: str | None = None,
    device: str = "auto",
    compute_dtype: str = "auto",
    progress: Callable[[int], object] | None = None,
) -> Reading:
    """Read a corpus; see `embstore.extraction.plan.plan`. `masks_words`: an attention window is wanted.

    `store`: where the store will stand, or stands: then it is gone on with in batches of its size, where the size would
    else depend on the memory that is free today.
    """
    if batch_subwords is not None:
        options = replace(options, batch_subwords=batch_subwords)
    source = open_corpus(
        corpus, format=format, split=split, normalize=normalize, columns=columns, **_given(encoding=encoding)
    )
    encoder = _loaded(model, device=device, compute_dtype=compute_dtype)
    if masks_words and not encoder.masks_attention:
        raise InvalidValueError(
            f"attention windows need a transformer, whose attention can be masked; {encoder.info.architecture} has "
            "none: use context windows"
        )
    if batch_subwords is None:
        options = replace(options, batch_subwords=_standing_batch(store, encoder) or encoder.default_batch_subwords)
    chosen = parse_layers(layers, num_hidden_layers=encoder.info.num_hidden_layers)
    limit = _limit(encoder, options.max_length)
    spool = Spool()
    by_subword = options.unit == "subword"
    found = survey(source, encoder, limit=limit, keep_ids=by_subword, spool=spool, progress=progress)
    index, dropped = index_of(found, keep=options.keep, unit=options.unit, encoder=encoder)
    if not len(index.type):
        reasons = "; ".join(f"{drop.count:,} {drop.reason}" for drop in dropped)
        raise CorpusError(f"{source.name}: no word is left to extract of {found.words:,} ({reasons})")
    return Reading(source, encoder, options, chosen, limit, found, index, dropped, spool)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _loaded(model: str | Path | Encoder, *, device: str, compute_dtype: str) -> Encoder:
    if isinstance(model, str | Path):
        return load_encoder(model, device=device, compute_dtype=compute_dtype)
    return model


def _standing_batch(store: str | Path | ObjectPath | None, encoder: Encoder) -> int | None:
    """The batches of the store that stands there; None where there is none, or the encoder's own never change."""
    if store is None or not encoder.batch_depends_on_memory:
        return None
    place = parse_location(store)
    with suppress(EmbstoreError):  # what cannot be read is said when it is written to
        if exists(place):
            return int(open_reader(place).metadata.extraction["batch_subwords"])
    return None


def _limit(encoder: Encoder, max_length: int | None) -> int:
    """The longest sentence in subwords, specials not counted."""
    own = encoder.info.max_subwords
    if max_length is None:
        return UNLIMITED_LENGTH if own is None else own
    limit = max_length - encoder.n_specials
    if limit < 1:
        raise InvalidValueError(
            f"max length {max_length} leaves no room for words: the model adds {encoder.n_specials} special "
            f"subwords to a sentence; give {encoder.n_specials + 1} or more"
        )
    if own is not None and limit > own:
        raise InvalidValueError(
            f"max length {max_length} is more than the model takes: give {own + encoder.n_specials} or less"
        )
    return limit
