"""Structural probes on disk, and figures of what they see."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch

from embstore.errors import InvalidValueError, SavedProbesError, SavedProbesNotFoundError
from embstore.probes.structure.files import METADATA, TENSORS, SavedStructure
from embstore.probes.structure.result import RecoveredTree, StructureResult
from embstore.probes.structure.structure import probe_structure
from tests.probes.tree_store import make


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> StructureResult:
    made = make(tmp_path_factory.mktemp("files") / "small.zarr", sentences=24)
    trees = made.trees
    return probe_structure(made.store, train=trees[:12], dev=trees[12:18], test=trees[18:], rank=2, epochs=2)


def test_saved_probes_are_read_back(found: StructureResult, tmp_path: Path) -> None:
    saved = found.saved["small"]
    saved.save(tmp_path / "probes")
    saved.save(tmp_path / "probes")  # in place of themselves
    read = SavedStructure.load(tmp_path / "probes")
    assert torch.equal(read.probes.weights, saved.probes.weights)
    assert read.probes.shape == saved.probes.shape
    assert np.array_equal(read.probes.epochs, saved.probes.epochs)
    assert np.array_equal(read.probes.dev_loss, saved.probes.dev_loss)
    assert (read.training, read.sentences, read.store) == (saved.training, saved.sentences, saved.store)
    assert read.sentences == {"train": 12, "dev": 6, "test": 6}
    schema = json.loads(resources.files("embstore.schemas").joinpath("structure_probes.schema.json").read_text())
    jsonschema.validate(json.loads((tmp_path / "probes" / METADATA).read_text()), schema)


def test_damage_is_told(found: StructureResult, tmp_path: Path) -> None:
    folder = tmp_path / "probes"
    found.saved["small"].save(folder)
    text = (folder / METADATA).read_text()
    (folder / METADATA).write_text(text.replace('"rank": 2', '"rank": 3'))
    with pytest.raises(SavedProbesError, match=r"are damaged \(structure.json was changed\): train them again"):
        SavedStructure.load(folder)
    (folder / METADATA).write_text(text.replace('"format_version": 1', '"format_version": 2'))
    with pytest.raises(SavedProbesError, match="have format 2, newer than 1"):
        SavedStructure.load(folder)
    (folder / METADATA).write_text(text)
    tensors = bytearray((folder / TENSORS).read_bytes())
    tensors[-1] ^= 1
    (folder / TENSORS).write_bytes(tensors)
    with pytest.raises(SavedProbesError, match=r"structure\.safetensors was changed"):
        SavedStructure.load(folder)
    with pytest.raises(SavedProbesNotFoundError, match="holds no structural probes"):
        SavedStructure.load(tmp_path)
    with pytest.raises(InvalidValueError, match="holds something else than structural probes"):
        found.saved["small"].save(tmp_path)


def recovered() -> RecoveredTree:
    return RecoveredTree(
        words=("The", "$chef", "made", "."),
        punctuation=np.array([False, False, False, True]),
        gold=frozenset({(0, 1), (1, 2)}),
        found=frozenset({(0, 2), (1, 2)}),
        gold_root=2,
        found_root=1,
        distances=np.zeros((4, 4), np.float32),
        layer=3,
    )


def test_the_tree_is_drawn_beside_the_gold_one() -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.colors import to_hex

    from embstore.plot import tree_figure
    from embstore.plot.trees import RIGHT, WRONG

    axis = tree_figure(recovered()).axes[0]
    assert [text.get_text() for text in axis.texts[:4]] == ["The", r"\$chef", "made", "."]
    assert axis.get_title() == "1 of 2 edges found"
    arcs = [line for line in axis.lines if len(line.get_xdata()) > 2]
    drawn = {(to_hex(line.get_color()).upper(), bool(np.mean(line.get_ydata()) > 0)) for line in arcs}
    assert len(arcs) == 4
    assert drawn == {(RIGHT, True), (WRONG, True), (RIGHT, False), (WRONG, False)}
    middle = {text.get_text(): text.get_position()[0] for text in axis.texts}
    ends = {(round(float(min(line.get_xdata())), 4), round(float(max(line.get_xdata())), 4)) for line in arcs}
    assert (round(middle["The"], 4), round(middle[r"\$chef"], 4)) in ends


def test_scores_are_drawn_by_layer(found: StructureResult) -> None:
    pytest.importorskip("matplotlib")
    from embstore.plot import structure_figure

    figure = structure_figure(found.summary())
    assert [axis.get_title() for axis in figure.axes] == [
        "edges found (UUAS)", "distances (DSpr)", "roots found", "depths (NSpr)",
    ]  # fmt: skip
    for axis in figure.axes:
        assert axis.lines[0].get_xdata().tolist() == [0, 3, 4]
        assert axis.lines[1].get_label() == "linear order"
    with pytest.raises(InvalidValueError, match="there is no metric to draw"):
        structure_figure(found.summary().head(0))


def test_trees_that_are_not_there_are_refused(found: StructureResult) -> None:
    with pytest.raises(InvalidValueError, match="there is no test sentence 6: small has 0 to 5"):
        found.tree(6)
    with pytest.raises(InvalidValueError, match="there is no probe of layer 1: small has those of 0, 3, 4"):
        found.tree(0, layer=1)
    with pytest.raises(InvalidValueError, match="there is no store 'large': the probes are of small"):
        found.tree(0, store="large")
