"""Compute partitions of a virtual store again, from its index, its metadata and its model."""

from __future__ import annotations

from functools import lru_cache

from embstore.config import settings
from embstore.devices import torch_threads
from embstore.errors import InvalidValueError, ModelError
from embstore.extraction.append import stored_options
from embstore.extraction.partition import Groups, Part
from embstore.extraction.worker import Job, Task, Worker
from embstore.models.encoder import Encoder
from embstore.models.loading import encoder_on
from embstore.models.origin import find_model, require_same_model
from embstore.progress import Counter, reporting
from embstore.recomputing import Take
from embstore.store import Store
from embstore.store.backend import Reader
from embstore.store.source import FileSource

_loaded = lru_cache(maxsize=1)(encoder_on)


def recompute(reader: Reader, number: int, take: Take, model: str | None) -> None:
    """Encode the partitions again that are encoded together with partition `number`, and give `take` each.

    `model`: where its model is, if that is known. Raises InvalidValueError for a store that embstore has not extracted,
    ModelError where its model is not found or has other weights.
    """
    store = Store(FileSource(reader))
    encoder = encoder_of(store, model)
    metadata, options = store.metadata, stored_options(store.metadata)
    limit = int(metadata.extraction["max_length"]) - encoder.n_specials
    groups = Groups.of(metadata)
    group = number % metadata.layout.n_partitions // groups.size
    start, stop = groups.span(group)
    missing = dict.fromkeys(groups.partitions(group), tuple(range(len(metadata.layouts))))
    task = Task(Part.of(store.index, start, stop), missing)
    job = Job(metadata, options, limit, store.source.center)
    label = f"compute rows {start:,}-{stop - 1:,} of {store.path.name} again"
    with torch_threads(settings().threads), reporting(None, total=stop - start, unit="words", label=label) as report:
        for _ in Worker(encoder, job, take, on_rows=Counter(report).add).run([task]):
            pass


def encoder_of(store: Store, place: str | None = None) -> Encoder:
    """Load the model of a store, from `place` if that is known, to compute as it did; it is loaded once."""
    model, extraction = store.metadata.model, store.metadata.extraction
    needed = {"batching", "compute_dtype", "batch_subwords", "max_length", "group_partitions"}
    if not needed <= extraction.keys() or not model.get("weights_sha256"):
        raise InvalidValueError(f"{store.path} cannot be computed again: it was not made by `embstore extract`")
    place = find_model(store, place)
    options = {"compute_dtype": extraction["compute_dtype"], "revision": model["revision"]}
    encoder = _loaded(settings().device, place, **options)
    require_same_model(store, encoder, place)
    try:
        encoder.use_batching(extraction["batching"])
    except InvalidValueError as error:
        raise ModelError(f"{store.path} cannot be computed again on {encoder.device}: {error}") from None
    return encoder
