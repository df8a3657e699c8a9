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


def require_recomputable(store: Store) -> None:
    """Raise InvalidValueError for a store whose rows no model of this package has made."""
    needed = {"batching", "compute_dtype", "batch_subwords", "max_length", "group_partitions"} - set(
        store.metadata.extraction
    )
    if needed or not store.metadata.model.get("weights_sha256"):
        raise InvalidValueError(
            f"{store.path} cannot be computed again: it was not made by `embstore extract` but imported or exported"
        )


def encoder_of(store: Store, place: str | None = None) -> Encoder:
    """Load the model of a store, from `place` if that is known, to compute as it did; it is loaded once."""
    require_recomputable(store)
    model, extraction = store.metadata.model, store.metadata.extraction
    place = find_model(store, place)
    encoder = _loaded(settings().device, place, extraction["compute_dtype"], model["revision"])
    require_same_model(store, encoder, place)
    try:
        encoder.use_batching(extraction["batching"])
    except InvalidValueError as error:
        raise ModelError(f"{store.path} cannot be computed again on {encoder.device}: {error}") from None
    return encoder


@lru_cache(maxsize=1)
def _loaded(device: str, place: str, compute_dtype: str, revision: str | None) -> Encoder:
    return encoder_on(device, place, compute_dtype=compute_dtype, revision=revision)
