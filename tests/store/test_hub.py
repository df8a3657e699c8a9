"""Stores behind a server that redirects each file to a signed URL elsewhere, as the Hugging Face hub does."""

from __future__ import annotations

import numpy as np
import pytest

import embstore as es
from embstore.errors import InvalidValueError, StoreNotFoundError
from embstore.store.storage.location import ObjectPath, parse_location
from tests.store_making import make_store
from tests.web_host import WebHost


@pytest.mark.parametrize("name", ["store.zarr", "some/x.zarr"])
def test_a_store_on_the_hub_is_read_by_ranges_of_signed_urls(hub: WebHost, name: str) -> None:
    (hub.folder / "user/name" / name).parent.mkdir(parents=True)
    make_store(hub.folder / "user/name" / name)
    local = es.open(hub.folder / "user/name" / name)
    store = es.open("hf://datasets/user/name" + ("" if name == "store.zarr" else f"/{name}"))
    rows = np.arange(0, local.n_rows, 3)
    for layer in local.layers:
        np.testing.assert_array_equal(store.vectors(rows, layers=layer)[0], local.vectors(rows, layers=layer)[0])
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


def test_a_store_that_is_not_on_the_hub(hub: WebHost) -> None:
    with pytest.raises(StoreNotFoundError):
        es.open("hf://datasets/user/name/gone.zarr")
