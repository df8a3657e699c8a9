"""Saved edge probes: what is read is what was saved, and what they give other stores."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import polars as pl
import pytest
import torch
from safetensors.numpy import load_file

from embstore.errors import InvalidValueError, SavedProbesError, SavedProbesNotFoundError
from embstore.probes.edges.edges import EdgeResult, probe_edges
from embstore.probes.edges.files import METADATA, TENSORS, EdgeProbes
from tests.probes.edge_store import Made, make, write_store


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("stores") / "made.zarr", sentences=20, layers=(0, 1, 3), planted=1)


def probe(made: Made, **options: Any) -> EdgeResult:
    given = {"device": "cpu", "projection": 6, "hidden_size": 5, "epochs": 2, "batch_size": 4, **options}
    return probe_edges(made.store, **made.splits, name="colours", **given)


@pytest.fixture(scope="module")
def found(made: Made) -> EdgeResult:
    return probe(made, layerwise=True, seeds=(4, 0))


def test_what_is_read_is_what_was_saved(made: Made, found: EdgeResult, tmp_path: Path) -> None:
    probes = EdgeProbes.of(found)
    probes.save(tmp_path / "kept" / "colours")
    probes.save(tmp_path / "kept" / "colours")  # in place of themselves
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["colours"]
    read = EdgeProbes.load(tmp_path / "kept" / "colours")
    assert read.bank.shape == probes.bank.shape
    assert read.bank.weights.keys() == probes.bank.weights.keys()
    assert all(torch.equal(tensor, read.bank.weights[name]) for name, tensor in probes.bank.weights.items())
    assert np.array_equal(read.bank.allowed, probes.bank.allowed)
    assert np.array_equal(read.bank.seeds, probes.bank.seeds)
    np.testing.assert_array_equal(read.epochs, probes.epochs)
    np.testing.assert_array_equal(read.dev_loss, probes.dev_loss)
    for name in ("task", "labels", "single", "probes", "training", "store", "unit", "width", "layers"):
        assert getattr(read, name) == getattr(probes, name)
    assert read.training["learning_rate"] == 1e-3
    assert read.fit(made.store) == ()
    for seed in (4, 0):
        np.testing.assert_array_equal(
            read.probabilities(made.store, made.splits["test"], seed=seed, device="cpu"),
            found.probabilities("test", seed=seed),
        )
    scores = read.scores(made.store, made.splits["test"], device="cpu")
    columns = ["task", "layer", "split", "metric", "value", "count", "seed"]
    same = pl.col("metric").is_in(["f1", "half_f1", "layer_f1"]) & (pl.col("split") == "test")
    assert scores.frame.sort(columns).equals(found.frame.filter(same).select(columns).sort(columns))


def test_the_metadata_are_valid_and_name_what_each_tensor_row_mixes(found: EdgeResult, tmp_path: Path) -> None:
    EdgeProbes.of(found).save(tmp_path / "probes")
    fields = json.loads((tmp_path / "probes" / METADATA).read_text("utf-8"))
    schema = json.loads(resources.files("embstore.schemas").joinpath("edge_probes.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(fields, schema)
    for wrong in ({"labels": ["x"]}, {"spans": 3}, {"unit": "letter"}, {"more": 1}, {"epochs": [0]}, {"mixes": [[]]}):
        assert not jsonschema.Draft202012Validator(schema).is_valid(fields | wrong)
    assert fields["mixes"] == [[0], [0, 1], [0, 1, 3], [1], [3]] * 2
    tensors = load_file(tmp_path / "probes" / TENSORS)
    assert {len(tensor) for tensor in tensors.values()} == {10}
    assert tensors["projection1"].shape == (10, 6, 12)


def test_probes_without_dev_have_no_loss(made: Made, tmp_path: Path) -> None:
    result = probe_edges(
        made.store, train=made.splits["train"], epochs=1, patience=None, projection=4, hidden_size=4, device="cpu"
    )
    EdgeProbes.of(result).save(tmp_path / "probes")
    assert np.isnan(EdgeProbes.load(tmp_path / "probes").dev_loss).all()


def test_another_encoder_is_told_and_another_shape_refused(made: Made, found: EdgeResult, tmp_path: Path) -> None:
    probes = EdgeProbes.of(found)
    words = [["a", "b"]]

    def store(name: str, layers: tuple[int, ...] = (0, 1, 3), width: int = 12, unit: str = "word") -> Any:
        rows = 4 if unit == "subword" else 2
        vectors = np.ones((len(layers), rows, width), np.float32)
        return write_store(tmp_path / name, words, vectors, layers, unit=unit)

    other = store("other.zarr", layers=(0, 1, 2, 3))
    assert probes.fit(other) == ()
    other.metadata.model["name"] = "another"
    assert probes.fit(other) == (
        f"colours: the probes learnt from vectors made otherwise than those of {other.path}: none (now another)",
    )
    for wrong, message in (
        (store("a.zarr", width=8), "the probes of colours read vectors of width 12, .*a.zarr has 8"),
        (
            store("b.zarr", unit="subword"),
            "the probes of colours read rows of unit word, .*b.zarr has those of unit sub",
        ),
        (store("c.zarr", layers=(0, 3)), r"read layer 1, which is not stored in .*c.zarr: it has 0, 3$"),
    ):
        with pytest.raises(InvalidValueError, match=message):
            probes.join(wrong, [])
    with pytest.raises(InvalidValueError, match="the probes of colours have no seed 1: they have 4, 0"):
        probes.cumulative(1)


def test_damage_is_told(found: EdgeResult, tmp_path: Path) -> None:
    folder = tmp_path / "probes"
    EdgeProbes.of(found).save(folder)
    text = (folder / METADATA).read_text()
    (folder / METADATA).write_text(text.replace('"width": 12', '"width": 13'))
    with pytest.raises(SavedProbesError, match=r"are damaged \(edges.json was changed\): train them again"):
        EdgeProbes.load(folder)
    (folder / METADATA).write_text(text)
    (folder / TENSORS).write_bytes((folder / TENSORS).read_bytes()[:-4])
    with pytest.raises(SavedProbesError, match=r"edges\.safetensors was changed"):
        EdgeProbes.load(folder)
    with pytest.raises(SavedProbesNotFoundError, match=r"holds no edge probes: there is no edges\.json in it"):
        EdgeProbes.load(tmp_path)
    with pytest.raises(InvalidValueError, match="holds something else than edge probes"):
        EdgeProbes.of(found).save(tmp_path)
