"""Stores behind a server that redirects each file to a signed URL elsewhere, as the Hugging Face hub does."""

from __future__ import annotations

import numpy as np

import embstore as es
from tests.store_making import make_store
from tests.web_host import WebHost


def test_a_store_on_the_hub_is_read_by_ranges_of_signed_urls(hub: WebHost) -> None:
    (hub.folder / "user/name").mkdir(parents=True)
    make_store(hub.folder / "user/name/x.zarr")
    local = es.open(hub.folder / "user/name/x.zarr")
    store = es.open(f"{hub.url}/datasets/user/name/resolve/main/x.zarr")
    rows = np.arange(0, local.n_rows, 3)
    for layer in local.layers:
        np.testing.assert_array_equal(store.vectors(rows, layers=layer)[0], local.vectors(rows, layers=layer)[0])
    assert list(store.index.words) == list(local.index.words)
    assert any(each.startswith("bytes=") for each in hub.ranges)
    assert not hub.signed
