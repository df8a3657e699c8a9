"""What every storage must do; each kind inherits the same tests. The folder of a cache is bounded."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from embstore.errors import StorageError, StoreDamagedError
from embstore.store.storage.base import KeyNotFoundError, Storage, wait_all
from embstore.store.storage.cache import CacheFolder
from embstore.store.storage.files import crc32c_of_file, crc32c_of_spans, opened, replacing
from embstore.store.storage.local import LocalStorage
from embstore.store.storage.location import ObjectPath
from embstore.store.storage.lock import StoreLock
from embstore.store.storage.objects import ObjectStorage

BODY = np.random.default_rng(0).integers(0, 256, 20_000, np.uint8).tobytes()


class Conformance:
    """The tests that each storage inherits; `storage` is a fixture of the subclass."""

    left = ".tmp/left"  # a key in the temporary folder

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        raise NotImplementedError

    def test_what_is_put_is_read_back(self, storage: Storage) -> None:
        array = np.arange(6, dtype="<f4").reshape(2, 3)[:, ::2]
        storage.put("a/b", [array, b"xyz"])
        data = np.ascontiguousarray(array).tobytes() + b"xyz"
        assert storage.get("a/b") == storage.get_or_none("a/b") == data
        assert (storage.size("a/b"), storage.sizes()) == (len(data), {"a/b": len(data)})
        storage.put("a/b", [b"shorter"])
        assert storage.get("a/b") == b"shorter"
        storage.put(self.left, [b"by a write that was interrupted"])
        assert not storage.is_tidy()
        storage.finish()
        assert storage.is_tidy()
        assert storage.sizes() == {"a/b": 7}

    def test_ranges(self, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in ("base", "objects"):
            monkeypatch.setattr(f"embstore.store.storage.{module}.READ_NBYTES", 6_000)
        storage.put("a", [BODY])
        starts, stops = [0, 10, 19_000], [10, 5_000, 20_000]
        for start, stop in zip(starts, stops, strict=True):
            assert storage.get_range("a", start, stop).tobytes() == BODY[start:stop]
        assert storage.read("a", 15_000).tobytes() == BODY[:15_000]
        assert b"".join(part.tobytes() for part in storage.iter_parts("a", len(BODY))) == BODY
        tail, size, _ = storage.tail("a", 100)
        assert (tail.tobytes(), size) == (BODY[-100:], len(BODY))
        assert storage.tail("a", 10**6)[0].tobytes() == BODY
        for start, stop in ((19_990, 20_010), (30_000, 30_010)):
            with pytest.raises(StoreDamagedError, match="cut short"):
                storage.get_range("a", start, stop)

    def test_checksums(self, storage: Storage) -> None:
        storage.put("a", [BODY])
        assert storage.crc32c("a", len(BODY)) == google_crc32c.value(BODY)
        assert storage.crc32c("a", len(BODY), 7) == google_crc32c.extend(7, BODY)
        assert storage.holds("a", [BODY[:9], BODY[9:]])
        assert not storage.holds("a", [BODY[:-1]])
        assert not storage.holds("a", [BODY[:-1] + bytes([BODY[-1] ^ 1])])
        assert not storage.holds("b", [BODY])

    def test_keys_that_do_not_exist(self, storage: Storage) -> None:
        storage.put("a/b", [b"1"])
        for key in ("none", "a", "a/b/c"):
            assert (storage.size(key), storage.get_or_none(key)) == (None, None)
            for read in (storage.get, lambda key: storage.get_range(key, 0, 1), lambda key: storage.tail(key, 1)):
                with pytest.raises(KeyNotFoundError, match=f"{key} does not exist"):
                    read(key)
        assert storage.get_many(["a/b", "none"]) == [b"1", None]
        storage.delete("none")

    def test_listing_below_a_folder_and_deleting(self, storage: Storage) -> None:
        for key in ("a/b", "a/c/d", "ab", "z"):
            storage.put(key, [key.encode()])
        assert (storage.sizes("a"), storage.sizes("none")) == ({"a/b": 3, "a/c/d": 5}, {})
        storage.delete("a/b")
        assert sorted(storage.sizes()) == ["a/c/d", "ab", "z"]

    def test_a_key_is_created_once(self, storage: Storage) -> None:
        with ThreadPoolExecutor(8) as threads:
            created = list(threads.map(lambda number: storage.put_new("key", [bytes([number])]), range(8)))
        assert (sum(created), storage.get("key")) == (1, bytes([created.index(True)]))
        storage.delete("key")
        assert storage.put_new("key", [b"again"])
        storage.finish()
        assert storage.sizes() == {"key": 5}

    def test_a_write_that_fails_changes_nothing(self, storage: Storage) -> None:
        storage.put("key", [b"before"])
        for write in (lambda: storage.put("key", [b"x", object()]), lambda: storage.put_new("new", [b"x", object()])):  # type: ignore[list-item]
            with pytest.raises((TypeError, ValueError)):
                write()
        storage.finish()
        assert storage.get("key") == b"before"
        assert sorted(storage.sizes()) == ["key"]

    def test_more_bytes_than_there_are_take_no_memory(self, storage: Storage) -> None:
        storage.put("key", [b"0123456789"])
        for size in (11, 2**45):
            with pytest.raises(StoreDamagedError, match="cut short"):
                storage.read("key", size)

    def test_bytes_in_place(self, storage: Storage) -> None:
        storage.put("key", [b"0123456789"])
        if storage.is_in_place:
            storage.write_at("key", b"abc", 4)
            assert storage.get("key") == b"0123abc789"
        else:
            with pytest.raises(NotImplementedError):
                storage.write_at("key", b"abc", 4)


class TestLocal(Conformance):
    left = "t/.tmp/left"

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return LocalStorage(tmp_path / "store", temporary="t/.tmp")

    def test_without_hard_links_a_key_is_still_created_once(
        self, storage: Storage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*arguments: object) -> None:
            raise OSError(1, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)
        assert storage.put_new("key", [b"1"])
        assert not storage.put_new("key", [b"2"])
        assert storage.get("key") == b"1"

        def outrun(partial: Path, target: Path) -> None:
            target.write_bytes(b"of another process")
            raise OSError(1, "Operation not permitted")

        monkeypatch.setattr(os, "link", outrun)
        assert not storage.put_new("other", [b"3"])
        assert storage.get("other") == b"of another process"

    def test_without_pread_and_pwrite(self, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
        """As on Windows."""
        for name in ("pwrite", "preadv"):
            monkeypatch.delattr(os, name)
        self.test_ranges(storage, monkeypatch)
        self.test_bytes_in_place(storage)

    def test_a_write_is_durable_before_its_name(self, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
        """Data, fsync, name, fsync of the folder; in place: data, fsync."""
        calls: list[str] = []
        for name in ("pwrite", "fsync", "link", "replace"):
            real = getattr(os, name)

            def noted(*arguments: object, name: str = name, real=real, **options: object) -> object:  # type: ignore[no-untyped-def]
                calls.append(
                    "fsync folder" if name == "fsync" and Path(f"/proc/self/fd/{arguments[0]}").is_dir() else name
                )
                return real(*arguments, **options)

            monkeypatch.setattr(os, name, noted)
        storage.put("key", [b"1"])
        assert calls == ["pwrite", "fsync", "replace", "fsync folder"]
        calls.clear()
        storage.put_new("new", [b"1"])
        assert calls == ["pwrite", "fsync", "link", "fsync folder"]
        calls.clear()
        storage.write_at("key", b"2", 0)
        assert calls == ["pwrite", "fsync"]


class TestObjects(Conformance):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        memory = pytest.importorskip("obstore", reason="no obstore: pip install 'embstore[objects]'").store.MemoryStore
        return ObjectStorage(ObjectPath("s3://bucket/x.zarr"), memory())


class TestLargeObjects(TestObjects):
    """Every object is uploaded in parts and copied."""

    @pytest.fixture(autouse=True)
    def small_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("embstore.store.storage.objects.LARGE_NBYTES", 1)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    fcntl = pytest.importorskip("fcntl")

    def refuse(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StorageError, match="its file system has no locks; write the store to another disk"):
        StoreLock(tmp_path / "s.zarr").__enter__()


def test_the_first_error_is_raised_and_the_rest_cancelled() -> None:
    with ThreadPoolExecutor(1) as threads:
        futures = [threads.submit(lambda number=number: 1 // number) for number in (1, 0, *range(1, 50))]  # type: ignore[misc]
        with pytest.raises(ZeroDivisionError):
            wait_all(futures)
        assert all(future.done() for future in futures)


@pytest.mark.parametrize("call", ["stat", "open", "scandir", "replace", "fsync", "fstat"])
def test_every_failure_of_the_disk_is_a_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """One that also meets the clean-up does not hide the first."""
    storage = LocalStorage(tmp_path / "store")
    storage.put("a/b", [b"12"])
    works = {
        "get": lambda: storage.get("a/b"),
        "get_range": lambda: storage.get_range("a/b", 0, 1),
        "size": lambda: storage.size("a/b"),
        "version": lambda: storage.version("a/b"),
        "sizes": lambda: storage.sizes(),
        "crc32c": lambda: storage.crc32c("a/b", 2),
        "put": lambda: storage.put("a/c", [b"1"]),
        "put_new": lambda: storage.put_new("a/d", [b"1"]),
        "write_at": lambda: storage.write_at("a/b", b"1", 0),
    }

    def fail(*arguments: object, **options: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    failed = 0
    for name, work in works.items():
        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            try:
                work()
            except StorageError as error:
                failed += 1
                assert str(error).startswith("cannot "), name  # noqa: PT017
    assert failed


def test_a_new_folder_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    def write(error: str = "") -> None:
        with replacing(tmp_path / "new") as folder:
            folder.mkdir()
            (folder / "a").touch()
            if error:
                raise OSError(error)

    with pytest.raises(StorageError, match="the disk is full"):
        write("No space left on device (os error 28)")  # as Polars says it
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".new.new" / "left by a kill").mkdir(parents=True)
    write()
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["new", "new/a"]


def test_the_checksum_of_spans_is_that_of_their_bytes(tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 256, 2**20 + 5, np.uint8).tobytes()
    (tmp_path / "file").write_bytes(data)
    assert crc32c_of_file(tmp_path / "file") == (google_crc32c.value(data), len(data))
    spans = [(3, 2**19 + 3), (7, 7), (-1, 4), (2**20 - 2, 2**62), (2**40, 2**41), (0, 2**20), (9, 10)]
    joined = b"".join(data[start:stop] for start, stop in spans if start >= 0)
    with opened(tmp_path / "file") as descriptor:
        assert crc32c_of_spans(descriptor, spans, 17) == (google_crc32c.extend(17, joined), len(joined))


def test_a_pipe_or_what_a_link_names_is_never_replaced_by_a_file(tmp_path: Path) -> None:
    """As a device would be, for root."""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        with (
            pytest.raises(StorageError, match=r"cannot write .* it is a pipe, socket or device"),
            replacing(path) as new,
        ):
            new.write_bytes(b"x")
    assert pipe.is_fifo()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "pipe"]


def test_a_download_that_ends_early_leaves_nothing(tmp_path: Path) -> None:
    kept = CacheFolder(tmp_path / "cache", 10**6)

    def write(descriptors: list[int]) -> None:
        os.write(descriptors[0], b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept.add([("one", 8), ("two", 8)], write)
    assert not any((tmp_path / "cache").iterdir())


def test_the_folder_is_bounded_and_what_was_used_last_stays(tmp_path: Path) -> None:
    kept = CacheFolder(tmp_path, 250)
    for number, name in enumerate("abc"):
        kept.add([(name, 100)], lambda descriptors: os.write(descriptors[0], bytes(100)))
        if kept.find(name, 100) is not None and name != "c":
            os.utime(kept.find(name, 100) or "", (number, number))
        if name == "b":
            assert kept.find("a", 100) is not None  # used again, so b is the one that goes
    (tmp_path / "mine.txt").write_text("mine")
    assert [kept.find(name, 100) is not None for name in "abc"] == [True, False, True]
    kept.add([("large", 10**4)], lambda descriptors: os.write(descriptors[0], bytes(10**4)))
    assert sorted(path.name[-7:] for path in tmp_path.iterdir()) == [".cached", "ine.txt"]


def test_a_file_in_the_place_of_another_is_damaged(tmp_path: Path) -> None:
    kept = CacheFolder(tmp_path, 250)
    for name in "ab":
        kept.add([(name, 100)], lambda descriptors, name=name: os.write(descriptors[0], name.encode() * 100))
    first, second = (kept.find(name, 100) for name in "ab")
    assert first is not None
    assert second is not None
    second.replace(first)
    assert kept.find("a", 100) is None
    assert kept.take_damaged() == [first]


def test_a_folder_that_may_only_be_read_gives_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = CacheFolder(tmp_path, 250)
    kept.add([("a", 100)], lambda descriptors: os.write(descriptors[0], bytes(100)))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    for name in ("utime", "mkdir"):
        monkeypatch.setattr(os, name, refuse)
    assert kept.find("a", 100) is not None
    with pytest.raises(StorageError, match=r"cannot write /.* \(EMBSTORE_CACHE chooses another folder\): Read-only"):
        CacheFolder(tmp_path / "new", 250).add([("b", 1)], lambda descriptors: None)
