"""`embstore lens`: what it prints, what it writes, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl

import embstore as es
from tests.analysis.test_lens import DECODERS, save_decoder, store_of
from tests.cli.conftest import Work


def test_the_lens_is_printed_and_written(work: Work, tmp_path: Path) -> None:
    folder, path = tmp_path / "gpt2", tmp_path / "x.zarr"
    save_decoder(folder, *DECODERS["gpt2"])
    expected = es.lens(store_of(["The cat sat on the mat."], folder, path), layers=[1, 3], model=folder)
    command = ("lens", str(path), "--layers", "1,3", "-m", str(folder))
    ran = work.run(*command, "--json")
    assert (ran.status, ran.err) == (0, "")
    assert pl.DataFrame(json.loads(ran.out))["top"].to_list() == expected["top"].to_list()
    ran = work.run(*command, "--where", "context_position > 0", "--out", "x.parquet")
    shown = ran.out.splitlines()
    assert len(shown) == 4
    assert shown[1].split() == ["layer", "probability", "median", "rank", "rank", "0", "entropy", "of"]
    assert pl.read_parquet(work / "x.parquet")["occurrence"].min() > 0  # type: ignore[operator]
    work.refuses(f"lens {path} --out x.csv", "cannot hold lists", ".parquet")
