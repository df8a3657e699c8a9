"""Saved probes of every kind are the same probes, or an error says what is wrong with them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from safetensors.numpy import load_file

from embstore.errors import InvalidValueError, SavedProbesError, SavedProbesNotFoundError, StorageError
from embstore.probes import ClassProbe, EdgeProbe, StructuralProbe, Training, load, require_free, split_words
from embstore.probes import base as saved_module
from embstore.store.metadata import document_crc32c
from tests.probes import class_store, edge_store, tree_store

FAST = Training(epochs=2, batch_size=4)
CLASS: list[dict[str, Any]] = [
    {"kind": "linear", "control": True},
    {"kind": "mlp", "hidden_size": 6, "level": "type", "control": True, "seeds": (3, 1)},
    {"kind": "mlp", "hidden_size": 4, "max_contexts": None, "training": Training(epochs=2, patience=0)},
]
EDGE: list[dict[str, Any]] = [
    {"layerwise": True, "seeds": (4, 0), "projection": 6, "hidden_size": 5},
    {"kind": "linear", "control": True},
]
Scored = Callable[[Any], Any]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[class_store.Made, edge_store.Made, tree_store.TreeStore]:
    folder = tmp_path_factory.mktemp("stores")
    edges = edge_store.make(folder / "edges.zarr", sentences=20, layers=(0, 1, 3), planted=1)
    return class_store.make(folder / "class.zarr"), edges, tree_store.make(folder / "trees.zarr", sentences=24)


def fitted(stores: Any, kind: str, settings: dict[str, Any]) -> tuple[Any, Scored]:
    """Fit a probe, and return it with a function that scores it or a loaded one."""
    classes, edges, trees = stores
    settings = {"training": FAST, "device": "cpu", **settings}
    if kind == "class":
        own = ClassProbe(**settings).fit(classes.store, split_words(*classes.lists))
        return own, lambda probe: probe.score(data=classes.store, splits=("train", "dev", "test"))
    if kind == "edge":
        probe = EdgeProbe(**settings).fit(edges.store, edges.splits["train"], edges.splits["dev"], name="colors")
        return probe, lambda probe: probe.score(edges.splits["test"], data=edges.store, resamples=9)
    made = StructuralProbe(rank=2, **settings).fit(trees.store, trees.trees[:12], trees.trees[12:18])
    return made, lambda probe: probe.score(trees.trees[18:], data=trees.store)


CASES = [("class", each) for each in CLASS] + [("edge", each) for each in EDGE] + [("structural", {})]


@pytest.mark.parametrize(("kind", "settings"), CASES)
def test_loaded_probes_equal_the_saved_ones(stores: Any, tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    probe, score = fitted(stores, kind, settings)
    folder = tmp_path / "a" / "probes"
    probe.save(folder)
    other = load(folder)
    assert type(other) is type(probe)
    assert other.settings == probe.settings
    frame = score(probe).frame
    assert score(other).frame.equals(frame)
    other.save(folder)  # replaces the first
    assert score(load(folder)).frame.equals(frame)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["probes"]
    schema = json.loads(resources.files("embstore.schemas").joinpath("saved_probes.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    fields = json.loads((folder / "probe.json").read_text("utf-8"))
    jsonschema.validate(fields, schema)
    assert fields["store"]["digest"] == probe.fitted.store["digest"]
    for wrong in ({"probe": "deep"}, {"settings": {}}, {"fitted": {}}, {"more": 1}, {"crc32c": -1}):
        assert not jsonschema.Draft202012Validator(schema).is_valid(fields | wrong)


def test_tensors_are_plain_weights_and_biases(stores: Any, tmp_path: Path) -> None:
    classes, _, _ = stores
    probe, _ = fitted(stores, "class", CLASS[0])
    probe.save(tmp_path / "class")
    tensors = load_file(tmp_path / "class" / "weights.safetensors")
    assert {name: array.shape for name, array in tensors.items()} == {
        "weight": (3, 1, 6, 8), "bias": (3, 1, 6), "epochs": (3, 1, 6), "dev_loss": (3, 1, 6),
    }  # fmt: skip
    vectors = classes.vectors[:, :5]
    expected = np.einsum("lsof,lnf->lson", tensors["weight"], vectors) + tensors["bias"][..., None]
    np.testing.assert_allclose(probe.fitted.bank.logits(vectors), expected, atol=1e-5)
    probe, _ = fitted(stores, "edge", EDGE[0])
    probe.save(tmp_path / "edge")
    fields = json.loads((tmp_path / "edge" / "probe.json").read_text())
    assert fields["fitted"]["mixes"] == [[0], [0, 1], [0, 1, 3], [1], [3]] * 2
    assert load_file(tmp_path / "edge" / "weights.safetensors")["projection1"].shape == (10, 6, 12)


@pytest.fixture(scope="module")
def saved(stores: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "probes"
    fitted(stores, "class", CLASS[0])[0].save(folder)
    return folder


def test_other_files_are_not_overwritten(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(SavedProbesNotFoundError, match=r"nowhere has no saved probes: there is no probe\.json"):
        load(tmp_path / "nowhere")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    probe = load(saved)
    for folder in (tmp_path / "full", tmp_path / "full" / "thesis.tex"):
        with pytest.raises(InvalidValueError, match=r"exists and is not a folder of saved probes"):
            probe.save(folder)
    assert (tmp_path / "full" / "thesis.tex").exists()
    require_free(saved)
    require_free(tmp_path / "new")
    with pytest.raises(InvalidValueError, match="this EdgeProbe is not fitted"):
        EdgeProbe().save(tmp_path / "new")


def test_a_failed_save_leaves_the_old_probes(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "probes"
    shutil.copytree(saved, folder)
    probe, before = load(folder), (folder / "probe.json").read_bytes()
    order: list[str] = []
    for name in ("fsync_tree", "fsync"):
        real = getattr(saved_module, name)
        monkeypatch.setattr(saved_module, name, lambda path, name=name, real=real: (order.append(name), real(path)))
    rename = saved_module.os.rename
    monkeypatch.setattr(saved_module.os, "rename", lambda *paths: (order.append("rename"), rename(*paths)))
    probe.save(folder)
    assert order == ["fsync_tree", "rename", "rename", "fsync"], "durable before and after the replacement"

    def fail(*_: object) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(saved_module, "fsync_tree", fail)
    with pytest.raises(StorageError, match="the disk is full"):
        probe.save(folder)
    assert json.loads((folder / "probe.json").read_bytes())["store"] == json.loads(before)["store"]
    assert load(folder).settings == probe.settings


def _changed(folder: Path, *, seal: bool = False, **fields: Any) -> None:
    path = folder / "probe.json"
    document = json.loads(path.read_text()) | fields
    if seal:
        document["crc32c"] = document_crc32c(document)
    path.write_text(json.dumps(document))


def _flip(folder: Path) -> None:
    path = folder / "weights.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def _width(folder: Path) -> None:
    fitted = json.loads((folder / "probe.json").read_text())["fitted"]
    _changed(folder, seal=True, fitted=fitted | {"width": 9})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda folder: (folder / "weights.safetensors").write_bytes(b"short"),
            r"are damaged \(the checksum of weights\.safetensors differs\): train them again",
        ),
        (_flip, r"are damaged \(the checksum of weights\.safetensors differs\)"),
        (lambda folder: (folder / "weights.safetensors").unlink(), r"are damaged \(No such file or directory\)"),
        (lambda folder: _changed(folder, probe="edge"), r"are damaged \(the checksum of probe\.json differs\)"),
        (lambda folder: _changed(folder, seal=True, probe="deep"), "are damaged"),
        (lambda folder: _changed(folder, seal=True, probe="structural"), "are damaged"),
        (_width, "does not fit its sizes"),
        (lambda folder: _changed(folder, seal=True, format_version=2), "have format 2, this version reads formats up"),
        (lambda folder: (folder / "probe.json").write_text("[]"), "are damaged"),
    ],
)
def test_damage_is_found(saved: Path, tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    folder = tmp_path / "probes"
    shutil.copytree(saved, folder)
    damage(folder)
    with pytest.raises(SavedProbesError, match=message) as refused:
        load(folder)
    assert "\n" not in str(refused.value)
