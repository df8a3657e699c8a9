"""The storage in a bucket against an S3 server on loopback: requests, retries and one-line errors."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from embstore.errors import EmbstoreError, InvalidValueError, StorageError, StoreNotFoundError
from embstore.store.storage import objects as client_module
from embstore.store.storage.base import KeyNotFoundError
from embstore.store.storage.location import ObjectPath, parse_location
from embstore.store.storage.objects import ObjectStorage, cleaned
from tests.object_server import KEY, SECRET, Bucket, Fault

BODY = np.random.default_rng(0).integers(0, 256, 300_000, np.uint8).tobytes()


@pytest.fixture
def objects(bucket: Bucket) -> ObjectStorage:
    bucket.put("folder/x.zarr/a/b", BODY)
    place = parse_location(f"{bucket.url}/folder/x.zarr/")
    assert isinstance(place, ObjectPath)
    return ObjectStorage.at(place)


def test_urls_and_paths_are_parsed() -> None:
    place = parse_location("s3://bucket/some/x.zarr/")
    assert isinstance(place, ObjectPath)
    assert (str(place), place.bucket, place.key) == ("s3://bucket/some/x.zarr", "bucket", "some/x.zarr")
    assert (place.name, place.stem, place.suffix, place.scheme) == ("x.zarr", "x", ".zarr", "s3")
    assert place / "a/b" == parse_location("s3://bucket/some/x.zarr/a/b")
    assert place.parent == parse_location("s3://bucket/some")
    assert place.with_name("y.zarr") == parse_location("s3://bucket/some/y.zarr")
    assert parse_location(place) is place
    assert pickle.loads(pickle.dumps(place)) == place
    assert parse_location("x.zarr") == parse_location(Path("x.zarr")) == Path("x.zarr")


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
def test_invalid_urls_are_refused_without_repeating_credentials(text: str | Path) -> None:
    with pytest.raises(InvalidValueError) as raised:
        parse_location(text)
    assert "hunter2" not in str(raised.value)


@pytest.mark.slow
def test_a_large_object_is_uploaded_in_parts(objects: ObjectStorage, bucket: Bucket) -> None:
    parts = [np.full(7_000_000, number, np.uint8) for number in range(3)]
    objects.put("large", parts)
    assert objects.put_new("new", parts)
    assert objects.get("large") == objects.get("new") == b"".join(part.tobytes() for part in parts)
    assert sorted(objects.sizes()) == ["a/b", "large", "new"]


def test_of_two_that_create_an_object_one_does(objects: ObjectStorage) -> None:
    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(lambda number: objects.put_new("record", [bytes([number])]), range(8)))
    assert objects.get("record") == bytes([created.index(True)])
    assert sum(created) == 1


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
def test_transient_faults_are_retried(objects: ObjectStorage, bucket: Bucket, fault: Fault, whole: bool) -> None:
    bucket.proxy.break_next(fault)
    found = objects.get("a/b") if whole else objects.get_range("a/b", 1000, 299_000).tobytes()
    assert found == (BODY if whole else BODY[1000:299_000])
    assert fault.met == fault.times


@pytest.mark.slow
def test_a_silent_server_is_retried(objects: ObjectStorage, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embstore.store.storage.objects.READ_TIMEOUT", "3s")
    client_module._client.cache_clear()
    fault = bucket.proxy.break_next(Fault("GET", 1, delay=30.0))
    assert ObjectStorage.at(objects.path).get_range("a/b", 5, 500).tobytes() == BODY[5:500]
    assert fault.met == 1


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 99])
def test_a_short_answer_is_never_accepted(objects: ObjectStorage, bucket: Bucket, times: int) -> None:
    bucket.proxy.break_next(Fault("GET", times, alter=lambda body: body[:-10]))
    for read, right in (
        (lambda: objects.get_range("a/b", 0, 1000), BODY[:1000]),
        (lambda: objects.tail("a/b", 1000)[0], BODY[-1000:]),
    ):
        if times == 1:
            assert read().tobytes() == right
        else:
            with pytest.raises(EmbstoreError):
                read()


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        (Fault("", 9, 403, "AccessDenied"), StorageError, "permission denied (403 Forbidden AccessDenied)"),
        (Fault("", 9, 301, "PermanentRedirect"), StorageError, "another region than AWS_REGION (us-east-1)"),
        (Fault("", 9, 400, "AuthorizationHeaderMalformed"), StorageError, "another region than AWS_REGION"),
        (Fault("", 9, 404, "NoSuchBucket"), StoreNotFoundError, "there is no bucket"),
        (Fault("", 9, 404, "NoSuchKey"), KeyNotFoundError, "does not exist"),
        (Fault("", 9, 418, "Teapot"), StorageError, "Teapot"),
    ],
    ids=lambda each: each.code if isinstance(each, Fault) else "",
)
def test_what_the_server_refuses_is_one_line(
    objects: ObjectStorage, bucket: Bucket, fault: Fault, kind: type[EmbstoreError], said: str
) -> None:
    bucket.proxy.break_next(fault)
    for call in (
        lambda: objects.get("a/b"),
        lambda: objects.get_range("a/b", 0, 9),
        lambda: objects.put("a/b", [b"x"]),
    ):
        with pytest.raises(kind) as raised:
            call()
        assert said in str(raised.value)
        assert SECRET not in str(raised.value)
        assert KEY not in str(raised.value)


def test_a_server_that_is_not_there_is_one_line(objects: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBSTORE_RETRIES", "1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StorageError, match=r"cannot be reached, connection refused, 2 tries$"):
        ObjectStorage.at(objects.path).get("a/b")
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(StorageError, match="AWS_ALLOW_HTTP"):
        ObjectStorage.at(objects.path).get("a/b")


@pytest.mark.slow
def test_web_servers_are_read_only(objects: ObjectStorage) -> None:
    place = parse_location("https://127.0.0.1:9/x.zarr")
    assert isinstance(place, ObjectPath)
    web = ObjectStorage.at(place)
    for call in (lambda: web.put("a", [b""]), lambda: web.put_new("a", [b""]), lambda: web.delete("a")):
        with pytest.raises(InvalidValueError, match="are read-only"):
            call()
    with pytest.raises(StorageError, match="does not list its files"):
        web.sizes()


def test_unencrypted_http_is_for_loopback_or_by_leave(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(InvalidValueError, match="is not encrypted"):
        ObjectStorage.at(ObjectPath("http://example.org/x.zarr"))
    ObjectStorage.at(ObjectPath("http://127.0.0.1:1234/x.zarr"))


def test_settings_are_numbers(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBSTORE_RETRIES", "many")
    with pytest.raises(InvalidValueError, match="EMBSTORE_RETRIES must be a number of at least 0, not 'many'"):
        ObjectStorage.at(ObjectPath("s3://bucket/x.zarr"))


def test_an_environment_without_credentials_says_which_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_")):
            monkeypatch.delenv(name)
    with pytest.raises(StorageError, match="Account must be specified; set AZURE_STORAGE_ACCOUNT_NAME"):
        ObjectStorage.at(ObjectPath("az://container/x.zarr"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with pytest.raises(StorageError, match="Missing AccessKeyId; set AWS_ACCESS_KEY_ID"):
        ObjectStorage.at(ObjectPath("s3://bucket/x.zarr"))


def test_a_message_of_the_client_loses_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "hunter2hunter2")
    text = "GET https://user:pw@host/x?sig=abc failed, key hunter2hunter2\nDebug source: more"
    assert cleaned(text) == "GET https://host/x failed, key ***"


@pytest.mark.slow
def test_a_forked_process_is_refused(objects: ObjectStorage) -> None:
    code = (
        "import os, sys\n"
        "from embstore.store.storage.objects import ObjectStorage\n"
        "from embstore.store.storage.location import parse_location\n"
        f"objects = ObjectStorage.at(parse_location({str(objects.path)!r}))\n"
        "assert objects.size('a/b') == 300_000\n"
        "child = os.fork()\n"
        "if child:\n"
        "    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "for ask in (objects, ObjectStorage):\n"
        "    try:\n"
        "        ask.get('a/b') if ask is objects else ObjectStorage.at(objects.path)\n"
        "    except OSError as error:\n"
        "        print(error, flush=True)\n"
        "os._exit(7)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 7, done.stderr
    assert done.stdout.count("start workers with 'spawn' instead") == done.stdout.count("\n") == 2
