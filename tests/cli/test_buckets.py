"""`embstore extract` and `embstore export` write to a bucket what they write to a disk, and say in one line why not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from embstore_cli.main import app
from tests.object_server import Bucket
from tests.store.example import all_files

CORPUS = "the bank of the river\nmoney in the bank\n" * 4


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text(CORPUS)
    return path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.slow
def test_extract_and_export(bucket: Bucket, corpus: Path, tmp_path: Path) -> None:
    url = f"{bucket.url}/some/x.zarr"
    made = ("-m", "random:4", "--dtype", "float32")
    said = run("extract", corpus, url, *made)
    assert f"{url} holds 36 occurrences in 1 layer, all committed" in said
    assert f" in {bucket.url}/some; " in said
    run("extract", corpus, tmp_path / "near.zarr", *made)
    near = all_files(tmp_path / "near.zarr")
    assert {key.removeprefix("some/x.zarr/"): bucket.get(key) for key in sorted(bucket.keys())} == near
    assert f"{url} already holds 36 occurrences in 1 layer, all committed" in run("extract", corpus, url, *made)
    run("export", url, tmp_path / "back.zarr")
    assert all_files(tmp_path / "back.zarr") == near
    run("export", tmp_path / "back.zarr", f"{bucket.url}/again.zarr")
    again = {key: bucket.get(key) for key in sorted(bucket.keys()) if key.startswith("again.zarr/")}
    assert {key.removeprefix("again.zarr/"): data for key, data in again.items()} == near
    plan = json.loads(run("extract", corpus, url, *made, "--dry-run", "--json"))
    assert plan["free_nbytes"] is None
