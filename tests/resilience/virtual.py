"""Thinning, and computing partitions again into the cache, as work that is cut off; the cache is next to the folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np

import embstore as es
from tests.extraction.fake import FakeEncoder
from tests.resilience.scene import Reference, assert_honest, make_plan, tree

NAME = "store.zarr"


@contextmanager
def _computing(cache: Path) -> Iterator[None]:
    """Compute vectors again with the encoder of the tests, into `cache`."""
    with (
        mock.patch("embstore.extraction.recompute.encoder_of", return_value=FakeEncoder()),
        mock.patch.dict(os.environ, EMBSTORE_CACHE=str(cache)),
    ):
        yield


def cache_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name} cache")


def thin(folder: Path) -> None:
    with _computing(cache_of(folder)):
        es.store.thin(folder / NAME)


def state(folder: Path, reference: Reference) -> str:
    """Every row is that of the full store, whether it is stored or computed; names what is stored."""
    with _computing(cache_of(folder)):
        assert_honest(folder / NAME, reference)
        store = es.open(folder / NAME)
    whole = reference.tree["hidden_states/c/0/0/0"]
    assert whole is not None
    sizes = [file.stat().st_size for file in sorted((folder / NAME).glob("hidden_states/c/0/*/0"))]
    return "declared" * store.metadata.virtual + f" {sum(size >= len(whole) for size in sizes)} whole"


def make_virtual(folder: Path) -> None:
    es.extract(make_plan(), folder / NAME, virtual=True)


def read_all(folder: Path) -> None:
    with _computing(folder / "cache"):
        es.open(folder / NAME).vectors(np.arange(1200)[::-1])


def cached(folder: Path) -> dict[str, bytes | None]:
    """The store and the files of the cache that are whole; what a killed process left there is removed in time."""
    return {name: data for name, data in tree(folder).items() if not name.endswith(".partial")}


def state_of_cache(folder: Path, reference: Reference) -> str:
    found = cached(folder)
    with _computing(folder / "cache"):
        assert_honest(folder / NAME, reference)
    assert {name: data for name, data in cached(folder).items() if name in found} == found
    return f"{sum(name.endswith('.cached') for name in found)} cached"
