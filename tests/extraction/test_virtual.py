"""Virtual and thinned stores read as the stores that they were, whatever is interrupted, evicted, changed or gone."""

from __future__ import annotations

import os
import pickle
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from numpy.typing import NDArray

import embstore as es
from embstore import recomputing
from embstore.errors import (
    InvalidValueError,
    MissingRowsError,
    ModelError,
    RecomputedWarning,
    StorageError,
    StoreDamagedError,
)
from embstore.executors import Processes
from embstore.extraction import recompute as recompute_module
from embstore.store.storage.local import LocalStorage
from embstore.store.virtual.fingerprints import STEP, signs
from embstore.store.virtual.recomputed import require_near
from embstore.store.zarr.reader import ZarrReader
from embstore.store.zarr.writer import ZarrWriter
from tests.extraction.plans import plan_of
from tests.extraction.test_pipeline import small_partitions
from tests.models import tiny
from tests.store.example import all_files, flip
from tests.store_making import make_store

thin = es.store.thin


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with partitions of 256 rows, encoded several at a time, and a cache of its own."""
    small_partitions(monkeypatch)
    monkeypatch.setattr("embstore.extraction.partition.FEW_GROUPS", 2)
    monkeypatch.setenv("EMBSTORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("EMBSTORE_MODEL", raising=False)
    return tmp_path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save("bert", tmp_path_factory.mktemp("models") / "bert")


def sentences(count: int = 100) -> list[Any]:
    return [es.corpus.Sentence(words, {"upos": ["X" if len(word) % 2 else "Y" for word in words]}) for words in
            tiny.random_sentences(count, seed=1)]  # fmt: skip


def plan(model: Path, **options: Any) -> es.extraction.Plan:
    return plan_of(sentences(), model=model, **options)


def everything(store: es.Store) -> list[NDArray[Any]]:
    """The vectors of all sites and layers, gathered in a random order."""
    rows = np.random.default_rng(0).permutation(store.n_rows)
    return [store.site(site).vectors(rows) for site in store.sites]


def assert_same(found: es.Store, expected: es.Store) -> None:
    for own, other in zip(everything(found), everything(expected), strict=True):
        assert own.tobytes() == other.tobytes()
    assert found.digest == expected.digest


def forget(place: Path) -> None:
    """Empty the cache, but remember where models are."""
    for file in (place / "cache").glob("*.cached"):
        file.unlink()


def cached(place: Path) -> int:
    return len(list((place / "cache").glob("*.cached")))


OPTIONS: dict[str, dict[str, Any]] = {
    "int8": {"dtype": "int8"},
    "float16": {},
    "float32": {"dtype": "float32", "layers": [0, 2]},
    "bfloat16": {"dtype": "bfloat16", "unit": "subword"},
    "sites": {"sites": ("residual", "query"), "specials": True},
    "windows": {"context_window": 2},
    "attention": {"attention_window": 1},
    "documents": {"context": 24},
    "sentences": {"unit": "sentence", "pooling": "last"},
}


@pytest.mark.parametrize("name", ["int8", *(pytest.param(each, marks=pytest.mark.slow) for each in list(OPTIONS)[1:])])
def test_virtual_and_thinned_stores_have_the_vectors_of_the_full_one(place: Path, model: Path, name: str) -> None:
    made = plan(model, **OPTIONS[name])
    full = es.extract(made, place / "full.zarr")
    assert 1 < made.groups.size < made.layout.n_partitions or name == "sentences"
    virtual = es.extract(made, place / "virtual.zarr", virtual=True)
    assert virtual.finished
    assert cached(place) == 0
    assert not list((place / "virtual.zarr").glob("[hqs]*/c"))
    assert_same(virtual, full)
    assert es.verify(virtual.path).ok
    shutil.copytree(full.path, place / "thin.zarr")
    thinned = thin(place / "thin.zarr")
    assert thinned.metadata.virtual
    assert es.verify(thinned.path).ok
    forget(place)
    assert_same(thinned, full)
    assert all_files(thinned.path) == all_files(virtual.path)


@pytest.mark.slow
def test_other_processes_read_it_too(place: Path, model: Path) -> None:
    made = plan(model)
    full = es.extract(made, place / "full.zarr")
    with Processes(2) as executor:
        virtual = es.extract(made, place / "virtual.zarr", virtual=True, executor=executor)
        assert all_files(virtual.path) == all_files(thin(full.path).path)
        rows = np.arange(full.n_rows)
        futures = [executor.submit(virtual.vectors, rows, layers=1) for _ in range(4)]
        assert len({future.result().tobytes() for future in futures}) == 1


def virtual_store(place: Path, model: Path, **options: Any) -> tuple[es.Store, es.Store]:
    """Return a full and a virtual store of the same plan."""
    made = plan(model, **options)
    full = es.extract(made, place / "full.zarr")
    return full, es.extract(made, place / "virtual.zarr", virtual=True)


@pytest.mark.slow
def test_an_executor_needs_no_more_than_the_cache_holds(
    place: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, virtual = virtual_store(place, model)
    shard = max(file.stat().st_size for file in full.path.glob("hidden_states/c/0/*/0"))
    for partitions in (1, 2):
        monkeypatch.setenv("EMBSTORE_CACHE_GIB", str((partitions * shard + 1) / 2**30))
        forget(place)
        with pytest.warns(RecomputedWarning, match="computed more than once: .* exceed the cache"):
            assert_same(pickle.loads(pickle.dumps(es.open(virtual.path))), full)
        assert 1 <= cached(place) <= partitions
    monkeypatch.setenv("EMBSTORE_CACHE_GIB", str((shard - 1) / 2**30))
    with pytest.raises(InvalidValueError, match=r"more than the cache of .*: set EMBSTORE_CACHE_GIB to more"):
        es.open(virtual.path).vectors([0], layers=0)


def test_a_partition_is_computed_once_and_only_where_it_is_read(
    place: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, virtual = virtual_store(place, model)
    numbers: list[int] = []
    compute = recompute_module.recompute

    def counted(reader: Any, number: int, *rest: Any) -> None:
        numbers.append(number)
        compute(reader, number, *rest)

    recomputing.register(counted)
    try:
        virtual.vectors([300, 301], layers=2)
        assert cached(place) < virtual.source.layout.n_partitions
        once = len(numbers)
        for store in (virtual, es.open(virtual.path)):
            store.vectors([257, 300], layers=0)
            next(store.scan(1, 260, 270))
        assert len(numbers) == once == 1
    finally:
        recomputing.register(es._recompute)  # type: ignore[attr-defined]


def changing(change: Callable[[NDArray[Any]], None]) -> Callable[..., None]:
    """Return a function that computes partitions again, with changed vectors."""

    def compute(reader: Any, number: int, take: recomputing.Take, model: str | None) -> None:
        def changed(number: int, arrays: Any) -> None:
            copies = {name: array.copy() for name, array in arrays.items()}
            change(copies["hidden_states"])
            take(number, copies)

        recompute_module.recompute(reader, number, changed, model)

    return compute


def last_bits(vectors: NDArray[Any]) -> None:
    vectors.view(np.uint16)[...] ^= 1


def one_row(vectors: NDArray[Any]) -> None:
    vectors[:, 5] = vectors[:, 6]


def one_layer(vectors: NDArray[Any]) -> None:
    vectors[1] = vectors[2]


def scaled(vectors: NDArray[Any]) -> None:
    vectors *= 1.1


@pytest.mark.parametrize("change", [last_bits, one_row, one_layer, scaled])
@pytest.mark.quick(1)
def test_what_is_computed_again_is_compared(place: Path, model: Path, change: Any) -> None:
    full, virtual = virtual_store(place, model)
    before = all_files(full.path)
    recomputing.register(changing(change))
    rows = np.arange(256)
    try:
        if change is last_bits:
            for _ in range(2):
                with pytest.warns(RecomputedWarning, match="in the last bits"):
                    found = es.open(virtual.path, verify="lazy").vectors(rows, layers=1)  # then from the cache
            forget(place)
            assert np.allclose(found, full.vectors(rows, layers=1), rtol=2e-3)
            with pytest.warns(RecomputedWarning):
                assert es.verify(virtual.path).ok
            with pytest.raises(InvalidValueError, match=r"partition 0 of .* other last bits .* where it was made"):
                thin(full.path)
            assert all_files(full.path) == before
            return
        with pytest.raises(StoreDamagedError, match=r"partition 0 of .* is not what was committed"):
            virtual.vectors(rows, layers=1)
        assert cached(place) == 0
        assert not es.verify(virtual.path).ok
        with pytest.raises(StoreDamagedError, match="is not what was committed"):
            thin(full.path)
        assert all_files(full.path) == before
    finally:
        recomputing.register(es._recompute)  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_model_that_is_gone_or_another_one(
    place: Path, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    own = Path(shutil.copytree(model, place / "own" / "model"))
    made = plan(own)
    full = es.extract(made, place / "full.zarr")
    thinned = thin(full.path, model=own)
    own.rename(place / "own" / "moved")
    forget(place)
    gone = r"the model 'model' that made .* is not found, no longer at .*: give .* EMBSTORE_MODEL"
    with pytest.raises(ModelError, match=gone):
        thinned.vectors([5], layers=1)
    other = tiny.save("bert", tmp_path_factory.mktemp("models") / "bert", seed=3)
    monkeypatch.setenv("EMBSTORE_MODEL", str(other))
    with pytest.raises(ModelError, match=r"has other weights than the model 'model'.*: give .* EMBSTORE_MODEL"):
        thinned.vectors([5], layers=1)
    monkeypatch.setenv("EMBSTORE_MODEL", str(place / "own" / "moved"))
    first = thinned.vectors([5], layers=1)
    monkeypatch.delenv("EMBSTORE_MODEL")
    forget(place)
    assert thinned.vectors([5], layers=1).tobytes() == first.tobytes()  # the place is remembered
    (place / "own" / "moved").rename(place / "model")
    forget(place)
    assert thinned.vectors([5], layers=1).tobytes() == first.tobytes()  # it is found by its name again
    monkeypatch.setenv("EMBSTORE_CACHE", str(place / "model" / "config.json" / "below"))
    with pytest.raises(StorageError, match="EMBSTORE_CACHE chooses another folder"):
        es.open(thinned.path).vectors([5], layers=1)


def test_what_cannot_be_thinned_is_refused_unchanged(place: Path, model: Path) -> None:
    imported = make_store(place / "imported.zarr").store
    made = plan(model)
    hdf5 = es.extract(made, place / "x.h5")
    full = es.extract(made, place / "full.zarr")
    for store, error, message in (
        (imported, InvalidValueError, "was not made by `embstore extract`"),
        (hdf5, InvalidValueError, "only one .zarr on a disk"),
    ):
        with pytest.raises(error, match=message):
            thin(str(store.path))
    column = full.path / "occurrences/position/c/0"
    flip(column, 3)
    with pytest.raises(StoreDamagedError, match=r"occurrences/position of .* was changed: repair the store before"):
        thin(full.path, model=model)
    flip(column, 3)
    shard = full.path / "hidden_states/c/0/1/0"
    flip(shard, 100)
    before = all_files(full.path)
    with pytest.raises(StoreDamagedError, match=r"partition 1 of .* repair it before"):
        thin(full.path, model=model)
    assert all_files(full.path) == before
    with pytest.raises(InvalidValueError, match="exists with all its vectors"):
        es.extract(made, full.path, virtual=True)
    with pytest.raises(InvalidValueError, match=r"only a .zarr on a disk"):
        es.extract(made, place / "y.h5", virtual=True)


class Killed(BaseException):
    """Ends a process at once."""


@contextmanager
def killed_at(stop: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """End at the change of this number of a shard."""
    keys: list[str] = []

    def stopping(change: Callable[..., None]) -> Callable[..., None]:
        def stopped(self: LocalStorage, key: str, *parts: Any) -> None:
            if key.startswith(("hidden_states/c", "scale/c")):
                keys.append(key)
                if len(keys) == stop:
                    raise Killed
            change(self, key, *parts)

        return stopped

    with monkeypatch.context() as patch:
        for name in ("put", "delete"):
            patch.setattr(LocalStorage, name, stopping(getattr(LocalStorage, name)))
        yield


def test_a_store_that_another_process_thins_meanwhile(
    place: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard that is removed after it was found, but before it is opened."""
    full = es.extract(plan(model), place / "full.zarr")
    shutil.copytree(full.path, place / "x.zarr")
    with killed_at(4, monkeypatch), pytest.raises(Killed):
        thin(place / "x.zarr", model=model)
    store, opening = es.open(place / "x.zarr"), ZarrReader._open_shard

    def late(self: ZarrReader, *arguments: Any, **options: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(ZarrReader, "_open_shard", opening)
            thin(place / "x.zarr")
        return opening(self, *arguments, **options)

    monkeypatch.setattr(ZarrReader, "_open_shard", late)
    rows = np.arange(900, 1000)
    assert store.vectors(rows, layers=1).tobytes() == full.vectors(rows, layers=1).tobytes()


def test_an_interrupted_virtual_extraction_is_resumed(
    place: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plan(model)
    expected = all_files(es.extract(made, place / "once.zarr", virtual=True).path)
    write = ZarrWriter.write

    def killed(self: ZarrWriter, partition: int, arrays: Any) -> int:
        if partition == 1:
            raise Killed
        return write(self, partition, arrays)

    with monkeypatch.context() as patch:
        patch.setattr(ZarrWriter, "write", killed)
        with pytest.raises(Killed):
            es.extract(made, place / "x.zarr", virtual=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        begun = es.open(place / "x.zarr")
    with pytest.raises(MissingRowsError):
        begun.vectors([300], layers=0)
    assert begun.vectors([0, 300], layers=0, missing="nan")[1].tobytes() == np.full(32, np.nan, np.float16).tobytes()
    with pytest.raises(MissingRowsError, match="is not finished"):
        thin(begun.path)
    es.extract(made, place / "x.zarr")
    assert all_files(place / "x.zarr") == expected


@pytest.mark.parametrize("place_of_damage", ["vectors", "index"])
def test_a_damaged_shard_of_a_half_thinned_store_is_repaired(
    place: Path, model: Path, place_of_damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plan(model)
    full = es.extract(made, place / "full.zarr")
    expected = everything(full)
    with killed_at(2, monkeypatch), pytest.raises(Killed):
        thin(full.path, model=model)
    left = sorted(full.path.glob("hidden_states/c/0/*/0"))
    assert 1 < len(left) < full.source.layout.n_partitions
    flip(left[0], 100 if place_of_damage == "vectors" else left[0].stat().st_size - 20)
    assert [fault.partition for fault in es.verify(full.path).faults] == [int(left[0].parent.name)]
    (full.path / "occurrences/type/zarr.json").unlink()  # so that more than partitions is repaired
    repaired = es.extract(made, full.path, repair=True)
    assert es.verify(full.path).ok
    assert everything(repaired)[0].tobytes() == expected[0].tobytes()


def test_fingerprints_are_stored_before_shards_are_removed(
    place: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = es.extract(plan(model), place / "full.zarr")
    before = sorted(full.path.glob("hidden_states/c/0/*/0"))
    monkeypatch.setattr(LocalStorage, "write_at", Mock(side_effect=Killed))
    with pytest.raises(Killed):
        thin(full.path, model=model)
    assert sorted(full.path.glob("hidden_states/c/0/*/0")) == before


@pytest.mark.parametrize("change", [None, last_bits])
@pytest.mark.quick(1)
def test_a_damaged_file_of_the_cache_is_computed_again(place: Path, model: Path, change: Any) -> None:
    """In a process that has not used it; whether its bits are those committed, or only near."""
    _, virtual = virtual_store(place, model)
    if change:
        recomputing.register(changing(change))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RecomputedWarning)
            before = es.open(virtual.path).vectors()
        file = max((place / "cache").glob("*.cached"), key=os.path.getsize)
        for damage in (lambda: flip(file, 700), lambda: os.truncate(file, 1000)):
            damage()
            with pytest.warns(RecomputedWarning, match="cache was damaged"):
                assert es.open(virtual.path).vectors().tobytes() == before.tobytes()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore" if change else "error", RecomputedWarning)
                assert es.open(virtual.path).vectors().tobytes() == before.tobytes()
        status = file.stat()
        flip(file, 700)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))  # as a disk does that decays
        report = es.verify(virtual.path)
        assert [fault.part for fault in report.faults] == [f"cache {file}"]
        assert not report.damaged_partitions
        assert es.verify(virtual.path).ok
        if change is None:
            flip(file, 700)
            with pytest.warns(RecomputedWarning, match="cache .* the store is whole"):
                es.extract(plan(model), virtual.path, repair=True)
            assert es.verify(virtual.path).ok
    finally:
        recomputing.register(es._recompute)  # type: ignore[attr-defined]


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
@pytest.mark.quick(1)
def test_damaged_fingerprints_are_found_and_repaired(place: Path, model: Path, damage: str) -> None:
    _, virtual = virtual_store(place, model)
    before, file = all_files(virtual.path), virtual.path / "fingerprints/c/0/0/0"
    if damage == "flip":
        file.write_bytes(bytes([file.read_bytes()[0] ^ 64]) + file.read_bytes()[1:])
    elif damage == "cut":
        os.truncate(file, 9)
    else:
        file.unlink()
    (fault,) = es.verify(virtual.path).faults
    assert "fingerprints" in fault.part
    es.extract(plan(model), virtual.path, repair=True)
    assert all_files(virtual.path) == before
    assert es.verify(virtual.path).ok


def test_a_difference_of_one_step_is_near_and_one_of_two_is_not() -> None:
    stored = np.array([[127, 0], [-128, 5]], np.int8)
    assert require_near("x", 3, stored, stored + np.int8(1)) == STEP  # modulo 256
    with pytest.raises(StoreDamagedError, match="partition 3 of x"):
        require_near("x", 3, stored, stored - np.array([[0, 0], [0, 2]], np.int8))


def test_fingerprints_are_as_documented(place: Path, model: Path) -> None:
    """Of each site, one after the other."""
    full, virtual = virtual_store(place, model, sites=("residual", "query"))
    numbers = np.fromfile(virtual.path / "fingerprints/c/0/0/0", np.int8).reshape(2, -1, 2)
    for site, stored in zip(full.sites, numbers, strict=True):
        vectors = full.site(site).vectors().astype(np.float64)
        norms = np.linalg.norm(vectors, axis=2)
        count = 2 * vectors.shape[0] * vectors.shape[2]
        words = np.random.PCG64(0).random_raw(count // 64 + 1)
        bits = [int(words[number // 64]) >> (number % 64) & 1 for number in range(count)]
        made = np.where(np.array(bits).reshape(vectors.shape[0], 2, -1), -1.0, 1.0)
        assert np.array_equal(made, signs(len(made), made.shape[2]))
        projected = np.einsum("lnd,lkd,ln->nk", vectors, made, 1 / norms) / np.sqrt(len(vectors))
        projected[:, 1] += np.log2(norms).mean(0)
        apart = (projected / STEP - stored + 128) % 256 - 128
        assert np.abs(apart).max() < 0.51


@pytest.mark.slow
def test_another_site_is_read_first(place: Path, model: Path) -> None:
    """Its partitions are numbered after those of the residual stream, and computed with them."""
    full, virtual = virtual_store(place, model, sites=("residual", "query"))
    rows = np.arange(full.n_rows)[::-1]
    expected, found = (store.site("query").vectors(rows, layers=1) for store in (full, virtual))
    assert found.tobytes() == expected.tobytes()
