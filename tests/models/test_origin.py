"""The model that made a store is found from any working directory, and another configuration is another model."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import embstore as es
from embstore.errors import ModelError, StoreMismatchError
from embstore.models.origin import _used
from embstore_explorer.stores import Explored
from tests.extraction.plans import plan_of
from tests.models import tiny

TEXT = "the old [bank] was steep"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a model in a folder below it, and a cache of its own."""
    monkeypatch.setenv("EMBSTORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("EMBSTORE_MODEL", raising=False)
    tiny.save("bert", tmp_path / "work/out/tiny")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def extracted(path: Path) -> es.Store:
    return es.extract(plan_of(tiny.SENTENCES, model="out/tiny", dtype="float32"), path)


def test_a_model_below_the_working_directory_is_found_from_another(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = extracted(work / "made.zarr")
    vectors, near = store.select().vectors(), es.neighbors(store, TEXT, k=3)
    assert str(work) not in (store.path / "zarr.json").read_text("utf-8")
    (work.parent / "elsewhere").mkdir()
    monkeypatch.chdir(work.parent / "elsewhere")
    assert es.neighbors(store, TEXT, k=3).equals(near)
    assert Explored(store).can_encode
    assert Explored(store).encoder().info.name == "tiny"
    assert np.array_equal(es.store.thin(store.path).select().vectors(), vectors)


def test_a_model_that_was_moved_is_named_by_an_option_or_a_variable(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = extracted(work / "made.zarr")
    near = es.neighbors(store, TEXT, k=3)
    moved = (work / "out/tiny").rename(work / "out/other")
    gone = r"the model 'tiny' that made .* is not found, no longer at .*: .*--model .*EMBSTORE_MODEL"
    for use in (
        lambda: es.neighbors(store, TEXT, k=3),
        lambda: es.store.thin(store.path),
        lambda: Explored(store).encoder(),
    ):
        with pytest.raises(ModelError, match=gone):
            use()
    assert not Explored(store).can_encode
    monkeypatch.setenv("EMBSTORE_MODEL", str(moved))
    assert es.neighbors(store, TEXT, k=3).equals(near)
    assert Explored(store).can_encode
    monkeypatch.delenv("EMBSTORE_MODEL")
    assert es.neighbors(store, TEXT, k=3).equals(near), "the place is remembered"


@pytest.mark.parametrize("damage", [lambda place: place.write_bytes(b"/\xff\0\n"), os.mkfifo])
def test_a_damaged_memory_of_the_place_is_none(work: Path, damage: Callable[[Path], object]) -> None:
    store = extracted(work / "made.zarr")
    (place,) = (work.parent / "cache/models").iterdir()
    place.unlink()
    damage(place)
    _used.clear()  # as in another process
    with pytest.raises(ModelError, match="is not found"):
        es.neighbors(store, TEXT, k=3)


def changed_config(folder: Path, **fields: object) -> None:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | fields), "utf-8")


def test_another_configuration_is_another_model(work: Path) -> None:
    made = plan_of(tiny.SENTENCES, model="out/tiny", dtype="float32")
    store, virtual = es.extract(made, work / "made.zarr"), es.extract(made, work / "virtual.zarr", virtual=True)
    changed_config(work / "out/tiny", hidden_act="gelu_new")
    for use in (
        lambda: virtual.select().vectors(),
        lambda: es.neighbors(store, TEXT, k=3),
        lambda: es.store.thin(store.path),
        lambda: Explored(store).encoder(),
    ):
        with pytest.raises(ModelError, match=r"has another configuration than the model 'tiny' that made .*--model"):
            use()
    with pytest.raises(StoreMismatchError, match=r"was made with model\.config_sha256"):
        extracted(store.path)


def test_fields_that_change_no_vector_are_left_out(work: Path) -> None:
    before = es.load_encoder("out/tiny").info
    unused = {"transformers_version": "9.9", "id2label": {"0": "x"}, "hidden_dropout_prob": 0.5, "use_cache": False}
    changed_config(work / "out/tiny", **unused, dtype="bfloat16", _name_or_path="elsewhere")
    assert es.load_encoder("out/tiny").info == before
    for fields in ({"layer_norm_eps": 1e-3}, {"pad_token_id": 3}, {"hidden_act": "relu"}):
        changed_config(work / "out/tiny", **fields)
        other = es.load_encoder("out/tiny").info
        assert other.config_sha256 != before.config_sha256, fields
        before = other
