"""The plan of an extraction: which occurrences get which row and what it will cost, before anything is computed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from embstore.arguments import checked
from embstore.config import settings
from embstore.corpus import Corpus, Sentence, open_corpus
from embstore.corpus.splitting import ends_sentence
from embstore.devices import torch_threads
from embstore.errors import CorpusError, EmbstoreError, ExecutorError, InvalidValueError, visible
from embstore.extraction.encoder_spec import EncoderSpec, SelfCheck, software_versions
from embstore.extraction.estimate import Estimate, buffered_nbytes, estimate
from embstore.extraction.options import CLS, ExtractionOptions, model_layers
from embstore.extraction.partition import Groups, Reader, group_partitions
from embstore.extraction.resume import check_store
from embstore.extraction.rows import make_index
from embstore.extraction.survey import Survey, survey
from embstore.extraction.windows import Overlap
from embstore.html import html_table
from embstore.models.encoder import Encoder, subwords_within
from embstore.models.loading import encoder_on
from embstore.models.names import absolute_name, with_begin
from embstore.progress import reporting
from embstore.store import Index, Metadata
from embstore.store.backend import exists, open_reader
from embstore.store.conditions import names_in
from embstore.store.layout import ITEM_NBYTES, RESIDUAL, Layout, partition_rows
from embstore.store.metadata import Dropped
from embstore.store.sinks import SINK_RATIO
from embstore.store.storage.location import ObjectPath, parse_location

UNLIMITED_LENGTH = 1024  # subwords, for a model that has no limit of its own
CHECK_SENTENCES = 4  # of the self-check, each from a quarter of the lengths
N_SHOWN = 3  # sentences that a plan shows
N_TYPES = 100_000  # types that are looked at for advice
SPACELESS = re.compile("[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]{4,}")  # words are rarely that long
MAX_SHOWN = 66  # characters of a sentence: a line of 80 with the name before it


@dataclass(repr=False)
class Plan:
    """What `extract` will do, made by `plan`: the rows of the store, the batches, and the cost.

    `metadata` and `index` are those of the store; `limit`: the longest context in subwords, without special ones;
    `estimate` is the cost; `check`: what the encoder checked itself on. The index is memory-mapped from files without a
    name. Printing a plan shows its figures.
    """

    encoder: Encoder
    options: ExtractionOptions
    metadata: Metadata
    index: Index
    survey: Survey
    limit: int
    estimate: Estimate
    check: SelfCheck

    @cached_property
    def layout(self) -> Layout:
        return self.metadata.layout

    @cached_property
    def groups(self) -> Groups:
        """The partitions that are encoded together."""
        return Groups.of(self.metadata)

    @cached_property
    def advice(self) -> list[str]:
        """What is probably not meant in how the corpus is read, and the batchings that the model refused, by line."""
        survey, options = self.survey, self.metadata.corpus["options"]
        types = list(islice(survey.types, N_TYPES))
        lines = [f"the batching {name} is not used: it {why}" for name, why in self.encoder.refused.items()]
        if self.encoder.sink_ratio > SINK_RATIO:
            lines.append(
                "the first subword of a context is an attention sink: at some layer its vectors are "
                f"{self.encoder.sink_ratio:,.0f} times longer than others (medians): select(sinks=False) is without it"
            )
        n_runs = sum(bool(SPACELESS.search(word)) for word in types)
        if options.get("language") not in (None, "ja", "th", "zh") and 10 * n_runs > len(types):
            lines.append(
                f"{n_runs:,} types are runs of a script without spaces: language=zh (ja, th) finds their words"
            )
        marked = sum(word[-1:] in '.,;:!?"”’)' and any(map(str.isalpha, word)) for word in types)
        if options.get("words") == "spaces" and 10 * marked > len(types):
            share = f"{marked / len(types):.0%} of the types end in a punctuation mark"
            lines.append(f"{share}: words=punctuation (--words punctuation) separates them")
        ends = sum(ends_sentence(str(sentence)) for sentence in survey.sample)
        if options.get("split") == "lines" and len(survey.sample) > N_SHOWN and 2 * ends < len(survey.sample):
            share = f"{1 - ends / len(survey.sample):.0%} of the first {len(survey.sample)} lines do not end a sentence"
            lines.append(f"{share}: split=sentences (--split sentences) finds the sentences")
        capitals = [word for word in types if word != word.lower()][:100]
        if capitals and "lower" not in (options.get("normalize") or ""):
            lowered = list(map(str.lower, capitals))
            both = (self.encoder.tokenize([Sentence(words)]) for words in (capitals, lowered))
            spelled, same = (split.ids.tolist() for split in both)
            if spelled == same:
                word = capitals[0]
                lines.append(f"to the model {word} is {word.lower()}: normalize=lower makes them one (in open_corpus)")
        return lines

    @property
    def encoder_spec(self) -> EncoderSpec:
        """How another process loads the encoder; raises ExecutorError if none can."""
        encoder, batching = self.encoder, self.metadata.extraction["batching"]
        if not encoder.source:
            name = encoder.info.name
            raise ExecutorError(
                f"{name} has options that are not in its name, so no other process can load it: leave out the executor"
            )
        model = absolute_name(encoder.source)
        return EncoderSpec(model, encoder.info, encoder.compute_dtype, batching, self.check, encoder.device_map)

    def use_recorded_batching(self, path: Path | ObjectPath) -> None:
        """Take the batching of a store that exists, since on a GPU another one may be the fastest at the moment."""
        batching = _recorded(path, self.encoder).get("batching")
        if batching not in (None, self.metadata.extraction["batching"]):
            self.check.run(self.encoder, batching)
            extraction = {**self.metadata.extraction, "batching": self.encoder.batching}
            self.metadata = replace(self.metadata, extraction=extraction)

    def as_json(self) -> dict[str, Any]:
        """Return the figures of the plan, valid against `schemas/plan.schema.json`."""
        corpus, content, contexts = self.metadata.corpus, self.survey, self.index.contexts
        n_run = len(self.index.text)
        some = {"tasks": corpus["options"].get("tasks"), "where": self.options.keep.where, "sites": self.metadata.sites}
        if contexts is not None:
            sizes, n_run = contexts.stop - contexts.start, len(self.index.sentences_of(np.arange(len(contexts.start))))
            some |= {"contexts": len(sizes), "subwords_per_context": float(sizes.mean())}
            some["subwords_run_again"] = int(np.maximum(0, contexts.stop[:-1] - contexts.start[1:]).sum())
        return {
            "model": self.encoder.info.name,
            "architecture": self.encoder.info.architecture,
            "batching": self.encoder.batching,
            "corpus": corpus["name"],
            "sentences": content.n_sentences,
            "sentences_to_run": n_run,
            "words": content.n_words,
            "subwords": content.n_subwords,
            "shared_subwords": content.n_shared,
            "tokenize": self.metadata.extraction["tokenize"],
            "occurrences": self.layout.n_rows,
            "types": len(self.index.words),
            "layers": list(self.metadata.layers),
            "hidden_size": self.metadata.hidden_size,
            "dtype": self.layout.dtype,
            **{name: value for name, value in some.items() if value or value == 0},
            "context_window": self.options.context_window,
            "attention_window": self.options.attention_window,
            "partitions": self.metadata.n_partitions,
            "partition_rows": self.layout.partition_rows,
            "group_partitions": self.groups.size,
            "dropped": [{**vars(drop), "examples": list(drop.examples)} for drop in self.metadata.dropped],
            "first_sentences": self._first_sentences(),
            "advice": self.advice,
            **self.estimate.as_json(),
        }

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return html_table(self.summary())

    def text(self, *, verbose: bool = False) -> str:
        """Return the plan as text: its summary, and with `verbose` before it the other figures of `as_json`."""
        lines = self.summary()
        if verbose:
            figures = {**self.as_json(), "dropped": None, "first_sentences": None, "advice": None}
            named = ((name.replace("_", " "), value) for name, value in figures.items() if value is not None)
            lines = [*((name, _figure(value)) for name, value in named), *lines]
        width = max(len(name) for name, _ in lines)
        return visible("\n".join(f"{name:<{width}}  {value}".replace("\n", r"\n") for name, value in lines))

    def summary(self) -> list[tuple[str, str]]:
        """Return what will be stored, how large and how long, the first sentences as they were split, and notes."""
        layout, layers, info = self.layout, self.metadata.layers, self.encoder.info
        sentences = [" · ".join(words[:MAX_SHOWN]) for words in self._first_sentences()]
        sentences = [text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…" for text in sentences]
        dropped = [(drop, "; ".join(drop.examples[:3])) for drop in self.metadata.dropped]
        whole = len(layers) > 2 and layers[-1] - layers[0] + 1 == len(layers)
        chosen = f"{layers[0]} to {layers[-1]}" if whole else ", ".join(map(str, layers))
        return [
            ("stored", f"{layout.n_rows:,} occurrences of {len(self.index.words):,} types"),
            ("layers", f"{chosen} of {info.name}, {info.hidden_size} {layout.dtype}"),
            *self.estimate.lines(),
            *((f"sentence {n}", text) for n, text in enumerate(sentences, 1)),
            *(("dropped", f"{drop.count:,} {drop.reason}{some and f', such as {some}'}") for drop, some in dropped),
            *(("note", line) for line in self.advice),
        ]

    def _first_sentences(self) -> list[list[str]]:
        return [list(sentence.words) for sentence in self.survey.sample[:N_SHOWN]]


def _figure(value: Any) -> str:
    if isinstance(value, Mapping):
        value = [f"{name} ({size})" for name, size in value.items()]
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if type(value) is int else str(value)


@checked
def plan(
    corpus: str | Path | Corpus | Iterable[Any],
    *,
    model: str | Path | Encoder,
    options: ExtractionOptions | None = None,
    compute_dtype: str = "auto",
    store: str | Path | ObjectPath | None = None,
    calibrate: bool = True,
) -> Plan:
    """Fix every row, partition and batch of an extraction, and estimate its cost, in one pass over the corpus.

    Example::

        corpus = es.open_corpus("novel.txt", split="sentences")
        options = es.ExtractionOptions(layers=[0, -1], keep=es.corpus.Keep(max_contexts=100))
        plan = es.plan(corpus, model="minilm", options=options)  # shows the cost
        store = es.extract(plan, "novel.zarr")

    Parameters
    ----------
    corpus : str, Path, Corpus or iterable
        A corpus from `open_corpus`, a path, or sentences.
    model : str, Path or Encoder
        What `load_encoder` takes, or an encoder.
    options : ExtractionOptions or None
        What the store holds; by default all layers of all words as float16.
    compute_dtype : str
        That of `load_encoder`.
    store : str, Path or None
        Where the store will be written: the free space there is reported, and a store that exists there and has
        another corpus or other options is refused before the model is loaded.
    calibrate : bool
        Whether to time a few batches, to project the time of the whole.

    Returns
    -------
    Plan

    Raises
    ------
    CorpusError, ModelError, InvalidValueError, StoreMismatchError
        If an input cannot be used.
    """
    options = options or ExtractionOptions()
    if options.keep.where is not None:
        names_in(options.keep.where)  # before the model is loaded
    source = open_corpus(corpus)
    if store is not None:
        check_store(parse_location(store), source, options)
    with torch_threads(settings().threads):
        return _plan(source, model, options, compute_dtype=compute_dtype, store=store, calibrate=calibrate)


def _plan(
    corpus: Corpus,
    model: str | Path | Encoder,
    options: ExtractionOptions,
    *,
    compute_dtype: str,
    store: str | Path | ObjectPath | None,
    calibrate: bool,
) -> Plan:
    """Load the model, read the corpus and make the plan; a store that exists keeps its batch size and batching."""
    encoder = model if options.begin == "auto" else with_begin(model, options.begin)
    if isinstance(encoder, str | Path):
        encoder = encoder_on(settings().device, encoder, compute_dtype=compute_dtype)
    if options.attention_window is not None and not encoder.masks_attention:
        raise InvalidValueError(
            f"attention windows need a transformer, whose attention can be masked; {encoder.info.architecture} has "
            "none: use context windows"
        )
    layers = model_layers(options.layers, encoder.info.num_hidden_layers)
    n_features = len(layers) * sum(encoder.site_sizes(options.sites).values())
    if options.batch_subwords is None:
        held = partial(buffered_nbytes, n_features=n_features, dtype=options.dtype)
        size = _recorded(store, encoder).get("batch_subwords") or encoder.batch_subwords_next_to(
            held, n_features=n_features
        )
        options = replace(options, batch_subwords=size)
    if layers == (0,) and options.sites != (RESIDUAL,):
        raise InvalidValueError("layer 0 comes before the first block and has the site residual only: add other layers")
    limit = _length_limit(encoder, options)
    if options.specials and not any(encoder.special_ids):
        raise InvalidValueError(f"{encoder.info.name} adds no special tokens to a sentence: leave out specials")
    if options.pooling == CLS and encoder.cls_place is None:
        raise InvalidValueError(f"{encoder.info.name} adds no [CLS] to a sentence: choose pooling mean, first or last")
    with reporting(settings().progress, unit="sentences", label="plan") as report:
        content = survey(corpus, encoder, options, limit=limit, report=report)
    overlap = Overlap.of(options, limit=limit, causal=encoder.causal)
    index, dropped = make_index(content, options=options, encoder=encoder, limit=limit, overlap=overlap)
    if not len(index.type):
        reasons = "; ".join(f"{drop.count:,} {drop.reason}" for drop in dropped)
        raise CorpusError(f"{corpus.name}: no word is left to extract of {content.n_words:,} ({reasons})")
    # Of every length a few check the encoder.
    ordered = sorted((list(sentence.words) for sentence in content.sample), key=len)
    step = max(1, len(ordered) // CHECK_SENTENCES)
    chosen, n_subwords = ordered[step // 2 :: step][:CHECK_SENTENCES], int(index.text.subword_indptr[-1])
    check = SelfCheck(chosen, min(content.longest, limit), n_subwords, layers, options)
    check.run(encoder, _recorded(store, encoder).get("batching"))
    reader = Reader(encoder, options, limit)
    metadata = _metadata(corpus, reader, layers, content, index, dropped)
    cost = estimate(content, index, reader, metadata=metadata, store=store, calibrate=calibrate)
    return Plan(encoder, options, metadata, index, content, limit, cost, check)


def _recorded(store: str | Path | ObjectPath | None, encoder: Encoder) -> Mapping[str, Any]:
    """Return the recorded options of the store that exists, if some that the encoder chooses vary."""
    if store is not None and encoder.choices_vary:
        with suppress(EmbstoreError):  # what cannot be read is reported when it is written to
            place = parse_location(store)
            if exists(place):
                return open_reader(place).metadata.extraction
    return {}


def _length_limit(encoder: Encoder, options: ExtractionOptions) -> int:
    """Return the longest context in subwords, without special ones."""
    own, n_specials = encoder.info.max_subwords, encoder.n_specials
    name, length = ("context", options.context) if options.is_blocks else ("max length", options.max_length)
    if length is None:
        length = (UNLIMITED_LENGTH if own is None else own) + n_specials
    limit = subwords_within(name, int(length), encoder.info, n_specials)
    if options.min_left is not None and options.min_left >= limit:
        raise InvalidValueError(
            f"min left {options.min_left} leaves no space in a context of {limit + n_specials} subwords, {n_specials} "
            f"of them special: give {limit - 1} or less"
        )
    return limit


def _metadata(
    corpus: Corpus, reader: Reader, layers: tuple[int, ...], content: Survey, index: Index, dropped: tuple[Dropped, ...]
) -> Metadata:
    encoder, options, info, n_rows = reader.encoder, reader.options, reader.encoder.info, len(index.type)
    sizes = encoder.site_sizes(options.sites)
    n_layers = {site: len(layers) - (site != RESIDUAL and 0 in layers) for site in sizes}
    n_features = sum(n_layers[site] * size for site, size in sizes.items())
    rows = partition_rows(n_rows, n_features, options.dtype)
    group = group_partitions(
        -(-n_rows // rows),
        partition_rows=rows,
        partition_nbytes=rows * n_features * ITEM_NBYTES[options.dtype],
        batch_subwords=options.batch_subwords or 1,
        longest_context=0 if index.contexts is None else content.longest,
    )
    return Metadata(
        n_rows=n_rows,
        layers=layers,
        hidden_size=info.hidden_size,
        dtype=options.dtype,
        partition_rows=rows,
        sites={} if options.sites == (RESIDUAL,) else sizes,
        model={field: getattr(info, field) for field in info.__dataclass_fields__},
        corpus={
            "name": corpus.name,
            "format": corpus.format,
            "options": corpus.options,
            "n_sentences": content.n_sentences,
            "n_words": content.n_words,
            "shared_subwords": content.n_shared,
            "sha256": content.digest.hexdigest(),
        },
        extraction={
            **options.as_json(),
            "tokenize": options.tokenize if encoder.reads_text else "words",
            "max_length": reader.limit + encoder.n_specials,
            "batching": encoder.batching,
            "compute_dtype": encoder.compute_dtype,
            "group_partitions": group,
            **({} if options.sites == (RESIDUAL,) else {"attention": dict(encoder.attention)}),
        },
        dropped=dropped,
        software=software_versions(),
        fields={name: own.kind for name, own in index.fields.items()},
    )
