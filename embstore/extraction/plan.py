"""The plan of an extraction: which occurrences get which row, what it will cost, before any compute."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from embstore.corpus import Corpus, Sentence, open_corpus
from embstore.corpus.keep import Keep
from embstore.errors import CorpusError, InvalidValueError
from embstore.extraction.estimate import Estimate, estimate
from embstore.extraction.options import UNLIMITED_LENGTH, Options, parse_layers
from embstore.extraction.rows import index_of
from embstore.extraction.spool import Spool
from embstore.extraction.survey import Survey, survey
from embstore.extraction.versions import software
from embstore.models import load_encoder
from embstore.models.encoder import Encoder, Pooling
from embstore.store import Index, Layout, Metadata

CHECK_SENTENCES = 8


@dataclass
class Plan:
    """What `extract` will do: `metadata` and `index` of the store to be, and `estimate`, what it will cost.

    The index is memory-mapped from a temporary folder that lives as long as the plan.
    """

    metadata: Metadata
    index: Index
    options: Options
    estimate: Estimate
    encoder: Encoder
    sentences: int
    words: int
    subwords: int
    limit: int
    spool: Spool

    @cached_property
    def layout(self) -> Layout:
        return self.metadata.layout

    def as_json(self) -> dict[str, Any]:
        """The plan's figures, valid against `schemas/plan.schema.json`."""
        return {
            "model": self.encoder.info.name,
            "architecture": self.encoder.info.architecture,
            "batching": self.encoder.batching,
            "corpus": self.metadata.corpus["name"],
            "sentences": self.sentences,
            "words": self.words,
            "subwords": self.subwords,
            "occurrences": self.layout.rows,
            "types": len(self.index.words),
            "layers": list(self.layout.layers),
            "hidden_size": self.layout.hidden_size,
            "dtype": self.layout.dtype,
            "partitions": self.layout.partitions,
            "partition_rows": self.layout.partition_rows,
            "dropped": [
                {"reason": drop.reason, "count": drop.count, "examples": list(drop.examples)}
                for drop in self.metadata.dropped
            ],
            **self.estimate.as_json(),
        }

    def __str__(self) -> str:
        layout = self.layout
        lines = [
            (
                "model",
                f"{self.encoder.info.name} ({self.encoder.info.architecture}, {self.encoder.batching})",
            ),
            ("corpus", f"{self.metadata.corpus['name']} ({self.metadata.corpus['format']})"),
            ("sentences", f"{self.sentences:,}"),
            ("words", f"{self.words:,}"),
            ("subwords", f"{self.subwords:,}"),
            ("occurrences", f"{layout.rows:,} of {len(self.index.words):,} types"),
            *((f"dropped: {drop.reason}", _named(drop.count, drop.examples)) for drop in self.metadata.dropped),
            ("layers", f"{', '.join(map(str, layout.layers))} x {layout.hidden_size} {layout.dtype}"),
            ("partitions", f"{layout.partitions:,} of {layout.partition_rows:,} rows"),
            *self.estimate.lines(),
        ]
        width = min(34, max(len(name) for name, _ in lines))
        return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)


def _named(count: int, examples: tuple[str, ...]) -> str:
    return f"{count:,}" + (f", such as {'; '.join(examples[:3])}" if examples else "")


def plan(
    corpus: str | Path | Corpus | Iterable[Any],
    *,
    model: str | Path | Encoder,
    layers: str | Iterable[int] = "all",
    unit: str = "word",
    pooling: Pooling = "mean",
    keep: Keep | None = None,
    dtype: str = "float16",
    max_length: int | None = None,
    batch_subwords: int | None = None,
    format: str | None = None,
    split: str | None = None,
    normalize: str | None = None,
    columns: str | None = None,
    encoding: str | None = None,
    device: str = "auto",
    compute_dtype: str = "auto",
    store: str | Path | None = None,
    calibrate: bool = True,
    seed: int = 0,
    progress: Callable[[int], object] | None = None,
) -> Plan:
    """Read a corpus once and fix every row, partition and batch of its extraction.

    `corpus`: a path, an open corpus, or an iterable of sentences. `model`: a local folder, a hub name, or an
    encoder. `layers`: "all", "last", "0,6-12" or numbers. `keep`: which occurrences get a row (default: all).
    `max_length` and `batch_subwords` count subwords, special ones included. `store`: where the store will stand,
    for the free space; `calibrate`: time a batch to project the whole.

    Raises CorpusError, ModelError or InvalidValueError where an input cannot be used.
    """
    options = Options(
        unit=unit,
        pooling=pooling,
        keep=keep or Keep(),
        dtype=dtype,
        max_length=max_length,
        batch_subwords=2048 if batch_subwords is None else batch_subwords,
        seed=seed,
    )
    source = open_corpus(
        corpus, format=format, split=split, normalize=normalize, columns=columns, **_given(encoding=encoding)
    )
    encoder = _loaded(model, device=device, compute_dtype=compute_dtype)
    if batch_subwords is None:
        options = replace(options, batch_subwords=encoder.default_batch_subwords)
    chosen = parse_layers(layers, num_hidden_layers=encoder.info.num_hidden_layers)
    limit = _limit(encoder, options.max_length)
    spool = Spool()
    found = survey(source, encoder, limit=limit, keep_ids=unit == "subword", spool=spool, progress=progress)
    index, dropped = index_of(found, keep=options.keep, unit=unit, encoder=encoder)
    if not len(index.type):
        reasons = "; ".join(f"{drop.count:,} {drop.reason}" for drop in dropped)
        raise CorpusError(f"{source.name}: no word is left to extract of {found.words:,} ({reasons})")
    tokenized = encoder.tokenize(_check_sentences(found))
    encoder.self_check(tokenized, layers=chosen, pooling=pooling)
    metadata = _metadata(source, found, encoder, options, chosen, len(index.type), limit)
    metadata = replace(metadata, dropped=dropped)
    cost = estimate(metadata, found, encoder, options, store=store, calibrate=calibrate, index=index, limit=limit)
    return Plan(
        metadata=metadata,
        index=index,
        options=options,
        estimate=cost,
        encoder=encoder,
        sentences=found.sentences,
        words=found.words,
        subwords=found.subwords,
        limit=limit,
        spool=spool,
    )


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _loaded(model: str | Path | Encoder, *, device: str, compute_dtype: str) -> Encoder:
    if isinstance(model, str | Path):
        return load_encoder(model, device=device, compute_dtype=compute_dtype)
    return model


def _limit(encoder: Encoder, max_length: int | None) -> int:
    """The longest sentence in subwords, specials not counted."""
    own = encoder.info.max_subwords
    if max_length is None:
        return UNLIMITED_LENGTH if own is None else own
    limit = max_length - encoder.num_specials
    if limit < 1:
        raise InvalidValueError(
            f"max length {max_length} leaves no room for words: the model adds {encoder.num_specials} special "
            f"subwords to a sentence; give {encoder.num_specials + 1} or more"
        )
    if own is not None and limit > own:
        raise InvalidValueError(
            f"max length {max_length} is more than the model takes: give {own + encoder.num_specials} or less"
        )
    return limit


def _check_sentences(found: Survey) -> list[list[str]]:
    """A few sentences of every length for the encoder's self-check."""
    ordered = sorted(found.sample, key=len)
    step = max(1, len(ordered) // CHECK_SENTENCES)
    return ordered[::-1][::step][:CHECK_SENTENCES]


def _metadata(
    source: Iterable[Sentence],
    found: Survey,
    encoder: Encoder,
    options: Options,
    layers: tuple[int, ...],
    rows: int,
    limit: int,
) -> Metadata:
    assert isinstance(source, Corpus)
    info = encoder.info
    layout = Layout.of(rows=rows, layers=layers, hidden_size=info.hidden_size, dtype=options.dtype)
    return Metadata(
        rows=rows,
        layers=layers,
        hidden_size=info.hidden_size,
        dtype=options.dtype,
        partition_rows=layout.partition_rows,
        model={field: getattr(info, field) for field in info.__dataclass_fields__},
        corpus={
            "name": source.name,
            "format": source.format,
            "options": source.options,
            "sentences": found.sentences,
            "words": found.words,
            "sha256": found.sha256,
        },
        extraction={
            **options.as_json(),
            "max_length": limit + encoder.num_specials,
            "batching": encoder.batching,
            "compute_dtype": encoder.compute_dtype,
        },
        software=software(),
    )
