"""Objects by name: what the client does for us, and what its failures are told as."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from embstore.errors import EmbstoreError, InvalidValueError, StorageError, StoreDamagedError, StoreNotFoundError
from embstore.store.storage.object_errors import cleaned
from embstore.store.storage.objects import NoSuchObjectError, ObjectExistsError, ObjectPath, Objects, place_of
from tests.object_server import KEY, SECRET, Bucket, Fault

BODY = np.random.default_rng(0).integers(0, 256, 300_000, np.uint8).tobytes()


@pytest.fixture
def objects(bucket: Bucket) -> Objects:
    bucket.put("folder/x.zarr/a/b", BODY)
    place = place_of(f"{bucket.url}/folder/x.zarr/")
    assert isinstance(place, ObjectPath)
    return Objects.at(place)


def test_addresses_are_told_from_paths() -> None:
    place = place_of("s3://bucket/some/x.zarr/")
    assert isinstance(place, ObjectPath)
    assert (str(place), place.bucket, place.key) == ("s3://bucket/some/x.zarr", "bucket", "some/x.zarr")
    assert (place.name, place.stem, place.suffix, place.scheme) == ("x.zarr", "x", ".zarr", "s3")
    assert place / "a/b" == place_of("s3://bucket/some/x.zarr/a/b")
    assert place.parent == place_of("s3://bucket/some")
    assert place.with_name("y.zarr") == place_of("s3://bucket/some/y.zarr")
    assert place_of(place) is place
    assert pickle.loads(pickle.dumps(place)) == place
    assert place_of("x.zarr") == place_of(Path("x.zarr")) == Path("x.zarr")


@pytest.mark.parametrize(
    "text",
    [
        "ftp://host/x.zarr",
        "s3:///x.zarr",
        "s3://bucket//x.zarr",
        "s3://bucket/../x.zarr",
        "https://user:hunter2@host/x.zarr",
        "https://host/x.zarr?X-Amz-Signature=hunter2",
        "s3://bucket/x.zarr#hunter2",
        Path("s3://bucket/x.zarr"),
    ],
)
def test_what_is_no_address_is_refused_and_no_credential_repeated(text: str | Path) -> None:
    with pytest.raises(InvalidValueError) as raised:
        place_of(text)
    assert "hunter2" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_objects_are_written_and_read(objects: Objects, bucket: Bucket) -> None:
    objects.put("one", BODY)
    pieces = [np.full(7_000_000, number, np.uint8) for number in range(3)]
    objects.put_large("large", iter(pieces))
    assert objects.get("one") == BODY
    assert objects.get("large") == b"".join(piece.tobytes() for piece in pieces)
    assert (objects.size("large"), objects.size("none")) == (21_000_000, None)
    assert objects.names() == ["a/b", "large", "one"]
    assert objects.names("a") == ["a/b"]
    assert objects.sizes("a/") == {"a/b": len(BODY)}
    assert objects.get_many(["one", "none"]) == [BODY, None]
    objects.delete("one")
    objects.delete("one")
    assert objects.get_or_none("one") is None
    assert bucket.keys() == ["folder/x.zarr/a/b", "folder/x.zarr/large"]


def test_a_large_object_is_whole_or_not_at_all(objects: Objects, bucket: Bucket) -> None:
    def pieces() -> object:
        yield bytes(17 * 2**20)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        objects.put_large("large", pieces())  # type: ignore[arg-type]
    assert objects.size("large") is None
    assert [request.method for request in bucket.proxy.requests if "uploadId" in request.query][-1] == "DELETE"


def test_of_two_that_create_an_object_one_does(objects: Objects) -> None:
    def create(number: int) -> bool:
        try:
            objects.put("record", bytes([number]), create=True)
        except ObjectExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(create, range(8)))
    assert objects.get("record") == bytes([won.index(True)])
    assert sum(won) == 1


def test_ranges_are_one_request_each(objects: Objects, bucket: Bucket) -> None:
    starts, stops = [0, 10, 299_000], [10, 5_000, 300_000]
    with bucket.proxy.recording() as made:
        found = objects.get_ranges("a/b", starts, stops)
    assert [part.tobytes() for part in found] == [BODY[a:b] for a, b in zip(starts, stops, strict=True)]
    assert sorted(request.range or "" for request in made) == ["bytes=0-9", "bytes=10-4999", "bytes=299000-299999"]
    tail, size = objects.tail("a/b", 100)
    assert (tail.tobytes(), size) == (BODY[-100:], len(BODY))
    assert objects.tail("a/b", 10**6)[0].tobytes() == BODY
    for start, stop in ((299_990, 300_010), (400_000, 400_010)):
        with pytest.raises(StoreDamagedError, match="cut short"):
            objects.get_range("a/b", start, stop)


@pytest.mark.parametrize(
    ("fault", "whole"),
    [
        (Fault("GET", 2, cut=0.5), False),
        *(
            pytest.param(fault, whole, marks=pytest.mark.slow)
            for fault, whole in (
                (Fault("GET", 2, 503), False),
                (Fault("GET", 2, lose=True), False),
                (Fault("GET", 2, 503), True),
                (Fault("GET", 2, cut=0.5), True),
            )
        ),
    ],
)
def test_what_may_pass_is_tried_again_and_the_bytes_are_right(
    objects: Objects, bucket: Bucket, fault: Fault, whole: bool
) -> None:
    bucket.proxy.break_next(fault)
    found = objects.get("a/b") if whole else objects.get_range("a/b", 1000, 299_000).tobytes()
    assert found == (BODY if whole else BODY[1000:299_000])
    assert fault.met == fault.times


@pytest.mark.slow
def test_a_server_that_falls_silent_is_asked_again(
    objects: Objects, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBSTORE_SILENCE_SECONDS", "0.3")
    fault = bucket.proxy.break_next(Fault("GET", 1, delay=2.0))
    began = time.perf_counter()
    assert Objects.at(objects.path).get_range("a/b", 5, 500).tobytes() == BODY[5:500]
    assert (fault.met, time.perf_counter() - began < 1.9) == (1, True)


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 99])
def test_fewer_bytes_than_asked_for_are_never_taken(objects: Objects, bucket: Bucket, times: int) -> None:
    bucket.proxy.break_next(Fault("GET", times, alter=lambda body: body[:-10]))
    for read, right in (
        (lambda: objects.get_range("a/b", 0, 1000), BODY[:1000]),
        (lambda: objects.tail("a/b", 1000)[0], BODY[-1000:]),
    ):
        if times == 1:
            assert read().tobytes() == right
        else:
            with pytest.raises(EmbstoreError) as raised:
                read()
            assert "\n" not in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [Fault("GET", 99, 503), Fault("GET", 99, cut=0.5), Fault("GET", 99, lose=True)])
def test_what_does_not_pass_is_given_up_in_one_line(
    objects: Objects, bucket: Bucket, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBSTORE_RETRIES", "1")
    bucket.proxy.break_next(fault)
    with pytest.raises(StorageError) as raised:
        Objects.at(objects.path).get_range("a/b", 0, 1000)
    assert "\n" not in str(raised.value)
    assert f"cannot read {objects.path}/a/b: " in str(raised.value)


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        (Fault("", 9, 403, "AccessDenied"), StorageError, "no right to do so (403 Forbidden AccessDenied)"),
        (Fault("", 9, 403, "SignatureDoesNotMatch"), StorageError, "SignatureDoesNotMatch"),
        (Fault("", 9, 301, "PermanentRedirect"), StorageError, "another region than AWS_REGION says (us-east-1)"),
        (
            Fault("", 9, 400, "AuthorizationHeaderMalformed", "<Region>eu-west-1</Region>"),
            StorageError,
            "another region (eu-west-1)",
        ),
        (Fault("", 9, 404, "NoSuchBucket"), StoreNotFoundError, "there is no bucket"),
        (Fault("", 9, 404, "NoSuchKey"), NoSuchObjectError, "there is nothing at"),
        (Fault("", 9, 418, "Teapot"), StorageError, "Teapot"),
    ],
    ids=lambda each: each.code if isinstance(each, Fault) else "",
)
def test_what_the_server_refuses_is_one_line(
    objects: Objects, bucket: Bucket, fault: Fault, kind: type[EmbstoreError], said: str
) -> None:
    bucket.proxy.break_next(fault)
    for call in (lambda: objects.get("a/b"), lambda: objects.get_range("a/b", 0, 9)):
        with pytest.raises(kind) as raised:
            call()
        assert said in str(raised.value)
        assert "\n" not in str(raised.value)
        assert SECRET not in str(raised.value)
        assert KEY not in str(raised.value)


def test_a_server_that_is_not_there_is_one_line(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBSTORE_RETRIES", "1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StorageError, match=r"cannot be reached, connection refused, 2 tries$"):
        Objects.at(objects.path).get("a/b")
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(StorageError, match="AWS_ALLOW_HTTP"):
        Objects.at(objects.path).get("a/b")


@pytest.mark.slow
def test_web_servers_are_read_only(objects: Objects) -> None:
    place = place_of("https://127.0.0.1:9/x.zarr")
    assert isinstance(place, ObjectPath)
    web = Objects.at(place)
    for call in (lambda: web.put("a", b""), lambda: web.put_large("a", [b""]), lambda: web.delete("a")):
        with pytest.raises(InvalidValueError, match="can only be read"):
            call()
    with pytest.raises(StorageError, match="does not tell what it has"):
        web.names()


def test_unencrypted_http_is_for_loopback_or_by_leave(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(InvalidValueError, match="is not encrypted"):
        Objects.at(ObjectPath("http://example.org/x.zarr"))
    Objects.at(ObjectPath("http://127.0.0.1:1234/x.zarr"))


def test_settings_are_numbers(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBSTORE_RETRIES", "many")
    with pytest.raises(InvalidValueError, match="EMBSTORE_RETRIES must be a number from 0 on, not 'many'"):
        Objects.at(ObjectPath("s3://bucket/x.zarr"))


def test_an_environment_without_credentials_says_which_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_")):
            monkeypatch.delenv(name)
    with pytest.raises(StorageError, match="Account must be specified; set AZURE_STORAGE_ACCOUNT_NAME"):
        Objects.at(ObjectPath("az://container/x.zarr"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with pytest.raises(StorageError, match="Missing AccessKeyId; set AWS_ACCESS_KEY_ID"):
        Objects.at(ObjectPath("s3://bucket/x.zarr"))


def test_a_message_of_the_client_loses_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "hunter2hunter2")
    text = "GET https://user:pw@host/x?sig=abc failed, key hunter2hunter2\nDebug source: more"
    assert cleaned(text) == "GET https://host/x failed, key ***"


@pytest.mark.slow
def test_a_forked_process_is_told_to_be_started_otherwise(objects: Objects) -> None:
    code = (
        "import os, sys\n"
        "from embstore.store.storage.objects import Objects, place_of\n"
        f"objects = Objects.at(place_of({str(objects.path)!r}))\n"
        "assert objects.size('a/b') == 300_000\n"
        "child = os.fork()\n"
        "if child:\n"
        "    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "for ask in (objects, Objects):\n"
        "    try:\n"
        "        ask.get('a/b') if ask is objects else Objects.at(objects.path)\n"
        "    except OSError as error:\n"
        "        print(error, flush=True)\n"
        "os._exit(7)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 7, done.stderr
    assert done.stdout.count("start workers with 'spawn' instead") == done.stdout.count("\n") == 2
