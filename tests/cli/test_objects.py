"""Commands over a store in a bucket."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import embstore as es
from tests.cli.conftest import Ran
from tests.object_server import Bucket


@pytest.fixture
def url(made: Path, bucket: Bucket) -> str:
    return bucket.upload(made / "store.zarr", "some/store.zarr")


Run = Callable[..., Ran]


@pytest.mark.slow
def test_a_store_in_a_bucket_is_asked_as_one_on_a_disk(made: Path, url: str, run: Run) -> None:
    for command, options in (
        ("info", ["--json"]),
        ("lookup", ["bank", "--json"]),
        ("geometry", ["--metrics", "selfsim,anisotropy", "--min-contexts", "2", "--json"]),
        ("neighbors", ["bank", "-k", "3", "--json"]),
    ):
        there, here = run(command, url, *options), run(command, made / "store.zarr", *options)
        assert (there.status, here.status) == (0, 0), there.err
        assert json.loads(there.out) == json.loads(here.out.replace(str(made / "store.zarr"), url))


@pytest.mark.slow
def test_verify_static_and_export_from_a_bucket(made: Path, url: str, bucket: Bucket, run: Run, tmp_path: Path) -> None:
    assert run("verify", url).status == 0
    assert run("static", url, tmp_path / "there.bin", "--layers", "1").status == 0
    assert run("static", made / "store.zarr", tmp_path / "here.bin", "--layers", "1").status == 0
    assert (tmp_path / "there.bin").read_bytes() == (tmp_path / "here.bin").read_bytes()
    assert run("export", url, tmp_path / "copy.zarr").status == 0
    assert es.verify(tmp_path / "copy.zarr").ok
    key = "some/store.zarr/hidden_states/c/0/0/0"
    data = bucket.get(key)
    bucket.put(key, bytes([data[0] ^ 1]) + data[1:])
    damaged = run("verify", url)
    assert damaged.status == 1
    assert "hidden_states/c/0/0/0 (partition 0): its bytes do not match the commit record" in damaged.out
