"""Saved probes of every kind are the same probes, or an error says what is wrong with them."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from embstore.errors import InvalidValueError, SavedProbesError
from embstore.probes import ClassProbe, EdgeProbe, RowProbe, StructuralProbe, Training, load, require_free, split_words
from embstore.probes.saved import read_tensors, write_tensors
from embstore.store.metadata import document_crc32c
from tests.json_schemas import validator_of
from tests.probes import class_store, edge_store, tree_store
from tests.probes.oracle import logits_of_bank

FAST = Training(epochs=2, batch_size=4)
CLASS: list[dict[str, Any]] = [
    {"kind": "linear", "control": True},
    {"kind": "mlp", "hidden_size": 6, "level": "type", "control": True, "seeds": (3, 1)},
    {"kind": "mlp", "hidden_size": 4, "max_contexts": None, "training": Training(epochs=2, patience=0)},
]
EDGE: list[dict[str, Any]] = [
    {"layerwise": True, "seeds": (4, 0), "hidden_size": 5},
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
    settings = {"training": FAST, **settings}
    if kind == "class":
        own = ClassProbe(**settings).fit(classes.store, split_words(*classes.lists))
        return own, lambda probe: probe.score(data=classes.store, splits=("train", "dev", "test"))
    if kind == "edge":
        probe = EdgeProbe(**settings).fit(edges.store, edges.splits["train"], edges.splits["dev"], name="colors")
        return probe, lambda probe: probe.score(edges.splits["test"], data=edges.store, resamples=9)
    if kind == "row":
        rows = RowProbe(label="class", **settings).fit(classes.store)
        return rows, lambda probe: probe.score(classes.store, splits=("train", "test"))
    made = StructuralProbe(rank=2, **settings).fit(trees.store, trees.trees[:12], trees.trees[12:18])
    return made, lambda probe: probe.score(trees.trees[18:], data=trees.store)


CASES = [("class", each) for each in CLASS] + [("edge", each) for each in EDGE] + [("structural", {})]
CASES += [("row", {}), ("row", {"kind": "difference", "control": "none"}), ("row", {"split": "word", "seeds": (2, 0)})]


@pytest.mark.parametrize(("kind", "settings"), CASES)
@pytest.mark.quick(1)
def test_loaded_probes_equal_the_saved_ones(stores: Any, tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    probe, score = fitted(stores, kind, settings)
    file = tmp_path / "a" / "probes"
    probe.save(file)
    other = load(file)
    assert type(other) is type(probe)
    listed = {name: list(value) if isinstance(value, tuple) else value for name, value in probe.get_params().items()}
    assert other.get_params() == listed
    frame = score(probe).frame
    assert score(other).frame.equals(frame)
    other.save(file)  # replaces the first
    assert score(load(file)).frame.equals(frame)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["probes"]
    validator = validator_of("saved_probes")
    fields, _ = read_tensors(file)
    validator.validate(fields)
    assert fields["store"]["digest"] == probe.fitted_.store["digest"]
    for wrong in ({"probe": "deep"}, {"settings": {}}, {"fitted": {}}, {"more": 1}, {"crc32c": -1}):
        assert not validator.is_valid(fields | wrong)


def test_tensors_are_plain_weights(stores: Any, tmp_path: Path) -> None:
    classes, _, _ = stores
    probe, _ = fitted(stores, "class", CLASS[0])
    probe.save(tmp_path / "class")
    tensors = load_file(tmp_path / "class")
    assert {name: array.shape for name, array in tensors.items()} == {
        "weight": (3, 1, 6, 9), "epochs": (3, 1, 6), "dev_loss": (3, 1, 6), "capped": (3, 1, 6),
    }  # fmt: skip
    vectors = classes.vectors[:, :5]
    weight = tensors["weight"]
    expected = np.einsum("lsof,lnf->lson", weight[..., :-1], vectors) + weight[..., -1:]
    np.testing.assert_allclose(logits_of_bank(probe.fitted_.bank, vectors), expected, atol=1e-5)
    probe, _ = fitted(stores, "edge", EDGE[0])
    probe.save(tmp_path / "edge")
    fields, tensors = read_tensors(tmp_path / "edge")
    assert fields["fitted"]["mixes"] == [[0], [0, 1], [0, 1, 3], [1], [3]] * 2
    assert tensors["projection1"].shape == (10, 5, 12)


@pytest.fixture(scope="module")
def saved(stores: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("saved") / "probes"
    fitted(stores, "class", CLASS[0])[0].save(file)
    return file


def test_other_files_are_not_overwritten(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(SavedProbesError, match=r"nowhere is not a file of saved probes: give one that save"):
        load(tmp_path / "nowhere")
    thesis = tmp_path / "thesis.tex"
    thesis.write_text("x")
    probe = load(saved)
    for file, message in (
        (tmp_path, "exists and is not a file of saved probes"),
        (thesis, "exists and is not a file of saved probes"),
        (thesis / "probes", "thesis.tex is a file: give another name"),
        ("probes\0", "is not a path: it holds NUL"),
    ):
        with pytest.raises(InvalidValueError, match=message):
            probe.save(file)
    assert thesis.read_text() == "x"
    require_free(saved)
    require_free(tmp_path / "new")
    with pytest.raises(InvalidValueError, match="this EdgeProbe is not fitted"):
        EdgeProbe().save(tmp_path / "new")


@pytest.mark.skipif(sys.platform == "win32", reason="links and rights of files")
def test_links_and_rights_of_files_are_those_of_any_file(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    target, link, plain = tmp_path / "disk" / "probes", tmp_path / "link", tmp_path / "plain"
    shutil.copy(saved, target)
    link.symlink_to(target)
    plain.write_text("")
    probe = load(link)
    probe.set_params(label="other")
    probe.save(link)
    assert link.is_symlink()
    assert (load(target).label, target.stat().st_mode) == ("other", plain.stat().st_mode)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidValueError, match="pipe exists and is not a file of saved probes"):
        probe.save(tmp_path / "pipe")


def _changed(file: Path, **fields: Any) -> None:
    """Write the probes again with other fields and right checksums."""
    document, tensors = read_tensors(file)
    for name in ("format_version", "software", "tensors_crc32c", "crc32c"):
        document.pop(name)
    write_tensors(file, document | fields, tensors)


def _raw(file: Path, text: str | Callable[[dict[str, Any]], dict[str, Any]], **tensors: np.ndarray) -> None:
    """Write tensors and the text of the metadata as they are."""
    if not isinstance(text, str):
        with safe_open(file, "np") as opened:
            document = json.loads(opened.metadata()["embstore"])
        document = text(document)
        document["crc32c"] = document_crc32c(document)
        text = json.dumps(document)
    save_file(load_file(file) | tensors, file, {"embstore": text})


def _bytes(file: Path, change: Callable[[bytearray], bytes | bytearray]) -> None:
    file.write_bytes(change(bytearray(file.read_bytes())))


def _fitted(file: Path, **fields: Any) -> None:
    _changed(file, fitted=read_tensors(file)[0]["fitted"] | fields)


def _header(text: str) -> bytes:
    return len(text).to_bytes(8, "little") + text.encode()


HUGE = json.dumps({"weight": {"dtype": "F32", "shape": [2**40, 2**22], "data_offsets": [0, 4]}})
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda file: file.write_bytes(b""), "not a file of tensors"),
    "other bytes": (lambda file: file.write_bytes(b"something else"), "not a file of tensors"),
    "pickle": (lambda file: file.write_bytes(b"\x80\x04cos\nsystem\n(S'exit 7'\ntR."), "not a file of tensors"),
    "cut in the header": (lambda file: _bytes(file, lambda data: data[:100]), "not a file of tensors"),
    "cut in the tensors": (lambda file: _bytes(file, lambda data: data[:-10]), "not a file of tensors"),
    "longer": (lambda file: _bytes(file, lambda data: data + b"1234"), "not a file of tensors"),
    "huge header": (lambda file: file.write_bytes((2**62).to_bytes(8, "little") + b"{}"), "not a file of tensors"),
    "huge shape": (lambda file: file.write_bytes(_header(HUGE) + b"1234"), "not a file of tensors"),
    "nested header": (lambda file: file.write_bytes(_header("[" * 200_000)), "not a file of tensors"),
    "nested metadata": (lambda file: _raw(file, "[" * 200_000), "not a file of tensors"),
    "metadata are a list": (lambda file: _raw(file, "[]"), "not a file of tensors"),
    "metadata changed": (
        lambda file: _raw(file, json.dumps({"format_version": 1, "crc32c": 1})),
        "its metadata differs",
    ),
    "newer": (lambda file: _raw(file, lambda document: document | {"format_version": 2}), "it has format 2, this"),
    "one more tensor": (lambda file: _raw(file, dict, more=np.ones(3)), "the checksum of its tensors differs"),
    "unknown kind": (lambda file: _changed(file, probe="deep"), "'deep'"),
    "another kind": (lambda file: _changed(file, probe="structural"), "are damaged"),
    "checkpoint": (lambda file: _changed(file, probe="checkpoint"), "'checkpoint'"),
    "no settings": (lambda file: _changed(file, settings=[]), "are damaged"),
    "another width": (lambda file: _fitted(file, width=9), "the tensor weight does not fit the settings"),
    "huge width": (lambda file: _fitted(file, width=2**62), "the tensor weight does not fit the settings"),
    "no words": (lambda file: _fitted(file, words=None), "are damaged"),
    "classes of another number": (lambda file: _fitted(file, classes=["a"]), "are damaged"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_and_hostile_files_are_refused_in_one_line(saved: Path, tmp_path: Path, damage: str) -> None:
    file = tmp_path / "probes"
    shutil.copy(saved, file)
    change, message = DAMAGES[damage]
    change(file)
    with pytest.raises(SavedProbesError) as refused:
        load(file)
    assert message in str(refused.value)
    assert str(refused.value).startswith(f"the probes {file} are damaged (")


def test_every_flipped_byte_is_found(saved: Path, tmp_path: Path) -> None:
    data = saved.read_bytes()
    file = tmp_path / "probes"
    rng = np.random.default_rng(0)
    for place in rng.choice(len(data), 200, replace=False).tolist():
        changed = bytearray(data)
        changed[place] ^= 1 << int(rng.integers(8))
        file.write_bytes(changed)
        with pytest.raises(SavedProbesError):
            load(file)
