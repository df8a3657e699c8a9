"""The plan of an extraction: which occurrences get which row, what it will cost, before any compute."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from embstore.corpus import Corpus
from embstore.corpus.keep import Keep
from embstore.extraction.encoder_recipe import settle
from embstore.extraction.estimate import Estimate, estimate
from embstore.extraction.options import Options, window_name
from embstore.extraction.partition import PartitionReader
from embstore.extraction.reading import Reading, read
from embstore.extraction.versions import software
from embstore.extraction.windows import Context
from embstore.models.encoder import Encoder, Pooling
from embstore.store import Index, Layout, Metadata
from embstore.store.storage.location import ObjectPath


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
    reading: Reading

    @cached_property
    def layout(self) -> Layout:
        return self.metadata.layout

    def reader(self, contexts: tuple[Context, ...] | None = None) -> PartitionReader:
        """What makes sentences and spans of the rows; `contexts`: other windows than those of the plan."""
        return reader_of(self.index, self.encoder, self.options, contexts=contexts, limit=self.limit)

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
            "occurrences": self.layout.n_rows,
            "types": len(self.index.words),
            "layers": list(self.layout.layers),
            "hidden_size": self.layout.hidden_size,
            "dtype": self.layout.dtype,
            "context_window": self.options.context_window,
            "attention_window": self.options.attention_window,
            "partitions": self.layout.n_partitions,
            "partition_rows": self.layout.partition_rows,
            "dropped": [
                {"reason": drop.reason, "count": drop.count, "examples": list(drop.examples)}
                for drop in self.metadata.dropped
            ],
            **self.estimate.as_json(),
        }

    def __str__(self) -> str:
        return self.described(self._windows_told(), self.estimate)

    def described(self, windows: list[tuple[str, str]], estimate: Estimate) -> str:
        """The plan as lines of text, with what is said of its windows and its cost."""
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
            ("occurrences", f"{layout.n_rows:,} of {len(self.index.words):,} types"),
            *windows,
            *((f"dropped: {drop.reason}", _named(drop.count, drop.examples)) for drop in self.metadata.dropped),
            ("layers", f"{', '.join(map(str, layout.layers))} x {layout.hidden_size} {layout.dtype}"),
            ("partitions", f"{layout.n_partitions:,} of {layout.partition_rows:,} rows"),
            *estimate.lines(),
        ]
        width = min(34, max(len(name) for name, _ in lines))
        return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)

    def _windows_told(self) -> list[tuple[str, str]]:
        options = self.options
        told = []
        if options.attention_window is not None:
            told.append(("attention window", f"{options.attention_window} words left and right"))
        if options.cuts_windows:
            told.append(("context window", f"{window_name(options.context_window)} words left and right"))
        return told


def _named(count: int, examples: tuple[str, ...]) -> str:
    return f"{count:,}" + (f", such as {'; '.join(examples[:3])}" if examples else "")


def plan(
    corpus: str | Path | Corpus | Iterable[Any],
    *,
    model: str | Path | Encoder,
    layers: str | Iterable[int] = "all",
    unit: str = "word",
    pooling: Pooling = "mean",
    context_window: int | None = None,
    attention_window: int | None = None,
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
    store: str | Path | ObjectPath | None = None,
    calibrate: bool = True,
    seed: int = 0,
    progress: Callable[[int], object] | None = None,
) -> Plan:
    """Read a corpus once and fix every row, partition and batch of its extraction.

    `corpus`: a path, an open corpus, or an iterable of sentences. `model`: a local folder, a hub name, or an
    encoder. `layers`: "all", "last", "0,6-12" or numbers. `keep`: which occurrences get a row (default: all).
    `context_window`: give the model only so many words left and right of each target; `attention_window`: give it
    the sentence, each word of which attends to the words so many words away; None: all of the sentence.
    `max_length` and `batch_subwords` count subwords, special ones included; by default a batch is what suits the
    device, on a card what its free memory takes, or what the store that stands at `store` has. `store`: where the
    store will stand, for the free space; `calibrate`: time a batch to project the whole.

    Raises CorpusError, ModelError or InvalidValueError where an input cannot be used.
    """
    options = Options(
        unit=unit,
        pooling=pooling,
        keep=keep or Keep(),
        dtype=dtype,
        max_length=max_length,
        seed=seed,
        context_window=context_window,
        attention_window=attention_window,
    )
    reading = read(
        corpus,
        model=model,
        options=options,
        layers=layers,
        batch_subwords=batch_subwords,
        store=store,
        masks_words=attention_window is not None,
        format=format,
        split=split,
        normalize=normalize,
        columns=columns,
        encoding=encoding,
        device=device,
        compute_dtype=compute_dtype,
        progress=progress,
    )
    return planned(reading, reading.options, store=store, calibrate=calibrate)


def planned(
    reading: Reading,
    options: Options,
    *,
    store: str | Path | ObjectPath | None,
    calibrate: bool,
    stores: int = 1,
    settled: bool = False,
) -> Plan:
    """Make a plan of what was read; `stores`: how many are filled together, for the memory.

    `settled`: the encoder has checked itself for such a plan.
    """
    encoder, index = reading.encoder, reading.index
    if not settled:
        settle(encoder, reading.check_sentences(), reading.layers, options)
    metadata = _metadata(reading, options)
    cost = estimate(
        metadata,
        reading.found,
        encoder,
        options,
        index=index,
        reader=reader_of(index, encoder, options, contexts=None, limit=reading.limit),
        limit=reading.limit,
        store=store,
        calibrate=calibrate,
        stores=stores,
    )
    return Plan(
        metadata=metadata,
        index=index,
        options=options,
        estimate=cost,
        encoder=encoder,
        sentences=reading.found.sentences,
        words=reading.found.words,
        subwords=reading.found.subwords,
        limit=reading.limit,
        reading=reading,
    )


def reader_of(
    index: Index, encoder: Encoder, options: Options, *, contexts: tuple[Context, ...] | None, limit: int
) -> PartitionReader:
    return PartitionReader(
        index,
        unit=options.unit,
        limit=limit,
        contexts=options.contexts if contexts is None else contexts,
        causal=encoder.causal,
        batch_subwords=options.batch_subwords,
    )


def _metadata(reading: Reading, options: Options) -> Metadata:
    encoder, found, source = reading.encoder, reading.found, reading.source
    info, rows = encoder.info, len(reading.index.type)
    layout = Layout.of(n_rows=rows, layers=reading.layers, hidden_size=info.hidden_size, dtype=options.dtype)
    return Metadata(
        n_rows=rows,
        layers=reading.layers,
        hidden_size=info.hidden_size,
        dtype=options.dtype,
        partition_rows=layout.partition_rows,
        model={field: getattr(info, field) for field in info.__dataclass_fields__},
        corpus={
            "name": source.name,
            "format": source.format,
            "options": source.options,
            "n_sentences": found.sentences,
            "n_words": found.words,
            "sha256": found.sha256,
        },
        extraction={
            **options.as_json(),
            "max_length": reading.limit + encoder.n_specials,
            "batching": encoder.batching,
            "compute_dtype": encoder.compute_dtype,
        },
        dropped=reading.dropped,
        software=software(),
    )
