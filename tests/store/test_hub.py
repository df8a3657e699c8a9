"""Stores behind a server that redirects each file to a signed URL elsewhere, as the Hugging Face hub does."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

import embstore as es
from embstore.errors import InvalidValueError, StoreNotFoundError
from embstore.store import publish
from embstore.store.storage.location import ObjectPath, parse_location
from tests.hub import FakeApi, Hub
from tests.store_making import make_store


@pytest.mark.parametrize("name", ["store.zarr", "some/x.zarr"])
def test_a_store_on_the_hub_is_read_by_ranges_of_signed_urls(hub: Hub, name: str) -> None:
    (hub.folder / "user/name" / name).parent.mkdir(parents=True)
    make_store(hub.folder / "user/name" / name)
    local = es.open(hub.folder / "user/name" / name)
    store = es.open("hf://datasets/user/name" + ("" if name == "store.zarr" else f"/{name}"))
    rows = np.arange(0, local.n_rows, 3)
    for layer in local.layers:
        np.testing.assert_array_equal(store.gather(rows, layer), local.gather(rows, layer))
    assert list(store.index.words) == list(local.index.words)
    assert any(each.startswith("bytes=") for each in hub.ranges)
    assert not hub.signed


def test_addresses_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    base = "https://huggingface.co/datasets/user/name/resolve"
    for address, url in {
        "hf://datasets/user/name": f"{base}/main/store.zarr",
        "hf://datasets/user/name@v1/": f"{base}/v1/store.zarr",
        "hf://datasets/user/name/a/b.zarr": f"{base}/main/a/b.zarr",
    }.items():
        assert parse_location(address) == ObjectPath(url)
    for wrong in ("hf://user/name", "hf://datasets/user", "hf://datasets/user/name?x", "hf://datasets/u/n/../x"):
        with pytest.raises(InvalidValueError) as raised:
            parse_location(wrong)
        assert "?x" not in str(raised.value)


def test_a_store_that_is_not_on_the_hub(hub: Hub) -> None:
    with pytest.raises(StoreNotFoundError):
        es.open("hf://datasets/user/name/gone.zarr")


def test_what_is_published_is_opened(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret_token")
    make_store(tmp_path / "made.zarr")
    local = es.open(tmp_path / "made.zarr")
    address = publish(local, "hf://datasets/user/name", license="cc-by-4.0", citation="Doe 2026")
    assert FakeApi.created == [("user/name", False)]
    np.testing.assert_array_equal(es.open(address).gather(np.arange(9), 5), local.gather(np.arange(9), 5))
    text = (hub.folder / "user/name/README.md").read_text()
    files = sorted(path for path in (tmp_path / "made.zarr").rglob("*") if path.is_file())
    names = sorted(files, key=lambda path: path.relative_to(tmp_path).as_posix())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in names)).hexdigest()
    for part in ('license: "cc-by-4.0"', "Doe 2026", digest, local.metadata.model["name"], 'es.open("hf://datasets'):
        assert part in text
    assert "hf_secret_token" not in text
    publish(local, "hf://datasets/user/name/other.zarr", private=True)
    assert FakeApi.created == [("user/name", False), ("user/name", True)]
    assert (hub.folder / "user/name/README.md").read_text() == text


def test_what_cannot_be_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_store(tmp_path / "made.zarr")
    local = es.open(tmp_path / "made.zarr")
    for address in (
        "hf://datasets/user",
        "hf://datasets/user/name@v1",
        "hf://datasets/user/name/x.h5",
        "s3://b/x.zarr",
    ):
        with pytest.raises(InvalidValueError, match="hf://datasets/USER/NAME"):
            publish(local, address)
    for limit, what in (("MAX_FILES", "files in"), ("MAX_ENTRIES", "entries in"), ("MAX_NBYTES", "bytes in")):
        with monkeypatch.context() as patch:
            patch.setattr(f"embstore.store.convert.publish.{limit}", 1)
            with pytest.raises(InvalidValueError, match=f"{what} a .*, and the hub takes 1: publish parts"):
                publish(local, "hf://datasets/user/name")
    with pytest.warns(es.errors.UnfinishedStoreWarning):
        make_store(tmp_path / "part.zarr", leave_out=(1,))
    with pytest.warns(es.errors.UnfinishedStoreWarning):
        unfinished = es.open(tmp_path / "part.zarr")
    with pytest.raises(InvalidValueError, match="is not finished"):
        publish(unfinished, "hf://datasets/user/name")
