"""How what is typed becomes values: layers, seeds and settings."""

from __future__ import annotations

from typing import Literal

import pytest

from embstore.errors import InvalidValueError
from embstore_cli.options import layer_of, layers_of, read_settings, seeds_of
from tests.cli.conftest import Work


def test_layers_are_numbers_ranges_and_the_last() -> None:
    assert layers_of("all") is None
    for text in ("0,3,6-8,last", "-1, 0", "0-999999999"):
        assert layers_of(text) == text
    assert (layer_of("last", stored=[0, 2, 5]), layer_of("-2", stored=[0, 2, 5]), layer_of("7")) == (5, 2, 7)
    assert seeds_of("0, 2,1") == (0, 2, 1)
    for text in ("3-1", "first", "", "1-", "--1", "1" * 5000, "٣"):
        with pytest.raises(InvalidValueError, match="--layers"):
            layers_of(text)


def test_settings_have_the_types_of_their_keys() -> None:
    keys = {"n": int, "rate": float, "kind": Literal["a", "b"], "windows": tuple[int | None, ...], "most": int | None}
    given = ["n=2", "rate=1", "kind=b", "windows=0,2,full", "most=none"]
    assert read_settings(given, keys) == {"n": 2, "rate": 1.0, "kind": "b", "windows": (0, 2, None), "most": None}
    for pair in ("n=1.5", "n=-1", "kind=c", "windows=0,x", "rate=fast", "n=true"):
        with pytest.raises(InvalidValueError, match="is not allowed: give"):
            read_settings([pair], keys)


@pytest.mark.parametrize("out", ["new.parquet", "new.safetensors"])
def test_what_is_exported_is_checked_whatever_its_form(out: str, work: Work) -> None:
    shard = work / "store.zarr" / "hidden_states" / "c" / "0" / "0" / "0"
    data = shard.read_bytes()
    shard.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    work.refuses(f"export store.zarr {out}", "the rows of partition 0 of store.zarr were changed", status=1)
    assert work.run("export", "store.zarr", *out.split(), "--no-check").status == 0
