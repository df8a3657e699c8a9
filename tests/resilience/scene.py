"""The extraction that these tests interrupt and damage: its corpus, its plan, and what must come of it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore as es
from embstore.corpus import Sentence
from embstore.errors import MissingRowsError, StoreNotFoundError, UnfinishedStoreWarning
from embstore.models.encoder import Pooled
from embstore.store import Store
from embstore.store.backend import exists
from embstore.store.storage.location import parse_location
from tests.extraction.fake import FakeEncoder
from tests.extraction.oracle import expected_rows
from tests.extraction.plans import plan_of

ROWS = 1200
BACKENDS = (".zarr", ".h5")


class CountingEncoder(FakeEncoder):
    """Counts the rows that it encodes."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def encode(self, *given: Any, **options: Any) -> Iterator[Pooled]:
        for pooled in super().encode(*given, **options):
            self.rows += len(pooled.rows)
            yield pooled


def sentences(*, seed: int = 1, rows: int = ROWS) -> list[Sentence]:
    """Labelled sentences of `rows` words in all: five partitions of 256 rows, the last not full."""
    rng = np.random.default_rng(seed)
    words = np.array(["bank", "river", "the", "of", "money", "extraordinary", "a", "in", "Straße", "naïve"])
    tags = np.array(["noun", "noun", "det", "prep", "noun", "adj", "det", "prep", "noun", "adj"])
    made: list[Sentence] = []
    left = rows
    while left:
        choice = rng.integers(0, len(words), min(left, int(rng.integers(1, 11))))
        classes = [f"class {number % 3}" if number % 2 else None for number in choice.tolist()]
        made.append(Sentence(words[choice].tolist(), {"class": classes, "upos": tags[choice].tolist()}))
        left -= len(choice)
    return made


def make_plan(*, dtype: str = "float32", encoder: FakeEncoder | None = None, **options: object) -> es.extraction.Plan:
    """The plan; partitions are of 256 rows where `embstore.store.layout.SHARD_NBYTES` is 1."""
    corpus = options.pop("corpus", None) or sentences()
    with es.config(progress=False):
        made = plan_of(corpus, model=encoder or FakeEncoder(), dtype=dtype, **options)
    assert made.layout.n_partitions == 5
    return made


@dataclass(frozen=True)
class Reference:
    """A store of an uninterrupted run: its bytes, and the float32 vectors [layer, row, feature] read from it."""

    path: Path
    tree: dict[str, bytes | None]
    vectors: np.ndarray


def make_reference(path: Path, *, dtype: str = "float32") -> Reference:
    """Run the extraction to its end and hold float32 vectors against the oracle."""
    store = es.extract(make_plan(dtype=dtype), path)
    vectors = store.vectors(np.arange(store.n_rows)).astype(np.float32)
    if dtype == "float32":
        expected = expected_rows(sentences(), FakeEncoder(), limit=24, unit="word", pooling="mean", layers=store.layers)
        np.testing.assert_array_equal(vectors, np.stack([row.vectors for row in expected], axis=1))
    assert es.verify(path).ok
    return Reference(path, tree(path), vectors)


def tree(path: Path) -> dict[str, bytes | None]:
    """Every file of a store with its bytes, every folder with None."""
    if path.is_file():
        return {"": path.read_bytes()}
    return {
        file.relative_to(path).as_posix(): None if file.is_dir() else file.read_bytes()
        for file in sorted(path.rglob("*"))
    }


def assert_whole(path: Path, reference: Reference) -> None:
    """The store is finished, byte for byte the reference, and alone in its folder."""
    found = tree(path)
    assert sorted(found) == sorted(reference.tree)
    assert [name for name in found if found[name] != reference.tree[name]] == []
    assert sorted(item.name for item in path.parent.iterdir()) == [path.name]
    assert es.open(path).finished


def open_quietly(path: Path | str) -> tuple[Store, list[str]]:
    """Open a store; returns it with the warnings given."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UnfinishedStoreWarning)
        store = es.open(path)
    return store, [str(warning.message) for warning in caught if warning.category is UnfinishedStoreWarning]


def assert_honest(path: Path | str, reference: Reference) -> str:
    """What an interrupted run left says what is missing and gives only what is right; returns its state."""
    if not exists(parse_location(path)):
        with pytest.raises(StoreNotFoundError):
            es.open(path)
        return "no store"
    store, warned = open_quietly(path)
    report = es.verify(path)
    assert [str(fault) for fault in report.faults] == []
    assert list(report.missing) == np.flatnonzero(~store.source.committed).tolist()
    if store.source.committed.all():
        assert warned == []
    else:
        missing = store.n_rows - store.n_committed_rows
        count = int((~store.source.committed).sum())
        assert len(warned) == 1
        assert f"{missing:,} of {store.n_rows:,} rows ({count} of 5 partitions) are not written yet" in warned[0]
        assert "resume the extraction" in warned[0]
    assert_rows(store, reference)
    if store.finished:
        return "finished"
    return f"{int(store.source.committed.sum())} of 5 partitions"


def assert_rows(store: Store, reference: Reference) -> None:
    """Committed rows are the reference's; the others raise, or are NaN where asked for, and are never zeros."""
    for partition, committed in enumerate(store.source.committed.tolist()):
        start, stop = store.source.layout.span(partition)
        rows = np.arange(start, stop)
        if committed:
            found = store.vectors(rows)
            np.testing.assert_array_equal(found.astype(np.float32), reference.vectors[:, start:stop])
            continue
        for layer in store.layers:
            with pytest.raises(MissingRowsError):
                store.vectors(rows[:1], layers=layer)
            with pytest.raises(MissingRowsError):
                next(iter(store.scan(layer, start, stop)))
            assert np.isnan(store.vectors(rows, layers=layer, missing="nan")).all()
    layer = store.layers[-1]
    seen = [np.arange(first, first + len(block)) for first, block in store.scan(layer, missing="skip")]
    spans = [np.arange(*store.source.layout.span(k)) for k in np.flatnonzero(store.source.committed)]
    np.testing.assert_array_equal(np.concatenate([*seen, []]), np.concatenate([*spans, []]))


def write_tree(found: Mapping[str, bytes | None], path: Path) -> None:
    """Write a store that `tree` has read."""
    for name, data in found.items():
        target = path / name if name else path
        if data is None:
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
